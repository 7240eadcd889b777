package webhook

import (
	"slices"
	"strings"
	"testing"

	"jpintel/store"
)

// A delivery that was failed while its request was under way keeps that state,
// unless the receiver has accepted it.
func TestLateResults(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	publish(t, s, updated("1", nil), updated("2", nil), updated("3", nil))
	fanOut(t, s)
	works := claimAll(t, s, sub.SubscriptionID)
	seq := works[0].subSeq
	write(t, s.DB, func(tx *store.Tx) error { _, err := disable(tx, seq, ReasonUser); return err })
	if _, err := sweepStep(t.Context(), s.DB); err != nil {
		t.Fatal(err)
	}
	f := newTestFinisher(s, nil)
	if err := f.commit([]finished{{works[0], ok(200)}, {works[1], failed(500)}, {works[2], Result{Interrupted: true}}}); err != nil {
		t.Fatal(err)
	}
	got := lines(t, s.DB, `
		SELECT status, reason, attempt_count, last_status, (SELECT COUNT(*) FROM webhook_attempts a WHERE a.delivery_seq = d.delivery_seq), next_attempt_at_ms
		FROM webhook_deliveries d ORDER BY delivery_seq`)
	if want := []string{"success - 1 200 1 -", "failed the subscription was disabled 1 500 1 -", "failed the subscription was disabled 0 - 0 -"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	// A result that comes twice is not written twice.
	if err := f.commit([]finished{{works[1], failed(500)}}); err == nil || !strings.Contains(err.Error(), "written down already") {
		t.Errorf("the same attempt again: %v", err)
	}
}
