package billing

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/store"
	"jpintel/store/storetest"
	"jpintel/webhook"
)

const testKey = "mgp_0123456789abcdefghij"

// partner is a partner API that does just enough for these tests. A fault may
// stand before or after what it does.
type partner struct {
	mu       sync.Mutex
	groups   []map[string]any
	keys     []map[string]any
	limits   map[string]map[string]any // by group
	stored   map[string]stored         // by Idempotency-Key
	audit    []map[string]any
	sent     []sent
	running  map[string]int // by Idempotency-Key
	most     int            // requests at a time under one key
	wallet   string
	clock    func() time.Time            // for the Date header; nil: the server's own
	hideList bool                        // lists show nothing
	noSecret bool                        // even the first answer has none
	requests func(w http.ResponseWriter) // what customers have used

	// before may answer in place of what a mutation does; after may spoil the
	// answer. n counts mutations from 1.
	before, after func(n int, w http.ResponseWriter, r *http.Request) (handled bool)
}

type stored struct {
	request, body string
	status        int
}

// sent is one mutation as it came over the wire.
type sent struct{ method, path, key, body string }

func newPartner() *partner {
	return &partner{limits: map[string]map[string]any{}, stored: map[string]stored{}, running: map[string]int{}, wallet: "1000.00"}
}

// cut closes the connection without an answer.
func cut() bool { panic(http.ErrAbortHandler) }

// status answers with an error of the upstream's.
func status(w http.ResponseWriter, status int, code string) bool {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"code":%q,"message":"words","type":"server"}}`, code)
	return true
}

func (p *partner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.clock != nil {
		w.Header().Set("Date", p.clock().UTC().Format(http.TimeFormat))
	}
	w.Header().Set("Content-Type", "application/json")
	if r.Method == "GET" {
		p.read(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	key := r.Header.Get("Idempotency-Key")
	p.mu.Lock()
	p.sent = append(p.sent, sent{r.Method, r.URL.Path, key, string(body)})
	n := len(p.sent)
	p.running[key]++
	p.most = max(p.most, p.running[key])
	w.Header().Set("X-Request-Id", fmt.Sprintf("req_%d", n))
	before, after := p.before, p.after
	p.mu.Unlock()
	defer func() { p.mu.Lock(); p.running[key]--; p.mu.Unlock() }()
	if before != nil && before(n, w, r) {
		return
	}
	code, text, replayed := p.do(r, key, string(body), n)
	if after != nil && after(n, w, r) {
		return
	}
	if replayed {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text)
}

// do is a mutation under its key.
func (p *partner) do(r *http.Request, key, body string, n int) (status int, text string, replayed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	request := r.Method + r.URL.Path + body
	if s, ok := p.stored[key]; ok {
		if s.request != request {
			return 409, `{"error":{"code":"idempotency_key_reused","message":"words"}}`, false
		}
		return s.status, s.body, true
	}
	status, o := p.execute(r, body, n)
	first, _ := json.Marshal(o)
	if o["secret"] != nil {
		o["secret"], o["secret_available"] = nil, false
	}
	again, _ := json.Marshal(o)
	p.stored[key] = stored{request, string(again), status}
	return status, string(first), false
}

func (p *partner) execute(r *http.Request, body string, n int) (int, map[string]any) {
	var in map[string]any
	_ = json.Unmarshal([]byte(body), &in)
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	note := func(action, id string) {
		p.audit = append(p.audit, map[string]any{"id": fmt.Sprintf("aud_%d", n), "request_id": fmt.Sprintf("req_%d", n), "action": action, "target": map[string]any{"type": parts[0], "id": id},
			"source_ip": "192.0.2.1", "status": "succeeded", "metadata": map[string]any{}, "occurred_at": "2026-05-14T00:00:00Z"})
	}
	switch {
	case r.Method == "POST" && r.URL.Path == "/groups":
		g := map[string]any{"id": fmt.Sprintf("grp_%d", len(p.groups)+1), "external_ref": in["external_ref"], "name": in["name"], "status": "active", "spend_limit": in["spend_limit"], "period": in["period"]}
		p.groups = append(p.groups, g)
		note("group.create", g["id"].(string))
		return 201, g
	case r.Method == "POST" && parts[2] == "keys":
		k := map[string]any{"id": fmt.Sprintf("key_%d", len(p.keys)+1), "group_id": parts[1], "purpose": in["purpose"], "external_ref": in["external_ref"], "prefix": "mg_ab12", "status": "active"}
		p.keys = append(p.keys, k)
		note("key.create", k["id"].(string))
		answer := map[string]any{"secret": fmt.Sprintf("mg_ab12_secret_number_%d", len(p.keys)), "secret_available": true}
		if p.noSecret {
			answer = map[string]any{"secret": nil, "secret_available": false}
		}
		for name, v := range k {
			answer[name] = v
		}
		return 201, answer
	case r.Method == "PATCH" && len(parts) == 3:
		in["group_id"], in["usage_in_period"], in["version"] = parts[1], "0.00", 1
		p.limits[parts[1]] = in
		note("limit.update", parts[1])
		return 200, in
	case r.Method == "PATCH":
		g := p.find(p.groups, parts[1])
		g["status"] = in["status"]
		note("group.update", parts[1])
		return 200, g
	case r.Method == "DELETE":
		k := p.find(p.keys, parts[1])
		k["status"] = "revoked"
		note("key.revoke", parts[1])
		return 200, map[string]any{"id": parts[1], "status": "revoked", "revoked_at": "2026-05-14T00:00:00Z"}
	}
	return 404, map[string]any{"error": map[string]any{"code": "not_found"}}
}

func (p *partner) find(all []map[string]any, id string) map[string]any {
	for _, o := range all {
		if o["id"] == id {
			return o
		}
	}
	return nil
}

func (p *partner) read(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	list := func(all []map[string]any, match func(map[string]any) bool) {
		found := []map[string]any{}
		for _, o := range all {
			if match(o) && !p.hideList {
				found = append(found, o)
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"data": found, "next_cursor": nil})
	}
	one := func(o map[string]any) {
		if o == nil {
			status(w, 404, strings.TrimSuffix(parts[0], "s")+"_not_found")
			return
		}
		_ = json.NewEncoder(w).Encode(o)
	}
	ref := r.URL.Query().Get("external_ref")
	switch {
	case r.URL.Path == "/balance":
		one(map[string]any{"balance": p.wallet, "currency": "USD", "as_of": "2026-05-14T00:00:00Z"})
	case r.URL.Path == "/requests":
		p.requests(w)
	case r.URL.Path == "/groups":
		list(p.groups, func(g map[string]any) bool { return g["external_ref"] == ref })
	case r.URL.Path == "/audit-events":
		list(p.audit, func(a map[string]any) bool { return a["action"] == r.URL.Query().Get("action") })
	case len(parts) == 3 && parts[2] == "keys":
		list(p.keys, func(k map[string]any) bool { return k["group_id"] == parts[1] && k["external_ref"] == ref })
	case len(parts) == 3 && parts[2] == "limits":
		if p.limits[parts[1]] == nil {
			one(map[string]any{"group_id": parts[1], "spend_limit": "0.00", "currency": "USD", "period": "month", "policy_version": nil})
			return
		}
		one(p.limits[parts[1]])
	case parts[0] == "keys":
		one(p.find(p.keys, parts[1]))
	default:
		one(p.find(p.groups, parts[1]))
	}
}

// byKey counts the requests under each key.
func (p *partner) byKey() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]int{}
	for _, s := range p.sent {
		all[s.key]++
	}
	return all
}

// bench is a service and an engine on one file, with a partner behind them.
type bench struct {
	*Service
	t       testing.TB
	engine  *Engine
	partner *partner
	log     *strings.Builder
}

// newBench serves the partner on a real socket.
func newBench(t testing.TB) *bench {
	t.Helper()
	p := newPartner()
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	return benchOn(t, storetest.New(t), p, modelgate.Options{BaseURL: server.URL, APIKey: testKey})
}

// newPipeBench serves the partner without a network, for simulated time.
func newPipeBench(t testing.TB) *bench {
	t.Helper()
	p := newPartner()
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	server := &http.Server{Handler: p}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return benchOn(t, storetest.New(t), p, modelgate.Options{BaseURL: "http://127.0.0.1", APIKey: testKey, Dial: l.dial})
}

func benchOn(t testing.TB, db *store.DB, p *partner, opt modelgate.Options) *bench {
	t.Helper()
	client, err := modelgate.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{DB: db, Outbox: webhook.NewOutbox(), Models: []string{"m1"}}
	log := &strings.Builder{}
	var mu sync.Mutex
	e := &Engine{DB: db, Client: client, Rules: s, Log: slog.New(slog.NewTextHandler(lockedWriter{log, &mu}, nil)), Jitter: func(most int64) int64 { return most }}
	return &bench{s, t, e, p, log}
}

type lockedWriter struct {
	io.Writer
	mu *sync.Mutex
}

func (w lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Writer.Write(b)
}

type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }
func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *bench) signUp(customer string) *Operation {
	b.t.Helper()
	o, err := b.SignUp(context.Background(), SignUp{Customer: store.Customer{CustomerID: customer}, Version: 1, SpendLimit: "100.00", Key: "click-" + customer})
	if err != nil {
		b.t.Fatal(err)
	}
	return o
}

// step takes steps until there is nothing to do now.
func (b *bench) step() (steps int) {
	b.t.Helper()
	for ; ; steps++ {
		worked, err := b.engine.Step(context.Background(), b.DB.BootID+"/1")
		if err != nil {
			b.t.Fatal(err)
		}
		if !worked {
			return steps
		}
		if steps > 500 {
			b.t.Fatal("it does not come to rest")
		}
	}
}

// work goes on until nothing is open, or so long has passed on the bubble's clock.
func (b *bench) work(longest time.Duration) {
	b.t.Helper()
	for until := time.Now().Add(longest); time.Now().Before(until); {
		b.step()
		next, err := nextDue(context.Background(), b.DB)
		if err != nil {
			b.t.Fatal(err)
		}
		if next.IsZero() {
			return
		}
		time.Sleep(max(time.Until(next), time.Millisecond))
	}
}

func (b *bench) operation(customer string, action Action) *Operation {
	b.t.Helper()
	o, err := scanOperation(b.DB.Reader(context.Background()).QueryRow(`
		SELECT `+operationColumns+` FROM partner_operations WHERE customer_id = $1 AND action = $2 ORDER BY operation_seq DESC LIMIT 1`, customer, string(action)))
	if err != nil {
		b.t.Fatalf("%s of %s: %v", action, customer, err)
	}
	return o
}

func (b *bench) want(customer string, action Action, want Status) *Operation {
	b.t.Helper()
	o := b.operation(customer, action)
	if o.Status != want {
		b.t.Errorf("%s is %s (%s: %s), want %s", action, o.Status, deref(o.ErrorCode), deref(o.ErrorMessage), want)
	}
	return o
}

func (b *bench) wantStatus(customer string, want CustomerStatus) {
	b.t.Helper()
	got, err := customerStatus(b.DB.Reader(context.Background()), customer)
	if err != nil || got != want {
		b.t.Errorf("the customer is %s (%v), want %s", got, err, want)
	}
}

// once fails the test unless every key went over the wire in one form, one at a
// time.
func (b *bench) once() {
	b.t.Helper()
	b.partner.mu.Lock()
	defer b.partner.mu.Unlock()
	forms := map[string]string{}
	for _, s := range b.partner.sent {
		form := s.method + s.path + s.body
		if before, ok := forms[s.key]; ok && before != form {
			b.t.Errorf("%s was sent in two forms", s.key)
		}
		forms[s.key] = form
	}
	if b.partner.most > 1 {
		b.t.Errorf("%d requests at a time under one key", b.partner.most)
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (b *bench) exec(query string, args ...any) {
	b.t.Helper()
	if err := b.DB.Write(context.Background(), func(tx *store.Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) strings(query string, args ...any) []string {
	b.t.Helper()
	rows, err := b.DB.Reader(context.Background()).Query(query, args...)
	if err != nil {
		b.t.Fatal(err)
	}
	all, err := store.Collect(rows, func(r *sql.Rows) (s string, err error) { return s, r.Scan(&s) })
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

// failFirst answers the first so many mutations with a 502 of a proxy's.
func failFirst(count int) func(int, http.ResponseWriter, *http.Request) bool {
	return func(n int, w http.ResponseWriter, _ *http.Request) bool {
		if n > count {
			return false
		}
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(502)
		_, _ = io.WriteString(w, "<html>Bad Gateway</html>")
		return true
	}
}

// on applies a fault to the nth mutation alone.
func on(nth int, fault func(w http.ResponseWriter) bool) func(int, http.ResponseWriter, *http.Request) bool {
	return func(n int, w http.ResponseWriter, _ *http.Request) bool { return n == nth && fault(w) }
}

func (b *bench) stepOnce() {
	b.t.Helper()
	if _, err := b.engine.Step(context.Background(), b.DB.BootID+"/1"); err != nil {
		b.t.Fatal(err)
	}
}

// dueNow has everything that is open be due.
func (b *bench) dueNow() {
	b.t.Helper()
	b.exec(`UPDATE partner_operations SET next_attempt_at_ms = 0 WHERE finished_at_ms IS NULL`)
}
