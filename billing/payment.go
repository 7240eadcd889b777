package billing

import (
	"context"

	"jpintel/billing/stripe"
	"jpintel/store"
)

// EventStatus is what has become of a payment event.
type EventStatus string

// The states of a payment event.
const (
	EventReceived  EventStatus = "received"  // stored; not looked at yet, or to be looked at again
	EventHeld      EventStatus = "held"      // waits: for a customer, a provisioning, or a person
	EventFulfilled EventStatus = "fulfilled" // what it says is in the facts, and credit converges on them
	EventIgnored   EventStatus = "ignored"   // nothing follows from it
	EventFailed    EventStatus = "failed"    // could not be worked on; rerun it when the cause is gone
)

// applied is what has come of a payment event.
type applied struct {
	status      EventStatus
	reason      string // why it is held or ignored, in words; "": nothing to say
	customerID  string
	paymentID   string
	operationID string // that it has begun
}

// applyPayment writes down the fact that a payment event tells, and has the
// customer's credit converge on what all facts of the payment add up to. It does
// the same however often and in whatever order events come.
func (s *Service) applyPayment(ctx context.Context, tx *store.Tx, e *stripe.Event) (applied, error) {
	return applied{status: EventReceived}, nil
}
