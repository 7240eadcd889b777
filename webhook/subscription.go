package webhook

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"jpintel/store"
)

// Reason is why a subscription is disabled.
type Reason string

// The reasons. The service sets all but the last two.
const (
	ReasonStreak             Reason = "4xx_streak"           // ten answers in a row that retrying will not mend
	ReasonGone               Reason = "410_gone"             // the receiver said that it is gone
	ReasonCostCap            Reason = "cost_cap"             // over the day's attempts
	ReasonDeadLetterOverflow Reason = "dead_letter_overflow" // too many dead letters
	ReasonFailing            Reason = "failing"              // only failures for too long
	ReasonTier               Reason = "tier"                 // the customer is not on the paid tier
	ReasonUser               Reason = "user"                 // its owner
	ReasonOptOut             Reason = "user_opt_out"         // its owner stopped all webhooks
)

// Subscription is a customer's registered URL, as its owner sees it.
type Subscription struct {
	SubscriptionID  string     `json:"subscription_id"`
	URL             string     `json:"url"`
	Events          []Type     `json:"events"`
	Filter          Filter     `json:"filter"`
	Envelope        Envelope   `json:"envelope"`
	Description     string     `json:"description"`
	State           string     `json:"state"` // active or disabled
	DisabledAt      *time.Time `json:"disabled_at"`
	DisabledReason  *Reason    `json:"disabled_reason"`
	FailuresStreak  int        `json:"failures_streak"`
	FailingSince    *time.Time `json:"failing_since"`    // the first failure after the last success, or after it was enabled; null: none
	LastDeliveryAt  *time.Time `json:"last_delivery_at"` // the last attempt's end
	LastSuccessAt   *time.Time `json:"last_success_at"`
	LastStatus      *int       `json:"last_status"`       // HTTP; null: no answer
	SuccessRateHour *float64   `json:"success_rate_hour"` // 0 to 1 over the last hour's attempts; null: none
	CreatedAt       time.Time  `json:"created_at"`

	seq        int64
	customerID string
}

// SubscriptionsRequest asks for a customer's subscriptions, newest first.
type SubscriptionsRequest struct {
	CustomerID string `bind:"customer" json:"-"` // "": every customer's, for the operator
	store.PageRequest
}

// Subscriptions lists subscriptions, deleted ones left out.
func (s *Service) Subscriptions(ctx context.Context, r SubscriptionsRequest) (store.Page[Subscription], error) {
	before, rows, err := r.Position()
	if err != nil {
		return store.Page[Subscription]{}, err
	}
	found, err := s.selectSubscriptions(ctx, subscriptionsOf(r.CustomerID), r.CustomerID, newest(before), rows)
	if err != nil {
		return store.Page[Subscription]{}, err
	}
	return store.NewPage(found, rows, func(sub Subscription) int64 { return sub.seq }), nil
}

func subscriptionsOf(customer string) string {
	return `WHERE ` + ofCustomer("customer_id", customer) + ` AND deleted_at_ms IS NULL AND sub_seq < $3 ORDER BY sub_seq DESC LIMIT $4`
}

// SubscriptionRequest names one subscription.
type SubscriptionRequest struct {
	CustomerID     string `bind:"customer" json:"-"` // "": any customer's, for the operator
	SubscriptionID string `path:"id" json:"-"`
}

// Subscription returns one subscription of the customer.
func (s *Service) Subscription(ctx context.Context, r SubscriptionRequest) (Subscription, error) {
	found, err := s.selectSubscriptions(ctx, `
		WHERE `+ofCustomer("customer_id", r.CustomerID)+` AND deleted_at_ms IS NULL AND subscription_id = $3`, r.CustomerID, r.SubscriptionID)
	if err != nil {
		return Subscription{}, err
	}
	if len(found) == 0 {
		return Subscription{}, errNoSubscription(r.SubscriptionID)
	}
	return found[0], nil
}

// ofCustomer is the condition that every read of a customer's object carries,
// on $2. The operator's reads have no customer.
func ofCustomer(column, customer string) string {
	if customer == "" {
		return `$2 = ''`
	}
	return column + ` = $2`
}

// newest turns a page's position into the bound of a list that runs backwards.
func newest(before int64) int64 {
	if before == 0 {
		return math.MaxInt64
	}
	return before
}

func errNoSubscription(id string) error {
	return store.Errorf(store.CodeNotFound, "subscription %s not found", id)
}

const selectSubscription = `
	SELECT sub_seq, customer_id, subscription_id, url, events, filter, envelope, description, disabled_at_ms, disabled_reason,
	  failures_streak, failing_since_ms, last_delivery_at_ms, last_success_at_ms, last_status, created_at_ms,
	  (SELECT 1.0 * SUM(ok) / SUM(ok + failed) FROM webhook_rates r WHERE r.sub_seq = s.sub_seq AND r.bucket_ms > $1)
	FROM webhook_subscriptions s `

// selectSubscriptions reads subscriptions; $1 is where the last hour begins.
func (s *Service) selectSubscriptions(ctx context.Context, where string, args ...any) ([]Subscription, error) {
	since := time.Now().Add(-rateWindow).UnixMilli()
	rows, err := s.DB.Reader(ctx).Query(selectSubscription+where, append([]any{since}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("reading subscriptions: %w", err)
	}
	return store.Collect(rows, s.scanSubscription)
}

func (s *Service) scanSubscription(rows *sql.Rows) (Subscription, error) {
	var sub Subscription
	var events, filter string
	var disabledAt, failingSince, lastDelivery, lastSuccess sql.Null[int64]
	var reason sql.Null[Reason]
	var status sql.Null[int]
	var rate sql.Null[float64]
	var created int64
	if err := rows.Scan(&sub.seq, &sub.customerID, &sub.SubscriptionID, &sub.URL, &events, &filter, &sub.Envelope, &sub.Description, &disabledAt, &reason,
		&sub.FailuresStreak, &failingSince, &lastDelivery, &lastSuccess, &status, &created, &rate); err != nil {
		return sub, fmt.Errorf("reading subscriptions: %w", err)
	}
	sub.State = "active"
	if disabledAt.Valid {
		sub.State = "disabled"
	}
	sub.DisabledAt, sub.LastDeliveryAt, sub.LastSuccessAt = s.local(disabledAt), s.local(lastDelivery), s.local(lastSuccess)
	sub.FailingSince = s.local(failingSince)
	sub.DisabledReason, sub.LastStatus, sub.SuccessRateHour = pointer(reason), pointer(status), pointer(rate)
	sub.CreatedAt = store.FromMS(created).In(s.DB.Location)
	if err := json.Unmarshal([]byte(events), &sub.Events); err != nil {
		return sub, fmt.Errorf("subscription %s: events: %w", sub.SubscriptionID, err)
	}
	if err := json.Unmarshal([]byte(filter), &sub.Filter); err != nil {
		return sub, fmt.Errorf("subscription %s: filter: %w", sub.SubscriptionID, err)
	}
	return sub, nil
}

// local is a stored instant in the time zone that customers are shown.
func (s *Service) local(ms sql.Null[int64]) *time.Time {
	if !ms.Valid {
		return nil
	}
	t := store.FromMS(ms.V).In(s.DB.Location)
	return &t
}

func pointer[T any](v sql.Null[T]) *T {
	if !v.Valid {
		return nil
	}
	return &v.V
}

// NoContent is the answer of calls that have nothing to tell.
type NoContent struct{}

// HTTPStatus is 204 No Content.
func (NoContent) HTTPStatus() int { return 204 }

// Unsubscribe deletes a subscription: it is gone from every list, and nothing
// is sent to it any more. Deleting it again is fine.
func (s *Service) Unsubscribe(ctx context.Context, r SubscriptionRequest) (NoContent, error) {
	return NoContent{}, s.DB.Write(ctx, func(tx *store.Tx) error {
		var seq int64
		err := tx.QueryRow(`SELECT sub_seq FROM webhook_subscriptions WHERE subscription_id = $1 AND customer_id = $2`,
			r.SubscriptionID, r.CustomerID).Scan(&seq)
		if errors.Is(err, sql.ErrNoRows) {
			return errNoSubscription(r.SubscriptionID)
		}
		if err != nil {
			return fmt.Errorf("reading subscription: %w", err)
		}
		if _, err := disable(tx, seq, ReasonUser); err != nil {
			return err
		}
		if err := forgetMissed(tx, seq); err != nil {
			return err
		}
		s.changed(tx, seq)
		_, err = tx.Exec(`UPDATE webhook_subscriptions SET deleted_at_ms = COALESCE(deleted_at_ms, $1), disabled_reason = 'user' WHERE sub_seq = $2`, tx.NowMS(), seq)
		return err
	})
}

// disable stops a subscription in one row: its generation rises, and pending
// deliveries of an older generation are failed, which reads derive and a sweep
// writes down. Its replays stop, and what it misses is noted from here on. It
// reports whether the subscription was active.
func disable(tx *store.Tx, subSeq int64, reason Reason) (bool, error) {
	n, err := tx.Update(`
		UPDATE webhook_subscriptions SET disabled_at_ms = $1, disabled_reason = $2, generation = generation + 1, sweep = 1
		WHERE sub_seq = $3 AND disabled_at_ms IS NULL`, tx.NowMS(), reason, subSeq)
	if err != nil {
		return false, fmt.Errorf("disabling subscription: %w", err)
	}
	if n == 0 {
		return false, nil
	}
	return true, errors.Join(openMissed(tx, subSeq), stopReplays(tx, subSeq))
}

// enable starts a subscription again with what is committed from now on; what
// an earlier generation left behind stays failed, and what came meanwhile is
// noted as missed.
func enable(tx *store.Tx, subSeq int64) error {
	_, err := tx.Exec(`
		UPDATE webhook_subscriptions SET disabled_at_ms = NULL, disabled_reason = NULL, failures_streak = 0, last_dns = 0, dead_letters = 0, probation = 1,
		  failing_since_ms = NULL, failing_warned_at_ms = NULL,
		  since_seq = COALESCE((SELECT MAX(seq) FROM outbox_events WHERE seq > since_seq), since_seq)
		WHERE sub_seq = $1 AND deleted_at_ms IS NULL`, subSeq)
	if err != nil {
		return fmt.Errorf("enabling subscription: %w", err)
	}
	return closeMissed(tx, subSeq)
}

// SetTier moves a customer between the tiers. On the free tier nothing is sent
// to its subscriptions; back on the paid one, those that were active go on.
func SetTier(tx *store.Tx, customer string, tier store.Tier) error {
	if changed, err := store.SetTier(tx, customer, tier); err != nil || !changed {
		return err
	}
	if tier == store.TierPaid {
		return eachSubscription(tx, customer, `disabled_reason = 'tier' AND deleted_at_ms IS NULL`, enable)
	}
	return eachSubscription(tx, customer, `disabled_at_ms IS NULL`, func(tx *store.Tx, seq int64) error {
		_, err := disable(tx, seq, ReasonTier)
		return err
	})
}
