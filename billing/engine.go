package billing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/store"
)

// Engine brings operations forward, one claim at a time. The worker drives it
// in the server; a command drives one beside it, on the same file.
type Engine struct {
	DB     *store.DB
	Client *modelgate.Client
	Log    *slog.Logger
	Rules  *Service // what success brings about
	// RetryBase is the first step of the backoff. Default DefaultRetryBase.
	RetryBase time.Duration
	// Settle is how long after a send the upstream may still come to show its
	// effect. Default DefaultSettle.
	Settle time.Duration
	// Jitter is for tests: a number from 0 to most. Default: a random one.
	Jitter func(most int64) int64

	apply applyFunc // nil: the rules' applyPayment
}

// Step claims one operation, as the owner given, and brings it one step forward.
// It reports whether there was one.
func (e *Engine) Step(ctx context.Context, owner string) (worked bool, err error) {
	if found, err := due(ctx, e.DB); err != nil || !found {
		return false, err
	}
	return e.stepOn(ctx, owner, "")
}

// stepOn is Step on one operation; "": whichever has waited longest.
func (e *Engine) stepOn(ctx context.Context, owner, id string) (worked bool, err error) {
	var o *Operation
	if err := e.DB.Write(ctx, func(tx *store.Tx) (err error) {
		o, err = claim(tx, owner, id)
		return err
	}); err != nil || o == nil {
		return false, err
	}
	err = e.process(ctx, o)
	if errors.Is(err, errGivenBack) {
		return true, nil
	}
	if errors.Is(err, errLeaseLost) { // somebody else goes on with it
		e.Log.Warn("operation_lease_lost", "operation_id", o.OperationID)
		return true, nil
	}
	return true, err
}

// process decides what a claimed operation needs.
func (e *Engine) process(ctx context.Context, o *Operation) error {
	ctx, cancel := context.WithDeadline(ctx, o.lockedUntil.Add(-leaseMargin)) // of what is read
	defer cancel()
	control, err := store.ReadControl(e.DB.Reader(ctx))
	if err != nil {
		return err
	}
	// A payment's operation may be younger than the restored file and be about what
	// was done before: the payment's events come again.
	o.behind = o.reconciledAt.Before(control.BillingRecovered) && (o.CreatedAt.Before(control.BillingRecovered) || o.movesCredit())
	if done, err := e.readLate(ctx, o); done || err != nil {
		return err
	}
	if print, err := fingerprint(o.request); err != nil || o.Fingerprint == nil || print != *o.Fingerprint {
		e.alarm(o, "local_fingerprint_mismatch")
		return e.write(ctx, func(tx *store.Tx) error { return o.stopMismatch(tx) })
	}
	if o.Status == Reconciling {
		return e.reconcile(ctx, o)
	}
	code, message, err := e.mustReconcile(ctx, o)
	if err != nil {
		return err
	}
	if code != "" {
		return e.write(ctx, func(tx *store.Tx) error { return o.giveUpSending(tx, code, message) })
	}
	if o.Action == DeleteGroup {
		return e.sendDeletion(ctx, o)
	}
	return e.send(ctx, o)
}

// mustReconcile says why an operation may not be sent, or "". Where that cannot
// be known now, the operation is given back, and err is errGivenBack.
func (e *Engine) mustReconcile(ctx context.Context, o *Operation) (code, message string, err error) {
	if o.behind {
		return "recovery", "the file was restored: the upstream may know more of this than we do", nil
	}
	sends, err := sendsSince(e.DB.Reader(ctx), o)
	if err != nil {
		return "", "", err
	}
	if sends >= maxSends {
		return "retries_exhausted", fmt.Sprintf("%d sends have not settled it", sends), nil
	}
	inWindow, err := e.inWindow(ctx, o)
	if err == nil && !inWindow {
		return "replay_window_over", "the upstream may have forgotten the Idempotency-Key by now", nil
	}
	return "", "", err
}

// sendsSince counts the sends that the upstream has not been asked about since.
func sendsSince(q store.Querier, o *Operation) (n int, err error) {
	err = q.QueryRow(`
		SELECT COUNT(*) FROM operation_attempts WHERE operation_id = $1 AND started_at_ms > $2 AND COALESCE(outcome, '') <> $3`,
		o.OperationID, max(o.reconciledAt.UnixMilli(), 0), string(modelgate.Auth)).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("counting attempts: %w", err)
	}
	return n, nil
}

// clockDoubt is how old an operation's first send has to be for our own clock to
// be held against the upstream's before it is sent again.
const clockDoubt = time.Hour

// inWindow reports whether the key still protects a send: by our clock and,
// where that could be wrong by enough to matter, by the upstream's too.
func (e *Engine) inWindow(ctx context.Context, o *Operation) (bool, error) {
	now := time.Now()
	if !o.maySend(now) {
		return false, nil
	}
	if o.FirstSentAt == nil || now.Sub(*o.FirstSentAt) < clockDoubt && !now.Before(*o.FirstSentAt) {
		return true, nil
	}
	found, err := e.Client.Wallet(ctx)
	if err != nil && found.Status == 0 { // a send would not get through either
		e.Log.Warn("operation_waits", "operation_id", o.OperationID, "action", string(o.Action), "code", "upstream_unreachable")
		return false, e.giveBack(ctx, o, now.Add(e.backoff(o.AttemptCount)))
	}
	if found.Date.IsZero() {
		return true, nil
	}
	// Where the upstream has not come to our first send yet, our clock was ahead
	// then, and the deadline is too late.
	return o.maySend(found.Date) && !found.Date.Before(o.FirstSentAt.Add(-clockDoubt)), nil
}

// giveBack releases the claim until then, and returns errGivenBack for whoever
// was about to use it.
func (e *Engine) giveBack(ctx context.Context, o *Operation, until time.Time) error {
	if err := e.write(ctx, func(tx *store.Tx) error { return o.release(tx, until) }); err != nil {
		return err
	}
	return errGivenBack
}

// errGivenBack ends a step whose operation has to wait.
var errGivenBack = errors.New("the operation was given back")

// write writes although the context may be over: what is known now must not be
// lost because the program stops. It wakes whoever may go on.
func (e *Engine) write(ctx context.Context, fn func(*store.Tx) error) error {
	return e.DB.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		e.Rules.wake(tx)
		return nil
	})
}

// alarm is a line of the log that somebody has to look at.
func (e *Engine) alarm(o *Operation, code string) {
	e.Log.Error("operation_needs_attention", "operation_id", o.OperationID, "action", string(o.Action), "customer_id_hash", e.DB.Keys.HashID(o.CustomerID), "code", code)
}
