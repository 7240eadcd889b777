package webhook

import (
	"context"
	"database/sql"
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
	Attempt         int           `json:"attempt"` // from 1
	StartedAt       time.Time     `json:"started_at"`
	Status          *int          `json:"status"` // HTTP; null: no answer
	DurationMS      int64         `json:"duration_ms"`
	ErrorCategory   Category      `json:"error_category"` // "": accepted
	ErrorDetail     string        `json:"error_detail"`   // in words
	BlockedReason   BlockedReason `json:"blocked_reason"` // the guard's word; "": it has let the request through
	ResponseExcerpt string        `json:"response_excerpt"`
	RemoteAddr      string        `json:"remote_addr"`
}

// DeliveryDetail is a delivery with all its attempts, and why it is as it is.
type DeliveryDetail struct {
	Delivery
	Why
	Attempts []Attempt `json:"attempts"`
}

// derivedStatus is a delivery's state as it is: what was pending when its
// subscription was disabled is failed, before the sweep has written it down.
const derivedStatus = `CASE WHEN d.status = 'pending' AND d.generation < s.generation THEN 'failed' ELSE d.status END`

func (s *Service) selectDeliveries(q store.Querier, where string, args []any) ([]Delivery, error) {
	rows, err := q.Query(`
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

func errNoDelivery(id string) error {
	return store.Errorf(store.CodeNotFound, "delivery %s not found", id)
}

// Delivery returns one delivery with its attempts.
func (s *Service) Delivery(ctx context.Context, r DeliveryRequest) (DeliveryDetail, error) {
	var detail DeliveryDetail
	err := s.DB.View(ctx, func(q store.Querier) error { // the attempts are those that the delivery counts
		found, err := s.selectDeliveries(q, `WHERE d.delivery_id = $1 AND `+ofCustomer("s.customer_id", r.CustomerID), []any{r.DeliveryID, r.CustomerID})
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return errNoDelivery(r.DeliveryID)
		}
		detail.Delivery = found[0]
		if detail.Attempts, err = s.attempts(q, found[0].seq); err != nil {
			return err
		}
		detail.Why, err = s.why(ctx, q, &detail.Delivery)
		return err
	})
	return detail, err
}

func (s *Service) attempts(q store.Querier, delivery int64) ([]Attempt, error) {
	rows, err := q.Query(`
		SELECT attempt, started_at_ms, status, duration_ms, error_category, error_detail, response_excerpt, remote_addr, blocked_reason
		FROM webhook_attempts WHERE delivery_seq = $1 ORDER BY attempt`, delivery)
	if err != nil {
		return nil, fmt.Errorf("reading attempts: %w", err)
	}
	return store.Collect(rows, func(rows *sql.Rows) (Attempt, error) {
		var a Attempt
		var started int64
		var status sql.Null[int]
		err := rows.Scan(&a.Attempt, &started, &status, &a.DurationMS, &a.ErrorCategory, &a.ErrorDetail, &a.ResponseExcerpt, &a.RemoteAddr, &a.BlockedReason)
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
