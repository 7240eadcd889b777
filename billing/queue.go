package billing

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"jpintel/billing/modelgate"
	"jpintel/store"
)

// This file has what the operator decides (T23): each decision is a note on the
// operation's own record, in the transaction of what it does.

// Decision is what the operator does about an operation, with who and why.
type Decision struct {
	OperationID string `path:"id" json:"-"`
	Who         string `json:"who"`
	Note        string `json:"note"`
}

func (d Decision) check() error {
	for _, f := range []struct {
		name, text string
		most       int
	}{{"who", d.Who, 100}, {"note", d.Note, 2000}} {
		if strings.TrimSpace(f.text) == "" || len(f.text) > f.most || strings.ContainsFunc(f.text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' }) {
			return store.Errorf(store.CodeInvalid, "%s: required, at most %d bytes", f.name, f.most)
		}
	}
	if d.Who == system {
		return store.Errorf(store.CodeInvalid, "who: %s is this program itself", system)
	}
	return nil
}

// RetryRequest has an operation go on.
type RetryRequest Decision

// Retry has an operation go on now: it ends a hold, and has one that was stopped
// send the same bytes under the same key, where that is still safe.
func (s *Service) Retry(ctx context.Context, r RetryRequest) (Record, error) {
	return s.decide(ctx, Decision(r), "retry", func(tx *store.Tx, o *Operation) error {
		if o.Action == ProvisionCustomer {
			return store.Errorf(store.CodeConflict, "a provisioning sends nothing itself: retry the child that is stuck")
		}
		if o.Status == ReconciliationNeeded && o.code() == "local_fingerprint_mismatch" {
			return store.Errorf(store.CodeConflict, "the stored request is not the one that was accepted: it is never sent")
		}
		if o.Status == ReconciliationNeeded && !o.maySend(tx.Now) {
			return store.Errorf(store.CodeConflict, "the upstream may have forgotten the Idempotency-Key: reconcile, or resolve")
		}
		if o.Hold != nil && *o.Hold == holdAuth { // what holds one holds all
			if _, err := tx.Exec(`UPDATE partner_operations SET hold_reason = NULL, next_attempt_at_ms = $1 WHERE hold_reason = $2`, tx.NowMS(), holdAuth); err != nil {
				return fmt.Errorf("ending a hold: %w", err)
			}
		}
		return s.goOn(tx, o, `status = CASE status WHEN 'reconciliation_needed' THEN CASE send_state WHEN 'not_sent' THEN 'pending' ELSE 'failed_retryable' END ELSE status END,
			reconciled_at_ms = CASE status WHEN 'reconciliation_needed' THEN $1 ELSE reconciled_at_ms END, replayed_5xx = 0`)
	})
}

// ReconcileRequest has the upstream asked about an operation.
type ReconcileRequest Decision

// Reconcile has the upstream asked about an operation now.
func (s *Service) Reconcile(ctx context.Context, r ReconcileRequest) (Record, error) {
	return s.decide(ctx, Decision(r), "reconcile", func(tx *store.Tx, o *Operation) error {
		if o.Action == ProvisionCustomer {
			return store.Errorf(store.CodeConflict, "a provisioning sends nothing itself: reconcile the child that is stuck")
		}
		return s.goOn(tx, o, `status = 'reconciling', reconciling_since_ms = $1`)
	})
}

// goOn changes an operation that nobody has claimed and that has not ended, and
// has it be due. In the assignments $1 is now.
func (s *Service) goOn(tx *store.Tx, o *Operation, assignments string) error {
	if o.FinishedAt != nil {
		return store.Errorf(store.CodeConflict, "the operation has ended: %s", o.Status)
	}
	if o.lockedUntil.After(tx.Now) {
		return store.Errorf(store.CodeConflict, "the operation is being worked on; try again in a minute")
	}
	if err := notDeleted(tx, o, ""); err != nil {
		return err
	}
	s.wake(tx)
	// An owner whose lease has run out must not come back to it.
	return o.change(tx, `lock_token = lock_token + 1, hold_reason = NULL, next_attempt_at_ms = $1, `+assignments, tx.NowMS())
}

// decide runs a decision and notes it.
func (s *Service) decide(ctx context.Context, d Decision, action string, fn func(*store.Tx, *Operation) error) (record Record, err error) {
	if err := d.check(); err != nil {
		return record, err
	}
	err = s.DB.Write(ctx, func(tx *store.Tx) error {
		o, err := GetOperation(tx, d.OperationID)
		if err != nil {
			return err
		}
		if err := note(tx, o.OperationID, d.Who, action, d.Note); err != nil {
			return err
		}
		if err := fn(tx, o); err != nil {
			return err
		}
		record, err = readRecord(tx, o.OperationID)
		return err
	})
	return record, err
}

// The outcomes of a resolve.
const (
	resolveSucceeded  = "succeeded"
	resolveFailed     = "failed"
	resolveNewVersion = "new_version"
	resolveReplaceKey = "replace_key"
)

// ResolveRequest ends an operation by a person's word.
type ResolveRequest struct {
	OperationID string `path:"id" json:"-"`
	Who         string `json:"who"`
	Note        string `json:"note"`
	// Outcome is what follows:
	//   succeeded    it has happened: the upstream's object is target_id
	//   failed       it has not, and shall not
	//   new_version  it has not, and is to be done by a new operation with a new key
	//   replace_key  of a key without its secret: revoke it, then make another
	Outcome  string `json:"outcome"`
	TargetID string `json:"target_id"`
}

// Resolve ends an operation by a person's word. It never sends anything under a
// key that was used before; a new version is a new operation, approved by who.
func (s *Service) Resolve(ctx context.Context, r ResolveRequest) (Record, error) {
	d := Decision{r.OperationID, r.Who, r.Note}
	if (r.Outcome == resolveSucceeded) != (r.TargetID != "") {
		return Record{}, store.Errorf(store.CodeInvalid, "target_id: the upstream's id, with the outcome succeeded and no other")
	}
	switch r.Outcome {
	case resolveSucceeded:
		return s.decide(ctx, d, "resolve", func(tx *store.Tx, o *Operation) error { return s.resolveSucceeded(ctx, tx, o, r.TargetID) })
	case resolveFailed:
		return s.decide(ctx, d, "resolve", s.resolveFailed)
	case resolveNewVersion:
		return s.decide(ctx, d, "resolve", func(tx *store.Tx, o *Operation) error { return s.renew(tx, o, r.Who) })
	case resolveReplaceKey:
		return s.decide(ctx, d, "resolve", func(tx *store.Tx, o *Operation) error { return s.replaceKey(tx, o, r.Who) })
	}
	return Record{}, store.Errorf(store.CodeInvalid, "outcome: want succeeded, failed, new_version or replace_key")
}

// stuck lets a person decide only what the program has handed over.
func stuck(tx *store.Tx, o *Operation) error {
	if o.Status != ReconciliationNeeded {
		return store.Errorf(store.CodeConflict, "the operation is %s: only what is in the queue (reconciliation_needed) can be resolved", o.Status)
	}
	if o.lockedUntil.After(tx.Now) {
		return store.Errorf(store.CodeConflict, "the operation is being worked on; try again in a minute")
	}
	return nil
}

func (s *Service) resolveSucceeded(ctx context.Context, tx *store.Tx, o *Operation, target string) error {
	if err := stuck(tx, o); err != nil {
		return err
	}
	if o.Action == ProvisionCustomer {
		return store.Errorf(store.CodeConflict, "a provisioning ends with its children: resolve the one that is stuck")
	}
	if !modelgate.ValidID(target) {
		return store.Errorf(store.CodeInvalid, "target_id: want an id of the upstream's")
	}
	if (o.Action == SetLimit || o.Action == SetInitialLimit || o.Action == RevokeKey) && target != o.Intent ||
		(o.Action == FreezeGroup || o.Action == ThawGroup || o.Action == DeleteGroup) && target != groupOf(o) {
		return store.Errorf(store.CodeInvalid, "target_id: the operation is about another object")
	}
	if err := notDeleted(tx, o, target); err != nil {
		return err
	}
	if taken, err := targetTaken(tx, o, target); err != nil || taken {
		return cmp.Or(err, store.Errorf(store.CodeConflict, "target_id: it was made by another operation"))
	}
	s.wake(tx)
	return o.adopt(ctx, tx, s.rules(), modelgate.Answer{TargetID: target})
}

func (s *Service) resolveFailed(tx *store.Tx, o *Operation) error {
	if err := stuck(tx, o); err != nil {
		return err
	}
	s.wake(tx)
	if o.Action != ProvisionCustomer {
		return o.fail(tx, "resolved_failed", "the operator has ended it")
	}
	var open int
	if err := tx.QueryRow(`SELECT COUNT(*) FROM partner_operations WHERE parent_operation_id = $1 AND finished_at_ms IS NULL`, o.OperationID).Scan(&open); err != nil {
		return fmt.Errorf("reading an operation's children: %w", err)
	}
	if open > 0 {
		return store.Errorf(store.CodeConflict, "a child of the provisioning is still open: resolve it first")
	}
	return o.change(tx, `status = 'failed_final', last_error_code = 'resolved_failed', finished_at_ms = $1`, tx.NowMS())
}

// renew makes the next version of an operation that did not happen: what it asks
// for is rendered anew, under a key of its own.
func (s *Service) renew(tx *store.Tx, o *Operation, who string) error {
	if o.Status == ReconciliationNeeded {
		if o.Action == ProvisionCustomer {
			return store.Errorf(store.CodeConflict, "a provisioning sends nothing itself: resolve the child that has failed")
		}
		if err := stuck(tx, o); err != nil {
			return err
		}
		if err := o.fail(tx, "resolved_new_version", "a new version takes its place"); err != nil {
			return err
		}
	} else if o.Status != FailedFinal {
		return store.Errorf(store.CodeConflict, "the operation is %s: a new version takes the place of one that has failed", o.Status)
	}
	in, err := s.nextVersion(tx, o, who)
	if err != nil {
		return err
	}
	in.supersedes, in.approvedBy, in.nextAction = o.OperationID, who, o.nextAction
	s.wake(tx)
	if o.ParentID == nil {
		if _, _, err = accept(tx, in); err == nil && o.movesCredit() {
			err = convergeAfter(tx, o) // the payment waits no more
		}
		return err
	}
	return next(tx, *o.ParentID, phaseBefore[o.Action], in)
}

// phaseBefore is where a provisioning stands while it waits for a child.
var phaseBefore = map[Action]Phase{CreateGroup: PhaseGroup, CreateKey: PhaseKey, RevokeKey: PhaseSecretLost, SetInitialLimit: PhaseLimit}

func (s *Service) nextVersion(tx *store.Tx, o *Operation, who string) (in intent, err error) {
	version, _, err := versionAfter(tx, o.CustomerID, o.Action, o.Intent)
	if err != nil {
		return in, err
	}
	if version != o.IntentVersion+1 {
		return in, store.Errorf(store.CodeConflict, "there is a newer version of the operation")
	}
	account, err := getAccount(tx, o.CustomerID)
	if err != nil || account == nil {
		return in, fmt.Errorf("the account of operation %s: %w", o.OperationID, err) // unreachable: it was opened with the first operation
	}
	switch o.Action {
	case CreateGroup:
		return groupIntent(o.CustomerID, version, s.Models, account.Currency), nil
	case CreateKey:
		group, purpose, err := keySubject(o.Intent)
		return keyIntent(o.CustomerID, group, purpose, version), err
	case RevokeKey:
		return revokeIntent(o.CustomerID, o.Intent, version), nil
	case FreezeGroup, ThawGroup:
		return statusIntent(o.Action, o.CustomerID, groupOf(o), o.Intent, version), nil
	case DeleteGroup:
		return deleteIntent(o.CustomerID, o.Intent, version), mayDelete(tx, o.CustomerID, o.Intent)
	case SetLimit, SetInitialLimit:
		limit, c, err := o.money()
		if err != nil {
			return in, err
		}
		return newLimit(tx, o.Action, o.CustomerID, o.Intent, limit, c, who)
	case TopUpCredit, DebitCredit:
		return nextCredit(tx, o, account)
	}
	return in, store.Errorf(store.CodeConflict, "%s has no new versions", o.Action)
}

// nextCredit is what a payment needs now in place of an operation that has failed:
// the facts may have changed since.
func nextCredit(tx *store.Tx, o *Operation, a *Account) (in intent, err error) {
	p, err := paymentOf(tx, o)
	if err != nil {
		return in, err
	}
	wanted, _, hold, err := p.next(tx, a, true)
	switch {
	case err != nil:
		return in, err
	case hold != "":
		return in, store.Errorf(store.CodeConflict, "the payment waits: %s", holdWords(hold))
	case wanted == nil || wanted.action != o.Action:
		return in, store.Errorf(store.CodeConflict, "the payment does not need this operation any more")
	}
	return *wanted, nil
}

// replaceKey leads out of key_created_local_save_failed: the key that nobody can
// use is revoked, and its successor continues the provisioning.
func (s *Service) replaceKey(tx *store.Tx, o *Operation, who string) error {
	if o.Action != ProvisionCustomer || o.Phase == nil || *o.Phase != PhaseSecretLost || o.Status != ReconciliationNeeded {
		return store.Errorf(store.CodeConflict, "outcome: replace_key is for a provisioning in %s", PhaseSecretLost)
	}
	key, err := usableKey(tx, o.CustomerID, defaultPurpose)
	if err != nil {
		return err
	}
	if key == nil {
		return store.Errorf(store.CodeConflict, "there is no key to replace")
	}
	in, err := newRevoke(tx, o.CustomerID, key.KeyID, true)
	if err != nil {
		return err
	}
	in.approvedBy = who
	s.wake(tx)
	return next(tx, o.OperationID, PhaseSecretLost, in)
}

// ReconcileNow asks the upstream about an operation from this process, beside a
// server that may be running: the claim keeps the two apart. It goes on until the
// operation has to wait.
func (e *Engine) ReconcileNow(ctx context.Context, id string) error {
	for range maxSends {
		worked, err := e.stepOn(ctx, e.DB.BootID+commandOwner, id)
		if err != nil || !worked {
			return err
		}
		o, err := GetOperation(e.DB.Reader(ctx), id)
		if err != nil || !o.open() || o.NextAttemptAt.After(time.Now()) {
			return err
		}
	}
	return nil
}
