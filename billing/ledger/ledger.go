// Package ledger is the journal: double entry, append-only, in exact decimals.
//
// An [Entry] has two lines or more that add up to zero in one currency. Where an
// amount stands on a customer's account, a positive one is credit that the
// customer has: the account's sum is the balance.
//
// What is stored: journal_entries and journal_lines. Each entry bears the balance
// that its customer had after it, so that nobody has to add up years to know the
// balance of today. Numbers of entries have no gaps and rise in commit order.
//
// What is atomic: an entry with its lines, in the transaction of whatever it is
// the consequence of. A crash leaves whole entries.
//
// [Verify] reads the journal against itself and against the operations, [Journal]
// shows it: a customer its own movements, operators everything.
package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"jpintel/billing/money"
	"jpintel/store"
)

// The accounts that belong to nobody in particular.
const (
	StripeClearing = "psp:stripe:clearing" // what the payment provider has taken in for us
	Refunds        = "reversal:refund"     // what of it refunds have taken back
	Disputes       = "reversal:dispute"    // and disputes
	UsageRevenue   = "revenue:usage"
)

const creditPrefix = "cust:"

// Credit is the account of a customer's credit: what we owe the customer.
func Credit(customer string) string { return creditPrefix + customer + ":credit" }

// Kind is what an entry is.
type Kind string

// The kinds.
const (
	TopUp      Kind = "top_up"
	Refund     Kind = "refund"
	Dispute    Kind = "dispute"
	Usage      Kind = "usage"
	Correction Kind = "correction"
)

// Entry is one movement of money.
type Entry struct {
	EntryID       string
	Kind          Kind
	CustomerID    string
	PaymentID     string // "": not about a payment
	SourceID      string // what the customer keys its booking by; "": nothing
	OperationID   string // "": not the consequence of an operation
	Reverses      string // the entry that it takes back; "": none
	Currency      money.Currency
	CorrelationID string
	OccurredAt    time.Time
	Memo          string
	Lines         []Line
}

// Line is what an entry does to one account.
type Line struct {
	Account string
	Amount  money.Amount
}

// Post writes an entry once. The same entry_id again is nothing: posted is false.
// With that id and other lines it is an error: one of the two would be lost.
func Post(tx *store.Tx, e Entry) (posted bool, err error) {
	if err := e.check(); err != nil {
		return false, fmt.Errorf("entry %s: %w", e.EntryID, err)
	}
	after, err := balanceAfter(tx, e)
	if err != nil {
		return false, fmt.Errorf("entry %s: %w", e.EntryID, err)
	}
	n, err := tx.Update(`
		INSERT INTO journal_entries (entry_id, kind, customer_id, payment_id, source_id, operation_id, reverses_entry_id, currency, balance_after, correlation_id, occurred_at_ms, created_at_ms, memo)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) ON CONFLICT (entry_id) DO NOTHING`,
		e.EntryID, string(e.Kind), e.CustomerID, store.Nullable(e.PaymentID), store.Nullable(e.SourceID), store.Nullable(e.OperationID), store.Nullable(e.Reverses), string(e.Currency),
		after.Text(e.Currency), e.CorrelationID, e.OccurredAt.UnixMilli(), tx.NowMS(), e.Memo)
	switch {
	case err == nil && n == 0:
		err = e.same(tx)
	case err == nil:
		err = e.postLines(tx)
	}
	if err != nil {
		return false, fmt.Errorf("posting entry %s: %w", e.EntryID, err)
	}
	return n == 1, nil
}

func (e Entry) postLines(tx *store.Tx) error {
	for i, line := range e.Lines {
		text := line.Amount.Text(e.Currency)
		_, err := tx.Exec(`INSERT INTO journal_lines (entry_id, line_no, account, amount, amount_raw) VALUES ($1, $2, $3, $4, $5)`,
			e.EntryID, i+1, line.Account, text, cmp.Or(line.Amount.Raw(), text))
		if err != nil {
			return err
		}
	}
	return nil
}

// same holds an entry against the posted one with its id.
func (e Entry) same(tx *store.Tx) error {
	there, err := one(tx, e.EntryID)
	if err != nil {
		return err
	}
	if there == nil { // unreachable: it was in the way
		return errors.New("it is posted, and cannot be found")
	}
	lines, err := there.amounts()
	if err != nil {
		return err
	}
	equal := slices.EqualFunc(lines, e.Lines, func(a, b Line) bool { return a.Account == b.Account && a.Amount.Equal(b.Amount) })
	if !equal || there.CustomerID != e.CustomerID || there.Currency != string(e.Currency) {
		return errors.New("it was posted before, with other lines")
	}
	return nil
}

// check says what is wrong with an entry: lines that do not add up, or that touch
// the credit of another customer than its own.
func (e Entry) check() error {
	if len(e.Lines) < 2 {
		return fmt.Errorf("%d lines: want two or more", len(e.Lines))
	}
	for _, line := range e.Lines {
		if foreign(line.Account, e.CustomerID) {
			return fmt.Errorf("a line on the account %s, which is not customer %s's", line.Account, e.CustomerID)
		}
	}
	sum, err := total(e.Lines)
	if err == nil && sum.Sign() != 0 {
		err = fmt.Errorf("the lines add up to %s, not to zero", sum)
	}
	return err
}

// foreign reports whether an account is a customer's, and another's than this.
func foreign(account, customer string) bool {
	return strings.HasPrefix(account, creditPrefix) && account != Credit(customer)
}

func total(lines []Line) (sum money.Amount, err error) {
	for _, line := range lines {
		if sum, err = sum.Add(line.Amount); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// on is what lines do to one account.
func on(account string, lines []Line) (money.Amount, error) {
	return total(slices.DeleteFunc(slices.Clone(lines), func(l Line) bool { return l.Account != account }))
}
