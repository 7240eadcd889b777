package billing

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/billing/billingtest"
	"jpintel/billing/modelgate"
	"jpintel/billing/modelgatetest"
	"jpintel/store"
	"jpintel/store/storetest"
	"jpintel/webhook"
)

// scene is a service and an engine on one file, and the upstream's stand-in
// behind a real socket. Its time is the bubble's, which the upstream follows: it
// is told the time whenever it is called. Nothing but the stand-in itself is
// outside of the bubble.
type scene struct {
	*Service
	t       *testing.T
	engine  *Engine
	log     *strings.Builder
	up      *modelgatetest.Upstream
	outside func(func() error) // runs what makes channels that the upstream will use
	// strangers are the Idempotency-Keys of what others have done.
	strangers map[string]bool
	strange   map[string][]string // what others have moved of a group's credit
	clock     *atomic.Int64
	ahead     time.Duration // of the upstream's clock before ours
	answering func(*scene)  // runs before an answer's first bytes are read; nil: nothing
}

// scenario plays a scene, and asserts afterwards what has to hold after each.
func scenario(t *testing.T, options modelgatetest.Options, play func(t *testing.T, s *scene)) {
	t.Helper()
	clock := &atomic.Int64{}
	clock.Store(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()) // when bubbles begin
	options.Now = func() time.Time { return time.Unix(0, clock.Load()) }
	up := modelgatetest.New(options).Start(t)
	outside := outsider(t)
	file := newFile(t)
	synctest.Test(t, func(t *testing.T) {
		s := &scene{t: t, up: up, outside: outside, strangers: map[string]bool{}, strange: map[string][]string{}, clock: clock, log: &strings.Builder{}}
		s.open(storetest.Open(t, file))
		play(t, s)
		s.holds()
		storetest.Check(t, s.DB)
	})
}

// emptyFile is a file with nothing in it: to make one takes longer than many a
// scene.
var emptyFile = sync.OnceValues(func() (text []byte, err error) {
	dir, err := os.MkdirTemp("", "jpintel-empty-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	keys, err := store.ParseKeyring(storetest.MasterKeys, storetest.Salt)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "jpintel.db")
	db, err := store.Open(context.Background(), path, store.Options{Server: true, Keys: keys})
	if err != nil {
		return nil, err
	}
	if err := db.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// newFile is a copy of it.
func newFile(t testing.TB) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "jpintel.db")
	text, err := emptyFile()
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// outsider returns what runs functions outside of every bubble.
func outsider(t *testing.T) func(func() error) {
	calls, results := make(chan func() error), make(chan error)
	go func() {
		for call := range calls {
			results <- call()
		}
	}()
	t.Cleanup(func() { close(calls) })
	return func(call func() error) {
		t.Helper()
		calls <- call
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

// open puts a service and an engine on a file.
func (s *scene) open(db *store.DB) {
	s.t.Helper()
	s.Service = &Service{DB: db, Outbox: webhook.NewOutbox(), Models: []string{"m1"}}
	log := slog.New(slog.NewTextHandler(lockedWriter{s.log, &sync.Mutex{}}, nil))
	s.engine = &Engine{DB: db, Client: s.client(modelgatetest.DevToken), Rules: s.Service, Log: log, Jitter: func(most int64) int64 { return most }}
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

// client is one that tells the upstream the time.
func (s *scene) client(token string) *modelgate.Client {
	s.t.Helper()
	client, err := modelgate.New(modelgate.Options{BaseURL: s.up.BaseURL(), APIKey: token, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		s.clock.Store(time.Now().Add(s.ahead).UnixNano())
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &watchedConn{Conn: conn, scene: s}, err
	}})
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

// watchedConn has something happen between a request and its answer.
type watchedConn struct {
	net.Conn
	scene *scene
	read  bool
}

// Read implements net.Conn.
func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.read && c.scene.answering != nil {
		c.scene.answering(c.scene)
	}
	c.read = true
	return n, err
}

// rules adds faults.
func (s *scene) rules(rules ...modelgatetest.Rule) {
	s.t.Helper()
	s.outside(func() error { return s.up.AddFaults(rules...) })
}

func (s *scene) configure(change func(*modelgatetest.Options)) {
	s.t.Helper()
	s.outside(func() error { return s.up.Configure(change) })
}

// fault hits the calls of a method and a path: times of them, 0: all.
func fault(method, path string, at modelgatetest.At, do string, times int) modelgatetest.Rule {
	return modelgatetest.Rule{Match: modelgatetest.Match{Method: method, PathRE: path}, At: at, Do: do, Times: times}
}

// The calls that the faults hit.
const (
	groupsPath = `^/groups$`
	keysPath   = `/keys$`
	limitsPath = `/limits$`
)

// stranger changes something at the upstream that is not ours to change.
func (s *scene) stranger(method, path, key, body string) {
	s.t.Helper()
	s.strangers[key] = true
	s.clock.Store(time.Now().Add(s.ahead).UnixNano())
	s.outside(func() error {
		req, err := http.NewRequest(method, s.up.BaseURL()+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+modelgatetest.DevToken)
		req.Header.Set("Idempotency-Key", key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode > 299 {
			return fmt.Errorf("a stranger's %s %s: %d %s (%w)", method, path, resp.StatusCode, text, err)
		}
		return nil
	})
}

// mutations is how many requests that change something have come.
func (s *scene) mutations() (n int) {
	for _, traffic := range s.up.State().Idempotency {
		n += traffic.WireRequests
	}
	return n
}

// group is a customer's group there.
func (s *scene) group(customer string) string {
	s.t.Helper()
	return deref(s.operation(customer, CreateGroup).TargetID)
}

// wire is what was seen under an operation's key.
func (s *scene) wire(o *Operation) modelgatetest.Traffic { return s.up.State().Idempotency[*o.Key] }

// made fails the test unless the customer has one live group and one active key
// there, and the limit given.
func (s *scene) made(customer, limit string) {
	s.t.Helper()
	state := s.up.State()
	live := state.LiveGroups()[customer]
	if len(live) != 1 {
		s.t.Fatalf("groups of %s: %q", customer, live)
	}
	if keys := state.ActiveKeys()[modelgatetest.KeyUse{GroupID: live[0], Purpose: defaultPurpose}]; len(keys) != 1 {
		s.t.Errorf("keys of %s: %q", customer, keys)
	}
	if got := state.Limits[live[0]].SpendLimit; got != limit {
		s.t.Errorf("the limit of %s is %s, want %s", customer, got, limit)
	}
}

// ready works until the customer is, and looks at what was made.
func (s *scene) ready(customer, limit string) {
	s.t.Helper()
	s.work(48 * time.Hour)
	s.wantStatus(customer, Ready)
	s.made(customer, limit)
}

// holds asserts the invariants, from what the upstream knows and from the file.
func (s *scene) holds() {
	s.t.Helper()
	billingtest.World{DB: s.DB, Upstream: s.up, Strangers: s.strangers, OtherClock: s.ahead != 0, Texts: map[string]string{"the log": s.log.String()}}.Check(s.t)
	state := s.up.State()
	s.creditHolds(state)
	s.wasTold()
	if s.ahead == 0 { // what is found is told by its time
		s.swept(state)
	}
}

// swept is the file's half of I10: the audit sweep finds, from what is on the
// wire, that each change is the operation's that has made it, or a stranger's.
// What an open operation may have done is not decided.
func (s *scene) swept(state modelgatetest.State) {
	s.t.Helper()
	s.outside(func() error { s.up.ClearFaults(); return nil })
	time.Sleep(2 * time.Minute) // audit events come late
	if err := s.sweeper().Sweep(context.Background(), SweepAudit); err != nil {
		s.t.Errorf("I10: the audit sweep: %v", err)
		return
	}
	for _, e := range state.Audit {
		want := "not ours"
		for _, key := range s.strings(`
			SELECT idempotency_key FROM partner_operations WHERE idempotency_key = $1
			OR target_public_id = $2 AND action = $3`, e.IdempotencyKey, e.Target.ID, makers[e.Action]) {
			want = "ours " + key // it has made that object, or has found it made
		}
		got := s.strings(`
			SELECT CASE a.classified WHEN 'ours' THEN 'ours ' || o.idempotency_key WHEN 'undecided' THEN 'undecided' ELSE 'not ours' END
			FROM upstream_audit_seen a LEFT JOIN partner_operations o USING (operation_id) WHERE a.audit_id = $1`, e.ID)
		open := s.strings(`SELECT operation_id FROM partner_operations WHERE finished_at_ms IS NULL AND send_state <> 'not_sent'`)
		if len(got) != 1 || got[0] != want && !(got[0] == "undecided" && len(open) > 0) {
			s.t.Errorf("I10: %s %s is %q, want %s", e.Action, e.Target.ID, got, want)
		}
	}
}

// makers are the actions that make what these changes make.
var makers = map[string]string{"group.create": "create_group", "key.create": "create_key", "credit.top_up": "top_up_credit", "credit.adjust": "debit_credit"}

func (s *scene) attempts(o *Operation) []Attempt {
	s.t.Helper()
	all, err := readAttempts(s.DB.Reader(context.Background()), o.OperationID)
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// resolve is the operator's word.
func (s *scene) resolve(o *Operation, outcome string) {
	s.t.Helper()
	if _, err := s.Resolve(context.Background(), ResolveRequest{OperationID: o.OperationID, Who: "op", Note: "seen", Outcome: outcome}); err != nil {
		s.t.Fatal(err)
	}
}

// limit has a customer's limit changed.
func (s *scene) limit(customer, amount string) (operationID string) {
	s.t.Helper()
	calls++
	a, err := s.SetLimit(context.Background(), LimitRequest{Key: fmt.Sprint("call-", calls), CustomerID: customer, SpendLimit: amount, ApprovedBy: "aki"})
	if err != nil {
		s.t.Fatal(err)
	}
	return a.OperationID
}

var calls int // for Idempotency-Keys that differ

// evidence is what was looked at, in order.
func (s *scene) evidence(o *Operation) []string {
	s.t.Helper()
	return s.strings(`SELECT surface || ' ' || verdict || ' ' || match_ids FROM reconcile_evidence WHERE operation_id = $1 ORDER BY evidence_seq`, o.OperationID)
}

func (s *scene) probe() {
	s.t.Helper()
	if err := s.engine.Probe(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) signUp(customer string) *Operation {
	s.t.Helper()
	o, err := s.SignUp(context.Background(), SignUp{Customer: store.Customer{CustomerID: customer}, Version: 1, SpendLimit: "100.00", Key: "click-" + customer})
	if err != nil {
		s.t.Fatal(err)
	}
	return o
}

// step takes steps until there is nothing to do now.
func (s *scene) step() (steps int) {
	s.t.Helper()
	for ; ; steps++ {
		worked, err := s.engine.Step(context.Background(), s.DB.BootID+"/1")
		if err != nil {
			s.t.Fatal(err)
		}
		if !worked {
			return steps
		}
		if steps > 500 {
			s.t.Fatal("it does not come to rest")
		}
	}
}

// work goes on until nothing is open, or so long has passed on the bubble's clock.
func (s *scene) work(longest time.Duration) {
	s.t.Helper()
	for until := time.Now().Add(longest); time.Now().Before(until); {
		s.step()
		next, err := nextDue(context.Background(), s.DB)
		if err != nil {
			s.t.Fatal(err)
		}
		if next.IsZero() {
			return
		}
		time.Sleep(max(time.Until(next), time.Millisecond))
	}
}

func (s *scene) operation(customer string, action Action) *Operation {
	s.t.Helper()
	o, err := scanOperation(s.DB.Reader(context.Background()).QueryRow(`
		SELECT `+operationColumns+` FROM partner_operations WHERE customer_id = $1 AND action = $2 ORDER BY operation_seq DESC LIMIT 1`, customer, string(action)))
	if err != nil {
		s.t.Fatalf("%s of %s: %v", action, customer, err)
	}
	return o
}

func (s *scene) want(customer string, action Action, want Status) *Operation {
	s.t.Helper()
	o := s.operation(customer, action)
	if o.Status != want {
		s.t.Errorf("%s is %s (%s: %s), want %s", action, o.Status, deref(o.ErrorCode), deref(o.ErrorMessage), want)
	}
	return o
}

func (s *scene) wantStatus(customer string, want CustomerStatus) {
	s.t.Helper()
	got, err := customerStatus(s.DB.Reader(context.Background()), customer)
	if err != nil || got != want {
		s.t.Errorf("the customer is %s (%v), want %s", got, err, want)
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (s *scene) exec(query string, args ...any) {
	s.t.Helper()
	if err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) strings(query string, args ...any) []string {
	s.t.Helper()
	rows, err := s.DB.Reader(context.Background()).Query(query, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	all, err := store.Collect(rows, func(r *sql.Rows) (s string, err error) { return s, r.Scan(&s) })
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

func (s *scene) stepOnce() {
	s.t.Helper()
	if _, err := s.engine.Step(context.Background(), s.DB.BootID+"/1"); err != nil {
		s.t.Fatal(err)
	}
}

// dueNow has everything that is open be due.
func (s *scene) dueNow() {
	s.t.Helper()
	s.exec(`UPDATE partner_operations SET next_attempt_at_ms = 0 WHERE finished_at_ms IS NULL`)
}

// stillScene is a scene in which nothing is sent and no time passes.
func stillScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, up: modelgatetest.New(modelgatetest.Options{}).Start(t), clock: &atomic.Int64{}, log: &strings.Builder{}}
	s.open(storetest.New(t))
	return s
}

// crash claims an operation for a server that dies, with or without an attempt.
func (s *scene) crash(begun bool) {
	s.t.Helper()
	if err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
		o, err := claim(tx, "boot_before/1", "")
		if err == nil && o != nil && begun {
			_, err = o.begin(tx)
		}
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
}
