// Package billingtest holds the file and the upstream's stand-in against each
// other: what has to be so after every scenario, wherever it was killed.
//
//	I1  a customer has at most one live group
//	I2  what is usable here is the one key that is active there, for each purpose
//	I3  what a group was credited with is what was wanted
//	I4  an Idempotency-Key stands for one request
//	I5  the journal balances, and says what operations have moved
//	I6  what has succeeded has a target, and something that says so
//	I7  no secret is in the clear: in the file, its log, or what was printed
//	I8  there is one request of an operation at a time
//	I9  every request was recorded before it left
//	I10 every change is one operation's, or a stranger's
package billingtest

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/billing/ledger/ledgertest"
	"jpintel/billing/modelgatetest"
	"jpintel/billing/money"
	"jpintel/store"
)

// World is what is held against each other.
type World struct {
	DB       *store.DB
	Upstream *modelgatetest.Upstream
	// Strangers are the Idempotency-Keys of what others have changed there.
	Strangers map[string]bool
	// OtherClock says that the upstream's time is not ours: the two cannot be
	// compared.
	OtherClock bool
	// Restored says that the file is a backup's: it does not know of all that was
	// sent.
	Restored bool
	// Texts are what was written beside the file, by name: logs, answers, errors.
	Texts map[string]string
}

// Check asserts the invariants.
func (w World) Check(t testing.TB) {
	t.Helper()
	state := w.Upstream.State()
	w.oneGroupEach(t, state)
	w.oneKeyEach(t, state)
	w.credited(t, state)
	ledgertest.Check(t, w.DB) // I5
	for key, prints := range state.ReusedKeys() {
		t.Errorf("I4: %s stands for %q", key, prints)
	}
	w.proved(t)
	w.noSecrets(t)
	for key, traffic := range state.Overlaps() {
		t.Errorf("I8: %s: %+v", key, traffic)
	}
	if !w.Restored {
		w.recordedFirst(t, state)
	}
	w.accountedFor(t, state)
}

// Settled asserts that nothing is left open but what a person has to decide.
func (w World) Settled(t testing.TB) {
	t.Helper()
	for _, o := range w.strings(t, `
		SELECT operation_id || ' ' || action || ' ' || status || ' ' || COALESCE(hold_reason, '') FROM partner_operations o
		WHERE status IN ('pending', 'failed_retryable', 'reconciling') AND NOT (action = 'provision_customer' AND EXISTS (
		  SELECT 1 FROM partner_operations c WHERE c.parent_operation_id = o.operation_id AND c.status = 'reconciliation_needed'))`) {
		t.Errorf("it is open and nobody is asked: %s", o)
	}
}

// oneGroupEach is I1. A stranger's groups are not ours to answer for.
func (w World) oneGroupEach(t testing.TB, state modelgatetest.State) {
	t.Helper()
	foreign := map[string]bool{}
	for _, e := range state.Audit {
		foreign[e.Target.ID] = foreign[e.Target.ID] || e.Action == "group.create" && w.Strangers[e.IdempotencyKey]
	}
	for customer, groups := range state.LiveGroups() {
		if ours := slices.DeleteFunc(groups, func(id string) bool { return foreign[id] }); len(ours) > 1 {
			t.Errorf("I1: %s has the groups %q", customer, ours)
		}
	}
}

// oneKeyEach is I2. A key that is being made or revoked may be there already, or
// not any more.
func (w World) oneKeyEach(t testing.TB, state modelgatetest.State) {
	t.Helper()
	active := state.ActiveKeys()
	for _, row := range w.strings(t, `
		SELECT a.group_id || ' ' || k.purpose || ' ' || k.key_id FROM model_keys k JOIN billing_accounts a USING (customer_id)
		WHERE k.status <> 'revoked' AND EXISTS (SELECT 1 FROM partner_operations o
		  WHERE o.customer_id = k.customer_id AND o.action = 'provision_customer' AND o.status = 'succeeded')
		AND NOT EXISTS (SELECT 1 FROM partner_operations o
		  WHERE o.customer_id = k.customer_id AND o.action IN ('create_key', 'revoke_key') AND o.finished_at_ms IS NULL)`) {
		part := strings.Fields(row)
		if there := active[modelgatetest.KeyUse{GroupID: part[0], Purpose: part[1]}]; !slices.Equal(there, part[2:]) {
			t.Errorf("I2: group %s has for %s the keys %q, want %s", part[0], part[1], there, part[2])
		}
	}
}

// credited is I3: each transaction there is that of an operation which has
// succeeded, or may still come to know of it, or a stranger's; and each such
// operation has its transaction.
func (w World) credited(t testing.TB, state modelgatetest.State) {
	t.Helper()
	moved, open := map[string]string{}, map[string]bool{}
	w.rows(t, `SELECT COALESCE(target_public_id, ''), amount, external_ref, status FROM partner_operations WHERE action IN ('top_up_credit', 'debit_credit')`,
		func(r *sql.Rows) error {
			var target, amount, ref, status string
			err := r.Scan(&target, &amount, &ref, &status)
			if status == "succeeded" {
				moved[target] = amount
			} else if status != "failed_final" {
				open[ref] = true
			}
			return err
		})
	strange := map[string]bool{}
	for _, e := range state.Audit {
		strange[e.Target.ID] = strange[e.Target.ID] || w.Strangers[e.IdempotencyKey]
	}
	for _, made := range state.Transactions {
		amount, ours := moved[made.ID]
		if ours && !equal(t, amount, made.Amount) || !ours && !open[made.ExternalRef] && !strange[made.ID] {
			t.Errorf("I3: %s moves %s, and the operation %q", made.ID, made.Amount, amount)
		}
		delete(moved, made.ID)
	}
	for id, amount := range moved {
		t.Errorf("I3: an operation has moved %s by %s, which is not there", amount, id)
	}
}

func equal(t testing.TB, a, b string) bool {
	t.Helper()
	x, err := money.ParseSigned(a)
	y, errY := money.ParseSigned(b)
	if err != nil || errY != nil {
		t.Errorf("I3: %q and %q: no amounts", a, b)
	}
	return x.Equal(y)
}

// proved is I6: an answer, a look, children or a person have to tell of it.
func (w World) proved(t testing.TB) {
	t.Helper()
	for _, id := range w.strings(t, `
		SELECT operation_id FROM partner_operations o WHERE status = 'succeeded' AND (target_public_id IS NULL OR NOT (
		  EXISTS (SELECT 1 FROM operation_attempts a WHERE a.operation_id = o.operation_id AND a.outcome = 'succeeded')
		  OR EXISTS (SELECT 1 FROM reconcile_evidence e WHERE e.operation_id = o.operation_id AND e.verdict = 'succeeded')
		  OR EXISTS (SELECT 1 FROM operator_notes n WHERE n.operation_id = o.operation_id AND n.action = 'resolve')
		  OR action = 'provision_customer' AND (SELECT COUNT(*) FROM partner_operations c WHERE c.parent_operation_id = o.operation_id AND c.status = 'succeeded') >= 3))`) {
		t.Errorf("I6: %s has succeeded, and nothing tells so", id)
	}
}

// recordedFirst is I9: each request has an attempt, and no change is older than
// the first of them.
func (w World) recordedFirst(t testing.TB, state modelgatetest.State) {
	t.Helper()
	first, attempts := map[string]int64{}, map[string]int{}
	w.rows(t, `
		SELECT o.idempotency_key, MIN(a.started_at_ms), COUNT(*) FROM operation_attempts a JOIN partner_operations o USING (operation_id) GROUP BY 1`,
		func(r *sql.Rows) error {
			var key string
			var at int64
			var n int
			err := r.Scan(&key, &at, &n)
			first[key], attempts[key] = at, n
			return err
		})
	for key, traffic := range state.Idempotency {
		if !w.Strangers[key] && attempts[key] < traffic.WireRequests {
			t.Errorf("I9: %s was sent %d times, with %d attempts", key, traffic.WireRequests, attempts[key])
		}
	}
	for _, e := range state.Audit {
		at, err := time.Parse(time.RFC3339Nano, e.OccurredAt)
		if before, ours := first[e.IdempotencyKey]; err != nil || ours && !w.OtherClock && at.UnixMilli() < before {
			t.Errorf("I9: %s took effect at %s, and was first recorded at %d (%v)", e.IdempotencyKey, e.OccurredAt, before, err)
		}
	}
}

// accountedFor is I10: each change is one operation's, or a stranger's; and no
// operation has changed more than one thing.
func (w World) accountedFor(t testing.TB, state modelgatetest.State) {
	t.Helper()
	ours, changes := map[string]bool{}, map[string]int{}
	for _, key := range w.strings(t, `SELECT idempotency_key FROM partner_operations WHERE idempotency_key IS NOT NULL`) {
		ours[key] = true
	}
	for _, e := range state.Audit {
		if w.Strangers[e.IdempotencyKey] {
			continue
		}
		if changes[e.IdempotencyKey]++; !ours[e.IdempotencyKey] || changes[e.IdempotencyKey] > 1 {
			t.Errorf("I10: %s %s is change %d under %s", e.Action, e.Target.ID, changes[e.IdempotencyKey], e.IdempotencyKey)
		}
	}
}

func (w World) strings(t testing.TB, query string) (all []string) {
	t.Helper()
	w.rows(t, query, func(r *sql.Rows) error {
		var text string
		err := r.Scan(&text)
		all = append(all, text)
		return err
	})
	return all
}

func (w World) rows(t testing.TB, query string, scan func(*sql.Rows) error) {
	t.Helper()
	rows, err := w.DB.Reader(context.Background()).Query(query)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Collect(rows, func(r *sql.Rows) (struct{}, error) { return struct{}{}, scan(r) }); err != nil {
		t.Fatal(err)
	}
}
