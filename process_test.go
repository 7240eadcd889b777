package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"jpintel/store/storetest"
)

// procPatience bounds each wait for something that is about to happen. Nothing
// is concluded from how long it takes.
const procPatience = 5 * time.Minute

// procRace reports that the race detector is on: everything takes ten times
// longer, in the processes too.
var procRace = func() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// procGORACE spares a process that ends the second in which the race detector
// waits for others to be found out.
const procGORACE = "GORACE=atexit_sleep_ms=0"

// procUntil waits until done reports true.
func procUntil(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(procPatience)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// proc is one process of the program. The test's end kills what is left.
type proc struct {
	t        testing.TB
	name     string
	cmd      *exec.Cmd
	out, err *procOutput
	exited   chan struct{} // closed once it is reaped
}

// procCommand prepares a process of the program. Its environment has nothing
// of this one's but what is given and what a process needs.
func procCommand(args []string, environment ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(procBin, "jpintel"), args...)
	cmd.Env = append([]string{procMain + "=1", procGORACE, "HOME=" + os.Getenv("HOME"), "PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}, environment...)
	return cmd
}

// procStart starts a prepared process and collects what it prints. seen, where
// it is not nil, gets each line of its standard output.
func procStart(t testing.TB, cmd *exec.Cmd, seen func(line []byte)) *proc {
	t.Helper()
	p := &proc{
		t: t, name: "jpintel " + strings.Join(cmd.Args[1:], " "), cmd: cmd,
		out: &procOutput{seen: seen}, err: &procOutput{}, exited: make(chan struct{}),
	}
	cmd.Stdout, cmd.Stderr = p.out, p.err
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait() // the state tells
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s (process %d), the end of its output:\n%s%s", p.name, p.cmd.Process.Pid, p.out.tail(2<<10), p.err.tail(2<<10))
		}
	})
	return p
}

// procRun runs the program to its end.
func procRun(t testing.TB, args []string, environment ...string) *proc {
	t.Helper()
	p := procStart(t, procCommand(args, environment...), nil)
	p.wait()
	return p
}

func (p *proc) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatalf("%s: %v", p.name, err)
	}
}

// kill ends the process as a crash would, and reaps it.
func (p *proc) kill() {
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// wait waits until the process has ended by itself, and returns its status:
// -1 where a signal ended it.
func (p *proc) wait() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(procPatience):
		p.signal(syscall.SIGQUIT) // for the stacks of its goroutines
		p.t.Fatalf("%s: it does not end", p.name)
	}
	return p.cmd.ProcessState.ExitCode()
}

// want fails the test unless the process ends with this status.
func (p *proc) want(status int) {
	p.t.Helper()
	if got := p.wait(); got != status {
		p.t.Fatalf("%s: exit status %d (%v), want %d\n%s", p.name, got, p.cmd.ProcessState, status, p.err.tail(4<<10))
	}
}

// killedBy is the signal that ended the process, or -1.
func (p *proc) killedBy() syscall.Signal {
	return p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()
}

// json reads the process's standard output.
func (p *proc) json(v any) {
	p.t.Helper()
	if err := json.Unmarshal([]byte(p.out.String()), v); err != nil {
		p.t.Fatalf("%s: %v in %s", p.name, err, p.out)
	}
}

// procOutput collects a process's output. Of a long one the beginning is
// dropped.
type procOutput struct {
	mu   sync.Mutex
	text []byte
	part []byte // the last line so far
	seen func(line []byte)
}

const procOutputKept = 1 << 20

// Write implements io.Writer.
func (o *procOutput) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, b...)
	if len(o.text) > 2*procOutputKept {
		o.text = append([]byte(nil), o.text[len(o.text)-procOutputKept:]...)
	}
	if o.seen == nil {
		return len(b), nil
	}
	o.part = append(o.part, b...)
	for {
		line, rest, ok := bytes.Cut(o.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		o.seen(line)
		o.part = rest
	}
}

func (o *procOutput) String() string { return o.tail(2 * procOutputKept) }

func (o *procOutput) tail(most int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text[max(0, len(o.text)-most):])
}

func (o *procOutput) contains(text string) bool { return strings.Contains(o.String(), text) }

// procToken is the admin token of test servers.
const procToken = "an admin token for tests, and for nothing else"

// procEnv is the environment of a test server on a file: local receivers are
// let in, nothing limits it, and a failed attempt is soon made again.
func procEnv(db string) []string {
	return []string{
		"JPINTEL_DB=" + db, "JPINTEL_ADDR=127.0.0.1:0", "JPINTEL_ADMIN_TOKEN=" + procToken,
		"JPINTEL_MASTER_KEY=" + storetest.MasterKeys, "JPINTEL_API_KEY_SALT=" + storetest.Salt,
		"JPINTEL_WEBHOOK_ALLOW_CIDRS=127.0.0.0/8", "JPINTEL_WEBHOOK_ALLOW_HTTP=1", "JPINTEL_WEBHOOK_RATE=0", "JPINTEL_WEBHOOK_DAILY_CAP=0", "JPINTEL_API_RATE=0",
		"JPINTEL_WEBHOOK_RETRY_SCHEDULE=100ms,100ms,100ms,1s,1s,1s,1s,1s", "JPINTEL_LOG_FORMAT=json",
	}
}

// procServer is a running server.
type procServer struct {
	*proc
	client *apiClient // its operator, and, with a key, its customer
}

// procServe starts a server and waits until it listens.
func procServe(t testing.TB, db string, environment ...string) *procServer {
	t.Helper()
	return procServeAs(t, &apiClient{token: procToken}, db, environment...)
}

// procServeAs is procServe for a server that a client knew before.
func procServeAs(t testing.TB, client *apiClient, db string, environment ...string) *procServer {
	t.Helper()
	return procServeCommand(t, client, procCommand([]string{"serve"}, append(procEnv(db), environment...)...), func(*proc) {})
}

// procServeCommand starts a prepared server. died is told of one that has ended
// at once.
func procServeCommand(t testing.TB, client *apiClient, cmd *exec.Cmd, died func(*proc)) *procServer {
	t.Helper()
	addr := make(chan string, 1)
	p := procStart(t, cmd, func(line []byte) {
		var entry struct{ Msg, Addr string }
		if json.Unmarshal(line, &entry) == nil && entry.Msg == "listening" {
			select {
			case addr <- entry.Addr:
			default: // said twice: a test looks for that
			}
		}
	})
	t.Cleanup(func() {
		if words := p.err.String(); words != "" { // its log goes to standard output: this is a panic, or a data race
			t.Errorf("%s: on standard error:\n%s", p.name, words)
		}
	})
	select {
	case at := <-addr:
		client.base = "http://" + at
	case <-p.exited:
		died(p)
		t.Fatalf("the server did not start: %v", p.cmd.ProcessState)
	case <-time.After(procPatience):
		t.Fatal("the server does not listen")
	}
	return &procServer{proc: p, client: client}
}

// stop ends the server as a deploy would.
func (s *procServer) stop() {
	s.t.Helper()
	s.signal(syscall.SIGTERM)
	s.want(0)
}

// customer adds a paid customer, whose key the client then has.
func (s *procServer) customer(id string) {
	s.t.Helper()
	s.must(s.client.admin(s.t.Context(), "POST", "/v1/admin/customers", map[string]any{"customer_id": id, "tier": "paid"}, nil))
	var key createKeyAnswer
	s.must(s.client.admin(s.t.Context(), "POST", "/v1/admin/customers/"+id+"/keys", nil, &key))
	s.client.key = key.APIKey
}

// procSubscription is what a customer knows of its subscription.
type procSubscription struct {
	ID     string `json:"subscription_id"`
	Secret string `json:"signing_secret"`
}

// subscribe subscribes the customer's URL to the changes of programs, or to
// what the members say.
func (s *procServer) subscribe(url string, members map[string]any) procSubscription {
	s.t.Helper()
	body := map[string]any{"url": url, "events": []string{"program.created", "program.updated"}}
	for name, value := range members {
		body[name] = value
	}
	var answer procSubscription
	s.must(s.client.customer(s.t.Context(), "POST", "/v1/webhooks/subscribe", body, &answer))
	return answer
}

// put stores a program.
func (s *procServer) put(id string, fields map[string]any) {
	s.t.Helper()
	s.must(s.client.admin(s.t.Context(), "PUT", "/v1/admin/programs/"+id, fields, nil))
}

// settled waits until nothing of these subscriptions is pending. What was
// committed has to be fanned out by then.
func (s *procServer) settled(subscriptions ...procSubscription) {
	s.t.Helper()
	for _, sub := range subscriptions {
		procUntil(s.t, "nothing is pending for "+sub.ID, func() bool {
			pending, err := s.client.deliveries(s.t.Context(), sub.ID, "pending", 1)
			s.must(err)
			return len(pending) == 0
		})
	}
}

func (s *procServer) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// procRequest is one request that a receiver got.
type procRequest struct {
	At     time.Time
	Path   string
	Header http.Header
	Body   []byte
}

// procReceiver is a customer's endpoint in the test's process.
type procReceiver struct {
	url    string
	answer func(procRequest) int // nil: 204

	mu       sync.Mutex
	requests []procRequest
}

// procReceive opens a receiver. answer runs once the request is noted down; it
// may block.
func procReceive(t testing.TB, answer func(procRequest) int) *procReceiver {
	t.Helper()
	r := &procReceiver{answer: answer}
	r.url = procHandle(t, r)
	return r
}

// procHandle serves a handler until the test ends, and returns its address.
func procHandle(t testing.TB, h http.Handler) string {
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections() // a server that was killed never closes its own
		server.Close()
	})
	return server.URL
}

// ServeHTTP implements http.Handler.
func (r *procReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the server was killed while it sent: it has said nothing
	}
	got := procRequest{time.Now(), req.URL.Path, req.Header.Clone(), body}
	r.mu.Lock()
	r.requests = append(r.requests, got)
	r.mu.Unlock()
	status := http.StatusNoContent
	if r.answer != nil {
		status = r.answer(got)
	}
	w.WriteHeader(status)
}

// got is every request so far.
func (r *procReceiver) got() []procRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

// procWrite writes a file of the test's folder.
func procWrite(t testing.TB, dir, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// procSum says what it counts.
func procSum(r importReport) string {
	return fmt.Sprintf("%d read, %d created, %d updated, %d unchanged, %d rejected", r.Read, r.Created, r.Updated, r.Unchanged, r.Rejected)
}
