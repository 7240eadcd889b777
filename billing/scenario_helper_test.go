package billing

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/billing/ledger/ledgertest"
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
	// strange is what others have moved of a group's credit.
	strange map[string][]string
	clock   *atomic.Int64
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
		s := &scene{up: up, outside: outside, strangers: map[string]bool{}, strange: map[string][]string{}, clock: clock}
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
	s.clock.Store(time.Now().UnixNano())
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
	state := s.up.State()
	s.oneGroupEach(state)
	s.oneKeyEach(state)
	s.creditHolds(state)
	s.wasTold()
	for key, prints := range state.ReusedKeys() {
		s.t.Errorf("I4: %s stands for %q", key, prints)
	}
	for key, traffic := range state.Overlaps() {
		s.t.Errorf("I8: %s: %+v", key, traffic)
	}
	ledgertest.Check(s.t, s.DB) // I5
	// I6: a success that no answer, look, child or person tells of.
	for _, id := range s.strings(`
		SELECT operation_id FROM partner_operations o WHERE status = 'succeeded' AND (target_public_id IS NULL OR NOT (
		  EXISTS (SELECT 1 FROM operation_attempts a WHERE a.operation_id = o.operation_id AND a.outcome = 'succeeded')
		  OR EXISTS (SELECT 1 FROM reconcile_evidence e WHERE e.operation_id = o.operation_id AND e.verdict = 'succeeded')
		  OR EXISTS (SELECT 1 FROM operator_notes n WHERE n.operation_id = o.operation_id AND n.action = 'resolve')
		  OR action = 'provision_customer' AND (SELECT COUNT(*) FROM partner_operations c WHERE c.parent_operation_id = o.operation_id AND c.status = 'succeeded') >= 3))`) {
		s.t.Errorf("I6: %s has succeeded, and nothing tells so", id)
	}
	s.recordedFirst(state)
	s.accountedFor(state)
}

// oneGroupEach is I1. A stranger's groups are not ours to answer for.
func (s *scene) oneGroupEach(state modelgatetest.State) {
	s.t.Helper()
	foreign := map[string]bool{}
	for _, e := range state.Audit {
		foreign[e.Target.ID] = foreign[e.Target.ID] || e.Action == "group.create" && s.strangers[e.IdempotencyKey]
	}
	for customer, groups := range state.LiveGroups() {
		if ours := slices.DeleteFunc(groups, func(id string) bool { return foreign[id] }); len(ours) > 1 {
			s.t.Errorf("I1: %s has the groups %q", customer, ours)
		}
	}
}

// oneKeyEach is I2: what is usable here is the one that is active there.
func (s *scene) oneKeyEach(state modelgatetest.State) {
	s.t.Helper()
	active := state.ActiveKeys()
	for _, row := range s.strings(`
		SELECT a.group_id || ' ' || k.purpose || ' ' || k.key_id FROM model_keys k JOIN billing_accounts a USING (customer_id)
		WHERE k.status <> 'revoked' AND EXISTS (SELECT 1 FROM partner_operations o
		  WHERE o.customer_id = k.customer_id AND o.action = 'provision_customer' AND o.status = 'succeeded')`) {
		part := strings.Fields(row)
		if there := active[modelgatetest.KeyUse{GroupID: part[0], Purpose: part[1]}]; !slices.Equal(there, part[2:]) {
			s.t.Errorf("I2: group %s has for %s the keys %q, want %s", part[0], part[1], there, part[2])
		}
	}
}

// recordedFirst is I9: each request has an attempt, and no change is older than
// the first of them.
func (s *scene) recordedFirst(state modelgatetest.State) {
	s.t.Helper()
	for key, traffic := range state.Idempotency {
		if s.strangers[key] {
			continue
		}
		attempts := s.strings(`
			SELECT a.started_at_ms FROM operation_attempts a JOIN partner_operations o USING (operation_id) WHERE o.idempotency_key = $1 ORDER BY 1`, key)
		if len(attempts) < traffic.WireRequests {
			s.t.Errorf("I9: %s was sent %d times, with %d attempts", key, traffic.WireRequests, len(attempts))
			continue
		}
		for _, e := range state.Audit {
			at, err := time.Parse(time.RFC3339Nano, e.OccurredAt)
			if e.IdempotencyKey == key && (err != nil || number(at.UnixMilli()) < attempts[0]) {
				s.t.Errorf("I9: %s took effect at %s, and was first recorded at %s (%v)", key, e.OccurredAt, attempts[0], err)
			}
		}
	}
}

// accountedFor is I10: each change is one operation's, or a stranger's; and no
// operation has changed more than one thing.
func (s *scene) accountedFor(state modelgatetest.State) {
	s.t.Helper()
	changes := map[string]int{}
	for _, e := range state.Audit {
		if s.strangers[e.IdempotencyKey] {
			continue
		}
		changes[e.IdempotencyKey]++
		if ops := s.strings(`SELECT operation_id FROM partner_operations WHERE idempotency_key = $1`, e.IdempotencyKey); len(ops) != 1 || changes[e.IdempotencyKey] > 1 {
			s.t.Errorf("I10: %s %s, change %d of the operations %q", e.Action, e.Target.ID, changes[e.IdempotencyKey], ops)
		}
	}
	s.swept(state)
}

// swept is the file's half of I10: the audit sweep finds, from what is on the
// wire, that each change is the operation's that has made it, or a stranger's.
// What an open operation may have done is not decided.
func (s *scene) swept(state modelgatetest.State) {
	s.t.Helper()
	s.outside(func() error { s.up.ClearFaults(); return nil })
	time.Sleep(2 * time.Minute) // audit events come late
	if err := s.sweeper().Sweep(context.Background(), SweepAudit); err != nil {
		s.t.Errorf("I10: the audit sweep: %v", err)
		return
	}
	for _, e := range state.Audit {
		want := "not ours"
		for _, key := range s.strings(`
			SELECT idempotency_key FROM partner_operations WHERE idempotency_key = $1
			OR target_public_id = $2 AND action = $3`, e.IdempotencyKey, e.Target.ID, makers[e.Action]) {
			want = "ours " + key // it has made that object, or has found it made
		}
		got := s.strings(`
			SELECT CASE a.classified WHEN 'ours' THEN 'ours ' || o.idempotency_key WHEN 'undecided' THEN 'undecided' ELSE 'not ours' END
			FROM upstream_audit_seen a LEFT JOIN partner_operations o USING (operation_id) WHERE a.audit_id = $1`, e.ID)
		open := s.strings(`SELECT operation_id FROM partner_operations WHERE finished_at_ms IS NULL AND send_state <> 'not_sent'`)
		if len(got) != 1 || got[0] != want && !(got[0] == "undecided" && len(open) > 0) {
			s.t.Errorf("I10: %s %s is %q, want %s", e.Action, e.Target.ID, got, want)
		}
	}
}

// makers are the actions that make what these changes make.
var makers = map[string]string{"group.create": "create_group", "key.create": "create_key", "credit.top_up": "top_up_credit", "credit.adjust": "debit_credit"}

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
