package modelgatetest_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"jpintel/billing/modelgatetest"
)

// TestProfiles holds each profile's answers against the contract's table.
func TestProfiles(t *testing.T) {
	type want struct {
		missing                  int
		runningCode, retryAfter  string
		reused                   int
		reusedCode, conflictType string
		keyReplayed              int
	}
	for profile, want := range map[modelgatetest.Profile]want{
		modelgatetest.ProfileDefault: {400, "idempotency_in_progress", "1", 409, "idempotency_key_reused", "application/json", 201},
		modelgatetest.ProfileStripe:  {201, "idempotency_key_in_use", "", 400, "idempotency_error", "application/json", 201},
		modelgatetest.ProfileIETF:    {400, "idempotency_in_progress", "", 422, "idempotency_key_reused", "application/problem+json", 201},
		modelgatetest.ProfileStrict:  {400, "idempotency_in_progress", "1", 409, "idempotency_conflict", "application/json", 200},
	} {
		t.Run(string(profile), func(t *testing.T) {
			t.Parallel()
			p := start(t, modelgatetest.Options{Profile: profile})
			body := object{"name": "N", "external_ref": "cus_a:signup:1"}
			missing := p.must(want.missing, "POST", "/groups", body, "Idempotency-Key", "-")
			if want.missing == 400 && missing.code() != "idempotency_key_missing" {
				t.Errorf("missing: %s", missing.text)
			}

			first := p.must(201, "POST", "/groups", body, "Idempotency-Key", "k")
			again := p.must(201, "POST", "/groups", `{ "external_ref" : "cus_a:signup:1" , "name" : "N" }`, "Idempotency-Key", "k")
			if again.text != first.text || again.header.Get("Idempotent-Replayed") != "true" || again.header.Get("Original-Request-ID") != first.header.Get("X-Request-ID") || again.header.Get("X-Request-ID") == first.header.Get("X-Request-ID") {
				t.Errorf("replay: %s %v", again.text, again.header)
			}
			if first.header.Get("Idempotent-Replayed") != "" {
				t.Error("the first answer is a replay")
			}

			reused := p.must(want.reused, "POST", "/groups", object{"name": "M"}, "Idempotency-Key", "k")
			if reused.code() != want.reusedCode || reused.header.Get("Content-Type") != want.conflictType || reused.str("error", "original_request_id") != first.header.Get("X-Request-ID") || reused.get("error", "retryable") != false {
				t.Errorf("reused: %s", reused.text)
			}

			p.faults(modelgatetest.Rule{Match: modelgatetest.Match{IdemKey: "r"}, At: modelgatetest.AtBeforeExecute, Do: "in_progress_for:0s", Times: 1})
			running := p.must(409, "POST", "/groups", body, "Idempotency-Key", "r")
			if running.code() != want.runningCode || running.header.Get("Retry-After") != want.retryAfter || running.header.Get("Content-Type") != want.conflictType || running.get("error", "retryable") != true {
				t.Errorf("running: %s %v", running.text, running.header)
			}

			path := "/groups/" + first.str("id") + "/keys"
			made := p.must(201, "POST", path, object{"name": "K"}, "Idempotency-Key", "key")
			replayed := p.must(want.keyReplayed, "POST", path, object{"name": "K"}, "Idempotency-Key", "key")
			expected{"id": made.str("id"), "secret": "null", "secret_available": "false", "prefix": made.str("prefix")}.check(t, replayed)

			p.u.Advance(modelgatetest.Retention - time.Minute)
			p.must(201, "POST", "/groups", body, "Idempotency-Key", "k")
			p.u.Advance(time.Minute)
			if late := p.must(201, "POST", "/groups", body, "Idempotency-Key", "k"); late.str("id") == first.str("id") || late.header.Get("Idempotent-Replayed") != "" {
				t.Errorf("after the retention: %s", late.text)
			}
		})
	}
}

// A key is visible ASCII, once.
func TestKeyForm(t *testing.T) {
	p := start(t, modelgatetest.Options{})
	for _, key := range []string{"a b", strings.Repeat("k", 256), "ключ"} {
		if a := p.call("POST", "/groups", object{"name": "N"}, "Idempotency-Key", key); a.code() != "idempotency_key_invalid" {
			t.Errorf("%q: %d %s", key, a.status, a.text)
		}
	}
	req := p.request("POST", "/groups", object{"name": "N"})
	req.Header.Add("Idempotency-Key", "another")
	if a := p.send(req); a.code() != "idempotency_key_invalid" {
		t.Errorf("two keys: %s", a.text)
	}
	p.must(201, "POST", "/groups", object{"name": "N"}, "Idempotency-Key", strings.Repeat("k", 255))
	p.must(200, "GET", "/balance", nil, "Idempotency-Key", "a b") // ignored
}

// What began is stored, whatever came of it. What did not begin is not.
func TestWhatIsStored(t *testing.T) {
	rule := func(at modelgatetest.At, do string) modelgatetest.Rule {
		return modelgatetest.Rule{At: at, Do: do, Times: 1}
	}
	for name, test := range map[string]struct {
		path   string
		body   any
		header []string
		rule   *modelgatetest.Rule
		status int
		stored bool
	}{
		"201":              {"/groups", object{"name": "N"}, nil, nil, 201, true},
		"402":              {"/groups/GROUP/top-ups", usd("1000001.00"), nil, nil, 402, true},
		"404 group":        {"/groups/grp_x/top-ups", usd("5.00"), nil, nil, 404, true},
		"409 state":        {"/groups/FROZEN/top-ups", usd("5.00"), nil, nil, 409, true},
		"422":              {"/groups/GROUP/top-ups", usd("0.10"), nil, nil, 422, true},
		"500 saved":        {"/groups", object{"name": "N"}, nil, new(rule(modelgatetest.AtBeforeExecute, "status:500 saved")), 500, true},
		"400 malformed":    {"/groups", `{"name":`, nil, nil, 400, false},
		"400 validation":   {"/groups", object{}, nil, nil, 400, false},
		"401":              {"/groups", object{"name": "N"}, []string{"Authorization", "-"}, nil, 401, false},
		"404 route":        {"/nowhere", object{"name": "N"}, nil, nil, 404, false},
		"413":              {"/groups", object{"name": strings.Repeat("N", 70_000)}, nil, nil, 413, false},
		"415":              {"/groups", object{"name": "N"}, []string{"Content-Type", "text/plain"}, nil, 415, false},
		"409 in progress":  {"/groups", object{"name": "N"}, nil, new(rule(modelgatetest.AtBeforeExecute, "in_progress_for:0s")), 409, false},
		"429":              {"/groups", object{"name": "N"}, nil, new(rule(modelgatetest.AtBeforeAuth, "status:429")), 429, false},
		"503 before begin": {"/groups", object{"name": "N"}, nil, new(rule(modelgatetest.AtBeforeExecute, "status:503")), 503, false},
		"500":              {"/groups", object{"name": "N"}, nil, new(rule(modelgatetest.AtAfterExecute, "status:500")), 500, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, modelgatetest.Options{})
			if test.rule != nil {
				w.faults(*test.rule)
			}
			path := strings.NewReplacer("GROUP", w.group, "FROZEN", w.frozen).Replace(test.path)
			header := append([]string{"Idempotency-Key", "k"}, test.header...)
			first := w.must(test.status, "POST", path, test.body, header...)
			if !test.stored {
				// The key is free: another request may have it.
				w.must(201, "POST", "/groups", object{"name": "Another"}, "Idempotency-Key", "k")
				return
			}
			again := w.must(test.status, "POST", path, test.body, header...)
			if again.header.Get("Idempotent-Replayed") != "true" || again.text != first.text {
				t.Errorf("%s %v", again.text, again.header)
			}
			w.must(409, "POST", "/groups", object{"name": "Another"}, "Idempotency-Key", "k")
		})
	}
}

// A key is one for all calls, or one per method and path.
func TestIdemScope(t *testing.T) {
	for scope, want := range map[modelgatetest.IdemScope]int{modelgatetest.ScopeAccount: 409, modelgatetest.ScopeMethodPath: 201} {
		p := start(t, modelgatetest.Options{IdemScope: scope})
		group := p.must(201, "POST", "/groups", object{"name": "N"}, "Idempotency-Key", "k").str("id")
		p.must(want, "POST", "/groups/"+group+"/keys", object{"name": "K"}, "Idempotency-Key", "k")
		p.must(409, "POST", "/groups", object{"name": "M"}, "Idempotency-Key", "k")
	}
}

// Where the knob says so, a replay shows the secret again.
func TestSecretOnReplay(t *testing.T) {
	p := start(t, modelgatetest.Options{SecretOnReplay: modelgatetest.SecretWithinRetention})
	path := "/groups/" + p.group("cus_a:signup:1") + "/keys"
	first := p.must(201, "POST", path, object{"name": "K"}, "Idempotency-Key", "k")
	if again := p.must(201, "POST", path, object{"name": "K"}, "Idempotency-Key", "k"); again.text != first.text {
		t.Errorf("%s, then %s", first.text, again.text)
	}
}

// Sixteen at once with one key: one execution, and the others are told that it
// runs, or are given its answer.
func TestOneKeyAtOnce(t *testing.T) {
	p := start(t, modelgatetest.Options{}, modelgatetest.Rule{Match: modelgatetest.Match{IdemKey: "k"}, At: modelgatetest.AtAfterExecute, Do: "delay:20ms"})
	answers := make([]answer, 16)
	var all sync.WaitGroup
	for i := range answers {
		req := p.request("POST", "/groups", object{"name": "N", "external_ref": "cus_a:signup:1"}, "Idempotency-Key", "k")
		all.Go(func() { answers[i] = p.send(req) })
	}
	all.Wait()
	first, replayed, refused := 0, 0, 0
	for _, a := range answers {
		switch {
		case a.status == 409 && a.code() == "idempotency_in_progress":
			refused++
		case a.status == 201 && a.header.Get("Idempotent-Replayed") == "true":
			replayed++
		case a.status == 201:
			first++
		default:
			t.Errorf("%d %s (%v)", a.status, a.text, a.err)
		}
	}
	s := p.u.State()
	got := s.Idempotency["k"]
	if first != 1 || len(s.Groups) != 1 || len(s.Audit) != 1 || got.Executions != 1 || got.WireRequests != 16 || got.Replays != replayed || got.RefusedRunning != refused || len(got.Fingerprints) != 1 {
		t.Errorf("%d first, %d replayed, %d refused; %d groups; %+v", first, replayed, refused, len(s.Groups), got)
	}
	if len(s.ReusedKeys()) != 0 {
		t.Errorf("%v", s.ReusedKeys())
	}
}

// A call that runs holds its key until it ends; one that hangs gives it free when
// its client leaves.
func TestKeyIsHeld(t *testing.T) {
	p := start(t, modelgatetest.Options{}, modelgatetest.Rule{At: modelgatetest.AtBeforeExecute, Do: "hang", Times: 1})
	req := p.request("POST", "/groups", object{"name": "N"}, "Idempotency-Key", "k")
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan answer, 1)
	go func() { ended <- p.send(req.WithContext(ctx)) }()
	p.until("it hangs", func(s modelgatetest.State) bool { return s.Faults[0].Hits == 1 })
	p.must(409, "POST", "/groups", object{"name": "N"}, "Idempotency-Key", "k")
	leave()
	if a := <-ended; a.err == nil {
		t.Errorf("%d %s", a.status, a.text)
	}
	for p.call("POST", "/groups", object{"name": "N"}, "Idempotency-Key", "k").status == http.StatusConflict {
	}
	s := p.u.State()
	if len(s.Groups) != 1 || s.Idempotency["k"].MaxConcurrent < 2 || len(s.Overlaps()) != 0 {
		t.Errorf("%d groups, %+v", len(s.Groups), s.Idempotency["k"])
	}
}

// An upstream goes on without its client: the key is held, and one request that
// nobody waits for is none at a time.
func TestClientLeaves(t *testing.T) {
	p := start(t, modelgatetest.Options{}, modelgatetest.Rule{At: modelgatetest.AtBeforeExecute, Do: "delay:10h", Times: 1})
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan answer, 1)
	req := p.request("POST", "/groups", created, "Idempotency-Key", "k").WithContext(ctx)
	go func() { ended <- p.send(req) }()
	p.until("it waits", func(s modelgatetest.State) bool { return s.Faults[0].Hits == 1 })
	leave()
	<-ended
	p.until("that is noticed", func(s modelgatetest.State) bool { return s.Idempotency["k"].InFlight == 0 })
	p.must(409, "POST", "/groups", created, "Idempotency-Key", "k")
	if got := p.u.State().Idempotency["k"]; got.MaxConcurrent != 1 || got.InFlight != 0 {
		t.Errorf("%+v", got)
	}
}

// Fingerprints are counted of all that was read, whatever became of it.
func TestFingerprintsOfTheLost(t *testing.T) {
	p := start(t, modelgatetest.Options{}, modelgatetest.Rule{At: modelgatetest.AtBeforeAuth, Do: "reset"})
	p.call("POST", "/groups", `{"name":"N","metadata":{"a":"1","b":"2"}}`, "Idempotency-Key", "same")
	p.call("POST", "/groups", `{"metadata": {"b":"2", "a":"1"}, "name":"N"}`, "Idempotency-Key", "same")
	p.call("POST", "/groups", `{"name":"N"}`, "Idempotency-Key", "other")
	p.call("POST", "/groups", `{"name":"M"}`, "Idempotency-Key", "other")
	p.call("DELETE", "/groups/grp_x", nil, "Idempotency-Key", "path")
	p.call("DELETE", "/groups/grp_y", nil, "Idempotency-Key", "path")
	if got := p.u.State().ReusedKeys(); len(got) != 2 || len(got["other"]) != 2 || len(got["path"]) != 2 {
		t.Errorf("%v", got)
	}
}

// Whoever gives up a key that was taken from him leaves it to its new owner.
func TestLostKeyIsNotReleased(t *testing.T) {
	p := start(t, modelgatetest.Options{}, modelgatetest.Rule{At: modelgatetest.AtBeforeExecute, Do: "hang", Times: 1},
		modelgatetest.Rule{At: modelgatetest.AtBeforeExecute, Do: "lose_idem_record", Match: modelgatetest.Match{Nth: 2}})
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan answer, 1)
	req := p.request("POST", "/groups", created, "Idempotency-Key", "k").WithContext(ctx)
	go func() { ended <- p.send(req) }()
	p.until("it hangs", func(s modelgatetest.State) bool { return s.Faults[0].Hits == 1 })
	second := p.must(201, "POST", "/groups", created, "Idempotency-Key", "k")
	leave()
	<-ended
	p.until("the first has given up", func(s modelgatetest.State) bool { return s.Idempotency["k"].InFlight == 0 })
	if third := p.must(201, "POST", "/groups", created, "Idempotency-Key", "k"); third.text != second.text {
		t.Errorf("%s, then %s", second.text, third.text)
	}
}

// A second request at one time that is not told so is an overlap.
func TestOverlaps(t *testing.T) {
	s := modelgatetest.State{Idempotency: map[string]modelgatetest.Traffic{
		"alone": {MaxConcurrent: 1}, "told": {MaxConcurrent: 2, RefusedRunning: 1}, "both": {MaxConcurrent: 2},
		"reused": {Fingerprints: []string{"a", "b"}},
	}}
	if got := fmt.Sprint(len(s.Overlaps()), s.Overlaps()["both"].MaxConcurrent, s.ReusedKeys()); got != "1 2 map[reused:[a b]]" {
		t.Error(got)
	}
}
