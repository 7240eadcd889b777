package webhook

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"time"

	"jpintel/store"
)

// failing is since when a subscription has had nothing but failures: since the
// first one after its last success, or after it was enabled. Our own faults are
// none, and time counts while nothing is sent too.
type failing struct {
	sinceMS int64 // 0: its last result was no failure
	inFile  int64
}

// begin notes a failure.
func (f *failing) begin(tx *store.Tx) {
	if f.sinceMS == 0 {
		f.sinceMS = tx.NowMS()
	}
}

// end notes a success.
func (f *failing) end() { f.sinceMS = 0 }

// over reports whether the failures have gone on for as long as a limit; 0 is
// none.
func (f *failing) over(limit time.Duration, now time.Time) bool {
	return limit > 0 && f.sinceMS != 0 && now.Sub(store.FromMS(f.sinceMS)) >= limit
}

// write writes down where the failures began or ended, which is rare.
func (f *failing) write(tx *store.Tx, sub int64) error {
	if f.sinceMS == f.inFile {
		return nil
	}
	if _, err := tx.Exec(`UPDATE webhook_subscriptions SET failing_since_ms = $1, failing_warned_at_ms = NULL WHERE sub_seq = $2`, store.Nullable(f.sinceMS), sub); err != nil {
		return fmt.Errorf("updating subscription: %w", err)
	}
	return nil
}

const (
	// warnEvery is the longest pause between two looks for subscriptions whose
	// owners must be warned.
	warnEvery = time.Minute
	// warnRows is how many owners one step warns.
	warnRows = 100
)

// warnings tells owners, once in each row of failures, that their subscription
// has only failed for so long. It looks by time and not at results: after the
// last attempt there may be none for long.
type warnings struct {
	db      *store.DB
	log     *slog.Logger
	notices Notices
	after   time.Duration // 0: nobody is warned

	next time.Time // when it looks again
}

// unwarned is a subscription whose owner must be warned.
type unwarned struct {
	seq         int64
	sub         noticed
	failingFrom int64 // ms
}

// warnQuery walks an index that has only what is not warned of.
const warnQuery = `
	SELECT sub_seq, subscription_id, customer_id, url, failing_since_ms FROM webhook_subscriptions
	WHERE failing_since_ms <= $1 AND failing_warned_at_ms IS NULL AND disabled_at_ms IS NULL ORDER BY failing_since_ms LIMIT $2`

// step warns the owners whose time has come. It is the worker's alone.
func (w *warnings) step(ctx context.Context) (more bool, err error) {
	now := time.Now()
	if w.after == 0 || now.Before(w.next) {
		return false, nil
	}
	found, err := w.read(w.db.Reader(ctx), now)
	if err != nil {
		return false, err
	}
	if len(found) > 0 {
		err = w.db.WriteBackground(ctx, func(tx *store.Tx) (err error) {
			if found, err = w.read(tx, tx.Now); err != nil { // what holds now
				return err
			}
			return w.warn(tx, found)
		})
	}
	if err != nil {
		return false, err
	}
	for _, f := range found {
		w.log.Warn("webhook_subscription_failing", "subscription_id", f.sub.subscriptionID,
			"customer_id_hash", w.db.Keys.HashID(f.sub.customerID), "failing_since", store.FromMS(f.failingFrom))
	}
	if len(found) < warnRows {
		w.next = now.Add(min(warnEvery, w.after))
	}
	return len(found) == warnRows, nil
}

func (w *warnings) read(q store.Querier, now time.Time) ([]unwarned, error) {
	rows, err := q.Query(warnQuery, now.Add(-w.after).UnixMilli(), warnRows)
	if err != nil {
		return nil, fmt.Errorf("looking for failing subscriptions: %w", err)
	}
	return store.Collect(rows, func(rows *sql.Rows) (unwarned, error) {
		var f unwarned
		err := rows.Scan(&f.seq, &f.sub.subscriptionID, &f.sub.customerID, &f.sub.url, &f.failingFrom)
		return f, err
	})
}

func (w *warnings) warn(tx *store.Tx, found []unwarned) error {
	for _, f := range found {
		if _, err := tx.Exec(`UPDATE webhook_subscriptions SET failing_warned_at_ms = $1 WHERE sub_seq = $2`, tx.NowMS(), f.seq); err != nil {
			return fmt.Errorf("noting a warning: %w", err)
		}
		if err := w.notices.failing(tx, f.sub, store.FromMS(f.failingFrom)); err != nil {
			return err
		}
	}
	return nil
}
