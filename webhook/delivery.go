package webhook

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"jpintel/store"
)

// Status is the state of a delivery.
type Status string

// The states. pending goes to success, to pending again with a later next
// attempt, to dead_letter when the attempts are exhausted, and to failed when
// the subscription is disabled, deleted or no longer entitled.
const (
	StatusPending    Status = "pending"
	StatusSuccess    Status = "success"
	StatusFailed     Status = "failed"
	StatusDeadLetter Status = "dead_letter"
)

var statuses = []Status{StatusPending, StatusSuccess, StatusFailed, StatusDeadLetter}

// Delivery is one (event, subscription) pair.
type Delivery struct {
	DeliveryID        string     `json:"delivery_id"`
	SubscriptionID    string     `json:"subscription_id"`
	EventID           string     `json:"event_id"`
	EventType         Type       `json:"event_type"`
	Status            Status     `json:"status"`
	Reason            *string    `json:"reason"` // of failed, in words
	AttemptCount      int        `json:"attempt_count"`
	LastStatus        *int       `json:"last_status"` // HTTP; null: no answer yet
	LastLatencyMS     *int64     `json:"last_latency_ms"`
	LastErrorCategory *Category  `json:"last_error_category"`
	NextAttemptAt     *time.Time `json:"next_attempt_at"` // the earliest
	CreatedAt         time.Time  `json:"created_at"`
	FinishedAt        *time.Time `json:"finished_at"`

	seq int64
}

// Attempt is one HTTP request of a delivery.
type Attempt struct {
	Attempt         int       `json:"attempt"` // from 1
	StartedAt       time.Time `json:"started_at"`
	Status          *int      `json:"status"` // HTTP; null: no answer
	DurationMS      int64     `json:"duration_ms"`
	ErrorCategory   Category  `json:"error_category"` // "": accepted
	ErrorDetail     string    `json:"error_detail"`   // in words
	ResponseExcerpt string    `json:"response_excerpt"`
	RemoteAddr      string    `json:"remote_addr"`
}

// DeliveryDetail is a delivery with all its attempts.
type DeliveryDetail struct {
	Delivery
	Attempts []Attempt `json:"attempts"`
}

// DeliveriesRequest asks for deliveries, newest first. The empty filters pass
// everything.
type DeliveriesRequest struct {
	CustomerID     string `bind:"customer" json:"-"` // "": any customer's, for the operator
	SubscriptionID string `path:"id" json:"-"`       // "": all of them, for the operator
	Status         Status `query:"status" json:"-"`
	EventType      Type   `query:"event_type" json:"-"`
	EventID        string `query:"event_id" json:"-"`
	Since          string `query:"since" json:"-"` // RFC 3339, inclusive, of the delivery's creation
	Until          string `query:"until" json:"-"` // exclusive
	store.PageRequest
}

// Deliveries lists the deliveries of one subscription.
func (s *Service) Deliveries(ctx context.Context, r DeliveriesRequest) (store.Page[Delivery], error) {
	where, args, err := s.deliveryFilter(ctx, r)
	if err != nil {
		return store.Page[Delivery]{}, err
	}
	before, rows, err := r.Position()
	if err != nil {
		return store.Page[Delivery]{}, err
	}
	args = append(args, newest(before), rows)
	found, err := s.selectDeliveries(ctx, where+fmt.Sprintf(` AND d.delivery_seq < $%d ORDER BY d.delivery_seq DESC LIMIT $%d`, len(args)-1, len(args)), args)
	if err != nil {
		return store.Page[Delivery]{}, err
	}
	return store.NewPage(found, rows, func(d Delivery) int64 { return d.seq }), nil
}

// deliveryFilter makes the WHERE of a list. $1 is the subscription, or ”.
func (s *Service) deliveryFilter(ctx context.Context, r DeliveriesRequest) (string, []any, error) {
	where, args := `WHERE $1 = ''`, []any{r.SubscriptionID}
	if r.SubscriptionID != "" {
		if _, err := s.Subscription(ctx, SubscriptionRequest{r.CustomerID, r.SubscriptionID}); err != nil {
			return "", nil, err
		}
		where = `WHERE d.sub_seq = (SELECT sub_seq FROM webhook_subscriptions WHERE subscription_id = $1)`
	}
	and := func(condition string, arg any) {
		args = append(args, arg)
		where += fmt.Sprintf(" AND "+condition, len(args))
	}
	if r.Status != "" {
		if !slices.Contains(statuses, r.Status) {
			return "", nil, store.Errorf(store.CodeInvalid, "status: want pending, success, failed or dead_letter")
		}
		and(derivedStatus+` = $%d`, r.Status)
	}
	if r.EventType != "" {
		and(`e.event_type = $%d`, r.EventType)
	}
	if r.EventID != "" {
		and(`e.event_id = $%d`, r.EventID)
	}
	for _, bound := range []struct{ name, value, condition string }{{"since", r.Since, `d.created_at_ms >= $%d`}, {"until", r.Until, `d.created_at_ms < $%d`}} {
		if bound.value == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, bound.value)
		if err != nil {
			return "", nil, store.Errorf(store.CodeInvalid, "%s: want a time like 2026-05-14T09:00:00+09:00", bound.name)
		}
		and(bound.condition, at.UnixMilli())
	}
	return where, args, nil
}

// derivedStatus is a delivery's state as it is: what was pending when its
// subscription was disabled is failed, before the sweep has written it down.
const derivedStatus = `CASE WHEN d.status = 'pending' AND d.generation < s.generation THEN 'failed' ELSE d.status END`

func (s *Service) selectDeliveries(ctx context.Context, where string, args []any) ([]Delivery, error) {
	rows, err := s.DB.Reader(ctx).Query(`
		SELECT d.delivery_seq, d.delivery_id, s.subscription_id, e.event_id, e.event_type, `+derivedStatus+`,
		  CASE WHEN d.status = 'pending' AND d.generation < s.generation THEN $`+fmt.Sprint(len(args)+1)+` ELSE d.reason END,
		  d.attempt_count, d.last_status, d.last_latency_ms, d.last_error_category,
		  CASE WHEN d.generation < s.generation THEN NULL ELSE d.next_attempt_at_ms END, d.created_at_ms,
		  COALESCE(d.finished_at_ms, CASE WHEN d.generation < s.generation THEN s.disabled_at_ms END)
		FROM webhook_deliveries d
		JOIN webhook_subscriptions s ON s.sub_seq = d.sub_seq
		JOIN outbox_events e ON e.seq = d.event_seq `+where, append(slices.Clone(args), reasonDisabled)...)
	if err != nil {
		return nil, fmt.Errorf("reading deliveries: %w", err)
	}
	return store.Collect(rows, func(rows *sql.Rows) (Delivery, error) {
		var d Delivery
		var status sql.Null[int]
		var latency, next, finished sql.Null[int64]
		var category sql.Null[Category]
		var reason sql.Null[string]
		var created int64
		err := rows.Scan(&d.seq, &d.DeliveryID, &d.SubscriptionID, &d.EventID, &d.EventType, &d.Status, &reason, &d.AttemptCount,
			&status, &latency, &category, &next, &created, &finished)
		d.Reason, d.LastStatus, d.LastLatencyMS, d.LastErrorCategory = pointer(reason), pointer(status), pointer(latency), pointer(category)
		d.NextAttemptAt, d.FinishedAt = s.local(next), s.local(finished)
		d.CreatedAt = store.FromMS(created).In(s.DB.Location)
		return d, err
	})
}

// DeliveryRequest names one delivery.
type DeliveryRequest struct {
	CustomerID string `bind:"customer" json:"-"` // "": any customer's, for the operator
	DeliveryID string `path:"id" json:"-"`
}

// Delivery returns one delivery with its attempts.
func (s *Service) Delivery(ctx context.Context, r DeliveryRequest) (DeliveryDetail, error) {
	found, err := s.selectDeliveries(ctx, `WHERE d.delivery_id = $1 AND `+ofCustomer("s.customer_id", r.CustomerID), []any{r.DeliveryID, r.CustomerID})
	if err != nil {
		return DeliveryDetail{}, err
	}
	if len(found) == 0 {
		return DeliveryDetail{}, store.Errorf(store.CodeNotFound, "delivery %s not found", r.DeliveryID)
	}
	attempts, err := s.attempts(ctx, found[0].seq)
	return DeliveryDetail{found[0], attempts}, err
}

func (s *Service) attempts(ctx context.Context, delivery int64) ([]Attempt, error) {
	rows, err := s.DB.Reader(ctx).Query(`
		SELECT attempt, started_at_ms, status, duration_ms, error_category, error_detail, response_excerpt, remote_addr
		FROM webhook_attempts WHERE delivery_seq = $1 ORDER BY attempt`, delivery)
	if err != nil {
		return nil, fmt.Errorf("reading attempts: %w", err)
	}
	return store.Collect(rows, func(rows *sql.Rows) (Attempt, error) {
		var a Attempt
		var started int64
		var status sql.Null[int]
		err := rows.Scan(&a.Attempt, &started, &status, &a.DurationMS, &a.ErrorCategory, &a.ErrorDetail, &a.ResponseExcerpt, &a.RemoteAddr)
		a.StartedAt, a.Status = store.FromMS(started).In(s.DB.Location), pointer(status)
		return a, err
	})
}

// The reasons of failed deliveries.
const (
	reasonDisabled     = "the subscription was disabled"
	reasonFree         = "the customer is not on the paid tier"
	reasonOptedOut     = "the customer stopped all webhooks"
	reasonUnsubscribed = "the subscription no longer has the event's type"
	reasonForeign      = "the event belongs to another customer"
)

// work is one delivery that is due, with what its request needs.
type work struct {
	seq          int64
	subSeq       int64
	deliveryID   string
	attempts     int // made so far
	scheduleBase int
	dueMS        int64
	envelope     Envelope
	event        storedEvent
	target       *target
	refused      string // why it must not be sent; "": it may
	probing      bool   // it has one of probation's slots; the queue's
}

// target is where a subscription's deliveries go, read when they are claimed:
// an id in a queue row never authorizes a send.
type target struct {
	subscriptionID string
	customerID     string
	url            string
	generation     int64
	events         []Type
	secrets        []string // newest first
	disabled       bool
	probation      bool
	refused        string
}

// claimed is what a claim found.
type claimed struct {
	due       []work
	next      int64 // when the first delivery that was not read is due; noneDue
	probation bool  // the subscription's, as the file has it
}

const claimQuery = `
	SELECT d.delivery_seq, d.delivery_id, d.attempt_count, d.schedule_base, d.next_attempt_at_ms, d.envelope,
	  e.seq, e.event_id, e.event_type, COALESCE(e.customer_id, ''), e.subject_type, e.subject_id, e.occurred_at_ms,
	  e.created_at, e.created_at_ms, e.schema_version, COALESCE(e.correlation_id, ''), e.data
	FROM webhook_deliveries d JOIN outbox_events e ON e.seq = d.event_seq
	WHERE d.sub_seq = $1 AND d.status = 'pending' AND d.generation = $2 ORDER BY d.next_attempt_at_ms LIMIT $3`

// claim reads up to limit deliveries of a subscription in the order of their
// due times, with at most maxBytes of bodies (one delivery is always read).
// Nothing is written: what is in flight is in this process's memory, and a
// crash leaves it pending. A disabled subscription has nothing to claim: the
// sweep fails what is left.
func claim(ctx context.Context, db *store.DB, subSeq int64, now time.Time, limit, maxBytes int) (claimed, error) {
	q := db.Reader(ctx)
	found := claimed{next: noneDue}
	t, err := readTarget(q, db.Keys, subSeq, now)
	if err != nil || t.disabled {
		return found, err
	}
	found.probation = t.probation
	rows, err := q.Query(claimQuery, subSeq, t.generation, limit+1)
	if err != nil {
		return found, fmt.Errorf("reading due deliveries: %w", err)
	}
	defer rows.Close()
	bytes := 0
	for rows.Next() {
		w := work{subSeq: subSeq, target: t}
		e := &w.event
		if err := rows.Scan(&w.seq, &w.deliveryID, &w.attempts, &w.scheduleBase, &w.dueMS, &w.envelope,
			&e.seq, &e.id, &e.typ, &e.customer, &e.subjectType, &e.subjectID, &e.occurredAtMS,
			&e.createdAt, &e.createdAtMS, &e.schemaVersion, &e.correlationID, &e.data); err != nil {
			return found, fmt.Errorf("reading due deliveries: %w", err)
		}
		if w.dueMS > now.UnixMilli() || len(found.due) == limit || len(found.due) > 0 && bytes+len(e.data) > maxBytes {
			found.next = w.dueMS
			return found, nil
		}
		bytes += len(e.data)
		w.refused = t.refuses(&w)
		found.due = append(found.due, w)
	}
	return found, rows.Err()
}

// refuses says why a delivery must not be sent to this target, or "".
func (t *target) refuses(w *work) string {
	switch {
	case t.refused != "":
		return t.refused
	case w.event.customer != "" && w.event.customer != t.customerID:
		return reasonForeign
	case !slices.Contains(t.events, w.event.typ):
		return reasonUnsubscribed
	}
	return ""
}

func readTarget(q store.Querier, keys *store.Keyring, subSeq int64, now time.Time) (*target, error) {
	var t target
	var events string
	var optedOut sql.Null[int64]
	var tier store.Tier
	err := q.QueryRow(`
		SELECT s.subscription_id, s.customer_id, s.url, s.generation, s.events, s.disabled_at_ms IS NOT NULL, s.probation, c.tier, c.opted_out_at_ms
		FROM webhook_subscriptions s JOIN customers c ON c.customer_id = s.customer_id WHERE s.sub_seq = $1`, subSeq).
		Scan(&t.subscriptionID, &t.customerID, &t.url, &t.generation, &events, &t.disabled, &t.probation, &tier, &optedOut)
	if err != nil {
		return nil, fmt.Errorf("reading subscription: %w", err)
	}
	if t.events, err = decodeTypes(events); err != nil {
		return nil, fmt.Errorf("subscription %s: %w", t.subscriptionID, err)
	}
	switch {
	case tier != store.TierPaid:
		t.refused = reasonFree
	case optedOut.Valid:
		t.refused = reasonOptedOut
	}
	t.secrets, err = readSecrets(q, keys, subSeq, t.subscriptionID, now)
	return &t, err
}

// readSecrets opens the secrets that sign at this time, newest first.
func readSecrets(q store.Querier, keys *store.Keyring, subSeq int64, subscriptionID string, now time.Time) ([]string, error) {
	rows, err := q.Query(`
		SELECT version, sealed FROM webhook_secrets
		WHERE sub_seq = $1 AND (expires_at_ms IS NULL OR expires_at_ms > $2) ORDER BY version DESC`, subSeq, now.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("reading signing secrets: %w", err)
	}
	return store.Collect(rows, func(rows *sql.Rows) (string, error) {
		var version int64
		var sealed []byte
		if err := rows.Scan(&version, &sealed); err != nil {
			return "", fmt.Errorf("reading signing secrets: %w", err)
		}
		secret, err := keys.Unseal(sealed, secretContext(subscriptionID, version))
		if err != nil {
			return "", fmt.Errorf("signing secret of %s: %w", subscriptionID, err)
		}
		return string(secret), nil
	})
}

// request is what the sender needs for the next attempt.
func (w *work) request() Request {
	return Request{
		URL: w.target.url, Secrets: w.target.secrets, EventID: w.event.id, EventType: w.event.typ, DeliveryID: w.deliveryID,
		Attempt: w.attempts + 1, Body: w.event.render(w.envelope, w.target.subscriptionID),
	}
}

// fail writes down that a delivery is given up without a request.
func fail(tx *store.Tx, t totals, w *work, reason string) error {
	n, err := tx.Update(`
		UPDATE webhook_deliveries SET status = 'failed', reason = $1, next_attempt_at_ms = NULL, finished_at_ms = $2
		WHERE delivery_seq = $3 AND status = 'pending'`, reason, tx.NowMS(), w.seq)
	if err != nil {
		return fmt.Errorf("failing delivery: %w", err)
	}
	t.move(n, StatusPending, StatusFailed)
	return nil
}

// settle writes down what an attempt came to: the delivery moves from pending
// to success, to a later attempt, or to the dead letters.
func settle(tx *store.Tx, t totals, w *work, r Result, to Status, nextMS int64) error {
	var next, finished any
	if to == StatusPending {
		next = nextMS
	} else {
		finished = tx.NowMS()
	}
	n, err := tx.Update(`
		UPDATE webhook_deliveries SET attempt_count = $1, last_status = $2, last_latency_ms = $3, last_error_category = $4,
		  status = $5, next_attempt_at_ms = $6, finished_at_ms = $7
		WHERE delivery_seq = $8 AND attempt_count = $9 AND status = 'pending'`,
		w.attempts+1, nullInt(r.Status), r.Duration.Milliseconds(), string(r.Category), string(to), next, finished, w.seq, w.attempts)
	if err != nil {
		return fmt.Errorf("settling delivery: %w", err)
	}
	t.move(n, StatusPending, to)
	if n == 0 {
		err = settleLate(tx, t, w, r)
	}
	if err != nil {
		return err
	}
	return addAttempt(tx, w, r)
}

// settleLate is settle for a delivery that was failed while its request was
// under way: it keeps that state, unless the receiver has accepted it.
func settleLate(tx *store.Tx, t totals, w *work, r Result) error {
	to := StatusFailed
	if r.OK() {
		to = StatusSuccess
	}
	n, err := tx.Update(`
		UPDATE webhook_deliveries SET attempt_count = $1, last_status = $2, last_latency_ms = $3, last_error_category = $4,
		  status = $5, reason = CASE WHEN $5 = 'failed' THEN reason END
		WHERE delivery_seq = $6 AND attempt_count = $7 AND status = 'failed'`,
		w.attempts+1, nullInt(r.Status), r.Duration.Milliseconds(), string(r.Category), string(to), w.seq, w.attempts)
	if err != nil {
		return fmt.Errorf("settling delivery: %w", err)
	}
	if n == 0 {
		return errors.New("settling delivery: its attempt is written down already") // unreachable while one process sends
	}
	t.move(n, StatusFailed, to)
	return nil
}

func addAttempt(tx *store.Tx, w *work, r Result) error {
	_, err := tx.Exec(`
		INSERT INTO webhook_attempts (delivery_seq, attempt, started_at_ms, duration_ms, status, error_category, error_detail, response_excerpt, remote_addr)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		w.seq, w.attempts+1, r.StartedAt.UnixMilli(), r.Duration.Milliseconds(), nullInt(r.Status), string(r.Category), r.Detail, r.Excerpt, r.RemoteAddr)
	if err != nil {
		return fmt.Errorf("adding attempt: %w", err)
	}
	return nil
}

func nullInt(n int) any {
	if n == 0 {
		return nil
	}
	return n
}
