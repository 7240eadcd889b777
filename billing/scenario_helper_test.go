package billing

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/billing/billingtest"
	"jpintel/billing/modelgate"
	"jpintel/billing/modelgatetest"
	"jpintel/store/storetest"
)

// scene is a bench against the upstream's stand-in, over a real socket. Its time
// is the bubble's, which the upstream follows: it is told the time whenever it is
// called. Nothing but the stand-in itself is outside of the bubble.
type scene struct {
	*bench
	up      *modelgatetest.Upstream
	outside func(func() error) // runs what makes channels that the upstream will use
	// strangers are the Idempotency-Keys of what others have done.
	strangers map[string]bool
	clock     *atomic.Int64
}

// scenario plays a scene, and asserts afterwards what has to hold after each.
func scenario(t *testing.T, options modelgatetest.Options, play func(t *testing.T, s *scene)) {
	t.Helper()
	clock := &atomic.Int64{}
	clock.Store(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()) // when bubbles begin
	options.Now = func() time.Time { return time.Unix(0, clock.Load()) }
	up := modelgatetest.New(options).Start(t)
	outside := outsider(t)
	synctest.Test(t, func(t *testing.T) {
		s := &scene{up: up, outside: outside, strangers: map[string]bool{}, clock: clock}
		s.bench = benchOn(t, storetest.New(t), nil, s.client(modelgatetest.DevToken))
		play(t, s)
		s.holds()
		storetest.Check(t, s.DB)
	})
}

// outsider returns what runs functions outside of every bubble.
func outsider(t *testing.T) func(func() error) {
	calls, results := make(chan func() error), make(chan error)
	go func() {
		for call := range calls {
			results <- call()
		}
	}()
	t.Cleanup(func() { close(calls) })
	return func(call func() error) {
		t.Helper()
		calls <- call
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

func (s *scene) client(token string) modelgate.Options {
	return modelgate.Options{BaseURL: s.up.BaseURL(), APIKey: token, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		s.clock.Store(time.Now().UnixNano())
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
}

// rules adds faults.
func (s *scene) rules(rules ...modelgatetest.Rule) {
	s.t.Helper()
	s.outside(func() error { return s.up.AddFaults(rules...) })
}

func (s *scene) configure(change func(*modelgatetest.Options)) {
	s.t.Helper()
	s.outside(func() error { return s.up.Configure(change) })
}

// fault hits the calls of a method and a path: times of them, 0: all.
func fault(method, path string, at modelgatetest.At, do string, times int) modelgatetest.Rule {
	return modelgatetest.Rule{Match: modelgatetest.Match{Method: method, PathRE: path}, At: at, Do: do, Times: times}
}

// The calls that the faults hit.
const (
	groupsPath = `^/groups$`
	keysPath   = `/keys$`
	limitsPath = `/limits$`
)

// stranger changes something at the upstream that is not ours to change.
func (s *scene) stranger(method, path, key, body string) {
	s.t.Helper()
	s.strangers[key] = true
	s.outside(func() error {
		req, err := http.NewRequest(method, s.up.BaseURL()+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+modelgatetest.DevToken)
		req.Header.Set("Idempotency-Key", key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode > 299 {
			return fmt.Errorf("a stranger's %s %s: %d %s (%w)", method, path, resp.StatusCode, text, err)
		}
		return nil
	})
}

// wire is what was seen under an operation's key.
func (s *scene) wire(o *Operation) modelgatetest.Traffic { return s.up.State().Idempotency[*o.Key] }

// made fails the test unless the customer has one live group and one active key
// there, and the limit given.
func (s *scene) made(customer, limit string) {
	s.t.Helper()
	state := s.up.State()
	live := state.LiveGroups()[customer]
	if len(live) != 1 {
		s.t.Fatalf("groups of %s: %q", customer, live)
	}
	if keys := state.ActiveKeys()[modelgatetest.KeyUse{GroupID: live[0], Purpose: defaultPurpose}]; len(keys) != 1 {
		s.t.Errorf("keys of %s: %q", customer, keys)
	}
	if got := state.Limits[live[0]].SpendLimit; got != limit {
		s.t.Errorf("the limit of %s is %s, want %s", customer, got, limit)
	}
}

// ready works until the customer is, and looks at what was made.
func (s *scene) ready(customer, limit string) {
	s.t.Helper()
	s.work(48 * time.Hour)
	s.wantStatus(customer, Ready)
	s.made(customer, limit)
}

// holds asserts the invariants, from what the upstream knows and from the file.
func (s *scene) holds() {
	s.t.Helper()
	billingtest.World{DB: s.DB, Upstream: s.up, Strangers: s.strangers, Texts: map[string]string{"the log": s.log.String()}}.Check(s.t)
}

func (s *scene) attempts(o *Operation) []Attempt {
	s.t.Helper()
	all, err := readAttempts(s.DB.Reader(context.Background()), o.OperationID)
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// resolve is the operator's word.
func (s *scene) resolve(o *Operation, outcome string) {
	s.t.Helper()
	if _, err := s.Resolve(context.Background(), ResolveRequest{OperationID: o.OperationID, Who: "op", Note: "seen", Outcome: outcome}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) probe() {
	s.t.Helper()
	if err := s.engine.Probe(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}
