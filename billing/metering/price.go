package metering

import (
	"database/sql"
	"fmt"

	"jpintel/billing/money"
	"jpintel/store"
)

// firstDay is before every day.
const firstDay = "0000-01-01"

// price is what an attempt costs from a day on.
type price struct {
	from   string
	amount money.Amount
}

// prices are in the order of their days.
type prices []price

// on is the price of a day; otherwise, where there was none yet.
func (p prices) on(day string, otherwise money.Amount) money.Amount {
	for _, price := range p {
		if price.from <= day {
			otherwise = price.amount
		}
	}
	return otherwise
}

func readPrices(q store.Querier) (prices, error) {
	rows, err := q.Query(`SELECT from_day, price FROM attempt_prices ORDER BY from_day`)
	if err != nil {
		return nil, fmt.Errorf("reading prices: %w", err)
	}
	all, err := store.Collect(rows, func(rows *sql.Rows) (p price, err error) {
		var text string
		if err := rows.Scan(&p.from, &text); err != nil {
			return p, err
		}
		p.amount, err = amount(text)
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading prices: %w", err)
	}
	return all, nil
}

// SetAttemptPrice has a webhook attempt cost so much from today on. Days before
// keep their price; the first price that there is holds for all of them.
func SetAttemptPrice(tx *store.Tx, a money.Amount) error {
	known, err := readPrices(tx)
	if err != nil {
		return err
	}
	from, _, _ := dayBounds(tx.Now, tx.Local().Location())
	if len(known) == 0 {
		from = firstDay
	} else if known[len(known)-1].amount.Equal(a) {
		return nil
	}
	_, err = tx.Exec(`INSERT INTO attempt_prices (from_day, price) VALUES ($1, $2) ON CONFLICT (from_day) DO UPDATE SET price = excluded.price`, from, a.String())
	if err != nil {
		return fmt.Errorf("writing a price: %w", err)
	}
	return nil
}
