package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

// The product, as the model's test runs it: a file, a service, a worker, and
// receivers in place of the network.

// modelAnswer is what a receiver does, and what that means.
type modelAnswer struct {
	name    string
	means   meaning
	status  int
	takes   time.Duration
	hint    time.Duration // Retry-After, where it is heeded
	header  string        // Retry-After as it is sent
	err     error
	offWire bool // no connection while it takes
	blocked bool // the guard refuses the address
}

var modelAnswers = []modelAnswer{
	{name: "200", means: accepted, status: 200},
	{name: "204 after 2 s", means: accepted, status: 204, takes: 2 * time.Second},
	{name: "500", means: unavailable, status: 500},
	{name: "404", means: refusal, status: 404},
	{name: "410", means: gone, status: 410},
	{name: "301", means: refusal, status: 301},
	{name: "400", means: refusal, status: 400},
	{name: "408", means: unavailable, status: 408},
	{name: "425", means: unavailable, status: 425},
	{name: "429, Retry-After 120", means: unavailable, status: 429, header: "120", hint: 2 * time.Minute},
	{name: "429, Retry-After 200000", means: unavailable, status: 429, header: "200000", hint: 200000 * time.Second},
	{name: "503, Retry-After 7200", means: unavailable, status: 503, header: "7200", hint: 2 * time.Hour},
	{name: "503, Retry-After 5", means: unavailable, status: 503, header: "5", hint: 5 * time.Second},
	{name: "404, Retry-After 7200", means: refusal, status: 404, header: "7200"},
	{name: "500 after 3 s", means: unavailable, status: 500, takes: 3 * time.Second},
	{name: "404 after 4 s", means: refusal, status: 404, takes: 4 * time.Second},
	{name: "410 after 2 s", means: gone, status: 410, takes: 2 * time.Second},
	{name: "nothing for 7 s", means: unavailable, takes: 7 * time.Second},
	{name: "no connection for 3 s", means: unavailable, takes: 3 * time.Second, offWire: true, err: context.DeadlineExceeded},
	{name: "connection refused", means: unavailable, err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}},
	{name: "no handshake", means: unavailable, err: &handshakeError{errors.New("bad certificate")}},
	{name: "reset", means: unavailable, err: io.ErrUnexpectedEOF},
	{name: "no such name", means: unresolved, err: &net.DNSError{IsNotFound: true}},
	{name: "no such name after 1 s", means: unresolved, err: &net.DNSError{IsNotFound: true}, takes: time.Second, offWire: true},
	{name: "a refused address", means: refusal, err: &Refusal{Reason: "private"}, blocked: true},
	{name: "no free descriptor", means: ourFault, err: syscall.EMFILE},
}

// seen is one request as a receiver has it.
type seen struct {
	at           time.Time
	url          string
	subscription string
	event        string
	attempt      int
	body         string
	header       http.Header
	answer       modelAnswer
	notice       string // the subscription that it says is disabled
	reason       string
}

// modelWire is the network.
type modelWire struct {
	mu      sync.Mutex
	answers map[string]modelAnswer // by URL
	log     []seen
	dead    chan struct{} // closed when the process has crashed
}

func (w *modelWire) RoundTrip(req *http.Request) (*http.Response, error) {
	a := w.note(req)
	if !a.offWire && !a.blocked {
		httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{Conn: farEnd{}})
	}
	takes := a.takes
	if a.status == 0 && a.err == nil {
		takes = silent // the sender gives up
	}
	if takes > 0 {
		timer := time.NewTimer(takes)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-w.dead:
			return nil, errors.New("the process is gone")
		case <-req.Context().Done():
			return nil, context.Cause(req.Context())
		}
	}
	if a.err != nil {
		return nil, a.err
	}
	if a.header != "" {
		return respond(a.status, "Retry-After", a.header), nil
	}
	return respond(a.status), nil
}

func (w *modelWire) note(req *http.Request) modelAnswer {
	body, _ := io.ReadAll(req.Body)
	attempt, _ := strconv.Atoi(req.Header.Get("X-Jpintel-Attempt"))
	r := seen{at: time.Now(), url: req.URL.String(), event: req.Header.Get("Webhook-Id"), attempt: attempt, body: string(body), header: req.Header}
	envelope, data, _ := strings.Cut(r.body, `,"data":`)
	r.subscription = member(envelope, "subscription_id")
	if req.Header.Get("X-Jpintel-Event") == "webhook.subscription_disabled" {
		r.notice, r.reason = member(data, "subscription_id"), member(data, "disabled_reason")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r.answer = w.answers[r.url]
	w.log = append(w.log, r)
	return r.answer
}

// member finds the text of a member in a piece of JSON.
func member(text, name string) string {
	_, rest, _ := strings.Cut(text, `"`+name+`":"`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// take returns what came since it was last asked.
func (w *modelWire) take() []seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	log := w.log
	w.log = nil
	return log
}

// farEnd is a connection that only has an address.
type farEnd struct{ net.Conn }

func (farEnd) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(93, 184, 215, 14), Port: 443} }
func (farEnd) Close() error         { return nil }

// modelShape is what differs between the two tests.
type modelShape struct {
	concurrency, perLane int
	random               func() float64
}

// world is one running process.
type world struct {
	db      *store.DB
	service *Service
	worker  *Worker
	wire    *modelWire
	away    *Outbox // another process's: the worker is not woken
	stop    func() error
}

// modelKeys are made once: the salt is stretched.
var modelKeys = sync.OnceValue(func() *store.Keyring {
	keys, err := store.ParseKeyring(storetest.MasterKeys, storetest.Salt)
	if err != nil {
		panic(err)
	}
	return keys
})

func openModel(path string) *store.DB {
	db, err := store.Open(context.Background(), path, store.Options{
		Server: true, Keys: modelKeys(), Location: tokyo, Fatal: func(err error) { panic(err) },
	})
	if err != nil {
		panic(err)
	}
	return db
}

// newWorld starts a process on a file.
func newWorld(path string, shape modelShape, answers map[string]modelAnswer) *world {
	db := openModel(path)
	w := &world{db: db, service: serviceOn(db), away: NewOutbox(), wire: &modelWire{answers: answers, dead: make(chan struct{})}}
	w.service.Cap, w.service.RotationGrace = NewDailyCap(db, modelCap), Duration(modelGrace)
	sender := NewSender(w.service.Guard, "Jpintel", "1")
	sender.transport = w.wire
	w.worker = NewWorker(db, w.service.Outbox, sender, slog.New(slog.DiscardHandler), WorkerOptions{
		Schedule: modelSchedule, Concurrency: shape.concurrency, EndpointConcurrency: shape.perLane, Cap: w.service.Cap, DeadLetterLimit: modelDeadLetters,
		Tick: modelTick, Drain: modelDrain, Retention: modelRetention, EventRetention: modelEventRetention, Random: shape.random,
	})
	w.service.Changed = w.worker.Forget
	control, err := store.ReadControl(db.Reader(context.Background()))
	if err != nil {
		panic(err)
	}
	w.worker.SetKillSwitch(control.KillSwitch)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.worker.Run(ctx) }()
	w.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	return w
}

// close ends the process in good order.
func (w *world) close() {
	if err := errors.Join(w.stop(), w.db.Close()); err != nil {
		panic(err)
	}
}

// crash leaves the file as a killed process does, under another name: what is
// committed is there, nothing else is. What the process does from now on is
// without effect.
func (w *world) crash(path string) {
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(w.db.Path() + suffix)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			panic(err)
		}
		if err == nil {
			if err := os.WriteFile(path+suffix, content, 0o600); err != nil {
				panic(err)
			}
		}
	}
	close(w.wire.dead)
	w.close()
}

// modelDir is a directory for one sequence's files, in memory where there is
// one: these tests break no power.
func modelDir() string {
	in := "/dev/shm"
	if info, err := os.Stat(in); err != nil || !info.IsDir() {
		in = ""
	}
	dir, err := os.MkdirTemp(in, "jpintel-model")
	if err != nil {
		panic(err)
	}
	return dir
}

// modelTemplate is a file with two paying customers.
var modelTemplate = sync.OnceValue(func() []byte {
	dir := modelDir()
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "template.db")
	db := openModel(path)
	err := db.Write(context.Background(), func(tx *store.Tx) error {
		for _, id := range modelCustomers {
			if _, _, err := store.CreateCustomer(tx, store.Customer{CustomerID: id, Tier: store.TierPaid}); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		panic(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	return content
})

var modelCustomers = []string{"cus_a", "cus_b"}

// checkFile reads the file's invariants, and says what is wrong.
func checkFile(db *store.DB) string {
	c := collector{}
	storetest.Check(&c, db)
	return strings.Join(c.problems, "; ")
}

// collector is a test that only notes what it is told.
type collector struct {
	testing.TB
	problems []string
}

func (c *collector) Helper() {}

func (c *collector) Errorf(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}
