package modelgatetest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"

	"github.com/shopspring/decimal"
)

// At is a station on a request's way, where faults strike.
type At string

// The stations, in order. A replay passes the first two, then after_commit and
// the last two; a request that is refused before it begins passes only what comes
// before and the last two.
const (
	AtAccept        At = "accept"         // its headers are read
	AtBeforeAuth    At = "before_auth"    // its body is read too
	AtBeforeExecute At = "before_execute" // it is valid, and the key is held for it
	AtAfterExecute  At = "after_execute"  // executed and not committed: what ends here is rolled back
	AtAfterCommit   At = "after_commit"   // committed, and the answer stored: it is not sent
	AtMidResponse   At = "mid_response"   // half of the answer's body is sent
	AtOnResponse    At = "on_response"    // the answer is about to be sent
)

var stations = []At{AtAccept, AtBeforeAuth, AtBeforeExecute, AtAfterExecute, AtAfterCommit, AtMidResponse, AtOnResponse}

// Match says which requests a fault is for. What is not set matches all.
type Match struct {
	Method  string `json:"method,omitempty"`
	PathRE  string `json:"path_re,omitempty"`  // found in the path, with or without /v1
	IdemKey string `json:"idem_key,omitempty"` // the Idempotency-Key
	Nth     int    `json:"nth,omitempty"`      // only the nth of those that match so far, from 1
	// Prob is how probable it is that one of those is hit, "0.25" for a quarter, by
	// a generator that begins with Seed: the same seed, the same hits.
	Prob json.Number `json:"prob,omitempty"`
	Seed uint64      `json:"seed,omitempty"`
}

// Rule is a fault: whom it hits, where, and what happens. Rules are looked at in
// the order in which they were added; all that match apply, until one ends the
// call.
type Rule struct {
	Match Match `json:"match"`
	At    At    `json:"at"`
	// Do is a word, and what belongs to it after a colon: see the table in
	// docs/dev-upstream.md.
	Do    string `json:"do"`
	Times int    `json:"times,omitempty"` // how often it strikes; 0: always
}

// fault is a rule at work.
type fault struct {
	Rule
	path   *regexp.Regexp
	prob   decimal.Decimal
	random *rand.Rand
	action action
	seen   int // requests that match, but for nth, prob and times
	hits   int
}

// probScale is how finely a probability is thrown.
const probScale = 1_000_000

func newFault(r Rule) (*fault, error) {
	f := &fault{Rule: r, prob: decimal.NewFromInt(1), random: rand.New(rand.NewPCG(r.Match.Seed, 0))}
	var err error
	if f.path, err = regexp.Compile(r.Match.PathRE); err != nil {
		return nil, fmt.Errorf("match.path_re: %w", err)
	}
	if r.Match.Prob != "" {
		if f.prob, err = decimal.NewFromString(string(r.Match.Prob)); err != nil || f.prob.IsNegative() || f.prob.GreaterThan(decimal.NewFromInt(1)) {
			return nil, fmt.Errorf("match.prob is %q, want 0 to 1", r.Match.Prob)
		}
	}
	if r.Match.Nth < 0 || r.Times < 0 {
		return nil, fmt.Errorf("match.nth and times: want 1 or more, or nothing")
	}
	if !slices.Contains(stations, r.At) {
		return nil, fmt.Errorf("at is %q, want one of %q", r.At, stations)
	}
	if f.action, err = parseAction(r.Do); err != nil {
		return nil, fmt.Errorf("do is %q: %w", r.Do, err)
	}
	if !slices.Contains(f.action.kind.at, r.At) {
		return nil, fmt.Errorf("do is %q: want at to be one of %q", r.Do, f.action.kind.at)
	}
	if f.action.kind.moves != "" {
		f.At = f.action.kind.moves
	}
	return f, nil
}

// isFor reports whether the fault is for a request, but for nth, prob and times.
func (f *fault) isFor(c *call) bool {
	m, path := f.Match, c.r.URL.Path
	return (m.Method == "" || strings.EqualFold(m.Method, c.r.Method)) && (m.IdemKey == "" || m.IdemKey == c.key) &&
		(f.path.MatchString(path) || f.path.MatchString(strings.TrimPrefix(path, basePath))) && (!f.action.kind.keyed || c.key != "")
}

// strikes reports whether a request that the fault is for is hit, and counts.
func (f *fault) strikes() bool {
	f.seen++
	if f.Times > 0 && f.hits == f.Times || f.Match.Nth > 0 && f.seen != f.Match.Nth {
		return false
	}
	if drawn := decimal.NewFromInt(f.random.Int64N(probScale)); drawn.GreaterThanOrEqual(f.prob.Mul(decimal.NewFromInt(probScale))) {
		return false
	}
	f.hits++
	return true
}

// AddFaults adds rules, all or, where one means nothing, none.
func (u *Upstream) AddFaults(rules ...Rule) error {
	var added []*fault
	for _, r := range rules {
		f, err := newFault(r)
		if err != nil {
			return err
		}
		added = append(added, f)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.faults = slices.Concat(u.faults, added)
	u.notify()
	return nil
}

// ClearFaults takes all rules away. What hangs goes on hanging.
func (u *Upstream) ClearFaults() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.faults = nil
	u.notify()
}

// anyAt reports whether there is a rule for a station.
func (u *Upstream) anyAt(at At) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.ContainsFunc(u.faults, func(f *fault) bool { return f.At == at })
}

// strike finds the next fault that hits a call: one of the wanted, from an index
// on. It returns nil where there is none.
func (c *call) strike(at At, wanted func(*kind) bool, from int) (*action, int) {
	u := c.u
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := from; i < len(u.faults); i++ {
		if f := u.faults[i]; f.At == at && wanted(f.action.kind) && f.isFor(c) && f.strikes() {
			u.notify()
			return &f.action, i
		}
	}
	return nil, 0
}

// each applies the faults of a station that hit the call, until one returns an
// error.
func (c *call) each(at At, wanted func(*kind) bool, apply func(*action) error) error {
	for i := 0; ; i++ {
		var a *action
		if a, i = c.strike(at, wanted, i); a == nil {
			return nil
		}
		if err := apply(a); err != nil {
			return err
		}
	}
}

// pass lets a call through a station, or ends it: *stopped or errGone.
func (c *call) pass(at At) error {
	wanted := func(k *kind) bool { return at != AtBeforeExecute || !k.keyed }
	return c.each(at, wanted, c.apply)
}

// passKey is what before_execute does to keys: it comes before the look-up.
func (c *call) passKey() error {
	return c.each(AtBeforeExecute, func(k *kind) bool { return k.keyed }, c.apply)
}
