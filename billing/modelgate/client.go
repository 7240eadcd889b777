// Package modelgate is the client of the partner API that groups, model keys,
// limits and credit live behind. Nothing else in the program knows its wire.
//
// A mutation is rendered once, into a [Request]: the caller stores its bytes and
// sends those, however often. [Client.Send] makes exactly one HTTP request of it
// and returns one classified [Outcome]; it decides nothing and tries nothing
// again. What the answer means is judged against what was sent: a 200 that
// confirms another amount is no success.
//
// What the transport will not do: send a request twice (net/http does that by
// itself on a kept connection that dies, when there is an Idempotency-Key: so
// every request has a connection of its own), follow a redirect (a 302 makes a
// GET of a POST, and the GET's 200 looks like success), go through a proxy of the
// environment, or let a request begin after the caller's lease has run out.
//
// wire.go has every path and field name, so that another contract is another
// wire.go. Nothing here is stored; texts that may be are free of secrets.
package modelgate

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// Timeout is the most that one request may take, from dialling to the last
	// byte of the answer. A client may be told to wait for less.
	Timeout = 20 * time.Second
	// dialTimeout is the part of it for a connection.
	dialTimeout = 3 * time.Second
	// maxAnswer is the most bytes of an answer that are read.
	maxAnswer = 1 << 20
	// maxAnswerHeader is the most bytes of its header.
	maxAnswerHeader = 64 << 10
)

// Client calls one partner account. All methods may be called from any
// goroutine.
type Client struct {
	base  *url.URL
	key   string
	agent string
	most  time.Duration // a request may take
	tls   *tls.Config
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
}

// Options says how to reach the partner API.
type Options struct {
	BaseURL string // https; http on loopback addresses only
	APIKey  string
	Version string // of this program, for the User-Agent
	// Timeout is the most that a request may take. Default, and at most: Timeout.
	Timeout time.Duration
	// TLS is for tests with certificates of their own. Default: the system's.
	TLS *tls.Config
	// Dial is for tests without a network. Default: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// New returns a client. It makes no request.
func New(opt Options) (*Client, error) {
	base, err := CheckBaseURL(opt.BaseURL)
	if err != nil {
		return nil, err
	}
	if !ValidAPIKey(opt.APIKey) {
		return nil, errors.New("the API key must be printable ASCII without spaces")
	}
	config := &tls.Config{}
	if opt.TLS != nil {
		config = opt.TLS.Clone()
	}
	config.MinVersion = tls.VersionTLS12
	if opt.Dial == nil {
		opt.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	return &Client{base: base, key: opt.APIKey, agent: "jpintel/" + cmp.Or(opt.Version, "dev"), most: min(cmp.Or(opt.Timeout, Timeout), Timeout), tls: config, dial: opt.Dial}, nil
}

// CheckBaseURL judges a base URL: https, or http to this machine.
func CheckBaseURL(text string) (*url.URL, error) {
	base, err := url.Parse(text)
	switch {
	case err != nil || base.Hostname() == "" || base.Opaque != "":
		return nil, errors.New("want a URL like https://partner.modelgate.example/v1")
	case base.User != nil || base.RawQuery != "" || base.ForceQuery || base.Fragment != "":
		return nil, errors.New("want a URL without user, query and fragment")
	case base.Scheme != "https" && !(base.Scheme == "http" && loopback(base.Hostname())):
		return nil, errors.New("want https; http is for this machine's own addresses only")
	}
	base.Path, base.RawPath = strings.TrimSuffix(base.Path, "/"), ""
	return base, nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// ValidAPIKey reports whether a key can be sent in a header.
func ValidAPIKey(key string) bool {
	return key != "" && !strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' })
}

// reply is what came back for one HTTP request.
type reply struct {
	status int // 0: none
	header http.Header
	body   []byte
	wrote  bool  // a part of the request may have left
	err    error // of the request, or of reading the answer
}

// errLate says that the caller's time had run out before the request began.
var errLate = errors.New("the time for this request had run out before it began")

// exchange makes one request, which may begin until then and not later, by the
// wall clock: a machine that was suspended has lost its lease.
func (c *Client) exchange(ctx context.Context, r Request, until time.Time) (answer reply) {
	ctx, cancel := context.WithTimeout(ctx, c.most)
	defer cancel()
	w := &watch{until: until.Round(0)}
	defer func() { answer.wrote = w.wrote.Load() }()
	req, err := c.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { w.armed.Store(true) }}), r)
	if err != nil {
		return reply{err: err}
	}
	transport := c.transport(w)
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return reply{err: cmp.Or(w.why(), err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		body, err = body[:maxAnswer], errTooLarge
	}
	return reply{status: resp.StatusCode, header: resp.Header, body: body, err: err}
}

var errTooLarge = fmt.Errorf("the answer has more than %d bytes", maxAnswer)

func (c *Client) request(ctx context.Context, r Request) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, c.base.String()+r.Path, nil)
	if err != nil {
		return nil, fmt.Errorf("%s %s: not a request", r.Method, r.Path)
	}
	if r.Body != nil { // without GetBody: it cannot be rewound and sent again
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(r.Body)), int64(len(r.Body))
		req.Header.Set("Content-Type", "application/json")
	}
	if r.Key != "" {
		req.Header.Set("Idempotency-Key", r.Key)
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", c.agent)
	return req, nil
}

// transport is good for one request: there is no other connection that this one
// could be confused with, and none is kept.
func (c *Client) transport(w *watch) *http.Transport {
	return &http.Transport{
		Proxy: nil, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxAnswerHeader,
		TLSClientConfig: c.tls.Clone(), TLSHandshakeTimeout: dialTimeout,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			conn, err := c.dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return watched{conn, w}, nil
		},
	}
}

// watch sees the bytes of one request leave.
type watch struct {
	until time.Time
	armed atomic.Bool // the connection is ready: what is written now is the request
	wrote atomic.Bool
	late  atomic.Bool
}

// why is what the transport's own error hides.
func (w *watch) why() error {
	if w.late.Load() {
		return errLate
	}
	return nil
}

type watched struct {
	net.Conn
	w *watch
}

// Write implements net.Conn.
func (c watched) Write(b []byte) (int, error) {
	if c.w.armed.Load() && !c.w.wrote.Load() {
		if time.Now().Round(0).After(c.w.until) {
			c.w.late.Store(true)
			return 0, errLate
		}
		c.w.wrote.Store(true)
	}
	return c.Conn.Write(b)
}
