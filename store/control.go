package store

import "fmt"

// Control is what every process on the file must agree on.
type Control struct {
	// Version rises with every change that a process other than the server
	// made: the server then reloads what it holds in memory.
	Version int64
	// Epoch names this history of the file. A restore changes it, and with it
	// the feed's cursors: positions of another history mean nothing here.
	Epoch string
}

// ReadControl reads the control row.
func ReadControl(q Querier) (Control, error) {
	var c Control
	if err := q.QueryRow(`SELECT version, epoch FROM control WHERE id = 1`).Scan(&c.Version, &c.Epoch); err != nil {
		return c, fmt.Errorf("reading the control row: %w", err)
	}
	return c, nil
}
