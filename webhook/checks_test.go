package webhook

import (
	"strings"
	"testing"

	"jpintel/store"
)

// The statements of each delivery fill no table of SQLite's own, and a state
// that there is not is refused all the same.
func TestDeliveryStatusIsCheckedCheaply(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	publish(t, s, updated("UNI-1", nil))
	fanOut(t, s)
	for _, statement := range []string{
		`INSERT INTO webhook_deliveries (delivery_id, event_seq, sub_seq, generation, envelope, status, next_attempt_at_ms, created_at_ms) VALUES ('dlv_1', 1, 1, 1, 'v1', $1, 1, 1)`,
		`UPDATE webhook_deliveries SET status = $1`,
	} {
		plan := lines(t, s.DB, `EXPLAIN `+statement, "pending")
		if len(plan) < 10 || strings.Contains(strings.Join(plan, "\n"), "OpenEphemeral") {
			t.Errorf("%s:\n%s", statement, strings.Join(plan, "\n"))
		}
		err := s.DB.Write(t.Context(), func(tx *store.Tx) error { _, err := tx.Exec(statement, "gone"); return err })
		if err == nil || !strings.Contains(err.Error(), "CHECK constraint failed") {
			t.Errorf("%s: %v", statement, err)
		}
	}
}
