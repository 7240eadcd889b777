package modelgatetest

import (
	"slices"
	"strings"
	"time"

	"github.com/shopspring/decimal"
)

// State is what the upstream knows at one moment: all of it, late or not.
type State struct {
	Now          time.Time            `json:"now"`
	Requests     int                  `json:"requests"` // of the contract's calls, that came in
	Wallet       Balance              `json:"wallet"`
	Groups       []Group              `json:"groups"` // deleted ones too
	Keys         []Key                `json:"keys"`   // without secrets
	Transactions []Transaction        `json:"transactions"`
	Usage        []Usage              `json:"usage"`
	Limits       map[string]Limits    `json:"limits"`   // by group
	Balances     map[string]string    `json:"balances"` // by group
	ExternalRefs map[string]*RefCount `json:"external_refs"`
	Idempotency  map[string]Traffic   `json:"idempotency"` // by Idempotency-Key
	Audit        []AuditTrail         `json:"audit"`
	Faults       []FaultState         `json:"faults"`

	credited map[string]decimal.Decimal
}

// RefCount is how much was made under one external_ref.
type RefCount struct {
	Groups      int `json:"groups"`
	LiveGroups  int `json:"live_groups"` // that are not deleted
	Keys        int `json:"keys"`
	ActiveKeys  int `json:"active_keys"`
	TopUps      int `json:"top_ups"`
	Adjustments int `json:"adjustments"`
}

// AuditTrail is an audit event with the Idempotency-Key that led to it, which the
// contract's calls do not show; "" where the call had none.
type AuditTrail struct {
	AuditEvent
	IdempotencyKey string `json:"idempotency_key"`
}

// FaultState is a rule and how often it was asked and has struck.
type FaultState struct {
	Rule
	Seen int `json:"seen"`
	Hits int `json:"hits"`
}

// State is a copy that stays as it is.
func (u *Upstream) State() State {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state()
}

// state is State. The mutex is held.
func (u *Upstream) state() State {
	s := State{
		Now: u.clock.now(), Requests: u.served, Groups: []Group{}, Keys: []Key{}, Transactions: []Transaction{}, Usage: []Usage{}, Audit: []AuditTrail{}, Faults: []FaultState{},
		Limits: map[string]Limits{}, Balances: map[string]string{}, ExternalRefs: map[string]*RefCount{}, Idempotency: map[string]Traffic{},
		credited: map[string]decimal.Decimal{},
	}
	wallet, _ := u.data.wallet.get(walletID, s.Now)
	s.Wallet = Balance{printMoney(wallet, u.options.Currency), u.options.Currency, stamp(s.Now)}
	s.takeGroups(u)
	s.takeKeys(u)
	s.takeMoney(u)
	for key, t := range u.traffic {
		seen := *t
		seen.Fingerprints = slices.Clone(t.Fingerprints)
		s.Idempotency[key] = seen
	}
	for e := range u.data.audit.all(s.Now) {
		s.Audit = append(s.Audit, AuditTrail{e.AuditEvent, e.key})
	}
	for _, f := range u.faults {
		s.Faults = append(s.Faults, FaultState{f.Rule, f.seen, f.hits})
	}
	return s
}

// Secrets are the partner's token and every key's secret that was ever made,
// whether or not somebody has received it: for tests that look for them where
// they must not be. No call shows them.
func (u *Upstream) Secrets() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := []string{u.options.Token}
	for k := range u.data.keys.all(u.clock.now()) {
		all = append(all, k.secret)
	}
	return all
}

func (s *State) ref(ref string) *RefCount {
	if ref == "" {
		return &RefCount{} // nobody's
	}
	if s.ExternalRefs[ref] == nil {
		s.ExternalRefs[ref] = &RefCount{}
	}
	return s.ExternalRefs[ref]
}

func (s *State) takeGroups(u *Upstream) {
	for g := range u.data.groups.all(s.Now) {
		s.Groups = append(s.Groups, g.view(u.options.Currency))
		s.Balances[g.id] = printMoney(g.balance, u.options.Currency)
		s.Limits[g.id] = (&session{tx: &tx{now: s.Now}, data: u.data, options: u.options, at: s.Now}).limitsOf(g)
		count := s.ref(g.ref)
		count.Groups++
		if g.status != groupDeleted {
			count.LiveGroups++
		}
	}
}

func (s *State) takeKeys(u *Upstream) {
	for k := range u.data.keys.all(s.Now) {
		s.Keys = append(s.Keys, k.view())
		count := s.ref(k.ref)
		count.Keys++
		if k.status == keyActive {
			count.ActiveKeys++
		}
	}
}

func (s *State) takeMoney(u *Upstream) {
	for t := range u.data.transactions.all(s.Now) {
		s.Transactions = append(s.Transactions, t.view(u.options.Currency))
		s.credited[t.group] = s.credited[t.group].Add(t.amount)
		count := s.ref(t.ref)
		if t.kind == txnTopUp {
			count.TopUps++
		} else {
			count.Adjustments++
		}
	}
	for r := range u.data.usage.all(s.Now) {
		s.Usage = append(s.Usage, r.view(u.options.Currency))
	}
}

// What follows is the upstream's half of what has to hold after every scenario.
// It returns the data; the caller, who knows its own half, judges.

// Customer is the customer in an external_ref like cust_42:signup:1.
func Customer(externalRef string) string {
	customer, _, _ := strings.Cut(externalRef, ":")
	return customer
}

// LiveGroups are the ids of groups that are not deleted, by the customer in their
// external_ref: at most one each.
func (s State) LiveGroups() map[string][]string {
	live := map[string][]string{}
	for _, g := range s.Groups {
		if g.Status != groupDeleted {
			live[Customer(g.ExternalRef)] = append(live[Customer(g.ExternalRef)], g.ID)
		}
	}
	return live
}

// KeyUse is a group and what a key of it is for.
type KeyUse struct{ GroupID, Purpose string }

// ActiveKeys are the ids of active keys: exactly one for each use of a customer
// that is provisioned.
func (s State) ActiveKeys() map[KeyUse][]string {
	active := map[KeyUse][]string{}
	for _, k := range s.Keys {
		if use := (KeyUse{k.GroupID, k.Purpose}); k.Status == keyActive {
			active[use] = append(active[use], k.ID)
		}
	}
	return active
}

// Credited is the exact sum of a group's top-ups and adjustments: what the
// payments' targets have to add up to.
func (s State) Credited() map[string]decimal.Decimal { return s.credited }

// ReusedKeys are the Idempotency-Keys under which more than one request was sent,
// with their fingerprints: none.
func (s State) ReusedKeys() map[string][]string {
	reused := map[string][]string{}
	for key, t := range s.Idempotency {
		if len(t.Fingerprints) > 1 {
			reused[key] = t.Fingerprints
		}
	}
	return reused
}

// Overlaps are the Idempotency-Keys under which two requests were here at one
// time, and none of them was told that the key is running: none.
func (s State) Overlaps() map[string]Traffic {
	overlaps := map[string]Traffic{}
	for key, t := range s.Idempotency {
		if t.MaxConcurrent > 1 && t.RefusedRunning == 0 {
			overlaps[key] = t
		}
	}
	return overlaps
}
