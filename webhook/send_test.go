package webhook

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// TestMain makes the authority of these tests one that the system trusts: the
// sender has no switch for that, and gets none.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "webhook")
	if err == nil {
		file := filepath.Join(dir, "roots.pem")
		err = errors.Join(os.WriteFile(file, authority.pem(), 0o600), os.Setenv("SSL_CERT_FILE", file))
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// issuer signs certificates.
type issuer struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

var authority, stranger = newIssuer(), newIssuer()

func newIssuer() *issuer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	i := &issuer{key: key}
	i.cert = i.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, 0, key)
	return i
}

func (i *issuer) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.cert.Raw})
}

func (i *issuer) sign(c *x509.Certificate, age time.Duration, key *ecdsa.PrivateKey) *x509.Certificate {
	c.SerialNumber, c.Subject = big.NewInt(1), pkix.Name{CommonName: "test"}
	c.NotBefore, c.NotAfter = time.Now().Add(-age-time.Hour), time.Now().Add(-age+time.Hour)
	parent := i.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, i.key)
	if err != nil {
		panic(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return cert
}

// leaf is a certificate for a name, valid for an hour before and after the time
// that is age ago.
func (i *issuer) leaf(name string, age time.Duration) *tls.Config {
	cert := i.sign(&x509.Certificate{DNSNames: []string{name}}, age, i.key)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: i.key}}}
}

var here = zone{"receiver.example": {{A: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}}}

func newSender(t testing.TB, g *Guard) *Sender {
	t.Helper()
	s := NewSender(g, "Jpintel", "1.2.3")
	t.Cleanup(s.Close)
	return s
}

// to is a request as the worker makes them.
func to(url string) Request {
	return Request{URL: url, Secrets: []string{secretB, secretA}, EventID: "evt_1", EventType: TypeProgramUpdated, DeliveryID: "dlv_1", Attempt: 3, Body: []byte(`{"data":{"name":"奈良 <&>"}}`)}
}

// receive starts a receiver on loopback, which the test's end stops.
func receive(t testing.TB, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func wantResult(t testing.TB, what string, r Result, status int, category Category, detail string) {
	t.Helper()
	if r.Status != status || r.Category != category || r.OK() != (category == "") || r.Interrupted || !strings.Contains(r.Detail, detail) || detail == "" && r.Detail != "" {
		t.Errorf("%s: got %+v, want %d, %q, %q", what, r, status, category, detail)
	}
}

func TestStatusesAndTheirCategories(t *testing.T) {
	receiver := receive(t, func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.URL.Query().Get("status"))
		w.Header().Set("Retry-After", "120")
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		if status >= 400 {
			fmt.Fprint(w, "why\nnot")
		}
	})
	s := newSender(t, lenient(t, nil))
	for category, statuses := range map[Category][]int{
		"":              {200, 201, 202, 204, 206, 299},
		"http_redirect": {300, 301, 302, 303, 304, 307, 308, 399},
		"http_4xx":      {400, 401, 403, 404, 408, 409, 410, 418, 425, 499},
		"http_429":      {429},
		"http_5xx":      {500, 501, 502, 503, 504, 599, 999}, // RFC 9110: what is none is one of the server's errors
	} {
		for _, status := range statuses {
			r := s.Send(t.Context(), to(receiver.URL+"/hook?status="+strconv.Itoa(status)))
			detail := map[Category]string{CategoryRedirect: "redirects are not followed"}[category]
			wantResult(t, strconv.Itoa(status), r, status, category, detail)
			if r.RetryAfter != 2*time.Minute || r.RemoteAddr != receiver.Listener.Addr().String() || r.StartedAt.IsZero() || r.Duration <= 0 {
				t.Errorf("%d: %+v", status, r)
			}
			if excerpt := map[bool]string{true: "why not"}[status >= 400]; r.Excerpt != excerpt {
				t.Errorf("%d: excerpt %q, want %q", status, r.Excerpt, excerpt)
			}
		}
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	var followed atomic.Int32
	canary := receive(t, func(http.ResponseWriter, *http.Request) { followed.Add(1) })
	s := newSender(t, lenient(t, nil))
	for _, status := range []int{301, 302, 303, 307, 308} {
		receiver := receive(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, canary.URL, status) })
		wantResult(t, strconv.Itoa(status), s.Send(t.Context(), to(receiver.URL)), status, CategoryRedirect, "not followed")
	}
	if n := followed.Load(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// A proxy would hide every address from the guard. The environment names one;
// the receiver has a name, since for loopback addresses no proxy is used anyway.
func TestProxiesOfTheEnvironmentAreIgnored(t *testing.T) {
	var proxied atomic.Int32
	canary := receive(t, func(http.ResponseWriter, *http.Request) { proxied.Add(1) })
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		t.Setenv(name, canary.URL)
		t.Setenv(strings.ToLower(name), canary.URL)
	}
	t.Setenv("NO_PROXY", "")
	t.Setenv("no_proxy", "")
	receiver := receive(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	s := newSender(t, lenient(t, here))
	port := receiver.Listener.Addr().(*net.TCPAddr).Port
	wantResult(t, "http", s.Send(t.Context(), to(fmt.Sprintf("http://receiver.example:%d/", port))), 202, "", "")
	wantResult(t, "https", s.Send(t.Context(), to(fmt.Sprintf("https://receiver.example:%d/", port))), 0, CategoryTLS, "does not speak TLS")
	if n := proxied.Load(); n != 0 {
		t.Errorf("%d requests went to the proxy", n)
	}
	if s.transport.(*http.Transport).Proxy != nil {
		t.Error("the transport has a proxy")
	}
}

func TestNoConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	s := newSender(t, lenient(t, zone{"broken.example": {{Fail: true}}}))
	for _, c := range []struct {
		url      string
		category Category
		detail   string
		reason   string
	}{
		{"http://" + closed + "/", CategoryConnectRefused, "the connection was refused", ""},
		{"https://" + closed + "/", CategoryConnectRefused, "the connection was refused", ""},
		{"https://nxdomain.example/", CategoryDNS, "the host name does not resolve", ""},
		{"https://empty.example/", CategoryDNS, "the host name does not resolve", ""},
		{"https://broken.example/", CategoryDNS, "the host name could not be looked up", ""},
		{"https://priv.example/", CategoryBlocked, "not a public one", "private_address"},
		{"https://mixed-a.example/", CategoryBlocked, "not a public one", "private_address"},
		{"https://public.example:22/", CategoryBlocked, "port 22", "port"},
		{"https://10.0.0.1/", CategoryBlocked, "not a public one", "private_address"}, // the URL is judged again: the rules may have changed
		{"ftp://public.example/", CategoryBlocked, "https required", "https_required"},
		{"\x00", CategoryBlocked, "control characters", "url_characters"},
	} {
		r := s.Send(t.Context(), to(c.url))
		wantResult(t, c.url, r, 0, c.category, c.detail)
		if string(r.Reason) != c.reason || r.RemoteAddr != "" {
			t.Errorf("%s: %+v, want reason %q", c.url, r, c.reason)
		}
		if strings.Contains(r.Detail, "127.0.0.1") || strings.Contains(r.Detail, "10.0.0.5") {
			t.Errorf("%s: tells of our network: %q", c.url, r.Detail)
		}
	}
}

// answerRaw is a receiver that reads a request and answers with this text, then
// closes the connection.
func answerRaw(t testing.TB, text string, end func(*net.TCPConn)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var server sync.WaitGroup
	t.Cleanup(func() { l.Close(); server.Wait() })
	server.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		_, _ = io.WriteString(conn, text)
		if end != nil {
			end(conn.(*net.TCPConn))
		}
	})
	return "http://" + l.Addr().String() + "/"
}

func TestStrangeAnswers(t *testing.T) {
	s := newSender(t, lenient(t, nil))
	reset := func(c *net.TCPConn) { _ = c.SetLinger(0) }
	for _, c := range []struct {
		name     string
		text     string
		end      func(*net.TCPConn)
		status   int
		category Category
		detail   string
		excerpt  string
	}{
		{"closed", "", nil, 0, CategoryReset, "ended before an answer came", ""},
		{"reset", "", reset, 0, CategoryReset, "ended before an answer came", ""},
		{"closed in the status", "HTTP/1.1 20", nil, 0, CategoryResponseInvalid, "not HTTP", ""},
		{"closed in the header", "HTTP/1.1 200 OK\r\nX: y\r\n", nil, 0, CategoryReset, "ended before", ""},
		{"another protocol", "SSH-2.0-OpenSSH_9.6\r\n", nil, 0, CategoryResponseInvalid, "not HTTP", ""},
		{"an empty line", "\r\n\r\n", nil, 0, CategoryResponseInvalid, "not HTTP", ""},
		{"no status", "HTTP/1.1 two OK\r\n\r\n", nil, 0, CategoryResponseInvalid, "not HTTP", ""},
		{"a broken header", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n", nil, 0, CategoryResponseInvalid, "not HTTP", ""},
		{"a header without end", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", maxHeader+1) + "\r\n\r\n", nil, 0, CategoryResponseInvalid, "not HTTP", ""},
		{"another protocol by agreement", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", nil, 101, CategoryResponseInvalid, "not an HTTP status", ""},
		{"a status below 100", "HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n", nil, 99, CategoryResponseInvalid, "not an HTTP status", ""},
		{"a redirect to no URL", "HTTP/1.1 302 Found\r\nLocation: :%zz\r\nContent-Length: 0\r\n\r\n", nil, 302, CategoryRedirect, "not followed", ""},
		{"a redirect to nowhere", "HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", nil, 302, CategoryRedirect, "not followed", ""},
		{"an old version", "HTTP/1.0 200 OK\r\n\r\nok", nil, 200, "", "", "ok"},
		{"something in advance", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", nil, 200, "", "", "ok"},
		{"a body that is cut off", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok", nil, 200, "", "", "ok"},
		{"a body that is reset", "HTTP/1.1 204 OK\r\n\r\n", reset, 204, "", "", ""},
		{"a broken body", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nx\r\n", nil, 200, "", "", "ok"},
		{"an error that is cut off", "HTTP/1.1 500 Oops\r\nContent-Length: 100\r\n\r\nwhy", nil, 500, Category5xx, "", "why"},
		{"a long body", "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 1000000), nil, 200, "", "", strings.Repeat("x", maxExcerpt)},
		{"a compressed body is left alone", "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", nil, 200, "", "", "abc"},
	} {
		r := s.Send(t.Context(), to(answerRaw(t, c.text, c.end)))
		wantResult(t, c.name, r, c.status, c.category, c.detail)
		if r.Excerpt != c.excerpt {
			t.Errorf("%s: excerpt %q, want %q", c.name, r.Excerpt, c.excerpt)
		}
	}
}

func TestTLS(t *testing.T) {
	if runtime.GOOS == "darwin" || runtime.GOOS == "windows" {
		t.Skip("roots are not taken from SSL_CERT_FILE here")
	}
	const name = "receiver.example"
	day := 24 * time.Hour
	old := authority.leaf(name, 0)
	old.MaxVersion = tls.VersionTLS11
	old.MinVersion = tls.VersionTLS10
	for _, c := range []struct {
		name     string
		config   *tls.Config
		status   int
		category Category
		detail   string
	}{
		{"trusted", authority.leaf(name, 0), 200, "", ""},
		{"for another name", authority.leaf("other.example", 0), 0, CategoryTLS, "for another host name"},
		{"expired", authority.leaf(name, 10*day+2*time.Hour), 0, CategoryTLS, "expired 10 days ago"},
		{"expired just now", authority.leaf(name, 2*time.Hour), 0, CategoryTLS, "expired 0 days ago"},
		{"not valid yet", authority.leaf(name, -day), 0, CategoryTLS, "not valid yet"},
		{"signed by a stranger", stranger.leaf(name, 0), 0, CategoryTLS, "unknown authority"},
		{"an old version", old, 0, CategoryTLS, "the TLS handshake failed"},
	} {
		for _, http2 := range []bool{false, true} {
			var got *http.Request
			var body []byte
			receiver := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				got = r
				body, _ = io.ReadAll(r.Body)
			}))
			receiver.TLS, receiver.EnableHTTP2 = c.config.Clone(), http2
			receiver.Config.ErrorLog = log.New(io.Discard, "", 0) // the handshakes that fail
			receiver.StartTLS()
			s := newSender(t, lenient(t, here))
			req := to(fmt.Sprintf("https://%s:%d/hook", name, receiver.Listener.Addr().(*net.TCPAddr).Port))
			r := s.Send(t.Context(), req)
			receiver.Close()
			wantResult(t, c.name, r, c.status, c.category, c.detail)
			if r.Status == 0 {
				continue
			}
			if got == nil || (got.ProtoMajor == 2) != http2 || !bytes.Equal(body, req.Body) {
				t.Errorf("%s: received %v, %q", c.name, got, body)
			} else if err := Verify(secretA, "Jpintel", got.Header, body, time.Now()); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}

func TestThePortDoesNotSpeakTLS(t *testing.T) {
	s := newSender(t, lenient(t, nil))
	receiver := receive(t, func(http.ResponseWriter, *http.Request) {})
	wantResult(t, "http", s.Send(t.Context(), to(strings.Replace(receiver.URL, "http:", "https:", 1))), 0, CategoryTLS, "the port does not speak TLS")
	wantResult(t, "nothing", s.Send(t.Context(), to(strings.Replace(answerRaw(t, "", nil), "http:", "https:", 1))), 0, CategoryTLS, "the TLS handshake failed")
}

// This one takes its three seconds: the handshake is over a real connection.
func TestAHandshakeWithoutEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 3 s")
	}
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, by its backlog, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := newSender(t, lenient(t, nil))
	r := s.Send(t.Context(), to("https://"+l.Addr().String()+"/"))
	wantResult(t, "silence", r, 0, CategoryConnectTimeout, "no connection within 3s")
}

func TestConnectionsAreKept(t *testing.T) {
	var from []string
	receiver := receive(t, func(w http.ResponseWriter, r *http.Request) {
		from = append(from, r.RemoteAddr)
		fmt.Fprint(w, "ok")
	})
	s := newSender(t, lenient(t, nil))
	for range 3 {
		wantResult(t, "kept", s.Send(t.Context(), to(receiver.URL)), 200, "", "")
	}
	s.Close()
	wantResult(t, "new", s.Send(t.Context(), to(receiver.URL)), 200, "", "")
	if len(from) != 4 || from[0] != from[1] || from[1] != from[2] || from[2] == from[3] {
		t.Errorf("requests came from %q", from)
	}
}

// piped is a sender in a synctest bubble whose connections are pipes to serve.
func piped(t *testing.T, serve func(c net.Conn)) *Sender {
	t.Helper()
	s := newSender(t, NewGuard(GuardOptions{Ports: []uint16{80}, AllowHTTP: true}))
	var servers sync.WaitGroup
	t.Cleanup(servers.Wait)
	s.transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		servers.Go(func() { defer there.Close(); serve(there) })
		return here, nil
	}
	return s
}

const pipeURL = "http://93.184.215.14/hook?a=b"

// readRequest reads a whole request and returns it as it came.
func readRequest(c net.Conn) (string, *http.Request, []byte) {
	var raw bytes.Buffer
	r, err := http.ReadRequest(bufio.NewReader(io.TeeReader(c, &raw)))
	if err != nil {
		return raw.String(), nil, nil
	}
	body, _ := io.ReadAll(r.Body)
	return raw.String(), r, body
}

func TestTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var raw string
		s := piped(t, func(c net.Conn) {
			var r *http.Request
			var body []byte
			raw, r, body = readRequest(c)
			if err := Verify(secretA, "Jpintel", r.Header, body, time.Now()); err != nil {
				t.Error(err)
			}
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		})
		time.Sleep(999 * time.Millisecond) // whole seconds are signed
		r := s.Send(t.Context(), to(pipeURL))
		wantResult(t, "answer", r, 200, "", "")
		if !r.StartedAt.Equal(time.UnixMilli(946684800_999)) || r.Duration != 0 {
			t.Errorf("at %v for %v", r.StartedAt, r.Duration)
		}
		sent := sign([]string{secretB, secretA}, "evt_1", time.Unix(946684800, 0), to("").Body)
		want := strings.Join([]string{
			"POST /hook?a=b HTTP/1.1", "Host: 93.184.215.14", "User-Agent: Jpintel-Webhooks/1.2.3", "Content-Length: 30",
			"Content-Type: application/json; charset=utf-8", "Webhook-Id: evt_1", "Webhook-Signature: " + sent.standard, "Webhook-Timestamp: 946684800",
			"X-Jpintel-Attempt: 3", "X-Jpintel-Delivery: dlv_1", "X-Jpintel-Event: program.updated", "X-Jpintel-Signature: " + sent.stripe,
			"", `{"data":{"name":"奈良 <&>"}}`,
		}, "\r\n")
		if raw != want {
			t.Errorf("got  %q\nwant %q", raw, want)
		}
	})
}

// say writes a line every second for as long as somebody reads.
func say(c net.Conn, line string) {
	for err := error(nil); err == nil; _, err = io.WriteString(c, line) {
		time.Sleep(time.Second - time.Millisecond)
	}
}

func TestTimes(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
	for _, c := range []struct {
		name     string
		serve    func(c net.Conn)
		status   int
		category Category
		detail   string
		excerpt  string
	}{
		{"no answer", func(c net.Conn) { readRequest(c) }, 0, CategoryTimeout, "no complete answer within 7s", ""},
		{"a request that nobody reads", func(net.Conn) {}, 0, CategoryTimeout, "within 7s", ""},
		{"a header without end", func(c net.Conn) { readRequest(c); fmt.Fprint(c, "HTTP/1.1 200 OK\r\n"); say(c, "X: y\r\n") }, 0, CategoryTimeout, "within 7s", ""},
		{"a body without end", func(c net.Conn) { readRequest(c); fmt.Fprint(c, head); say(c, "x") }, 200, "", "", "xxxxxxx"},
		{"a body that does not come", func(c net.Conn) { readRequest(c); fmt.Fprint(c, head) }, 200, "", "", ""},
		{"a late header and no body", func(c net.Conn) { readRequest(c); time.Sleep(6999 * time.Millisecond); fmt.Fprint(c, head) }, 200, "", "", ""},
		{"a header that is too late", func(c net.Conn) { readRequest(c); time.Sleep(7001 * time.Millisecond); fmt.Fprint(c, head) }, 0, CategoryTimeout, "within 7s", ""},
		{"an error without end", func(c net.Conn) { readRequest(c); fmt.Fprint(c, strings.Replace(head, "200", "503", 1)); say(c, "x") }, 503, Category5xx, "", "xxxxxxx"},
	} {
		synctest.Test(t, func(t *testing.T) {
			over := make(chan struct{})
			s := piped(t, func(conn net.Conn) { c.serve(conn); <-over })
			defer close(over)
			r := s.Send(t.Context(), to(pipeURL))
			wantResult(t, c.name, r, c.status, c.category, c.detail)
			if r.Duration != 7*time.Second || r.Excerpt != c.excerpt || r.RemoteAddr != "pipe" {
				t.Errorf("%s: after %v, excerpt %q, from %q", c.name, r.Duration, r.Excerpt, r.RemoteAddr)
			}
		})
	}
}

// What comes after the first 16 KiB of a body is not waited for.
func TestALongBodyIsNotReadToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		s := piped(t, func(c net.Conn) {
			readRequest(c)
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"+strings.Repeat("x", maxAnswer))
			<-over
		})
		defer close(over)
		r := s.Send(t.Context(), to(pipeURL))
		wantResult(t, "a long body", r, 200, "", "")
		if r.Duration != 0 || r.Excerpt != strings.Repeat("x", maxExcerpt) {
			t.Errorf("after %v, %q", r.Duration, r.Excerpt)
		}
	})
}

func TestAnUnansweredLookUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGuard(GuardOptions{Ports: []uint16{443}})
		g.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		r := newSender(t, g).Send(t.Context(), to("https://public.example/"))
		wantResult(t, "look-up", r, 0, CategoryDNS, "could not be looked up")
		if r.Duration != connectTimeout {
			t.Errorf("after %v", r.Duration)
		}
	})
}

func TestInterrupted(t *testing.T) {
	for name, c := range map[string]struct {
		answer      string
		interrupted bool
		excerpt     string
	}{
		"before the answer":     {"", true, ""},
		"within the header":     {"HTTP/1.1 200 OK\r\nX: y\r\n", true, ""},
		"after the header":      {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", false, "abc"},
		"after an error's head": {"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\n", false, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			over := make(chan struct{})
			s := piped(t, func(conn net.Conn) { readRequest(conn); fmt.Fprint(conn, c.answer); <-over })
			defer close(over)
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			r := s.Send(ctx, to(pipeURL))
			if r.Interrupted != c.interrupted || r.Duration != time.Second || r.Excerpt != c.excerpt {
				t.Errorf("%s: %+v", name, r)
			}
			if c.interrupted && (r.Category != "" || r.Status != 0 || r.Detail != "") {
				t.Errorf("%s: more is known than can be: %+v", name, r)
			}
		})
	}
}

func TestExcerpt(t *testing.T) {
	secret := strings.TrimPrefix(secretA, secretPrefix)
	for _, c := range []struct{ name, body, want string }{
		{"text", "ok, thank you", "ok, thank you"},
		{"nothing", "", ""},
		{"Japanese", "受け取りました", "受け取りました"},
		{"lines", "a\r\nb\tc\x00d\x1b[31m\u0085e", "a  b c d [31m e"},
		{"marks that turn or hide text", "a\u202eb\u200bc\u2028d\ufeffe", "a b c d e"},
		{"no UTF-8", "a\xff\xfeb\xe5", "a\ufffdb\ufffd"},
		{"a signing secret", `{"secret":"` + secretA + `"}`, `{"secret":"[masked]"}`},
		{"in capitals", strings.ToUpper(secretA), "[masked]"},
		{"an API key", "key=jpk_" + secret + "; next", "key=[masked]; next"},
		{"other keys", "sk_live_0123456789 mgp_0123456789 rk_0123456789", "[masked] [masked] [masked]"},
		{"a bearer", "Authorization: Bearer abc.def-ghi_jkl=", "Authorization: [masked]"},
		{"our signatures", "t=1,v1=" + secret + " v1," + strings.Repeat("A", 43) + "=", "t=1,[masked] [masked]"},
		{"what only looks like one", "whsec_ sk_x v1=abc bearer of news", "whsec_ sk_x v1=abc bearer of news"},
		{"too long", strings.Repeat("x", maxExcerpt+1), strings.Repeat("x", maxExcerpt)},
		{"cut between characters", "x" + strings.Repeat("あ", 200), "x" + strings.Repeat("あ", 170)},
		{"a secret at the cut is masked whole", strings.Repeat("x ", 250) + secretA, strings.Repeat("x ", 250) + "[masked]"},
	} {
		if got := excerpt([]byte(c.body)); got != c.want || len(got) > maxExcerpt || !utf8.ValidString(got) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestFailures(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)} }
	for _, c := range []struct {
		name      string
		err       error
		answering bool
		category  Category
		detail    string
	}{
		{"no descriptors left", &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}, false, CategoryInternal, "not counted against you"},
		{"no descriptors left in the system", &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.ENFILE)}, false, CategoryInternal, "not counted against you"},
		{"no ports left", dial(syscall.EADDRNOTAVAIL), false, CategoryInternal, "not counted against you"},
		{"no memory left", &net.OpError{Op: "write", Err: syscall.ENOBUFS}, false, CategoryInternal, "not counted against you"},
		{"no route", dial(syscall.EHOSTUNREACH), false, CategoryConnectRefused, "refused"},
		{"all addresses refuse", errors.Join(dial(syscall.ECONNREFUSED), dial(syscall.ENETUNREACH)), false, CategoryConnectRefused, "refused"},
		{"no connection in time", dial(syscall.ETIMEDOUT), false, CategoryConnectTimeout, "within 3s"},
		{"the dialer's time is over", &net.OpError{Op: "dial", Err: context.DeadlineExceeded}, false, CategoryConnectTimeout, "within 3s"},
		{"no handshake in time", &handshakeError{context.DeadlineExceeded}, false, CategoryConnectTimeout, "within 3s"},
		{"a broken handshake", &handshakeError{io.EOF}, false, CategoryTLS, "handshake failed"},
		{"no answer in time", errAnswerTimeout, true, CategoryTimeout, "within 7s"},
		{"a look-up without an answer", &net.DNSError{IsTimeout: true}, false, CategoryDNS, "could not be looked up"},
		{"a broken pipe", &net.OpError{Op: "write", Err: syscall.EPIPE}, false, CategoryReset, "ended before"},
		{"an end in the answer", fmt.Errorf("reading: %w", io.ErrUnexpectedEOF), true, CategoryReset, "ended before"},
		{"something else", errors.New("?"), false, CategoryReset, "ended before"},
		{"something else in the answer", errors.New("?"), true, CategoryResponseInvalid, "not HTTP"},
		{"a refusal", dial(&Refusal{Reason: "port", Detail: "port 22"}), false, CategoryBlocked, "port 22"},
	} {
		wantResult(t, c.name, failure(&url.Error{Op: "Post", Err: c.err}, c.answering), 0, c.category, c.detail)
	}
}

// What the guard has said of a URL is remembered, refusals too, up to a bound.
func TestCheckedURLs(t *testing.T) {
	s := newSender(t, NewGuard(GuardOptions{Ports: []uint16{443}}))
	for range 2 {
		if u, err := s.check("https://hooks.example.com/x?y=1"); err != nil || u.String() != "https://hooks.example.com/x?y=1" {
			t.Errorf("%v, %v", u, err)
		}
		if _, err := s.check("https://127.0.0.1:22/"); err == nil {
			t.Error("a port that is not allowed was let through")
		}
	}
	if len(s.checked) != 2 {
		t.Errorf("%d are remembered", len(s.checked))
	}
	for i := range maxChecked {
		if _, err := s.check(fmt.Sprintf("https://hooks.example.com/%d", i)); err != nil || len(s.checked) > maxChecked {
			t.Fatalf("%v; %d are remembered", err, len(s.checked))
		}
	}
}
