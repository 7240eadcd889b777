package webhook

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"

	"jpintel/store"
)

// audience is the active subscriptions, in memory, by what they let through: so
// the fan-out finds those that an event is for and looks at few others, however
// many there are.
//
// It follows the file: every change of a subscription, or of what its customer
// is entitled to, has a number there, and refresh reads what has a later one
// than the last that was read. What it has read in a transaction that did not
// come to its end it forgets, with all the rest. It is the door's alone.
type audience struct {
	subs       map[int64]*candidate
	ofCustomer map[string][]*candidate
	ofKey      map[audienceKey][]*candidate

	changed, sub int64 // the last change that was read, and whose it is
	unsure       bool  // what was read last may not have been committed
}

// audienceKey is what an event must have for a subscription to be looked at: a
// type, and for one with a filter one of the values of one attribute. Without a
// filter both are "".
type audienceKey struct {
	typ              Type
	attribute, value string
}

// candidate is a subscription that may be due.
type candidate struct {
	seq        int64
	customer   string
	since      int64
	generation int64
	envelope   Envelope
	matcher
}

// matcher is what a subscription lets through.
type matcher struct {
	events []Type
	filter Filter
}

func newAudience() *audience {
	return &audience{subs: map[int64]*candidate{}, ofCustomer: map[string][]*candidate{}, ofKey: map[audienceKey][]*candidate{}}
}

const changedQuery = `
	SELECT s.changed, s.sub_seq, s.customer_id, s.since_seq, s.generation, s.envelope, s.events, s.filter,
	  s.disabled_at_ms IS NULL AND c.tier = 'paid' AND c.opted_out_at_ms IS NULL
	FROM webhook_subscriptions s JOIN customers c ON c.customer_id = s.customer_id
	WHERE (s.changed, s.sub_seq) > ($1, $2) ORDER BY s.changed, s.sub_seq LIMIT $3`

// refresh reads the next changes, as many as a step may, and reports whether
// these were all: the audience is then that of the transaction.
func (a *audience) refresh(tx *store.Tx) (current bool, err error) {
	if a.unsure {
		*a = *newAudience()
	}
	rows, err := tx.Query(changedQuery, a.changed, a.sub, stepSubscriptions)
	if err != nil {
		return false, fmt.Errorf("reading subscriptions: %w", err)
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		a.unsure = true
		if err := a.read(rows); err != nil {
			return false, err
		}
	}
	if a.unsure {
		tx.AfterCommit(func() { a.unsure = false })
	}
	return n < stepSubscriptions, rows.Err()
}

// read takes one change.
func (a *audience) read(rows *sql.Rows) error {
	var c candidate
	var events, filter string
	var active bool
	if err := rows.Scan(&a.changed, &c.seq, &c.customer, &c.since, &c.generation, &c.envelope, &events, &filter, &active); err != nil {
		return fmt.Errorf("reading subscriptions: %w", err)
	}
	a.sub = c.seq
	a.remove(c.seq)
	if !active {
		return nil
	}
	var err error
	if c.matcher, err = parseMatcher(c.seq, events, filter); err != nil {
		return err
	}
	a.add(&c)
	return nil
}

func (a *audience) add(c *candidate) {
	a.subs[c.seq] = c
	a.ofCustomer[c.customer] = append(a.ofCustomer[c.customer], c)
	for _, key := range c.keys() {
		a.ofKey[key] = append(a.ofKey[key], c)
	}
}

func (a *audience) remove(sub int64) {
	c := a.subs[sub]
	if c == nil {
		return
	}
	delete(a.subs, sub)
	without(a.ofCustomer, c.customer, c)
	for _, key := range c.keys() {
		without(a.ofKey, key, c)
	}
}

func without[K comparable](lists map[K][]*candidate, key K, c *candidate) {
	left := slices.DeleteFunc(lists[key], func(other *candidate) bool { return other == c })
	if lists[key] = left; len(left) == 0 {
		delete(lists, key)
	}
}

// of is the subscriptions that the event is for and has not come to yet, in
// their order.
func (a *audience) of(e *unpublished) (due []*candidate) {
	look := func(among []*candidate) {
		for _, c := range among {
			if c.seq > e.cursor && e.seq > c.since && c.passes(e) {
				due = append(due, c)
			}
		}
	}
	if e.customer != "" {
		look(a.ofCustomer[e.customer])
	} else {
		look(a.ofKey[audienceKey{typ: e.typ}])
		for attribute, values := range e.attributes {
			for _, value := range values {
				look(a.ofKey[audienceKey{e.typ, attribute, value}])
			}
		}
	}
	slices.SortFunc(due, func(x, y *candidate) int { return int(x.seq - y.seq) })
	return slices.Compact(due) // one may have been found by two values
}

// keys are those that the subscription is found by: the attribute of its filter
// that has the fewest values stands for all.
func (c *candidate) keys() (keys []audienceKey) {
	attribute, values := "", []string{""}
	for a, v := range c.filter {
		if attribute == "" || len(v) < len(values) || len(v) == len(values) && a < attribute {
			attribute, values = a, v
		}
	}
	for _, typ := range c.events {
		for _, value := range values {
			keys = append(keys, audienceKey{typ, attribute, value})
		}
	}
	return keys
}

func (m *matcher) passes(e *unpublished) bool {
	return slices.Contains(m.events, e.typ) && m.filter.Matches(e.attributes)
}

// parseMatcher reads a subscription's texts.
func parseMatcher(sub int64, events, filter string) (m matcher, err error) {
	if m.events, err = decodeTypes(events); err != nil {
		return m, fmt.Errorf("subscription %d: %w", sub, err)
	}
	for i, typ := range m.events {
		if entry, ok := catalogue[typ]; ok {
			m.events[i] = entry.Type // one text for all subscriptions
		}
	}
	if err := json.Unmarshal([]byte(filter), &m.filter); err != nil {
		return m, fmt.Errorf("subscription %d: filter: %w", sub, err)
	}
	return m, nil
}

func decodeTypes(text string) (types []Type, err error) {
	if err := json.Unmarshal([]byte(text), &types); err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	return types, nil
}
