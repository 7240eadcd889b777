package storetest

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"jpintel/store"
)

// recorder is a test that only notes what it is told.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

const (
	anEvent = `INSERT INTO outbox_events (seq, event_id, event_type, customer_id, subject_type, subject_id, occurred_at_ms, created_at, created_at_ms, schema_version, attributes, data)
		VALUES (7, 'evt_7', 'x', 'acme', 'x', 'x', 0, '', 0, '', '{}', x'7b7d');`
	aSubscription = `INSERT INTO webhook_subscriptions (sub_seq, subscription_id, customer_id, url, events, envelope, since_seq, created_at_ms)
		VALUES (1, 'sub_1', 'acme', '', '[]', 'v1', 0, 0);`
	aDelivery = anEvent + aSubscription + `INSERT INTO webhook_deliveries (delivery_seq, delivery_id, event_seq, sub_seq, generation, envelope, status, next_attempt_at_ms, created_at_ms)
		VALUES (1, 'dlv_1', 7, 1, 1, 'v1', 'pending', 0, 0);` + counted
	success   = `UPDATE webhook_deliveries SET status = 'success', next_attempt_at_ms = NULL, finished_at_ms = 0, attempt_count = 1;` + counted
	counted   = `UPDATE webhook_totals SET deliveries = (SELECT count(*) FROM webhook_deliveries d WHERE d.status = webhook_totals.status);`
	aCrossing = `INSERT INTO threshold_crossings (customer_id, meter, period, limit_version, percent, event_id, created_at_ms)
		VALUES ('acme', 'daily_calls', '2026-05-14', 1, 80, 'evt_7', 0);`
	aRange = `INSERT INTO webhook_missed_ranges (sub_seq, from_seq, to_seq) VALUES (1, 2, 5);`
	aTopUp = `INSERT INTO partner_operations (operation_id, customer_id, action, intent, intent_version, idempotency_key, request_fingerprint, external_ref, status,
		  next_attempt_at_ms, amount, currency, created_at_ms, updated_at_ms)
		VALUES ('op_%[1]d', 'acme', 'top_up_credit', 'led_1', %[1]d, 'key_%[1]d', 'v1:', 'led_1', 'pending', 0, '1.00', 'USD', 0, 0);`
	aPayment = `INSERT INTO payments (payment_id, provider, payment_ref, customer_id, currency, amount_minor, state, paid_at_ms, first_event_id, ledger_entry_id, version,
		  last_event_created_ms, last_event_rank, created_at_ms, updated_at_ms)
		VALUES ('pay_1', 'stripe', 'pi_1', 'acme', 'USD', 100, 'paid', 0, 'evt_1', 'led_1', 1, 0, 0, 0, 0);`
	aRefund = `INSERT INTO payment_charges (provider, charge_ref, payment_ref) VALUES ('stripe', 'ch_1', 'pi_1');
		INSERT INTO payment_reversals (provider, reversal_ref, kind, payment_ref, charge_ref, amount_minor, status, effective, last_event_created_ms, last_event_rank, last_event_id,
		  created_at_ms, updated_at_ms) VALUES ('stripe', 're_1', 'refund', 'pi_1', 'ch_1', 100, 'succeeded', 1, 0, 0, '', 0, 0);`
	aPaymentEvent = `INSERT INTO payment_webhook_events (provider, event_id, event_type, event_created_ms, livemode, received_at_ms, last_received_at_ms, payload, payload_hash, semantic_hash, next_attempt_at_ms)
		VALUES ('stripe', 'evt_1', 'refund.created', 0, 1, 5, 5, x'7b7d', '', '', 5);`
	aRecord = `INSERT INTO usage_records (customer_id, day, record_no, currency, cost, requests, open, start_ms, end_ms, changed_at_ms) VALUES ('acme', '2026-05-14', 1, 'USD', '1.50', 1, 0, 0, 0, 0);
		INSERT INTO usage_requests (request_id, customer_id, day, record_no, cost, made_at_ms) VALUES ('mrq_1', 'acme', '2026-05-14', 1, '1.5', 0);`
	toppedUp = `UPDATE partner_operations SET status = 'succeeded', finished_at_ms = 0, target_public_id = 'txn_' || intent_version;`
	attempt  = `INSERT INTO webhook_attempts (delivery_seq, attempt, started_at_ms, duration_ms, status) VALUES (1, %d, 0, 0, %d);`
)

func TestCheck(t *testing.T) {
	const sound = "" // what is broken
	for _, test := range []struct{ broken, how string }{
		{sound, aDelivery},
		{sound, aDelivery + success + fmt.Sprintf(attempt, 1, 204)},
		{"the file is whole", `PRAGMA ignore_check_constraints = 1; UPDATE customers SET tier = 'gold'`},
		{"references hold", `UPDATE api_keys SET customer_id = 'nobody'`},
		{"a delivery is of an event that its subscription's customer may see", aDelivery + `UPDATE outbox_events SET customer_id = 'other'`},
		{"a delivery is of an event later than its subscription", aDelivery + `UPDATE webhook_subscriptions SET since_seq = 7`},
		{"attempts are numbered from 1 without gaps, and counted", aDelivery + fmt.Sprintf(attempt, 1, 500)},
		{"attempts are numbered from 1 without gaps, and counted", aDelivery + success + fmt.Sprintf(attempt, 2, 200)},
		{"the totals are the deliveries'", aDelivery + `UPDATE webhook_totals SET deliveries = 2 WHERE status = 'pending'`},
		{"a successful delivery ends with a 2xx", aDelivery + success + fmt.Sprintf(attempt, 1, 500)},
		{sound, anEvent + aCrossing},
		{"a limit has been crossed that there was", anEvent + aCrossing + `UPDATE threshold_crossings SET limit_version = 2`},
		{"a budget has been crossed that there was", anEvent + aCrossing + `UPDATE threshold_crossings SET meter = 'model_spend'`},
		{sound, aRecord},
		{"an open usage record counts its requests", aRecord + `UPDATE usage_records SET requests = 2`},
		{"an open usage record counts its requests", aRecord + `UPDATE usage_records SET open = 1`},
		{"a day has one open usage record at most, its last", aRecord + strings.ReplaceAll(strings.ReplaceAll(aRecord, "14', 1", "14', 2"), "mrq_1", "mrq_2")},
		{"a usage record is booked when it is closed", aRecord + `UPDATE usage_records SET closed_at_ms = 0`},
		{"a usage record is told of when it is closed", aRecord + `UPDATE usage_records SET closed_at_ms = 0`},
		{"a crossing's event is its customer's", anEvent + aCrossing + `UPDATE outbox_events SET customer_id = NULL`},
		{"an attempt with the guard's word was blocked", aDelivery + success + fmt.Sprintf(attempt, 1, 204) + `UPDATE webhook_attempts SET blocked_reason = 'port'`},
		{sound, aSubscription + aRange},
		{"a subscription that misses events is disabled", aSubscription + aRange + `UPDATE webhook_missed_ranges SET to_seq = NULL`},
		{"an event is missed once", aSubscription + aRange + `INSERT INTO webhook_missed_ranges (sub_seq, from_seq, to_seq) VALUES (1, 4, 9)`},
		{"a replay runs on an active subscription", aSubscription + `UPDATE webhook_subscriptions SET disabled_at_ms = 0, disabled_reason = 'user';
			INSERT INTO webhook_replays (job_id, sub_seq, status, since_ms, until_ms, created_at_ms) VALUES ('rpl_1', 1, 'failed', 0, 1, 0)`},
		{sound, aPaymentEvent},
		{"a payment event was worked on before anything came of it", aPaymentEvent + `UPDATE payment_webhook_events SET processing_status = 'fulfilled', next_attempt_at_ms = NULL`},
		{sound, aPayment + aRefund + fmt.Sprintf(aTopUp, 1)},
		{"a payment is topped up once", aPayment + fmt.Sprintf(aTopUp, 1) + fmt.Sprintf(aTopUp, 2) + toppedUp},
		{"what moves credit belongs to a payment", fmt.Sprintf(aTopUp, 1)},
		{"one operation of a payment is open", aPayment + fmt.Sprintf(aTopUp, 1) + fmt.Sprintf(aTopUp, 2)},
		{"credit that has moved is in the journal, and its customer was told, once", aPayment + fmt.Sprintf(aTopUp, 1) + toppedUp},
		{"a reversal knows the payment of its charge", aPayment + aRefund + `UPDATE payment_reversals SET payment_ref = NULL`},
		{"a customer has at most 20 active subscriptions", `
			INSERT INTO webhook_subscriptions (subscription_id, customer_id, url, events, envelope, since_seq, created_at_ms)
			WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 21)
			SELECT 'sub_' || i, 'acme', '', '[]', 'v1', 0, 0 FROM n`},
	} {
		t.Run("broken: "+test.broken, func(t *testing.T) {
			db := open(t)
			raw, err := sql.Open("sqlite", db.Path()) // foreign keys are off
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			if _, err := raw.Exec(test.how); err != nil {
				t.Fatal(err)
			}
			r := &recorder{TB: t}
			Check(r, db)
			all := strings.Join(r.errors, "\n")
			want := "invariant broken: " + test.broken + ": "
			if test.broken == sound {
				want = ""
			}
			if !strings.Contains(all, want) || (all == "") != (want == "") {
				t.Errorf("found %q, want %q", all, want)
			}
		})
	}
}

// open is New without the check at the end.
func open(t *testing.T) *store.DB {
	db, err := store.Open(t.Context(), t.TempDir()+"/jpintel.db", store.Options{Server: true, Keys: Keys(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	Customer(t, db, "acme", store.TierPaid)
	Customer(t, db, "other", store.TierPaid)
	return db
}
