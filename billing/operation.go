package billing

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/billing/money"
	"jpintel/store"
)

// Action is what an operation does.
type Action string

// The actions of this version.
const (
	ProvisionCustomer Action = "provision_customer" // the parent of the next three
	CreateGroup       Action = "create_group"
	CreateKey         Action = "create_key"
	SetInitialLimit   Action = "set_initial_limit"
	SetLimit          Action = "set_limit"
	TopUpCredit       Action = "top_up_credit" // what a payment credits
	DebitCredit       Action = "debit_credit"  // an adjustment of that: a negative amount takes credit back, a positive one gives it again
	RevokeKey         Action = "revoke_key"
	FreezeGroup       Action = "freeze_group"
	ThawGroup         Action = "thaw_group"
	DeleteGroup       Action = "delete_group" // of a duplicate
)

// Status is where an operation stands. The migration tells what each means.
type Status string

// The states. Succeeded and FailedFinal are the last ones.
const (
	Pending              Status = "pending"
	Succeeded            Status = "succeeded"
	FailedRetryable      Status = "failed_retryable"
	FailedFinal          Status = "failed_final"
	Reconciling          Status = "reconciling"
	ReconciliationNeeded Status = "reconciliation_needed"
)

// Valid reports whether s is a state.
func (s Status) Valid() bool {
	switch s {
	case Pending, Succeeded, FailedRetryable, FailedFinal, Reconciling, ReconciliationNeeded:
		return true
	}
	return false
}

// Phase is how far a provision_customer has come.
type Phase string

// The phases, in order, and the two from which only the operator leads on.
const (
	PhaseGroup       Phase = "pending_create_group"
	PhaseKey         Phase = "group_created_key_pending"
	PhaseLimit       Phase = "key_created_limit_pending"
	PhaseProvisioned Phase = "provisioned"
	PhaseSecretLost  Phase = "key_created_local_save_failed" // the key is there, its secret is not
	PhaseBlocked     Phase = "blocked"                       // a child has failed for good
)

// Reasons for which an operation is held.
const (
	holdAuth     = "upstream_auth"      // our own key is not accepted: everything waits
	holdWallet   = "partner_wallet_low" // the partner's wallet is empty
	holdRedirect = "upstream_redirect"  // the upstream sends us elsewhere
)

// Operation is one change of the outside world, as it stands.
type Operation struct {
	OperationID   string     `json:"operation_id"`
	ParentID      *string    `json:"parent_operation_id"`
	CustomerID    string     `json:"customer_id"`
	Action        Action     `json:"action"`
	Intent        string     `json:"intent"`
	IntentVersion int64      `json:"intent_version"`
	Status        Status     `json:"status"`
	Phase         *Phase     `json:"phase"` // of a parent
	Key           *string    `json:"idempotency_key"`
	Fingerprint   *string    `json:"request_fingerprint"`
	SendState     string     `json:"send_state"`
	AttemptCount  int        `json:"attempt_count"`
	UnknownCount  int        `json:"unknown_count"`
	NextAttemptAt time.Time  `json:"next_attempt_at"` // of one that is open
	FirstSentAt   *time.Time `json:"first_sent_at"`
	Deadline      *time.Time `json:"replay_deadline"`
	RequestID     *string    `json:"upstream_request_id"`
	TargetID      *string    `json:"target_id"`
	Amount        *string    `json:"amount"`
	Currency      *string    `json:"currency"`
	Hold          *string    `json:"hold_reason"`
	ErrorCode     *string    `json:"last_error_code"`
	ErrorMessage  *string    `json:"last_error_message"`
	ApprovedBy    *string    `json:"approved_by"`
	Compensates   *string    `json:"compensates_operation_id"`
	Supersedes    *string    `json:"supersedes_operation_id"`
	CreatedAt     time.Time  `json:"created_at"`
	UpdatedAt     time.Time  `json:"updated_at"`
	FinishedAt    *time.Time `json:"finished_at"`

	seq              int64
	lockToken        int64
	lockedUntil      time.Time // zero: nobody has it
	request          modelgate.Request
	externalRef      string
	nextAction       Action
	replayed5xx      int
	reconcilingSince time.Time // zero: it is not
	reconciledAt     time.Time // zero: never
	behind           bool      // the file was restored since: the upstream may know more of it than we do
}

const operationColumns = `operation_seq, operation_id, parent_operation_id, customer_id, action, intent, intent_version, status, phase, idempotency_key,
	request_fingerprint, send_state, attempt_count, unknown_count, next_attempt_at_ms, first_sent_at_ms, replay_deadline_ms, model_gate_request_id,
	target_public_id, amount, currency, hold_reason, last_error_code, last_error_message, approved_by, compensates_operation_id, supersedes_operation_id,
	created_at_ms, updated_at_ms, finished_at_ms, lock_token, locked_until_ms, COALESCE(request_method, ''), COALESCE(request_path, ''), request_body,
	COALESCE(external_ref, ''), COALESCE(next_action, ''), replayed_5xx, reconciling_since_ms, reconciled_at_ms`

func scanOperation(row interface{ Scan(...any) error }) (*Operation, error) {
	var o Operation
	var next, created, updated int64
	var first, deadline, finished, locked, since, reconciled sql.NullInt64
	err := row.Scan(&o.seq, &o.OperationID, &o.ParentID, &o.CustomerID, &o.Action, &o.Intent, &o.IntentVersion, &o.Status, &o.Phase, &o.Key,
		&o.Fingerprint, &o.SendState, &o.AttemptCount, &o.UnknownCount, &next, &first, &deadline, &o.RequestID,
		&o.TargetID, &o.Amount, &o.Currency, &o.Hold, &o.ErrorCode, &o.ErrorMessage, &o.ApprovedBy, &o.Compensates, &o.Supersedes,
		&created, &updated, &finished, &o.lockToken, &locked, &o.request.Method, &o.request.Path, &o.request.Body,
		&o.externalRef, &o.nextAction, &o.replayed5xx, &since, &reconciled)
	if err != nil {
		return nil, err
	}
	o.NextAttemptAt, o.CreatedAt, o.UpdatedAt = store.FromMS(next), store.FromMS(created), store.FromMS(updated)
	o.FirstSentAt, o.Deadline, o.FinishedAt = instant(first), instant(deadline), instant(finished)
	o.lockedUntil, o.reconcilingSince, o.reconciledAt = orZero(locked), orZero(since), orZero(reconciled)
	if o.Key != nil {
		o.request.Key = *o.Key
	}
	return &o, nil
}

func instant(ms sql.NullInt64) *time.Time {
	if !ms.Valid {
		return nil
	}
	at := store.FromMS(ms.Int64)
	return &at
}

func orZero(ms sql.NullInt64) time.Time {
	if at := instant(ms); at != nil {
		return *at
	}
	return time.Time{}
}

// GetOperation reads an operation.
func GetOperation(q store.Querier, id string) (*Operation, error) {
	o, err := scanOperation(q.QueryRow(`SELECT `+operationColumns+` FROM partner_operations WHERE operation_id = $1`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, store.Errorf(store.CodeNotFound, "operation %s not found", id)
	}
	if err != nil {
		return nil, fmt.Errorf("reading an operation: %w", err)
	}
	return o, nil
}

// findIntent reads the operation of an intent; nil where there is none.
func findIntent(q store.Querier, customer string, action Action, intent string, version int64) (*Operation, error) {
	o, err := scanOperation(q.QueryRow(`
		SELECT `+operationColumns+` FROM partner_operations WHERE customer_id = $1 AND action = $2 AND intent = $3 AND intent_version = $4`,
		customer, action, intent, version))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for an operation: %w", err)
	}
	return o, nil
}

// open reports whether the operation can still go on by itself.
func (o *Operation) open() bool {
	return o.Status == Pending || o.Status == FailedRetryable || o.Status == Reconciling
}

// code is the code of the last error; "": there was none.
func (o *Operation) code() string {
	if o.ErrorCode == nil {
		return ""
	}
	return *o.ErrorCode
}

// movesCredit reports whether the operation is one of a payment's.
func (o *Operation) movesCredit() bool { return o.Action == TopUpCredit || o.Action == DebitCredit }

// maySend reports whether a send at this time is still under the key's
// protection: the upstream forgets keys after a while, and would do it again.
func (o *Operation) maySend(now time.Time) bool { return o.Deadline == nil || now.Before(*o.Deadline) }

// money reads the operation's amount.
func (o *Operation) money() (a money.Amount, c money.Currency, err error) {
	if o.Amount == nil || o.Currency == nil {
		return a, c, fmt.Errorf("operation %s has no amount", o.OperationID)
	}
	a, err = money.ParseSigned(*o.Amount)
	return a, money.Currency(*o.Currency), err
}

// versionAfter is the version of the next operation with an intent, and whether
// an earlier one is still open.
func versionAfter(q store.Querier, customer string, action Action, subject string) (version int64, open bool, err error) {
	err = q.QueryRow(`
		SELECT COALESCE(MAX(intent_version), 0) + 1, COALESCE(SUM(status NOT IN ('succeeded', 'failed_final')), 0) > 0 FROM partner_operations
		WHERE customer_id = $1 AND action = $2 AND intent = $3`, customer, string(action), subject).Scan(&version, &open)
	if err != nil {
		return 0, false, fmt.Errorf("reading the version of a %s: %w", action, err)
	}
	return version, open, nil
}
