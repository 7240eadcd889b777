package modelgatetest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"jpintel/billing/modelgatetest"
)

var stations = []modelgatetest.At{
	modelgatetest.AtAccept, modelgatetest.AtBeforeAuth, modelgatetest.AtBeforeExecute, modelgatetest.AtAfterExecute,
	modelgatetest.AtAfterCommit, modelgatetest.AtMidResponse, modelgatetest.AtOnResponse,
}

// sight is what a client should see of a fault.
type sight func(t *testing.T, at modelgatetest.At, a answer)

func seesError(want error) sight {
	return func(t *testing.T, at modelgatetest.At, a answer) {
		want := want
		if want == io.EOF && at == modelgatetest.AtMidResponse {
			want = io.ErrUnexpectedEOF
		}
		if !errors.Is(a.err, want) {
			t.Errorf("error %v, want %v", a.err, want)
		}
		if (a.status == 201) != (at == modelgatetest.AtMidResponse) && want != error(syscall.ECONNRESET) {
			t.Errorf("status %d", a.status)
		}
	}
}

func seesStatus(status int, code string) sight {
	return func(t *testing.T, _ modelgatetest.At, a answer) {
		if a.err != nil || a.status != status || a.code() != code {
			t.Errorf("%d %s (%v), want %d %s", a.status, a.text, a.err, status, code)
		}
	}
}

func seesCreated(t *testing.T, at modelgatetest.At, a answer) { seesStatus(201, "")(t, at, a) }

func seesTruncated(t *testing.T, _ modelgatetest.At, a answer) {
	size, _ := strconv.Atoi(a.header.Get("Content-Length"))
	if a.status != 201 || len(a.text) != 20 || !errors.Is(a.err, io.ErrUnexpectedEOF) || size <= 20 {
		t.Errorf("%d %q %v %v", a.status, a.text, a.err, a.header)
	}
}

// TestEveryFaultEverywhere lets each fault strike a group's creation at each
// station that it can be at. The client sees what it should, the group is there
// exactly where the fault came after the commit, and the same request sent again
// leads to one group: two only where the key was forgotten after it.
func TestEveryFaultEverywhere(t *testing.T) {
	notMid := slices.DeleteFunc(slices.Clone(stations), func(at modelgatetest.At) bool { return at == modelgatetest.AtMidResponse })
	leaving := stations[4:]
	for do, test := range map[string]struct {
		at     []modelgatetest.At
		sees   sight
		ends   bool // it ends the call: what is not committed by then is lost
		forget bool // the key's record is gone afterwards
	}{
		"hang": {stations, func(t *testing.T, _ modelgatetest.At, a answer) {
			seesError(context.Canceled)(t, modelgatetest.AtAccept, answer{err: a.err})
		}, true, false},
		"close":                       {stations, seesError(io.EOF), true, false},
		"reset":                       {stations, seesError(syscall.ECONNRESET), true, false},
		"delay:1ms":                   {stations, seesCreated, false, false},
		"status:503 code:not_started": {notMid, seesStatus(503, "not_started"), true, false},
		"redirect:307":                {notMid, seesStatus(307, ""), true, false},
		"mismatch":                    {notMid, seesStatus(409, "idempotency_key_reused"), true, false},
		"in_progress_for:0s":          {notMid, seesStatus(409, "idempotency_in_progress"), true, false},
		"lose_idem_record":            {notMid, seesCreated, false, true},
		"expire_idem":                 {notMid, seesCreated, false, true},
		"stale_read:1h":               {[]modelgatetest.At{modelgatetest.AtBeforeExecute, modelgatetest.AtOnResponse}, seesCreated, false, false},
		"truncate:20":                 {leaving, seesTruncated, true, false},
		"slow_body:1us":               {leaving, seesCreated, false, false},
		"huge_body:100000":            {leaving, func(t *testing.T, _ modelgatetest.At, a answer) { sawHuge(t, a, 100_000) }, false, false},
		"malformed_json":              {leaving, seesStatus(201, ""), false, false},
		"trailing_garbage":            {leaving, seesStatus(201, ""), false, false},
		"number_amount":               {leaving, seesCreated, false, false},
		"sci_amount":                  {leaving, seesCreated, false, false},
		"echo_amount:9.00":            {leaving, seesCreated, false, false},
		"echo_currency:EUR":           {leaving, seesCreated, false, false},
		"duplicate_key_case":          {leaving, seesCreated, false, false},
		"drop_request_id":             {leaving, seesCreated, false, false},
		"wrong_content_type":          {leaving, seesCreated, false, false},
		"date_skew:-10m":              {leaving, seesCreated, false, false},
		"list_omit:grp_x":             {leaving, seesCreated, false, false},
		"list_dup":                    {leaving, seesCreated, false, false},
		"cursor_loop":                 {leaving, seesCreated, false, false},
	} {
		for i, at := range stations {
			t.Run(do+" "+string(at), func(t *testing.T) {
				t.Parallel()
				p := start(t, modelgatetest.Options{})
				rule := modelgatetest.Rule{Match: modelgatetest.Match{Method: "POST", PathRE: "^/groups$", IdemKey: "k"}, At: at, Do: do, Times: 1}
				if err := p.u.AddFaults(rule); slices.Contains(test.at, at) != (err == nil) {
					t.Fatalf("allowed: %v", err)
				} else if err != nil {
					return
				}
				test.sees(t, at, p.struck("k"))
				committed := i >= 4
				if got := len(p.u.State().Groups) == 1; got != (committed || !test.ends) {
					t.Errorf("a group is there: %v", got)
				}
				again := p.retry("k")
				if got := p.u.State().Idempotency["k"].RolledBack; (got == 1) != (test.ends && at == modelgatetest.AtAfterExecute) {
					t.Errorf("rolled back: %d", got)
				}
				groups := 1
				if test.forget && i >= 3 {
					groups = 2
				}
				s := p.u.State()
				if again.status != 201 || len(s.Groups) != groups || len(s.Audit) != groups || s.Faults[0].Hits != 1 {
					t.Errorf("again: %d %s; %d groups, %d audit events, %+v", again.status, again.text, len(s.Groups), len(s.Audit), s.Faults)
				}
			})
		}
	}
}

const created = `{"name":"N","external_ref":"cus_a:signup:1"}`

// struck makes a group, and gives up once the rule's fault has struck and it is
// one that says nothing.
func (p *partner) struck(key string) answer {
	p.t.Helper()
	ctx, leave := context.WithCancel(p.t.Context())
	defer leave()
	hangs := p.u.State().Faults[0].Do == "hang"
	req := p.request("POST", "/groups", created, "Idempotency-Key", key).WithContext(ctx)
	ended := make(chan answer, 1)
	go func() { ended <- p.send(req) }()
	if hangs {
		p.until("it hangs", func(s modelgatetest.State) bool { return s.Faults[0].Hits == 1 })
		leave()
	}
	return <-ended
}

// retry sends the same again until the key is free: a client that has left is
// noticed a moment later.
func (p *partner) retry(key string) answer {
	p.t.Helper()
	for {
		if a := p.call("POST", "/groups", created, "Idempotency-Key", key); a.code() != "idempotency_in_progress" {
			return a
		}
	}
}

func sawHuge(t *testing.T, a answer, size int) {
	t.Helper()
	if a.err != nil || a.status != 201 || len(a.text) != len(`{"padding":""}`)+size || !strings.HasPrefix(a.text, `{"padding":"xx`) || !strings.HasSuffix(a.text, `x"}`) {
		t.Errorf("%d, %d bytes, %v", a.status, len(a.text), a.err)
	}
}

// What the faults do to an answer's text and headers, on a top-up and a list.
func TestShapes(t *testing.T) {
	for do, check := range map[string]func(t *testing.T, a answer, now time.Time){
		"malformed_json": func(t *testing.T, a answer, _ time.Time) {
			if _, isError := a.get().(error); !isError || !strings.HasPrefix(a.text, `{"id":"txn_`) {
				t.Error(a.text)
			}
		},
		"trailing_garbage": func(t *testing.T, a answer, _ time.Time) {
			if !strings.HasSuffix(a.text, `"}{"error":null}`) {
				t.Error(a.text)
			}
		},
		"number_amount": func(t *testing.T, a answer, _ time.Time) {
			if !strings.Contains(a.text, `"amount":25.00,"currency":"USD","balance_after":25.00,`) {
				t.Error(a.text)
			}
		},
		"sci_amount": func(t *testing.T, a answer, _ time.Time) {
			expected{"amount": "2.5E+1", "balance_after": "2.5E+1"}.check(t, a)
		},
		"echo_amount:250.0": func(t *testing.T, a answer, _ time.Time) {
			expected{"amount": "250.0", "balance_after": "25.00"}.check(t, a)
		},
		"echo_amount:$1\"":  func(t *testing.T, a answer, _ time.Time) { expected{"amount": `$1"`}.check(t, a) },
		"echo_currency:EUR": func(t *testing.T, a answer, _ time.Time) { expected{"currency": "EUR"}.check(t, a) },
		"duplicate_key_case": func(t *testing.T, a answer, _ time.Time) {
			expected{"amount": "25.00", "Amount": "999999.00"}.check(t, a)
		},
		"duplicate_key_case:exact": func(t *testing.T, a answer, _ time.Time) {
			if !strings.Contains(a.text, `"amount":"25.00","amount":"999999.00"`) {
				t.Error(a.text)
			}
		},
		"drop_request_id": func(t *testing.T, a answer, _ time.Time) {
			if a.header.Get("X-Request-ID") != "" || a.header.Get("Date") == "" {
				t.Error(a.header)
			}
		},
		"wrong_content_type": func(t *testing.T, a answer, _ time.Time) {
			if got := a.header.Get("Content-Type"); got != "text/html; charset=utf-8" {
				t.Error(got)
			}
		},
		"date_skew:+10m": func(t *testing.T, a answer, now time.Time) {
			if got := a.header.Get("Date"); got != now.Add(10*time.Minute).Format(http.TimeFormat) {
				t.Error(got)
			}
		},
		"huge_body":       func(t *testing.T, a answer, _ time.Time) { sawHuge(t, a, 100<<20) },
		"redirect:302":    func(t *testing.T, a answer, _ time.Time) { saw(t, a, 302, "Location", "https://elsewhere.invalid/") },
		"redirect:307 /x": func(t *testing.T, a answer, _ time.Time) { saw(t, a, 307, "Location", "/x") },
		"status:502 html": func(t *testing.T, a answer, _ time.Time) {
			saw(t, a, 502, "Content-Type", "text/html")
			if !strings.Contains(a.text, "502 Bad Gateway") || a.header.Get("X-Request-ID")+a.header.Get("Date")+a.header.Get("Cache-Control") != "" {
				t.Error(a.text, a.header)
			}
		},
		"status:409 empty": func(t *testing.T, a answer, _ time.Time) {
			if saw(t, a, 409, "Content-Type", ""); a.text != "" {
				t.Error(a.text)
			}
		},
		"status:503 retry_after:7":    func(t *testing.T, a answer, _ time.Time) { saw(t, a, 503, "Retry-After", "7") },
		"status:429 retry_after:soon": func(t *testing.T, a answer, _ time.Time) { saw(t, a, 429, "Retry-After", "soon") },
		"status:429 retry_after:": func(t *testing.T, a answer, _ time.Time) {
			if saw(t, a, 429, "Retry-After", ""); a.header.Values("Retry-After") == nil {
				t.Error(a.header)
			}
		},
		"status:429 retry_after:date+90s": func(t *testing.T, a answer, now time.Time) {
			saw(t, a, 429, "Retry-After", now.Add(90*time.Second).Format(http.TimeFormat))
		},
		"status:429 retry_after:Wed, 21 Oct 2026 07:28:00 GMT": func(t *testing.T, a answer, _ time.Time) {
			saw(t, a, 429, "Retry-After", "Wed, 21 Oct 2026 07:28:00 GMT")
		},
		"status:401":              seesPlainly(401, "unauthorized"),
		"status:418":              seesPlainly(418, "status_418"),
		"status:422 code:invalid": seesPlainly(422, "invalid"),
	} {
		t.Run(do, func(t *testing.T) {
			t.Parallel()
			now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			p := start(t, modelgatetest.Options{Now: func() time.Time { return now }})
			path := "/groups/" + p.group("cus_a:signup:1") + "/top-ups"
			p.faults(modelgatetest.Rule{At: modelgatetest.AtOnResponse, Do: do, Times: 1})
			check(t, p.call("POST", path, usd("25.00"), "Idempotency-Key", "k"), now)
			// The stored answer is as it should be.
			expected{"amount": "25.00", "balance_after": "25.00", "currency": "USD"}.check(t, p.must(201, "POST", path, usd("25.00"), "Idempotency-Key", "k"))
		})
	}
}

func seesPlainly(status int, code string) func(*testing.T, answer, time.Time) {
	return func(t *testing.T, a answer, _ time.Time) { seesStatus(status, code)(t, "", a) }
}

func saw(t *testing.T, a answer, status int, header, value string) {
	t.Helper()
	if a.err != nil || a.status != status || a.header.Get(header) != value {
		t.Errorf("%d %v %s (%v)", a.status, a.header, a.text, a.err)
	}
}

// Rules that stand together: a skewed clock on a status of another rule's.
func TestFaultsAddUp(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := start(t, modelgatetest.Options{Now: func() time.Time { return now }},
		modelgatetest.Rule{At: modelgatetest.AtBeforeExecute, Do: "delay:1ms"},
		modelgatetest.Rule{At: modelgatetest.AtBeforeExecute, Do: "status:429 retry_after:date+2m"},
		modelgatetest.Rule{At: modelgatetest.AtBeforeExecute, Do: "close"},
		modelgatetest.Rule{At: modelgatetest.AtOnResponse, Do: "date_skew:-10m"},
		modelgatetest.Rule{At: modelgatetest.AtOnResponse, Do: "drop_request_id"})
	a := p.must(429, "GET", "/balance", nil)
	if a.header.Get("Date") != now.Add(-10*time.Minute).Format(http.TimeFormat) || a.header.Get("Retry-After") != now.Add(-8*time.Minute).Format(http.TimeFormat) || a.header.Get("X-Request-ID") != "" {
		t.Error(a.header)
	}
	var hits []int
	for _, f := range p.u.State().Faults {
		hits = append(hits, f.Hits)
	}
	if !slices.Equal(hits, []int{1, 1, 0, 1, 1}) {
		t.Errorf("hits: %v", hits)
	}
	p.u.ClearFaults()
	p.must(200, "GET", "/balance", nil)
}

// A connection that is closed ends in order, whatever of the request is unread.
func TestCloseIsNoReset(t *testing.T) {
	p := start(t, modelgatetest.Options{}, modelgatetest.Rule{At: modelgatetest.AtAccept, Do: "close"})
	conn := p.dial()
	if err := p.request("POST", "/groups", object{"name": strings.Repeat("N", 60_000)}).Write(conn); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(conn); err != nil || len(text) != 0 {
		t.Errorf("%q, %v", text, err)
	}
}

// A slow body comes byte by byte, and a client that leaves ends it.
func TestSlowBody(t *testing.T) {
	p := start(t, modelgatetest.Options{}, modelgatetest.Rule{At: modelgatetest.AtOnResponse, Do: "slow_body:1h"})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	resp, err := p.http.Do(p.request("GET", "/balance", nil).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 10)
	if n, err := resp.Body.Read(first); n != 1 || err != nil || resp.ContentLength < 10 {
		t.Errorf("%d bytes of %d, %v", n, resp.ContentLength, err)
	}
	leave()
	if _, err := resp.Body.Read(first); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	resp.Body.Close()
}

// A stored 500 is replayed for as long as a key is kept, though the change is
// there.
func TestSavedStatusAfterCommit(t *testing.T) {
	p := start(t, modelgatetest.Options{}, modelgatetest.Rule{At: modelgatetest.AtAfterCommit, Do: "status:500 saved", Times: 1})
	for range 3 {
		p.must(500, "POST", "/groups", created, "Idempotency-Key", "k")
	}
	s := p.u.State()
	if len(s.Groups) != 1 || s.Idempotency["k"].Replays != 2 || s.Faults[0].Hits != 1 {
		t.Errorf("%d groups, %+v", len(s.Groups), s.Idempotency["k"])
	}
}

// A key counts as running for as long as the rule says, by the upstream's clock;
// what was committed is replayed then.
func TestInProgressFor(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for at, replayed := range map[modelgatetest.At]string{modelgatetest.AtBeforeExecute: "", modelgatetest.AtAfterCommit: "true"} {
		p := start(t, modelgatetest.Options{Now: func() time.Time { return now }}, modelgatetest.Rule{At: at, Do: "in_progress_for:5m", Times: 1})
		p.must(409, "POST", "/groups", created, "Idempotency-Key", "k")
		p.u.Advance(5*time.Minute - time.Millisecond)
		p.must(409, "POST", "/groups", created, "Idempotency-Key", "k")
		p.u.Advance(time.Millisecond)
		if a := p.must(201, "POST", "/groups", created, "Idempotency-Key", "k"); a.header.Get("Idempotent-Replayed") != replayed {
			t.Errorf("%s: %v", at, a.header)
		}
		if n := len(p.u.State().Groups); n != 1 {
			t.Errorf("%s: %d groups", at, n)
		}
	}
}

// A replay is struck where it passes: not where things are executed.
func TestFaultsOnReplays(t *testing.T) {
	for at, want := range map[modelgatetest.At]int{
		modelgatetest.AtAccept: 503, modelgatetest.AtBeforeAuth: 503, modelgatetest.AtBeforeExecute: 201,
		modelgatetest.AtAfterExecute: 201, modelgatetest.AtAfterCommit: 503, modelgatetest.AtOnResponse: 503,
	} {
		p := start(t, modelgatetest.Options{})
		p.must(201, "POST", "/groups", created, "Idempotency-Key", "k")
		p.faults(modelgatetest.Rule{At: at, Do: "status:503"})
		p.must(want, "POST", "/groups", created, "Idempotency-Key", "k")
	}
}

// A record that is always lost protects nobody; each request is struck once.
func TestRecordsAreAlwaysLost(t *testing.T) {
	p := start(t, modelgatetest.Options{}, modelgatetest.Rule{At: modelgatetest.AtBeforeExecute, Do: "lose_idem_record"})
	p.must(201, "POST", "/groups", created, "Idempotency-Key", "k")
	p.must(201, "POST", "/groups", created, "Idempotency-Key", "k")
	p.must(200, "GET", "/balance", nil) // it has no key to lose
	if s := p.u.State(); len(s.LiveGroups()["cus_a"]) != 2 || s.Faults[0].Hits != 2 {
		t.Errorf("%v, %+v", s.LiveGroups(), s.Faults)
	}
}

// Whom a rule is for.
func TestMatch(t *testing.T) {
	hits := func(m modelgatetest.Match, times int) (hit []int) {
		p := start(t, modelgatetest.Options{}, modelgatetest.Rule{Match: m, At: modelgatetest.AtBeforeExecute, Do: "status:503", Times: times})
		for i := range 40 {
			method, path, body := "GET", "/balance", any(nil)
			if i%2 == 1 {
				method, path, body = "POST", "/groups", object{"name": "N"}
			}
			if a := p.call(method, path, body); a.status == 503 {
				hit = append(hit, i)
			}
		}
		return hit
	}
	for _, test := range []struct {
		match modelgatetest.Match
		times int
		want  []int
	}{
		{modelgatetest.Match{}, 3, []int{0, 1, 2}},
		{modelgatetest.Match{Method: "POST"}, 2, []int{1, 3}},
		{modelgatetest.Match{PathRE: "^/v1/balance$"}, 2, []int{0, 2}},
		{modelgatetest.Match{PathRE: "^/balance$"}, 2, []int{0, 2}},
		{modelgatetest.Match{IdemKey: "key-2"}, 0, []int{3}},
		{modelgatetest.Match{Method: "POST", Nth: 3}, 0, []int{5}},
		{modelgatetest.Match{Prob: "0"}, 0, nil},
	} {
		if got := hits(test.match, test.times); !slices.Equal(got, test.want) {
			t.Errorf("%+v: %v, want %v", test.match, got, test.want)
		}
	}
	some := hits(modelgatetest.Match{Prob: "0.25", Seed: 7}, 0)
	if len(some) < 2 || len(some) > 25 || !slices.Equal(some, hits(modelgatetest.Match{Prob: "0.25", Seed: 7}, 0)) || slices.Equal(some, hits(modelgatetest.Match{Prob: "0.25", Seed: 8}, 0)) {
		t.Errorf("%v", some)
	}
}

// Rules that mean nothing are refused, with what is wrong. None of a group is
// added then.
func TestWrongRules(t *testing.T) {
	u := modelgatetest.New(modelgatetest.Options{})
	good := modelgatetest.Rule{At: modelgatetest.AtAccept, Do: "close"}
	for want, r := range map[string]modelgatetest.Rule{
		"match.path_re":             {Match: modelgatetest.Match{PathRE: "("}, At: modelgatetest.AtAccept, Do: "close"},
		"match.prob":                {Match: modelgatetest.Match{Prob: "1.5"}, At: modelgatetest.AtAccept, Do: "close"},
		"match.nth":                 {Match: modelgatetest.Match{Nth: -1}, At: modelgatetest.AtAccept, Do: "close"},
		`at is "later"`:             {At: "later", Do: "close"},
		`do is "explode": want one`: {At: modelgatetest.AtAccept, Do: "explode"},
		"nothing belongs":           {At: modelgatetest.AtAccept, Do: "close:1"},
		"like 20s":                  {At: modelgatetest.AtAccept, Do: "delay:20"},
		"like +10m":                 {At: modelgatetest.AtOnResponse, Do: "date_skew:ten"},
		"number of bytes":           {At: modelgatetest.AtOnResponse, Do: "truncate:-1"},
		"after the colon":           {At: modelgatetest.AtOnResponse, Do: "echo_amount"},
		"want exact":                {At: modelgatetest.AtOnResponse, Do: "duplicate_key_case:more"},
		"of 300 to 399":             {At: modelgatetest.AtOnResponse, Do: "redirect:200"},
		"of 400 to 599":             {At: modelgatetest.AtOnResponse, Do: "status:200"},
		"want html, empty":          {At: modelgatetest.AtOnResponse, Do: "status:500 soon"},
		"want at to be one of":      {At: modelgatetest.AtMidResponse, Do: "status:500"},
	} {
		if err := u.AddFaults(good, r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", r, err, want)
		}
	}
	if n := len(u.State().Faults); n != 0 {
		t.Errorf("%d rules", n)
	}
}

// Close ends what hangs and waits.
func TestCloseEndsHangs(t *testing.T) {
	p := start(t, modelgatetest.Options{}, modelgatetest.Rule{Match: modelgatetest.Match{Method: "POST"}, At: modelgatetest.AtBeforeExecute, Do: "hang"},
		modelgatetest.Rule{Match: modelgatetest.Match{Method: "GET"}, At: modelgatetest.AtBeforeExecute, Do: "delay:10h"})
	ended := make(chan answer, 2)
	for _, req := range []*http.Request{p.request("POST", "/groups", created), p.request("GET", "/balance", nil)} {
		go func() { ended <- p.send(req) }()
	}
	p.until("both wait", func(s modelgatetest.State) bool { return s.Faults[0].Hits+s.Faults[1].Hits == 2 })
	p.u.Close()
	for range 2 {
		<-ended
	}
}
