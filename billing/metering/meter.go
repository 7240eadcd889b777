package metering

import (
	"database/sql"
	"errors"
	"fmt"

	"jpintel/billing/money"
	"jpintel/store"
)

// Value is what a customer's meter has come to in a period.
func Value(q store.Querier, customer, meter, period string) (money.Amount, error) {
	var text string
	err := q.QueryRow(`SELECT value FROM meters WHERE customer_id = $1 AND meter = $2 AND period = $3`, customer, meter, period).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return money.Amount{}, nil
	}
	if err != nil {
		return money.Amount{}, fmt.Errorf("reading a meter: %w", err)
	}
	return amount(text)
}

// Change is what a meter has become.
type Change struct {
	Period        string
	Before, After money.Amount
	RecordID      string // the usage record of the latest request that has changed it
}

// turn moves a meter on, or back.
func turn(tx *store.Tx, customer, meter, period string, by money.Amount) (c Change, err error) {
	c.Period = period
	if c.Before, err = Value(tx, customer, meter, period); err != nil {
		return c, err
	}
	if c.After, err = c.Before.Add(by); err != nil {
		return c, fmt.Errorf("the meter %s of %s: %w", meter, period, err)
	}
	if _, err := tx.Exec(`
		INSERT INTO meters (customer_id, meter, period, value) VALUES ($1, $2, $3, $4)
		ON CONFLICT (customer_id, meter, period) DO UPDATE SET value = excluded.value`, customer, meter, period, c.After.String()); err != nil {
		return c, fmt.Errorf("writing a meter: %w", err)
	}
	return c, nil
}
