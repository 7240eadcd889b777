package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"jpintel/billing/money"
	"jpintel/store"
)

// Balance is the sum of an account in a currency, added up from all its lines.
func Balance(q store.Querier, account string, c money.Currency) (sum money.Amount, err error) {
	rows, err := q.Query(`
		SELECT l.amount FROM journal_lines l JOIN journal_entries e USING (entry_id) WHERE l.account = $1 AND e.currency = $2`, account, string(c))
	if err != nil {
		return sum, fmt.Errorf("reading account %s: %w", account, err)
	}
	defer rows.Close()
	for rows.Next() {
		if sum, err = addRow(rows, sum); err != nil {
			return sum, fmt.Errorf("reading account %s: %w", account, err)
		}
	}
	if err := rows.Err(); err != nil {
		return sum, fmt.Errorf("reading account %s: %w", account, err)
	}
	return sum, nil
}

func addRow(rows *sql.Rows, sum money.Amount) (money.Amount, error) {
	var text string
	if err := rows.Scan(&text); err != nil {
		return sum, err
	}
	amount, err := money.ParseSigned(text)
	if err != nil {
		return sum, fmt.Errorf("%q: %w", text, err)
	}
	return sum.Add(amount)
}

// balanceAfter is the credit that an entry's customer will have after it.
func balanceAfter(tx *store.Tx, e Entry) (after money.Amount, err error) {
	var text string
	err = tx.QueryRow(`SELECT balance_after FROM journal_entries WHERE customer_id = $1 AND currency = $2 ORDER BY entry_seq DESC LIMIT 1`,
		e.CustomerID, string(e.Currency)).Scan(&text)
	if err == nil {
		after, err = money.ParseSigned(text)
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return after, fmt.Errorf("reading the balance: %w", err)
	}
	moved, err := on(Credit(e.CustomerID), e.Lines)
	if err != nil {
		return after, err
	}
	return after.Add(moved)
}

// Journal shows what is posted.
type Journal struct{ DB *store.DB }

// BalanceRequest asks for the caller's own balance.
type BalanceRequest struct {
	CustomerID string `bind:"customer" json:"-"`
}

// Balances is the credit that a customer has: an amount for each currency that
// anything was ever posted in, by code.
type Balances struct {
	Data []CurrencyBalance `json:"balances"`
	AsOf time.Time         `json:"as_of"`
}

// CurrencyBalance is the credit in one currency.
type CurrencyBalance struct {
	Currency string `json:"currency"`
	Balance  string `json:"balance"` // exact; negative: the customer owes it
}

// balancesQuery goes from one of a customer's currencies to the next, and reads
// the last entry in each: it looks at no other.
const balancesQuery = `
	WITH RECURSIVE held (currency) AS (
	  SELECT MIN(currency) FROM journal_entries WHERE customer_id = $1
	  UNION ALL
	  SELECT (SELECT MIN(currency) FROM journal_entries WHERE customer_id = $1 AND currency > held.currency) FROM held WHERE held.currency IS NOT NULL
	)
	SELECT currency, (SELECT balance_after FROM journal_entries e WHERE e.customer_id = $1 AND e.currency = held.currency ORDER BY entry_seq DESC LIMIT 1)
	FROM held WHERE currency IS NOT NULL`

// Balances reads a customer's balances.
func (j Journal) Balances(ctx context.Context, r BalanceRequest) (b Balances, err error) {
	b.AsOf = time.Now().Truncate(time.Millisecond).In(j.DB.Location) // before it reads: what is posted later may be missing
	rows, err := j.DB.Reader(ctx).Query(balancesQuery, r.CustomerID)
	if err != nil {
		return b, fmt.Errorf("reading balances: %w", err)
	}
	if b.Data, err = store.Collect(rows, func(r *sql.Rows) (c CurrencyBalance, err error) { return c, r.Scan(&c.Currency, &c.Balance) }); err != nil {
		return b, fmt.Errorf("reading balances: %w", err)
	}
	return b, nil
}

// OfPayment is what the entries about a payment add up to, by account.
func OfPayment(q store.Querier, paymentID string) (map[string]money.Amount, error) {
	rows, err := q.Query(`SELECT l.account, l.amount FROM journal_entries e JOIN journal_lines l USING (entry_id) WHERE e.payment_id = $1`, paymentID)
	if err != nil {
		return nil, fmt.Errorf("reading the entries of a payment: %w", err)
	}
	sums := map[string]money.Amount{}
	_, err = store.Collect(rows, func(r *sql.Rows) (struct{}, error) {
		var account, text string
		if err := r.Scan(&account, &text); err != nil {
			return struct{}{}, err
		}
		amount, err := money.ParseSigned(text)
		if err == nil {
			sums[account], err = sums[account].Add(amount)
		}
		return struct{}{}, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the entries of a payment: %w", err)
	}
	return sums, nil
}

// Entries is how many entries there are about a payment.
func Entries(q store.Querier, paymentID string) (n int64, err error) {
	if err := q.QueryRow(`SELECT COUNT(*) FROM journal_entries WHERE payment_id = $1`, paymentID).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting the entries of a payment: %w", err)
	}
	return n, nil
}
