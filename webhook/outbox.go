package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"jpintel/store"
)

// maxData is the most bytes that an event's data may have.
const maxData = 64 << 10

// createdAtLayout is envelope v1's created_at: whole seconds with the offset.
const createdAtLayout = "2006-01-02T15:04:05-07:00"

// Outbox is where events enter. There is one per process; who changes state
// holds it and publishes in the state's own transaction.
type Outbox struct {
	committed chan struct{}
	fanOut    *store.Follower // fans out in the publishers' own transaction; nil: whoever is woken does
}

// NewOutbox returns an outbox.
func NewOutbox() *Outbox { return &Outbox{committed: make(chan struct{}, 1)} }

// Committed receives when there is background work of this process: events that
// were committed and are not fanned out, or what Wake was called for. Many may
// share one signal.
func (o *Outbox) Committed() <-chan struct{} { return o.committed }

// Wake has the worker look for background work. Call it after a commit.
func (o *Outbox) Wake() {
	select {
	case o.committed <- struct{}{}:
	default: // somebody is about to look anyway
	}
}

// Publish writes the event that reports the state which tx changes: both are
// committed or neither is. It returns the event's id, which stays the same on
// every attempt, retry and replay. Only catalogued payloads that satisfy their
// schema can be published; an error here is the publisher's mistake.
func (o *Outbox) Publish(ctx context.Context, tx *store.Tx, p Payload) (string, error) {
	return o.PublishCaused(ctx, tx, p, "")
}

// PublishCaused is Publish for what an operation or a posting has caused: its id
// goes with the event.
func (o *Outbox) PublishCaused(ctx context.Context, tx *store.Tx, p Payload, correlationID string) (string, error) {
	entry, ok := catalogue[p.Type()]
	if !ok || entry.Scope == ScopeNone {
		return "", fmt.Errorf("publishing %s: not an event type", p.Type())
	}
	if (entry.Scope == ScopeCustomer) != (p.Customer() != "") {
		return "", fmt.Errorf("publishing %s: customer %q does not fit the scope %q", p.Type(), p.Customer(), entry.Scope)
	}
	data, err := marshal(p)
	if err != nil {
		return "", fmt.Errorf("publishing %s: %w", p.Type(), err)
	}
	if len(data) > maxData {
		return "", store.Errorf(store.CodeTooLarge, "data: %d bytes, at most %d", len(data), maxData)
	}
	if err := entry.validate(data); err != nil {
		return "", fmt.Errorf("publishing %s: %w", p.Type(), err)
	}
	var attributes Attributes
	if a, ok := p.(interface{ filterAttributes() Attributes }); ok {
		attributes = a.filterAttributes()
	}
	return o.insert(ctx, tx, newEvent{entry: entry, customer: p.Customer(), subjectID: p.SubjectID(), occurred: tx.Now,
		correlationID: correlationID, attributes: attributes, data: data})
}

// newEvent is what becomes a row of the outbox: checked, and with the bytes
// that are sent.
type newEvent struct {
	entry         *EventType
	customer      string // "": for all
	subjectID     string
	occurred      time.Time
	correlationID string // "": none
	attributes    Attributes
	data          []byte // JSON
}

// insert is the one way into the outbox.
func (o *Outbox) insert(ctx context.Context, tx *store.Tx, e newEvent) (string, error) {
	attributes := []byte("{}")
	if len(e.attributes) > 0 {
		var err error
		if attributes, err = json.Marshal(e.attributes); err != nil {
			return "", fmt.Errorf("publishing %s: %w", e.entry.Type, err)
		}
	}
	u := unpublished{attributes: e.attributes, storedEvent: storedEvent{
		id: tx.NewID("evt"), typ: e.entry.Type, customer: e.customer, subjectType: e.entry.Subject, subjectID: e.subjectID,
		occurredAtMS: e.occurred.UnixMilli(), createdAt: tx.Local().Format(createdAtLayout), createdAtMS: tx.NowMS(),
		schemaVersion: schemaVersion, correlationID: e.correlationID, data: e.data,
	}}
	var err error
	u.seq, err = tx.Insert(`
		INSERT INTO outbox_events (event_id, event_type, customer_id, subject_type, subject_id, occurred_at_ms,
		  created_at, created_at_ms, schema_version, correlation_id, request_id, attributes, data)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
		u.id, u.typ, store.Nullable(u.customer), u.subjectType, u.subjectID, u.occurredAtMS,
		u.createdAt, u.createdAtMS, u.schemaVersion, store.Nullable(u.correlationID), store.Nullable(store.RequestID(ctx)), string(attributes), u.data)
	if err != nil {
		return "", fmt.Errorf("publishing %s: %w", u.typ, err)
	}
	if o.fanOut != nil {
		tx.Follow(o.fanOut, u)
	} else {
		tx.AfterCommit(o.Wake)
	}
	return u.id, nil
}
