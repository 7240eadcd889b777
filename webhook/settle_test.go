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
}

// An attempt that is written down is not written again, whatever came of it.
func TestAResultIsWrittenOnce(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	w := attempted(t, s, sub.SubscriptionID, 0)
	f := newTestFinisher(s, nil)
	for i, r := range []Result{failed(500), failed(500), ok(200), failed(410)} {
		err := f.commit([]finished{{w, r}})
		if i == 0 && err != nil || i > 0 && (err == nil || !strings.Contains(err.Error(), "written down already")) {
			t.Errorf("result %d: %v", i, err)
		}
	}
	got := lines(t, s.DB, `
		SELECT d.status, d.attempt_count, a.status, s.failures_streak, s.disabled_reason, (SELECT SUM(ok + failed) FROM webhook_rates)
		FROM webhook_deliveries d JOIN webhook_attempts a USING (delivery_seq) JOIN webhook_subscriptions s USING (sub_seq)`)
	if !slices.Equal(got, []string{"pending 1 500 0 - 1"}) {
		t.Errorf("got %q", got)
	}
}
