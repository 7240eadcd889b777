package webhook

import (
	"strconv"

	"jpintel/store"
)

// Envelope is how an event is wrapped for a subscription. A subscription is
// pinned to its envelope until its owner changes it.
type Envelope string

// The envelopes.
const (
	EnvelopeV1 Envelope = "v1"
	EnvelopeV2 Envelope = "v2"
)

// storedEvent is what a body is rendered from: bytes that never change.
type storedEvent struct {
	seq           int64
	id            string
	typ           Type
	customer      string // "": for all
	subjectType   string
	subjectID     string
	occurredAtMS  int64
	createdAt     string
	createdAtMS   int64
	schemaVersion string
	correlationID string // "": none
	data          []byte
}

// storedColumns are what columns reads, of outbox_events e.
const storedColumns = `e.seq, e.event_id, e.event_type, COALESCE(e.customer_id, ''), e.subject_type, e.subject_id, e.occurred_at_ms,
	  e.created_at, e.created_at_ms, e.schema_version, COALESCE(e.correlation_id, ''), e.data`

func (e *storedEvent) columns() []any {
	return []any{&e.seq, &e.id, &e.typ, &e.customer, &e.subjectType, &e.subjectID, &e.occurredAtMS,
		&e.createdAt, &e.createdAtMS, &e.schemaVersion, &e.correlationID, &e.data}
}

// render makes the body of every attempt of a delivery, byte for byte the
// same. data is spliced in as it is stored.
func (e *storedEvent) render(envelope Envelope, subscriptionID string) []byte {
	b := make([]byte, 0, 384+len(e.data))
	if envelope == EnvelopeV2 {
		b = append(b, `{"version":"v2","event_id":`...)
		b = appendString(b, e.id)
		b = appendMember(b, "type", string(e.typ))
		b = appendMember(b, "occurred_at", store.FromMS(e.occurredAtMS).Format("2006-01-02T15:04:05Z"))
		b = appendMemberOrNull(b, "partner_id", e.customer)
		b = append(b, `,"subject":{"type":`...)
		b = appendString(b, e.subjectType)
		b = appendMember(b, "id", e.subjectID)
		b = append(b, '}')
		b = appendMember(b, "schema_version", e.schemaVersion)
		b = appendMemberOrNull(b, "correlation_id", e.correlationID)
	} else {
		b = append(b, `{"version":"v1","event_id":`...)
		b = appendString(b, e.id)
		b = appendMember(b, "event_type", string(e.typ))
		b = appendMember(b, "created_at", e.createdAt)
	}
	b = appendMember(b, "subscription_id", subscriptionID)
	b = append(b, `,"data":`...)
	b = append(b, e.data...)
	return append(b, '}')
}

func appendMember(b []byte, name, value string) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return appendString(b, value)
}

func appendMemberOrNull(b []byte, name, value string) []byte {
	if value != "" {
		return appendMember(b, name, value)
	}
	b = append(b, ',', '"')
	b = append(b, name...)
	return append(b, `":null`...)
}

// appendString appends a JSON string. Most are ids, which need no escaping.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x7f {
			return appendEscaped(b, s)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func appendEscaped(b []byte, s string) []byte {
	text, err := marshal(s)
	if err != nil {
		return strconv.AppendQuote(b, s) // unreachable: every string has a JSON form
	}
	return append(b, text...)
}
