package billing

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/store"
)

// This file has the accounts sweep: each customer's group is read and held
// against what this file says. What an operation is changing just now is not
// judged: the next round sees it.

// accounts compares every customer's group, from where the last try ended.
func (r *round) accounts(ctx context.Context) error {
	for {
		a, err := accountAfter(r.DB.Reader(ctx), r.position)
		if err != nil || a == nil {
			return err
		}
		if err := r.account(ctx, a); err != nil {
			return err
		}
	}
}

// maxUnread is how many groups in a row may be unreadable: more of them are the
// upstream's fault, not theirs.
const maxUnread = 3

// account compares one customer's group.
func (r *round) account(ctx context.Context, a *Account) error {
	since := time.Now()
	there, err := r.readGroup(ctx, a.GroupID)
	code := ""
	if e, ok := errors.AsType[*modelgate.ReadError](err); ok && e.Class == modelgate.Malformed && r.unread < maxUnread {
		code = e.Code // the others are not kept waiting
		r.unread++
	} else if err != nil {
		return err
	} else {
		r.unread = 0
	}
	r.position = a.CustomerID
	r.checked++
	return r.write(ctx, func(tx *store.Tx) error {
		if err := r.change(tx, `position = $1`, r.position); err != nil {
			return err
		}
		if code != "" {
			return observe(tx, Unreadable, a.GroupID, a.CustomerID, codeDetail{code})
		}
		return there.compare(tx, a.CustomerID, since)
	})
}

// codeDetail is the detail of what has only a code.
type codeDetail struct {
	Code string `json:"code"`
}

// accountAfter is the next account with a group; nil: it was the last one.
func accountAfter(q store.Querier, customer string) (*Account, error) {
	var next string
	err := q.QueryRow(`SELECT customer_id FROM billing_accounts WHERE group_id IS NOT NULL AND customer_id > $1 ORDER BY customer_id LIMIT 1`, customer).Scan(&next)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading accounts: %w", err)
	}
	return getAccount(q, next)
}

// groupThere is a group as the upstream has it.
type groupThere struct {
	id           string
	status       string            // "": there is no such group
	limits       *modelgate.Limits // nil: the same
	keys         []modelgate.Key
	transactions []modelgate.Transaction
}

func (r *round) readGroup(ctx context.Context, id string) (g groupThere, err error) {
	ctx, cancel := context.WithTimeout(ctx, sweepStep)
	defer cancel()
	g.id = id
	group, err := r.Client.Group(ctx, id)
	if err != nil || len(group.Items) == 0 {
		return g, err
	}
	g.status = group.Items[0].Status
	limits, err := r.Client.Limits(ctx, id)
	if err != nil {
		return g, err
	}
	if len(limits.Items) > 0 {
		g.limits = &limits.Items[0]
	}
	keys, err := r.Client.GroupKeys(ctx, id)
	if err != nil {
		return g, err
	}
	transactions, err := r.Client.GroupTransactions(ctx, id)
	g.keys, g.transactions = keys.Items, transactions.Items
	return g, err
}

// compare holds the group against the file. since is when the reading began.
func (g groupThere) compare(tx *store.Tx, customer string, since time.Time) error {
	a, err := getAccount(tx, customer)
	if err != nil || a == nil || a.GroupID != g.id {
		return err
	}
	if err := over(tx, Unreadable, g.id); err != nil {
		return err
	}
	for _, c := range []struct {
		kind    FindingKind
		changes string // the actions that change it; "": what is open is told apart by its ids
		compare func(store.Querier, *Account, time.Time) (any, error)
	}{
		{StateDiffers, `'freeze_group', 'thaw_group', 'delete_group'`, g.compareState},
		{LimitDiffers, `'set_limit', 'set_initial_limit'`, g.compareLimit},
		{KeysDiffer, `'create_key', 'revoke_key'`, g.compareKeys},
		{MoneyDiffers, "", g.compareMoney},
	} {
		changing, err := beingChanged(tx, customer, c.changes, since)
		if err != nil {
			return err
		}
		if changing {
			continue
		}
		detail, err := c.compare(tx, a, since)
		if err == nil && detail == nil {
			err = over(tx, c.kind, g.id)
		} else if err == nil {
			err = observe(tx, c.kind, g.id, customer, detail)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// beingChanged reports whether an operation with one of the actions may have
// taken effect since then, or may do so any moment.
func beingChanged(q store.Querier, customer, actions string, since time.Time) (changing bool, err error) {
	if actions == "" {
		return false, nil
	}
	err = q.QueryRow(`
		SELECT EXISTS (SELECT 1 FROM partner_operations WHERE customer_id = $1 AND action IN (`+actions+`)
		  AND (finished_at_ms IS NULL AND send_state <> 'not_sent' OR updated_at_ms >= $2))`, customer, since.UnixMilli()).Scan(&changing)
	if err != nil {
		return false, fmt.Errorf("looking for open operations: %w", err)
	}
	return changing, nil
}

// differs is the detail of what is one thing here and another there.
type differs struct {
	Here  string `json:"here"`
	There string `json:"there"`
}

// compareState holds a group's state against the account's.
func (g groupThere) compareState(_ store.Querier, a *Account, _ time.Time) (any, error) {
	here, there := modelgate.GroupActive, g.status
	if a.Frozen {
		here = modelgate.GroupFrozen
	}
	if there == "" {
		there = "missing"
	}
	if here == there {
		return nil, nil
	}
	return differs{here, there}, nil
}

// limitDetail is the detail of a limit_differs.
type limitDetail struct {
	Here          string `json:"here"` // the limit in force
	There         string `json:"there"`
	PolicyHere    string `json:"policy_version_here"`
	PolicyThere   string `json:"policy_version_there"`
	CurrencyThere string `json:"currency_there"`
	PeriodThere   string `json:"period_there"`
}

// compareLimit holds the limits against the newest that was confirmed. A group
// begins with a limit of zero and no version.
func (g groupThere) compareLimit(q store.Querier, a *Account, _ time.Time) (any, error) {
	if g.limits == nil {
		return nil, nil // the group's state says that it is not there
	}
	o := &Operation{Amount: new("0"), Currency: new(string(a.Currency))}
	err := q.QueryRow(`
		SELECT amount, currency, intent_version FROM partner_operations
		WHERE customer_id = $1 AND action IN ('set_limit', 'set_initial_limit') AND status = 'succeeded' ORDER BY intent_version DESC LIMIT 1`, a.CustomerID).
		Scan(o.Amount, o.Currency, &o.IntentVersion)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("reading the limit in force: %w", err)
	}
	limit, currency, err := o.money()
	if err != nil {
		return nil, err
	}
	policy := number(o.IntentVersion)
	if there := g.limits.PolicyVersion; sameLimit(*g.limits, limit, currency) && (there == policy || there == "" && policy == "0") {
		return nil, nil
	}
	return limitDetail{limit.Text(currency), g.limits.SpendLimit.Text(g.limits.Currency), policy, g.limits.PolicyVersion, string(g.limits.Currency), g.limits.Period}, nil
}

// maxListed is how many ids a finding lists.
const maxListed = 50

// sidesDetail is the detail of what is on one side only, by ids.
type sidesDetail struct {
	OnlyHere  []string `json:"only_here"`
	OnlyThere []string `json:"only_there"`
}

// compareKeys holds the keys that can be used there against those that should.
func (g groupThere) compareKeys(q store.Querier, a *Account, _ time.Time) (any, error) {
	keys, err := modelKeys(q, a.CustomerID)
	if err != nil {
		return nil, err
	}
	var here, there []string
	for _, k := range keys {
		if k.Status != keyRevoked { // a frozen one is active there, in a group that is frozen
			here = append(here, k.KeyID)
		}
	}
	for _, k := range g.keys {
		if k.Status == modelgate.KeyActive {
			there = append(there, k.ID)
		}
	}
	detail := sidesDetail{without(here, there), without(there, here)}
	if len(detail.OnlyHere)+len(detail.OnlyThere) == 0 {
		return nil, nil
	}
	return detail, nil
}

// without is what of a list is not in another, in order, the first maxListed.
func without(list, other []string) []string {
	in := map[string]bool{}
	for _, id := range other {
		in[id] = true
	}
	left := []string{}
	for _, id := range slices.Sorted(slices.Values(list)) {
		if !in[id] && len(left) < maxListed {
			left = append(left, id)
		}
	}
	return left
}
