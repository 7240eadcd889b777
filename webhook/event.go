package webhook

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"jpintel/store"
)

// Event is one committed business fact, as the feed shows it.
type Event struct {
	EventID       string          `json:"event_id"`
	EventType     Type            `json:"event_type"`
	CreatedAt     string          `json:"created_at"`
	OccurredAt    time.Time       `json:"occurred_at"`
	CustomerID    *string         `json:"customer_id"` // null: for all
	Subject       Subject         `json:"subject"`
	SchemaVersion string          `json:"schema_version"`
	CorrelationID *string         `json:"correlation_id"`
	Data          json.RawMessage `json:"data"`

	seq int64
}

// Subject is what an event is about.
type Subject struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// EventsRequest asks for the feed.
type EventsRequest struct {
	CustomerID string `bind:"customer" json:"-"` // "": everything, for the operator
	After      string `query:"after" json:"-"`   // next_cursor of the page before; "": the oldest retained
	Types      string `query:"types" json:"-"`   // a comma-separated list; "": all
	Limit      int    `query:"limit" json:"-"`
}

// EventPage is a page of the feed. NextCursor is always set, so that a poller
// can go on from where it stands.
type EventPage struct {
	Data       []Event `json:"data"`
	NextCursor string  `json:"next_cursor"`
}

// Events returns events that the customer may see, in commit order, without
// gaps: there is one writer, so an event never appears behind a cursor that was
// given out. With types, a page may be empty and still move the cursor on.
func (s *Service) Events(ctx context.Context, r EventsRequest) (EventPage, error) {
	_, rows, err := store.PageRequest{Limit: r.Limit}.Position()
	if err != nil {
		return EventPage{}, err
	}
	types, err := parseTypes(r.Types)
	if err != nil {
		return EventPage{}, err
	}
	q := s.DB.Reader(ctx)
	control, err := store.ReadControl(q)
	if err != nil {
		return EventPage{}, err
	}
	after, err := s.feedPosition(q, control.Epoch, r.After)
	if err != nil {
		return EventPage{}, err
	}
	// Read before the events: what commits in between is simply on the next page.
	last, err := store.LastNumber(q, "outbox_events")
	if err != nil {
		return EventPage{}, fmt.Errorf("reading the feed: %w", err)
	}
	found, err := s.selectEvents(q, r.CustomerID, after, last, types, rows-1)
	if err != nil {
		return EventPage{}, err
	}
	next := max(after, last)
	if len(found) == rows-1 {
		next = found[len(found)-1].seq
	}
	return EventPage{Data: found, NextCursor: feedCursor(control.Epoch, next)}, nil
}

func parseTypes(list string) ([]Type, error) {
	if list == "" {
		return nil, nil
	}
	var types []Type
	for t := range strings.SplitSeq(list, ",") {
		if e, ok := catalogue[Type(t)]; !ok || e.Scope == ScopeNone {
			return nil, store.Errorf(store.CodeInvalid, "types: unknown event type %q; GET /v1/event-types lists them", t)
		}
		types = append(types, Type(t))
	}
	return types, nil
}

// feedCursor names a position in one history of the file.
func feedCursor(epoch string, seq int64) string {
	return base64.RawURLEncoding.EncodeToString([]byte(epoch + ":" + strconv.FormatInt(seq, 10)))
}

func (s *Service) feedPosition(q store.Querier, epoch, cursor string) (int64, error) {
	if cursor == "" {
		return 0, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	of, number, ok := strings.Cut(string(text), ":")
	seq, numberErr := strconv.ParseInt(number, 10, 64)
	if err != nil || !ok || numberErr != nil || seq < 0 {
		return 0, store.Errorf(store.CodeInvalid, "after: not a cursor that the feed has given out")
	}
	newest, err := store.LastNumber(q, "outbox_events") // its event may have expired
	if err != nil {
		return 0, fmt.Errorf("reading the feed: %w", err)
	}
	var oldest int64
	if err := q.QueryRow(`SELECT COALESCE(MIN(seq), $1) FROM outbox_events`, newest+1).Scan(&oldest); err != nil {
		return 0, fmt.Errorf("reading the feed: %w", err)
	}
	if of != epoch || seq > newest || seq < oldest-1 {
		return 0, store.Errorf(store.CodeGone, "after: this cursor has expired; the oldest available is %s", feedCursor(epoch, oldest-1))
	}
	return seq, nil
}

const eventColumns = `seq, event_id, event_type, created_at, occurred_at_ms, customer_id, subject_type, subject_id, schema_version, correlation_id, data`

// selectEvents reads the events in (after, last] that a customer may see. The
// two branches each walk an index in order, however many events other
// customers have.
func (s *Service) selectEvents(q store.Querier, customer string, after, last int64, types []Type, limit int) ([]Event, error) {
	filter, args := "", []any{after, customer, last, limit}
	if len(types) > 0 {
		var places []string
		for _, t := range types {
			args = append(args, t)
			places = append(places, "$"+strconv.Itoa(len(args)))
		}
		filter = ` AND event_type IN (` + strings.Join(places, ", ") + `)`
	}
	branch := func(owner string) string {
		return `SELECT * FROM (SELECT ` + eventColumns + ` FROM outbox_events WHERE ` + owner + ` AND seq > $1 AND seq <= $3` + filter + ` ORDER BY seq LIMIT $4)`
	}
	query := branch(`customer_id IS NULL`) + ` UNION ALL ` + branch(`customer_id = $2`) + ` ORDER BY seq LIMIT $4`
	if customer == "" {
		query = branch(`$2 = ''`)
	}
	rows, err := q.Query(query, args...)
	if err != nil {
		return nil, fmt.Errorf("reading the feed: %w", err)
	}
	return store.Collect(rows, func(rows *sql.Rows) (Event, error) { return s.scanEvent(rows) })
}

func (s *Service) scanEvent(row interface{ Scan(...any) error }) (Event, error) {
	var e Event
	var occurred int64
	var customer, correlation sql.Null[string]
	var data []byte
	err := row.Scan(&e.seq, &e.EventID, &e.EventType, &e.CreatedAt, &occurred, &customer, &e.Subject.Type, &e.Subject.ID, &e.SchemaVersion, &correlation, &data)
	e.OccurredAt, e.CustomerID, e.CorrelationID, e.Data = store.FromMS(occurred), pointer(customer), pointer(correlation), data
	return e, err
}

// EventRequest names one event.
type EventRequest struct {
	CustomerID string `bind:"customer" json:"-"` // "": any, for the operator
	EventID    string `path:"id" json:"-"`
}

// Event returns one event that the customer may see.
func (s *Service) Event(ctx context.Context, r EventRequest) (Event, error) {
	e, err := s.scanEvent(s.DB.Reader(ctx).QueryRow(`
		SELECT `+eventColumns+` FROM outbox_events WHERE event_id = $1 AND ($2 = '' OR customer_id IS NULL OR customer_id = $2)`,
		r.EventID, r.CustomerID))
	if errors.Is(err, sql.ErrNoRows) {
		return e, store.Errorf(store.CodeNotFound, "event %s not found", r.EventID)
	}
	if err != nil {
		return e, fmt.Errorf("reading event: %w", err)
	}
	return e, nil
}
