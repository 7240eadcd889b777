// Package storetest gives tests a real file and reads its invariants.
package storetest

import (
	"context"
	"path/filepath"
	"testing"

	"jpintel/store"
)

// MasterKeys and Salt are the keys of test files.
const (
	MasterKeys = "test:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	Salt       = "a salt for tests only"
)

// Keys returns the keyring of test files.
func Keys(t testing.TB) *store.Keyring {
	t.Helper()
	keys, err := store.ParseKeyring(MasterKeys, Salt)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// New opens a new file in a temporary directory, as its server; the test's end
// checks its invariants and closes it.
func New(t testing.TB) *store.DB {
	t.Helper()
	return Open(t, filepath.Join(t.TempDir(), "jpintel.db"))
}

// Open opens the file at path, as its server.
func Open(t testing.TB, path string) *store.DB {
	t.Helper()
	db, err := store.Open(context.Background(), path, store.Options{
		Server: true, Keys: Keys(t), Fatal: func(err error) { t.Errorf("the store had to give up: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			Check(t, db)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// Customer adds a customer and returns its id and an API key.
func Customer(t testing.TB, db *store.DB, id string, tier store.Tier) (string, string) {
	t.Helper()
	var text string
	if err := db.Write(context.Background(), func(tx *store.Tx) error {
		if _, _, err := store.CreateCustomer(tx, store.Customer{CustomerID: id, Tier: tier}); err != nil {
			return err
		}
		var err error
		_, text, err = store.CreateAPIKey(tx, id)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return id, text
}

// invariants are queries that find nothing in a sound file, whatever has been
// going on and wherever it was killed.
var invariants = map[string]string{
	"the file is whole": `SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok'`,
	"references hold":   `SELECT "table" || ' row ' || rowid FROM pragma_foreign_key_check`,
	"a delivery is of an event that its subscription's customer may see": `
		SELECT d.delivery_id FROM webhook_deliveries d JOIN outbox_events e ON e.seq = d.event_seq
		JOIN webhook_subscriptions s ON s.sub_seq = d.sub_seq
		WHERE e.customer_id IS NOT NULL AND e.customer_id <> s.customer_id`,
	"a delivery is of an event later than its subscription": `
		SELECT d.delivery_id FROM webhook_deliveries d JOIN webhook_subscriptions s ON s.sub_seq = d.sub_seq
		WHERE d.event_seq <= s.since_seq AND s.generation = 1`,
	"attempts are numbered from 1 without gaps, and counted": `
		SELECT d.delivery_id FROM webhook_deliveries d
		LEFT JOIN webhook_attempts a ON a.delivery_seq = d.delivery_seq
		GROUP BY d.delivery_seq HAVING d.attempt_count <> COUNT(a.attempt) OR COALESCE(MAX(a.attempt), 0) <> d.attempt_count`,
	"the totals are the deliveries'": `
		SELECT t.status FROM webhook_totals t
		WHERE t.deliveries <> (SELECT COUNT(*) FROM webhook_deliveries d WHERE d.status = t.status)`,
	"a successful delivery ends with a 2xx": `
		SELECT d.delivery_id FROM webhook_deliveries d
		LEFT JOIN webhook_attempts a ON a.delivery_seq = d.delivery_seq AND a.attempt = d.attempt_count
		WHERE d.status = 'success' AND (a.status IS NULL OR a.status NOT BETWEEN 200 AND 299)`,
	"an attempt with the guard's word was blocked": `
		SELECT delivery_seq || ' ' || attempt FROM webhook_attempts
		WHERE blocked_reason <> '' AND (error_category <> 'blocked_address' OR status IS NOT NULL OR remote_addr <> '')`,
	"what a disabled subscription left pending is swept, or going to be": `
		SELECT d.delivery_id FROM webhook_deliveries d JOIN webhook_subscriptions s ON s.sub_seq = d.sub_seq
		WHERE d.status = 'pending' AND d.generation < s.generation AND s.sweep = 0`,
	"a customer has at most 20 active subscriptions": `
		SELECT customer_id FROM webhook_subscriptions WHERE disabled_at_ms IS NULL GROUP BY customer_id HAVING COUNT(*) > 20`,
	"a limit has been crossed that there was": `
		SELECT t.event_id FROM threshold_crossings t JOIN customers c ON c.customer_id = t.customer_id
		WHERE t.meter = 'daily_calls' AND t.limit_version NOT BETWEEN 1 AND c.limit_version`,
	"a budget has been crossed that there was": `
		SELECT t.event_id FROM threshold_crossings t WHERE t.meter = 'model_spend' AND NOT EXISTS (
		  SELECT 1 FROM limit_policies l WHERE l.customer_id = t.customer_id AND l.policy_version = t.limit_version)`,
	"an open usage record counts its requests": `
		SELECT r.customer_id || ' ' || r.day FROM usage_records r LEFT JOIN usage_requests u USING (customer_id, day, record_no) WHERE r.closed_at_ms IS NULL
		GROUP BY r.customer_id, r.day, r.record_no HAVING r.requests <> COUNT(u.request_id) OR r.open <> COUNT(u.next_look_ms)`,
	"a day has one open usage record at most, its last": `
		SELECT r.customer_id || ' ' || r.day FROM usage_records r JOIN usage_records n ON n.customer_id = r.customer_id AND n.day = r.day AND n.record_no > r.record_no
		WHERE r.closed_at_ms IS NULL`,
	"a usage record is booked when it is closed": `
		SELECT r.customer_id || ' ' || r.day FROM usage_records r WHERE (r.closed_at_ms IS NOT NULL AND r.cost GLOB '*[1-9]*') <>
		(SELECT COUNT(*) FROM journal_entries e WHERE e.customer_id = r.customer_id AND e.kind = 'usage' AND e.entry_id = 'usage_' || r.customer_id || '_' || r.day || '_' || r.record_no)`,
	"a usage record is told of when it is closed": `
		SELECT r.customer_id || ' ' || r.day FROM usage_records r WHERE (r.closed_at_ms IS NOT NULL) <>
		(SELECT COUNT(*) FROM outbox_events e WHERE e.event_type = 'usage.finalized' AND e.correlation_id = 'usage_' || r.customer_id || '_' || r.day || '_' || r.record_no)`,
	"a crossing's event is its customer's": `
		SELECT t.event_id FROM threshold_crossings t JOIN outbox_events e ON e.event_id = t.event_id
		WHERE e.customer_id IS NOT t.customer_id`,
	"a mail is to its subscription's owner": `
		SELECT m.mail_id FROM mails m JOIN webhook_subscriptions s ON s.subscription_id = m.subscription_id WHERE m.customer_id <> s.customer_id`,
	"a subscription that misses events is disabled": `
		SELECT s.subscription_id FROM webhook_missed_ranges m JOIN webhook_subscriptions s ON s.sub_seq = m.sub_seq
		WHERE s.deleted_at_ms IS NOT NULL OR m.to_seq IS NULL AND s.disabled_at_ms IS NULL`,
	"an event is missed once": `
		SELECT a.sub_seq || ' ' || b.from_seq FROM webhook_missed_ranges a JOIN webhook_missed_ranges b ON b.sub_seq = a.sub_seq
		WHERE b.from_seq > a.from_seq AND (a.to_seq IS NULL OR b.from_seq < a.to_seq)`,
	"a replay runs on an active subscription": `
		SELECT r.job_id FROM webhook_replays r JOIN webhook_subscriptions s ON s.sub_seq = r.sub_seq
		WHERE r.state = 'running' AND s.disabled_at_ms IS NOT NULL`,
	"a filter matches a program once": `
		SELECT filter_id || ' ' || unified_id FROM filter_matches GROUP BY filter_id, unified_id HAVING COUNT(*) > 1`,
	"a customer has at most one live group": `
		SELECT customer_id FROM partner_operations WHERE action = 'create_group' AND status = 'succeeded' GROUP BY customer_id
		HAVING COUNT(*) > 1 + (SELECT COUNT(*) FROM partner_operations d
		  WHERE d.customer_id = partner_operations.customer_id AND d.action = 'delete_group' AND d.status = 'succeeded')`,
	"an account's group was made for it": `
		SELECT a.customer_id FROM billing_accounts a WHERE a.group_id IS NOT NULL AND NOT EXISTS (
		  SELECT 1 FROM partner_operations o WHERE o.customer_id = a.customer_id AND o.action = 'create_group' AND o.status = 'succeeded' AND o.target_public_id = a.group_id)`,
	"what succeeded has an answer, a finding or a decision that says so": `
		SELECT o.operation_id FROM partner_operations o WHERE o.status = 'succeeded' AND o.action <> 'provision_customer'
		AND NOT EXISTS (SELECT 1 FROM operation_attempts a WHERE a.operation_id = o.operation_id AND a.outcome = 'succeeded')
		AND NOT EXISTS (SELECT 1 FROM reconcile_evidence e WHERE e.operation_id = o.operation_id AND e.verdict = 'succeeded')
		AND NOT EXISTS (SELECT 1 FROM operator_notes n WHERE n.operation_id = o.operation_id AND n.action = 'resolve')`,
	"what was sent was recorded before": `
		SELECT o.operation_id FROM partner_operations o WHERE (o.send_state <> 'not_sent') <>
		EXISTS (SELECT 1 FROM operation_attempts a WHERE a.operation_id = o.operation_id)`,
	"attempts of an operation are numbered from 1 without gaps, and no fewer than counted": `
		SELECT o.operation_id FROM partner_operations o JOIN operation_attempts a ON a.operation_id = o.operation_id
		GROUP BY o.operation_id HAVING MAX(a.attempt_no) <> COUNT(*) OR o.attempt_count > COUNT(*)`,
	"one attempt of an operation is under way": `
		SELECT operation_id FROM operation_attempts WHERE finished_at_ms IS NULL GROUP BY operation_id HAVING COUNT(*) > 1`,
	"a provisioned customer has a group, a key and a limit": `
		SELECT p.operation_id FROM partner_operations p WHERE p.action = 'provision_customer' AND p.status = 'succeeded'
		AND (p.phase <> 'provisioned' OR (SELECT COUNT(DISTINCT action) FROM partner_operations c
		  WHERE c.parent_operation_id = p.operation_id AND c.status = 'succeeded' AND c.action IN ('create_group', 'create_key', 'set_initial_limit')) <> 3)`,
	"a provisioned customer was told so once": `
		SELECT p.operation_id FROM partner_operations p WHERE p.action = 'provision_customer' AND (p.status = 'succeeded') <>
		(SELECT COUNT(*) FROM outbox_events e WHERE e.event_type = 'customer.provisioned' AND e.correlation_id = p.operation_id)`,
	"a provisioning that is open has work that is open, or somebody to look at it": `
		SELECT p.operation_id FROM partner_operations p WHERE p.action = 'provision_customer' AND p.status = 'pending'
		AND NOT EXISTS (SELECT 1 FROM partner_operations c WHERE c.parent_operation_id = p.operation_id AND c.status NOT IN ('succeeded', 'failed_final'))`,
	"a key was made by the operation that says so": `
		SELECT k.key_id FROM model_keys k JOIN partner_operations o ON o.operation_id = k.operation_id
		WHERE o.action <> 'create_key' OR o.status <> 'succeeded' OR o.target_public_id <> k.key_id OR o.customer_id <> k.customer_id`,
	"a payment event was worked on before anything came of it": `
		SELECT event_id FROM payment_webhook_events WHERE processing_status <> 'received' AND attempt_count = 0`,
	"a payment event's operation is its customer's": `
		SELECT e.event_id FROM payment_webhook_events e JOIN partner_operations o ON o.operation_id = e.related_operation_id
		WHERE o.customer_id <> e.related_customer_id`,
	"a payment is topped up once": `
		SELECT intent FROM partner_operations WHERE action = 'top_up_credit' AND status = 'succeeded' GROUP BY intent HAVING COUNT(*) > 1`,
	"what moves credit belongs to a payment": `
		SELECT o.operation_id FROM partner_operations o WHERE o.action = 'top_up_credit'
		  AND NOT EXISTS (SELECT 1 FROM payments p WHERE p.ledger_entry_id = o.intent AND p.customer_id = o.customer_id)
		OR o.action = 'debit_credit' AND NOT EXISTS (SELECT 1 FROM payments p WHERE p.payment_ref = o.intent AND p.customer_id = o.customer_id)`,
	"one operation of a payment is open": `
		SELECT p.payment_id FROM payments p JOIN partner_operations o
		  ON o.action = 'top_up_credit' AND o.intent = p.ledger_entry_id OR o.action = 'debit_credit' AND o.intent = p.payment_ref
		WHERE o.finished_at_ms IS NULL GROUP BY p.payment_id HAVING COUNT(*) > 1`,
	"credit that has moved is in the journal, and its customer was told, once": `
		SELECT o.operation_id FROM partner_operations o WHERE o.action IN ('top_up_credit', 'debit_credit') AND (
		  (o.status = 'succeeded') <> (SELECT COUNT(*) FROM journal_entries e WHERE e.operation_id = o.operation_id AND e.entry_id = o.external_ref)
		  OR (o.status = 'succeeded') <> (SELECT COUNT(*) FROM outbox_events e WHERE e.event_type = 'credit.adjustment_posted' AND e.correlation_id = o.operation_id))`,
	"a reversal knows the payment of its charge": `
		SELECT r.reversal_ref FROM payment_reversals r JOIN payment_charges c USING (provider, charge_ref) WHERE r.payment_ref IS NULL`,
	"a change that is not ours is on the operator's list": `
		SELECT s.audit_id FROM upstream_audit_seen s WHERE s.classified IN ('foreign', 'unmatched') AND NOT EXISTS (
		  SELECT 1 FROM sweep_findings f WHERE f.kind = s.classified || '_change' AND f.subject = s.audit_id AND f.customer_id IS s.customer_id)`,
	"a change that is on the list is not ours": `
		SELECT f.finding_id FROM sweep_findings f WHERE f.kind IN ('foreign_change', 'unmatched_change') AND NOT EXISTS (
		  SELECT 1 FROM upstream_audit_seen s WHERE s.audit_id = f.subject AND s.classified || '_change' = f.kind)`,
	"a change that is ours is its operation's customer's": `
		SELECT s.audit_id FROM upstream_audit_seen s JOIN partner_operations o ON o.operation_id = s.operation_id WHERE o.customer_id <> s.customer_id`,
	"a limit operation has its policy": `
		SELECT o.operation_id FROM partner_operations o WHERE o.action IN ('set_limit', 'set_initial_limit') AND NOT EXISTS (
		  SELECT 1 FROM limit_policies l WHERE l.customer_id = o.customer_id AND l.policy_version = o.intent_version AND l.spend_limit = o.amount)`,
}

// Check fails the test for every invariant that does not hold.
func Check(t testing.TB, db *store.DB) {
	t.Helper()
	for name, query := range invariants {
		rows, err := db.Reader(context.Background()).Query(query)
		if err != nil {
			t.Errorf("invariant %q: %v", name, err)
			continue
		}
		for rows.Next() {
			var what string
			if err := rows.Scan(&what); err != nil {
				t.Errorf("invariant %q: %v", name, err)
			}
			t.Errorf("invariant broken: %s: %s", name, what)
		}
		rows.Close()
		if err := rows.Err(); err != nil {
			t.Errorf("invariant %q: %v", name, err)
		}
	}
}
