package modelgatetest_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"jpintel/billing/modelgatetest"
)

// patience bounds each wait for what is about to happen.
const patience = time.Minute

// partner is a client as plain as it can be: every request has a connection of
// its own.
type partner struct {
	t    testing.TB
	u    *modelgatetest.Upstream
	http *http.Client
	keys atomic.Int64
}

func start(t testing.TB, options modelgatetest.Options, rules ...modelgatetest.Rule) *partner {
	t.Helper()
	p := serve(t, modelgatetest.New(options))
	p.faults(rules...)
	return p
}

// serve is start for an upstream that is there.
func serve(t testing.TB, u *modelgatetest.Upstream) *partner {
	t.Helper()
	return &partner{t: t, u: u.Start(t), http: &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (p *partner) faults(rules ...modelgatetest.Rule) {
	p.t.Helper()
	if err := p.u.AddFaults(rules...); err != nil {
		p.t.Fatal(err)
	}
}

// dial is a connection of which nothing is known.
func (p *partner) dial() net.Conn {
	p.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(p.u.BaseURL(), "http://"), "/v1"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	return conn
}

// answer is what came back. err: of the connection, or of reading the body.
type answer struct {
	err    error
	status int
	header http.Header
	text   string
}

// get is a member of the body, by a path of names and indexes.
func (a answer) get(path ...any) any {
	var v any
	dec := json.NewDecoder(strings.NewReader(a.text))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return err
	}
	for _, step := range path {
		switch step := step.(type) {
		case string:
			object, _ := v.(map[string]any)
			v = object[step]
		case int:
			list, _ := v.([]any)
			if step >= len(list) {
				return nil
			}
			v = list[step]
		}
	}
	return v
}

func (a answer) str(path ...any) string {
	s, _ := a.get(path...).(string)
	return s
}

// code is an error's.
func (a answer) code() string { return a.str("error", "code") }

// request builds one; headers are pairs of a name and a value. A mutation has a
// key of its own unless they name one; with "-" it has none.
func (p *partner) request(method, path string, body any, headers ...string) *http.Request {
	p.t.Helper()
	text, isText := body.(string)
	if body != nil && !isText {
		encoded, err := json.Marshal(body)
		if err != nil {
			p.t.Fatal(err)
		}
		text = string(encoded)
	}
	req, err := http.NewRequest(method, p.u.BaseURL()+path, strings.NewReader(text))
	if err != nil {
		p.t.Fatal(err)
	}
	req.GetBody = nil
	req.Header.Set("Authorization", "Bearer "+modelgatetest.DevToken)
	if text != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if method != "GET" {
		req.Header.Set("Idempotency-Key", "key-"+strconv.FormatInt(p.keys.Add(1), 10))
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if req.Header.Del(headers[i]); headers[i+1] != "-" {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	return req
}

func (p *partner) send(req *http.Request) answer {
	resp, err := p.http.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{err, resp.StatusCode, resp.Header, string(text)}
}

func (p *partner) call(method, path string, body any, headers ...string) answer {
	p.t.Helper()
	return p.send(p.request(method, path, body, headers...))
}

// must is a call that is answered with a status.
func (p *partner) must(status int, method, path string, body any, headers ...string) answer {
	p.t.Helper()
	a := p.call(method, path, body, headers...)
	if a.err != nil || a.status != status {
		p.t.Fatalf("%s %s: %d %s (%v), want %d", method, path, a.status, a.text, a.err, status)
	}
	return a
}

// group makes one, and returns its id.
func (p *partner) group(ref string) string {
	p.t.Helper()
	return p.must(201, "POST", "/groups", object{"name": "A customer", "external_ref": ref}).str("id")
}

// object is a JSON object.
type object = map[string]any

func usd(amount string) object { return object{"amount": amount, "currency": "USD"} }

func limit(amount, version string) object {
	return object{"spend_limit": amount, "currency": "USD", "period": "month", "policy_version": version}
}

// until waits for a state.
func (p *partner) until(what string, condition func(modelgatetest.State) bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.u.Await(ctx, condition); err != nil {
		p.t.Fatalf("waited in vain until %s", what)
	}
}
