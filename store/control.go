package store

import (
	"database/sql"
	"fmt"
	"time"
)

// Control is what every process on the file must agree on.
type Control struct {
	// Version rises with every change that a process other than the server
	// made: the server then reloads what it holds in memory.
	Version int64
	// Epoch names this history of the file. A restore changes it, and with it
	// the feed's cursors: positions of another history mean nothing here.
	Epoch string
	// KillSwitch says that no request may be made to customers' URLs.
	KillSwitch bool
	// BillingRecovered is when the file was restored from a backup, and behind what
	// the partner API knows; zero: never.
	BillingRecovered time.Time
}

// ReadControl reads the control row.
func ReadControl(q Querier) (Control, error) {
	var c Control
	var recovered sql.NullInt64
	err := q.QueryRow(`SELECT version, epoch, kill_switch, billing_recovered_at_ms FROM control WHERE id = 1`).Scan(&c.Version, &c.Epoch, &c.KillSwitch, &recovered)
	if err != nil {
		return c, fmt.Errorf("reading the control row: %w", err)
	}
	if recovered.Valid {
		c.BillingRecovered = FromMS(recovered.Int64)
	}
	return c, nil
}

// SetKillSwitch turns the kill switch that every process on the file heeds on
// or off.
func SetKillSwitch(tx *Tx, on bool) error {
	if _, err := tx.Exec(`UPDATE control SET kill_switch = $1 WHERE id = 1`, Bit(on)); err != nil {
		return fmt.Errorf("setting the kill switch: %w", err)
	}
	return nil
}

// SetBillingRecovered says that the file was restored from a backup: every
// operation that was accepted until now is looked up at the partner API before
// it is sent.
func SetBillingRecovered(tx *Tx) error {
	if _, err := tx.Exec(`UPDATE control SET billing_recovered_at_ms = $1 WHERE id = 1`, tx.NowMS()); err != nil {
		return fmt.Errorf("noting the restore: %w", err)
	}
	return nil
}
