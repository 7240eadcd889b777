package webhook

import (
	"database/sql"
	"errors"
	"fmt"

	"jpintel/store"
)

// missedRange is a stretch of the feed that a subscription has missed: the
// events later than from, up to and including to. Which of them it would have
// matched is found out when they are recovered.
type missedRange struct {
	sub      int64
	from, to int64
}

// openMissed notes that a subscription begins to miss events: with those that
// are committed from now on, and those that the fan-out has not yet come to it
// with, since it passes over what is disabled. The fan-out goes in the order of
// the feed, so what lies before the first such event has been considered and is
// not missed, also where its delivery has expired by now.
func openMissed(tx *store.Tx, subSeq int64) error {
	_, err := tx.Exec(`
		INSERT INTO webhook_missed_ranges (sub_seq, from_seq)
		SELECT sub_seq, CASE WHEN begins < since_seq THEN since_seq ELSE begins END FROM (
		  SELECT sub_seq, since_seq, COALESCE(
		    (SELECT seq - 1 FROM outbox_events WHERE published_at_ms IS NULL AND fanout_cursor < $1 ORDER BY seq LIMIT 1),
		    (SELECT MAX(seq) FROM outbox_events), 0) AS begins
		  FROM webhook_subscriptions WHERE sub_seq = $1) AS s`, subSeq)
	if err != nil {
		return fmt.Errorf("noting what is missed: %w", err)
	}
	return nil
}

// closeMissed notes that a subscription goes on with what comes after its
// since_seq. Ranges without a retained event are forgotten.
func closeMissed(tx *store.Tx, subSeq int64) error {
	for _, query := range []string{
		`DELETE FROM webhook_missed_ranges WHERE sub_seq = $1 AND to_seq IS NULL
		   AND from_seq >= (SELECT since_seq FROM webhook_subscriptions WHERE sub_seq = $1)`,
		`UPDATE webhook_missed_ranges SET to_seq = (SELECT since_seq FROM webhook_subscriptions WHERE sub_seq = $1)
		 WHERE sub_seq = $1 AND to_seq IS NULL`,
		`DELETE FROM webhook_missed_ranges WHERE sub_seq = $1 AND to_seq < (SELECT MIN(seq) FROM outbox_events)`,
	} {
		if _, err := tx.Exec(query, subSeq); err != nil {
			return fmt.Errorf("noting what was missed: %w", err)
		}
	}
	return nil
}

// forgetMissed is for a subscription that is deleted.
func forgetMissed(tx *store.Tx, subSeq int64) error {
	if _, err := tx.Exec(`DELETE FROM webhook_missed_ranges WHERE sub_seq = $1`, subSeq); err != nil {
		return fmt.Errorf("forgetting what was missed: %w", err)
	}
	return nil
}

// nextMissed finds a subscription's first range that goes beyond a position in
// the feed. One that is open is not among them.
func nextMissed(tx *store.Tx, subSeq, after int64) (r missedRange, ok bool, err error) {
	r.sub = subSeq
	err = tx.QueryRow(`
		SELECT from_seq, to_seq FROM webhook_missed_ranges WHERE sub_seq = $1 AND to_seq > $2 ORDER BY from_seq LIMIT 1`, subSeq, after).
		Scan(&r.from, &r.to)
	if errors.Is(err, sql.ErrNoRows) {
		return r, false, nil
	}
	if err != nil {
		return r, false, fmt.Errorf("reading what was missed: %w", err)
	}
	return r, true, nil
}

// cut takes the events after from, up to and including to, out of the range:
// they are recovered. What lies on either side stays missed.
func (r missedRange) cut(tx *store.Tx, from, to int64) error {
	if _, err := tx.Exec(`DELETE FROM webhook_missed_ranges WHERE sub_seq = $1 AND from_seq = $2`, r.sub, r.from); err != nil {
		return fmt.Errorf("noting what is recovered: %w", err)
	}
	for _, left := range []missedRange{{r.sub, r.from, from}, {r.sub, to, r.to}} {
		if left.from >= left.to {
			continue
		}
		if _, err := tx.Exec(`INSERT INTO webhook_missed_ranges (sub_seq, from_seq, to_seq) VALUES ($1, $2, $3)`, left.sub, left.from, left.to); err != nil {
			return fmt.Errorf("noting what is recovered: %w", err)
		}
	}
	return nil
}
