package billing

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/store"
)

// keepTrying is how long to wait before a result is written once more, where the
// store did not take it.
const keepTrying = time.Second

// send makes one request of an operation: recorded before, written down after,
// and no transaction in between.
func (e *Engine) send(ctx context.Context, o *Operation) error {
	var attempt int
	err := e.DB.Write(ctx, func(tx *store.Tx) (err error) {
		attempt, err = o.begin(tx)
		return err
	})
	if store.CodeOf(err) == store.CodeUnavailable {
		e.alarm(o, "store_unavailable") // nothing was sent
	}
	if err != nil {
		return err
	}
	o.AttemptCount++
	started := time.Now()
	until := o.lockedUntil.Add(-leaseMargin)
	// A stop waits for it: whoever cuts it off has to find out what became of it.
	sending, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
	defer cancel()
	out := e.Client.Send(sending, o.request, until)
	e.Log.Info("operation_attempt", "operation_id", o.OperationID, "action", string(o.Action), "customer_id_hash", e.DB.Keys.HashID(o.CustomerID),
		"attempt", attempt, "outcome", string(out.Class), "status", out.Status, "error_code", out.Code, "upstream_request_id", out.RequestID,
		"replayed", out.Replayed, "duration_ms", time.Since(started).Milliseconds())
	return e.finish(ctx, o, attempt, out)
}

// finish writes down what a request came to. It insists while the lease holds:
// the answer is in memory only, and a new key's secret is shown once.
func (e *Engine) finish(ctx context.Context, o *Operation, attempt int, out modelgate.Outcome) error {
	for {
		err := e.write(ctx, func(tx *store.Tx) error { return e.settle(ctx, tx, o, attempt, out) })
		if errors.Is(err, errLeaseLost) {
			return errors.Join(err, e.write(ctx, func(tx *store.Tx) error { return keepLate(tx, o, attempt, out) }))
		}
		if store.CodeOf(err) != store.CodeUnavailable || time.Now().After(o.lockedUntil) {
			return err
		}
		e.alarm(o, "result_not_written")
		time.Sleep(keepTrying)
	}
}

// settle is the one transition that an outcome leads to.
func (e *Engine) settle(ctx context.Context, tx *store.Tx, o *Operation, attempt int, out modelgate.Outcome) error {
	if err := finishAttempt(tx, o.OperationID, attempt, out); err != nil {
		return err
	}
	next, inTime := e.nextTry(o, tx.Now, out.RetryAfter)
	if !inTime {
		next = tx.Now // there is no waiting for it: the next step looks instead
	}
	switch out.Class {
	case modelgate.Succeeded:
		return o.succeed(ctx, tx, e.Rules.rules(), out)
	case modelgate.Malformed:
		return o.doubt(tx, out, tx.Now)
	case modelgate.NotSent:
		return e.orLook(tx, o, out, inTime, func() error { return o.notSent(tx, out, next) })
	case modelgate.NotBegun:
		return e.orLook(tx, o, out, inTime, func() error { return o.notBegun(tx, out, next) })
	case modelgate.Replayed5xx:
		return o.replayedFailure(tx, out, next)
	case modelgate.Refused:
		if doubt, err := o.inDoubt(tx); err != nil {
			return err
		} else if doubt || o.goneAlready(out) {
			return o.refuseInDoubt(tx, out, tx.Now)
		}
		e.alarm(o, out.Code)
		return o.refuse(tx, out)
	case modelgate.Auth:
		e.alarm(o, holdAuth)
		return o.holdAuth(tx, out)
	case modelgate.Wallet:
		if o.movesCredit() && out.Replayed {
			return o.refusedBefore(tx)
		}
		e.alarm(o, holdWallet)
		return o.holdWallet(tx, out)
	case modelgate.Redirected:
		e.alarm(o, holdRedirect)
		return o.holdRedirect(tx, out)
	case modelgate.KeyReused:
		e.alarm(o, out.Code)
		return o.stopReused(tx, out)
	case modelgate.RefConflict:
		return o.refTaken(tx, out)
	case modelgate.Unclear:
		return e.unclear(tx, o, out, next)
	}
	return e.orLook(tx, o, out, inTime, func() error { return o.unknown(tx, out, next) })
}

// orLook is retry, or T17 where the next send would come too near to the end of
// the window.
func (e *Engine) orLook(tx *store.Tx, o *Operation, out modelgate.Outcome, inTime bool, retry func() error) error {
	if inTime || o.Status == Reconciling {
		return retry()
	}
	more := ``
	if out.Class == modelgate.Unknown {
		more = `unknown_count = unknown_count + 1, `
	}
	return o.toReconciling(tx, more, out, tx.Now)
}

// unclear tries a conflict that does not say which a few times; then a person
// has to find out.
func (e *Engine) unclear(tx *store.Tx, o *Operation, out modelgate.Outcome, next time.Time) error {
	var n int
	err := tx.QueryRow(`SELECT COUNT(*) FROM operation_attempts WHERE operation_id = $1 AND outcome = $2`, o.OperationID, string(modelgate.Unclear)).Scan(&n)
	if err != nil {
		return fmt.Errorf("counting attempts: %w", err)
	}
	if n <= maxUnclear {
		return o.notBegun(tx, out, next)
	}
	e.alarm(o, string(modelgate.Unclear))
	return o.escalate(tx, string(modelgate.Unclear), "the upstream answers 409 and does not say why")
}

// lateResult is an answer that nobody was waiting for any more.
type lateResult struct {
	seq, token int64
	status     int
	sealed     []byte
}

// readLate looks at what earlier owners of the operation have left. An answer
// that settles it is as good as one of today.
func (e *Engine) readLate(ctx context.Context, o *Operation) (done bool, err error) {
	rows, err := e.DB.Reader(ctx).Query(`
		SELECT late_seq, lock_token, http_status, sealed_body FROM late_results WHERE operation_id = $1 AND read_at_ms IS NULL ORDER BY late_seq`, o.OperationID)
	if err != nil {
		return false, fmt.Errorf("reading late answers: %w", err)
	}
	found, err := store.Collect(rows, func(r *sql.Rows) (l lateResult, err error) { return l, r.Scan(&l.seq, &l.token, &l.status, &l.sealed) })
	if err != nil {
		return false, fmt.Errorf("reading late answers: %w", err)
	}
	for _, l := range found {
		body, err := e.DB.Keys.Unseal(l.sealed, lateContext(o.OperationID, l.token))
		if err != nil {
			return false, fmt.Errorf("a late answer to operation %s: %w", o.OperationID, err)
		}
		out := modelgate.Judge(o.request, l.status, body)
		done = out.Class == modelgate.Succeeded
		if err := e.write(ctx, func(tx *store.Tx) error { return e.useLate(ctx, tx, o, l, out) }); err != nil || done {
			return done, err
		}
	}
	return false, nil
}

func (e *Engine) useLate(ctx context.Context, tx *store.Tx, o *Operation, l lateResult, out modelgate.Outcome) error {
	if _, err := tx.Exec(`UPDATE late_results SET read_at_ms = $1 WHERE late_seq = $2`, tx.NowMS(), l.seq); err != nil {
		return fmt.Errorf("reading a late answer: %w", err)
	}
	f := finding{surface: "late_result", query: o.request.Method + " " + o.request.Path, status: l.status, sha256: out.SHA256, verdict: verdictNone}
	if out.Class == modelgate.Succeeded {
		f.verdict, f.ids = verdictSucceeded, []string{out.Answer.TargetID}
	}
	if err := f.write(tx, o.OperationID); err != nil || out.Class != modelgate.Succeeded {
		return err
	}
	return o.succeed(ctx, tx, e.Rules.rules(), out)
}
