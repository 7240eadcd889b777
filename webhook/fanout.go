package webhook

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"

	"jpintel/store"
)

// The sizes of one step of the fan-out: small enough that the door is free
// again in milliseconds.
const (
	stepEvents        = 128
	stepBytes         = 1 << 20 // of events' data
	stepSubscriptions = 500
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
	matchers map[int64]matcher // parsed subscriptions; the door's, one step at a time
}

// matcher is what a subscription lets through, with the texts that it was
// parsed from.
type matcher struct {
	eventsText, filterText string
	events                 []Type
	filter                 Filter
}

func newFanout(db *store.DB) *fanout { return &fanout{db: db, matchers: map[int64]matcher{}} }

// candidate is a subscription that may be due.
type candidate struct {
	seq        int64
	since      int64
	generation int64
	envelope   Envelope
	probation  bool
	matcher
}

// unpublished is an event on its way out.
type unpublished struct {
	storedEvent
	attributes Attributes
	cursor     int64
}

// fanned is what a step did.
type fanned struct {
	works []fresh // the new deliveries
	more  bool    // there may be more to do
}

// fresh is a delivery that was just made, for the queue: what is in memory need
// not be read again.
type fresh struct {
	work
	probation bool // the subscription's
}

// step runs one step, in the background lane.
func (f *fanout) step(ctx context.Context) (fanned, error) {
	var done fanned
	if any, err := exists(f.db.Reader(ctx), `SELECT 1 FROM outbox_events WHERE published_at_ms IS NULL LIMIT 1`); err != nil || !any {
		return done, err
	}
	err := f.db.WriteBackground(ctx, func(tx *store.Tx) (err error) {
		done, err = f.stepIn(tx)
		return err
	})
	return done, err
}

// stepIn runs one step in a transaction.
func (f *fanout) stepIn(tx *store.Tx) (fanned, error) {
	var done fanned
	events, all, err := readUnpublished(tx)
	if err != nil || len(events) == 0 {
		return done, err
	}
	n, err := f.publish(tx, events, &done)
	done.more = !all || n < len(events)
	return done, err
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

// publish takes the first events that can share a page of subscriptions: those
// for all that have come equally far; or one that is for one customer, whose
// subscriptions are few. It returns how many of them are published now.
func (f *fanout) publish(tx *store.Tx, events []unpublished, done *fanned) (published int, err error) {
	first := &events[0]
	page, err := f.candidates(tx, first)
	if err != nil {
		return 0, err
	}
	cursor, last := first.cursor, len(page) < stepSubscriptions
	if !last {
		cursor = page[len(page)-1].seq
	}
	n := 0
	for n < len(events) && events[n].cursor == first.cursor && events[n].customer == first.customer && len(done.works) < stepDeliveries {
		if err := deliver(tx, &events[n], page, done); err != nil {
			return 0, err
		}
		n++
	}
	if err := advance(tx, first.seq, events[n-1].seq, cursor, last); err != nil {
		return 0, err
	}
	if last {
		published = n
	}
	added := totals{}
	added.move(int64(len(done.works)), "", StatusPending)
	return published, added.write(tx)
}

// candidates reads the active subscriptions after the event's cursor, of its
// customer where it has one.
func (f *fanout) candidates(tx *store.Tx, e *unpublished) ([]candidate, error) {
	rows, err := tx.Query(`
		SELECT s.sub_seq, s.since_seq, s.generation, s.envelope, s.probation, s.events, s.filter
		FROM webhook_subscriptions s JOIN customers c ON c.customer_id = s.customer_id
		WHERE s.disabled_at_ms IS NULL AND s.sub_seq > $1 AND `+ofCustomer("s.customer_id", e.customer)+`
		  AND c.tier = 'paid' AND c.opted_out_at_ms IS NULL
		ORDER BY s.sub_seq LIMIT $3`, e.cursor, e.customer, stepSubscriptions)
	if err != nil {
		return nil, fmt.Errorf("reading subscriptions: %w", err)
	}
	return store.Collect(rows, func(rows *sql.Rows) (candidate, error) {
		var c candidate
		var events, filter string
		if err := rows.Scan(&c.seq, &c.since, &c.generation, &c.envelope, &c.probation, &events, &filter); err != nil {
			return c, fmt.Errorf("reading subscriptions: %w", err)
		}
		var err error
		c.matcher, err = f.matcher(c.seq, events, filter)
		return c, err
	})
}

// matcher parses a subscription's texts, or finds that it has done so.
func (f *fanout) matcher(sub int64, events, filter string) (matcher, error) {
	m := f.matchers[sub]
	if m.eventsText == events && m.filterText == filter {
		return m, nil
	}
	m = matcher{eventsText: events, filterText: filter}
	var err error
	if m.events, err = decodeTypes(events); err != nil {
		return m, fmt.Errorf("subscription %d: %w", sub, err)
	}
	if err := json.Unmarshal([]byte(filter), &m.filter); err != nil {
		return m, fmt.Errorf("subscription %d: filter: %w", sub, err)
	}
	f.matchers[sub] = m
	return m, nil
}

func decodeTypes(text string) (types []Type, err error) {
	if err := json.Unmarshal([]byte(text), &types); err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	return types, nil
}

func (m *matcher) passes(e *unpublished) bool {
	return slices.Contains(m.events, e.typ) && m.filter.Matches(e.attributes)
}

// deliver inserts the event's deliveries to the candidates that it matches:
// those that were there when it was committed.
func deliver(tx *store.Tx, e *unpublished, page []candidate, done *fanned) error {
	for i := range page {
		c := &page[i]
		if e.seq <= c.since || !c.passes(e) {
			continue
		}
		w := work{subSeq: c.seq, generation: c.generation, deliveryID: tx.NewID("dlv"), dueMS: tx.NowMS(), envelope: c.envelope, event: e.storedEvent}
		var err error
		if w.seq, err = w.insert(tx); err != nil {
			return err
		}
		if w.seq != 0 {
			done.works = append(done.works, fresh{w, c.probation})
		}
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

// advance notes how far the unpublished events from one to another have come,
// and with their last step that they are published.
func advance(tx *store.Tx, from, to, cursor int64, last bool) error {
	var published any
	if last {
		published = tx.NowMS()
	}
	if _, err := tx.Exec(`
		UPDATE outbox_events SET fanout_cursor = $1, published_at_ms = $2
		WHERE published_at_ms IS NULL AND seq BETWEEN $3 AND $4`, cursor, published, from, to); err != nil {
		return fmt.Errorf("publishing: %w", err)
	}
	return nil
}
