package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"jpintel/store"
)

// Why tells what made a delivery and what keeps it from arriving; when it is due
// is in the delivery itself.
type Why struct {
	Matched Matched `json:"matched"`
	Blocked *string `json:"blocked"` // in words; null: nothing does, or it has arrived
}

// Matched is what a filter is held against, and the filter. An event that was
// sent under an earlier one keeps its delivery.
type Matched struct {
	EventType  Type       `json:"event_type"`
	Attributes Attributes `json:"attributes"` // of the event's subject, as they were at commit
	Filter     Filter     `json:"filter"`     // the subscription's, as it is now; {}: everything of its types
}

// why explains a delivery of the customer who asks, or of any.
func (s *Service) why(ctx context.Context, q store.Querier, d *Delivery) (w Why, err error) {
	var attributes, filter, customer string
	if err := q.QueryRow(`
		SELECT e.attributes, s.filter, s.customer_id FROM webhook_deliveries d
		JOIN outbox_events e ON e.seq = d.event_seq JOIN webhook_subscriptions s ON s.sub_seq = d.sub_seq WHERE d.delivery_seq = $1`, d.seq).
		Scan(&attributes, &filter, &customer); err != nil {
		return w, fmt.Errorf("reading delivery: %w", err)
	}
	w.Matched.EventType = d.EventType
	if err := json.Unmarshal([]byte(attributes), &w.Matched.Attributes); err != nil {
		return w, fmt.Errorf("event %s: attributes: %w", d.EventID, err)
	}
	if err := json.Unmarshal([]byte(filter), &w.Matched.Filter); err != nil {
		return w, fmt.Errorf("subscription %s: filter: %w", d.SubscriptionID, err)
	}
	blocked, err := s.blocked(ctx, q, d, customer)
	if blocked != "" {
		w.Blocked = &blocked
	}
	return w, err
}

// blocked says what keeps a delivery from being sent now, or "".
func (s *Service) blocked(ctx context.Context, q store.Querier, d *Delivery, customer string) (string, error) {
	switch d.Status {
	case StatusSuccess:
		return "", nil
	case StatusFailed:
		return *d.Reason, nil
	case StatusDeadLetter:
		return "all attempts of its schedule have failed; a replay starts a fresh one", nil
	}
	control, err := store.ReadControl(q)
	if err != nil {
		return "", err
	}
	if control.KillSwitch || s.Sender != nil && s.Sender.Kill.State().On {
		return "the operator has stopped all webhooks", nil
	}
	if ok, err := s.Cap.open(ctx, customer, time.Now()); err != nil || !ok {
		return "the attempts of the day are used up", err
	}
	if d.LastErrorCategory != nil && *d.LastErrorCategory != "" {
		return fmt.Sprintf("the last attempt has failed (%s); the next one waits for its time", *d.LastErrorCategory), nil
	}
	return "", nil
}
