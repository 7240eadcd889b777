package webhook

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// The table of what an answer does. Where there is no jitter, the schedule's
// times are exact.
func TestTransitions(t *testing.T) {
	minute, hour := time.Minute, time.Hour
	never := time.Duration(-1)
	type state struct {
		streak    int
		dns       bool // the last outcome was a failed look-up
		probation bool
	}
	cases := []struct {
		name     string
		result   Result
		attempts int // before
		before   state
		status   Status
		next     time.Duration
		after    state
		disabled Reason
	}{
		{"200", ok(200), 0, state{9, true, true}, StatusSuccess, never, state{}, ""},
		{"299 at last", ok(299), 5, state{3, false, false}, StatusSuccess, never, state{}, ""},
		{"500", failed(500), 0, state{3, true, false}, StatusPending, minute, state{3, false, false}, ""},
		{"503 on probation", failed(503), 0, state{3, false, true}, StatusPending, minute, state{3, false, true}, ""},
		{"408", failed(408), 0, state{3, false, false}, StatusPending, minute, state{3, false, false}, ""},
		{"425", failed(425), 0, state{3, false, false}, StatusPending, minute, state{3, false, false}, ""},
		{"429", failed(429), 0, state{3, false, false}, StatusPending, minute, state{3, false, false}, ""},
		{"429 with a hint", hinted(failed(429), hour), 0, state{}, StatusPending, hour, state{}, ""},
		{"503 with an earlier hint", hinted(failed(503), minute), 1, state{}, StatusPending, 5 * minute, state{}, ""},
		{"503 with an absurd hint", hinted(failed(503), 1000*hour), 0, state{}, StatusPending, 24 * hour, state{}, ""},
		{"404", failed(404), 0, state{3, false, false}, StatusPending, minute, state{4, false, false}, ""},
		{"404, the tenth in a row", failed(404), 0, state{9, false, false}, StatusFailed, never, state{10, false, false}, ReasonStreak},
		{"301", failed(301), 1, state{0, false, false}, StatusPending, 5 * minute, state{1, false, false}, ""},
		{"301, the tenth in a row", failed(301), 1, state{9, false, true}, StatusFailed, never, state{10, false, true}, ReasonStreak},
		{"410", failed(410), 0, state{0, false, false}, StatusFailed, never, state{1, false, false}, ReasonGone},
		{"410, the tenth in a row", failed(410), 0, state{9, false, false}, StatusFailed, never, state{10, false, false}, ReasonGone},
		{"the first DNS failure", noAnswer(CategoryDNS), 0, state{3, false, false}, StatusPending, minute, state{3, true, true}, ""},
		{"the next DNS failure", noAnswer(CategoryDNS), 1, state{3, true, true}, StatusPending, 5 * minute, state{4, true, true}, ""},
		{"the last DNS failure", noAnswer(CategoryDNS), 1, state{9, true, true}, StatusFailed, never, state{10, true, true}, ReasonStreak},
		{"a blocked address", noAnswer(CategoryBlocked), 0, state{3, false, false}, StatusPending, minute, state{4, false, false}, ""},
		{"the tenth blocked address", noAnswer(CategoryBlocked), 0, state{9, false, false}, StatusFailed, never, state{10, false, false}, ReasonStreak},
		{"refused", noAnswer(CategoryConnectRefused), 2, state{9, false, false}, StatusPending, 30 * minute, state{9, false, true}, ""},
		{"no connection", noAnswer(CategoryConnectTimeout), 3, state{9, false, false}, StatusPending, 2 * hour, state{9, false, true}, ""},
		{"TLS", noAnswer(CategoryTLS), 4, state{9, true, false}, StatusPending, 12 * hour, state{9, false, true}, ""},
		{"no answer", noAnswer(CategoryTimeout), 0, state{9, false, false}, StatusPending, minute, state{9, false, true}, ""},
		{"reset", noAnswer(CategoryReset), 0, state{9, false, false}, StatusPending, minute, state{9, false, true}, ""},
		{"no HTTP", noAnswer(CategoryResponseInvalid), 0, state{9, false, false}, StatusPending, minute, state{9, false, false}, ""},
		{"our fault", noAnswer(CategoryInternal), 0, state{9, false, false}, StatusPending, minute, state{9, false, false}, ""},
		{"after the last 500", failed(500), 5, state{3, false, false}, StatusDeadLetter, never, state{3, false, false}, ""},
		{"after the last timeout, with a hint", hinted(noAnswer(CategoryTimeout), hour), 5, state{}, StatusDeadLetter, never, state{0, false, true}, ""},
		{"after the last 404", failed(404), 5, state{9, false, false}, StatusDeadLetter, never, state{10, false, false}, ReasonStreak},
	}
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		f := newTestFinisher(s, nil)
		for i, c := range cases {
			id := customer(t, s, fmt.Sprintf("cus_%d", i))
			sub := subscribe(t, s, SubscribeRequest{CustomerID: id})
			w := attempted(t, s, sub.SubscriptionID, c.attempts)
			exec(t, s.DB, `UPDATE webhook_subscriptions SET failures_streak = $1, last_dns = $2, probation = $3 WHERE sub_seq = $4`,
				c.before.streak, store.Bit(c.before.dns), store.Bit(c.before.probation), w.subSeq)
			c.result.StartedAt = time.Now() // of this bubble
			if err := f.commit([]finished{{w, c.result}}); err != nil {
				t.Fatal(err)
			}

			d, err := s.Delivery(t.Context(), DeliveryRequest{id, w.deliveryID})
			if err != nil {
				t.Fatal(err)
			}
			next := never
			if d.NextAttemptAt != nil {
				next = time.Until(*d.NextAttemptAt)
			}
			if d.Status != c.status || next != c.next || d.AttemptCount != c.attempts+1 || len(d.Attempts) != c.attempts+1 || (d.FinishedAt == nil) != (c.status == StatusPending) {
				t.Errorf("%s: got %s, next in %v, after %d attempts; want %s, %v", c.name, d.Status, next, d.AttemptCount, c.status, c.next)
			}
			got := lines(t, s.DB, `SELECT failures_streak, last_dns, probation, COALESCE(disabled_reason, '') FROM webhook_subscriptions WHERE sub_seq = $1`, w.subSeq)
			if want := fmt.Sprint(c.after.streak, store.Bit(c.after.dns), store.Bit(c.after.probation)) + " " + string(c.disabled); got[0] != want {
				t.Errorf("%s: subscription: got %s, want %s", c.name, got, want)
			}
			back := <-f.committed
			if len(back) != 1 || back[0].work != w || back[0].probation != c.after.probation || back[0].disabled != c.disabled {
				t.Errorf("%s: given back: %+v", c.name, back)
			}
			if c.status == StatusPending && back[0].next != time.Now().Add(c.next).UnixMilli() {
				t.Errorf("%s: given back for %v, want in %v", c.name, time.UnixMilli(back[0].next), c.next)
			}
			if (c.status == StatusSuccess || c.status == StatusDeadLetter) && back[0].next != noneDue {
				t.Errorf("%s: given back although it is finished: %+v", c.name, back[0])
			}
		}
	})
}

func hinted(r Result, hint time.Duration) Result {
	r.RetryAfter = hint
	return r
}

// Ten in a row disable; a success in between starts the row again, a server
// error does not. The customer's other subscriptions hear of it, and nobody else.
func TestTheStreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.DB.Location = time.FixedZone("JST", 9*60*60)
		customer(t, s, "cus_a")
		customer(t, s, "cus_b")
		told := []Type{TypeProgramUpdated, TypeSubscriptionDisabled}
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", URL: "https://93.184.215.14:8443/hook?key=value", Events: told})
		other := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Events: []Type{TypeSubscriptionDisabled}})
		stranger := subscribe(t, s, SubscribeRequest{CustomerID: "cus_b", Events: []Type{TypeSubscriptionDisabled}})
		f := newTestFinisher(s, nil)
		send := func(status int) {
			t.Helper()
			if err := f.commit([]finished{{attempted(t, s, sub.SubscriptionID, 0), failed(status)}}); err != nil {
				t.Fatal(err)
			}
		}
		for range 9 {
			send(404)
		}
		send(204)
		for i := range 9 {
			send([]int{400, 302, 499}[i%3])
			send(500)
		}
		if got := lines(t, s.DB, `SELECT failures_streak, disabled_reason FROM webhook_subscriptions WHERE subscription_id = $1`, sub.SubscriptionID); got[0] != "9 -" {
			t.Fatalf("nine in a row: %q", got)
		}
		send(403)
		if got := lines(t, s.DB, `SELECT failures_streak, disabled_reason, generation, sweep FROM webhook_subscriptions WHERE subscription_id = $1`, sub.SubscriptionID); got[0] != "10 4xx_streak 2 1" {
			t.Errorf("ten in a row: %q", got)
		}
		want := `{"subscription_id":"` + sub.SubscriptionID + `","url_origin":"https://93.184.215.14:8443","disabled_reason":"4xx_streak","disabled_at":"2000-01-01T09:00:00+09:00"}`
		if got := lines(t, s.DB, `SELECT customer_id, data FROM outbox_events WHERE event_type = 'webhook.subscription_disabled'`); !slices.Equal(got, []string{"cus_a " + want}) {
			t.Errorf("event %q, want %s", got, want)
		}
		fanOut(t, s)
		for name, c := range map[string]struct {
			id   string
			want int64
		}{"the other one": {other.SubscriptionID, 1}, "the disabled one": {sub.SubscriptionID, 0}, "another customer's": {stranger.SubscriptionID, 0}} {
			n := number(t, s.DB, `
				SELECT COUNT(*) FROM webhook_deliveries d JOIN outbox_events e ON e.seq = d.event_seq
				WHERE e.event_type = 'webhook.subscription_disabled' AND d.sub_seq = $1`, subSeq(t, s, c.id))
			if n != c.want {
				t.Errorf("%s is told %d times", name, n)
			}
		}
	})
}

// Results of one batch count one after the other, in one transaction.
func TestABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub, other := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}), subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		publish(t, s, updated("1", nil), updated("2", nil), updated("3", nil), updated("4", nil))
		fanOut(t, s)
		time.Sleep(7 * time.Minute)
		start := time.Now()
		mine, others := claimAll(t, s, sub.SubscriptionID), claimAll(t, s, other.SubscriptionID)
		at := func(seconds int, r Result) Result {
			r.StartedAt, r.Duration = start.Add(time.Duration(seconds)*time.Second), 500*time.Millisecond
			return r
		}
		f := newTestFinisher(s, nil)
		if err := f.commit([]finished{
			{mine[0], at(1, failed(404))}, {mine[1], at(2, ok(200))}, {others[0], at(3, ok(202))}, {mine[2], at(4, failed(404))}, {mine[3], at(5, failed(500))},
		}); err != nil {
			t.Fatal(err)
		}
		got := lines(t, s.DB, `
			SELECT failures_streak, last_delivery_at_ms - $1, last_success_at_ms - $1, last_status, r.bucket_ms - $1, r.ok, r.failed
			FROM webhook_subscriptions s JOIN webhook_rates r ON r.sub_seq = s.sub_seq ORDER BY s.sub_seq`, start.UnixMilli())
		if want := []string{"1 5500 2500 500 -120000 1 3", "0 3500 3500 202 -120000 1 0"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if back := <-f.committed; len(back) != 5 {
			t.Errorf("%d were given back", len(back))
		}
		// More outcomes of the same five minutes are added, those of a later time
		// stand beside them, and what is a day old is forgotten.
		if err := f.commit([]finished{{others[1], ok(200)}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		if err := f.commit([]finished{{others[2], ok(200)}}); err != nil {
			t.Fatal(err)
		}
		rates := func() []string {
			return lines(t, s.DB, `SELECT ok, failed FROM webhook_rates WHERE sub_seq = $1 ORDER BY bucket_ms`, others[0].subSeq)
		}
		if want := []string{"2 0", "1 0"}; !slices.Equal(rates(), want) {
			t.Errorf("rates %q, want %q", rates(), want)
		}
		time.Sleep(2 * time.Hour)
		if err := f.commit([]finished{{others[3], failed(500)}}); err != nil {
			t.Fatal(err)
		}
		if want := []string{"1 0", "0 1"}; !slices.Equal(rates(), want) {
			t.Errorf("rates %q, want %q", rates(), want)
		}
	})
}
