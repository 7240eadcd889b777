package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
	"jpintel/webhook"
)

// TestMain is the receiver or the bare loop when a test starts it as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "receiver" || os.Args[1] == "bare") {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestBody(t *testing.T) {
	if id := "evt_01KBA7Q0Q0Q0Q0Q0Q0Q0Q0Q0Q0"; len(id) != len(store.NewID("evt")) || !strings.Contains(envelopeV1, id) {
		t.Errorf("ids have %d bytes", len(store.NewID("evt")))
	}
	for _, n := range []int{0, 1, 999_999_999} {
		sent := time.Now().UnixNano()
		body := envelope(program(n, sent))
		if len(body) != bodySize || !json.Valid(body) {
			t.Errorf("program %d: %d bytes: %s", n, len(body), body)
		}
		if got := sentAt(body); got != sent {
			t.Errorf("program %d: sent at %d, want %d", n, got, sent)
		}
	}
	for _, body := range []string{"", `{"primary_name":"`, `{"primary_name":"12345"}`, `{"primary_name":"a234567890123456789"}`} {
		if got := sentAt([]byte(body)); got != 0 {
			t.Errorf("%q: sent at %d", body, got)
		}
	}
}

func TestPercentile(t *testing.T) {
	values := make([]int, 200)
	for i := range values {
		values[i] = i + 1
	}
	for _, c := range []struct {
		p    float64
		want int
	}{{0, 1}, {0.005, 1}, {0.5, 100}, {0.95, 190}, {0.99, 198}, {1, 200}} {
		if got := percentile(values, c.p); got != c.want {
			t.Errorf("p%g: %d, want %d", 100*c.p, got, c.want)
		}
	}
	if got := percentile([]int{}, 0.5); got != 0 {
		t.Errorf("of nothing: %d", got)
	}
	if median([]float64{1, 2, 4}) != 2 || median([]float64{1, 2, 4, 8}) != 3 {
		t.Error("median")
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", ""},
		{"--subscriptions 11 --dead 1 --fanout 10", ""},
		{"--subscriptions 10 --dead 1 --fanout 10", "fanout"},
		{"--fanout 0", "fanout"},
		{"--events 0", "events"},
		{"--events 10000000 --fanout 10", "events"},
		{"--dead 9 --pending 10000000", "pending"},
		{"--clients 0", "clients"},
		{"--bare 1", "bare"},
		{"--rate fast", "rate"},
		{"more", "unknown argument"},
	} {
		var words bytes.Buffer
		_, err := readOptions(strings.Fields(c.args), &words)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
	}
}

func TestReceiver(t *testing.T) {
	r := newReceiver()
	post := func(ctx context.Context, path string, body []byte) int {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, path, bytes.NewReader(body)))
		return w.Code
	}
	late := envelope(program(1, time.Now().Add(-time.Second).UnixNano()))
	for _, path := range []string{pathOK + "1", pathOK + "2", pathOK + "1", pathBare} {
		if got := post(t.Context(), path, late); got != http.StatusNoContent {
			t.Errorf("%s: %d", path, got)
		}
	}
	waiting, giveUp := context.WithCancel(t.Context())
	var sender sync.WaitGroup
	sender.Go(func() { post(waiting, pathDead+"1", late) })
	for r.stats().Held == 0 {
		time.Sleep(time.Millisecond)
	}
	giveUp()
	sender.Wait()
	got := r.stats()
	if got.Count != 3 || got.Bytes != 3*bodySize || got.Endpoints != 2 || got.Held != 0 || got.FirstNS > got.LastNS {
		t.Errorf("%+v", got)
	}
	if got.Latency.P50 < 1000 || got.Latency.Max > 60_000 {
		t.Errorf("latency: %+v", got.Latency)
	}
	post(t.Context(), pathReset, nil)
	if got := r.stats(); got != (arrivals{}) {
		t.Errorf("after a reset: %+v", got)
	}
}

// A prefilled file is one that the service could have left.
func TestPrefill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	addSubscriptions(t, path, 12, 2)
	if err := withFile(t.Context(), path, func(f *file) error {
		if len(f.ok) != 12 || len(f.dead) != 2 || slices.Contains(f.ok, 0) || slices.Contains(f.dead, 0) {
			t.Errorf("subscriptions: %v and %v", f.ok, f.dead)
		}
		if err := f.history(t.Context(), 1234); err != nil {
			return err
		}
		if err := f.reachable(t.Context()); err != nil {
			return err
		}
		return f.backlog(t.Context(), 30, 2, func(int) (string, []int64) { return elsewhere, f.dead })
	}); err != nil {
		t.Fatal(err)
	}
	db := storetest.Open(t, path) // its end checks the invariants
	for query, want := range map[string]int{
		`SELECT deliveries FROM webhook_totals WHERE status = 'success'`:                                                              1234,
		`SELECT deliveries FROM webhook_totals WHERE status = 'pending'`:                                                              60,
		`SELECT COUNT(*) FROM outbox_events WHERE published_at_ms IS NOT NULL`:                                                        124 + 30,
		`SELECT COUNT(DISTINCT sub_seq) FROM webhook_deliveries WHERE status = 'success'`:                                             10,
		`SELECT COUNT(*) FROM webhook_subscriptions WHERE probation = 0`:                                                              2,
		`SELECT COUNT(*) FROM outbox_events WHERE length(data) <> (SELECT length(data) FROM outbox_events ORDER BY seq DESC LIMIT 1)`: 0,
	} {
		var got int
		if err := db.Reader(t.Context()).QueryRow(query).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", query, got, err, want)
		}
	}
}

// addSubscriptions makes a file with subscriptions as a load test has them.
func addSubscriptions(t *testing.T, path string, ok, dead int) {
	t.Helper()
	db, err := store.Open(t.Context(), path, store.Options{Server: true, Keys: storetest.Keys(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	storetest.Customer(t, db, "load", store.TierPaid)
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		for i := range ok + dead {
			url := fmt.Sprintf("http://127.0.1.1%s%d", pathOK, i)
			if i >= ok {
				url = fmt.Sprintf("http://127.0.1.1%s%d", pathDead, i-ok)
			}
			if _, err := tx.Exec(`
				INSERT INTO webhook_subscriptions (subscription_id, customer_id, url, events, envelope, since_seq, created_at_ms)
				VALUES ($1, 'load', $2, '["program.created"]', 'v1', 0, $3)`, tx.NewID("sub"), url, tx.NowMS()); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// The whole of it, small: every mode, on a service that is built here.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and starts the service")
	}
	dir := t.TempDir()
	program, err := build(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, args string
		want       map[string]float64
		keys       []string
	}{
		{"live", "--subscriptions 6 --fanout 3 --events 60", map[string]float64{"endpoints": 6, "body_bytes": bodySize, "repeated": 0},
			[]string{"bare_per_s", "delivered_per_s", "latency_p95_ms", "cpu_vs_bare", "rss_peak_mib", "disk_event_bytes", "disk_delivery_bytes"}},
		{"programs", "--programs --subscriptions 2 --events 40", map[string]float64{"endpoints": 2, "repeated": 0}, []string{"disk_entry_bytes"}},
		{"drain, with a history", "--subscriptions 2 --drain --events 1000 --history 500 --runs 2", map[string]float64{"endpoints": 2, "loaded_endpoints": 2, "repeated": 0},
			[]string{"delivered_loaded_vs_plain", "cpu_loaded_vs_plain"}},
		{"dead", "--subscriptions 3 --dead 1 --pending 50 --sudden --events 60 --rate 200", map[string]float64{"endpoints": 2, "loaded_endpoints": 2},
			[]string{"p95_loaded_vs_plain", "loaded_held"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append(strings.Fields(c.args), "--json", "--bare", "400", "--dir", dir, "--jpintel", program)
			var out, progress bytes.Buffer
			if err := run(t.Context(), args, &out, &progress); err != nil {
				t.Fatalf("%v\n%s", err, &progress)
			}
			var got struct{ Figures map[string]jsonFigure }
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			for key, want := range c.want {
				if f, ok := got.Figures[key]; !ok || f.Median != want {
					t.Errorf("%s: %+v, want %g", key, f, want)
				}
			}
			for _, key := range c.keys {
				if got.Figures[key].Median <= 0 {
					t.Errorf("%s: %+v", key, got.Figures[key])
				}
			}
		})
	}
	if left, err := filepath.Glob(filepath.Join(dir, "jpintel-loadtest-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// The bare loop signs as the service does.
func TestBareRequest(t *testing.T) {
	loop := &bareLoop{url: "http://127.0.0.1/", body: envelope(program(0, 1))}
	req, err := loop.request(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := webhook.Verify(bareSecret, bareBrand, req.Header, loop.body, time.Now()); err != nil {
		t.Error(err)
	}
}
