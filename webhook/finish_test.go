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
	return newFinisher(s.DB, s.Outbox, slog.New(slog.NewJSONHandler(log, nil)), DefaultSchedule, func() float64 { return 0.5 }, finishBatch)
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

// Only the result that disables a subscription says so: not those that were
// under way at that time.
func TestASubscriptionIsDisabledOnce(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	publish(t, s, updated("1", nil), updated("2", nil), updated("3", nil))
	fanOut(t, s)
	works := claimAll(t, s, sub.SubscriptionID)
	var log bytes.Buffer
	f := newTestFinisher(s, &log)
	for _, batch := range [][]finished{{{works[0], failed(410)}, {works[1], failed(410)}}, {{works[2], failed(410)}}} {
		if err := f.commit(batch); err != nil {
			t.Fatal(err)
		}
	}
	events := number(t, s.DB, `SELECT COUNT(*) FROM outbox_events WHERE event_type = 'webhook.subscription_disabled'`)
	if lines := strings.Count(log.String(), `"msg":"webhook_subscription_disabled"`); events != 1 || lines != 1 {
		t.Errorf("%d events and %d lines, want one of each", events, lines)
	}
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
		time.Sleep(time.Minute + time.Millisecond) // between two tries
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
	f := newFinisher(nil, nil, nil, nil, nil, 0)
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
