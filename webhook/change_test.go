package webhook

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// change is Change for what has to succeed.
func change(t testing.TB, s *Service, r ChangeRequest) {
	t.Helper()
	if _, err := s.Change(context.Background(), r); err != nil {
		t.Fatal(err)
	}
}

// Events that are fanned out after a change are wrapped as it says; a delivery
// that waits keeps its envelope and goes to the new URL.
func TestChangeHoldsForLaterEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := &receivers{}
		r.answer = func(*http.Request) (*http.Response, error) { return respond(503), nil }
		w, _ := start(t, s, r)
		s.Changed = w.Forget
		waiting := publish(t, s, updated("UNI-1", nil))[0]
		first := r.all()
		const moved = "https://93.184.215.14/moved"
		change(t, s, ChangeRequest{CustomerID: "cus_a", SubscriptionID: sub.SubscriptionID, URL: new(moved), Envelope: new(EnvelopeV2),
			Filter: FilterChange{Filter{"prefecture": {"奈良県"}}, true}})
		publish(t, s, updated("UNI-2", Attributes{"prefecture": {"大阪府"}}))
		later := publish(t, s, updated("UNI-3", Attributes{"prefecture": {"奈良県"}}))[0]
		synctest.Wait()
		time.Sleep(3 * time.Minute) // the first retries, at 1 min ± 10 %
		seen := map[string][]sent{}
		for _, got := range r.all() {
			seen[got.event] = append(seen[got.event], got)
		}
		if len(seen) != 2 || len(seen[waiting]) != 2 || len(seen[later]) != 2 {
			t.Fatalf("sent %+v", seen)
		}
		if got := seen[waiting][1]; got.body != first[0].body || !strings.HasPrefix(got.body, `{"version":"v1"`) || got.url != moved {
			t.Errorf("what waited: %+v, first %+v", got, first[0])
		}
		if got := seen[later][0]; !strings.HasPrefix(got.body, `{"version":"v2"`) || got.url != moved {
			t.Errorf("what came later: %+v", got)
		}
	})
}

// What waits and is of a type that is no longer subscribed to is given up.
func TestChangeOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := always(503, 0)
		w, _ := start(t, s, r)
		s.Changed = w.Forget
		id := publish(t, s, updated("UNI-1", nil))[0]
		if got := r.events(); !slices.Equal(got, []string{id}) {
			t.Fatalf("sent %q", got)
		}
		change(t, s, ChangeRequest{CustomerID: "cus_a", SubscriptionID: sub.SubscriptionID, Events: new([]Type{TypeProgramCreated})})
		publish(t, s, updated("UNI-2", nil))
		time.Sleep(time.Hour)
		if got := r.events(); len(got) != 1 {
			t.Errorf("sent %q", got)
		}
		if got := lines(t, s.DB, `SELECT status, reason FROM webhook_deliveries`); !slices.Equal(got, []string{"failed " + reasonUnsubscribed}) {
			t.Errorf("deliveries: %q", got)
		}
	})
}

// Changes of different fields at the same time do not undo each other.
func TestChangesAtTheSameTime(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	for n := range 20 {
		description, envelope := strings.Repeat("x", n+1), []Envelope{EnvelopeV1, EnvelopeV2}[n%2]
		var both sync.WaitGroup
		for _, r := range []ChangeRequest{{Description: &description}, {Envelope: &envelope}} {
			r.CustomerID, r.SubscriptionID = "cus_a", sub.SubscriptionID
			both.Go(func() {
				if _, err := s.Change(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		got, err := s.Subscription(t.Context(), SubscriptionRequest{"cus_a", sub.SubscriptionID})
		if err != nil || got.Description != description || got.Envelope != envelope {
			t.Fatalf("round %d: %+v, %v", n, got, err)
		}
	}
}

// A change that comes between leaves a combination that is not allowed: the
// later one is refused.
func TestChangeIsJudgedByWhatIsStored(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	which := SubscriptionRequest{"cus_a", sub.SubscriptionID}
	change(t, s, ChangeRequest{CustomerID: "cus_a", SubscriptionID: sub.SubscriptionID, Filter: FilterChange{Filter{"prefecture": {"奈良県"}}, true}})
	err := s.DB.Write(t.Context(), func(tx *store.Tx) error {
		return s.update(tx, which, ChangeRequest{CustomerID: "cus_a", SubscriptionID: sub.SubscriptionID, Events: new([]Type{TypeUsageFinalized})})
	})
	wantCode(t, err, store.CodeInvalid, "prefecture")
}

// Ten refusals in a row disable; nine, a pause and nine more do not.
func TestEnableResetsTheStreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		which := SubscriptionRequest{"cus_a", sub.SubscriptionID}
		r := always(404, 0)
		w, _ := start(t, s, r)
		s.Changed = w.Forget
		state := func() string {
			synctest.Wait()
			return lines(t, s.DB, `SELECT failures_streak, disabled_reason FROM webhook_subscriptions`)[0]
		}
		for range 2 {
			for range maxStreak - 1 {
				publish(t, s, updated("UNI-1", nil))
			}
			if got := state(); got != "9 -" {
				t.Fatalf("after nine: %s", got)
			}
			if _, err := s.Disable(t.Context(), which); err != nil {
				t.Fatal(err)
			}
			if sub, err := s.Enable(t.Context(), which); err != nil || sub.FailuresStreak != 0 {
				t.Fatal(sub, err)
			}
		}
		for range maxStreak {
			publish(t, s, updated("UNI-1", nil))
		}
		if got := state(); got != "10 4xx_streak" {
			t.Errorf("after ten: %s", got)
		}
		sent := len(r.all())
		time.Sleep(24 * time.Hour)
		if _, err := s.Enable(t.Context(), which); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		if got := len(r.all()); got != sent || state() != "0 -" {
			t.Errorf("%d requests, before %d: nothing old is revived; %s", got, sent, state())
		}
	})
}
