package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
	"jpintel/webhook"
	"jpintel/webhook/mail"
)

// The server against clients that are slow, or mean no good: in a bubble whose
// clock is not the machine's, over pipes. A pipe buffers nothing, so that what
// one side does not read the other cannot write.

// pipes is a listener whose connections are pipes.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.closed) }); return nil }

func (p *pipes) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

// pipeServer is the whole server, on a file of its own.
type pipeServer struct {
	t    *testing.T
	db   *store.DB
	in   *pipes
	key  string // of cus_a, a paid customer
	log  *testLog
	http *http.Client // an honest client
	end  context.CancelFunc
	done chan error
}

// servePipes starts a server in a bubble, and stops it with the test.
func servePipes(t *testing.T) *pipeServer {
	t.Helper()
	config, err := readConfig(func(name string) string {
		return map[string]string{"JPINTEL_ADMIN_TOKEN": testAdminToken, "JPINTEL_API_RATE": "0"}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &pipeServer{t: t, db: storetest.New(t), in: &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}, log: &testLog{}, done: make(chan error, 1)}
	_, s.key = storetest.Customer(t, s.db, "cus_a", store.TierPaid)
	a, guard := &app{config: config}, config.guard()
	log := slog.New(slog.NewJSONHandler(s.log, nil))
	api := a.api(s.db, log, guard, webhook.NewSender(guard, "Jpintel", "test"), nil, mail.NewSender(s.db, log, nil, time.Hour))
	var ctx context.Context
	ctx, s.end = context.WithCancel(context.Background())
	go func() { s.done <- api.run(ctx, s.in) }()
	s.http = &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return s.dial(), nil }}}
	t.Cleanup(s.stop)
	return s
}

// stop ends the server, which has to end well, and at once where nobody calls.
func (s *pipeServer) stop() {
	if s.end == nil {
		return
	}
	s.http.CloseIdleConnections()
	s.end()
	s.end = nil
	if err := <-s.done; err != nil {
		s.t.Errorf("serve: %v", err)
	}
	if s.t.Failed() {
		s.t.Logf("the server's log:\n%s", s.log)
	}
}

func (s *pipeServer) dial() net.Conn {
	mine, theirs := net.Pipe()
	s.in.conns <- theirs
	return mine
}

// raw opens a connection and writes a text, as far as the server takes it.
func (s *pipeServer) raw(text string) net.Conn {
	conn := s.dial()
	go func() { _, _ = io.WriteString(conn, text) }()
	return conn
}

// honest makes a call as it should be made, and returns the status.
func (s *pipeServer) honest(method, path, body string) int {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, "http://pipe"+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+testAdminToken)
	req.Header.Set("X-API-Key", s.key)
	resp, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// serves checks that others are served meanwhile: reads and writes.
func (s *pipeServer) serves() {
	s.t.Helper()
	started := time.Now()
	if status := s.honest("GET", "/v1/webhooks/subscriptions", ""); status != 200 {
		s.t.Errorf("reading: %d", status)
	}
	if status := s.honest("PUT", "/v1/tracked-programs/UNI-1", ""); status != 204 {
		s.t.Errorf("writing: %d", status)
	}
	if took := time.Since(started); took != 0 {
		s.t.Errorf("others were served after %s", took)
	}
}

// count is how many rows a table has.
func (s *pipeServer) count(table string) (n int) {
	s.t.Helper()
	if err := s.db.Reader(s.t.Context()).QueryRow(`SELECT COUNT(*) FROM ` + table).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// rest reads until the server closes the connection.
func rest(t *testing.T, conn net.Conn) string {
	t.Helper()
	text, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	return string(text)
}

// post is a call of the operator that adds a customer, head first.
func post(header string) string {
	return "POST /v1/admin/customers HTTP/1.1\r\nHost: pipe\r\nAuthorization: Bearer " + testAdminToken + "\r\n" + header + "\r\n"
}

const newCustomer = `{"customer_id":"cus_b","tier":"paid","email":"b@example.jp"}`

// drip writes a text byte by byte, until the other side has had enough.
func (s *pipeServer) drip(to io.WriteCloser, text string, pause time.Duration) {
	var dripping sync.WaitGroup
	dripping.Go(func() {
		for i := range len(text) {
			if _, err := io.WriteString(to, text[i:i+1]); err != nil {
				return
			}
			time.Sleep(pause)
		}
	})
	s.t.Cleanup(func() { to.Close(); dripping.Wait() })
}

func TestDrippedHeadersAreCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servePipes(t)
		started := time.Now()
		conn := s.dial()
		s.drip(conn, post("X-Slow: "+strings.Repeat("x", 1000)), time.Second)
		time.Sleep(readHeaderTimeout / 2)
		s.serves()
		if text := rest(t, conn); text != "" && !strings.HasPrefix(text, "HTTP/1.1 400 ") || time.Since(started) != readHeaderTimeout {
			t.Errorf("closed after %s, with %q", time.Since(started), text)
		}
		s.serves()
	})
}

func TestADrippedBodyIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servePipes(t)
		started := time.Now()
		conn := s.raw(post(fmt.Sprintf("Content-Length: %d\r\n", len(newCustomer))))
		synctest.Wait()
		s.drip(conn, newCustomer, time.Second)
		time.Sleep(readTimeout / 2)
		s.serves()
		text := rest(t, conn)
		if took := time.Since(started); !strings.HasPrefix(text, "HTTP/1.1 400 ") || !strings.Contains(text, "the body ended early") || took < readTimeout || took > readTimeout+time.Second {
			t.Errorf("closed after %s, with %q", took, text)
		}
		if n := s.count("customers"); n != 1 {
			t.Errorf("%d customers", n)
		}
		s.serves()
	})
}

// An answer that nobody reads is given up. So is the handler that writes it.
func TestAnAnswerThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servePipes(t)
		var conns []net.Conn
		for range 50 {
			conns = append(conns, s.raw("GET /v1/event-types HTTP/1.1\r\nHost: pipe\r\nX-API-Key: "+s.key+"\r\n\r\n"))
		}
		time.Sleep(writeTimeout - time.Second)
		s.serves()
		time.Sleep(2 * time.Second)
		for _, conn := range conns {
			if text := rest(t, conn); text != "" {
				t.Fatalf("%d bytes are still to be had", len(text))
			}
		}
		started := time.Now()
		s.stop()
		if time.Since(started) != 0 {
			t.Errorf("stopping took %s: somebody is still waiting", time.Since(started))
		}
	})
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servePipes(t)
		started := time.Now()
		var silent, used []net.Conn
		for range 300 {
			silent = append(silent, s.dial()) // never says a word
			conn := s.raw("GET /healthz HTTP/1.1\r\nHost: pipe\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || resp.StatusCode != 200 {
				t.Fatal(resp, err)
			}
			used = append(used, conn)
		}
		s.serves()
		for _, conn := range silent {
			if text := rest(t, conn); text != "" || time.Since(started) != readHeaderTimeout {
				t.Fatalf("silent: closed after %s, with %q", time.Since(started), text)
			}
		}
		for _, conn := range used {
			_ = rest(t, conn) // the end of its answer
			if time.Since(started) != idleTimeout {
				t.Fatalf("idle: closed after %s", time.Since(started))
			}
		}
		s.serves()
	})
}

// What is no proper request is answered or closed at once, changes nothing, and
// bothers nobody else. The answers come in order.
func TestImproperRequests(t *testing.T) {
	chunked := "Transfer-Encoding: chunked\r\n"
	chunk := fmt.Sprintf("%x\r\n%s\r\n", len(newCustomer), newCustomer)
	get := "GET /healthz HTTP/1.1\r\nHost: pipe\r\n"
	for name, c := range map[string]struct {
		send     string
		statuses []int
		added    int
		stays    bool // the connection goes on
	}{
		"a megabyte of headers":      {post("X-Long: " + strings.Repeat("x", 1<<20) + "\r\n"), []int{431}, 0, false},
		"a thousand headers":         {post(strings.Repeat("X-Many: "+strings.Repeat("x", 100)+"\r\n", 1000)), []int{431}, 0, false},
		"an endless request line":    {"GET /" + strings.Repeat("x", 1<<20) + " HTTP/1.1\r\n\r\n", []int{431}, 0, false},
		"a body that is too long":    {post("Content-Length: 1000000\r\n") + strings.Repeat(" ", 1_000_000), []int{413}, 0, false},
		"a long body announced":      {post("Content-Length: 1000000000000\r\n"), []int{413}, 0, false},
		"a long body unannounced":    {post(chunked) + strings.Repeat("1000\r\n"+strings.Repeat(" ", 0x1000)+"\r\n", 300) + "0\r\n\r\n", []int{413}, 0, false},
		"chunked":                    {post(chunked) + chunk + "0\r\n\r\n", []int{201}, 1, true},
		"garbage for a trailer":      {post(chunked) + chunk + "0\r\nGARBAGE\r\n\r\n", []int{400}, 0, false},
		"garbage after the chunks":   {post(chunked) + chunk + "0\r\n\r\n\x00GARBAGE\r\n\r\n", []int{201, 400}, 1, false},
		"garbage for a chunk":        {post(chunked) + chunk + "zz\r\n" + newCustomer + "\r\n0\r\n\r\n", []int{400}, 0, false},
		"a negative chunk":           {post(chunked) + "-1\r\n\r\n", []int{400}, 0, false},
		"a chunk that is too long":   {post(chunked) + "ffffffffffffffffff\r\n" + newCustomer, []int{400}, 0, false},
		"something after the JSON":   {post(fmt.Sprintf("Content-Length: %d\r\n", len(newCustomer)+1)) + newCustomer + "x", []int{400}, 0, true},
		"two lengths":                {post("Content-Length: 60\r\nContent-Length: 61\r\n") + newCustomer, []int{400}, 0, false},
		"a negative length":          {post("Content-Length: -1\r\n"), []int{400}, 0, false},
		"an unknown encoding":        {post("Transfer-Encoding: gzip, chunked\r\n"), []int{501}, 0, false},
		"pipelined":                  {get + "\r\n" + post(chunked) + chunk + "0\r\n\r\n" + get + "\r\n", []int{200, 201, 200}, 1, true},
		"pipelined after a bad one":  {post("Content-Length: 0\r\n") + get + "\r\n", []int{400, 200}, 0, true},
		"HTTP/0.9":                   {"GET /healthz\r\n\r\n", []int{400}, 0, false},
		"HTTP/3.0":                   {"GET /healthz HTTP/3.0\r\nHost: pipe\r\n\r\n", []int{505}, 0, false},
		"HTTP/2 without TLS":         {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{405}, 0, false},
		"SSH":                        {"SSH-2.0-OpenSSH_9.2\r\n\r\n", []int{400}, 0, false},
		"zeros":                      {strings.Repeat("\x00", 100) + "\r\n\r\n", []int{400}, 0, false},
		"no host":                    {"GET /healthz HTTP/1.1\r\n\r\n", []int{400}, 0, false},
		"two hosts":                  {get + "Host: other\r\n\r\n", []int{400}, 0, false},
		"a control character":        {get + "X-A: a\x01b\r\n\r\n", []int{400}, 0, false},
		"a zero":                     {get + "X-A: a\x00b\r\n\r\n", []int{400}, 0, false},
		"a bare carriage return":     {get + "X-A: a\rX-B: b\r\n\r\n", []int{400}, 0, false},
		"a control character's name": {get + "X\x1b[2J: a\r\n\r\n", []int{400}, 0, false},
		"a blank in a name":          {get + "X A: b\r\n\r\n", []int{400}, 0, false},
		"a key with a line in it":    {get + "X-API-Key: a\r\n\tb\r\n\r\n", []int{200}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := servePipes(t)
				started := time.Now()
				conn := s.raw(c.send)
				answers := bufio.NewReader(conn)
				for i, want := range c.statuses {
					resp, err := http.ReadResponse(answers, nil)
					if err != nil {
						t.Fatalf("answer %d: %v, want %d", i+1, err, want)
					}
					body, err := io.ReadAll(resp.Body)
					if err != nil || resp.StatusCode != want || bytes.Contains(body, []byte("GARBAGE")) {
						t.Errorf("answer %d: %d %s (%v), want %d", i+1, resp.StatusCode, body, err, want)
					}
				}
				if took := time.Since(started); took > time.Second { // the server waits for a moment before it closes
					t.Errorf("answered after %s", took)
				}
				s.serves()
				more, err := io.ReadAll(answers)
				if err != nil && !errors.Is(err, io.ErrClosedPipe) || len(more) != 0 {
					t.Errorf("more came: %q, %v", more, err)
				}
				// A connection that goes on was closed for being idle.
				if took := time.Since(started); (took >= idleTimeout) != c.stays {
					t.Errorf("closed after %s", took)
				}
				if n := s.count("customers"); n != 1+c.added {
					t.Errorf("%d customers, want %d", n, 1+c.added)
				}
			})
		})
	}
}

// importing begins an import, and returns where its lines go.
func (s *pipeServer) importing() (io.WriteCloser, <-chan string) {
	s.t.Helper()
	body, lines := io.Pipe()
	req, err := http.NewRequestWithContext(s.t.Context(), "POST", "http://pipe/v1/admin/programs", body)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+testAdminToken)
	req.Header.Set("Content-Type", "application/x-ndjson")
	answer := make(chan string, 1)
	go func() {
		resp, err := s.http.Do(req)
		if err != nil {
			answer <- err.Error()
			return
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		answer <- fmt.Sprintf("%d %s", resp.StatusCode, text)
	}()
	return lines, answer
}

func programLine(n int) string {
	return fmt.Sprintf(`{"unified_id":"UNI-%d","primary_name":"補助金"}`+"\n", n)
}

// An honest import takes as long as it takes, far beyond what other calls have,
// as long as it goes on. It holds up nobody.
func TestALongImportIsNotCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servePipes(t)
		lines, answer := s.importing()
		const n = 20
		for i := range n {
			if _, err := io.WriteString(lines, programLine(i)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(streamPause - time.Second)
			s.serves()
		}
		lines.Close()
		if got, want := <-answer, fmt.Sprintf(`200 {"read":%d,"created":%d,`, n, n); !strings.HasPrefix(got, want) || s.count("programs") != n {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

// One that stops is cut off. What it has sent may be stored, whole programs only;
// sent again it goes in.
func TestAStalledImportIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servePipes(t)
		started := time.Now()
		lines, answer := s.importing()
		_, _ = io.WriteString(lines, programLine(1)+programLine(2)+programLine(3)[:20])
		got := <-answer
		if took := time.Since(started); !strings.HasPrefix(got, "400 ") || !strings.Contains(got, "the stream ended early") || took != streamPause {
			t.Errorf("after %s: %s", took, got)
		}
		lines.Close()
		if n := s.count("programs"); n > 2 {
			t.Errorf("%d programs", n)
		}
		s.serves()
		lines, answer = s.importing()
		_, _ = io.WriteString(lines, programLine(1)+programLine(2)+programLine(3))
		lines.Close()
		if got := <-answer; !strings.HasPrefix(got, `200 {"read":3,`) || s.count("programs") != 3 {
			t.Errorf("again: %s", got)
		}
	})
}

// A drip is served, since only the operator can begin one, but holds nothing
// that others need, and does not hold up a stop for longer than others.
func TestADrippedImportHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servePipes(t)
		for range 20 {
			lines, _ := s.importing()
			s.drip(lines, programLine(1), streamPause-time.Second)
		}
		for range 5 {
			time.Sleep(time.Minute)
			s.serves()
		}
		started := time.Now()
		s.stop()
		if took := time.Since(started); took > stopHTTP+time.Second || s.count("programs") != 0 {
			t.Errorf("stopping took %s, %d programs", took, s.count("programs"))
		}
	})
}

// Without the token nobody gets as far as the stream.
func TestAStrangersImportIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servePipes(t)
		started := time.Now()
		conn := s.raw("POST /v1/admin/programs HTTP/1.1\r\nHost: pipe\r\nTransfer-Encoding: chunked\r\nContent-Type: application/x-ndjson\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != 401 || time.Since(started) > readTimeout {
			t.Errorf("after %s: %+v, %v", time.Since(started), resp, err)
		}
		s.serves()
	})
}
