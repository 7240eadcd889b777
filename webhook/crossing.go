package webhook

import (
	"context"
	"database/sql"
	"fmt"
	"math/bits"
	"time"

	"jpintel/store"
)

// Crossed is the crossing rule: before the change the value was below so many
// percent of the limit, and after it it is there or above, whichever of the two
// has changed. A limit of 0 or less is none, which no value reaches. It is
// exact for every int64.
func Crossed(valueBefore, limitBefore, valueAfter, limitAfter int64, percent int) bool {
	return !reached(valueBefore, limitBefore, percent) && reached(valueAfter, limitAfter, percent)
}

// reached is value×100 ≥ limit×percent, in 128 bits.
func reached(value, limit int64, percent int) bool {
	if limit <= 0 || value < 0 {
		return false
	}
	valueHigh, valueLow := bits.Mul64(uint64(value), 100)
	limitHigh, limitLow := bits.Mul64(uint64(limit), uint64(percent))
	return valueHigh > limitHigh || valueHigh == limitHigh && valueLow >= limitLow
}

// Crossing names what is told once: that a customer's meter has reached a
// threshold of one version of its limit in one period.
type Crossing struct {
	CustomerID   string
	Meter        string
	Period       string
	LimitVersion int64 // rises with each change of the limit
	Percent      int
}

// PublishCrossing publishes p, which tells of the crossing, unless one has been
// told of before: falling below a threshold does not re-arm it. Whether there is
// a crossing is for the caller to say. correlationID names what has caused it; "":
// nothing in particular.
func (o *Outbox) PublishCrossing(ctx context.Context, tx *store.Tx, c Crossing, p Payload, correlationID string) error {
	told, err := exists(tx, `
		SELECT 1 FROM threshold_crossings WHERE customer_id = $1 AND meter = $2 AND period = $3 AND limit_version = $4 AND percent = $5`,
		c.CustomerID, c.Meter, c.Period, c.LimitVersion, c.Percent)
	if err != nil {
		return fmt.Errorf("looking for a crossing: %w", err)
	}
	if told {
		return nil
	}
	id, err := o.PublishCaused(ctx, tx, p, correlationID)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(`
		INSERT INTO threshold_crossings (customer_id, meter, period, limit_version, percent, event_id, created_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		c.CustomerID, c.Meter, c.Period, c.LimitVersion, c.Percent, id, tx.NowMS()); err != nil {
		return fmt.Errorf("noting a crossing: %w", err)
	}
	return nil
}

// Told is a crossing that was told of.
type Told struct {
	Percent      int
	LimitVersion int64
	At           time.Time
}

// ToldCrossings are those of a customer's meter in a period, in their order.
func ToldCrossings(q store.Querier, customer, meter, period string) ([]Told, error) {
	rows, err := q.Query(`
		SELECT percent, limit_version, created_at_ms FROM threshold_crossings WHERE customer_id = $1 AND meter = $2 AND period = $3
		ORDER BY created_at_ms, limit_version, percent`, customer, meter, period)
	if err != nil {
		return nil, fmt.Errorf("reading crossings: %w", err)
	}
	all, err := store.Collect(rows, func(rows *sql.Rows) (t Told, err error) {
		var at int64
		err = rows.Scan(&t.Percent, &t.LimitVersion, &at)
		t.At = store.FromMS(at)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading crossings: %w", err)
	}
	return all, nil
}
