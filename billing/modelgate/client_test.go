package modelgate

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestBaseURLs(t *testing.T) {
	for text, ok := range map[string]bool{
		"https://partner.example/v1": true, "https://partner.example": true, "http://127.0.0.1:8099/v1": true, "http://localhost:1": true, "http://[::1]:1/v1": true,
		"http://partner.example/v1": false, "http://127.0.0.1.example/": false, "": false, "partner.example": false, "ftp://127.0.0.1": false, "https://u:p@partner.example": false,
		"https://partner.example/?x=1": false, "https://partner.example/#x": false, "https://": false, "https:opaque": false,
	} {
		if _, err := CheckBaseURL(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, key := range []string{"", "with space", "with\nline", "ü"} {
		if _, err := New(Options{BaseURL: "https://partner.example", APIKey: key}); err == nil || key != "" && strings.Contains(err.Error(), key) {
			t.Errorf("key %q: %v", key, err)
		}
	}
}

// What is stored is what is sent, with nothing that a proxy or a compressing
// server could make use of.
func TestRequestsAreSentAsTheyWereRendered(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	var got *http.Request
	var body string
	c := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got, body = r, string(b)
		answer(200, limitsAnswer)(w, r)
	})
	r := limits(t)
	if o := send(t, c, r); o.Class != Succeeded || o.RequestID != "req_1" {
		t.Fatalf("%s: %s", o.Class, o.Message)
	}
	if body != string(r.Body) || body != `{"currency":"USD","period":"month","policy_version":"4","spend_limit":"25.00"}` || got.Method != "PATCH" || got.URL.Path != "/groups/grp_1/limits" {
		t.Errorf("%s %s %s", got.Method, got.URL, body)
	}
	for name, want := range map[string]string{"Authorization": "Bearer " + testKey, "Idempotency-Key": r.Key, "Content-Type": "application/json",
		"Accept-Encoding": "identity", "User-Agent": "jpintel/dev", "Connection": "close"} {
		if got.Header.Get(name) != want && !(name == "Connection" && got.Close) {
			t.Errorf("%s: %q", name, got.Header.Get(name))
		}
	}
	if send(t, c, revoke); body != "" || got.ContentLength > 0 || got.Method != "DELETE" {
		t.Errorf("a DELETE has the body %q", body)
	}
}

// raw accepts connections and hands each to serve; it counts requests.
func raw(t *testing.T, serve func(net.Conn, *http.Request)) (*Client, *atomic.Int32) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	requests := &atomic.Int32{}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					requests.Add(1)
					serve(conn, req)
				}
			}()
		}
	}()
	return clientFor(t, "http://"+listener.Addr().String()), requests
}

// A request that dies with its connection is not sent again behind our back,
// with a body or without one: what net/http does on a kept connection.
func TestNoRequestIsSentTwice(t *testing.T) {
	for _, r := range []Request{group, revoke} {
		first := true
		c, requests := raw(t, func(conn net.Conn, _ *http.Request) {
			if first { // an answer that offers to keep the connection
				first = false
				_, _ = io.WriteString(conn, "HTTP/1.1 500 X\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n")
				return
			}
			conn.Close()
		})
		if o := send(t, c, r); o.Class != Unknown || o.Status != 500 {
			t.Fatalf("%+v", o)
		}
		o := send(t, c, r)
		if o.Class != Unknown || o.Code != "connection_closed" || !o.Wrote || o.Status != 0 {
			t.Errorf("%s: %s %s", r.Method, o.Class, o.Code)
		}
		if n := requests.Load(); n != 2 {
			t.Errorf("%s: %d requests for two sends", r.Method, n)
		}
	}
}

// S05: the connection is reset when the upstream has done its work.
func TestS05ResetIsUnknown(t *testing.T) {
	c, _ := raw(t, func(conn net.Conn, _ *http.Request) {
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	})
	if o := send(t, c, group); o.Class != Unknown || !o.Wrote || o.Code != "connection_reset" && o.Code != "connection_closed" {
		t.Errorf("%s %s", o.Class, o.Code)
	}
}

// What never left is known not to have happened.
func TestNotSent(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	if o := send(t, clientFor(t, "http://"+listener.Addr().String()), group); o.Class != NotSent || o.Code != "connection_refused" || o.Wrote {
		t.Errorf("refused: %s %s", o.Class, o.Code)
	}
	var requests atomic.Int32
	count := func(w http.ResponseWriter, r *http.Request) { requests.Add(1); answer(201, groupAnswer)(w, r) }
	secure := httptest.NewTLSServer(http.HandlerFunc(count))
	defer secure.Close()
	if o := send(t, clientFor(t, secure.URL), group); o.Class != NotSent || o.Wrote {
		t.Errorf("unknown certificate: %s %s", o.Class, o.Code)
	}
	dns, err := New(Options{BaseURL: "https://partner.example", APIKey: testKey, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.DNSError{Err: "no such host", Name: "partner.example", IsNotFound: true}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if o := send(t, dns, group); o.Class != NotSent || o.Code != "dns" {
		t.Errorf("DNS: %s %s", o.Class, o.Code)
	}
	// The wall clock has passed the lease between the claim and the first byte.
	c := upstream(t, count)
	if o := c.Send(context.Background(), group, time.Now().Add(-time.Second)); o.Class != NotSent || o.Code != CodeLate || o.Wrote {
		t.Errorf("late: %s %s", o.Class, o.Code)
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests were made", n)
	}
}

// TLS 1.2 is the least, and with the right roots it works.
func TestTLS(t *testing.T) {
	for version, want := range map[uint16]Class{tls.VersionTLS11: NotSent, tls.VersionTLS12: Succeeded, tls.VersionTLS13: Succeeded} {
		server := httptest.NewUnstartedServer(answer(201, groupAnswer))
		server.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: version}
		server.Config.ErrorLog = nil
		server.StartTLS()
		roots := x509.NewCertPool()
		roots.AddCert(server.Certificate())
		c, err := New(Options{BaseURL: server.URL, APIKey: testKey, TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS10}})
		if err != nil {
			t.Fatal(err)
		}
		if o := send(t, c, group); o.Class != want {
			t.Errorf("TLS %x: %s %s", version, o.Class, o.Code)
		}
		server.Close()
	}
}

// S29: another host never sees the key.
func TestS29RedirectsAreNotFollowed(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		if o := send(t, upstream(t, answer(status, "", [2]string{"Location", other.URL})), group); o.Class != Redirected || o.Status != status {
			t.Errorf("%d: %s", status, o.Class)
		}
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

// S31: an answer without end takes bounded memory and time.
func TestS31EndlessAnswers(t *testing.T) {
	var sent atomic.Int64
	c := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		block := make([]byte, 64<<10)
		for range 1600 {
			n, err := w.Write(block)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	})
	o := send(t, c, group)
	if o.Class != Malformed || o.Code != "answer_too_large" || len(o.Body) > maxAnswer {
		t.Errorf("%s %s, %d bytes kept", o.Class, o.Code, len(o.Body))
	}
	// A drip: the caller's context stands in for the twenty seconds.
	stop := make(chan struct{})
	defer close(stop)
	c = upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		<-stop
	})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if o := c.Send(ctx, group, time.Now().Add(Timeout)); o.Class != Malformed || o.Code != "timeout" {
		t.Errorf("a drip: %s %s", o.Class, o.Code)
	}
}
