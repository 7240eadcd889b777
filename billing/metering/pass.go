package metering

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"jpintel/store"
)

// PassName names one of a customer's two readings of requests.
type PassName string

// The passes.
const (
	Head  PassName = "head"  // what is new
	Sweep PassName = "sweep" // the last days again
)

// Pass is how far a reading has come. It is over where it has come to its end.
type Pass struct {
	At    time.Time // read up to here
	Until time.Time
}

// Over reports whether there is nothing left to read.
func (p Pass) Over() bool { return !p.At.Before(p.Until) }

// GetPass reads a pass; nil where there was none yet.
func GetPass(q store.Querier, customer string, name PassName) (*Pass, error) {
	var at, until int64
	err := q.QueryRow(`SELECT at_ms, until_ms FROM usage_passes WHERE customer_id = $1 AND pass = $2`, customer, string(name)).Scan(&at, &until)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading how far usage was read: %w", err)
	}
	return &Pass{store.FromMS(at), store.FromMS(until)}, nil
}

// Set writes down how far a pass has come.
func (p Pass) Set(tx *store.Tx, customer string, name PassName) error {
	_, err := tx.Exec(`
		INSERT INTO usage_passes (customer_id, pass, at_ms, until_ms) VALUES ($1, $2, $3, $4)
		ON CONFLICT (customer_id, pass) DO UPDATE SET at_ms = excluded.at_ms, until_ms = excluded.until_ms`,
		customer, string(name), p.At.UnixMilli(), p.Until.UnixMilli())
	if err != nil {
		return fmt.Errorf("writing how far usage was read: %w", err)
	}
	return nil
}
