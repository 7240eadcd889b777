package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"jpintel/store"
)

const (
	// maxPublishBody is the most bytes of a call that publishes an event: data
	// of maxData, attributes, and white space that is not stored.
	maxPublishBody = 128 << 10
	// maxGivenID is the longest subject id or correlation id that is taken, in
	// bytes.
	maxGivenID = 256
)

// PublishRequest is an event of another system of the operator's.
type PublishRequest struct {
	IdempotencyKey string          `header:"Idempotency-Key" json:"-"` // required
	Type           Type            `json:"type"`
	CustomerID     string          `json:"customer_id"` // for the types that go to one customer, and for no others
	Subject        GivenSubject    `json:"subject"`     // default: what data is about
	OccurredAt     string          `json:"occurred_at"` // RFC 3339; default: now
	CorrelationID  string          `json:"correlation_id"`
	Attributes     GivenAttributes `json:"attributes"` // what filters look at; default for each of them: what data has under its name
	Data           json.RawMessage `json:"data"`
}

// MaxBody lets 64 KiB of data in.
func (PublishRequest) MaxBody() int64 { return maxPublishBody }

// GivenSubject is a subject as a publisher gives it; what is empty is left to
// the catalogue and to data.
type GivenSubject Subject

// UnmarshalJSON takes an object with type and id.
func (g *GivenSubject) UnmarshalJSON(text []byte) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if dec.Decode((*Subject)(g)) != nil {
		return store.Errorf(store.CodeInvalid, "subject: want an object with type and id, both strings")
	}
	return nil
}

// GivenAttributes are attributes as a publisher gives them.
type GivenAttributes map[string][]string

// UnmarshalJSON takes what a filter is written as.
func (g *GivenAttributes) UnmarshalJSON(text []byte) error {
	values, err := parseValues("attributes", text)
	*g = values
	return err
}

// PublishAnswer names the event.
type PublishAnswer struct {
	EventID string `json:"event_id"`
}

// HTTPStatus is 202 Accepted: it is committed, and will be sent.
func (PublishAnswer) HTTPStatus() int { return 202 }

// PublishEvent commits an event that another system reports. It is held against
// the catalogue as those of this service are; data is stored as it was written
// but for white space. The same IdempotencyKey again is the same event.
func (s *Service) PublishEvent(ctx context.Context, r PublishRequest) (answer PublishAnswer, err error) {
	once, err := store.NewOnce("events", r.IdempotencyKey, r)
	if err != nil {
		return answer, err
	}
	e, err := r.event(time.Now())
	if err != nil {
		return answer, err
	}
	err = s.DB.WriteEarly(ctx, func(tx *store.Tx) (err error) {
		answer, err = store.DoOnce(tx, once, func() (PublishAnswer, error) {
			if e.customer != "" {
				if _, err := store.GetCustomer(tx, e.customer); err != nil {
					return PublishAnswer{}, err
				}
			}
			if e.occurred.IsZero() {
				e.occurred = tx.Now
			}
			id, err := s.Outbox.insert(ctx, tx, e)
			return PublishAnswer{id}, err
		})
		return err
	})
	return answer, err
}

// event checks all that can be checked without the file.
func (r PublishRequest) event(now time.Time) (e newEvent, err error) {
	if e.entry, err = r.entry(); err != nil {
		return e, err
	}
	e.customer, e.correlationID = r.CustomerID, r.CorrelationID
	if err := checkGivenID("correlation_id", r.CorrelationID); err != nil {
		return e, err
	}
	if e.occurred, err = pastTime("occurred_at", r.OccurredAt, now); err != nil {
		return e, err
	}
	var members map[string]any
	if e.data, members, err = r.data(e.entry); err != nil {
		return e, err
	}
	if e.subjectID, err = r.subjectID(e.entry, members); err != nil {
		return e, err
	}
	e.attributes, err = r.attributes(e.entry, members)
	return e, err
}

// entry is the type's entry in the catalogue, which says whom its events are
// for.
func (r PublishRequest) entry() (*EventType, error) {
	entry, ok := catalogue[r.Type]
	switch {
	case r.Type == "":
		return nil, store.Errorf(store.CodeInvalid, "type: required")
	case !ok || entry.Scope == ScopeNone:
		return nil, store.Errorf(store.CodeInvalid, "type: unknown event type %q; GET /v1/event-types lists them", r.Type)
	case entry.Scope == ScopeAll && r.CustomerID != "":
		return nil, store.Errorf(store.CodeInvalid, "customer_id: %s goes to every customer; leave it out", r.Type)
	case entry.Scope == ScopeCustomer && r.CustomerID == "":
		return nil, store.Errorf(store.CodeInvalid, "customer_id: required, since %s goes to one customer", r.Type)
	case r.Subject.Type != "" && r.Subject.Type != entry.Subject:
		return nil, store.Errorf(store.CodeInvalid, "subject.type: the subject of %s is a %s", r.Type, entry.Subject)
	}
	return entry, nil
}

// data returns the bytes that are stored and what is in them: an object that
// satisfies the type's schema and names no other customer.
func (r PublishRequest) data(entry *EventType) (text []byte, members map[string]any, err error) {
	if len(r.Data) == 0 {
		return nil, nil, store.Errorf(store.CodeInvalid, "data: required")
	}
	if !utf8.Valid(r.Data) {
		return nil, nil, store.Errorf(store.CodeInvalid, "data: not valid UTF-8")
	}
	var b bytes.Buffer
	if err := json.Compact(&b, r.Data); err != nil {
		return nil, nil, store.Errorf(store.CodeInvalid, "data: not JSON: %v", err)
	}
	if b.Len() > maxData {
		return nil, nil, store.Errorf(store.CodeTooLarge, "data: %d bytes, at most %d", b.Len(), maxData)
	}
	if members, err = readMembers(b.Bytes()); err != nil {
		return nil, nil, err
	}
	if err := entry.check(members); err != nil {
		return nil, nil, err
	}
	return b.Bytes(), members, r.checkCustomer(entry, members)
}

// readMembers reads valid compact JSON as the object that data has to be. One that is
// there twice would be one thing to us and another to a receiver.
func readMembers(text []byte) (map[string]any, error) {
	if text[0] != '{' {
		return nil, store.Errorf(store.CodeInvalid, "data: want an object")
	}
	members := map[string]any{}
	for name, raw := range Members(text) {
		if _, twice := members[name]; twice {
			return nil, store.Errorf(store.CodeInvalid, "data.%s: there twice", name)
		}
		value, err := anyValue(raw)
		if err != nil {
			return nil, fmt.Errorf("reading data: %w", err) // unreachable: it is valid
		}
		members[name] = value
	}
	return members, nil
}

// checkCustomer lets no customer's id out to another, and none at all out with
// data that is public.
func (r PublishRequest) checkCustomer(entry *EventType, members map[string]any) error {
	id, there := members["customer_id"]
	if there && entry.Sensitivity == sensitivityPublic {
		return store.Errorf(store.CodeInvalid, "data.customer_id: the data of %s names no customer", r.Type)
	}
	if there && id != r.CustomerID {
		return store.Errorf(store.CodeInvalid, "data.customer_id: want that of customer_id")
	}
	return nil
}

// subjectID is the id that was given, or the one that data has.
func (r PublishRequest) subjectID(entry *EventType, members map[string]any) (string, error) {
	if r.Subject.ID != "" {
		return r.Subject.ID, checkGivenID("subject.id", r.Subject.ID)
	}
	var parts []string
	for _, name := range entry.subject {
		part, _ := members[name].(string) // the schema has seen to that
		parts = append(parts, part)
	}
	return strings.Join(parts, ":"), nil
}

// checkGivenID checks an id of the publisher's.
func checkGivenID(field, id string) error {
	if len(id) > maxGivenID || strings.ContainsFunc(id, unicode.IsControl) || !utf8.ValidString(id) {
		return store.Errorf(store.CodeInvalid, "%s: want at most %d bytes without control characters", field, maxGivenID)
	}
	return nil
}

// attributes are what was given, and for the rest what data has under their
// names.
func (r PublishRequest) attributes(entry *EventType, members map[string]any) (Attributes, error) {
	known := map[string]bool{}
	for _, name := range entry.Attributes {
		known[name] = true
	}
	if err := checkValues("attributes", r.Attributes, known); err != nil {
		return nil, err
	}
	all := Attributes{}
	for _, name := range entry.Attributes {
		values := r.Attributes[name]
		if values == nil {
			values = entry.derive(name, members)
		}
		if len(values) > 0 {
			all[name] = values
		}
	}
	return all, nil
}

// derive reads an attribute from data, as the publishers of this service do.
func (e *EventType) derive(name string, members map[string]any) []string {
	if name == "unified_id" && e.Type == TypeAdoptionPublished {
		name = "program_id"
	}
	switch value := members[name].(type) {
	case string:
		return []string{value}
	case json.Number: // of the catalogue's integers 2026.0 is one, too
		if f, err := value.Float64(); err == nil {
			return []string{strconv.FormatFloat(f, 'f', -1, 64)}
		}
	}
	return nil
}
