package stripe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const listKey = "sk_test_0123456789abcdef"

// events is Stripe's list of events: the newest first, cut into pages.
type events struct {
	t        *testing.T
	all      []string // bodies
	mu       sync.Mutex
	requests []string // their queries
	answer   func(n int, w http.ResponseWriter) (handled bool)
}

func (e *events) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.requests = append(e.requests, r.URL.RawQuery)
	n := len(e.requests)
	e.mu.Unlock()
	if r.Method != "GET" || r.URL.Path != "/v1/events" || r.Header.Get("Authorization") != "Bearer "+listKey || r.Header.Get("Idempotency-Key") != "" {
		e.t.Errorf("%s %s %s", r.Method, r.URL, r.Header)
	}
	if e.answer != nil && e.answer(n, w) {
		return
	}
	start := 0
	if after := r.URL.Query().Get("starting_after"); after != "" {
		start = 1 + slices.IndexFunc(e.all, func(body string) bool { return strings.Contains(body, `"`+after+`"`) })
	}
	end := min(start+100, len(e.all))
	fmt.Fprintf(w, `{"object":"list","url":"/v1/events","data":[%s],"has_more":%t}`, strings.Join(e.all[start:end], ","), end < len(e.all))
}

// seen are the queries so far. An answer may still be on its way when its reader
// has given up.
func (e *events) seen() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.requests)
}

func eventBody(n int) string {
	return fmt.Sprintf(`{"id":"evt_%03d","object":"event", "type":"charge.refunded","data":{"object":{"amount":12.50}}}`, n)
}

func someEvents(t *testing.T, count int) (*events, *Lister) {
	t.Helper()
	e := &events{t: t}
	for i := range count {
		e.all = append(e.all, eventBody(i))
	}
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	l, err := NewLister(ListerOptions{APIKey: listKey, BaseURL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return e, l
}

// list reads all events.
func (l *Lister) list(since time.Time) (bodies []string, err error) {
	err = l.Events(context.Background(), since, func(body []byte) error {
		bodies = append(bodies, string(body))
		return nil
	})
	return bodies, err
}

func TestEventsAreListedToTheEnd(t *testing.T) {
	for count, pages := range map[int]int{0: 1, 1: 1, 100: 1, 101: 2, 250: 3} {
		e, l := someEvents(t, count)
		got, err := l.list(time.Unix(1767225600, 999))
		if err != nil || !slices.Equal(got, e.all) || len(e.seen()) != pages {
			t.Errorf("%d events, %d requests (%v), want %d and %d", len(got), len(e.seen()), err, count, pages)
		}
		if e.seen()[0] != "created%5Bgte%5D=1767225600&limit=100" || pages > 1 && e.seen()[1] != "created%5Bgte%5D=1767225600&limit=100&starting_after=evt_099" {
			t.Errorf("%q", e.seen())
		}
	}
}

// What is wrong ends the list with one request, and says so without quoting
// anything.
func TestListsThatFail(t *testing.T) {
	status := func(status int, header ...string) func(int, http.ResponseWriter) bool {
		return func(_ int, w http.ResponseWriter) bool {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"error":{"message":"Invalid API Key provided: `+listKey+`"}}`)
			return true
		}
	}
	says := func(body string) func(int, http.ResponseWriter) bool {
		return func(_ int, w http.ResponseWriter) bool {
			_, _ = io.WriteString(w, body)
			return true
		}
	}
	for name, c := range map[string]struct {
		answer func(int, http.ResponseWriter) bool
		code   string
	}{
		"401":              {status(401), "stripe_auth"},
		"403":              {status(403), "stripe_auth"},
		"429":              {status(429, "Retry-After", "1"), "stripe_rate_limited"},
		"500":              {status(500), "stripe_http_500"},
		"a redirect":       {status(302, "Location", "http://127.0.0.1:1/"), "stripe_http_302"},
		"cut off":          {func(int, http.ResponseWriter) bool { panic(http.ErrAbortHandler) }, "stripe_unreachable"},
		"cut in the body":  {status(200, "Content-Length", "9999"), "stripe_cut_off"},
		"no list":          {says(`{"object":"event"}`), "stripe_malformed"},
		"not JSON":         {says(`{"object":"list","data":[],"has_more":false} x`), "stripe_malformed"},
		"a list":           {says(`[]`), "stripe_malformed"},
		"null":             {says(`null`), "stripe_malformed"},
		"another case":     {says(`{"object":"list","Data":[],"has_more":false}`), "stripe_malformed"},
		"no more":          {says(`{"object":"list","data":[]}`), "stripe_malformed"},
		"more as text":     {says(`{"object":"list","data":[],"has_more":"true"}`), "stripe_malformed"},
		"more of nothing":  {says(`{"object":"list","data":[],"has_more":true}`), "stripe_malformed"},
		"not an event":     {says(`{"object":"list","data":[{"id":"ch_1","object":"charge"}],"has_more":false}`), "stripe_malformed"},
		"without an id":    {says(`{"object":"list","data":[{"object":"event"}],"has_more":false}`), "stripe_malformed"},
		"not even objects": {says(`{"object":"list","data":[1],"has_more":false}`), "stripe_malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			e, l := someEvents(t, 3)
			e.answer = c.answer
			got, err := l.list(time.Now())
			failed, ok := errors.AsType[*ListError](err)
			if !ok || failed.SweepCode() != c.code || len(got) != 0 || len(e.seen()) != 1 || strings.Contains(err.Error(), "0123") {
				t.Errorf("%v after %d requests, want %s", err, len(e.seen()), c.code)
			}
		})
	}
}

// Reading has an end, whatever Stripe does.
func TestListsAreBounded(t *testing.T) {
	e, l := someEvents(t, 3)
	e.answer = func(_ int, w http.ResponseWriter) bool { // the same page again
		fmt.Fprintf(w, `{"object":"list","data":[%s],"has_more":true}`, eventBody(1))
		return true
	}
	if got, err := l.list(time.Now()); !strings.HasSuffix(fmt.Sprint(err), "stripe_cursor_loop") || len(got) != 1 || len(e.seen()) != 2 {
		t.Errorf("%v after %d requests", err, len(e.seen()))
	}
	e, l = someEvents(t, 3)
	e.answer = func(n int, w http.ResponseWriter) bool { // always more
		fmt.Fprintf(w, `{"object":"list","data":[%s],"has_more":true}`, eventBody(n))
		return true
	}
	if got, err := l.list(time.Now()); !strings.HasSuffix(fmt.Sprint(err), "stripe_too_many") || len(got) != maxListPages {
		t.Errorf("%v after %d requests", err, len(e.seen()))
	}
	e, l = someEvents(t, 3)
	e.answer = func(_ int, w http.ResponseWriter) bool {
		page := strings.Repeat(" ", 1<<20)
		for range maxListPage>>20 + 2 {
			_, _ = io.WriteString(w, page)
		}
		return true
	}
	if _, err := l.list(time.Now()); !strings.HasSuffix(fmt.Sprint(err), "stripe_too_large") {
		t.Error(err)
	}
}

// Whoever takes the events can end the list, and so can whoever waits for it.
func TestAListIsEnded(t *testing.T) {
	e, l := someEvents(t, 150)
	enough := errors.New("enough")
	taken := 0
	err := l.Events(context.Background(), time.Now(), func([]byte) error {
		if taken++; taken == 7 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || taken != 7 || len(e.seen()) != 1 {
		t.Errorf("%v after %d events", err, taken)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Events(ctx, time.Now(), func([]byte) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestNewLister(t *testing.T) {
	for _, c := range []struct {
		base, key string
		ok        bool
	}{
		{"", "sk_live_1", true}, {"", "rk_live_1", true}, {DefaultBaseURL, "sk_test_1", true}, {"http://127.0.0.1:1", "sk_test_1", true}, {"http://localhost:1", "sk_test_1", true},
		{"", "", false}, {"", "sk_", false}, {"", "pk_live_1", false}, {"", "sk_live 1", false}, {"", "sk_live\n1", false},
		{"https://stripe.example", "sk_test_1", false}, {"http://api.stripe.com", "sk_test_1", false}, {"https://api.stripe.com:444", "sk_test_1", false}, {"https://api.stripe.com/x", "sk_test_1", false}, {"ftp://127.0.0.1", "sk_test_1", false},
	} {
		if _, err := NewLister(ListerOptions{APIKey: c.key, BaseURL: c.base}); (err == nil) != c.ok {
			t.Errorf("%q with %q: %v", c.base, c.key, err)
		}
	}
}
