package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"jpintel/billing/ledger"
	"jpintel/billing/money"
	"jpintel/store"
)

// sound is a journal with one of everything, and the operations to it.
func sound(t testing.TB) *store.DB {
	t.Helper()
	db := newBook(t, "cus_a", "cus_b")
	operation(t, db, "op_1", "cus_a", "top_up_credit", "succeeded", "25.00")
	operation(t, db, "op_2", "cus_a", "debit_credit", "succeeded", "-5.00")
	operation(t, db, "op_3", "cus_b", "debit_credit", "succeeded", "-2.00")
	operation(t, db, "op_4", "cus_b", "top_up_credit", "pending", "9.00")
	operation(t, db, "op_5", "cus_b", "top_up_credit", "succeeded", "2.00")
	with := func(e ledger.Entry, operation, reverses string) ledger.Entry {
		e.OperationID, e.Reverses, e.PaymentID = operation, reverses, "pay_"+e.CustomerID
		return e
	}
	post(t, db,
		with(entry(t, "top-up", ledger.TopUp, "cus_a", "25.00", ledger.StripeClearing), "op_1", ""),
		with(entry(t, "refund", ledger.Refund, "cus_a", "-5.00", ledger.Refunds), "op_2", ""),
		with(entry(t, "dispute", ledger.Dispute, "cus_b", "-2.00", ledger.Disputes), "op_3", ""),
		with(entry(t, "won", ledger.Dispute, "cus_b", "2.00", ledger.Disputes), "op_5", "dispute"),
		entry(t, "usage", ledger.Usage, "cus_a", "-0.000412500000", ledger.UsageRevenue))
	return db
}

func TestVerifyFindsNothingInASoundJournal(t *testing.T) {
	r := verify(t, sound(t), nil)
	want := []ledger.Account{{Account: "cust:cus_a:credit", Currency: "USD", Sum: "19.9995875"}, {Account: "cust:cus_b:credit", Currency: "USD", Sum: "0.00"},
		{Account: "psp:stripe:clearing", Currency: "USD", Sum: "-25.00"}, {Account: "revenue:usage", Currency: "USD", Sum: "0.0004125"},
		{Account: "reversal:dispute", Currency: "USD", Sum: "0.00"}, {Account: "reversal:refund", Currency: "USD", Sum: "5.00"}}
	if r.FaultCount != 0 || r.Entries != 5 || r.Lines != 10 || r.Operations != 4 || !slices.Equal(r.Accounts, want) {
		t.Errorf("%+v", r)
	}
}

// Whatever somebody changes in the file is named.
func TestVerifyNamesEveryFault(t *testing.T) {
	for name, c := range map[string]struct {
		change string
		want   []string // "code entry or operation: a part of the words", in order
	}{
		"an amount": {`UPDATE journal_lines SET amount = '26.00' WHERE entry_id = 'top-up' AND line_no = 1`, []string{
			"text top-up: line 1: 26.00 was received as", "sum top-up: the lines add up to 1, not to zero", "balance_after top-up: the balance after it is 25.00, and the account's sum 26.00",
			"operation top-up: the entry moves 26 USD of cus_a, the operation 25 USD of cus_a", "balance_after refund: ", "balance_after usage: "}},
		"both amounts": {`UPDATE journal_lines SET amount = replace(amount, '25', '26'), amount_raw = replace(amount, '25', '26') WHERE entry_id = 'top-up'`, []string{
			"balance_after top-up: ", "operation top-up: ", "balance_after refund: ", "balance_after usage: "}},
		"a text":             {`UPDATE journal_lines SET amount = '25.0' WHERE entry_id = 'top-up' AND line_no = 1`, []string{"text top-up: line 1: 25.00 is written 25.0"}},
		"no amount":          {`UPDATE journal_lines SET amount = '1.2.3' WHERE entry_id = 'usage' AND line_no = 2`, []string{`text usage: line 2: "1.2.3": want an amount`}},
		"a raw text":         {`UPDATE journal_lines SET amount_raw = '7' WHERE entry_id = 'usage' AND line_no = 2`, []string{`text usage: line 2: 0.0004125 was received as "7"`}},
		"a line":             {`DELETE FROM journal_lines WHERE entry_id = 'usage' AND line_no = 1`, []string{"lines usage: 1 lines", "lines usage: line 2 follows line 0", "sum usage: ", "balance_after usage: "}},
		"no lines":           {`DELETE FROM journal_lines WHERE entry_id = 'usage'`, []string{"lines usage: 0 lines", "balance_after usage: "}},
		"an entry":           {`DELETE FROM journal_lines WHERE entry_id = 'refund'; DELETE FROM journal_entries WHERE entry_id = 'refund'`, []string{"gap dispute: number 3 follows number 1", "balance_after usage: ", "entry_missing op_2: debit_credit of -5.00 USD has succeeded, and there is no entry"}},
		"the last entry":     {`DELETE FROM journal_lines WHERE entry_id IN ('usage', 'won'); DELETE FROM journal_entries WHERE entry_id IN ('usage', 'won')`, []string{"entry_missing op_5: "}},
		"a balance":          {`UPDATE journal_entries SET balance_after = '20.01' WHERE entry_id = 'refund'`, []string{"balance_after refund: the balance after it is 20.01, and the account's sum 20.00"}},
		"another's credit":   {`UPDATE journal_lines SET account = 'cust:cus_b:credit' WHERE entry_id = 'usage' AND line_no = 2`, []string{"account usage: line 2 is on cust:cus_b:credit, and the entry is cus_a's"}},
		"an operation":       {`UPDATE journal_entries SET operation_id = 'op_4' WHERE entry_id = 'top-up'`, []string{"operation top-up: the operation is a top_up_credit that is pending", "operation top-up: the entry moves 25 USD of cus_a, the operation 9 USD of cus_b", "entry_missing op_1: "}},
		"no operation":       {`UPDATE journal_entries SET operation_id = NULL WHERE entry_id = 'top-up'`, []string{"entry_missing op_1: top_up_credit of 25.00 USD has succeeded, and there is no entry"}},
		"a currency":         {`UPDATE journal_entries SET currency = 'EUR' WHERE entry_id = 'refund'`, []string{"balance_after refund: ", "operation refund: the entry moves -5 EUR", "balance_after usage: "}},
		"what is taken back": {`UPDATE journal_entries SET reverses_entry_id = 'refund' WHERE entry_id = 'won'`, []string{"reversal won: it takes back refund, which is of another customer", "reversal won: it takes back refund, and 2 is left on cust:cus_b:credit"}},
		"how much":           {`UPDATE journal_entries SET reverses_entry_id = 'top-up' WHERE entry_id = 'refund'`, []string{"reversal refund: it takes back top-up, and 20 is left on cust:cus_a:credit"}},
	} {
		t.Run(name, func(t *testing.T) {
			db := sound(t)
			write(t, db, func(tx *store.Tx) error {
				for _, table := range []string{"entries", "lines"} {
					for _, trigger := range []string{"fixed", "keep"} {
						if _, err := tx.Exec(fmt.Sprintf(`DROP TRIGGER journal_%s_%s`, table, trigger)); err != nil {
							return err
						}
					}
				}
				for change := range strings.SplitSeq(c.change, "; ") {
					if n, err := tx.Update(change); err != nil || n == 0 {
						return fmt.Errorf("%s: %d rows: %w", change, n, err)
					}
				}
				return nil
			})
			r := verify(t, db, nil)
			var got []string
			for _, f := range r.Faults {
				got = append(got, f.Code+" "+f.EntryID+strings.Repeat(f.OperationID, max(0, 1-len(f.EntryID)))+": "+f.Detail)
			}
			if r.FaultCount != int64(len(c.want)) || !slices.EqualFunc(got, c.want, strings.HasPrefix) {
				t.Errorf("%d faults:\n%s\nwant\n%s", r.FaultCount, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// A long journal is read in chunks, and what is wrong is counted to the end.
func TestVerifyReadsALongJournal(t *testing.T) {
	db := newBook(t, "cus_a")
	var entries []ledger.Entry
	for i := range 1203 {
		entries = append(entries, entry(t, fmt.Sprint("e", i), ledger.Usage, "cus_a", "-0.01", ledger.UsageRevenue))
	}
	post(t, db, entries...)
	if r := verify(t, db, nil); r.FaultCount != 0 || r.Entries != 1203 || r.Accounts[0].Sum != "-12.03" {
		t.Errorf("%d faults in %d entries, %v", r.FaultCount, r.Entries, r.Accounts)
	}
	write(t, db, func(tx *store.Tx) error {
		if _, err := tx.Exec(`DROP TRIGGER journal_entries_fixed`); err != nil {
			return err
		}
		_, err := tx.Exec(`UPDATE journal_entries SET balance_after = '1.00'`)
		return err
	})
	if r := verify(t, db, nil); r.FaultCount != 1203 || len(r.Faults) != 1000 {
		t.Errorf("%d faults, %d of them named", r.FaultCount, len(r.Faults))
	}
}

// What operations have moved is what the upstream has booked, but for what is
// under way.
func TestVerifyAsksTheUpstream(t *testing.T) {
	db := sound(t)
	write(t, db, func(tx *store.Tx) error {
		for _, c := range []string{"cus_a", "cus_b"} {
			if err := insertOperation(tx, "group_"+c, c, "create_group", "succeeded", ""); err != nil {
				return err
			}
			if _, err := tx.Exec(`INSERT INTO billing_accounts (customer_id, currency, signup_version, group_id, created_at_ms) VALUES ($1, 'USD', 1, $2, 0)`, c, "txn_group_"+c); err != nil {
				return err
			}
		}
		return nil
	})
	there := map[string]string{"txn_group_cus_a": "20", "txn_group_cus_b": "0.00"}
	var failed error
	upstream := func(_ context.Context, group string) (money.Amount, error) { return amount(t, there[group]), failed }
	if r := verify(t, db, upstream); r.FaultCount != 0 || r.Groups != 2 || len(r.Unsettled) != 0 {
		t.Errorf("%+v", r)
	}
	there["txn_group_cus_a"] = "19.99" // there was usage, but that is not a transaction
	if r := verify(t, db, upstream); r.FaultCount != 1 || r.Groups != 1 || r.Faults[0].Code != ledger.FaultUpstream || r.Faults[0].Detail != "group txn_group_cus_a: 19.99 USD are booked upstream, 20.00 here" {
		t.Errorf("%+v", r)
	}
	there["txn_group_cus_b"] = "9" // op_4 may have happened
	if r := verify(t, db, upstream); r.FaultCount != 1 || r.Groups != 0 || !slices.Equal(r.Unsettled, []string{"cus_b"}) {
		t.Errorf("%+v", r)
	}
	failed = errors.New("no answer")
	if r := verify(t, db, upstream); r.FaultCount != 2 || r.Faults[0].Code != ledger.FaultUnread {
		t.Errorf("%+v", r)
	}
}

// What is posted while somebody verifies is no fault: an operation and its entry
// are one transaction, and so are an entry and its lines.
func TestVerifyBesideWrites(t *testing.T) {
	db := checked(t, newBook(t, "cus_a"))
	done := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < 50 && err == nil; i++ {
			err = db.Write(t.Context(), func(tx *store.Tx) error {
				id := fmt.Sprint("op_", i)
				if err := insertOperation(tx, id, "cus_a", "top_up_credit", "succeeded", "0.01"); err != nil {
					return err
				}
				e := entry(t, fmt.Sprint("e", i), ledger.TopUp, "cus_a", "0.01", ledger.StripeClearing)
				e.OperationID = id
				_, err := ledger.Post(tx, e)
				return err
			})
		}
		done <- err
	}()
	for rounds := 0; ; rounds++ {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
			if r := verify(t, db, nil); r.FaultCount != 0 {
				t.Fatalf("round %d: %+v", rounds, r)
			}
		}
	}
}
