package webhook

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"jpintel/store"
)

// OptOutRequest asks about, or for, the "stop all webhooks" switch.
type OptOutRequest struct {
	CustomerID string `bind:"customer" json:"-"`
}

// OptOutAnswer is the state of the "stop all webhooks" switch.
type OptOutAnswer struct {
	OptedOut bool       `json:"opted_out"`
	Since    *time.Time `json:"since"`
}

// OptOut tells whether the customer has stopped all webhooks.
func (s *Service) OptOut(ctx context.Context, r OptOutRequest) (OptOutAnswer, error) {
	c, err := store.GetCustomer(s.DB.Reader(ctx), r.CustomerID)
	if err != nil {
		return OptOutAnswer{}, err
	}
	answer := OptOutAnswer{OptedOut: c.OptedOutAt != nil, Since: c.OptedOutAt}
	if answer.OptedOut {
		since := c.OptedOutAt.In(s.DB.Location)
		answer.Since = &since
	}
	return answer, nil
}

// StopAll disables all subscriptions of the customer, until it ends the
// opt-out. Stopping again changes nothing.
func (s *Service) StopAll(ctx context.Context, r OptOutRequest) (OptOutAnswer, error) {
	return s.setOptOut(ctx, r, true, `disabled_at_ms IS NULL`, func(tx *store.Tx, seq int64) error {
		_, err := disable(tx, seq, ReasonOptOut)
		return err
	})
}

// EndOptOut lets those subscriptions go on that the opt-out has disabled.
func (s *Service) EndOptOut(ctx context.Context, r OptOutRequest) (OptOutAnswer, error) {
	return s.setOptOut(ctx, r, false, `disabled_reason = 'user_opt_out' AND deleted_at_ms IS NULL`, enable)
}

func (s *Service) setOptOut(ctx context.Context, r OptOutRequest, out bool, which string, change func(*store.Tx, int64) error) (OptOutAnswer, error) {
	if err := s.DB.Write(ctx, func(tx *store.Tx) error {
		if err := store.SetOptOut(tx, r.CustomerID, out); err != nil {
			return err
		}
		return eachSubscription(tx, r.CustomerID, which, func(tx *store.Tx, seq int64) error {
			s.changed(tx, seq)
			return change(tx, seq)
		})
	}); err != nil {
		return OptOutAnswer{}, err
	}
	return s.OptOut(ctx, r)
}

// eachSubscription changes those of a customer's subscriptions that a condition
// names. They are few: the active ones are limited.
func eachSubscription(tx *store.Tx, customer, which string, change func(*store.Tx, int64) error) error {
	rows, err := tx.Query(`SELECT sub_seq FROM webhook_subscriptions WHERE customer_id = $1 AND `+which, customer)
	if err != nil {
		return fmt.Errorf("reading subscriptions: %w", err)
	}
	seqs, err := store.Collect(rows, func(r *sql.Rows) (int64, error) {
		var seq int64
		err := r.Scan(&seq)
		return seq, err
	})
	if err != nil {
		return fmt.Errorf("reading subscriptions: %w", err)
	}
	for _, seq := range seqs {
		if err := change(tx, seq); err != nil {
			return err
		}
	}
	return nil
}
