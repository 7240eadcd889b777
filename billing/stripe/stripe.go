// Package stripe is the one place that knows what Stripe's webhooks look like on
// the wire: it verifies them and reads the few members that billing uses. It
// knows no database.
package stripe

import "time"

// Event is what a webhook tells. At most one of Payment, Charge, Refund and
// Dispute is there; none: a type that billing has no use for.
type Event struct {
	ID         string
	Type       string
	APIVersion string
	Created    time.Time // whole seconds; two events of one object may have the same
	Livemode   bool

	Payment *Payment
	Charge  *Charge
	Refund  *Refund
	Dispute *Dispute
}

// PaymentState is how far a payment has come.
type PaymentState string

// The states. A payment that is free has nothing to credit.
const (
	Awaiting PaymentState = "awaiting_payment"
	Paid     PaymentState = "paid"
	Failed   PaymentState = "failed" // for good: expired, canceled, or the delayed method has failed
	Free     PaymentState = "free"
)

// Payment is what a checkout session or a payment intent says. Amount and
// currency are the object's, never its metadata's.
type Payment struct {
	Ref         string // the payment intent's id; "": the session has none (yet)
	SessionRef  string // the checkout session's id; "": told by the payment intent itself
	ChargeRef   string // the intent's latest charge; "": not told
	CustomerID  string // ours, by client_reference_id or metadata.customer_id; "": not told
	State       PaymentState
	AmountMinor int64
	Currency    string // ISO 4217 in capital letters; "": not told
}

// Charge is what a charge says of its payment. Refunded is a cumulative check,
// not a refund.
type Charge struct {
	Ref           string
	PaymentRef    string // "": not told
	AmountMinor   int64
	RefundedMinor int64
	Currency      string
}

// Refund is one refund, whatever has become of it.
type Refund struct {
	Ref         string
	PaymentRef  string // "": not told
	ChargeRef   string // "": not told
	AmountMinor int64
	Currency    string
	Status      string // pending, requires_action, succeeded, failed, canceled
}

// Dispute is one dispute, or an inquiry (warning_…), which moves no money.
type Dispute struct {
	Ref         string
	PaymentRef  string // "": not told
	ChargeRef   string // "": not told
	AmountMinor int64  // may differ from the charge's
	Currency    string
	Status      string // warning_needs_response, warning_under_review, warning_closed, needs_response, under_review, won, lost, prevented
	// Withdrawn is true where the event says that the money was taken from us,
	// and Reinstated where it says that we have it back.
	Withdrawn, Reinstated bool
}
