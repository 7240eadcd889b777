package webhook

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
// given out. With types, a page may be short or empty and still move the cursor
// on.
func (s *Service) Events(ctx context.Context, r EventsRequest) (page EventPage, err error) {
	_, rows, err := store.PageRequest{Limit: r.Limit}.Position()
	if err != nil {
		return page, err
	}
	f := feedWalk{customer: r.CustomerID, limit: rows - 1}
	if f.types, err = parseTypes(r.Types); err != nil {
		return page, err
	}
	err = s.DB.View(ctx, func(q store.Querier) error { // what the cursor has lost and what the page has are of one state
		if err := f.open(q, r.After); err != nil {
			return err
		}
		page, err = s.eventPage(q, &f)
		return err
	})
	return page, err
}

// feedWalk is a page of the feed on its way.
type feedWalk struct {
	customer string // "": everything
	types    []Type // none: all
	limit    int

	epoch       string // the file's
	version     int64  // of the last deletion
	after, last int64  // the page is within (after, last]
}

// open reads how far the feed goes, and finds the cursor in it.
func (f *feedWalk) open(q store.Querier, cursor string) error {
	control, err := store.ReadControl(q)
	if err != nil {
		return err
	}
	f.epoch = control.Epoch
	var deleted int64
	if err := q.QueryRow(`
		SELECT COALESCE((SELECT MAX(seq) FROM outbox_events), 0), COALESCE((SELECT MAX(seq) FROM feed_deletions), 0),
		  COALESCE((SELECT MAX(version) FROM feed_deletions), 0)`).Scan(&f.last, &deleted, &f.version); err != nil {
		return fmt.Errorf("reading the feed: %w", err)
	}
	f.last = max(f.last, deleted)
	if cursor == "" {
		return nil
	}
	return f.find(q, cursor)
}

// eventPage reads a page. The operator's with types looks at a bounded number
// of events; a customer's types have an index.
func (s *Service) eventPage(q store.Querier, f *feedWalk) (EventPage, error) {
	if f.customer == "" && len(f.types) > 0 {
		err := q.QueryRow(`SELECT seq FROM outbox_events WHERE seq > $1 ORDER BY seq LIMIT 1 OFFSET $2`, f.after, lookRows-1).Scan(&f.last)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return EventPage{}, fmt.Errorf("reading the feed: %w", err)
		}
	}
	rows, err := q.Query(f.query(eventColumns), f.args()...)
	if err != nil {
		return EventPage{}, fmt.Errorf("reading the feed: %w", err)
	}
	found, err := store.Collect(rows, func(rows *sql.Rows) (Event, error) { return s.scanEvent(rows) })
	if err != nil {
		return EventPage{}, err
	}
	next := f.last
	if len(found) == f.limit {
		next = found[len(found)-1].seq
	}
	return EventPage{Data: found, NextCursor: f.cursor(next)}, nil
}

// parseTypes reads a list of types; each is in the result once.
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
	slices.Sort(types)
	return slices.Compact(types), nil
}

// cursor names a position in one history of the file, and which deletions were
// made before it was given out.
func (f *feedWalk) cursor(seq int64) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s:%d:%d", f.epoch, seq, f.version))
}

// find finds a cursor. It has expired when an event behind it that the customer
// could see was deleted after it was given out, whatever the types that are asked
// for; what had been deleted before was never to be had from it. Positions of
// another history of the file mean nothing here.
func (f *feedWalk) find(q store.Querier, cursor string) error {
	epoch, seq, version, err := parseFeedCursor(cursor)
	if err != nil {
		return err
	}
	if epoch != f.epoch || seq > f.last || version > f.version {
		return f.expired(q)
	}
	query := lostQuery
	if f.customer == "" {
		query = everybodyLostQuery
	}
	var lost int64
	if err := q.QueryRow(query, version, f.customer).Scan(&lost); err != nil {
		return fmt.Errorf("reading the feed: %w", err)
	}
	if lost > seq {
		return f.expired(q)
	}
	f.after = seq
	return nil
}

// What was deleted from the feed after version $1: of all customers, and of what
// customer $2 could see.
const (
	everybodyLostQuery = `SELECT COALESCE(MAX(seq), 0) FROM feed_deletions WHERE version > $1`
	lostQuery          = everybodyLostQuery + ` AND customer_id IN ('', $2)`
)

func parseFeedCursor(cursor string) (epoch string, seq, version int64, err error) {
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	parts := strings.Split(string(text), ":")
	if err == nil && len(parts) == 3 {
		var seqErr, versionErr error
		seq, seqErr = strconv.ParseInt(parts[1], 10, 64)
		version, versionErr = strconv.ParseInt(parts[2], 10, 64)
		if seqErr == nil && versionErr == nil && seq >= 0 && version >= 0 {
			return parts[0], seq, version, nil
		}
	}
	return "", 0, 0, store.Errorf(store.CodeInvalid, "after: not a cursor that the feed has given out")
}

// expired is the error that names the oldest cursor from which the feed can be
// read: all that is left of it comes after it.
func (f *feedWalk) expired(q store.Querier) error {
	var before int64
	if err := q.QueryRow(`SELECT COALESCE((SELECT MIN(seq) FROM outbox_events) - 1, $1)`, f.last).Scan(&before); err != nil {
		return fmt.Errorf("reading the feed: %w", err)
	}
	return store.Errorf(store.CodeGone, "after: this cursor has expired; the oldest available is %s", f.cursor(before))
}

const eventColumns = `seq, event_id, event_type, created_at, occurred_at_ms, customer_id, subject_type, subject_id, schema_version, correlation_id, data`

// query merges branches that each walk an index in the order of the feed: of the
// events for all and of the customer's, and with types of each type. So it reads
// what it shows, however many events of others and of other types there are. seq
// is the first of the columns.
func (f *feedWalk) query(columns string) string {
	var branches []string
	branch := func(from string) {
		branches = append(branches, `SELECT `+columns+` FROM outbox_events `+from+` AND seq > $1 AND seq <= $2`)
	}
	switch {
	case f.customer == "" && len(f.types) == 0:
		branch(`WHERE TRUE`)
	case f.customer == "":
		branch(`NOT INDEXED WHERE event_type IN (` + f.places() + `)`)
	case len(f.types) == 0:
		branch(`INDEXED BY outbox_feed WHERE customer_id IS NULL`)
		branch(`INDEXED BY outbox_feed WHERE customer_id = $4`)
	}
	if f.customer != "" {
		for i := range f.types {
			ofType := fmt.Sprintf(`INDEXED BY outbox_types WHERE event_type = $%d AND customer_id `, i+5)
			branch(ofType + `IS NULL`)
			branch(ofType + `= $4`)
		}
	}
	return strings.Join(branches, ` UNION ALL `) + ` ORDER BY seq LIMIT $3`
}

// places are the placeholders of the types.
func (f *feedWalk) places() string {
	var places []string
	for i := range f.types {
		places = append(places, fmt.Sprintf("$%d", i+5))
	}
	return strings.Join(places, ", ")
}

func (f *feedWalk) args() []any {
	args := []any{f.after, f.last, f.limit, f.customer}
	for _, t := range f.types {
		args = append(args, string(t))
	}
	return args
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
