// Package billing keeps the business intent of every change that it makes in the
// outside world: groups, model keys and limits at the partner API.
//
// # What is stored
//
// partner_operations: one row per change that somebody wanted, with the bytes
// that ask for it, the Idempotency-Key that follows from the intent, and where it
// stands. operation_attempts: one row per request. reconcile_evidence: what the
// upstream was asked, and what followed. operator_notes: what people decided.
// billing_accounts, model_keys, key_secrets (sealed) and limit_policies: what has
// become of it here. late_results: answers that nobody was waiting for any more.
// payment_webhook_events: what the payment provider has told, before anything
// follows from it; payments, payment_charges and payment_reversals: the facts in
// it. upstream_audit_seen and sweep_findings: what the upstream says was changed,
// and where it and this file disagree, by the daily sweeps (sweep.go).
//
// # The walk of an operation
//
//	intent ─▶ accept (T1)                  the operation; one transaction with whoever wants it
//	            │
//	          claim (T2)                   a lease with a rising token; one operation a customer at a time
//	            │
//	          begin (T4)                   the attempt, committed before the first byte leaves
//	            │
//	          modelgate.Client.Send        no transaction is open; the stored bytes, the same key
//	            │
//	          one transition (T5 to T16)   by the outcome's class, under the lease's token
//	            │
//	          reconcile (T17 to T22)       what may have happened is looked up before anything else
//
// Beside operations, poll.go asks the upstream what customers have used, package
// metering counts it, and budget.go holds it against the limit in force.
//
// Each transition is one function in transition.go. A provision_customer is a
// parent that sends nothing: the success of each child inserts the next one.
//
// # The walk of a payment event
//
//	webhook ─▶ IngestPayment               verified, stored once, answered
//	             │
//	           Engine.StepPayment          the fact and all that follows from it; one transaction, no network
//
// # What is atomic
//
// A success with everything that follows from it: the target, the sealed secret,
// the journal's entry, the customer's state, the event in the outbox, the parent's
// phase and the next child, or a payment's next operation. A payment event's fact
// with the operation that it begins. A verdict with its evidence. An operator's
// decision with its note.
//
// # What a crash leaves
//
// Before begin: an operation that was not sent. After it: one that may have been
// sent, whose lease runs out; the next owner counts it as unknown and sends the
// same bytes under the same key, which the upstream knows for seven days (we rely
// on six), or looks. Unknown is never taken for failed, no key is ever made up,
// and nothing is compensated before the upstream was read.
package billing

import (
	"log/slog"

	"jpintel/billing/money"
	"jpintel/store"
	"jpintel/webhook"
)

// Service accepts intents and answers questions about them. It makes no request:
// the Worker does.
type Service struct {
	DB     *store.DB
	Outbox *webhook.Outbox
	Models []string // of a new group
	Stripe StripeOptions
	Log    *slog.Logger // of what people should look at; nil: none
	Wake   func()       // tells the worker of new work; nil: it will see
	// AttemptPrice is that of a webhook attempt, in yen, where the file has none yet.
	AttemptPrice money.Amount
}

func (s *Service) wake(tx *store.Tx) {
	if s.Wake != nil {
		tx.AfterCommit(s.Wake)
	}
}

// rules is what success brings about: the engine and the operator share it.
func (s *Service) rules() rules { return rules{s.Outbox, s.Models} }

// rules carries what transitions need beside the transaction.
type rules struct {
	outbox *webhook.Outbox
	models []string
}
