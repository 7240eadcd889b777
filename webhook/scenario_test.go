package webhook

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// Stories that a receiver and an operator live through, from their beginning to
// their end.

// attemptsOf are a delivery's attempts, as its owner sees them: number, status
// and category.
func attemptsOf(t testing.TB, s *Service, event string) []string {
	t.Helper()
	return lines(t, s.DB, `
		SELECT a.attempt, a.status, a.error_category FROM webhook_attempts a JOIN webhook_deliveries d USING (delivery_seq)
		JOIN outbox_events e ON e.seq = d.event_seq WHERE e.event_id = $1 ORDER BY d.delivery_seq, a.attempt`, event)
}

// An event that has to be repeated is overtaken by a later one; the feed keeps
// the order.
func TestALaterEventArrivesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		var accepted []string
		busy := true
		r := &receivers{answer: func(req *http.Request) (*http.Response, error) {
			if busy {
				return respond(503), nil
			}
			accepted = append(accepted, req.Header.Get("Webhook-Id"))
			return respond(204), nil
		}}
		_, _ = start(t, s, r)
		first := publish(t, s, updated("UNI-1", nil))[0]
		synctest.Wait()
		busy = false
		second := publish(t, s, updated("UNI-1", nil))[0]
		time.Sleep(2 * time.Minute)
		if all := r.events(); !slices.Equal(all, []string{first, second, first}) || !slices.Equal(accepted, []string{second, first}) {
			t.Errorf("sent %q, accepted %q, want the second one before the first", all, accepted)
		}
		if got := deliveriesOf(t, s, sub.SubscriptionID); !slices.Equal(got, []string{first + " success", second + " success"}) {
			t.Errorf("in the end %q", got)
		}
		if got, _ := feed(t, s, EventsRequest{CustomerID: "cus_a"}); !slices.Equal(got, []string{first, second}) {
			t.Errorf("the feed has %q", got)
		}
	})
}

// A receiver that has kept the event and is too slow to say so gets it again:
// under the same id, with the same bytes, as the next attempt.
func TestAcceptedButNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		kept := map[string]string{}
		r := &receivers{answer: func(req *http.Request) (*http.Response, error) {
			id := req.Header.Get("Webhook-Id")
			if _, again := kept[id]; again {
				return respond(200), nil
			}
			kept[id] = req.Header.Get("X-Jpintel-Delivery")
			<-req.Context().Done()
			return nil, context.Cause(req.Context())
		}}
		_, _ = start(t, s, r)
		id := publish(t, s, updated("UNI-1", nil))[0]
		time.Sleep(5 * time.Minute)
		all := r.all()
		if len(all) != 2 || len(kept) != 1 {
			t.Fatalf("%d requests, %d events kept", len(all), len(kept))
		}
		if again := all[1]; again.event != id || again.attempt != 2 || again.body != all[0].body {
			t.Errorf("the repetition is %+v, the first was %+v", again, all[0])
		}
		if got := attemptsOf(t, s, id); !slices.Equal(got, []string{"1 - timeout", "2 200 "}) {
			t.Errorf("attempts %q", got)
		}
		if got := deliveriesOf(t, s, sub.SubscriptionID); !slices.Equal(got, []string{id + " success"}) {
			t.Errorf("in the end %q", got)
		}
	})
}

// A secret is replaced between two attempts: both sign until the grace is over,
// then only the new one does, and the body stays as it was.
func TestASecretEndsBetweenTwoAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.RotationGrace = Duration(time.Hour)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := newSignedReceiver(503)
		w, _ := start(t, s, &r.receivers, func(o *WorkerOptions) { o.Random = func() float64 { return 0.5 } })
		s.Changed = w.Forget
		publish(t, s, updated("UNI-1", nil))
		r.wantSigned(t, 0, sub.SigningSecret)
		rotated, err := s.RotateSecret(t.Context(), SubscriptionRequest{"cus_a", sub.SubscriptionID})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(day) // after 1, 6 and 36 minutes; then after 2 h 36 min and 14 h 36 min
		for n := 1; n <= 3; n++ {
			r.wantSigned(t, n, rotated.SigningSecret, sub.SigningSecret)
		}
		for n := 4; n <= 5; n++ {
			r.wantSigned(t, n, rotated.SigningSecret)
		}
		for _, got := range r.all() {
			if got.body != r.all()[0].body {
				t.Errorf("attempt %d has another body", got.attempt)
			}
		}
	})
}

// The service is down for a week, with retries due and events committed by
// another process meanwhile. What is due goes once at the start, the schedule
// goes on from there, and the day's cap holds.
func TestAWeekOfDowntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		customer(t, s, "cus_b")
		subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", URL: "https://93.184.215.14/a"})
		subscribe(t, s, SubscribeRequest{CustomerID: "cus_b", URL: "https://93.184.215.14/b", Events: []Type{TypeTierQuotaWarning}})
		r := &receivers{answer: func(req *http.Request) (*http.Response, error) {
			if req.URL.Path == "/a" {
				return respond(500), nil
			}
			return respond(200), nil
		}}
		noJitter := func(o *WorkerOptions) { o.Random = func() float64 { return 0.5 } }
		const limit = 12
		stop := capped(t, s, limit, r, noJitter)
		retried := publish(t, s, updated("UNI-1", nil))[0]
		time.Sleep(10 * time.Minute) // attempts after 0, 1 and 6 minutes
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		before := len(r.all())
		elsewhere := serviceOn(s.DB)
		missed := []string{publish(t, elsewhere, updated("UNI-2", nil))[0]}
		for range limit + 3 { // more than a day allows
			missed = append(missed, publish(t, elsewhere, warning("cus_b"))...)
		}
		time.Sleep(7 * day)
		if got := len(r.all()); before != 3 || got != before {
			t.Fatalf("%d requests before the stop and %d while it was down", before, got-before)
		}
		began := time.Now()
		capped(t, s, limit, r, noJitter)
		wantNew(t, r, before, began, 1+1+limit)
		time.Sleep(2 * day)
		for event, first := range map[string]int{retried: 4, missed[0]: 1} {
			var got []string
			for _, a := range r.all()[before:] {
				if a.event == event {
					got = append(got, fmt.Sprint(a.attempt, " ", a.at.Sub(began)))
				}
			}
			var want []string
			at := time.Duration(0)
			for n := first; n <= len(DefaultSchedule)+1; n++ {
				want = append(want, fmt.Sprint(n, " ", at))
				if n <= len(DefaultSchedule) {
					at += DefaultSchedule[n-1]
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("attempts from %d on: %q, want %q", first, got, want)
			}
		}
		if got := reasons(t, s); !slices.Equal(got, []string{"-", "cost_cap"}) {
			t.Errorf("disabled: %q", got)
		}
		if got := lines(t, s.DB, `SELECT status, COUNT(*), SUM(attempt_count) FROM webhook_deliveries GROUP BY status ORDER BY status`); !slices.Equal(got, []string{"dead_letter 2 12", "failed 3 0", "success 12 12"}) {
			t.Errorf("in the end %q", got)
		}
	})
}

// wantNew fails the test unless so many requests were made at an instant, each
// for another event.
func wantNew(t *testing.T, r *receivers, before int, at time.Time, n int) {
	t.Helper()
	events := map[string]bool{}
	for _, a := range r.all()[before:] {
		if !a.at.Equal(at) {
			t.Errorf("%s was sent %s later", a.event, a.at.Sub(at))
		}
		events[a.event] = true
	}
	if got := len(r.all()) - before; got != n || len(events) != n {
		t.Errorf("%d requests with %d events at the start, want %d", got, len(events), n)
	}
}

// The kill switch is on for a day while events go on being committed. Nothing is
// sent, no attempt is used up, and afterwards the backlog goes out no faster
// than the URL's rate.
func TestADayOfTheKillSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		status := 503
		r := &receivers{answer: func(req *http.Request) (*http.Response, error) {
			_, err := io.Copy(io.Discard, req.Body)
			return respond(status), err
		}}
		const each = 5
		w, _ := start(t, s, r, func(o *WorkerOptions) { o.Rate, o.EndpointConcurrency = each, each })
		retried := publish(t, s, updated("UNI-0", nil))[0]
		synctest.Wait()
		flip := func(on bool) {
			write(t, s.DB, func(tx *store.Tx) error { return store.SetKillSwitch(tx, on) })
			w.SetKillSwitch(on)
		}
		flip(true)
		want := []string{retried}
		for range 24 {
			want = append(want, publish(t, s, updated("UNI-1", nil), updated("UNI-2", nil))...)
			time.Sleep(time.Hour)
		}
		if got := len(r.all()); got != 1 {
			t.Fatalf("%d requests while the switch is on", got-1)
		}
		if got := lines(t, s.DB, `SELECT status, COUNT(*), SUM(attempt_count) FROM webhook_deliveries GROUP BY status`); !slices.Equal(got, []string{"pending 49 1"}) {
			t.Errorf("while the switch is on: %q", got)
		}
		status = 200
		began := time.Now()
		flip(false)
		time.Sleep(time.Minute)
		all := r.all()[1:]
		for i, a := range all {
			if allowed := each + int(a.at.Sub(began).Seconds()*each); i+1 > allowed {
				t.Errorf("request %d after %s, the rate allows %d", i+1, a.at.Sub(began), allowed)
			}
			if first := a.event != retried; first != (a.attempt == 1) || !first && a.attempt != 2 {
				t.Errorf("attempt %d of %s", a.attempt, a.event)
			}
		}
		var done []string
		for _, event := range want {
			done = append(done, event+" success")
		}
		if got := deliveriesOf(t, s, sub.SubscriptionID); len(all) != len(want) || !slices.Equal(got, done) {
			t.Errorf("%d requests; in the end %q", len(all), got)
		}
		if took := all[len(all)-1].at.Sub(began); took > (49-each)*time.Second/each+time.Second {
			t.Errorf("the backlog took %s", took)
		}
	})
}
