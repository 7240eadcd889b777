package webhook

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"jpintel/store"
)

// Replayed is a delivery that is about to be sent again.
type Replayed struct{ Delivery }

// HTTPStatus is 202 Accepted.
func (Replayed) HTTPStatus() int { return 202 }

// Replay makes a new attempt of the same event and delivery, at once. One that is
// finished gets a fresh schedule, and its attempts go on counting up; one that is
// pending keeps its schedule, and where its request is under way that is the
// attempt. It answers CodeConflict where the subscription is not to be sent to,
// and CodeRateLimited over the day's attempts. While the kill switch is on it is
// queued.
func (s *Service) Replay(ctx context.Context, r DeliveryRequest) (replayed Replayed, err error) {
	err = s.DB.Write(ctx, func(tx *store.Tx) error {
		d, err := readReplayable(tx, r)
		if err != nil {
			return err
		}
		sub, err := readReplaySubscription(tx, d.sub)
		if err != nil {
			return err
		}
		if !slices.Contains(sub.events, d.eventType) {
			return store.Errorf(store.CodeConflict, "%s", reasonUnsubscribed)
		}
		if ok, err := s.Cap.open(ctx, sub.customer, tx.Now); err != nil {
			return err
		} else if !ok {
			return s.Cap.exhausted(store.CodeRateLimited, tx.Now)
		}
		s.changed(tx, d.sub)
		moved := totals{}
		if err := errors.Join(d.replay(tx, moved, sub.generation), moved.write(tx)); err != nil {
			return err
		}
		found, err := s.selectDeliveries(tx, `WHERE d.delivery_seq = $1`, []any{d.seq}) // as it is before the worker has it
		if err == nil {
			replayed.Delivery = found[0]
		}
		return err
	})
	return replayed, err
}

// replayable is a delivery on its way back.
type replayable struct {
	seq        int64
	sub        int64
	status     Status // as it is written down
	generation int64
	eventType  Type
	createdMS  int64
}

const replayableColumns = `d.delivery_seq, d.sub_seq, d.status, d.generation, e.event_type, d.created_at_ms`

func scanReplayable(row interface{ Scan(...any) error }) (d replayable, err error) {
	err = row.Scan(&d.seq, &d.sub, &d.status, &d.generation, &d.eventType, &d.createdMS)
	return d, err
}

func readReplayable(tx *store.Tx, r DeliveryRequest) (replayable, error) {
	d, err := scanReplayable(tx.QueryRow(`
		SELECT `+replayableColumns+`
		FROM webhook_deliveries d JOIN outbox_events e ON e.seq = d.event_seq JOIN webhook_subscriptions s ON s.sub_seq = d.sub_seq
		WHERE d.delivery_id = $1 AND `+ofCustomer("s.customer_id", r.CustomerID), r.DeliveryID, r.CustomerID))
	if errors.Is(err, sql.ErrNoRows) {
		return d, errNoDelivery(r.DeliveryID)
	}
	if err != nil {
		return d, fmt.Errorf("reading delivery: %w", err)
	}
	return d, nil
}

// derived is the delivery's state as reads show it.
func (d *replayable) derived(generation int64) Status {
	if d.status == StatusPending && d.generation < generation {
		return StatusFailed
	}
	return d.status
}

// replay makes the delivery due now, for the subscription's present generation.
func (d *replayable) replay(tx *store.Tx, moved totals, generation int64) error {
	if d.derived(generation) == StatusPending {
		if _, err := tx.Exec(`
			UPDATE webhook_deliveries SET next_attempt_at_ms = $1 WHERE delivery_seq = $2 AND status = 'pending' AND next_attempt_at_ms > $1`,
			tx.NowMS(), d.seq); err != nil {
			return fmt.Errorf("replaying delivery: %w", err)
		}
		return nil
	}
	n, err := tx.Update(`
		UPDATE webhook_deliveries SET status = 'pending', reason = NULL, generation = $1, schedule_base = attempt_count,
		  next_attempt_at_ms = $2, finished_at_ms = NULL
		WHERE delivery_seq = $3 AND status = $4 AND generation = $5`,
		generation, tx.NowMS(), d.seq, string(d.status), d.generation)
	if err != nil {
		return fmt.Errorf("replaying delivery: %w", err)
	}
	moved.move(n, d.status, StatusPending)
	return nil
}

// replaySubscription is what a replay has to know of a subscription.
type replaySubscription struct {
	customer   string
	generation int64
	events     []Type
}

// readReplaySubscription reads a subscription, or answers CodeConflict with the
// reason why nothing can be sent to it.
func readReplaySubscription(q store.Querier, subSeq int64) (sub replaySubscription, err error) {
	var events string
	var reason sql.Null[Reason]
	var deleted bool
	if err := q.QueryRow(`
		SELECT customer_id, generation, events, disabled_reason, deleted_at_ms IS NOT NULL FROM webhook_subscriptions WHERE sub_seq = $1`, subSeq).
		Scan(&sub.customer, &sub.generation, &events, &reason, &deleted); err != nil {
		return sub, fmt.Errorf("reading subscription: %w", err)
	}
	switch {
	case deleted:
		return sub, store.Errorf(store.CodeConflict, "the subscription was deleted")
	case reason.V == ReasonOptOut:
		return sub, errOptedOut
	case reason.Valid:
		return sub, store.Errorf(store.CodeConflict, "the subscription is disabled (%s): enable it first", reason.V)
	}
	sub.events, err = decodeTypes(events)
	return sub, err
}
