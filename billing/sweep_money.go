package billing

import (
	"database/sql"
	"fmt"
	"slices"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/billing/money"
	"jpintel/store"
)

// moneyLag is how late transactions may come, with a little.
const moneyLag = 2 * time.Minute

// moneyDetail is the detail of a money_differs. The sums are of what can be
// judged: not of what an operation is doing just now.
type moneyDetail struct {
	Currency  string   `json:"currency"`
	Here      string   `json:"here"`       // what operations have moved
	There     string   `json:"there"`      // what the transactions add up to
	OnlyHere  []string `json:"only_here"`  // operations
	OnlyThere []string `json:"only_there"` // transactions
	Differing []string `json:"differing"`  // transactions with another amount or currency than their operation's
}

// creditOperation is one that moves credit.
type creditOperation struct {
	id, target, externalRef string
	amount                  money.Amount // signed: out of the group where it is negative
	currency                money.Currency
	succeeded               bool
	open                    bool // it may take effect any moment
	finished                time.Time
}

// creditOperations are a customer's, the oldest first.
func creditOperations(q store.Querier, customer string) ([]creditOperation, error) {
	rows, err := q.Query(`
		SELECT operation_id, COALESCE(target_public_id, ''), COALESCE(external_ref, ''), COALESCE(amount, ''), COALESCE(currency, ''), status = 'succeeded',
		  finished_at_ms IS NULL AND send_state <> 'not_sent', finished_at_ms
		FROM partner_operations WHERE customer_id = $1 AND action IN ('top_up_credit', 'debit_credit') ORDER BY operation_seq`, customer)
	if err != nil {
		return nil, fmt.Errorf("reading credit operations: %w", err)
	}
	return store.Collect(rows, func(r *sql.Rows) (o creditOperation, err error) {
		var amount string
		var finished sql.NullInt64
		err = r.Scan(&o.id, &o.target, &o.externalRef, &amount, &o.currency, &o.succeeded, &o.open, &finished)
		if err != nil {
			return o, err
		}
		o.finished = orZero(finished)
		if o.amount, err = money.ParseSigned(amount); err != nil {
			return o, fmt.Errorf("operation %s: %w", o.id, err)
		}
		return o, nil
	})
}

// compareMoney holds what operations have moved against the group's
// transactions: by id, and in sum. since is when the transactions were read.
func (g groupThere) compareMoney(q store.Querier, a *Account, since time.Time) (any, error) {
	operations, err := creditOperations(q, a.CustomerID)
	if err != nil {
		return nil, err
	}
	there, open := map[string]modelgate.Transaction{}, map[string]bool{}
	for _, t := range g.transactions {
		if t.Type == "top_up" || t.Type == "adjustment" {
			there[t.ID] = t
		}
	}
	d := moneyDetail{Currency: string(a.Currency), OnlyHere: []string{}, OnlyThere: []string{}, Differing: []string{}}
	var sumHere, sumThere money.Amount
	for _, o := range operations {
		open[o.externalRef] = open[o.externalRef] || o.open
		if !o.succeeded {
			continue
		}
		t, found := there[o.target]
		if !found && !o.finished.Before(since.Add(-moneyLag)) {
			continue // it is not in the list yet
		}
		if sumHere, err = sumHere.Add(o.amount); err != nil {
			return nil, err
		}
		delete(there, o.target)
		if !found {
			d.OnlyHere = append(d.OnlyHere, o.id)
			continue
		}
		if sumThere, err = sumThere.Add(t.Amount); err != nil {
			return nil, err
		}
		if !t.Amount.Equal(o.amount) || t.Currency != o.currency {
			d.Differing = append(d.Differing, t.ID)
		}
	}
	for _, t := range there {
		if t.ExternalRef != "" && open[t.ExternalRef] {
			continue // its operation does not know yet
		}
		if sumThere, err = sumThere.Add(t.Amount); err != nil {
			return nil, err
		}
		d.OnlyThere = append(d.OnlyThere, t.ID)
	}
	if len(d.OnlyHere)+len(d.OnlyThere)+len(d.Differing) == 0 {
		return nil, nil
	}
	slices.Sort(d.OnlyThere)
	d.OnlyHere, d.OnlyThere, d.Differing = first(d.OnlyHere), first(d.OnlyThere), first(d.Differing)
	d.Here, d.There = sumHere.Text(a.Currency), sumThere.Text(a.Currency)
	return d, nil
}

// first are as many ids as a finding lists.
func first(ids []string) []string { return ids[:min(len(ids), maxListed)] }
