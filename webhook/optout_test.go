package webhook

import (
	"context"
	"slices"
	"testing"

	"jpintel/store"
)

// reasons are the subscriptions' states, in the order of their making.
func reasons(t testing.TB, s *Service) []string {
	t.Helper()
	return lines(t, s.DB, `SELECT disabled_reason FROM webhook_subscriptions ORDER BY sub_seq`)
}

// The end of the opt-out enables what it had disabled: not what was disabled
// before it, nor what its owner has paused or deleted meanwhile.
func TestOptOutEndsForItsOwn(t *testing.T) {
	s := newService(t)
	var told []int64
	s.Changed = func(sub int64) { told = append(told, sub) }
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	before := []Reason{ReasonStreak, ReasonGone, ReasonCostCap, ReasonDeadLetterOverflow, ReasonFailing, ReasonUser}
	var subs []string
	for range len(before) + 4 {
		subs = append(subs, subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID)
	}
	subscribe(t, s, SubscribeRequest{CustomerID: "cus_b"})
	for i, reason := range before {
		write(t, s.DB, func(tx *store.Tx) error { _, err := disable(tx, subSeq(t, s, subs[i]), reason); return err })
	}
	var want []string
	for _, reason := range before {
		want = append(want, string(reason))
	}
	ctx, request := context.Background(), OptOutRequest{"cus_a"}
	for range 2 {
		if a, err := s.StopAll(ctx, request); err != nil || !a.OptedOut {
			t.Fatal(a, err)
		}
		if got := reasons(t, s); !slices.Equal(got, append(slices.Clone(want), "user_opt_out", "user_opt_out", "user_opt_out", "user_opt_out", "-")) {
			t.Errorf("stopped: %q", got)
		}
	}
	if len(told) != 4 {
		t.Errorf("the worker is told of %v, want those four that were stopped", told)
	}
	missed := publish(t, s, updated("UNI-1", nil))[0]
	if _, err := s.Disable(ctx, SubscriptionRequest{"cus_a", subs[6]}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Unsubscribe(ctx, SubscriptionRequest{"cus_a", subs[7]}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if a, err := s.EndOptOut(ctx, request); err != nil || a.OptedOut || a.Since != nil {
			t.Fatal(a, err)
		}
		if got := reasons(t, s); !slices.Equal(got, append(slices.Clone(want), "user", "user", "-", "-", "-")) {
			t.Errorf("ended: %q", got)
		}
	}
	id := publish(t, s, updated("UNI-2", nil))[0]
	fanOut(t, s)
	for i, sub := range subs {
		var want []string
		if i >= 8 {
			want = []string{id + " pending"}
		}
		if got := deliveriesOf(t, s, sub); !slices.Equal(got, want) {
			t.Errorf("subscription %d: %q, want %q without %s", i, got, want, missed)
		}
	}
	_, err := s.StopAll(ctx, OptOutRequest{"cus_none"})
	wantCode(t, err, store.CodeNotFound, "cus_none")
}

// What was pending when all was stopped stays failed when it ends.
func TestOptOutFailsWhatIsPending(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	publish(t, s, updated("UNI-1", nil))
	fanOut(t, s)
	publish(t, s, updated("UNI-2", nil)) // not fanned out yet
	for _, call := range []func(context.Context, OptOutRequest) (OptOutAnswer, error){s.StopAll, s.EndOptOut} {
		if _, err := call(t.Context(), OptOutRequest{"cus_a"}); err != nil {
			t.Fatal(err)
		}
	}
	fanOut(t, s)
	if due := claimAll(t, s, sub.SubscriptionID); len(due) != 0 {
		t.Errorf("%d are due", len(due))
	}
	if _, err := sweepStep(t.Context(), s.DB); err != nil {
		t.Fatal(err)
	}
	if got := lines(t, s.DB, `SELECT status FROM webhook_deliveries`); !slices.Equal(got, []string{"failed"}) {
		t.Errorf("deliveries: %q", got)
	}
}
