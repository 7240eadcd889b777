package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"jpintel/store"
	"jpintel/webhook/mail"
)

const (
	// retainEvery is the pause between two passes over what has expired.
	retainEvery = 10 * time.Minute
	// retainRows is how many rows a step of a pass looks at, and so the most
	// that it deletes: the door is free again in milliseconds.
	retainRows = 50
	// retainRest is the longest rest after a step. It rests as long as the step
	// took, its wait for the door included, so a busy door is asked for less often.
	retainRest = 20 * time.Millisecond
	// vacuumPages is how many free pages a step gives back to the file system.
	vacuumPages = 100
)

// retention deletes what has expired: finished deliveries with their attempts,
// then events that no delivery is left of, then mails as old as deliveries.
// Nothing pending and nothing unpublished is ever deleted. A pass walks in the
// order of creation, which is the order of age, in steps in the background lane,
// and ends at the first row that is too young; so it needs no index of its own.
type retention struct {
	db         *store.DB
	log        *slog.Logger
	deliveries time.Duration
	events     time.Duration

	next    time.Time // when the next pass begins
	phase   int       // of the pass under way
	cursor  int64     // in the phase's table
	deleted int64
}

// The phases of a pass.
const (
	retainIdle = iota
	retainDeliveries
	retainEvents
	retainMails
	retainPages
)

// step runs one step of the pass that is under way, or begins one when it is
// time. It is the worker's alone.
func (r *retention) step(ctx context.Context) (more bool, err error) {
	if r.phase == retainIdle {
		if r.deliveries == 0 || time.Now().Before(r.next) {
			return false, nil
		}
		r.phase, r.cursor, r.deleted = retainDeliveries, 0, 0
	}
	var read, deleted int64
	began := time.Now()
	err = r.db.WriteBackground(ctx, func(tx *store.Tx) (err error) {
		switch r.phase {
		case retainDeliveries:
			read, deleted, err = r.deleteDeliveries(tx)
		case retainEvents:
			read, deleted, err = r.deleteEvents(tx)
		case retainMails:
			deleted, err = mail.DeleteFinished(tx, tx.Now.Add(-r.deliveries), retainRows)
			read = deleted
		default:
			read, err = giveBackPages(tx)
		}
		return err
	})
	if err != nil {
		return false, err // the next tick tries this step again
	}
	r.deleted += deleted
	if read == 0 {
		r.advance()
	}
	rest(ctx, min(time.Since(began), retainRest))
	return r.phase != retainIdle, nil
}

// rest leaves the door to others.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// advance goes to the next phase. Pages are given back only after something
// was deleted.
func (r *retention) advance() {
	r.phase, r.cursor = r.phase+1, 0
	if r.phase == retainPages && r.deleted > 0 {
		r.log.Info("retention", "deleted", r.deleted)
		return
	}
	if r.phase >= retainPages {
		r.phase, r.next = retainIdle, time.Now().Add(retainEvery)
	}
}

// window finds the next rows of a table that are old enough: from the cursor
// to the last of them, 0 when there are none.
func (r *retention) window(tx *store.Tx, table, key string, before int64) (last int64, err error) {
	err = tx.QueryRow(`
		SELECT COALESCE(MAX(k), 0) FROM (
		  SELECT `+key+` AS k, created_at_ms AS at FROM `+table+` WHERE `+key+` > $1 ORDER BY `+key+` LIMIT $2
		) WHERE at < $3`, r.cursor, retainRows, before).Scan(&last)
	if err != nil {
		return 0, fmt.Errorf("looking for what has expired: %w", err)
	}
	return last, nil
}

func (r *retention) deleteDeliveries(tx *store.Tx) (read, deleted int64, err error) {
	before := tx.Now.Add(-r.deliveries).UnixMilli()
	last, err := r.window(tx, "webhook_deliveries", "delivery_seq", before)
	if err != nil || last == 0 {
		return 0, 0, err
	}
	const expired = `delivery_seq > $1 AND delivery_seq <= $2 AND status <> 'pending' AND finished_at_ms < $3`
	moved := totals{}
	for _, status := range []Status{StatusSuccess, StatusFailed, StatusDeadLetter} {
		var n int64
		if err := tx.QueryRow(`SELECT COUNT(*) FROM webhook_deliveries WHERE `+expired+` AND status = $4`, r.cursor, last, before, string(status)).Scan(&n); err != nil {
			return 0, 0, fmt.Errorf("counting what has expired: %w", err)
		}
		moved.move(n, status, "")
		deleted += n
	}
	if _, err := tx.Exec(`DELETE FROM webhook_attempts WHERE delivery_seq IN (SELECT delivery_seq FROM webhook_deliveries WHERE `+expired+`)`, r.cursor, last, before); err != nil {
		return 0, 0, fmt.Errorf("deleting attempts: %w", err)
	}
	if _, err := tx.Exec(`DELETE FROM webhook_deliveries WHERE `+expired, r.cursor, last, before); err != nil {
		return 0, 0, fmt.Errorf("deleting deliveries: %w", err)
	}
	r.cursor = last
	return 1, deleted, moved.write(tx)
}

func (r *retention) deleteEvents(tx *store.Tx) (read, deleted int64, err error) {
	before := tx.Now.Add(-r.events).UnixMilli()
	last, err := r.window(tx, "outbox_events", "seq", before)
	if err != nil || last == 0 {
		return 0, 0, err
	}
	const expired = `
		FROM outbox_events WHERE seq > $1 AND seq <= $2 AND created_at_ms < $3 AND published_at_ms IS NOT NULL
		  AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.event_seq = seq)`
	if err := noteDeletion(tx, expired, r.cursor, last, before); err != nil {
		return 0, 0, err
	}
	deleted, err = tx.Update(`DELETE `+expired, r.cursor, last, before)
	if err != nil {
		return 0, 0, fmt.Errorf("deleting events: %w", err)
	}
	r.cursor = last
	return 1, deleted, nil
}

// noteDeletion writes down up to where the feed is about to lose events, of each
// customer and of those for all, and drops the notes that this one covers: for a
// cursor the greatest loss after it was given out counts.
func noteDeletion(tx *store.Tx, events string, args ...any) error {
	var version int64
	if err := tx.QueryRow(`SELECT COALESCE(MAX(version), 0) FROM feed_deletions`).Scan(&version); err != nil {
		return fmt.Errorf("noting a deletion: %w", err)
	}
	if _, err := tx.Exec(`INSERT INTO feed_deletions (customer_id, seq) SELECT COALESCE(customer_id, ''), MAX(seq) `+events+` GROUP BY customer_id`, args...); err != nil {
		return fmt.Errorf("noting a deletion: %w", err)
	}
	if _, err := tx.Exec(`
		DELETE FROM feed_deletions WHERE version IN (
		  SELECT old.version FROM feed_deletions new JOIN feed_deletions old ON old.customer_id = new.customer_id
		  WHERE new.version > $1 AND old.version <= $1 AND old.seq <= new.seq)`, version); err != nil {
		return fmt.Errorf("noting a deletion: %w", err)
	}
	return nil
}

// giveBackPages returns free pages to the file system, and how many are left.
func giveBackPages(tx *store.Tx) (left int64, err error) {
	if _, err := tx.Exec(fmt.Sprintf(`PRAGMA incremental_vacuum(%d)`, vacuumPages)); err != nil {
		return 0, fmt.Errorf("giving pages back: %w", err)
	}
	if err := tx.QueryRow(`PRAGMA freelist_count`).Scan(&left); err != nil {
		return 0, fmt.Errorf("giving pages back: %w", err)
	}
	return left, nil
}
