package modelgatetest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"
	"pgregory.net/rapid"

	"jpintel/billing/modelgatetest"
)

// passing are faults after which the same request, sent again, is answered in the
// end.
var passing = []modelgatetest.Rule{
	{At: modelgatetest.AtAccept, Do: "close"}, {At: modelgatetest.AtAccept, Do: "status:502 html"},
	{At: modelgatetest.AtBeforeAuth, Do: "reset"}, {At: modelgatetest.AtBeforeExecute, Do: "status:503"},
	{At: modelgatetest.AtBeforeExecute, Do: "in_progress_for:1s"}, {At: modelgatetest.AtBeforeExecute, Do: "close"},
	{At: modelgatetest.AtAfterExecute, Do: "reset"}, {At: modelgatetest.AtAfterExecute, Do: "status:503"}, {At: modelgatetest.AtAfterExecute, Do: "delay:1us"},
	{At: modelgatetest.AtAfterCommit, Do: "reset"}, {At: modelgatetest.AtAfterCommit, Do: "close"}, {At: modelgatetest.AtAfterCommit, Do: "status:502 html"},
	{At: modelgatetest.AtAfterCommit, Do: "in_progress_for:1s"}, {At: modelgatetest.AtMidResponse, Do: "close"}, {At: modelgatetest.AtMidResponse, Do: "reset"},
	{At: modelgatetest.AtOnResponse, Do: "truncate:5"}, {At: modelgatetest.AtOnResponse, Do: "malformed_json"}, {At: modelgatetest.AtOnResponse, Do: "status:503"},
}

// intent is a change that somebody wants, with its key for ever.
type intent struct {
	method, path, key string
	body              any
	answer            answer // the definite one
}

// modelGroup is what a group should be.
type modelGroup struct {
	id              string
	balance         decimal.Decimal
	frozen, deleted bool
	policy          int
}

// model is what the upstream should have.
type model struct {
	*partner
	rt      *rapid.T
	wallet  decimal.Decimal
	groups  []*modelGroup
	intents []*intent
	changes int // that have succeeded and were some
}

// want makes a change until there is a definite answer, which has to have a
// status.
func (m *model) want(status int, method, path string, body any) answer {
	i := &intent{method: method, path: path, body: body, key: fmt.Sprintf("intent-%d", len(m.intents))}
	m.intents = append(m.intents, i)
	i.answer = m.settle(i)
	if i.answer.status != status {
		m.rt.Fatalf("%s %s %v: %d %s, want %d", method, path, body, i.answer.status, i.answer.text, status)
	}
	return i.answer
}

// settle sends the same until the answer is definite.
func (m *model) settle(i *intent) answer {
	for range 50 {
		a := m.call(i.method, i.path, i.body, "Idempotency-Key", i.key)
		_, broken := a.get().(error)
		switch {
		case a.err != nil || a.status >= 500 || broken:
		case a.code() == "idempotency_in_progress":
			m.u.Advance(time.Second)
		default:
			return a
		}
	}
	m.rt.Fatalf("%+v is never answered: %+v", i, m.u.State().Faults)
	return answer{}
}

func (m *model) createGroup(rt *rapid.T) {
	a := m.want(201, "POST", "/groups", object{"name": "N", "external_ref": fmt.Sprintf("cus_%d:signup:1", len(m.groups))})
	m.groups = append(m.groups, &modelGroup{id: a.str("id")})
	m.changes++
}

// anyGroup draws one; there has to be one.
func (m *model) anyGroup(rt *rapid.T) *modelGroup {
	if len(m.groups) == 0 {
		rt.Skip("no group yet")
	}
	return rapid.SampledFrom(m.groups).Draw(rt, "group")
}

// status is what a change of a group that has to be live, and open, is answered
// with; otherwise what comes after those checks.
func (g *modelGroup) status(open bool, otherwise int) int {
	if g.deleted || open && g.frozen {
		return 409
	}
	return otherwise
}

func amounts(rt *rapid.T) decimal.Decimal {
	return decimal.New(rapid.Int64Range(1, 60_000_000).Draw(rt, "amount"), -rapid.Int32Range(0, 12).Draw(rt, "digits"))
}

func (m *model) topUp(rt *rapid.T) {
	g, amount := m.anyGroup(rt), amounts(rt)
	status := 201
	if amount.GreaterThan(m.wallet) {
		status = 402
	}
	if amount.LessThan(decimal.NewFromInt(1)) {
		status = 422
	}
	status = g.status(true, status)
	m.want(status, "POST", "/groups/"+g.id+"/top-ups", usd(amount.String()))
	if status == 201 {
		m.move(g, amount)
	}
}

func (m *model) adjust(rt *rapid.T) {
	g, amount := m.anyGroup(rt), amounts(rt)
	if rapid.Bool().Draw(rt, "down") {
		amount = amount.Neg()
	}
	status := 201
	if amount.GreaterThan(m.wallet) {
		status = 402
	}
	if g.balance.Add(amount).IsNegative() {
		status = 422
	}
	status = g.status(false, status)
	m.want(status, "POST", "/groups/"+g.id+"/adjustments", object{"amount": amount.String(), "currency": "USD", "reason": "correction"})
	if status == 201 {
		m.move(g, amount)
	}
}

func (m *model) move(g *modelGroup, amount decimal.Decimal) {
	g.balance, m.wallet = g.balance.Add(amount), m.wallet.Sub(amount)
	m.changes++
}

func (m *model) createKey(rt *rapid.T) {
	g := m.anyGroup(rt)
	status := g.status(true, 201)
	if m.want(status, "POST", "/groups/"+g.id+"/keys", object{"name": "K", "purpose": fmt.Sprint(len(m.intents))}); status == 201 {
		m.changes++
	}
}

func (m *model) setLimit(rt *rapid.T) {
	g, policy := m.anyGroup(rt), rapid.IntRange(1, 12).Draw(rt, "policy")
	status := 200
	if policy <= g.policy {
		status = 409
	}
	status = g.status(false, status)
	if m.want(status, "PATCH", "/groups/"+g.id+"/limits", limit("10.00", fmt.Sprint(policy))); status == 200 {
		g.policy = policy
		m.changes++
	}
}

func (m *model) freeze(rt *rapid.T) {
	g, frozen := m.anyGroup(rt), rapid.Bool().Draw(rt, "frozen")
	to := map[bool]string{true: "frozen", false: "active"}[frozen]
	status := g.status(false, 200)
	if m.want(status, "PATCH", "/groups/"+g.id, object{"status": to}); status == 200 && frozen != g.frozen {
		g.frozen = frozen
		m.changes++
	}
}

func (m *model) deleteGroup(rt *rapid.T) {
	g := m.anyGroup(rt)
	status := 200
	if !g.balance.IsZero() {
		status = 409
	}
	if m.want(status, "DELETE", "/groups/"+g.id, nil); status == 200 && !g.deleted {
		g.deleted = true
		m.changes++
	}
}

// breaks adds a fault that strikes once, some time.
func (m *model) breaks(rt *rapid.T) {
	rule := rapid.SampledFrom(passing).Draw(rt, "fault")
	rule.Match.Nth, rule.Times = rapid.IntRange(1, 3).Draw(rt, "nth"), 1
	m.faults(rule)
}

// again sends an old intent: its answer is the one of then.
func (m *model) again(rt *rapid.T) {
	if len(m.intents) == 0 {
		rt.Skip("no intent yet")
	}
	i := rapid.SampledFrom(m.intents).Draw(rt, "intent")
	a := m.settle(i)
	if a.status != i.answer.status || a.header.Get("Idempotent-Replayed") != "true" || !strings.HasSuffix(i.path, "/keys") && a.text != i.answer.text {
		rt.Fatalf("%d %s, then %d %s %v", i.answer.status, i.answer.text, a.status, a.text, a.header)
	}
}

// check holds the upstream against the model.
func (m *model) check(rt *rapid.T) {
	s := m.u.State()
	if len(s.Groups) != len(m.groups) || len(s.Audit) != m.changes || len(s.ReusedKeys()) != 0 || len(s.Overlaps()) != 0 {
		rt.Fatalf("%d groups, want %d; %d audit events, want %d; %v %v", len(s.Groups), len(m.groups), len(s.Audit), m.changes, s.ReusedKeys(), s.Overlaps())
	}
	if !m.wallet.Equal(decimal.RequireFromString(s.Wallet.Balance)) {
		rt.Fatalf("the wallet has %s, want %s", s.Wallet.Balance, m.wallet)
	}
	for _, g := range m.groups {
		if !g.balance.Equal(decimal.RequireFromString(s.Balances[g.id])) || !g.balance.Equal(s.Credited()[g.id]) {
			rt.Fatalf("%s has %s and is credited %s, want %s", g.id, s.Balances[g.id], s.Credited()[g.id], g.balance)
		}
	}
	perKey, targets := map[string]int{}, map[string]bool{}
	for _, e := range s.Audit {
		perKey[e.IdempotencyKey]++
		if e.Action == "group.create" || e.Action == "key.create" || strings.HasPrefix(e.Action, "credit.") {
			if targets[e.Target.ID] {
				rt.Fatalf("%s was made twice", e.Target.ID)
			}
			targets[e.Target.ID] = true
		}
	}
	for _, i := range m.intents {
		if got := s.Idempotency[i.key]; got.Executions != 1 || perKey[i.key] > 1 || i.answer.status >= 400 && perKey[i.key] != 0 {
			rt.Fatalf("%+v: %+v, %d audit events", i, got, perKey[i.key])
		}
	}
	if len(targets) != len(s.Groups)+len(s.Keys)+len(s.Transactions) {
		rt.Fatalf("%d objects, %d were made", len(s.Groups)+len(s.Keys)+len(s.Transactions), len(targets))
	}
}

// TestAnyFaults makes random changes under random faults. Whatever is lost on the
// way, each intent has happened once or not at all, as its answer says.
func TestAnyFaults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const wallet = "100000.00"
		u := modelgatetest.New(modelgatetest.Options{WalletBalance: wallet, MaxKeys: 1000})
		p := serve(t, u)
		defer u.Close()
		m := &model{partner: p, rt: rt, wallet: decimal.RequireFromString(wallet)}
		rt.Repeat(map[string]func(*rapid.T){
			"create group": m.createGroup, "top up": m.topUp, "adjust": m.adjust, "create key": m.createKey, "set limit": m.setLimit,
			"freeze": m.freeze, "delete group": m.deleteGroup, "break": m.breaks, "again": m.again, "": m.check,
		})
	})
}
