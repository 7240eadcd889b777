package webhook

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// capped gives the service a cap and has the worker heed it.
func capped(t *testing.T, s *Service, limit int, r *receivers, change ...func(*WorkerOptions)) (stop func() error) {
	t.Helper()
	s.Cap = NewDailyCap(s.DB, limit)
	w, stop := start(t, s, r, append(change, func(o *WorkerOptions) { o.Cap = s.Cap })...)
	s.Changed = w.Forget
	return stop
}

// All that is due at once, and callers that ask beside the worker: exactly the
// day's attempts are made.
func TestCapIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		var subs []string
		for range 10 {
			subs = append(subs, subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID)
		}
		var events []Payload
		for range 20 {
			events = append(events, updated("UNI-1", nil))
		}
		publish(t, s, events...)
		fanOut(t, s)
		r := always(200, 100*time.Millisecond)
		withSender(t, s, r)
		capped(t, s, 50, r, func(o *WorkerOptions) { o.Concurrency, o.EndpointConcurrency = 64, 64 })
		var pinged int
		var mu sync.Mutex
		for _, id := range subs {
			go func() {
				if _, err := s.Ping(t.Context(), SubscriptionRequest{"cus_a", id}); err == nil {
					mu.Lock()
					pinged++
					mu.Unlock()
				}
			}()
		}
		time.Sleep(time.Minute)
		if got := len(r.all()); got != 50 {
			t.Errorf("%d requests, %d of them pings", got, pinged)
		}
		if got := attemptsToday(t, s); !slices.Equal(got, []string{"cus_a 2000-01-01 50"}) {
			t.Errorf("counted %q", got)
		}
		if n := number(t, s.DB, `SELECT COUNT(*) FROM webhook_deliveries WHERE status = 'success'`); n != int64(50-pinged) {
			t.Errorf("%d arrived, %d pings", n, pinged)
		}
		for _, got := range lines(t, s.DB, `SELECT COALESCE(disabled_reason, '') = 'cost_cap' OR NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.sub_seq = s.sub_seq AND d.status <> 'success') FROM webhook_subscriptions s`) {
			if got != "1" {
				t.Error("a subscription that asked for more is not disabled")
			}
		}
	})
}

// Retries and pings are attempts; a refused address is none.
func TestWhatCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		idle := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Events: []Type{TypeProgramCreated}})
		refused := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", URL: "https://93.184.215.14/refused", Events: []Type{TypeTierQuotaWarning}})
		r := &receivers{answer: func(req *http.Request) (*http.Response, error) {
			if req.URL.Path == "/refused" {
				return nil, &Refusal{Reason: "private", Detail: "the address is not a public one"}
			}
			return respond(503), nil
		}}
		withSender(t, s, r)
		capped(t, s, 3, r)
		for range 3 {
			publish(t, s, warning("cus_a"))
		}
		if got := attemptsToday(t, s); len(r.all()) != 3 || len(got) != 0 {
			t.Errorf("refused addresses: %d requests, counted %q", len(r.all()), got)
		}
		exec(t, s.DB, `UPDATE webhook_deliveries SET next_attempt_at_ms = next_attempt_at_ms + 1000000000`)
		publish(t, s, updated("UNI-1", nil))
		if _, err := s.Ping(t.Context(), SubscriptionRequest{"cus_a", idle.SubscriptionID}); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Minute) // the first retry
		if got := attemptsToday(t, s); !slices.Equal(got, []string{"cus_a 2000-01-01 3"}) {
			t.Errorf("counted %q", got)
		}
		time.Sleep(10 * time.Minute) // the second one is one too many
		if got := reasons(t, s); len(r.all()) != 6 || !slices.Equal(got, []string{"cost_cap", "-", "-"}) {
			t.Errorf("%d requests; %q", len(r.all()), got)
		}
		_, err := s.Ping(t.Context(), SubscriptionRequest{"cus_a", refused.SubscriptionID})
		wantCode(t, err, store.CodeRateLimited, "the daily cap of 3 delivery attempts is used up; it resets at midnight")
		_, err = s.Enable(t.Context(), SubscriptionRequest{"cus_a", sub.SubscriptionID})
		wantCode(t, err, store.CodeConflict, "the daily cap of 3 delivery attempts is used up")
	})
}

// The day is that of the file's time zone, and a restart keeps the count.
func TestCapOfTheDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		tokyo, err := time.LoadLocation("Asia/Tokyo")
		if err != nil {
			t.Fatal(err)
		}
		s.DB.Location = tokyo
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		which := SubscriptionRequest{"cus_a", sub.SubscriptionID}
		r := always(200, 0)
		stop := capped(t, s, 2, r)
		send := func() (requests int, reason string) {
			publish(t, s, updated("UNI-1", nil))
			return len(r.all()), reasons(t, s)[0]
		}
		want := func(requests int, reason string) {
			t.Helper()
			if n, got := send(); n != requests || got != reason {
				t.Errorf("%s: %d requests, %s; want %d, %s", time.Now().In(tokyo), n, got, requests, reason)
			}
		}
		restart := func() {
			t.Helper()
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			stop = capped(t, s, 2, r)
		}
		midnight := time.Date(2000, 1, 2, 0, 0, 0, 0, tokyo)
		want(1, "-")
		restart()
		want(2, "-")
		restart()
		time.Sleep(time.Until(midnight.Add(-time.Second)))
		want(2, "cost_cap")
		_, err = s.Enable(t.Context(), which)
		wantCode(t, err, store.CodeConflict, "it resets at midnight (Asia/Tokyo)")
		time.Sleep(time.Second)
		if _, err = s.Enable(t.Context(), which); err != nil {
			t.Fatal(err)
		}
		want(3, "-")
		want(4, "-")
		want(4, "cost_cap")
		if got := attemptsToday(t, s); !slices.Equal(got, []string{"cus_a 2000-01-01 2", "cus_a 2000-01-02 2"}) {
			t.Errorf("counted %q", got)
		}
	})
}

// Around midnight one caller may still ask for the day before: what is in flight
// stays counted for both.
func TestCapAroundMidnight(t *testing.T) {
	s := newService(t)
	c := NewDailyCap(s.DB, 2)
	after := time.Date(2026, 5, 15, 0, 0, 0, 0, s.DB.Location)
	before := after.Add(-time.Millisecond)
	taken := map[string]int{}
	for range 5 {
		for _, at := range []time.Time{before, after} {
			day, ok, err := c.take(t.Context(), "cus_a", at)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				taken[day]++
			}
		}
	}
	if taken["2026-05-14"] != 2 || taken["2026-05-15"] != 2 {
		t.Errorf("taken %v, want 2 of each day", taken)
	}
	c.release("cus_a", "2026-05-14")
	if ok, err := c.open(t.Context(), "cus_a", after); ok || err != nil {
		t.Errorf("the day after is open: %v, %v", ok, err)
	}
	if ok, err := c.open(t.Context(), "cus_a", before); !ok || err != nil {
		t.Errorf("the day before is open: %v, %v", ok, err)
	}
}

// More customers than are remembered: the days before are forgotten, this one
// is not.
func TestCapForgetsDaysBefore(t *testing.T) {
	s := newService(t)
	c := NewDailyCap(s.DB, 1)
	now := time.Now()
	for n := range maxDayCounts {
		c.used[customerDay{fmt.Sprintf("cus_%d", n), "2000-01-01"}] = 1
	}
	for n, want := range []bool{true, false} {
		if _, ok, err := c.take(t.Context(), "cus_a", now); ok != want || err != nil {
			t.Errorf("take %d: %v, %v", n+1, ok, err)
		}
	}
	if len(c.used) != 1 {
		t.Errorf("%d are remembered", len(c.used))
	}
}

// More dead letters than the limit since it was enabled disable a subscription;
// enabling begins at 0 again.
func TestDeadLetterLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := always(500, 0)
		w, _ := start(t, s, r, func(o *WorkerOptions) { o.Schedule, o.DeadLetterLimit = nil, 3 })
		s.Changed = w.Forget
		for round := range 2 {
			for n := range 5 {
				publish(t, s, updated("UNI-1", nil))
				want := "-"
				if n >= 3 {
					want = "dead_letter_overflow"
				}
				if r.all(); reasons(t, s)[0] != want {
					t.Errorf("round %d, %d dead letters: %s, want %s", round, n+1, reasons(t, s)[0], want)
				}
			}
			if _, err := s.Enable(t.Context(), SubscriptionRequest{"cus_a", sub.SubscriptionID}); err != nil {
				t.Fatal(err)
			}
		}
		if got := number(t, s.DB, `SELECT COUNT(*) FROM webhook_deliveries WHERE status = 'dead_letter'`); got != 8 || len(r.all()) != 8 {
			t.Errorf("%d dead letters, %d requests", got, len(r.all()))
		}
	})
}
