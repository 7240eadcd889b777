package webhook

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"jpintel/store"
)

// ownSubscription finds a subscription of the customer that is not deleted.
func ownSubscription(q store.Querier, r SubscriptionRequest) (seq int64, err error) {
	err = q.QueryRow(`
		SELECT sub_seq FROM webhook_subscriptions WHERE subscription_id = $1 AND `+ofCustomer("customer_id", r.CustomerID)+` AND deleted_at_ms IS NULL`,
		r.SubscriptionID, r.CustomerID).Scan(&seq)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, errNoSubscription(r.SubscriptionID)
	}
	if err != nil {
		return 0, fmt.Errorf("reading subscription: %w", err)
	}
	return seq, nil
}

// ChangeRequest changes a subscription; what is left out or null stays as it is,
// but for the filter.
type ChangeRequest struct {
	CustomerID     string       `bind:"customer" json:"-"`
	SubscriptionID string       `path:"id" json:"-"`
	URL            *string      `json:"url"`
	Events         *[]Type      `json:"events"`
	Filter         FilterChange `json:"filter"`
	Envelope       *Envelope    `json:"envelope"`
	Description    *string      `json:"description"`
}

// FilterChange is the filter that takes the place of another; {} and null are
// none.
type FilterChange struct {
	to    Filter
	given bool
}

// UnmarshalJSON takes what a filter is written as.
func (f *FilterChange) UnmarshalJSON(text []byte) error {
	f.given = true
	return f.to.UnmarshalJSON(text)
}

// Change changes a subscription. What is changed holds for events that are
// fanned out afterwards; deliveries that are pending keep their envelope, go to
// the new URL, and fail where their type is no longer subscribed to.
func (s *Service) Change(ctx context.Context, r ChangeRequest) (Subscription, error) {
	which := SubscriptionRequest{r.CustomerID, r.SubscriptionID}
	now, err := s.Subscription(ctx, which)
	if err != nil {
		return Subscription{}, err
	}
	wanted, err := s.check(r.over(now))
	if err != nil {
		return Subscription{}, err
	}
	if r.URL != nil && wanted.URL != now.URL {
		if _, err := s.checkDestination(ctx, wanted.URL); err != nil {
			return Subscription{}, err
		}
	}
	if err := s.DB.Write(ctx, func(tx *store.Tx) error { return s.update(tx, which, r) }); err != nil {
		return Subscription{}, err
	}
	return s.Subscription(ctx, which)
}

// over is the subscription as it would be subscribed to with the change.
func (r ChangeRequest) over(now Subscription) SubscribeRequest {
	wanted := SubscribeRequest{CustomerID: r.CustomerID, URL: now.URL, Events: now.Events, Filter: now.Filter, Envelope: now.Envelope, Description: now.Description}
	overwrite(&wanted.URL, r.URL)
	overwrite(&wanted.Events, r.Events)
	if r.Filter.given {
		wanted.Filter = r.Filter.to
	}
	overwrite(&wanted.Envelope, r.Envelope)
	overwrite(&wanted.Description, r.Description)
	return wanted
}

func overwrite[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// update applies a change to what is stored by now: another change may have
// come between, and what this one leaves out stays as that one has left it.
func (s *Service) update(tx *store.Tx, which SubscriptionRequest, r ChangeRequest) error {
	seq, err := ownSubscription(tx, which)
	if err != nil {
		return err
	}
	now, err := readSettings(tx, seq)
	if err != nil {
		return err
	}
	wanted, err := s.check(r.over(now))
	if err != nil {
		return err
	}
	events, filter, err := wanted.encode()
	if err != nil {
		return err
	}
	if _, err := tx.Exec(`
		UPDATE webhook_subscriptions SET url = $1, events = $2, filter = $3, envelope = $4, description = $5 WHERE sub_seq = $6`,
		wanted.URL, events, filter, string(wanted.Envelope), wanted.Description, seq); err != nil {
		return fmt.Errorf("changing subscription: %w", err)
	}
	s.changed(tx, seq)
	return nil
}

// readSettings reads what a subscription's owner has chosen.
func readSettings(q store.Querier, seq int64) (sub Subscription, err error) {
	var events, filter string
	if err := q.QueryRow(`SELECT url, events, filter, envelope, description FROM webhook_subscriptions WHERE sub_seq = $1`, seq).
		Scan(&sub.URL, &events, &filter, &sub.Envelope, &sub.Description); err != nil {
		return sub, fmt.Errorf("reading subscription: %w", err)
	}
	return sub, errors.Join(json.Unmarshal([]byte(events), &sub.Events), json.Unmarshal([]byte(filter), &sub.Filter))
}

// Disable pauses a subscription for its owner. Disabling it again changes
// nothing. One that the opt-out has disabled stays disabled when that ends.
func (s *Service) Disable(ctx context.Context, r SubscriptionRequest) (Subscription, error) {
	if err := s.DB.Write(ctx, func(tx *store.Tx) error {
		seq, err := ownSubscription(tx, r)
		if err != nil {
			return err
		}
		s.changed(tx, seq)
		if _, err := disable(tx, seq, ReasonUser); err != nil {
			return err
		}
		_, err = tx.Exec(`UPDATE webhook_subscriptions SET disabled_reason = 'user' WHERE sub_seq = $1 AND disabled_reason = 'user_opt_out'`, seq)
		return err
	}); err != nil {
		return Subscription{}, err
	}
	return s.Subscription(ctx, r)
}

// Enable lets a subscription go on after any disable, with what is committed
// from then on. It answers CodeConflict where one more active subscription is
// not allowed, and while the day's attempts are used up. Enabling it again
// changes nothing.
func (s *Service) Enable(ctx context.Context, r SubscriptionRequest) (Subscription, error) {
	if err := s.DB.Write(ctx, func(tx *store.Tx) error {
		seq, err := ownSubscription(tx, r)
		if err != nil {
			return err
		}
		var customer string
		var active bool
		if err := tx.QueryRow(`SELECT customer_id, disabled_at_ms IS NULL FROM webhook_subscriptions WHERE sub_seq = $1`, seq).Scan(&customer, &active); err != nil {
			return fmt.Errorf("reading subscription: %w", err)
		}
		if active {
			return nil
		}
		if err := s.entitled(tx, customer); err != nil {
			return err
		}
		if ok, err := s.Cap.open(ctx, customer, tx.Now); err != nil {
			return err
		} else if !ok {
			return s.Cap.exhausted(store.CodeConflict, tx.Now)
		}
		s.changed(tx, seq)
		return enable(tx, seq)
	}); err != nil {
		return Subscription{}, err
	}
	return s.Subscription(ctx, r)
}
