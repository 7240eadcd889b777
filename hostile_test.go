package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"jpintel/webhook"
)

// secHostile is a receiver that means no good.
type secHostile struct {
	name   string
	serve  func(net.Conn) // after the request was read, unless early; the connection is closed afterwards
	early  bool
	tls    *tls.Config
	want   webhook.Category
	status int    // 0: none
	says   string // part of the excerpt
	races  bool   // with our request: success, or no connection
}

const (
	secForged = "\r\n{\"time\":\"2026-01-01T00:00:00Z\",\"level\":\"ERROR\",\"msg\":\"FORGED\"}\r\n<script>FORGED</script>\x1b[2J\x00\u2028\u202e"
	secOK     = "HTTP/1.1 200 OK\r\n"
)

// secSay answers with a text, and then does nothing more.
func secSay(text string) func(net.Conn) {
	return func(c net.Conn) { _, _ = io.WriteString(c, text) }
}

// secHold answers with a text and keeps the connection open.
func secHold(text string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = io.WriteString(c, text)
		_, _ = io.Copy(io.Discard, c)
	}
}

// secForever answers with a text, and then with another one again and again.
func secForever(first, again string, pause time.Duration) func(net.Conn) {
	return func(c net.Conn) {
		_, err := io.WriteString(c, first)
		for err == nil {
			_, err = io.WriteString(c, again)
			time.Sleep(pause)
		}
	}
}

func secReset(text string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = io.WriteString(c, text)
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
	}
}

func secBomb() string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	zeros := make([]byte, 1<<20)
	for range 64 {
		_, _ = w.Write(zeros)
	}
	_ = w.Close()
	return secOK + "Content-Encoding: gzip\r\nContent-Length: " + strconv.Itoa(b.Len()) + "\r\n\r\n" + b.String()
}

func secReceivers(trusted, unknown *tls.Config) []secHostile {
	drip := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			for _, b := range []byte(text) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}
	}
	const kib = 1 << 10
	h1 := []secHostile{
		{name: "never answers", serve: secHold(""), want: webhook.CategoryTimeout},
		{name: "drips a status line", serve: drip(secOK + "\r\n"), want: webhook.CategoryTimeout},
		{name: "drips headers", serve: secForever(secOK, "X-A: b\r\n", 500*time.Millisecond), want: webhook.CategoryTimeout},
		{name: "drips a body", serve: func(c net.Conn) { secSay(secOK + "\r\n")(c); drip("slow and slower")(c) }, status: 200, says: "slow"},
		{name: "endless status line", serve: secForever("HTTP/1.1 200 ", strings.Repeat("O", kib), 0), want: webhook.CategoryResponseInvalid},
		{name: "endless headers", serve: secForever(secOK, "X-A: "+strings.Repeat("b", kib)+"\r\n", 0), want: webhook.CategoryResponseInvalid},
		{name: "endless header", serve: secForever(secOK+"X-A: ", strings.Repeat("b", kib), 0), want: webhook.CategoryResponseInvalid},
		{name: "endless body", serve: secForever(secOK+"\r\n", strings.Repeat("b", 64*kib), 0), status: 200, says: "bbbb"},
		{name: "endless failure", serve: secForever("HTTP/1.1 500 No\r\n\r\n", strings.Repeat("b", 64*kib), 0), want: webhook.Category5xx, status: 500, says: "bbbb"},
		{name: "endless chunks", serve: secForever(secOK+"Transfer-Encoding: chunked\r\n\r\n", "1;"+strings.Repeat("x", kib)+"\r\nb\r\n", 0), status: 200},
		{name: "endless trailer", serve: secForever(secOK+"Transfer-Encoding: chunked\r\n\r\n0\r\n", "X-A: "+strings.Repeat("b", kib)+"\r\n", 0), status: 200},
		{name: "a gigabyte promised, nothing sent", serve: secHold(secOK + "Content-Length: 1073741824\r\n\r\n"), status: 200},
		{name: "a gigabyte promised, and gone", serve: secSay(secOK + "Content-Length: 1073741824\r\n\r\nx"), status: 200, says: "x"},
		{name: "negative length", serve: secSay(secOK + "Content-Length: -1\r\n\r\nx"), want: webhook.CategoryResponseInvalid},
		{name: "two lengths", serve: secSay(secOK + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy"), want: webhook.CategoryResponseInvalid},
		{name: "gzip bomb", serve: secSay(secBomb()), status: 200},
		{name: "1xx for ever", serve: secForever("", "HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n", 0), want: webhook.CategoryResponseInvalid},
		{name: "100 for ever", serve: secForever("", "HTTP/1.1 100 Continue\r\n\r\n", 0), want: webhook.CategoryResponseInvalid},
		{name: "slow 1xx", serve: secForever("", "HTTP/1.1 103 Early Hints\r\n\r\n", 2*time.Second), want: webhook.CategoryTimeout},
		{name: "another protocol, silent", serve: secHold("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"), want: webhook.CategoryResponseInvalid, status: 101},
		{name: "another protocol, endless", serve: secForever("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", strings.Repeat("b", kib), 0), want: webhook.CategoryResponseInvalid, status: 101},
		{name: "closes at once", serve: secSay(""), want: webhook.CategoryReset},
		{name: "closes before the request", serve: secSay(""), early: true, want: webhook.CategoryReset},
		{name: "closes in the status", serve: secSay("HTTP/1.1 2"), want: webhook.CategoryResponseInvalid},
		{name: "closes in a header", serve: secSay(secOK + "X-A: "), want: webhook.CategoryReset},
		{name: "resets", serve: secReset(""), want: webhook.CategoryReset},
		{name: "resets in the request", serve: func(c net.Conn) { _, _ = c.Read(make([]byte, 1)); secReset("")(c) }, early: true, want: webhook.CategoryReset},
		{name: "resets in a header", serve: secReset(secOK + "X-A: "), want: webhook.CategoryReset},
		{name: "answers what it has not read", serve: func(c net.Conn) {
			_, _ = c.Read(make([]byte, 1))
			secHold(secOK + "Content-Length: 0\r\n\r\n")(c)
		}, early: true, status: 200},
		{name: "answers before it is asked", serve: secHold(secOK + "Content-Length: 0\r\n\r\n"), early: true, status: 200, races: true},
		{name: "answers before it is asked, and is gone", serve: secReset(secOK + "Content-Length: 0\r\n\r\n"), early: true, status: 200, races: true},
		{name: "HTTP/0.9", serve: secSay("<html>200 OK</html>" + secForged), want: webhook.CategoryResponseInvalid},
		{name: "SSH", serve: secSay("SSH-2.0-OpenSSH_9.2" + secForged), want: webhook.CategoryResponseInvalid},
		{name: "zeros", serve: secSay(strings.Repeat("\x00", 128*kib)), want: webhook.CategoryResponseInvalid},
		{name: "status of two digits", serve: secSay("HTTP/1.1 20 OK\r\n\r\n"), want: webhook.CategoryResponseInvalid},
		{name: "status 999", serve: secSay("HTTP/1.1 999 FORGED\r\nContent-Length: 0\r\n\r\n"), want: webhook.Category5xx, status: 999},
		{name: "forged status text", serve: secSay("HTTP/1.1 418 FORGED\x1b[2J{\"level\":\"ERROR\"}\r\nContent-Length: 0\r\n\r\n"), want: webhook.Category4xx, status: 418},
		{name: "forged header", serve: secSay(secOK + "X-A: a\r\n {\"msg\":\"FORGED\"}\r\nContent-Length: 0\r\n\r\n"), status: 200},
		{name: "control characters in a header", serve: secSay(secOK + "X-A: \x01\x1b[2J\x7fFORGED\r\nContent-Length: 0\r\n\r\n"), want: webhook.CategoryResponseInvalid},
		{name: "forged name of a header", serve: secSay(secOK + "X A{\"msg\":\"FORGED\"}: a\r\n\r\n"), want: webhook.CategoryResponseInvalid},
		{name: "forged lines in a body", serve: secSay("HTTP/1.1 500 No\r\n\r\n" + secForged), want: webhook.Category5xx, status: 500, says: "<script>FORGED</script>"},
		{name: "no UTF-8", serve: secSay("HTTP/1.1 400 No\r\n\r\n" + strings.Repeat("\xff\xc3\xed\xa0\x80あ", 600)), want: webhook.Category4xx, status: 400, says: "あ"},
		{name: "waits for ever, it says", serve: secSay("HTTP/1.1 503 Later\r\nRetry-After: 99999999999999999999\r\nContent-Length: 0\r\n\r\n"), want: webhook.Category5xx, status: 503},
		{name: "waits until the end of time", serve: secSay("HTTP/1.1 429 Later\r\nRetry-After: Fri, 31 Dec 9999 23:59:59 GMT\r\nContent-Length: 0\r\n\r\n"), want: webhook.Category429, status: 429},
		{name: "two answers", serve: secHold(secOK + "Content-Length: 0\r\n\r\n" + secOK + "Content-Length: 6\r\n\r\nFORGED"), status: 200},
		{name: "an answer that nobody asked for, later", serve: func(c net.Conn) {
			secSay(secOK + "Content-Length: 0\r\n\r\n")(c)
			time.Sleep(time.Second)
			secHold("HTTP/1.1 500 FORGED\r\nContent-Length: 6\r\n\r\nFORGED" + secForged)(c)
		}, status: 200},
		{name: "redirects to a file", serve: secSay("HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"), want: webhook.CategoryRedirect, status: 302},
		{name: "redirects to nowhere", serve: secSay("HTTP/1.1 307 Found\r\nLocation: ://%zz\r\nContent-Length: 0\r\n\r\n"), want: webhook.CategoryRedirect, status: 307},
	}
	secure := []secHostile{
		{name: "TLS: never shakes hands", serve: secHold(""), want: webhook.CategoryConnectTimeout, early: true, tls: &tls.Config{}},
		{name: "TLS: another protocol", serve: secSay("HTTP/1.1 400 No\r\n\r\n" + secForged), want: webhook.CategoryTLS, early: true, tls: &tls.Config{}},
		{name: "TLS: closes at once", serve: secSay(""), want: webhook.CategoryTLS, early: true, tls: &tls.Config{}},
		{name: "TLS: unknown authority", serve: secSay(secOK + "\r\n"), want: webhook.CategoryTLS, tls: unknown},
		{name: "TLS: too old", serve: secSay(secOK + "\r\n"), want: webhook.CategoryTLS, tls: secTLS(trusted, func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 })},
		{name: "TLS: a good one", serve: secSay(secOK + "Content-Length: 2\r\n\r\nok"), status: 200, says: "ok", tls: trusted},
		{name: "TLS: endless body", serve: secForever(secOK+"\r\n", strings.Repeat("b", 64*kib), 0), status: 200, says: "bbbb", tls: trusted},
	}
	return slices.Concat(h1, secure, secHTTP2(secTLS(trusted, func(c *tls.Config) { c.NextProtos = []string{"h2"} })))
}

func secTLS(c *tls.Config, change func(*tls.Config)) *tls.Config {
	c = c.Clone()
	change(c)
	return c
}

// secHTTP2 are receivers that speak HTTP/2. They are early: the client's
// preface and its frames are read beside what they send.
func secHTTP2(config *tls.Config) (all []secHostile) {
	add := func(name string, want webhook.Category, status int, send func(*http2.Framer, []byte) error) {
		all = append(all, secHostile{name: "HTTP/2: " + name, want: want, status: status, tls: config, early: true, serve: func(c net.Conn) {
			f := http2.NewFramer(c, c)
			_ = f.WriteSettings()
			go func() { _, _ = io.Copy(io.Discard, c) }()
			time.Sleep(300 * time.Millisecond) // the request is on its way by then: stream 1
			var b bytes.Buffer
			e := hpack.NewEncoder(&b)
			_ = e.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
			if send(f, b.Bytes()) == nil {
				time.Sleep(time.Minute)
			}
		}})
	}
	headers := func(f *http2.Framer, block []byte, end bool) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true, EndStream: end})
	}
	add("never answers", webhook.CategoryTimeout, 0, func(*http2.Framer, []byte) error { return nil })
	add("a good one", "", 200, func(f *http2.Framer, ok []byte) error { return headers(f, ok, true) })
	add("ends the stream", webhook.CategoryReset, 0, func(f *http2.Framer, _ []byte) error { return f.WriteRSTStream(1, http2.ErrCodeInternal) })
	add("goes away", webhook.CategoryReset, 0, func(f *http2.Framer, _ []byte) error {
		return f.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte(secForged))
	})
	add("endless headers", webhook.CategoryReset, 0, func(f *http2.Framer, ok []byte) error {
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: ok})
		for err == nil {
			var b bytes.Buffer
			_ = hpack.NewEncoder(&b).WriteField(hpack.HeaderField{Name: "x-a", Value: strings.Repeat("b", 8<<10), Sensitive: true})
			err = f.WriteContinuation(1, false, b.Bytes())
		}
		return err
	})
	add("body over the window", "", 200, func(f *http2.Framer, ok []byte) error {
		err := headers(f, ok, false)
		for err == nil {
			err = f.WriteData(1, false, make([]byte, 16<<10))
		}
		return err
	})
	add("1xx for ever", webhook.CategoryResponseInvalid, 0, func(f *http2.Framer, _ []byte) (err error) {
		var b bytes.Buffer
		_ = hpack.NewEncoder(&b).WriteField(hpack.HeaderField{Name: ":status", Value: "103"})
		for err == nil {
			err = headers(f, b.Bytes(), false)
		}
		return err
	})
	add("pings for ever", webhook.CategoryTimeout, 0, func(f *http2.Framer, _ []byte) (err error) {
		for n := 0; err == nil; n++ {
			err = f.WritePing(false, [8]byte{})
			secBreathe(n)
		}
		return err
	})
	add("settings for ever", webhook.CategoryTimeout, 0, func(f *http2.Framer, _ []byte) (err error) {
		for n := 0; err == nil; n++ {
			err = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			secBreathe(n)
		}
		return err
	})
	return all
}

// secBreathe keeps those who send for ever from taking the whole machine.
func secBreathe(n int) {
	if n%100 == 99 {
		time.Sleep(10 * time.Millisecond)
	}
}

// secListen runs a receiver until the test ends, and returns its URL.
func secListen(t *testing.T, r secHostile) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	scheme := "http"
	if r.tls != nil {
		scheme = "https"
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if r.tls != nil && len(r.tls.Certificates) > 0 {
					conn = tls.Server(conn, r.tls)
				}
				if !r.early {
					req, err := http.ReadRequest(bufio.NewReader(conn))
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
				}
				r.serve(conn)
			}()
		}
	}()
	return scheme + "://" + listener.Addr().String() + "/"
}

// secCertificate returns a server's configuration and the file of its authority.
func secCertificate(t *testing.T) (*tls.Config, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}, NextProtos: []string{"http/1.1"}}, file
}

// Whatever a receiver does, its delivery ends in a word for it, the process
// stays small, its log stays a log, and the customer's view stays clean.
func TestHostileReceivers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as a request may")
	}
	t.Parallel()
	trusted, roots := secCertificate(t)
	unknown, _ := secCertificate(t)
	receivers := secReceivers(trusted, unknown)
	s := secStart(t, t.TempDir(), "SSL_CERT_FILE="+roots, "GOMEMLIMIT=180MiB", "JPINTEL_WEBHOOK_RETRY_SCHEDULE=2h", "JPINTEL_LOG_LEVEL=info",
		"JPINTEL_WEBHOOK_DISPATCH_CONCURRENCY="+strconv.Itoa(len(receivers)))
	const perCustomer = 15
	var keys, subs []string
	for i, r := range receivers {
		if i%perCustomer == 0 {
			keys = append(keys, s.customer(t, fmt.Sprintf("cus_%d", i/perCustomer)))
		}
		subs = append(subs, s.subscribe(t, keys[i/perCustomer], secListen(t, r), "program.created").SubscriptionID)
	}
	s.publish(t, "UNI-hostile")
	for i, r := range receivers {
		d := s.delivery(t, keys[i/perCustomer], subs[i], 1)
		t.Run(r.name, func(t *testing.T) { secCheckHostile(t, r, d) })
	}
	secCheckMemory(t, s)
	// They do not hold up a stop either: the healthy one has its second event,
	// and others are in the middle of theirs.
	s.publish(t, "UNI-hostile-2")
	healthy := slices.IndexFunc(receivers, func(r secHostile) bool { return r.name == "TLS: a good one" })
	secUntil(t, "the second event", func() bool {
		return strings.Count(s.stdout.String(), `"subscription_id":"`+subs[healthy]+`"`) >= 2
	})
	s.stop(t)
	if strings.Contains(s.stdout.String(), "FORGED") {
		t.Error("the log carries what a receiver has said")
	}
}

func secCheckHostile(t *testing.T, r secHostile, d secDelivery) {
	a := d.Attempts[0]
	status := 0
	if a.Status != nil {
		status = *a.Status
	}
	if r.races {
		if c := webhook.Category(a.ErrorCategory); c != "" && c != webhook.CategoryReset && c != webhook.CategoryConnectRefused {
			t.Errorf("ended in %q, status %d (%s)", c, status, a.ErrorDetail)
		}
	} else if a.ErrorCategory != string(r.want) || status != r.status {
		t.Errorf("ended in %q, status %d (%s), want %q, %d", a.ErrorCategory, status, a.ErrorDetail, r.want, r.status)
	}
	unclean := func(c rune) bool { return unicode.IsControl(c) || unicode.In(c, unicode.Cf, unicode.Zl, unicode.Zp) }
	if x := a.ResponseExcerpt; !strings.Contains(x, r.says) || len(x) > 512 || !utf8.ValidString(x) || strings.ContainsFunc(x, unclean) {
		t.Errorf("excerpt %q, %d bytes", x, len(x))
	}
	if strings.Contains(a.ErrorDetail, "FORGED") || strings.ContainsFunc(a.ErrorDetail, unclean) {
		t.Errorf("detail %q", a.ErrorDetail)
	}
	if next := d.NextAttemptAt; r.want != "" && (next == nil || time.Until(*next) > 24*time.Hour || time.Until(*next) < 100*time.Minute) {
		t.Errorf("next attempt at %v", next)
	}
}

// secCheckMemory bounds what the process has ever had: it has to live on a
// machine with 256 MB.
func secCheckMemory(t *testing.T, s *secServer) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Log("memory is not checked: ", err)
		return
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	t.Logf("at most %d MiB resident", kib>>10)
	if limit := 200 << 10; err != nil || kib > limit && !secRace() {
		t.Errorf("at most %d KiB resident, want %d", kib, limit)
	}
}

// secRace reports whether the race detector, which needs memory itself, is on.
func secRace() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}
