package webhook

import (
	"fmt"

	"jpintel/store"
)

// totals are a transaction's changes to how many deliveries are in each state.
// They are written once, at its end.
type totals map[Status]int64

// move counts n deliveries from one state to another; "" is none.
func (t totals) move(n int64, from, to Status) {
	t[from] -= n
	t[to] += n
}

func (t totals) write(tx *store.Tx) error {
	for _, status := range statuses {
		if t[status] == 0 {
			continue
		}
		if _, err := tx.Exec(`UPDATE webhook_totals SET deliveries = deliveries + $1 WHERE status = $2`, t[status], string(status)); err != nil {
			return fmt.Errorf("counting deliveries: %w", err)
		}
	}
	return nil
}
