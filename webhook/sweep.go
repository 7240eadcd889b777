package webhook

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"jpintel/store"
)

// sweepRows is how many deliveries one step of a sweep writes down.
const sweepRows = 500

// sweepStep writes down, in steps in the background, what reads already say:
// pending deliveries of a subscription that was disabled are failed. It runs
// one step and reports whether there may be more.
func sweepStep(ctx context.Context, db *store.DB) (more bool, err error) {
	if any, err := exists(db.Reader(ctx), `SELECT 1 FROM webhook_subscriptions WHERE sweep = 1 LIMIT 1`); err != nil || !any {
		return false, err
	}
	err = db.WriteBackground(ctx, func(tx *store.Tx) error {
		var sub, generation int64
		err := tx.QueryRow(`SELECT sub_seq, generation FROM webhook_subscriptions WHERE sweep = 1 ORDER BY sub_seq LIMIT 1`).Scan(&sub, &generation)
		if errors.Is(err, sql.ErrNoRows) {
			more = false
			return nil
		}
		if err != nil {
			return fmt.Errorf("sweeping: %w", err)
		}
		more = true
		return sweep(tx, sub, generation)
	})
	return more && err == nil, err
}

// sweepQuery walks the due ones, whose index has pending deliveries only.
const sweepQuery = `
	UPDATE webhook_deliveries SET status = 'failed', reason = $1, next_attempt_at_ms = NULL, finished_at_ms = $2
	WHERE delivery_seq IN (
	  SELECT delivery_seq FROM webhook_deliveries
	  WHERE sub_seq = $3 AND status = 'pending' AND generation < $4 ORDER BY next_attempt_at_ms LIMIT $5)`

func sweep(tx *store.Tx, sub, generation int64) error {
	n, err := tx.Update(sweepQuery,
		reasonDisabled, tx.NowMS(), sub, generation, sweepRows)
	if err != nil {
		return fmt.Errorf("sweeping: %w", err)
	}
	moved := totals{}
	moved.move(n, StatusPending, StatusFailed)
	if err := moved.write(tx); err != nil || n == sweepRows {
		return err
	}
	if _, err := tx.Exec(`UPDATE webhook_subscriptions SET sweep = 0 WHERE sub_seq = $1`, sub); err != nil {
		return fmt.Errorf("sweeping: %w", err)
	}
	return nil
}

// exists reports whether a query finds a row. Steps ask it on the read pool
// first: most turns of the worker have nothing to do, and need no transaction
// to find that out.
func exists(q store.Querier, query string, args ...any) (bool, error) {
	var one int
	err := q.QueryRow(query, args...).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}
