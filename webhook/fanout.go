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
	stepSubscriptions = 500
	stepDeliveries    = 1000
)

// fanout turns events into deliveries: for each unpublished event, in commit
// order, one delivery per subscription that is due. It goes in steps, each a
// transaction: an event's cursor says up to which subscription it has come, so
// a crash resumes where it was, and the unique (event, subscription) pair makes
// a repetition harmless.
type fanout struct {
	db       *store.DB
	matchers map[int64]matcher // parsed subscriptions; used by one step at a time
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
	matcher
}

// unpublished is an event on its way out.
type unpublished struct {
	seq        int64
	typ        Type
	customer   string
	attributes Attributes
	cursor     int64
}

// fanned is what a step did.
type fanned struct {
	subs []int64 // subscriptions that have new deliveries
	more bool    // there may be more to do
}

// step runs one step, in the background lane.
func (f *fanout) step(ctx context.Context) (fanned, error) {
	var done fanned
	if any, err := exists(f.db.Reader(ctx), `SELECT 1 FROM outbox_events WHERE published_at_ms IS NULL LIMIT 1`); err != nil || !any {
		return done, err
	}
	err := f.db.WriteBackground(ctx, func(tx *store.Tx) error {
		done = fanned{}
		events, err := readUnpublished(tx)
		if err != nil || len(events) == 0 {
			return err
		}
		done.more = true
		return f.publish(tx, events, &done)
	})
	return done, err
}

func readUnpublished(tx *store.Tx) ([]unpublished, error) {
	rows, err := tx.Query(`
		SELECT seq, event_type, COALESCE(customer_id, ''), attributes, fanout_cursor
		FROM outbox_events WHERE published_at_ms IS NULL ORDER BY seq LIMIT $1`, stepEvents)
	if err != nil {
		return nil, fmt.Errorf("reading the outbox: %w", err)
	}
	return store.Collect(rows, func(rows *sql.Rows) (unpublished, error) {
		var e unpublished
		var attributes string
		if err := rows.Scan(&e.seq, &e.typ, &e.customer, &attributes, &e.cursor); err != nil {
			return e, fmt.Errorf("reading the outbox: %w", err)
		}
		if err := json.Unmarshal([]byte(attributes), &e.attributes); err != nil {
			return e, fmt.Errorf("event %d: attributes: %w", e.seq, err)
		}
		return e, nil
	})
}

// publish takes the first events that can share a page of subscriptions: those
// for all that have come equally far; or one that is for one customer, whose
// subscriptions are few.
func (f *fanout) publish(tx *store.Tx, events []unpublished, done *fanned) error {
	first := events[0]
	page, err := f.candidates(tx, first)
	if err != nil {
		return err
	}
	cursor, last := first.cursor, len(page) < stepSubscriptions
	if !last {
		cursor = page[len(page)-1].seq
	}
	inserted := 0
	for _, e := range events {
		if e.cursor != first.cursor || e.customer != first.customer || inserted >= stepDeliveries {
			break
		}
		n, err := f.deliver(tx, e, page, done)
		if err != nil {
			return err
		}
		inserted += n
		if err := advance(tx, e.seq, cursor, last); err != nil {
			return err
		}
	}
	added := totals{}
	added.move(int64(inserted), "", StatusPending)
	return added.write(tx)
}

// candidates reads the active subscriptions after the event's cursor, of its
// customer where it has one.
func (f *fanout) candidates(tx *store.Tx, e unpublished) ([]candidate, error) {
	rows, err := tx.Query(`
		SELECT s.sub_seq, s.since_seq, s.generation, s.envelope, s.events, s.filter
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
		if err := rows.Scan(&c.seq, &c.since, &c.generation, &c.envelope, &events, &filter); err != nil {
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

func (m *matcher) passes(e unpublished) bool {
	return slices.Contains(m.events, e.typ) && m.filter.Matches(e.attributes)
}

// deliver inserts the event's deliveries to the candidates that it matches:
// those that were there when it was committed.
func (f *fanout) deliver(tx *store.Tx, e unpublished, page []candidate, done *fanned) (int, error) {
	inserted := 0
	for i := range page {
		c := &page[i]
		if e.seq <= c.since || !c.passes(e) {
			continue
		}
		n, err := tx.Update(`
			INSERT INTO webhook_deliveries (delivery_id, event_seq, sub_seq, generation, envelope, status, next_attempt_at_ms, created_at_ms)
			VALUES ($1, $2, $3, $4, $5, 'pending', $6, $6) ON CONFLICT DO NOTHING`,
			tx.NewID("dlv"), e.seq, c.seq, c.generation, string(c.envelope), tx.NowMS())
		if err != nil {
			return inserted, fmt.Errorf("adding delivery: %w", err)
		}
		inserted += int(n)
		if !slices.Contains(done.subs, c.seq) {
			done.subs = append(done.subs, c.seq)
		}
	}
	return inserted, nil
}

// advance notes how far an event has come, and with its last step that it is
// published.
func advance(tx *store.Tx, seq, cursor int64, last bool) error {
	var published any
	if last {
		published = tx.NowMS()
	}
	if _, err := tx.Exec(`UPDATE outbox_events SET fanout_cursor = $1, published_at_ms = $2 WHERE seq = $3`, cursor, published, seq); err != nil {
		return fmt.Errorf("publishing: %w", err)
	}
	return nil
}
