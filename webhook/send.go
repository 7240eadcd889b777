package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode"
)

// The times and sizes of one attempt.
const (
	connectTimeout = 3 * time.Second // DNS, TCP and TLS together
	answerTimeout  = 7 * time.Second // from then to the end of the answer
	totalTimeout   = connectTimeout + answerTimeout
	maxAnswer      = 16 << 10 // bytes of the answer's body that are read
	maxExcerpt     = 512      // bytes of it that are kept
	maxHeader      = 64 << 10 // bytes of the answer's headers
)

// Category is the bounded word for how an attempt failed; "" is success.
type Category string

// The categories.
const (
	CategoryDNS             Category = "dns"
	CategoryConnectRefused  Category = "connect_refused" // refused, or no way there
	CategoryConnectTimeout  Category = "connect_timeout"
	CategoryTLS             Category = "tls"
	CategoryTimeout         Category = "timeout"
	CategoryReset           Category = "reset"
	CategoryRedirect        Category = "http_redirect"
	Category4xx             Category = "http_4xx"
	Category429             Category = "http_429"
	Category5xx             Category = "http_5xx"
	CategoryResponseInvalid Category = "response_invalid"
	CategoryBlocked         Category = "blocked_address"
	CategoryInternal        Category = "internal" // our fault; never counted against the customer
)

// Request is one HTTP request to be made for a delivery.
type Request struct {
	URL        string
	Secrets    []string // newest first
	EventID    string
	EventType  Type
	DeliveryID string
	Attempt    int // from 1
	Body       []byte
}

// Result is what came of a request.
type Result struct {
	StartedAt  time.Time
	Duration   time.Duration
	Status     int // HTTP; 0: no answer
	Category   Category
	Detail     string        // the failure in words
	Reason     BlockedReason // the guard's word, with CategoryBlocked
	Excerpt    string        // the first bytes of the answer's body, masked
	RemoteAddr string
	RetryAfter time.Duration
	// Interrupted: the service stopped it. Nothing is known, and it counts as
	// no attempt.
	Interrupted bool
}

// OK reports whether the receiver has accepted the event.
func (r Result) OK() bool { return r.Category == "" }

// Sender makes requests to customers' URLs. It holds the only HTTP transport in
// the program that does: every address goes through the guard, and no redirect
// is followed.
type Sender struct {
	// Kill stops every request while it is on. NewSender makes one that is off.
	Kill *KillSwitch

	guard     *Guard
	names     headerNames
	userAgent string
	transport http.RoundTripper

	mu      sync.Mutex
	checked map[string]checkedURL // by their text
}

// headerNames are the names of the headers with the brand in them, in the form
// that they are sent in.
type headerNames struct{ event, delivery, attempt, signature string }

func newHeaderNames(brand string) headerNames {
	name := func(what string) string { return http.CanonicalHeaderKey("X-" + brand + "-" + what) }
	return headerNames{name("Event"), name("Delivery"), name("Attempt"), name("Signature")}
}

// checkedURL is what the guard says of a URL.
type checkedURL struct {
	url *url.URL // not to be changed
	err error
}

// maxChecked is how many URLs' verdicts are remembered before all of them are
// forgotten.
const maxChecked = 4096

// NewSender returns a sender. brand is in its header names and User-Agent.
func NewSender(guard *Guard, brand, version string) *Sender {
	s := &Sender{Kill: NewKillSwitch(false), guard: guard, names: newHeaderNames(brand), userAgent: brand + "-Webhooks/" + version}
	// Made from nothing, never cloned from the default one: a proxy taken from
	// the environment would hide every address from the guard.
	s.transport = &http.Transport{
		Proxy: nil, DialContext: s.dial, DialTLSContext: s.dialTLS, ForceAttemptHTTP2: true,
		DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		MaxIdleConns: 256, MaxIdleConnsPerHost: 8, IdleConnTimeout: 60 * time.Second,
	}
	return s
}

// Close drops the idle connections.
func (s *Sender) Close() {
	if t, ok := s.transport.(*http.Transport); ok { // tests have others
		t.CloseIdleConnections()
	}
}

func (s *Sender) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return s.guard.DialContext(ctx, network, address)
}

func (s *Sender) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := s.guard.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		conn.Close()
		return nil, err
	}
	secure := tls.Client(conn, &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}})
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, &handshakeError{err}
	}
	return secure, nil
}

// handshakeError tells a failed handshake from a failed connection.
type handshakeError struct{ err error }

func (e *handshakeError) Error() string { return e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

var errAnswerTimeout = errors.New("no complete answer in time")

// Send makes one request, signed at this moment, and waits for its answer for
// totalTimeout at most. When ctx ends, the request is cancelled and the result
// says Interrupted, unless the answer's header was there already; and so it does
// when the kill switch is on, or goes on before the request reaches the wire.
func (s *Sender) Send(ctx context.Context, r Request) Result {
	started := time.Now()
	res := s.send(ctx, r, started)
	res.StartedAt, res.Duration = started, time.Since(started)
	return res
}

// check judges a URL's text: the rules may have changed since it was stored. As
// long as the process runs they do not, and a subscription's URL is the same for
// each delivery.
func (s *Sender) check(raw string) (*url.URL, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.checked[raw]
	if !ok {
		if len(s.checked) >= maxChecked || s.checked == nil {
			s.checked = map[string]checkedURL{}
		}
		if _, c.err = s.guard.CheckURL(raw); c.err == nil {
			c.url, c.err = url.Parse(raw)
		}
		s.checked[raw] = c
	}
	return c.url, c.err
}

func (s *Sender) send(parent context.Context, r Request, now time.Time) Result {
	to, err := s.check(r.URL)
	if err != nil {
		return failure(err, false)
	}
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	timer := time.AfterFunc(totalTimeout, func() { cancel(errAnswerTimeout) })
	defer timer.Stop()
	var way flight
	defer way.watch(s.Kill, cancel)()
	var remote atomic.Value
	var answering atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			way.gotConn(info)
			timer.Reset(answerTimeout)
			remote.Store(info.Conn.RemoteAddr().String())
		},
		GotFirstResponseByte: func() { answering.Store(true) },
	})
	req, err := s.request(ctx, to, r, now)
	if err != nil {
		return Result{Category: CategoryInternal, Detail: "the request could not be made"}
	}
	if way.halted() || s.Kill.stopped() && way.phase.CompareAndSwap(flightWaiting, flightHalted) {
		return Result{Interrupted: true}
	}
	// No http.Client: it reads the Location of a redirect that it will not
	// follow, and fails where that is not a URL.
	resp, err := s.transport.RoundTrip(req)
	address, _ := remote.Load().(string)
	if err != nil {
		if parent.Err() != nil || way.halted() {
			return Result{Interrupted: true}
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		res := failure(err, answering.Load())
		res.RemoteAddr = address
		return res
	}
	defer resp.Body.Close()
	res := judge(resp.StatusCode)
	res.RemoteAddr, res.RetryAfter = address, retryAfter(resp.Header.Get("Retry-After"), time.Now()) // a date is counted from the answer on
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return res // its body is the connection itself, which no deadline ends: never read
	}
	// The header block is complete: whatever the body does now changes nothing.
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	res.Excerpt = excerpt(body)
	return res
}

func (s *Sender) request(ctx context.Context, to *url.URL, r Request, now time.Time) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	req.URL, req.Host = to, to.Host
	sigs := sign(r.Secrets, r.EventID, now, r.Body)
	values := [...]string{"application/json; charset=utf-8", s.userAgent, string(r.EventType), r.DeliveryID, strconv.Itoa(r.Attempt), sigs.stripe,
		r.EventID, strconv.FormatInt(now.Unix(), 10), sigs.standard}
	for i, name := range [...]string{"Content-Type", "User-Agent", s.names.event, s.names.delivery, s.names.attempt, s.names.signature,
		"Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"} {
		req.Header[name] = values[i : i+1 : i+1]
	}
	return req, nil
}

// judge classifies an answer by its status.
func judge(status int) Result {
	r := Result{Status: status}
	switch {
	case status >= 200 && status < 300:
	case status >= 300 && status < 400:
		r.Category, r.Detail = CategoryRedirect, "redirects are not followed"
	case status == http.StatusTooManyRequests:
		r.Category = Category429
	case status >= 400 && status < 500:
		r.Category = Category4xx
	case status >= 500:
		r.Category = Category5xx
	default:
		r.Category, r.Detail = CategoryResponseInvalid, "not an HTTP status"
	}
	return r
}

// failure classifies a request that got no answer. answering: a part of one
// had come.
func failure(err error, answering bool) Result {
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		return Result{Category: CategoryBlocked, Reason: refusal.Reason, Detail: refusal.Detail}
	}
	category := categoryOf(err, answering)
	return Result{Category: category, Detail: words(category, err)}
}

func categoryOf(err error, answering bool) Category {
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return CategoryDNS
	}
	if _, ok := errors.AsType[*handshakeError](err); ok {
		if isTimeout(err) {
			return CategoryConnectTimeout
		}
		return CategoryTLS
	}
	op, _ := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, errAnswerTimeout):
		return CategoryTimeout
	case isOurs(err):
		return CategoryInternal
	case isTimeout(err):
		return CategoryConnectTimeout
	case errors.Is(err, syscall.ECONNREFUSED) || op != nil && op.Op == "dial":
		return CategoryConnectRefused
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), op != nil:
		return CategoryReset
	case answering:
		return CategoryResponseInvalid
	}
	return CategoryReset
}

func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

// isOurs reports a failure of this machine, not of the receiver.
func isOurs(err error) bool {
	for _, ours := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, ours) {
			return true
		}
	}
	return false
}

// words says a failure so that the receiver's owner can act on it. The error's
// own text may carry our addresses and is not shown.
func words(category Category, err error) string {
	switch category {
	case CategoryDNS:
		if e, _ := errors.AsType[*net.DNSError](err); e.IsNotFound {
			return "the host name does not resolve"
		}
		return "the host name could not be looked up"
	case CategoryConnectRefused:
		return "the connection was refused"
	case CategoryConnectTimeout:
		return fmt.Sprintf("no connection within %s", connectTimeout)
	case CategoryTimeout:
		return fmt.Sprintf("no complete answer within %s", answerTimeout)
	case CategoryTLS:
		return tlsWords(err)
	case CategoryReset:
		return "the connection ended before an answer came"
	case CategoryResponseInvalid:
		return "the answer is not HTTP"
	}
	return "a fault on our side; this is not counted against you"
}

func tlsWords(err error) string {
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		if days := int(time.Since(e.Cert.NotAfter).Hours() / 24); days >= 0 && time.Now().After(e.Cert.NotAfter) {
			return fmt.Sprintf("the TLS certificate expired %d days ago", days)
		}
		return "the TLS certificate is not valid yet"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "the TLS certificate is for another host name"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the TLS certificate is signed by an unknown authority (is the intermediate certificate missing?)"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "the port does not speak TLS"
	}
	return "the TLS handshake failed"
}

// secretLike matches what must not be kept when a receiver echoes it: our
// keys and secrets, bearer tokens, signatures. Ours are found in the middle of
// a word too: a JSON text has "\nwhsec_…" as a backslash and "nwhsec_…".
var secretLike = regexp.MustCompile(`(?i)(whsec_|jpk_|\b(sk_|mgp_|rk_))[A-Za-z0-9_-]{8,}|\bbearer\s+[A-Za-z0-9._~+/=-]{8,}|\bv1[=,][A-Za-z0-9+/=]{40,}`)

// Mask replaces what looks like a secret.
func Mask(text string) string { return secretLike.ReplaceAllString(text, "[masked]") }

// excerpt keeps the first bytes of an answer's body, one line of clean text
// with what looks like a secret masked.
func excerpt(body []byte) string {
	masked := Mask(strings.ToValidUTF8(string(body), "\uFFFD"))
	clean := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, masked)
	if len(clean) <= maxExcerpt {
		return clean
	}
	return strings.ToValidUTF8(clean[:maxExcerpt], "")
}
