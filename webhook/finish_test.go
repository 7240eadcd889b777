package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

// newTestFinisher is a finisher without jitter. log may be nil.
func newTestFinisher(s *Service, log io.Writer) *finisher {
	if log == nil {
		log = io.Discard
	}
	return newFinisher(s.DB, s.Outbox, slog.New(slog.NewJSONHandler(log, nil)), DefaultSchedule, func() float64 { return 0.5 })
}

// ok and failed are results as the sender gives them.
func ok(status int) Result { return Result{StartedAt: time.Now(), Status: status} }

func failed(status int) Result {
	r := judge(status)
	r.StartedAt = time.Now()
	return r
}

func noAnswer(c Category) Result { return Result{StartedAt: time.Now(), Category: c} }

// attempted makes a delivery of the subscription, with attempts that were made
// before, due now.
func attempted(t testing.TB, s *Service, subscriptionID string, attempts int) *work {
	t.Helper()
	publish(t, s, updated("UNI-1", nil))
	fanOut(t, s)
	works := claimAll(t, s, subscriptionID)
	w := works[len(works)-1]
	exec(t, s.DB, `UPDATE webhook_deliveries SET attempt_count = $1 WHERE delivery_seq = $2`, attempts, w.seq)
	for i := range attempts {
		exec(t, s.DB, `INSERT INTO webhook_attempts (delivery_seq, attempt, started_at_ms, duration_ms) VALUES ($1, $2, 0, 0)`, w.seq, i+1)
	}
	w.attempts = attempts
	return w
}

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
				c.before.streak, bit(c.before.dns), bit(c.before.probation), w.subSeq)
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
			if want := fmt.Sprint(c.after.streak, bit(c.after.dns), bit(c.after.probation)) + " " + string(c.disabled); got[0] != want {
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

// A 410 ends everything at once: what is pending is failed.
func TestGone(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	publish(t, s, updated("1", nil), updated("2", nil))
	fanOut(t, s)
	works := claimAll(t, s, sub.SubscriptionID)
	if err := newTestFinisher(s, nil).commit([]finished{{works[0], failed(410)}}); err != nil {
		t.Fatal(err)
	}
	if again := claimAll(t, s, sub.SubscriptionID); len(again) != 0 {
		t.Errorf("%d are still due", len(again))
	}
	for range 2 {
		page, err := s.Deliveries(t.Context(), DeliveriesRequest{CustomerID: "cus_a", SubscriptionID: sub.SubscriptionID, Status: StatusFailed})
		if err != nil || len(page.Data) != 2 || page.Data[0].AttemptCount != 0 || page.Data[1].AttemptCount != 1 {
			t.Errorf("failed: %+v, %v", page, err)
		}
		if _, err := sweepStep(t.Context(), s.DB); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatIsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		publish(t, s, updated("1", nil), updated("2", nil))
		fanOut(t, s)
		works := claimAll(t, s, sub.SubscriptionID)
		works[1].refused = reasonUnsubscribed
		f := newTestFinisher(s, nil)
		time.Sleep(time.Second)
		if err := f.commit([]finished{{works[0], Result{Interrupted: true}}, {works[1], Result{}}}); err != nil {
			t.Fatal(err)
		}
		got := lines(t, s.DB, `SELECT status, reason, attempt_count, next_attempt_at_ms, finished_at_ms FROM webhook_deliveries ORDER BY delivery_seq`)
		due := works[0].dueMS
		if want := []string{fmt.Sprintf("pending - 0 %d -", due), fmt.Sprintf("failed %s 0 - %d", reasonUnsubscribed, due+1000)}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := lines(t, s.DB, `SELECT failures_streak, probation, last_delivery_at_ms, (SELECT COUNT(*) FROM webhook_rates), (SELECT COUNT(*) FROM webhook_attempts) FROM webhook_subscriptions`); got[0] != "0 1 - 0 0" {
			t.Errorf("subscription %q", got)
		}
		back := <-f.committed
		if len(back) != 2 || back[0].next != due || back[1].next != noneDue || !back[0].probation {
			t.Errorf("given back: %+v", back)
		}
	})
}

// A replayed delivery has a fresh schedule; its attempts count up.
func TestAFreshSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		f := newTestFinisher(s, nil)
		for base, want := range map[int]time.Duration{6: time.Minute, 3: 2 * time.Hour, 1: -1} {
			w := attempted(t, s, sub.SubscriptionID, 6)
			w.scheduleBase = base
			if err := f.commit([]finished{{w, failed(500)}}); err != nil {
				t.Fatal(err)
			}
			back := <-f.committed
			if want == -1 && back[0].next != noneDue || want != -1 && back[0].next != time.Now().Add(want).UnixMilli() {
				t.Errorf("the seventh attempt of a schedule from %d: next %v, want in %v", base, time.UnixMilli(back[0].next), want)
			}
		}
	})
}

// One line an attempt, with these keys and no others: operators search by them.
func TestTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_secret")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_secret"})
		id := publish(t, s, updated("1", nil), updated("2", nil), updated("3", nil), updated("4", nil), updated("5", nil))[0]
		fanOut(t, s)
		works := claimAll(t, s, sub.SubscriptionID)
		works[3].refused = reasonUnsubscribed
		var log bytes.Buffer
		f := newTestFinisher(s, &log)
		blocked := Result{Category: CategoryBlocked, Reason: "private_address", Detail: "the address is not a public one"}
		if err := f.commit([]finished{{works[0], Result{Status: 200, Duration: 1500 * time.Microsecond}}, {works[1], blocked},
			{works[2], Result{Interrupted: true}}, {works[3], Result{}}, {works[4], failed(410)}}); err != nil {
			t.Fatal(err)
		}
		hash := s.DB.Keys.HashID("cus_secret")
		attempt := "attempt customer_id_hash delivery_id duration_ms error_category event event_id event_type level msg ok status subscription_id time"
		want := []string{attempt, strings.Replace(attempt, "customer_id_hash", "blocked_reason customer_id_hash", 1), "delivery_id event_id level msg reason subscription_id time",
			"delivery_id event_id level msg reason subscription_id time", attempt, "customer_id_hash level msg reason subscription_id time"}
		var keys []string
		var first map[string]any
		for _, line := range strings.Split(strings.TrimSpace(log.String()), "\n") {
			var fields map[string]any
			if err := json.Unmarshal([]byte(line), &fields); err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = fields
			}
			keys = append(keys, strings.Join(slices.Sorted(maps.Keys(fields)), " "))
		}
		if !slices.Equal(keys, want) {
			t.Errorf("keys\n%s\nwant\n%s", strings.Join(keys, "\n"), strings.Join(want, "\n"))
		}
		wantFirst := map[string]any{
			"time": first["time"], "level": "INFO", "msg": "webhook_delivered", "event": "webhook_delivered", "subscription_id": sub.SubscriptionID, "delivery_id": works[0].deliveryID,
			"event_id": id, "event_type": "program.updated", "customer_id_hash": hash, "status": 200.0, "attempt": 1.0, "duration_ms": 1.0, "ok": true, "error_category": "",
		}
		if !maps.Equal(first, wantFirst) {
			t.Errorf("got  %v\nwant %v", first, wantFirst)
		}
		for _, secret := range []string{"cus_secret", sub.SigningSecret, "93.184.215.14"} {
			if strings.Contains(log.String(), secret) {
				t.Errorf("%s is in the log", secret)
			}
		}
	})
}

// One result that cannot be written does not hold up the others; its delivery
// stays pending and is given back for later.
func TestOneResultThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		publish(t, s, updated("1", nil), updated("2", nil), updated("3", nil))
		fanOut(t, s)
		works := claimAll(t, s, sub.SubscriptionID)
		exec(t, s.DB, fmt.Sprintf(`CREATE TRIGGER broken BEFORE INSERT ON webhook_attempts WHEN NEW.delivery_seq = %d BEGIN SELECT RAISE(ABORT, 'boom'); END`, works[1].seq))
		f := newTestFinisher(s, nil)
		f.finish([]finished{{works[0], ok(200)}, {works[1], ok(200)}, {works[2], ok(200)}})
		if got := lines(t, s.DB, `SELECT status, attempt_count FROM webhook_deliveries ORDER BY delivery_seq`); !slices.Equal(got, []string{"success 1", "pending 0", "success 1"}) {
			t.Errorf("got %q", got)
		}
		next := map[*work]int64{}
		for _, b := range <-f.committed { // three parcels in one
			next[b.work] = b.next
		}
		if want := map[*work]int64{works[0]: noneDue, works[1]: time.Now().Add(time.Minute).UnixMilli(), works[2]: noneDue}; !maps.Equal(next, want) {
			t.Errorf("given back %v, want %v", next, want)
		}
	})
}

// While the file cannot be written the results are kept: to forget one would
// be to send its delivery again although it may have arrived.
func TestResultsOutliveAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		w := attempted(t, s, sub.SubscriptionID, 0)
		setPages := func(n int) {
			write(t, s.DB, func(tx *store.Tx) error { return tx.QueryRow(fmt.Sprintf(`PRAGMA max_page_count = %d`, n)).Scan(&n) })
		}
		setPages(1) // SQLite takes the present size
		f := newTestFinisher(s, nil)
		go f.run()
		r := ok(200)
		r.Excerpt = strings.Repeat("x", 100_000) // there is no room for that
		f.results <- finished{w, r}
		time.Sleep(time.Minute)
		select {
		case back := <-f.committed:
			t.Fatalf("given back: %+v", back)
		default:
		}
		setPages(1 << 20)
		if back := <-f.committed; back[0].work != w || back[0].next != noneDue {
			t.Errorf("given back: %+v", back)
		}
		if got := lines(t, s.DB, `SELECT status, attempt_count FROM webhook_deliveries`); got[0] != "success 1" {
			t.Errorf("got %q", got)
		}
		f.close()
	})
}

// A stop does not wait for ever for a file that cannot be written.
func TestAStopGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "jpintel.db"), store.Options{Server: true, Keys: storetest.Keys(t)})
		if err != nil {
			t.Fatal(err)
		}
		s := serviceOn(db)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		w := attempted(t, s, sub.SubscriptionID, 0)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		f := newTestFinisher(s, nil)
		start := time.Now()
		f.results <- finished{w, ok(200)}
		f.close()
		f.run()
		if took := time.Since(start); took != maxLastTries*time.Second {
			t.Errorf("gave up after %v", took)
		}
	})
}

func TestParcelsAreMerged(t *testing.T) {
	f := newFinisher(nil, nil, nil, nil, nil)
	f.giveBack([]settled{{next: 1}}) // nobody takes it
	f.giveBack([]settled{{next: 2}, {next: 3}})
	var got []int64
	for _, s := range <-f.committed {
		got = append(got, s.next)
	}
	if !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("got %d", got)
	}
}

// Everything that was handed over is in the file when run returns.
func TestTheFinisherFinishes(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	var payloads []Payload
	for range finishBatch + 10 {
		payloads = append(payloads, updated("UNI-1", nil))
	}
	publish(t, s, payloads...)
	fanOut(t, s)
	f := newTestFinisher(s, nil)
	go func() {
		for _, w := range claimAll(t, s, sub.SubscriptionID) {
			f.results <- finished{w, ok(204)}
		}
		f.close()
	}()
	f.run()
	if n := number(t, s.DB, `SELECT COUNT(*) FROM webhook_deliveries WHERE status = 'success'`); n != finishBatch+10 {
		t.Errorf("%d are finished", n)
	}
}
