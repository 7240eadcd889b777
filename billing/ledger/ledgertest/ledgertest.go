// Package ledgertest holds a test's file against the journal's rules.
package ledgertest

import (
	"context"
	"testing"

	"jpintel/billing/ledger"
	"jpintel/store"
)

// Check fails the test for everything in the journal that does not hold. It is for
// the end of every test that moves money.
func Check(t testing.TB, db *store.DB) {
	t.Helper()
	ctx := context.Background()
	report, err := ledger.Verify(ctx, db.Reader(ctx), nil)
	if err != nil {
		t.Errorf("reading the journal: %v", err)
	}
	for _, f := range report.Faults {
		t.Errorf("the journal: %+v", f)
	}
}
