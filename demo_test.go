package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"jpintel/store/storetest"
)

// TestDemo runs the demo as whoever has just got the program would.
func TestDemo(t *testing.T) {
	p, tmp := demoStart(t)
	p.want(0)
	out := p.out.String()
	account := regexp.MustCompile(`(?m)^ +(healthy|flaky) +(\d+) +(\d+) +(\d+) +(\d+) +0 0$`).FindAllStringSubmatch(out, -1)
	if len(account) != 2 || !strings.Contains(out, "It balances") {
		t.Fatalf("no balanced account of two receivers:\n%s", out)
	}
	for _, line := range account {
		if line[2] != line[3] || line[2] == "0" {
			t.Errorf("%s got %s of %s", line[1], line[3], line[2])
		}
	}
	for _, want := range []string{
		"list-2026-11-02.json: 50 read, 50 created, 0 updated, 0 unchanged",
		"list-2026-11-03.json: 53 read, 6 created, 6 updated, 41 unchanged",
		"detail-2026-11-04.json: 24 read, 4 created, 20 updated, 0 unchanged",
		"killed after", "attempt 3 at", "answered 503",
		"create_group      send      unknown    no answer", "create_group      replay    succeeded  201, the answer that was lost",
		"At the partner API: 1 group, 1 key, a limit of 100.00 USD.", "<- customer.provisioned attempt 1",
		"At the partner API: 1 top-up of 25.00 USD. The customer's balance is 25.00 USD.", "<- credit.adjustment_posted attempt 1",
		"cust:cus_demo:credit  USD       25.00",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the demo does not say %q:\n%s", want, out)
		}
	}
	demoLeft(t, p, tmp)
}

// TestDemoOfOwnPrograms gives the demo the operator's programs.
func TestDemoOfOwnPrograms(t *testing.T) {
	if testing.Short() || procRace {
		t.Skip("one demo is enough where there is little time")
	}
	own := procWrite(t, t.TempDir(), "own.ndjson", []byte(
		`{"unified_id":"UNI-own-1","primary_name":"自前の補助金","prefectures":["東京都"]}`+"\n"+
			`{"unified_id":"UNI-own-2","primary_name":"もう一つ","prefectures":["沖縄県"]}`+"\n"))
	p, tmp := demoStart(t, "--programs", own)
	p.want(0)
	// The key, the sign-up and the payment are events beside the programs. One of the two, and a quarter of the burst, is in the flaky receiver's filter.
	for _, want := range []string{
		`own\.ndjson: 2 read, 2 created, 0 updated, 0 unchanged`, `healthy +2005 +2005 .* 0 0\n`, `flaky +501 +501 .* 0 0\n`, `It balances`,
	} {
		if !regexp.MustCompile(want).MatchString(p.out.String()) {
			t.Errorf("the demo does not say %s:\n%s", want, p.out)
		}
	}
	demoLeft(t, p, tmp)
}

// TestDemoGivenUp stops the demo in the middle, with a signal and by a file
// that is not there: it fails, and leaves no process.
func TestDemoGivenUp(t *testing.T) {
	p, _ := demoStart(t)
	procUntil(t, "the demo has a server", func() bool { return p.out.contains("server: process") })
	p.signal(syscall.SIGTERM)
	p.want(1)
	demoNobody(t, p)

	p, _ = demoStart(t, "--programs", "not-there.json")
	p.want(1)
	if !p.err.contains("not-there.json") {
		t.Errorf("the demo does not say which file is missing:\n%s", p.err)
	}
	demoNobody(t, p)
}

// demoStart starts the demo in a process group and with a temporary folder of
// its own.
func demoStart(t *testing.T, args ...string) (p *proc, tmp string) {
	t.Helper()
	tmp = t.TempDir()
	cmd := procCommand(append([]string{"demo"}, args...), "TMPDIR="+tmp)
	cmd.Dir = tmp
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p = procStart(t, cmd, nil)
	t.Cleanup(func() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }) // usually there is nobody
	return p, tmp
}

func demoLeft(t *testing.T, p *proc, tmp string) {
	t.Helper()
	demoNobody(t, p)
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("the demo has left %v (%v)", left, err)
	}
}

// demoNobody checks that the process's group is empty: its children have ended
// and were waited for.
func demoNobody(t *testing.T, p *proc) {
	t.Helper()
	if err := syscall.Kill(-p.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the demo has left a process (%v)", err)
	}
}

// procHeld is a server with one subscription to a receiver that holds every
// request until it is let go.
type procHeld struct {
	*procServer
	db       string
	receiver *procReceiver
	sub      procSubscription
	letGo    context.CancelFunc
}

// procHold starts a server and fills what it may have in flight.
func procHold(t *testing.T) *procHeld {
	t.Helper()
	held, letGo := context.WithCancel(context.Background())
	s := &procHeld{db: t.TempDir() + "/jpintel.db", letGo: letGo}
	s.receiver = procReceive(t, func(procRequest) int {
		<-held.Done()
		return http.StatusAccepted
	})
	t.Cleanup(letGo) // before the receiver closes, which waits for its answers
	s.procServer = procServe(t, s.db, "JPINTEL_WEBHOOK_ENDPOINT_CONCURRENCY=3")
	s.customer("cus_serve")
	s.sub = s.subscribe(s.receiver.url+"/held", nil)
	for i := range 8 {
		s.put(fmt.Sprintf("UNI-serve-%d", i), map[string]any{"primary_name": fmt.Sprintf("補助金 %d", i)})
	}
	return s
}

// written reads what the stopped server has left in the file: how many
// deliveries in each state, and how many attempts.
func (s *procHeld) written(t *testing.T) (byStatus map[string]int, attempts int) {
	t.Helper()
	byStatus = map[string]int{}
	t.Run("file", func(t *testing.T) { // its end closes the file
		db := storetest.Open(t, s.db)
		crashRows(t, db, `SELECT status, COUNT(*), SUM(attempt_count) FROM webhook_deliveries GROUP BY status`, func(scan func(...any) error) error {
			var status string
			var n, made int
			err := scan(&status, &n, &made)
			byStatus[status] = n
			attempts += made
			return err
		})
	})
	return byStatus, attempts
}

// TestStopDrains stops a server whose requests are under way: it waits for
// their answers, writes them down, takes nothing new, and ends well.
func TestStopDrains(t *testing.T) {
	s := procHold(t)
	procUntil(t, "a request is under way", func() bool { return len(s.receiver.got()) > 0 })
	s.signal(syscall.SIGTERM)
	procUntil(t, "the server stops", func() bool { return s.out.contains(`"msg":"stopping"`) })
	// Whoever calls now is turned away; what was sent is waited for.
	procUntil(t, "nobody listens", func() bool {
		resp, err := http.Get(s.client.base + "/healthz")
		if err == nil {
			resp.Body.Close()
		}
		return err != nil
	})
	select {
	case <-s.exited:
		t.Fatal("the server did not wait for the answers")
	default:
	}
	s.letGo()
	s.want(0)
	if n := strings.Count(s.out.String(), `"msg":"listening"`); n != 1 {
		t.Errorf("%d lines say listening, want 1", n)
	}
	byStatus, attempts := s.written(t)
	if sent := len(s.receiver.got()); byStatus["success"] != sent || attempts != sent || sent > 3 {
		t.Errorf("%d requests, %d attempts, deliveries %v: what was sent is written down, what was not is pending", sent, attempts, byStatus)
	}

	// The next start takes up the rest, under the same ids.
	next := procServeAs(t, s.client, s.db)
	procUntil(t, "the rest has arrived", func() bool { return len(s.receiver.got()) == 8 })
	next.settled(s.sub)
	next.stop()
}

// TestSecondSignal ends a server that still waits for answers: at once, and as
// a crash would.
func TestSecondSignal(t *testing.T) {
	s := procHold(t)
	procUntil(t, "a request is under way", func() bool { return len(s.receiver.got()) > 0 })
	s.signal(syscall.SIGTERM)
	procUntil(t, "the server stops", func() bool { return s.out.contains(`"msg":"stopping"`) })
	procUntil(t, "it has ended", func() bool { // a moment after the first signal it listens to the next
		s.signal(syscall.SIGTERM)
		select {
		case <-s.exited:
			return true
		default:
			return false
		}
	})
	if s.out.contains(`"error_category":"timeout"`) {
		t.Skip("this machine is so slow that the receiver's time was up before the second signal came")
	}
	if s.killedBy() != syscall.SIGTERM {
		t.Errorf("the server ended by itself: %v", s.cmd.ProcessState)
	}
	if byStatus, attempts := s.written(t); attempts != 0 || byStatus["success"] != 0 {
		t.Errorf("%d attempts, deliveries %v: nothing was answered", attempts, byStatus)
	}
}

// TestListen delivers to the receiver that a customer tries it with.
func TestListen(t *testing.T) {
	front := procFrontFor(t)
	server := procServe(t, t.TempDir()+"/jpintel.db", "JPINTEL_WEBHOOK_ENDPOINT_CONCURRENCY=1")
	server.customer("cus_listen")
	sub := server.subscribe(front.url, nil)

	// With a wrong secret nothing is verified: 401, and it is tried again.
	wrong := front.listen(t, "whsec_"+strings.Repeat("0", 64))
	server.put("UNI-listen", map[string]any{"primary_name": "聞く補助金"})
	refused := regexp.MustCompile(`<- program\.created \[evt_\w+\] attempt (\d+)  NOT VERIFIED: X-Jpintel-Signature: no signature matches  -> 401\n`)
	procUntil(t, "it is tried again", func() bool { return len(refused.FindAllString(wrong.out.String(), -1)) >= 2 })
	if m := refused.FindAllStringSubmatch(wrong.out.String(), 2); m[0][1] != "1" || m[1][1] != "2" {
		t.Errorf("attempts %s and %s, want 1 and 2", m[0][1], m[1][1])
	}

	// With the right one it is accepted, by the next attempt.
	right := front.listen(t, sub.Secret)
	procUntil(t, "it is accepted", func() bool { return right.out.contains("signature ok  -> 204\n") })
	if !right.out.contains(`"primary_name":"聞く補助金"`) {
		t.Errorf("the body is not shown:\n%s", right.out)
	}
	server.settled(sub)

	asJSON := front.listen(t, sub.Secret, "--json", "--status", "202")
	server.put("UNI-listen", map[string]any{"primary_name": "新しい名前"})
	procUntil(t, "the update arrives", func() bool { return asJSON.out.contains("\n") })
	server.settled(sub)
	var got map[string]any
	asJSON.json(&got)
	for name, want := range map[string]any{
		"event_type": "program.updated", "subscription_id": sub.ID, "attempt": 1.0, "verified": true, "answered": 202.0,
	} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
	for _, name := range []string{"at", "event_id", "delivery_id", "body"} {
		if text, _ := got[name].(string); text == "" {
			t.Errorf("%s is missing in %s", name, asJSON.out)
		}
	}
	var body struct {
		Data struct {
			ChangedFields []string `json:"changed_fields"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(got["body"].(string)), &body); err != nil || len(body.Data.ChangedFields) != 1 {
		t.Errorf("the body is not the event: %v (%v)", got["body"], err)
	}

	// Without a secret nothing is verified, and nothing refused.
	unsigned := front.listen(t, "")
	server.put("UNI-listen", map[string]any{"primary_name": "もっと新しい名前"})
	procUntil(t, "the next update arrives", func() bool { return unsigned.out.contains("NOT VERIFIED: no secret given (--secret)  -> 204\n") })
	server.settled(sub)
	for _, l := range []*proc{wrong, right, asJSON, unsigned} {
		l.signal(syscall.SIGTERM)
		l.want(0)
	}
	server.stop()
}

// procFront is the address that a subscription knows; behind it stands one
// listener after the other, on ports that nobody has to choose.
type procFront struct {
	url    string
	behind atomic.Pointer[url.URL]
}

func procFrontFor(t *testing.T) *procFront {
	f := &procFront{}
	f.url = procHandle(t, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(f.behind.Load()) }}) + "/hook"
	return f
}

// listen starts a listener and puts it behind the front.
func (f *procFront) listen(t *testing.T, secret string, args ...string) *proc {
	t.Helper()
	cmd := procCommand(append([]string{"listen", "--addr", "127.0.0.1:0"}, args...), "JPINTEL_LISTEN_SECRET="+secret)
	p := procStart(t, cmd, nil)
	says := regexp.MustCompile(`(?m)^Listening on (http://\S+)$`)
	procUntil(t, "the listener listens", func() bool { return says.MatchString(p.err.String()) })
	at, err := url.Parse(says.FindStringSubmatch(p.err.String())[1])
	if err != nil {
		t.Fatal(err)
	}
	f.behind.Store(at)
	return p
}
