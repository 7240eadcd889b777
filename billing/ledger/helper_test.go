package ledger_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"jpintel/billing/ledger"
	"jpintel/billing/ledger/ledgertest"
	"jpintel/billing/money"
	"jpintel/store"
	"jpintel/store/storetest"
)

// newBook is a file with customers in it. Its operations will be bare rows: the
// payments and events that stand around them in a real file are not there, so
// that the invariants of a whole file do not hold.
func newBook(t testing.TB, customers ...string) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "jpintel.db"), store.Options{Server: true, Keys: storetest.Keys(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, c := range customers {
		storetest.Customer(t, db, c, store.TierPaid)
	}
	return db
}

// checked has the journal checked when the test ends.
func checked(t testing.TB, db *store.DB) *store.DB {
	t.Helper()
	t.Cleanup(func() { ledgertest.Check(t, db) })
	return db
}

func write(t testing.TB, db *store.DB, fn func(*store.Tx) error) {
	t.Helper()
	if err := db.Write(context.Background(), fn); err != nil {
		t.Fatal(err)
	}
}

func amount(t testing.TB, text string) money.Amount {
	t.Helper()
	a, err := money.ParseSigned(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var day = time.Date(2026, 5, 14, 0, 0, 0, 0, time.UTC)

// entry moves an amount between a customer's credit and another account.
func entry(t testing.TB, id string, kind ledger.Kind, customer, text, other string) ledger.Entry {
	t.Helper()
	moved := amount(t, text)
	return ledger.Entry{EntryID: id, Kind: kind, CustomerID: customer, Currency: "USD", CorrelationID: "cor_" + id, OccurredAt: day,
		Lines: []ledger.Line{{Account: ledger.Credit(customer), Amount: moved}, {Account: other, Amount: moved.Neg()}}}
}

func post(t testing.TB, db *store.DB, entries ...ledger.Entry) {
	t.Helper()
	write(t, db, func(tx *store.Tx) error {
		for _, e := range entries {
			if posted, err := ledger.Post(tx, e); err != nil || !posted {
				return fmt.Errorf("%s: posted %v: %w", e.EntryID, posted, err)
			}
		}
		return nil
	})
}

// operation adds an operation that is done, or waits.
func operation(t testing.TB, db *store.DB, id, customer, action, status, text string) {
	t.Helper()
	write(t, db, func(tx *store.Tx) error { return insertOperation(tx, id, customer, action, status, text) })
}

// insertOperation is operation in a transaction. text is its amount; "": none.
func insertOperation(tx *store.Tx, id, customer, action, status, text string) error {
	var target, finished, currency any
	if status == "succeeded" {
		target, finished = "txn_"+id, tx.NowMS()-time.Hour.Milliseconds()
	}
	if text != "" {
		currency = "USD"
	}
	if _, err := tx.Exec(`
		INSERT INTO partner_operations (operation_id, customer_id, action, intent, intent_version, idempotency_key, request_fingerprint, status, next_attempt_at_ms,
		  target_public_id, amount, currency, created_at_ms, updated_at_ms, finished_at_ms)
		VALUES ($1, $2, $3, $1, 1, $1, 'v1:', $4, 0, $5, $6, $7, 0, 0, $8)`, id, customer, action, status, target, store.Nullable(text), currency, finished); err != nil {
		return err
	}
	_, err := tx.Exec(`INSERT INTO operator_notes (operation_id, at_ms, who, action, note) VALUES ($1, 0, 'test', 'resolve', '')`, id)
	return err
}

func verify(t testing.TB, db *store.DB, upstream ledger.Upstream) ledger.Report {
	t.Helper()
	r, err := ledger.Verify(t.Context(), db.Reader(t.Context()), upstream)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
