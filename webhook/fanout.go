package webhook

import (
	"context"
	"encoding/json"
	"fmt"

	"jpintel/store"
)

// The sizes of one step of the fan-out: small enough that the door is free
// again in milliseconds.
const (
	stepEvents        = 128
	stepBytes         = 1 << 20 // of events' data
	stepSubscriptions = 500     // that have changed
	stepDeliveries    = 1000
)

// fanout turns events into deliveries: for each unpublished event, in commit
// order, one delivery per subscription that is due. It goes in steps, each a
// transaction: an event's cursor says up to which subscription it has come, so
// a crash resumes where it was, and the unique (event, subscription) pair makes
// a repetition harmless. The first step after a publication is part of the
// publisher's own transaction, and is mostly the last one too.
type fanout struct {
	db       *store.DB
	audience *audience // the door's
}

func newFanout(db *store.DB) *fanout { return &fanout{db: db, audience: newAudience()} }

// unpublished is an event on its way out.
type unpublished struct {
	storedEvent
	attributes Attributes
	cursor     int64
}

// fanned is what a step did.
type fanned struct {
	works []work // the new deliveries: what is in memory need not be read again
	more  bool   // there may be more to do
}

// step runs one step, in the background lane.
func (f *fanout) step(ctx context.Context) (fanned, error) {
	var done fanned
	if any, err := exists(f.db.Reader(ctx), `SELECT 1 FROM outbox_events WHERE published_at_ms IS NULL LIMIT 1`); err != nil || !any {
		return done, err
	}
	if err := f.load(ctx); err != nil {
		return done, err
	}
	err := f.db.WriteBackground(ctx, func(tx *store.Tx) (err error) {
		done, err = f.stepIn(tx, nil)
		return err
	})
	return done, err
}

// load reads the subscriptions, as far as that has not been done.
func (f *fanout) load(ctx context.Context) error {
	for current := false; !current; {
		if err := f.db.WriteBackground(ctx, func(tx *store.Tx) (err error) {
			current, err = f.audience.refresh(tx)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// stepIn runs one step in a transaction. given are the events that were added in
// this transaction, in their order: they need not be read again.
func (f *fanout) stepIn(tx *store.Tx, given []unpublished) (fanned, error) {
	done := fanned{more: true}
	if current, err := f.audience.refresh(tx); err != nil || !current {
		return done, err
	}
	events, all, err := nextUnpublished(tx, given)
	if err != nil {
		return done, err
	}
	n, err := f.publish(tx, events, &done)
	done.more = !all || n < len(events)
	return done, err
}

// nextUnpublished is the oldest events that are not fanned out, and whether
// these are all of them.
func nextUnpublished(tx *store.Tx, given []unpublished) (events []unpublished, all bool, err error) {
	if len(given) == 0 {
		return readUnpublished(tx)
	}
	older, err := exists(tx, `SELECT 1 FROM outbox_events WHERE published_at_ms IS NULL AND seq < $1 LIMIT 1`, given[0].seq)
	if err != nil {
		return nil, false, err
	}
	if older {
		return readUnpublished(tx)
	}
	bytes := 0
	for i := range given {
		if i == stepEvents || bytes > stepBytes {
			return given[:i], false, nil
		}
		bytes += len(given[i].data)
	}
	return given, true, nil
}

const unpublishedQuery = `
	SELECT ` + storedColumns + `, e.attributes, e.fanout_cursor
	FROM outbox_events e WHERE e.published_at_ms IS NULL ORDER BY e.seq`

// readUnpublished reads the oldest events that are not fanned out, and reports
// whether these are all of them.
func readUnpublished(tx *store.Tx) (events []unpublished, all bool, err error) {
	rows, err := tx.Query(unpublishedQuery)
	if err != nil {
		return nil, false, fmt.Errorf("reading the outbox: %w", err)
	}
	defer rows.Close()
	bytes := 0
	for rows.Next() {
		if len(events) == stepEvents || bytes > stepBytes {
			return events, false, nil
		}
		var e unpublished
		var attributes string
		if err := rows.Scan(append(e.columns(), &attributes, &e.cursor)...); err != nil {
			return nil, false, fmt.Errorf("reading the outbox: %w", err)
		}
		if err := json.Unmarshal([]byte(attributes), &e.attributes); err != nil {
			return nil, false, fmt.Errorf("event %d: attributes: %w", e.seq, err)
		}
		bytes += len(e.data)
		events = append(events, e)
	}
	return events, true, rows.Err()
}

// publish makes the deliveries of the first events, as many as fit into a step,
// and returns how many of the events are published now.
func (f *fanout) publish(tx *store.Tx, events []unpublished, done *fanned) (published int, err error) {
	for published < len(events) && len(done.works) < stepDeliveries {
		e := &events[published]
		due := f.audience.of(e)
		now := due[:min(len(due), stepDeliveries-len(done.works))]
		for _, c := range now {
			if err := deliver(tx, e, c, done); err != nil {
				return 0, err
			}
		}
		if len(now) < len(due) {
			if err := advance(tx, e.seq, now[len(now)-1].seq); err != nil {
				return 0, err
			}
			break
		}
		published++
	}
	if published > 0 {
		if err := markPublished(tx, events[0].seq, events[published-1].seq); err != nil {
			return 0, err
		}
	}
	added := totals{}
	added.move(int64(len(done.works)), "", StatusPending)
	return published, added.write(tx)
}

// deliver inserts the event's delivery to a subscription.
func deliver(tx *store.Tx, e *unpublished, c *candidate, done *fanned) error {
	w := work{subSeq: c.seq, generation: c.generation, deliveryID: tx.NewID("dlv"), dueMS: tx.NowMS(), envelope: c.envelope, event: e.storedEvent}
	var err error
	if w.seq, err = w.insert(tx); err != nil {
		return err
	}
	if w.seq != 0 {
		done.works = append(done.works, w)
	}
	return nil
}

// insert adds a pending delivery and returns its number, or 0 where its pair of
// event and subscription is there already.
func (w *work) insert(tx *store.Tx) (seq int64, err error) {
	seq, err = tx.Insert(`
		INSERT INTO webhook_deliveries (delivery_id, event_seq, sub_seq, generation, envelope, status, next_attempt_at_ms, created_at_ms)
		VALUES ($1, $2, $3, $4, $5, 'pending', $6, $7) ON CONFLICT DO NOTHING`,
		w.deliveryID, w.event.seq, w.subSeq, w.generation, string(w.envelope), w.dueMS, tx.NowMS())
	if err != nil {
		return 0, fmt.Errorf("adding delivery: %w", err)
	}
	return seq, nil
}

// advance notes how far an event has come.
func advance(tx *store.Tx, seq, cursor int64) error {
	if _, err := tx.Exec(`UPDATE outbox_events SET fanout_cursor = $1 WHERE seq = $2`, cursor, seq); err != nil {
		return fmt.Errorf("publishing: %w", err)
	}
	return nil
}

// markPublished notes that the unpublished events from one to another have come
// to all.
func markPublished(tx *store.Tx, from, to int64) error {
	if _, err := tx.Exec(`UPDATE outbox_events SET published_at_ms = $1 WHERE published_at_ms IS NULL AND seq BETWEEN $2 AND $3`, tx.NowMS(), from, to); err != nil {
		return fmt.Errorf("publishing: %w", err)
	}
	return nil
}
