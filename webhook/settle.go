package webhook

import (
	"database/sql"
	"errors"
	"fmt"

	"jpintel/store"
)

// fail writes down that a delivery is given up without a request.
func fail(tx *store.Tx, t totals, w *work, reason string) error {
	n, err := tx.Update(`
		UPDATE webhook_deliveries SET status = 'failed', reason = $1, next_attempt_at_ms = NULL, finished_at_ms = $2
		WHERE delivery_seq = $3 AND status = 'pending' AND generation = $4`, reason, tx.NowMS(), w.seq, w.target.generation)
	if err != nil {
		return fmt.Errorf("failing delivery: %w", err)
	}
	t.move(n, StatusPending, StatusFailed)
	return nil
}

// settle writes down what an attempt came to: the delivery moves from pending
// to success, to a later attempt, or to the dead letters.
func settle(tx *store.Tx, t totals, w *work, r Result, to Status, nextMS int64) error {
	var next, finished any
	if to == StatusPending {
		next = nextMS
	} else {
		finished = tx.NowMS()
	}
	n, err := tx.Update(`
		UPDATE webhook_deliveries SET attempt_count = $1, last_status = $2, last_latency_ms = $3, last_error_category = $4,
		  status = $5, next_attempt_at_ms = $6, finished_at_ms = $7, schedule_base = $8
		WHERE delivery_seq = $9 AND attempt_count = $10 AND status = 'pending' AND generation = $11`,
		w.attempts+1, store.Nullable(r.Status), r.Duration.Milliseconds(), string(r.Category), string(to), next, finished, w.scheduleBase, w.seq, w.attempts, w.target.generation)
	if err != nil {
		return fmt.Errorf("settling delivery: %w", err)
	}
	t.move(n, StatusPending, to)
	if n == 0 {
		err = settleLate(tx, t, w, r)
	}
	if err != nil {
		return err
	}
	return addAttempt(tx, w, r)
}

// settleLate is settle for a delivery that was failed while its request was
// under way, and may have been replayed since: it keeps that state, unless the
// receiver has accepted it. The schedule of a replay begins after this attempt.
func settleLate(tx *store.Tx, t totals, w *work, r Result) error {
	var from Status
	err := tx.QueryRow(`
		SELECT status FROM webhook_deliveries WHERE delivery_seq = $1 AND attempt_count = $2 AND status IN ('failed', 'pending')`, w.seq, w.attempts).Scan(&from)
	if errors.Is(err, sql.ErrNoRows) {
		return errors.New("settling delivery: its attempt is written down already") // unreachable while one process sends
	}
	if err != nil {
		return fmt.Errorf("settling delivery: %w", err)
	}
	to := from
	if r.OK() {
		to = StatusSuccess
	}
	if _, err := tx.Exec(`
		UPDATE webhook_deliveries SET attempt_count = $1, last_status = $2, last_latency_ms = $3, last_error_category = $4,
		  status = $5, reason = CASE WHEN $5 = 'failed' THEN reason END,
		  schedule_base = CASE WHEN $5 = 'pending' THEN $1 ELSE schedule_base END,
		  next_attempt_at_ms = CASE WHEN $5 = 'pending' THEN next_attempt_at_ms END,
		  finished_at_ms = CASE WHEN $5 = 'pending' THEN NULL ELSE COALESCE(finished_at_ms, $6) END
		WHERE delivery_seq = $7`,
		w.attempts+1, store.Nullable(r.Status), r.Duration.Milliseconds(), string(r.Category), string(to), tx.NowMS(), w.seq); err != nil {
		return fmt.Errorf("settling delivery: %w", err)
	}
	t.move(1, from, to)
	return nil
}

func addAttempt(tx *store.Tx, w *work, r Result) error {
	_, err := tx.Exec(`
		INSERT INTO webhook_attempts (delivery_seq, attempt, started_at_ms, duration_ms, status, error_category, error_detail, response_excerpt, remote_addr, blocked_reason)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		w.seq, w.attempts+1, r.StartedAt.UnixMilli(), r.Duration.Milliseconds(), store.Nullable(r.Status), string(r.Category), r.Detail, r.Excerpt, r.RemoteAddr, string(r.Reason))
	if err != nil {
		return fmt.Errorf("adding attempt: %w", err)
	}
	return nil
}
