package billing

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/store"
)

// This file has the transitions of an operation, one function each, by the
// numbers of the table in docs/billing.md. (T2 is claim, in lease.go.) Each is an
// UPDATE under the lease's token: 0 rows say that the lease is lost, and then
// nothing of what the transaction did stays.

// errLeaseLost says that the operation is somebody else's by now.
var errLeaseLost = errors.New("the lease on the operation is lost")

// change is one guarded update. It gives the lease back: every transition ends
// the owner's turn.
func (o *Operation) change(tx *store.Tx, assignments string, args ...any) error {
	n := len(args)
	place := func(i int) string { return "$" + strconv.Itoa(n+i) }
	changed, err := tx.Update(`
		UPDATE partner_operations SET updated_at_ms = `+place(1)+`, locked_by = NULL, locked_until_ms = NULL, `+assignments+`
		WHERE operation_id = `+place(2)+` AND lock_token = `+place(3)+` AND finished_at_ms IS NULL`, append(args, tx.NowMS(), o.OperationID, o.lockToken)...)
	if err != nil {
		return fmt.Errorf("operation %s: %w", o.OperationID, err)
	}
	if changed == 0 {
		return errLeaseLost
	}
	return nil
}

// accept (T1) records an intent. The same intent again is the same operation,
// and created is false; if it asks for something else now, that is a conflict,
// and nothing is sent under a key that was used for another request.
func accept(tx *store.Tx, in intent) (o *Operation, created bool, err error) {
	var print, body, method, path, key any
	if in.action != ProvisionCustomer {
		text, err := fingerprint(in.request)
		if err != nil {
			return nil, false, err
		}
		print, method, path, key = text, in.request.Method, in.request.Path, in.request.Key
		if in.request.Body != nil {
			body = in.request.Body
		}
	}
	var amount any
	if in.amount != nil {
		amount = in.amount.Text(in.currency)
	}
	id := tx.NewID("op")
	n, err := tx.Update(`
		INSERT INTO partner_operations (operation_id, parent_operation_id, customer_id, action, intent, intent_version, compensates_operation_id,
		  supersedes_operation_id, approved_by, next_action, idempotency_key, key_text, request_method, request_path, request_body, request_fingerprint,
		  template_version, external_ref, status, phase, next_attempt_at_ms, amount, currency, created_at_ms, updated_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, 'pending', $19, $20, $21, $22, $20, $20)
		ON CONFLICT DO NOTHING`,
		id, store.Nullable(in.parent), in.customer, in.action, in.subject, in.version, store.Nullable(in.compensates),
		store.Nullable(in.supersedes), store.Nullable(in.approvedBy), store.Nullable(in.nextAction), key, store.Nullable(in.keyText), method, path, body, print,
		templateVersion, store.Nullable(in.externalRef), store.Nullable(in.phase), tx.NowMS(), amount, store.Nullable(in.currency))
	if err != nil {
		return nil, false, fmt.Errorf("recording an operation: %w", err)
	}
	if n == 1 {
		o, err = GetOperation(tx, id)
		return o, true, err
	}
	o, err = findIntent(tx, in.customer, in.action, in.subject, in.version)
	if err != nil {
		return nil, false, err
	}
	if o == nil || print != nil && (o.Fingerprint == nil || *o.Fingerprint != print) || amount != nil && (o.Amount == nil || *o.Amount != amount || *o.Currency != string(in.currency)) {
		return nil, false, store.Errorf(store.CodeConflict, "there is an operation for this already, which asks for something else")
	}
	return o, false, nil
}

// stopMismatch (T3): what is stored is not what was accepted. Nothing is sent.
func (o *Operation) stopMismatch(tx *store.Tx) error {
	return o.stop(tx, "local_fingerprint_mismatch", "the stored request is not the one that was accepted; nothing was sent")
}

// stop hands the operation to a person.
func (o *Operation) stop(tx *store.Tx, code, message string) error {
	return o.change(tx, `status = 'reconciliation_needed', reconciling_since_ms = NULL, hold_reason = NULL, last_error_code = $1, last_error_message = $2`, code, message)
}

// kindReconcile is the kind of a replay that is to tell what has happened.
const kindReconcile = "reconcile"

// begin (T4) records an attempt before the first byte of it leaves. The lease
// stays. It returns the attempt's number.
func (o *Operation) begin(tx *store.Tx) (attempt int, err error) {
	kind := "send"
	if o.Status == Reconciling {
		kind = kindReconcile
	} else if o.SendState != "not_sent" {
		kind = "replay"
	}
	n, err := tx.Update(`
		UPDATE partner_operations SET send_state = 'maybe_sent', attempt_count = attempt_count + 1, updated_at_ms = $1,
		  first_sent_at_ms = COALESCE(first_sent_at_ms, $1), replay_deadline_ms = COALESCE(replay_deadline_ms, $2)
		WHERE operation_id = $3 AND lock_token = $4 AND locked_until_ms > $5 AND status IN ('pending', 'failed_retryable', 'reconciling')`,
		tx.NowMS(), tx.Now.Add(replayWindow).UnixMilli(), o.OperationID, o.lockToken, tx.Now.Add(leaseMargin).UnixMilli())
	if err != nil {
		return 0, fmt.Errorf("recording an attempt: %w", err)
	}
	if n == 0 {
		return 0, errLeaseLost
	}
	err = tx.QueryRow(`
		INSERT INTO operation_attempts (operation_id, attempt_no, lock_token, kind, started_at_ms)
		SELECT $1, COALESCE(MAX(attempt_no), 0) + 1, $2, $3, $4 FROM operation_attempts WHERE operation_id = $1
		RETURNING attempt_no`, o.OperationID, o.lockToken, kind, tx.NowMS()).Scan(&attempt)
	if err != nil {
		return 0, fmt.Errorf("recording an attempt: %w", err)
	}
	return attempt, nil
}

// finishAttempt writes down what an attempt came to.
func finishAttempt(tx *store.Tx, operationID string, attempt int, out modelgate.Outcome) error {
	var date any
	if !out.Date.IsZero() {
		date = out.Date.UnixMilli()
	}
	_, err := tx.Exec(`
		UPDATE operation_attempts SET finished_at_ms = $1, wrote_request = $2, outcome = $3, http_status = $4, error_code = $5, request_id = $6,
		  idempotent_replayed = $7, retry_after_raw = $8, server_date_ms = $9, response_sha256 = $10, response_excerpt = $11, original_request_id = $12
		WHERE operation_id = $13 AND attempt_no = $14 AND finished_at_ms IS NULL`,
		tx.NowMS(), store.Bit(out.Wrote), string(out.Class), store.Nullable(out.Status), store.Nullable(out.Code), store.Nullable(out.RequestID),
		store.Bit(out.Replayed), store.Nullable(out.Retry), date, store.Nullable(out.SHA256), store.Nullable(out.Excerpt),
		store.Nullable(out.OriginalID), operationID, attempt)
	if err != nil {
		return fmt.Errorf("writing down an attempt: %w", err)
	}
	return nil
}

// succeed (T5) ends the operation with its target, and everything that follows
// from it happens in the same transaction.
func (o *Operation) succeed(ctx context.Context, tx *store.Tx, r rules, out modelgate.Outcome) error {
	if taken, err := targetTaken(tx, o, out.Answer.TargetID); err != nil || taken {
		return errors.Join(err, o.escalate(tx, "target_taken", "the upstream's "+out.Answer.TargetID+" was made by another operation"))
	}
	err := o.change(tx, `status = 'succeeded', send_state = CASE send_state WHEN 'not_sent' THEN send_state ELSE 'answered' END, target_public_id = $1, model_gate_request_id = COALESCE($2, model_gate_request_id),
		hold_reason = NULL, reconciling_since_ms = NULL, last_error_code = NULL, last_error_message = NULL, finished_at_ms = $3`,
		out.Answer.TargetID, store.Nullable(out.RequestID), tx.NowMS())
	if err != nil {
		return err
	}
	return r.advance(ctx, tx, o, out.Answer)
}

// targetTaken reports whether another operation has made the object that this one
// is said to have made: two customers must not share one.
func targetTaken(q store.Querier, o *Operation, target string) (taken bool, err error) {
	err = q.QueryRow(`
		SELECT EXISTS (SELECT 1 FROM partner_operations WHERE action = $1 AND target_public_id = $2 AND operation_id <> $3
		  AND action IN ('create_group', 'create_key', 'top_up_credit', 'debit_credit'))`, string(o.Action), target, o.OperationID).Scan(&taken)
	if err != nil {
		return false, fmt.Errorf("looking for a target: %w", err)
	}
	return taken, nil
}

// doubt (T6): the answer is a success, but not one to this request.
func (o *Operation) doubt(tx *store.Tx, out modelgate.Outcome, next time.Time) error {
	return o.toReconciling(tx, `unknown_count = unknown_count + 1, `, out, next)
}

// toReconciling keeps the first time at which the operation came there.
func (o *Operation) toReconciling(tx *store.Tx, more string, out modelgate.Outcome, next time.Time) error {
	return o.change(tx, more+`status = 'reconciling', reconciling_since_ms = COALESCE(reconciling_since_ms, $1), hold_reason = NULL, next_attempt_at_ms = $2,
		model_gate_request_id = COALESCE($3, model_gate_request_id), last_error_code = $4, last_error_message = $5`,
		tx.NowMS(), next.UnixMilli(), store.Nullable(out.RequestID), store.Nullable(out.Code), store.Nullable(out.Message))
}

// retryLater schedules the same bytes again. One that is being reconciled stays so.
func (o *Operation) retryLater(tx *store.Tx, more string, out modelgate.Outcome, next time.Time) error {
	return o.change(tx, more+`status = CASE status WHEN 'reconciling' THEN status ELSE 'failed_retryable' END, next_attempt_at_ms = $1,
		model_gate_request_id = COALESCE($2, model_gate_request_id), last_error_code = $3, last_error_message = $4`,
		next.UnixMilli(), store.Nullable(out.RequestID), store.Nullable(out.Code), store.Nullable(out.Message))
}

// notSent (T7): no byte has left. send_state stays: that it says maybe_sent is
// on the safe side, and the attempt tells.
func (o *Operation) notSent(tx *store.Tx, out modelgate.Outcome, next time.Time) error {
	return o.retryLater(tx, ``, out, next)
}

// unknown (T8): it may have happened.
func (o *Operation) unknown(tx *store.Tx, out modelgate.Outcome, next time.Time) error {
	return o.retryLater(tx, `unknown_count = unknown_count + 1, `, out, next)
}

// notBegun (T9): the upstream says that it has not done it yet.
func (o *Operation) notBegun(tx *store.Tx, out modelgate.Outcome, next time.Time) error {
	return o.retryLater(tx, ``, out, next)
}

// replayedFailure (T10): the upstream's stored answer is a failure. The second
// time there is no sense in asking for it again.
func (o *Operation) replayedFailure(tx *store.Tx, out modelgate.Outcome, next time.Time) error {
	if o.replayed5xx == 0 {
		return o.retryLater(tx, `replayed_5xx = replayed_5xx + 1, `, out, next)
	}
	return o.toReconciling(tx, `replayed_5xx = replayed_5xx + 1, `, out, next)
}

// refuse (T11): the upstream has judged it and said no, and nothing is in doubt.
func (o *Operation) refuse(tx *store.Tx, out modelgate.Outcome) error {
	if o.Action == DebitCredit && out.Code == codeBalanceSpent {
		return o.spent(tx, out)
	}
	return o.fail(tx, out.Code, out.Message)
}

// fail ends the operation without effect; a parent waits for the operator, and a
// payment goes on without it.
func (o *Operation) fail(tx *store.Tx, code, message string) error {
	err := o.change(tx, `status = 'failed_final', hold_reason = NULL, reconciling_since_ms = NULL, last_error_code = $1, last_error_message = $2, finished_at_ms = $3`,
		code, message, tx.NowMS())
	if err == nil && o.movesCredit() {
		return convergeAfter(tx, o)
	}
	if err != nil || o.ParentID == nil {
		return err
	}
	return block(tx, *o.ParentID, PhaseBlocked, code, message)
}

// inDoubt reports whether an earlier send may have had its effect: one that
// nobody knows the end of, and that the upstream was not seen without since.
func (o *Operation) inDoubt(q store.Querier) (doubt bool, err error) {
	if o.UnknownCount == 0 {
		return false, nil
	}
	err = q.QueryRow(`
		SELECT EXISTS (SELECT 1 FROM operation_attempts WHERE operation_id = $1 AND started_at_ms > $2
		  AND COALESCE(outcome, '') IN ('', 'interrupted', $3, $4, $5))`, o.OperationID, max(o.reconciledAt.UnixMilli(), 0),
		string(modelgate.Unknown), string(modelgate.Malformed), string(modelgate.Redirected)).Scan(&doubt)
	if err != nil {
		return false, fmt.Errorf("reading attempts: %w", err)
	}
	return doubt, nil
}

// refuseInDoubt (T12): it is refused now, but an earlier send may have had its
// effect, and this refusal may be the consequence.
func (o *Operation) refuseInDoubt(tx *store.Tx, out modelgate.Outcome, next time.Time) error {
	return o.toReconciling(tx, ``, out, next)
}

// holdAuth (T13): our own key is not accepted. That is no attempt.
func (o *Operation) holdAuth(tx *store.Tx, out modelgate.Outcome) error {
	return o.retryLater(tx, `attempt_count = attempt_count - 1, hold_reason = '`+holdAuth+`', `, out, tx.Now)
}

// holdWallet (T14): the partner's wallet is empty.
func (o *Operation) holdWallet(tx *store.Tx, out modelgate.Outcome) error {
	return o.retryLater(tx, `hold_reason = '`+holdWallet+`', `, out, tx.Now)
}

// holdRedirect: the upstream sends us elsewhere, where nobody follows. What has
// answered may have done it all the same.
func (o *Operation) holdRedirect(tx *store.Tx, out modelgate.Outcome) error {
	return o.retryLater(tx, `unknown_count = unknown_count + 1, hold_reason = '`+holdRedirect+`', `, out, tx.Now)
}

// stopReused (T15): the upstream knows the key from another request. That is a
// mistake of ours, and no key is made up to get around it.
func (o *Operation) stopReused(tx *store.Tx, out modelgate.Outcome) error {
	return o.stop(tx, out.Code, "the upstream knows this Idempotency-Key from another request: "+out.Message)
}

// refTaken (T16): the upstream has an object with this reference; it may be ours.
func (o *Operation) refTaken(tx *store.Tx, out modelgate.Outcome) error {
	return o.toReconciling(tx, ``, out, tx.Now)
}

// giveUpSending (T17): the key protects us no more, or sending has not settled it.
func (o *Operation) giveUpSending(tx *store.Tx, code, message string) error {
	return o.toReconciling(tx, ``, modelgate.Outcome{Code: code, Message: message}, tx.Now)
}

// adopt (T18): the upstream has exactly what was asked for.
func (o *Operation) adopt(ctx context.Context, tx *store.Tx, r rules, a modelgate.Answer) error {
	return o.succeed(ctx, tx, r, modelgate.Outcome{Answer: a})
}

// sendAgain (T19): it has not happened, and the key still protects us: the same
// key, the same bytes. What was unknown of earlier sends is known.
func (o *Operation) sendAgain(tx *store.Tx) error {
	return o.change(tx, `status = 'pending', unknown_count = 0, reconciling_since_ms = NULL, reconciled_at_ms = $1, next_attempt_at_ms = $1`, tx.NowMS())
}

// codeNotExecuted says that nothing was found, which is no proof.
const codeNotExecuted = "not_executed"

// notExecuted (T20): it has not happened as far as anybody can see, and the key
// protects us no more. A new operation is the operator's decision.
func (o *Operation) notExecuted(tx *store.Tx) error {
	return o.fail(tx, codeNotExecuted, "the upstream knows nothing of it, and its Idempotency-Key has expired: a new operation needs the operator")
}

// superseded (T21): a newer limit is in force.
func (o *Operation) superseded(tx *store.Tx) error {
	return o.fail(tx, "superseded", "a newer limit is in force")
}

// escalate (T22): what was found is ambiguous, contradicts, or was not to be had.
func (o *Operation) escalate(tx *store.Tx, code, message string) error {
	return o.stop(tx, code, message)
}

// keepLate (T24) keeps an answer whose sender has lost the lease, for whoever
// has it now. The operation's state does not change.
func keepLate(tx *store.Tx, o *Operation, attempt int, out modelgate.Outcome) error {
	if err := finishAttempt(tx, o.OperationID, attempt, out); err != nil {
		return err
	}
	if out.Status == 0 {
		return nil
	}
	_, err := tx.Exec(`INSERT INTO late_results (operation_id, lock_token, at_ms, http_status, sealed_body) VALUES ($1, $2, $3, $4, $5)`,
		o.OperationID, o.lockToken, tx.NowMS(), out.Status, tx.Keys().Seal(out.Body, lateContext(o.OperationID, o.lockToken)))
	if err != nil {
		return fmt.Errorf("keeping a late answer: %w", err)
	}
	return nil
}

// lateContext binds a sealed answer to its claim.
func lateContext(operationID string, token int64) string {
	return strings.Join([]string{"late", operationID, number(token)}, " ")
}
