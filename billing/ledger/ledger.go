// Package ledger is the journal: double entry, append-only, in exact decimals.
//
// An [Entry] has two lines or more that add up to zero in one currency. Where an
// amount stands on a customer's account, a positive one is credit that the
// customer has: the account's sum is the balance.
package ledger

import (
	"database/sql"
	"fmt"
	"time"

	"jpintel/billing/money"
	"jpintel/store"
)

// The accounts that belong to nobody in particular.
const (
	StripeClearing = "psp:stripe:clearing" // what the payment provider has taken in for us
	UpstreamWallet = "upstream:wallet"     // what has been moved on to the partner API
	Refunds        = "reversal:refund"
	Disputes       = "reversal:dispute"
	UsageRevenue   = "revenue:usage"
	Rounding       = "rounding"
)

// Credit is the account of a customer's credit: what we owe the customer.
func Credit(customer string) string { return "cust:" + customer + ":credit" }

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
func Post(tx *store.Tx, e Entry) (posted bool, err error) {
	if err := balanced(e.Lines); err != nil {
		return false, fmt.Errorf("entry %s: %w", e.EntryID, err)
	}
	n, err := tx.Update(`
		INSERT INTO journal_entries (entry_id, kind, customer_id, payment_id, operation_id, reverses_entry_id, currency, correlation_id, occurred_at_ms, created_at_ms, memo)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (entry_id) DO NOTHING`,
		e.EntryID, string(e.Kind), e.CustomerID, store.Nullable(e.PaymentID), store.Nullable(e.OperationID), store.Nullable(e.Reverses), string(e.Currency),
		e.CorrelationID, e.OccurredAt.UnixMilli(), tx.NowMS(), e.Memo)
	if err != nil {
		return false, fmt.Errorf("posting entry %s: %w", e.EntryID, err)
	}
	if n == 0 {
		return false, nil
	}
	for i, line := range e.Lines {
		text := line.Amount.Text(e.Currency)
		raw := line.Amount.Raw()
		if raw == "" {
			raw = text
		}
		_, err := tx.Exec(`INSERT INTO journal_lines (entry_id, line_no, account, amount, amount_raw) VALUES ($1, $2, $3, $4, $5)`,
			e.EntryID, i+1, line.Account, text, raw)
		if err != nil {
			return false, fmt.Errorf("posting entry %s: %w", e.EntryID, err)
		}
	}
	return true, nil
}

// balanced reports what is wrong with the lines of an entry.
func balanced(lines []Line) error {
	if len(lines) < 2 {
		return fmt.Errorf("%d lines: want two or more", len(lines))
	}
	sum, err := total(lines)
	if err == nil && sum.Sign() != 0 {
		err = fmt.Errorf("the lines add up to %s, not to zero", sum)
	}
	return err
}

func total(lines []Line) (sum money.Amount, err error) {
	for _, line := range lines {
		if sum, err = sum.Add(line.Amount); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// Balance is the sum of an account in a currency.
func Balance(q store.Querier, account string, c money.Currency) (money.Amount, error) {
	rows, err := q.Query(`
		SELECT l.amount FROM journal_lines l JOIN journal_entries e USING (entry_id) WHERE l.account = $1 AND e.currency = $2`, account, string(c))
	if err != nil {
		return money.Amount{}, fmt.Errorf("reading account %s: %w", account, err)
	}
	lines, err := store.Collect(rows, func(r *sql.Rows) (l Line, err error) {
		var text string
		if err := r.Scan(&text); err != nil {
			return l, err
		}
		l.Amount, err = money.ParseSigned(text)
		return l, err
	})
	if err != nil {
		return money.Amount{}, fmt.Errorf("reading account %s: %w", account, err)
	}
	return total(lines)
}
