package billing

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"jpintel/store"
)

// PaymentEvent is what a payment provider has told, and what has become of it.
// Its payload is not for people to read here: the provider shows it by its id.
type PaymentEvent struct {
	EventID           string      `json:"event_id"`
	Provider          string      `json:"provider"`
	Type              string      `json:"type"`
	CreatedAt         time.Time   `json:"created_at"` // by the provider's clock
	Livemode          bool        `json:"livemode"`
	APIVersion        *string     `json:"api_version"`
	ReceivedAt        time.Time   `json:"received_at"`
	LastReceivedAt    time.Time   `json:"last_received_at"`
	DeliveryCount     int         `json:"delivery_count"`
	Status            EventStatus `json:"status"`
	AttemptCount      int         `json:"attempt_count"`   // since it was received or rerun
	NextAttemptAt     *time.Time  `json:"next_attempt_at"` // null: nothing happens by itself
	CustomerID        *string     `json:"customer_id"`     // whom it names
	PaymentID         *string     `json:"payment_id"`
	OperationID       *string     `json:"operation_id"` // that it has begun
	LastError         *string     `json:"last_error"`   // or why it is held or ignored
	PayloadHash       string      `json:"payload_sha256"`
	SemanticHash      string      `json:"semantic_sha256"`
	OtherSemanticHash *string     `json:"other_semantic_sha256"` // of a delivery that told something else

	seq     int64
	payload []byte
}

const eventColumns = `event_seq, event_id, provider, event_type, event_created_ms, livemode, api_version, received_at_ms, last_received_at_ms, delivery_count,
	processing_status, attempt_count, next_attempt_at_ms, related_customer_id, related_payment_id, related_operation_id, last_error,
	payload_hash, semantic_hash, other_semantic_hash`

func scanEvent(row interface{ Scan(...any) error }, more ...any) (*PaymentEvent, error) {
	var e PaymentEvent
	var created, received, last int64
	var next sql.NullInt64
	err := row.Scan(append([]any{&e.seq, &e.EventID, &e.Provider, &e.Type, &created, &e.Livemode, &e.APIVersion, &received, &last, &e.DeliveryCount,
		&e.Status, &e.AttemptCount, &next, &e.CustomerID, &e.PaymentID, &e.OperationID, &e.LastError,
		&e.PayloadHash, &e.SemanticHash, &e.OtherSemanticHash}, more...)...)
	if err != nil {
		return nil, err
	}
	e.CreatedAt, e.ReceivedAt, e.LastReceivedAt, e.NextAttemptAt = store.FromMS(created), store.FromMS(received), store.FromMS(last), instant(next)
	return &e, nil
}

// Valid reports whether s is a state.
func (s EventStatus) Valid() bool {
	switch s {
	case EventReceived, EventHeld, EventFulfilled, EventIgnored, EventFailed:
		return true
	}
	return false
}

func getEvent(q store.Querier, id string) (*PaymentEvent, error) {
	e, err := scanEvent(q.QueryRow(`SELECT `+eventColumns+` FROM payment_webhook_events WHERE provider = $1 AND event_id = $2`, providerStripe, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, store.Errorf(store.CodeNotFound, "payment event %s not found", id)
	}
	if err != nil {
		return nil, fmt.Errorf("reading a payment event: %w", err)
	}
	return e, nil
}

// dueEvent reads the event that is to be worked on next, with its payload; nil
// where none is due.
func dueEvent(q store.Querier, now time.Time) (*PaymentEvent, error) {
	var payload []byte
	e, err := scanEvent(q.QueryRow(`
		SELECT `+eventColumns+`, payload FROM payment_webhook_events WHERE next_attempt_at_ms <= $1 ORDER BY next_attempt_at_ms, event_seq LIMIT 1`,
		now.UnixMilli()), &payload)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for a payment event: %w", err)
	}
	e.payload = payload
	return e, nil
}

// nextEvent is when a payment event is to be worked on next; zero where none is.
func nextEvent(ctx context.Context, db *store.DB) (time.Time, error) {
	var at sql.NullInt64
	err := db.Reader(ctx).QueryRow(`SELECT MIN(next_attempt_at_ms) FROM payment_webhook_events WHERE next_attempt_at_ms IS NOT NULL`).Scan(&at)
	return orZero(at), err
}

// settle writes down what has come of an attempt on the event; next is when it is
// tried again, zero: not by itself. It does nothing where somebody has had the
// event run again since it was read.
func (e *PaymentEvent) settle(tx *store.Tx, a applied, next time.Time) error {
	_, err := tx.Exec(`
		UPDATE payment_webhook_events SET processing_status = $1, attempt_count = attempt_count + 1, next_attempt_at_ms = $2, last_error = $3,
		  related_customer_id = COALESCE($4, related_customer_id), related_payment_id = COALESCE($5, related_payment_id),
		  related_operation_id = COALESCE($6, related_operation_id)
		WHERE event_seq = $7 AND processing_status = $8 AND attempt_count = $9`,
		string(a.status), ms(next), store.Nullable(a.reason), store.Nullable(a.customerID), store.Nullable(a.paymentID), store.Nullable(a.operationID),
		e.seq, string(e.Status), e.AttemptCount)
	if err != nil {
		return fmt.Errorf("noting what has come of a payment event: %w", err)
	}
	return nil
}

// ms is an instant as it is stored; NULL for none.
func ms(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at.UnixMilli()
}

// again are the assignments that have an event be worked on anew; $1 is now.
const again = `processing_status = 'received', attempt_count = 0, next_attempt_at_ms = $1`

// rerunHeld has what is held for a customer be looked at again, and what is held
// without naming one: those that it waited for may be there now. Held are only as
// many as payments that something is wrong with.
func rerunHeld(tx *store.Tx, customer string) error {
	_, err := tx.Exec(`
		UPDATE payment_webhook_events SET `+again+`
		WHERE processing_status = 'held' AND (related_customer_id = $2 OR related_customer_id IS NULL)`, tx.NowMS(), customer)
	if err != nil {
		return fmt.Errorf("running held payment events again: %w", err)
	}
	return nil
}

// PaymentEventsRequest asks for payment events.
type PaymentEventsRequest struct {
	store.PageRequest
	Status     EventStatus `query:"status" json:"-"`
	CustomerID string      `query:"customer" json:"-"`
	PaymentID  string      `query:"payment" json:"-"`
}

// PaymentEvents lists payment events, the last received first.
func (s *Service) PaymentEvents(ctx context.Context, r PaymentEventsRequest) (page store.Page[*PaymentEvent], err error) {
	if r.Status != "" && !r.Status.Valid() {
		return page, store.Errorf(store.CodeInvalid, "status: want received, held, fulfilled, ignored or failed")
	}
	after, rows, err := r.Position()
	if err != nil {
		return page, err
	}
	found, err := s.DB.Reader(ctx).Query(`
		SELECT `+eventColumns+` FROM payment_webhook_events
		WHERE ($1 = 0 OR event_seq < $1) AND ($2 = '' OR processing_status = $2) AND ($3 = '' OR related_customer_id = $3) AND ($4 = '' OR related_payment_id = $4)
		ORDER BY event_seq DESC LIMIT $5`, after, string(r.Status), r.CustomerID, r.PaymentID, rows)
	if err != nil {
		return page, fmt.Errorf("listing payment events: %w", err)
	}
	all, err := store.Collect(found, func(r *sql.Rows) (*PaymentEvent, error) { return scanEvent(r) })
	if err != nil {
		return page, fmt.Errorf("listing payment events: %w", err)
	}
	return store.NewPage(all, rows, func(e *PaymentEvent) int64 { return e.seq }), nil
}

// PaymentEventRequest names a payment event.
type PaymentEventRequest struct {
	EventID string `path:"id" json:"-"`
}

// PaymentEvent reads a payment event.
func (s *Service) PaymentEvent(ctx context.Context, r PaymentEventRequest) (*PaymentEvent, error) {
	return getEvent(s.DB.Reader(ctx), r.EventID)
}

// RerunPaymentEvent has an event be worked on again, whatever has come of it:
// what it says leads to the same facts however often it is read.
func (s *Service) RerunPaymentEvent(ctx context.Context, r PaymentEventRequest) (e *PaymentEvent, err error) {
	err = s.DB.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(`UPDATE payment_webhook_events SET `+again+` WHERE provider = $2 AND event_id = $3`, tx.NowMS(), providerStripe, r.EventID); err != nil {
			return fmt.Errorf("running a payment event again: %w", err)
		}
		s.wake(tx)
		e, err = getEvent(tx, r.EventID)
		return err
	})
	return e, err
}

// rerunStep is how many events one transaction has run again.
const rerunStep = 300

// RerunPaymentEventsRequest has all events in one state run again.
type RerunPaymentEventsRequest struct {
	Status EventStatus `json:"status"` // held or failed
}

// Rerun says how many events are run again.
type Rerun struct {
	Events int64 `json:"events"`
}

// RerunPaymentEvents has all events that are held, or have failed, be worked on
// again. It goes through them once.
func (s *Service) RerunPaymentEvents(ctx context.Context, r RerunPaymentEventsRequest) (rerun Rerun, err error) {
	if r.Status != EventHeld && r.Status != EventFailed {
		return rerun, store.Errorf(store.CodeInvalid, "status: want held or failed")
	}
	var last int64
	if err := s.DB.Reader(ctx).QueryRow(`SELECT COALESCE(MAX(event_seq), 0) FROM payment_webhook_events WHERE processing_status = $1`, string(r.Status)).Scan(&last); err != nil {
		return rerun, fmt.Errorf("looking for payment events: %w", err)
	}
	for from := int64(0); from < last; {
		if err := s.DB.WriteBackground(ctx, func(tx *store.Tx) error {
			step, n, err := rerunSome(tx, r.Status, from, last)
			from, rerun.Events = step, rerun.Events+n
			s.wake(tx)
			return err
		}); err != nil {
			return rerun, err
		}
	}
	return rerun, nil
}

// rerunSome has the next events in a state run again, and returns how far it has
// come: last, where none is left.
func rerunSome(tx *store.Tx, status EventStatus, from, last int64) (to, n int64, err error) {
	err = tx.QueryRow(`
		SELECT COALESCE(MAX(event_seq), $3) FROM (
		  SELECT event_seq FROM payment_webhook_events WHERE processing_status = $1 AND event_seq > $2 AND event_seq <= $3 ORDER BY event_seq LIMIT $4)`,
		string(status), from, last, rerunStep).Scan(&to)
	if err != nil {
		return from, 0, fmt.Errorf("looking for payment events: %w", err)
	}
	n, err = tx.Update(`UPDATE payment_webhook_events SET `+again+` WHERE processing_status = $2 AND event_seq > $3 AND event_seq <= $4`,
		tx.NowMS(), string(status), from, to)
	if err != nil {
		return from, 0, fmt.Errorf("running payment events again: %w", err)
	}
	return to, n, nil
}
