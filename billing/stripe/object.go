package stripe

import (
	"encoding/json"
	"strings"

	"jpintel/billing/strictjson"
)

// This file has the objects, each with the few members that billing uses.

// readSession reads a checkout session; nil where it is not about one payment.
func readSession(m members, event string) *Payment {
	m.is("object", "checkout.session")
	if m.text("mode") != "payment" {
		return nil // a subscription's, or the set-up of a card
	}
	p := &Payment{SessionRef: m.id(), Ref: m.ref("payment_intent"), CustomerID: m.optional("client_reference_id")}
	if p.CustomerID == "" {
		p.CustomerID = customerOf(m)
	}
	p.State = sessionState(m, event)
	if p.State == Paid || !m.null("amount_total") {
		p.AmountMinor = m.whole("amount_total")
	}
	if p.State == Paid || !m.null("currency") {
		p.Currency = m.currency("currency")
	}
	return p
}

// sessionState goes by payment_status; the event's type only says what has
// become of a payment that has not come.
func sessionState(m members, event string) PaymentState {
	switch m.text("payment_status") {
	case "paid":
		return Paid
	case "no_payment_required":
		return Free
	case "unpaid":
		if strings.HasSuffix(event, ".async_payment_failed") || strings.HasSuffix(event, ".expired") {
			return Failed
		}
		return Awaiting
	}
	m.fail("payment_status", "paid, unpaid or no_payment_required")
	return ""
}

// customerOf is the customer that whoever made the object has written on it.
func customerOf(m members) string {
	if m.null("metadata") {
		return ""
	}
	return m.into("metadata").optional("customer_id")
}

// readIntent reads a payment intent. One whose payment has failed can still be
// paid another way.
func readIntent(m members) *Payment {
	m.is("object", "payment_intent")
	p := &Payment{Ref: m.id(), ChargeRef: latestCharge(m), CustomerID: customerOf(m), Currency: m.currency("currency")}
	switch m.text("status") {
	case "succeeded":
		p.State, p.AmountMinor = Paid, m.whole("amount_received")
	case "canceled":
		p.State, p.AmountMinor = Failed, m.whole("amount")
	default:
		p.State, p.AmountMinor = Awaiting, m.whole("amount")
	}
	return p
}

// latestCharge is the intent's charge. Before API version 2022-11-15 an intent
// has all of them, the latest first.
func latestCharge(m members) string {
	if !m.null("latest_charge") || m.null("charges") {
		return m.ref("latest_charge")
	}
	list := m.into("charges")
	charges, ok := list.object["data"].([]any)
	if !ok {
		list.fail("data", "a list")
	}
	if len(charges) == 0 {
		return ""
	}
	charge, _ := charges[0].(strictjson.Object)
	return members{charge, list.path + "data.0.", m.err}.id()
}

func readCharge(m members) *Charge {
	m.is("object", "charge")
	return &Charge{Ref: m.id(), PaymentRef: m.ref("payment_intent"), AmountMinor: m.whole("amount"),
		RefundedMinor: m.whole("amount_refunded"), Currency: m.currency("currency")}
}

func readRefund(m members) *Refund {
	m.is("object", "refund")
	r := &Refund{Ref: m.id(), PaymentRef: m.ref("payment_intent"), ChargeRef: m.ref("charge"), AmountMinor: m.whole("amount"), Currency: m.currency("currency")}
	r.Status = m.oneOf("status", "pending", "requires_action", "succeeded", "failed", "canceled")
	return r
}

func readDispute(m members, event string) *Dispute {
	m.is("object", "dispute")
	d := &Dispute{Ref: m.id(), PaymentRef: m.ref("payment_intent"), ChargeRef: m.ref("charge"), AmountMinor: m.whole("amount"), Currency: m.currency("currency")}
	d.Status = m.oneOf("status", "warning_needs_response", "warning_under_review", "warning_closed", "needs_response", "under_review", "won", "lost", "prevented")
	d.Withdrawn, d.Reinstated = moved(m)
	switch event {
	case "charge.dispute.funds_withdrawn":
		d.Withdrawn, d.Reinstated = true, false
	case "charge.dispute.funds_reinstated":
		d.Withdrawn, d.Reinstated = false, true
	}
	return d
}

// moved reads from the balance transactions what has become of the money: the
// dispute takes it, and gives it back where it is won. At most one of the two is
// true: the latter.
func moved(m members) (withdrawn, reinstated bool) {
	if m.null("balance_transactions") {
		return false, false
	}
	all, ok := m.object["balance_transactions"].([]any)
	if !ok {
		m.fail("balance_transactions", "a list")
	}
	for _, one := range all {
		transaction, _ := one.(strictjson.Object)
		amount, _ := transaction["amount"].(json.Number) // in the account's own currency: only the sign counts
		switch {
		case strings.HasPrefix(amount.String(), "-"):
			withdrawn = true
		case amount != "" && amount != "0":
			reinstated = true
		}
	}
	return withdrawn && !reinstated, reinstated
}
