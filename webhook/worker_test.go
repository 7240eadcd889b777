package webhook

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

// receivers answer in place of the network, and note what they are sent.
type receivers struct {
	answer func(r *http.Request) (*http.Response, error)

	mu   sync.Mutex
	sent []sent
}

// sent is one request.
type sent struct {
	at      time.Time
	url     string
	event   string
	attempt int
	body    string
}

func (r *receivers) RoundTrip(req *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(req.Body)
	attempt, _ := strconv.Atoi(req.Header.Get("X-Jpintel-Attempt"))
	r.mu.Lock()
	r.sent = append(r.sent, sent{time.Now(), req.URL.String(), req.Header.Get("Webhook-Id"), attempt, string(body)})
	r.mu.Unlock()
	return r.answer(req)
}

// all returns what was sent so far.
func (r *receivers) all() []sent {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sent)
}

func (r *receivers) events() (ids []string) {
	for _, s := range r.all() {
		ids = append(ids, s.event)
	}
	return ids
}

func respond(status int, header ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: http.NoBody}
}

// always answers with one status, after some time or when the sender gives up.
func always(status int, after time.Duration) *receivers {
	return &receivers{answer: func(r *http.Request) (*http.Response, error) {
		select {
		case <-time.After(after):
			return respond(status), nil
		case <-r.Context().Done():
			return nil, context.Cause(r.Context())
		}
	}}
}

const silent = 1000 * time.Hour // longer than anybody waits

// start runs a worker in a synctest bubble until the test's end, or stop,
// which returns what Run does.
func start(t *testing.T, s *Service, r *receivers, change ...func(*WorkerOptions)) (w *Worker, stop func() error) {
	t.Helper()
	sender := newSender(t, s.Guard)
	sender.transport = r
	opt := WorkerOptions{Schedule: DefaultSchedule, Concurrency: 8, EndpointConcurrency: 2, Tick: time.Hour, Drain: 5 * time.Second}
	for _, c := range change {
		c(&opt)
	}
	w = NewWorker(s.DB, s.Outbox, sender, slog.New(slog.NewTextHandler(t.Output(), nil)), opt)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { _ = stop() })
	return w, stop
}

func tick(d time.Duration) func(*WorkerOptions) { return func(o *WorkerOptions) { o.Tick = d } }

// The six attempts over 15 hours, then a dead letter: the same event and the
// same bytes each time.
func TestTheSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := always(500, 0)
		_, stop := start(t, s, r)
		began := time.Now()
		id := publish(t, s, updated("UNI-1", nil))[0]
		time.Sleep(48 * time.Hour)
		if err := stop(); err != nil {
			t.Error(err)
		}
		all := r.all()
		if len(all) != len(DefaultSchedule)+1 || !all[0].at.Equal(began) {
			t.Fatalf("%d attempts, the first after %v", len(all), all[0].at.Sub(began))
		}
		for i, a := range all {
			if a.event != id || a.attempt != i+1 || a.body != all[0].body || a.url != publicURL {
				t.Errorf("attempt %d: %+v", i+1, a)
			}
			if i == 0 {
				continue
			}
			plan := DefaultSchedule[i-1]
			if wait := a.at.Sub(all[i-1].at); wait < plan-plan/10 || wait > plan+plan/10+time.Millisecond {
				t.Errorf("attempt %d after %v, want %v ± 10 %%", i+1, wait, plan)
			}
		}
		if got := deliveriesOf(t, s, sub.SubscriptionID); !slices.Equal(got, []string{id + " dead_letter"}) {
			t.Errorf("in the end: %q", got)
		}
	})
}

func TestRetryAfterIsRespected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := &receivers{answer: func(*http.Request) (*http.Response, error) { return respond(429, "Retry-After", "3600"), nil }}
		_, _ = start(t, s, r)
		publish(t, s, updated("UNI-1", nil))
		time.Sleep(2*time.Hour + time.Minute)
		all := r.all()
		if len(all) != 3 || all[1].at.Sub(all[0].at) != time.Hour || all[2].at.Sub(all[1].at) != time.Hour {
			t.Errorf("%+v", all)
		}
	})
}

// A commit wakes the worker: nothing waits for the tick, which is an hour away.
func TestACommitWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := always(200, 0)
		_, _ = start(t, s, r)
		for i := range 5 {
			time.Sleep(7 * time.Minute)
			id := publish(t, s, updated("UNI-1", nil))[0]
			all := r.all()
			if len(all) != i+1 || all[i].event != id || !all[i].at.Equal(time.Now()) {
				t.Fatalf("%d: sent %+v", i, all)
			}
		}
	})
}

// What another process has committed is found by the tick, or at once when
// somebody says so.
func TestTheTickAndReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		elsewhere := serviceOn(s.DB) // with an outbox of its own: no signal reaches the worker
		r := always(200, 0)
		w, _ := start(t, s, r, tick(time.Minute))
		began := time.Now()
		time.Sleep(10 * time.Second)
		first := publish(t, elsewhere, updated("UNI-1", nil))[0]
		if got := r.events(); len(got) != 0 {
			t.Fatalf("sent %q without being told", got)
		}
		time.Sleep(50 * time.Second)
		if all := r.all(); len(all) != 1 || all[0].event != first || !all[0].at.Equal(began.Add(time.Minute)) {
			t.Fatalf("at the tick: %+v", all)
		}
		time.Sleep(time.Second)
		second := publish(t, elsewhere, updated("UNI-1", nil))[0]
		w.Reload()
		if got := r.events(); !slices.Equal(got, []string{first, second}) {
			t.Errorf("after Reload: %q", got)
		}
		// Deliveries that another process has made due are found too.
		exec(t, s.DB, `UPDATE webhook_deliveries SET status = 'pending', next_attempt_at_ms = 0, finished_at_ms = NULL, schedule_base = 1 WHERE event_seq = 1`)
		exec(t, s.DB, `UPDATE webhook_totals SET deliveries = CASE status WHEN 'pending' THEN 1 WHEN 'success' THEN 1 ELSE 0 END`)
		w.Reload()
		if got := r.events(); !slices.Equal(got, []string{first, second, first}) {
			t.Errorf("after a replay and Reload: %q", got)
		}
		if got := w.LastTurn(); !got.Equal(time.Now()) {
			t.Errorf("the last turn was %v ago", time.Since(got))
		}
	})
}

// A request that is cut off is no attempt; the next start sends the same event
// again, with the same bytes.
func TestRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := always(200, silent)
		_, stop := start(t, s, r)
		id := publish(t, s, updated("UNI-1", nil))[0]
		time.Sleep(time.Second)
		began := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("the stop took %v, want the time to drain", took)
		}
		if got := lines(t, s.DB, `SELECT status, attempt_count, failures_streak, last_delivery_at_ms FROM webhook_deliveries JOIN webhook_subscriptions USING (sub_seq)`); got[0] != "pending 0 0 -" {
			t.Errorf("cut off: %q", got)
		}
		r.answer = always(200, 0).answer
		_, _ = start(t, s, r)
		all := r.all()
		if len(all) != 2 || all[1].event != id || all[1].attempt != 1 || all[1].body != all[0].body {
			t.Errorf("sent %+v", all)
		}
		if got := deliveriesOf(t, s, sub.SubscriptionID); !slices.Equal(got, []string{id + " success"}) {
			t.Errorf("in the end %q", got)
		}
	})
}

// A stop lets what is in flight finish, and takes nothing new.
func TestAGracefulStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := always(200, 3*time.Second)
		_, stop := start(t, s, r)
		ids := publish(t, s, updated("UNI-1", nil), updated("UNI-2", nil)) // one at a time: it is on probation
		time.Sleep(time.Second)
		began := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("the stop took %v", took)
		}
		if got := deliveriesOf(t, s, sub.SubscriptionID); !slices.Equal(got, []string{ids[0] + " success", ids[1] + " pending"}) {
			t.Errorf("after the stop %q", got)
		}
		later := publish(t, s, updated("UNI-3", nil))
		time.Sleep(time.Hour)
		if got := r.events(); len(got) != 1 {
			t.Errorf("sent after the stop: %q", got)
		}
		// The next start does the rest, fan-out included: both at a time, in no order.
		r.answer = always(200, 0).answer
		_, _ = start(t, s, r)
		got := r.events()
		slices.Sort(got)
		if want := []string{ids[0], ids[1], later[0]}; !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
	})
}

func TestAStopBeforeTheStart(t *testing.T) {
	s := newService(t)
	w := NewWorker(s.DB, s.Outbox, newSender(t, s.Guard), slog.New(slog.DiscardHandler), WorkerOptions{Tick: time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestAWorkerWithoutAFile(t *testing.T) {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "jpintel.db"), store.Options{Server: true, Keys: storetest.Keys(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	w := NewWorker(db, NewOutbox(), newSender(t, NewGuard(GuardOptions{})), slog.New(slog.DiscardHandler), WorkerOptions{Tick: time.Second})
	if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "looking for pending deliveries") {
		t.Errorf("got %v", err)
	}
}

// In all, to one subscription, and to those on probation: no limit is exceeded.
func TestConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const subs, events = 20, 6
		s := newService(t)
		customer(t, s, "cus_a")
		for i := range subs {
			subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", URL: publicURL + "/" + strconv.Itoa(i)})
		}
		var mu sync.Mutex
		now, most, mostEach, mostNew := 0, 0, 0, 0
		each, answered := map[string]int{}, map[string]bool{}
		r := &receivers{answer: func(req *http.Request) (*http.Response, error) {
			url := req.URL.String()
			count := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				now += n
				each[url] += n
				fresh := 0
				for u, n := range each {
					if !answered[u] {
						fresh += n
					}
				}
				most, mostEach, mostNew = max(most, now), max(mostEach, each[url]), max(mostNew, fresh)
				answered[url] = answered[url] || n < 0
			}
			count(1)
			time.Sleep(time.Second)
			count(-1)
			return respond(200), nil
		}}
		_, _ = start(t, s, r)
		var payloads []Payload
		for range events {
			payloads = append(payloads, updated("UNI-1", nil))
		}
		publish(t, s, payloads...)
		time.Sleep(time.Minute)
		seen := map[string]int{}
		for _, a := range r.all() {
			seen[a.url+" "+a.event]++
		}
		if len(seen) != subs*events || len(r.all()) != subs*events {
			t.Errorf("%d requests for %d deliveries, want %d", len(r.all()), len(seen), subs*events)
		}
		if most != 8 || mostEach != 2 || mostNew != 2 {
			t.Errorf("at most %d in all, %d to one, %d to new ones; want 8, 2, 2", most, mostEach, mostNew)
		}
	})
}

// A dead endpoint with a backlog does not hold up the others.
func TestADeadEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		customer(t, s, "cus_b")
		for i := range 5 {
			subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", URL: "https://8.8.8.8/dead/" + strconv.Itoa(i)})
		}
		subscribe(t, s, SubscribeRequest{CustomerID: "cus_b"})
		live := always(200, 0)
		dead := always(200, silent)
		r := &receivers{answer: func(req *http.Request) (*http.Response, error) {
			if strings.Contains(req.URL.Path, "dead") {
				return dead.answer(req)
			}
			return live.answer(req)
		}}
		_, _ = start(t, s, r)
		publish(t, s, updated("UNI-1", nil)) // the live one gets it when a slot of probation is free
		time.Sleep(time.Minute)
		for range 20 {
			time.Sleep(3 * time.Second)
			id := publish(t, s, updated("UNI-1", nil))[0]
			all := r.all()
			if !slices.ContainsFunc(all, func(a sent) bool { return a.url == publicURL && a.event == id && a.at.Equal(time.Now()) }) {
				t.Fatal("the live one waits")
			}
		}
	})
}

// A subscription that cannot be read holds up nobody: its turn is over at once.
func TestABrokenLaneInTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		var subs []SubscribeAnswer
		for range 4 {
			subs = append(subs, subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}))
		}
		exec(t, s.DB, `UPDATE webhook_secrets SET sealed = x'00' WHERE sub_seq IN (1, 3)`)
		r := always(200, 0)
		_, _ = start(t, s, r)
		publish(t, s, updated("UNI-1", nil))
		if got := len(r.all()); got != 2 {
			t.Errorf("%d of 2 were sent at once", got)
		}
		_ = subs
	})
}

// What must not be sent any more is failed, with a reason, and no request is made.
func TestRefusedDeliveries(t *testing.T) {
	for reason, change := range map[string]string{
		reasonUnsubscribed: `UPDATE webhook_subscriptions SET events = '["program.created"]'`,
		reasonFree:         `UPDATE customers SET tier = 'free'`,
		reasonOptedOut:     `UPDATE customers SET opted_out_at_ms = 1`,
		reasonDisabled:     `UPDATE webhook_subscriptions SET disabled_at_ms = 1, disabled_reason = 'user', generation = 2, sweep = 1`,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newService(t)
			customer(t, s, "cus_a")
			subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
			publish(t, s, updated("UNI-1", nil))
			fanOut(t, s)
			exec(t, s.DB, change)
			r := always(200, 0)
			_, _ = start(t, s, r)
			if got := r.all(); len(got) != 0 {
				t.Errorf("%s: sent %+v", reason, got)
			}
			if got := lines(t, s.DB, `SELECT status, reason, attempt_count FROM webhook_deliveries`); !slices.Equal(got, []string{"failed " + reason + " 0"}) {
				t.Errorf("got %q, want %s", got, reason)
			}
		})
	}
}

// A customer who deletes a subscription gets nothing more, though a retry was
// due and others were read ahead.
func TestUnsubscribeAtWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := always(500, time.Second)
		w, _ := start(t, s, r)
		s.Changed = w.Forget
		publish(t, s, updated("UNI-1", nil), updated("UNI-2", nil), updated("UNI-3", nil))
		time.Sleep(500 * time.Millisecond) // one is in flight, the others are held
		if _, err := s.Unsubscribe(t.Context(), SubscriptionRequest{"cus_a", sub.SubscriptionID}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(48 * time.Hour)
		if got := r.all(); len(got) != 1 {
			t.Errorf("sent %+v", got)
		}
		if got := lines(t, s.DB, `SELECT status, reason, attempt_count FROM webhook_deliveries ORDER BY attempt_count`); !slices.Equal(slices.Compact(got), []string{"failed " + reasonDisabled + " 0", "failed " + reasonDisabled + " 1"}) {
			t.Errorf("got %q", got)
		}
	})
}

// What is changed holds for what was read ahead, too.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := always(200, time.Second)
		w, _ := start(t, s, r)
		publish(t, s, updated("UNI-1", nil), updated("UNI-2", nil))
		time.Sleep(500 * time.Millisecond)
		exec(t, s.DB, `UPDATE webhook_subscriptions SET url = 'https://8.8.8.8/moved'`)
		w.Forget(subSeq(t, s, sub.SubscriptionID))
		time.Sleep(time.Second)
		if all := r.all(); len(all) != 2 || all[0].url != publicURL || all[1].url != "https://8.8.8.8/moved" {
			t.Errorf("sent %+v", all)
		}
	})
}

// Other packages' steps run at each tick and when they are woken, until they have
// no more to do; one that fails is tried again at the next tick.
func TestSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		var ran []time.Duration
		began := time.Now()
		left := 3
		_, _ = start(t, s, always(200, 0), tick(time.Minute), func(o *WorkerOptions) {
			o.Steps = append(o.Steps, func(context.Context) (bool, error) {
				ran = append(ran, time.Since(began))
				if len(ran) == 4 {
					return true, errBoom
				}
				left--
				return left > 0, nil
			})
		})
		time.Sleep(90 * time.Second)
		publish(t, s, updated("UNI-1", nil)) // is fanned out by its own transaction
		s.Outbox.Wake()
		time.Sleep(time.Minute)
		synctest.Wait()
		// Three in a row at the start, one that fails at the tick, one that was
		// woken, one at the next tick.
		want := []time.Duration{0, 0, 0, time.Minute, 90 * time.Second, 2 * time.Minute}
		if !slices.Equal(ran, want) {
			t.Errorf("ran after %v, want %v", ran, want)
		}
	})
}

// The same way from the commit to the receiver's verification, with a real
// sender and a real connection.
func TestFromCommitToReceiver(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	s.Guard = lenient(t, nil)
	verified := make(chan error, 1)
	var secret string
	receiver := receive(t, func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && !bytes.Contains(body, []byte("UNI-奈良")) {
			err = errors.New("another body: " + string(body))
		}
		verified <- errors.Join(err, Verify(secret, "Jpintel", r.Header, body, time.Now()))
	})
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", URL: receiver.URL})
	secret = sub.SigningSecret
	w := NewWorker(s.DB, s.Outbox, newSender(t, s.Guard), slog.New(slog.DiscardHandler), WorkerOptions{Concurrency: 4, EndpointConcurrency: 2, Tick: time.Hour, Drain: time.Minute})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	id := publish(t, s, updated("UNI-奈良", nil))[0]
	if err := <-verified; err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := deliveriesOf(t, s, sub.SubscriptionID); !slices.Equal(got, []string{id + " success"}) {
		t.Errorf("in the end %q", got)
	}
}
