package webhook

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// failingSince is since when the API says that a subscription fails, from a
// time on; -1: it does not.
func failingSince(t testing.TB, s *Service, which SubscriptionRequest, from time.Time) time.Duration {
	t.Helper()
	sub, err := s.Subscription(t.Context(), which)
	if err != nil {
		t.Fatal(err)
	}
	if sub.FailingSince == nil {
		return -1
	}
	return sub.FailingSince.Sub(from)
}

// A subscription that has only failed for long enough is disabled by the next
// failure; a success and enabling begin anew, and a fault of ours is nothing.
func TestFailingForTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		reachable(t, s, "cus_a")
		which := SubscriptionRequest{"cus_a", subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID}
		f := newTestFinisher(s, nil)
		f.failLimit = 5 * day
		began := time.Now()
		for i, c := range []struct {
			after  time.Duration
			result func() Result
			since  time.Duration // failing, from the beginning; -1: not
			reason string
		}{
			{0, func() Result { return noAnswer(CategoryInternal) }, -1, "-"},
			{time.Hour, func() Result { return failed(500) }, time.Hour, "-"},
			{4 * day, func() Result { return noAnswer(CategoryTimeout) }, time.Hour, "-"},
			{2 * day, func() Result { return noAnswer(CategoryInternal) }, time.Hour, "-"}, // long enough, but this is no failure of theirs
			{time.Hour, func() Result { return ok(200) }, -1, "-"},
			{time.Hour, func() Result { return failed(500) }, 6*day + 3*time.Hour, "-"},
			{5*day - time.Millisecond, func() Result { return failed(404) }, 6*day + 3*time.Hour, "-"},
			{time.Millisecond, func() Result { return failed(503) }, 6*day + 3*time.Hour, "failing"},
		} {
			time.Sleep(c.after)
			if err := f.commit([]finished{{attempted(t, s, which.SubscriptionID, 0), c.result()}}); err != nil {
				t.Fatal(err)
			}
			<-f.committed
			if got, reason := failingSince(t, s, which, began), reasons(t, s)[0]; got != c.since || reason != c.reason {
				t.Errorf("%d: failing since %v, disabled for %s; want %v, %s", i, got, reason, c.since, c.reason)
			}
		}
		if got := lines(t, s.DB, `SELECT json_extract(data, '$.disabled_reason') FROM outbox_events WHERE event_type = 'webhook.subscription_disabled'`); !slices.Equal(got, []string{"failing"}) {
			t.Errorf("events %q", got)
		}
		if _, err := s.Enable(t.Context(), which); err != nil {
			t.Fatal(err)
		}
		if got := failingSince(t, s, which, began); got != -1 {
			t.Errorf("just enabled, failing since %v", got)
		}
		if err := f.commit([]finished{{attempted(t, s, which.SubscriptionID, 0), failed(500)}}); err != nil {
			t.Fatal(err)
		}
		if reason := reasons(t, s)[0]; reason != "-" {
			t.Errorf("the first failure after it was enabled: %s", reason)
		}
	})
}

// Results of one batch count one after the other.
func TestFailingInABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		which := SubscriptionRequest{"cus_a", subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID}
		f := newTestFinisher(s, nil)
		began := time.Now()
		for i, c := range []struct {
			statuses []int
			since    time.Duration
		}{
			{[]int{500, 200}, -1}, {[]int{200, 500, 500}, 2 * time.Hour}, {[]int{500}, 2 * time.Hour},
			{[]int{500, 204, 500}, 4 * time.Hour}, {[]int{204}, -1}, {[]int{410}, 6 * time.Hour},
		} {
			time.Sleep(time.Hour)
			var batch []finished
			for _, status := range c.statuses {
				r := ok(status)
				if status >= 300 {
					r = failed(status)
				}
				batch = append(batch, finished{attempted(t, s, which.SubscriptionID, 0), r})
			}
			if err := f.commit(batch); err != nil {
				t.Fatal(err)
			}
			<-f.committed
			if got := failingSince(t, s, which, began); got != c.since {
				t.Errorf("%d: failing since %v, want %v", i, got, c.since)
			}
		}
	})
}

// warned runs looks for who must be warned, and returns what was queued in all.
func warned(t testing.TB, s *Service, w *warnings) []string {
	t.Helper()
	for more := true; more; {
		var err error
		if more, err = w.step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return notices(t, s)
}

// An owner is warned once in each row of failures, when it is long enough,
// whether results come or not.
func TestWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.DB.Location = time.FixedZone("JST", 9*60*60)
		reachable(t, s, "cus_secret")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_secret", URL: publicURL + "?token=t0ken"})
		which := SubscriptionRequest{"cus_secret", sub.SubscriptionID}
		subscribe(t, s, SubscribeRequest{CustomerID: "cus_secret"}) // nothing is sent to it
		f := newTestFinisher(s, nil)
		send := func(r Result) {
			t.Helper()
			if err := f.commit([]finished{{attempted(t, s, sub.SubscriptionID, 0), r}}); err != nil {
				t.Fatal(err)
			}
			<-f.committed
		}
		var log bytes.Buffer
		w := &warnings{db: s.DB, log: slog.New(slog.NewJSONHandler(&log, nil)), notices: Notices{PublicURL: "https://hooks.example.jp"}, after: day}
		one := "subscription_failing cus_secret " + sub.SubscriptionID + " cus_secret@customer.example"
		look := func(when string, want int) {
			t.Helper()
			if got := warned(t, s, w); !slices.Equal(got, slices.Repeat([]string{one}, want)) {
				t.Errorf("%s: queued %q, want %d", when, got, want)
			}
		}
		send(failed(500))
		look("at the first failure", 0)
		time.Sleep(day - time.Minute)
		look("a minute before the time", 0)
		time.Sleep(time.Minute)
		look("at the time, without another result", 1)
		for range 3 {
			time.Sleep(day)
			send(failed(500))
			look("later", 1)
		}
		body := lines(t, s.DB, `SELECT subject || char(10) || body FROM mails`)[0]
		for _, want := range []string{"[Jpintel] Webhook subscription failing / Webhook 配信の失敗\n", "Since:        2000-01-01T09:00:00+09:00\n", "開始時刻:   2000-01-01T09:00:00+09:00\n", "Deliveries are still tried", "引き続き試行されます", sub.SubscriptionID, "https://93.184.215.14\n"} {
			if !strings.Contains(body, want) {
				t.Errorf("no %q in\n%s", want, body)
			}
		}
		if strings.Contains(body, "t0ken") || strings.Contains(body, "/enable") {
			t.Errorf("body\n%s", body)
		}
		if got := log.String(); strings.Count(got, `"msg":"webhook_subscription_failing"`) != 1 || strings.Contains(got, "cus_secret") || strings.Contains(got, "t0ken") {
			t.Errorf("the log: %s", got)
		}
		send(ok(200))
		send(failed(500))
		time.Sleep(2 * day)
		look("in the next row of failures", 2)
		if _, err := s.Disable(t.Context(), which); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Enable(t.Context(), which); err != nil {
			t.Fatal(err)
		}
		send(failed(500))
		time.Sleep(day)
		if _, err := s.Disable(t.Context(), which); err != nil {
			t.Fatal(err)
		}
		look("of a subscription that is disabled", 2)
		if _, err := s.Enable(t.Context(), which); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * day)
		look("enabled, and nothing was sent", 2)
	})
}

// Many owners are warned in steps, and off means off.
func TestManyWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		const n = warnRows + 5
		for i := range n {
			subscribe(t, s, SubscribeRequest{CustomerID: reachable(t, s, fmt.Sprintf("cus_%d", i))})
		}
		write(t, s.DB, func(tx *store.Tx) error {
			_, err := tx.Exec(`UPDATE webhook_subscriptions SET failing_since_ms = $1`, tx.NowMS())
			return err
		})
		time.Sleep(day)
		if got := warned(t, s, &warnings{db: s.DB}); len(got) != 0 {
			t.Errorf("off: queued %q", got)
		}
		w := &warnings{db: s.DB, log: slog.New(slog.DiscardHandler), after: day}
		if more, err := w.step(t.Context()); !more || err != nil || len(notices(t, s)) != warnRows {
			t.Errorf("a step: more %v, %v, %d queued", more, err, len(notices(t, s)))
		}
		if got := warned(t, s, w); len(got) != n {
			t.Errorf("%d are queued, want %d", len(got), n)
		}
	})
}

// The whole worker: with the default schedule the last attempt of the only
// event is after fifteen hours, and the warning comes all the same.
func TestTheWorkerWarns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		reachable(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		var at time.Time
		began := time.Now()
		_, stop := start(t, s, always(500, 0), tick(time.Minute), func(o *WorkerOptions) {
			o.WarnAfter, o.Notices = day, Notices{Wake: func() { at = time.Now() }}
		})
		publish(t, s, updated("UNI-1", nil))
		time.Sleep(2 * day)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if got := notices(t, s); !slices.Equal(got, []string{"subscription_failing cus_a " + sub.SubscriptionID + " cus_a@customer.example"}) {
			t.Errorf("queued %q", got)
		}
		if late := at.Sub(began) - day; late < 0 || late > 2*warnEvery {
			t.Errorf("warned after %v", at.Sub(began))
		}
	})
}
