package ledger

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"jpintel/billing/money"
	"jpintel/store"
)

// Fault is something that does not hold. It names what it is about.
type Fault struct {
	Code        string `json:"code"`
	EntryID     string `json:"entry_id,omitempty"`
	OperationID string `json:"operation_id,omitempty"`
	CustomerID  string `json:"customer_id,omitempty"`
	Detail      string `json:"detail"`
}

// The codes of faults.
const (
	FaultGap       = "gap"              // entries are missing before this one
	FaultLines     = "lines"            // fewer than two, or numbers with gaps
	FaultText      = "text"             // an amount that is not written as it has to be
	FaultSum       = "sum"              // the lines do not add up to zero
	FaultAccount   = "account"          // a line on another customer's credit
	FaultBalance   = "balance_after"    // the stored balance is not the account's sum
	FaultReversal  = "reversal"         // an entry and the one that it takes back do not cancel each other
	FaultOperation = "operation"        // an entry whose operation has not done what it says
	FaultMissing   = "entry_missing"    // an operation that has moved credit, and has no entry
	FaultUpstream  = "upstream"         // the upstream has moved something else
	FaultUnread    = "upstream_unknown" // the upstream could not be asked
)

// maxFaults is how many faults a report names; all are counted.
const maxFaults = 1000

// Report is what Verify has found.
type Report struct {
	Entries    int64     `json:"entries"`
	Lines      int64     `json:"lines"`
	Operations int64     `json:"operations"` // that have moved credit
	Groups     int64     `json:"groups"`     // whose totals the upstream confirms
	Unsettled  []string  `json:"unsettled"`  // customers whose totals differ while something is under way
	Accounts   []Account `json:"accounts"`
	FaultCount int64     `json:"fault_count"`
	Faults     []Fault   `json:"faults"` // the first 1000
}

// Account is what is on an account.
type Account struct {
	Account  string `json:"account"`
	Currency string `json:"currency"`
	Sum      string `json:"sum"`
}

// Upstream tells what all transactions of a group at the upstream add up to.
type Upstream func(ctx context.Context, group string) (money.Amount, error)

// Verify holds the journal against itself, against the operations and, where
// upstream is not nil, against what the upstream has booked. It reads the entries
// that there are when it begins, some hundred at a time. The journal only grows
// and what has succeeded stays so, so that q may be the read pool: each query
// sees another state, and none can see an entry without its operation. Held in
// memory are sums, one for each account.
func Verify(ctx context.Context, q store.Querier, upstream Upstream) (Report, error) {
	v := &verifier{q: q, sums: map[book]money.Amount{}, moved: map[book]money.Amount{}}
	v.report = Report{Unsettled: []string{}, Accounts: []Account{}, Faults: []Fault{}}
	var err error
	if v.newest, err = newestEntry(q); err == nil {
		err = v.entries(ctx)
	}
	if err == nil {
		err = v.operations(ctx)
	}
	if err == nil && upstream != nil {
		err = v.groups(ctx, upstream)
	}
	v.accounts()
	return v.report, err
}

// book is an account, or a customer, in one currency.
type book struct{ of, currency string }

type verifier struct {
	q      store.Querier
	newest int64
	sums   map[book]money.Amount // by account
	moved  map[book]money.Amount // by customer: what operations have moved
	report Report
}

func (v *verifier) fault(f Fault, format string, args ...any) {
	v.report.FaultCount++
	if f.Detail = fmt.Sprintf(format, args...); len(v.report.Faults) < maxFaults {
		v.report.Faults = append(v.report.Faults, f)
	}
}

func (v *verifier) accounts() {
	for b, sum := range v.sums {
		v.report.Accounts = append(v.report.Accounts, Account{b.of, b.currency, sum.Text(money.Currency(b.currency))})
	}
	slices.SortFunc(v.report.Accounts, func(a, b Account) int {
		return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.Currency, b.Currency))
	})
}

// entries goes over the whole journal.
func (v *verifier) entries(ctx context.Context) error {
	for from := int64(0); from < v.newest; {
		if err := ctx.Err(); err != nil {
			return err
		}
		found, err := read(v.q, Filter{}, oldestFirst, from, chunk)
		found = slices.DeleteFunc(found, func(e Posted) bool { return e.seq > v.newest })
		if err != nil || len(found) == 0 {
			return err
		}
		caused, err := v.causes(from, found[len(found)-1].seq)
		if err != nil {
			return err
		}
		for _, e := range found {
			if e.seq != from+1 {
				v.fault(Fault{Code: FaultGap, EntryID: e.EntryID}, "number %d follows number %d", e.seq, from)
			}
			from = e.seq
			if err := v.entry(e, caused[e.EntryID]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *verifier) entry(e Posted, o *operation) error {
	v.report.Entries++
	v.report.Lines += int64(len(e.Lines))
	if !v.written(e) {
		return nil
	}
	lines, err := e.amounts()
	if err != nil {
		return err // unreachable: they were read before
	}
	sum, err := total(lines)
	if err != nil || sum.Sign() != 0 {
		v.fault(Fault{Code: FaultSum, EntryID: e.EntryID}, "the lines add up to %s, not to zero", sum)
	}
	if err := v.add(e, lines); err != nil {
		return err
	}
	v.balance(e)
	if e.OperationID != nil {
		if err := v.caused(e, lines, o); err != nil {
			return err
		}
	}
	if e.Reverses != nil {
		return v.reversal(e, lines)
	}
	return nil
}

// written judges how the lines stand there, and reports whether their amounts can
// be read.
func (v *verifier) written(e Posted) (readable bool) {
	readable = true
	about := func(code string) Fault { return Fault{Code: code, EntryID: e.EntryID} }
	if len(e.Lines) < 2 {
		v.fault(about(FaultLines), "%d lines: want two or more", len(e.Lines))
	}
	for i, l := range e.Lines {
		if l.number != int64(i+1) {
			v.fault(about(FaultLines), "line %d follows line %d", l.number, i)
		}
		if foreign(l.Account, e.CustomerID) {
			v.fault(about(FaultAccount), "line %d is on %s, and the entry is %s's", l.number, l.Account, e.CustomerID)
		}
		amount, err := money.ParseSigned(l.Amount)
		if err != nil {
			readable = false
			v.fault(about(FaultText), "line %d: %q: %v", l.number, l.Amount, err)
			continue
		}
		if want := amount.Text(money.Currency(e.Currency)); l.Amount != want {
			v.fault(about(FaultText), "line %d: %s is written %s", l.number, want, l.Amount)
		}
		if raw, err := money.ParseSigned(l.Raw); err != nil || !raw.Equal(amount) {
			v.fault(about(FaultText), "line %d: %s was received as %q", l.number, l.Amount, l.Raw)
		}
	}
	return readable
}

func (v *verifier) add(e Posted, lines []Line) (err error) {
	for _, l := range lines {
		at := book{l.Account, e.Currency}
		if v.sums[at], err = v.sums[at].Add(l.Amount); err != nil {
			return fmt.Errorf("account %s: %w", l.Account, err)
		}
	}
	return nil
}

// balance holds the stored balance against the account's sum so far.
func (v *verifier) balance(e Posted) {
	want := v.sums[book{Credit(e.CustomerID), e.Currency}].Text(money.Currency(e.Currency))
	if e.BalanceAfter != want {
		v.fault(Fault{Code: FaultBalance, EntryID: e.EntryID, CustomerID: e.CustomerID}, "the balance after it is %s, and the account's sum %s", e.BalanceAfter, want)
	}
}

// reversal holds an entry against the one that it takes back: together they are
// as if there were neither.
func (v *verifier) reversal(e Posted, lines []Line) error {
	about := Fault{Code: FaultReversal, EntryID: e.EntryID}
	back, err := one(v.q, *e.Reverses)
	if err != nil {
		return err
	}
	if back == nil {
		v.fault(about, "it takes back %s, which does not exist", *e.Reverses)
		return nil
	}
	others, err := back.amounts()
	if err != nil {
		return nil // its own fault
	}
	if back.CustomerID != e.CustomerID || back.Currency != e.Currency || back.seq >= e.seq {
		v.fault(about, "it takes back %s, which is of another customer or currency, or later", *e.Reverses)
	}
	both := slices.Concat(lines, others)
	for _, l := range both {
		if left, err := on(l.Account, both); err != nil || left.Sign() != 0 {
			v.fault(about, "it takes back %s, and %s is left on %s", *e.Reverses, left, l.Account)
			return nil
		}
	}
	return nil
}

// one reads an entry; nil: there is none.
func one(q store.Querier, id string) (*Posted, error) {
	var seq sql.NullInt64
	if err := q.QueryRow(`SELECT MAX(entry_seq) FROM journal_entries WHERE entry_id = $1`, id).Scan(&seq); err != nil {
		return nil, fmt.Errorf("reading entry %s: %w", id, err)
	}
	if !seq.Valid {
		return nil, nil
	}
	found, err := read(q, Filter{}, oldestFirst, seq.Int64-1, 1)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// operation is an operation, as far as money goes.
type operation struct {
	id, customer, action, status string
	amount, currency             string
}

const (
	topUpCredit = "top_up_credit"
	debitCredit = "debit_credit"
	succeeded   = "succeeded"
)

// causes reads the operations of the entries between two numbers, by entry.
func (v *verifier) causes(after, last int64) (map[string]*operation, error) {
	rows, err := v.q.Query(`
		SELECT e.entry_id, o.operation_id, o.customer_id, o.action, o.status, COALESCE(o.amount, ''), COALESCE(o.currency, '')
		FROM journal_entries e JOIN partner_operations o ON o.operation_id = e.operation_id WHERE e.entry_seq > $1 AND e.entry_seq <= $2`, after, last)
	if err != nil {
		return nil, fmt.Errorf("reading operations: %w", err)
	}
	found := map[string]*operation{}
	_, err = store.Collect(rows, func(r *sql.Rows) (entry string, err error) {
		o := &operation{}
		err = r.Scan(&entry, &o.id, &o.customer, &o.action, &o.status, &o.amount, &o.currency)
		found[entry] = o
		return entry, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading operations: %w", err)
	}
	return found, nil
}

// caused holds an entry against the operation that it is the consequence of: it
// has moved the customer's credit by the operation's amount.
func (v *verifier) caused(e Posted, lines []Line, o *operation) error {
	about := Fault{Code: FaultOperation, EntryID: e.EntryID, OperationID: *e.OperationID}
	if o == nil {
		v.fault(about, "the operation does not exist")
		return nil
	}
	moved, err := on(Credit(e.CustomerID), lines)
	if err != nil {
		return fmt.Errorf("entry %s: %w", e.EntryID, err)
	}
	if o.status != succeeded || o.action != topUpCredit && o.action != debitCredit {
		v.fault(about, "the operation is a %s that is %s", o.action, o.status)
	}
	if want, err := o.credit(); err != nil || !want.Equal(moved) || o.customer != e.CustomerID || o.currency != e.Currency {
		v.fault(about, "the entry moves %s %s of %s, the operation %s %s of %s", moved, e.Currency, e.CustomerID, want, o.currency, o.customer)
	}
	at := book{e.CustomerID, e.Currency}
	if v.moved[at], err = v.moved[at].Add(moved); err != nil {
		return fmt.Errorf("customer %s: %w", e.CustomerID, err)
	}
	return nil
}

// credit is what an operation does to its customer's credit: a debit's amount is
// negative, unless it gives back what was taken before.
func (o *operation) credit() (money.Amount, error) { return money.ParseSigned(o.amount) }

// operations finds those that have moved credit, and have no entry.
func (v *verifier) operations(ctx context.Context) error {
	var last int64
	if err := v.q.QueryRow(`SELECT COALESCE(MAX(operation_seq), 0) FROM partner_operations`).Scan(&last); err != nil {
		return fmt.Errorf("reading operations: %w", err)
	}
	for from := int64(0); from < last; from += chunk {
		if err := ctx.Err(); err != nil {
			return err
		}
		rows, err := v.q.Query(`
			SELECT o.operation_id, o.customer_id, o.action, COALESCE(o.amount, ''), COALESCE(o.currency, ''), e.entry_id IS NOT NULL
			FROM partner_operations o LEFT JOIN journal_entries e ON e.operation_id = o.operation_id
			WHERE o.operation_seq > $1 AND o.operation_seq <= $2 AND o.status = 'succeeded' AND o.action IN ('top_up_credit', 'debit_credit')
			ORDER BY o.operation_seq`, from, min(from+chunk, last))
		if err != nil {
			return fmt.Errorf("reading operations: %w", err)
		}
		if _, err := store.Collect(rows, v.operation); err != nil {
			return fmt.Errorf("reading operations: %w", err)
		}
	}
	return nil
}

func (v *verifier) operation(r *sql.Rows) (o operation, err error) {
	var posted bool
	err = r.Scan(&o.id, &o.customer, &o.action, &o.amount, &o.currency, &posted)
	if v.report.Operations++; err == nil && !posted {
		v.fault(Fault{Code: FaultMissing, OperationID: o.id, CustomerID: o.customer}, "%s of %s %s has succeeded, and there is no entry", o.action, o.amount, o.currency)
	}
	return o, err
}

// group is a customer's at the upstream.
type group struct{ customer, id, currency string }

// groups holds what operations have moved against what the upstream has booked.
func (v *verifier) groups(ctx context.Context, upstream Upstream) error {
	for after := ""; ; {
		rows, err := v.q.Query(`
			SELECT customer_id, group_id, currency FROM billing_accounts WHERE group_id IS NOT NULL AND customer_id > $1 ORDER BY customer_id LIMIT $2`, after, chunk)
		if err != nil {
			return fmt.Errorf("reading groups: %w", err)
		}
		found, err := store.Collect(rows, func(r *sql.Rows) (g group, err error) { return g, r.Scan(&g.customer, &g.id, &g.currency) })
		if err != nil {
			return fmt.Errorf("reading groups: %w", err)
		}
		for _, g := range found {
			if err := v.group(ctx, g, upstream); err != nil {
				return err
			}
			after = g.customer
		}
		if len(found) < chunk {
			return nil
		}
	}
}

func (v *verifier) group(ctx context.Context, g group, upstream Upstream) error {
	there, err := upstream(ctx, g.id)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		v.fault(Fault{Code: FaultUnread, CustomerID: g.customer}, "group %s: %v", g.id, err)
		return nil
	}
	here := v.moved[book{g.customer, g.currency}]
	if there.Equal(here) {
		v.report.Groups++
		return nil
	}
	unsettled, err := v.unsettled(g)
	if err != nil {
		return err
	}
	if unsettled {
		v.report.Unsettled = append(v.report.Unsettled, g.customer)
		return nil
	}
	c := money.Currency(g.currency)
	v.fault(Fault{Code: FaultUpstream, CustomerID: g.customer}, "group %s: %s %s are booked upstream, %s here", g.id, there.Text(c), c, here.Text(c))
	return nil
}

// settle is how long a transaction may be missing in the upstream's list, with
// room for clocks that differ.
const settle = 5 * time.Minute

// unsettled reports whether a difference may be that of two moments: credit of
// the customer is being moved, or has been since the journal was read.
func (v *verifier) unsettled(g group) (yes bool, err error) {
	err = v.q.QueryRow(`
		SELECT EXISTS (SELECT 1 FROM partner_operations WHERE customer_id = $1 AND action IN ('top_up_credit', 'debit_credit')
		    AND (finished_at_ms IS NULL OR finished_at_ms > $2))
		  OR EXISTS (SELECT 1 FROM journal_entries WHERE customer_id = $1 AND entry_seq > $3)`,
		g.customer, time.Now().Add(-settle).UnixMilli(), v.newest).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("reading operations: %w", err)
	}
	return yes, nil
}
