package webhook

import (
	"testing"
	"time"
)

// A failure of ours is retried and is never counted against the customer: not
// in the streak, not in the rate, not in the attempts before the dead letter.
func TestOurFaultCostsTheCustomerNothing(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	w := attempted(t, s, sub.SubscriptionID, 0)
	f := newTestFinisher(s, nil)
	for range 2 * len(DefaultSchedule) {
		if err := f.commit([]finished{{w, noAnswer(CategoryInternal)}}); err != nil {
			t.Fatal(err)
		}
		<-f.committed
		w.attempts++
	}
	if got := lines(t, s.DB, `SELECT status, attempt_count - schedule_base FROM webhook_deliveries`); got[0] != "pending 0" {
		t.Errorf("after many faults of ours the delivery is %q, want pending with its whole schedule left", got[0])
	}
	if got := lines(t, s.DB, `SELECT failures_streak, last_status, (SELECT COUNT(*) FROM webhook_rates) FROM webhook_subscriptions`); got[0] != "0 - 0" {
		t.Errorf("streak, last status and rates are %q", got[0])
	}
}

// A receiver is waited for where it cannot take the event for now; a refusal is
// retried on the schedule alone.
func TestHintIsHeededWhereItMeansSomething(t *testing.T) {
	for status, want := range map[int]time.Duration{408: time.Hour, 425: time.Hour, 429: time.Hour, 500: time.Hour, 503: time.Hour, 404: 0, 302: 0, 410: 0} {
		r := judge(status)
		r.RetryAfter = time.Hour
		if got := hint(r); got != want {
			t.Errorf("%d with Retry-After: 1h waits for %s, want %s", status, got, want)
		}
	}
}
