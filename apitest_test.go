package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"jpintel/webhook"
)

// What tests need that talk to a running server:
//
//	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=10ms,10ms")
//	cus := s.customer("cus_a", "paid")
//	hook := newReceiver(t, nil)
//	sub := cus.subscribe(hook, "program.created")
//	s.admin.call("PUT", "/v1/admin/programs/UNI-1", `{"primary_name":"補助金"}`, 201)
//	got := hook.wait(1)[0]
//
// Every answer, and every webhook that arrives, is held against
// docs/openapi.yaml: what the document does not have fails the test.

// patience bounds every wait. It is no measure of anything: a test that runs
// into it has failed.
const patience = time.Minute

// eventually waits until cond holds, and fails the test where it never does.
func eventually(t *testing.T, cond func() bool) {
	t.Helper()
	pause := 2 * time.Millisecond
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(pause) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain", patience)
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// --- the server ---

const testAdminToken = "admin-token-of-the-tests-0123456789"

// testServer is `jpintel serve` in this process, on a file and a port of its
// own.
type testServer struct {
	base  string      // http://127.0.0.1:…
	admin *testClient // the operator
	log   *testLog

	t       *testing.T
	env     map[string]string // JPINTEL_DB is the file
	mu      sync.Mutex
	clients map[string]*http.Client // by the address that they call from
	end     context.CancelFunc      // nil: it is not running
	done    chan error
}

// newServer starts a server that may call receivers on this machine, without
// limits on calls a second, and stops it with the test. env are entries
// NAME=value over its environment; an empty value unsets. The server's log is
// shown when the test fails.
func newServer(t *testing.T, env ...string) *testServer {
	t.Helper()
	s := &testServer{t: t, log: &testLog{}, clients: map[string]*http.Client{}, env: map[string]string{
		"JPINTEL_DB": filepath.Join(t.TempDir(), "jpintel.db"), "JPINTEL_ADDR": "127.0.0.1:0", "JPINTEL_ADMIN_TOKEN": testAdminToken,
		"JPINTEL_WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8", "JPINTEL_WEBHOOK_ALLOW_HTTP": "1",
		"JPINTEL_API_RATE": "0", "JPINTEL_WEBHOOK_RATE": "0",
	}}
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		s.env[name] = value
	}
	s.admin = &testClient{server: s, header: http.Header{"Authorization": {"Bearer " + testAdminToken}}}
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			t.Logf("the server's log:\n%s", s.log)
		}
	})
	s.start()
	return s
}

func (s *testServer) getenv(name string) string { return s.env[name] }

// start starts the server again on its file, after stop.
func (s *testServer) start() {
	s.t.Helper()
	ctx, end := context.WithCancel(context.Background())
	done, starts := make(chan error, 1), len(s.log.entries("listening"))
	go func() { done <- run(ctx, []string{"serve"}, s.getenv, strings.NewReader(""), s.log, s.log) }()
	s.end, s.done = end, done
	eventually(s.t, func() bool { return len(s.log.entries("listening")) > starts || len(done) > 0 })
	listening := s.log.entries("listening")
	if len(listening) == starts {
		s.end = nil
		s.t.Fatalf("the server did not start: %v", <-done)
	}
	s.base = fmt.Sprintf("http://%s", listening[starts]["addr"])
}

// stop ends the server as SIGTERM does, waits for it, and fails the test where
// it did not end well. Stopping it again does nothing.
func (s *testServer) stop() {
	s.t.Helper()
	if s.end == nil {
		return
	}
	s.closeIdle() // a connection that was never used would be waited for
	s.end()
	s.end = nil
	select {
	case err := <-s.done:
		if err != nil {
			s.t.Errorf("serve: %v", err)
		}
	case <-time.After(patience):
		s.t.Error("the server does not stop")
	}
}

// http returns the client that calls from this address of the machine; "" leaves
// it to the machine.
func (s *testServer) http(from string) *http.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients[from] == nil {
		dialer := &net.Dialer{}
		if from != "" {
			dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		s.clients[from] = &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 64}, Timeout: patience}
	}
	return s.clients[from]
}

func (s *testServer) closeIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		c.CloseIdleConnections()
	}
}

// command runs another command of the program beside the server, on the same
// file, and returns what it wrote to standard output.
func (s *testServer) command(args ...string) string {
	s.t.Helper()
	var out, words bytes.Buffer
	if err := run(context.Background(), args, s.getenv, strings.NewReader(""), &out, &words); err != nil {
		s.t.Fatalf("jpintel %s: %v\n%s", strings.Join(args, " "), err, &words)
	}
	return out.String()
}

// customer adds a customer and makes it an API key.
func (s *testServer) customer(id, tier string) *testClient {
	s.t.Helper()
	s.admin.call("POST", "/v1/admin/customers", map[string]any{"customer_id": id, "tier": tier}, 201)
	return s.client(id)
}

// client makes a key for a customer that is there.
func (s *testServer) client(id string) *testClient {
	s.t.Helper()
	key := decode[createKeyAnswer](s.t, s.admin.call("POST", "/v1/admin/customers/"+id+"/keys", nil, 201))
	return &testClient{server: s, id: id, keyID: key.KeyID, header: http.Header{"X-Api-Key": {key.APIKey}}}
}

// testLog is a server's output, which may be read while it is written.
type testLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *testLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// entries returns the log's entries with this message.
func (l *testLog) entries(msg string) []map[string]any {
	var all []map[string]any
	for line := range strings.Lines(l.String()) {
		var entry map[string]any
		if json.Unmarshal([]byte(line), &entry) == nil && entry["msg"] == msg {
			all = append(all, entry)
		}
	}
	return all
}

// --- its callers ---

// testClient calls the server as one caller.
type testClient struct {
	server    *testServer
	id, keyID string // the customer and its API key; "" for the operator
	header    http.Header
	from      string // the address that it calls from; "": any
}

// with returns the same caller with a header set, or without it where value is
// empty.
func (c *testClient) with(name, value string) *testClient {
	other := *c
	other.header = c.header.Clone()
	if value == "" {
		other.header.Del(name)
	} else {
		other.header.Set(name, value)
	}
	return &other
}

// at returns the same caller at another address of this machine, 127.0.0.0/8:
// wrong keys are limited by address.
func (c *testClient) at(from string) *testClient {
	other := *c
	other.from = from
	return &other
}

// testAnswer is what came back.
type testAnswer struct {
	status int
	header http.Header
	body   string
}

// call calls the API and fails the test where the answer has another status or
// is not as the document says. body is sent as it is where it is a string, else
// as JSON; nil is none.
func (c *testClient) call(method, path string, body any, status int) testAnswer {
	c.server.t.Helper()
	a := c.try(method, path, body)
	if a.status != status {
		c.server.t.Fatalf("%s %s %.200v: %d %s, want %d", method, path, body, a.status, a.body, status)
	}
	return a
}

// refused is call for what has to fail with exactly this text.
func (c *testClient) refused(method, path string, body any, status int, detail string) {
	c.server.t.Helper()
	if a := c.call(method, path, body, status); a.body != errorBody(detail) {
		c.server.t.Errorf("%s %s %.200v: %s, want detail %q", method, path, body, a.body, detail)
	}
}

func errorBody(detail string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(map[string]string{"detail": detail}) // always encodes
	return b.String()
}

// try is call where every status is welcome that the document has.
func (c *testClient) try(method, path string, body any) testAnswer {
	c.server.t.Helper()
	a, err := c.send(method, path, body)
	if err != nil {
		c.server.t.Fatal(err)
	}
	return a
}

// send is try for other goroutines than the test's own. An error says that there
// was no answer, or not one that the document has.
func (c *testClient) send(method, path string, body any) (testAnswer, error) {
	return c.do(method, path, body, checkAnswer)
}

// undocumented is call for what the document does not have: unknown paths and
// methods.
func (c *testClient) undocumented(method, path string) testAnswer {
	c.server.t.Helper()
	return c.undocumentedWith(method, path, nil)
}

// undocumentedWith is undocumented with a body.
func (c *testClient) undocumentedWith(method, path string, body any) testAnswer {
	c.server.t.Helper()
	a, err := c.do(method, path, body, func(*http.Request, testAnswer) error { return nil })
	if err != nil {
		c.server.t.Fatal(err)
	}
	return a
}

func (c *testClient) do(method, path string, body any, check func(*http.Request, testAnswer) error) (testAnswer, error) {
	text, isText := body.(string)
	if body != nil && !isText {
		encoded, err := json.Marshal(body)
		if err != nil {
			return testAnswer{}, err
		}
		text = string(encoded)
	}
	req, err := http.NewRequest(method, c.server.base+path, strings.NewReader(text))
	if err != nil {
		return testAnswer{}, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, values := range c.header {
		req.Header[name] = values
	}
	resp, err := c.server.http(c.from).Do(req)
	if err != nil {
		return testAnswer{}, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return testAnswer{}, err
	}
	a := testAnswer{resp.StatusCode, resp.Header, string(got)}
	req.Body = io.NopCloser(strings.NewReader(text))
	if err := check(req, a); err != nil {
		return a, fmt.Errorf("%s %s: %d %s\n%w", method, path, a.status, a.body, err)
	}
	return a, nil
}

// decode reads an answer's body.
func decode[T any](t *testing.T, a testAnswer) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("%s: %v", a.body, err)
	}
	return v
}

// get reads an object or a page.
func get[T any](c *testClient, path string) T {
	c.server.t.Helper()
	return decode[T](c.server.t, c.call("GET", path, nil, 200))
}

// subscribe registers a receiver for these event types.
func (c *testClient) subscribe(r *testReceiver, types ...webhook.Type) webhook.SubscribeAnswer {
	c.server.t.Helper()
	return c.subscribeWith(map[string]any{"url": r.url, "events": types})
}

// subscribeWith is subscribe with the whole body.
func (c *testClient) subscribeWith(body map[string]any) webhook.SubscribeAnswer {
	c.server.t.Helper()
	return decode[webhook.SubscribeAnswer](c.server.t, c.call("POST", "/v1/webhooks/subscribe", body, 201))
}

// --- a customer's endpoint ---

// testReceiver is a customer's endpoint. It keeps all that arrives.
type testReceiver struct {
	url string

	t   *testing.T
	mu  sync.Mutex
	got []received
}

// received is one request that arrived.
type received struct {
	header http.Header
	body   string
}

// newReceiver starts an endpoint, until the test ends. answer says which status
// to answer the nth request (from 1) with; it may block. nil answers 204.
func newReceiver(t *testing.T, answer func(n int, r received) int) *testReceiver {
	t.Helper()
	r := &testReceiver{t: t}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Errorf("a webhook's body: %v", err)
		}
		got := received{req.Header.Clone(), string(body)}
		if err := checkWebhook(req, got); err != nil {
			t.Errorf("a webhook is not as the document says: %v\n%s", err, body)
		}
		n := r.keep(got)
		status := http.StatusNoContent
		if answer != nil {
			status = answer(n, got)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	r.url = server.URL + "/"
	return r
}

func (r *testReceiver) keep(got received) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, got)
	return len(r.got)
}

// all returns what has arrived so far, in that order.
func (r *testReceiver) all() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]received(nil), r.got...)
}

// wait waits until n requests have arrived, and returns all.
func (r *testReceiver) wait(n int) []received {
	r.t.Helper()
	eventually(r.t, func() bool { return len(r.all()) >= n })
	return r.all()
}

// --- the document ---

// apiDocument is docs/openapi.yaml.
type apiDocument struct {
	*openapi3.T
	router routers.Router

	mu       sync.Mutex
	compiled map[*openapi3.Schema]*jsonschema.Schema
}

var loadDocument = sync.OnceValues(func() (*apiDocument, error) {
	doc, err := openapi3.NewLoader().LoadFromFile(filepath.Join("docs", "openapi.yaml"))
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, err
	}
	router, err := gorillamux.NewRouter(doc)
	return &apiDocument{T: doc, router: router, compiled: map[*openapi3.Schema]*jsonschema.Schema{}}, err
})

// document returns docs/openapi.yaml.
func document(t *testing.T) *apiDocument {
	t.Helper()
	doc, err := loadDocument()
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// filterOptions leave the bodies out: openapi3filter compiles their schemas for
// every call, which takes longer than all else that these tests do.
var filterOptions = &openapi3filter.Options{
	IncludeResponseStatus: true, ExcludeRequestBody: true, ExcludeResponseBody: true,
	AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, SkipSettingDefaults: true,
}

// checkAnswer holds an answer against the document; and a request that was
// served too, for the document has to allow what the server takes.
func checkAnswer(req *http.Request, a testAnswer) error {
	doc, err := loadDocument()
	if err != nil {
		return err
	}
	route, params, err := doc.router.FindRoute(req)
	if err != nil {
		return err
	}
	in := &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route, Options: filterOptions}
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: a.status, Header: a.header, Options: filterOptions}
	if err := openapi3filter.ValidateResponse(context.Background(), out); err != nil {
		return err
	}
	content := route.Operation.Responses.Status(a.status).Value.Content
	if err := doc.checkContent(content, a.header.Get("Content-Type"), a.body); err != nil {
		return err
	}
	if media := content.Get("application/json"); media != nil && media == content.Get(a.header.Get("Content-Type")) {
		var body any
		if err := json.Unmarshal([]byte(a.body), &body); err != nil {
			return err
		}
		if name := unknownMember(media.Schema.Value, body); name != "" {
			return fmt.Errorf("the document does not have %s", name)
		}
	}
	if a.status < 300 {
		if err := doc.checkRequest(in); err != nil {
			return fmt.Errorf("the server takes what the document does not: %w", err)
		}
	}
	return nil
}

// checkWebhook holds a request that arrived against the document.
func checkWebhook(req *http.Request, got received) error {
	doc, err := loadDocument()
	if err != nil {
		return err
	}
	item := doc.Webhooks[req.Header.Get("X-Jpintel-Event")]
	if item == nil {
		return fmt.Errorf("the document does not have the event type %q", req.Header.Get("X-Jpintel-Event"))
	}
	req = req.Clone(context.Background())
	req.Body = io.NopCloser(strings.NewReader(got.body))
	return doc.checkRequest(&openapi3filter.RequestValidationInput{
		Request: req, Route: &routers.Route{Spec: doc.T, PathItem: item, Method: http.MethodPost, Operation: item.Post}, Options: filterOptions,
	})
}

func (d *apiDocument) checkRequest(in *openapi3filter.RequestValidationInput) error {
	if err := openapi3filter.ValidateRequest(context.Background(), in); err != nil {
		return err
	}
	body := in.Route.Operation.RequestBody
	text, err := io.ReadAll(in.Request.Body)
	if err != nil || body == nil || len(text) == 0 && !body.Value.Required {
		return err
	}
	return d.checkContent(body.Value.Content, in.Request.Header.Get("Content-Type"), string(text))
}

// checkContent holds a body against what the document says of its content type.
func (d *apiDocument) checkContent(content openapi3.Content, contentType, text string) error {
	if len(content) == 0 {
		if text != "" {
			return errors.New("the document says that there is no body")
		}
		return nil
	}
	media := content.Get(contentType)
	if media == nil {
		return fmt.Errorf("the document does not have the content type %q", contentType)
	}
	if media != content.Get("application/json") {
		return nil // a stream
	}
	return d.check(media.Schema, text)
}

// check holds JSON against a schema of the document.
func (d *apiDocument) check(ref *openapi3.SchemaRef, text string) error {
	schema, err := d.compile(ref)
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

// compile compiles a schema together with those that it may refer to, once.
func (d *apiDocument) compile(ref *openapi3.SchemaRef) (*jsonschema.Schema, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if schema := d.compiled[ref.Value]; schema != nil {
		return schema, nil
	}
	text, err := json.Marshal(map[string]any{"components": d.Components, "schema": ref})
	if err != nil {
		return nil, err
	}
	whole, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("openapi.json", whole); err != nil {
		return nil, err
	}
	schema, err := c.Compile("openapi.json#/schema")
	d.compiled[ref.Value] = schema
	return schema, err
}

// unknownMember names a member of an answer that its schema does not describe.
// Clients have to allow such members; the document has to have them all.
func unknownMember(schema *openapi3.Schema, value any) string {
	known, open := members(schema)
	switch value := value.(type) {
	case map[string]any:
		for name, v := range value {
			member, ok := known[name]
			if !ok && !open {
				return name
			}
			if ok {
				if deeper := unknownMember(member, v); deeper != "" {
					return name + "." + deeper
				}
			}
		}
	case []any:
		for _, v := range value {
			if schema.Items == nil {
				return ""
			}
			if deeper := unknownMember(schema.Items.Value, v); deeper != "" {
				return deeper
			}
		}
	}
	return ""
}

// members returns the members that a schema describes. open: it has no say
// about them, or allows any.
func members(schema *openapi3.Schema) (known map[string]*openapi3.Schema, open bool) {
	known = map[string]*openapi3.Schema{}
	for name, member := range schema.Properties {
		known[name] = member.Value
	}
	for _, part := range append(append(openapi3.SchemaRefs{}, schema.AllOf...), schema.OneOf...) {
		more, _ := members(part.Value)
		for name, member := range more {
			known[name] = member
		}
	}
	return known, len(known) == 0
}
