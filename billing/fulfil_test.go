package billing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"jpintel/billing/modelgatetest"
	"jpintel/billing/stripe"
	"jpintel/billing/stripe/stripetest"
	"jpintel/store"
)

// S61: an event whose consequences fail leaves nothing of them, is tried again by
// itself a few times, keeps nobody else waiting, and is rerun when the cause is
// gone, without Stripe.
func TestS61AnEventThatFails(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		p := withPayments(s)
		broken := true
		p.outcome = func(tx *store.Tx, e *stripe.Event) (applied, error) {
			if _, _, err := store.CreateCustomer(tx, store.Customer{CustomerID: "cus_of_" + e.ID, Tier: store.TierFree}); err != nil {
				return applied{}, err
			}
			if broken && e.ID == "evt_poison" {
				return applied{}, errors.New("the table is missing: whsec_0123456789abcdef")
			}
			return applied{status: EventFulfilled, customerID: "cus_of_" + e.ID}, nil
		}
		customers := func() string { return strings.Join(p.strings(`SELECT customer_id FROM customers ORDER BY 1`), " ") }

		p.delivered(stripetest.Event(t, "refund.created", "evt_poison"), stripetest.Event(t, "refund.created", "evt_b"), stripetest.Event(t, "refund.created", "evt_c"))
		p.pay()
		e := p.wantEvent("evt_poison", EventFailed)
		if p.wantEvent("evt_c", EventFulfilled); customers() != "cus_of_evt_b cus_of_evt_c" || e.AttemptCount != 1 || e.NextAttemptAt == nil || *e.LastError != "the table is missing: [masked]" {
			t.Errorf("%s, %+v", customers(), e)
		}

		began := time.Now()
		for range 100 { // as time goes on
			time.Sleep(time.Minute)
			p.pay()
		}
		if e = p.wantEvent("evt_poison", EventFailed); e.AttemptCount != maxEventAttempts || e.NextAttemptAt != nil {
			t.Errorf("%+v", e)
		}
		if n := strings.Count(p.log.String(), paymentNeedsAttention); n != 1 || !strings.Contains(p.log.String(), "code=webhook_received_processing_failed") {
			t.Errorf("%d alarms after %s: %s", n, time.Since(began), p.log)
		}
		p.delivered(stripetest.Event(t, "refund.created", "evt_poison")) // counted, and no more
		if p.pay() != 0 {
			t.Error("a delivery has it tried again")
		}

		broken = false
		if e, err := p.RerunPaymentEvent(context.Background(), PaymentEventRequest{"evt_poison"}); err != nil || e.Status != EventReceived || e.AttemptCount != 0 {
			t.Errorf("%+v, %v", e, err)
		}
		p.pay()
		if e = p.wantEvent("evt_poison", EventFulfilled); customers() != "cus_of_evt_b cus_of_evt_c cus_of_evt_poison" || e.LastError != nil || e.DeliveryCount != 2 {
			t.Errorf("%s, %+v", customers(), e)
		}
		if strings.Contains(p.log.String(), "cus_TestJpintel") || strings.Contains(p.log.String(), "requested_by_customer") || strings.Contains(p.log.String(), "whsec_0123") {
			t.Error("the payload or a secret is in the log")
		}
	})
}

// A panic, an object that is not as it should be, and consequences that cannot be
// written down are failures of one event.
func TestAnEventThatPanics(t *testing.T) {
	p := newPaymentBench(t)
	p.outcome = func(_ *store.Tx, e *stripe.Event) (applied, error) {
		if e.ID == "evt_a" {
			panic("boom")
		}
		if e.ID == "evt_c" {
			return applied{status: EventFailed, reason: "it cannot be"}, nil
		}
		if e.ID == "evt_e" {
			return applied{status: EventFulfilled, operationID: "op_none"}, nil
		}
		return applied{status: EventFulfilled}, nil
	}
	p.delivered(stripetest.Event(t, "refund.created", "evt_e"), stripetest.Event(t, "refund.created", "evt_a"), strings.Replace(stripetest.Event(t, "refund.created", "evt_b"), `"amount": 300`, `"amount": 3e2`, 1),
		stripetest.Event(t, "refund.created", "evt_c"), stripetest.Event(t, "refund.created", "evt_d"))
	p.pay()
	for id, why := range map[string]string{"evt_a": "panic: boom", "evt_c": "it cannot be",
		"evt_b": "event evt_b (refund.created): data.object.amount: want a whole number from 0, in minor units where it is money"} {
		if e := p.wantEvent(id, EventFailed); deref(e.LastError) != why {
			t.Errorf("%s: %s", id, deref(e.LastError))
		}
	}
	if e := p.wantEvent("evt_e", EventFailed); !strings.Contains(deref(e.LastError), "FOREIGN KEY") {
		t.Errorf("%s", deref(e.LastError))
	}
	p.wantEvent("evt_d", EventFulfilled)
}

// What is held waits for what it names, or for an operator.
func TestHeldEvents(t *testing.T) {
	p := newPaymentBench(t)
	names := map[string]string{"evt_a": "cus_a", "evt_b": "cus_b", "evt_nobody": ""}
	status := EventHeld
	p.outcome = func(_ *store.Tx, e *stripe.Event) (applied, error) {
		return applied{status: status, customerID: names[e.ID], reason: "no such customer yet"}, nil
	}
	for id := range names {
		p.delivered(stripetest.Event(t, "refund.created", id))
	}
	p.pay()
	if e := p.wantEvent("evt_b", EventHeld); *e.LastError != "no such customer yet" || e.NextAttemptAt != nil || p.pay() != 0 {
		t.Errorf("%+v", e)
	}
	status = EventFulfilled
	if err := p.DB.Write(context.Background(), func(tx *store.Tx) error { return rerunHeld(tx, "cus_a") }); err != nil {
		t.Fatal(err)
	}
	p.pay()
	p.wantEvent("evt_a", EventFulfilled)
	p.wantEvent("evt_nobody", EventFulfilled)
	if e := p.wantEvent("evt_b", EventHeld); *e.CustomerID != "cus_b" {
		t.Errorf("%+v", e)
	}
	if rerun, err := p.RerunPaymentEvents(context.Background(), RerunPaymentEventsRequest{EventHeld}); err != nil || rerun.Events != 1 {
		t.Errorf("%+v, %v", rerun, err)
	}
	p.pay()
	p.wantEvent("evt_b", EventFulfilled)
}

// An operator's rerun goes through all of them once, also while they fail again.
func TestRerunOfManyEvents(t *testing.T) {
	if race {
		t.Skip("a thousand transactions, one after the other: nothing to find")
	}
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) { testRerunOfManyEvents(t, withPayments(s)) })
}

func testRerunOfManyEvents(t *testing.T, p *paymentBench) {
	p.outcome = func(*store.Tx, *stripe.Event) (applied, error) {
		return applied{status: EventHeld, reason: "it waits"}, nil
	}
	const n = 2*rerunStep + 7
	body := stripetest.Event(t, "refund.created", "evt_0")
	for i := range n {
		if _, err := p.IngestPayment(context.Background(), []byte(strings.Replace(body, "evt_0", fmt.Sprint("evt_", i), 1))); err != nil {
			t.Fatal(err)
		}
	}
	p.pay()
	p.outcome = func(tx *store.Tx, e *stripe.Event) (applied, error) { return applied{}, errors.New("no") }
	p.Wake = func() {}
	rerun, err := p.RerunPaymentEvents(context.Background(), RerunPaymentEventsRequest{EventHeld})
	if err != nil || rerun.Events != n {
		t.Errorf("%+v, %v", rerun, err)
	}
	p.pay()
	if rerun, err = p.RerunPaymentEvents(context.Background(), RerunPaymentEventsRequest{EventFailed}); err != nil || rerun.Events != n {
		t.Errorf("%+v, %v", rerun, err)
	}
	if rerun, err = p.RerunPaymentEvents(context.Background(), RerunPaymentEventsRequest{EventFailed}); err != nil || rerun.Events != 0 {
		t.Errorf("%+v, %v", rerun, err)
	}
	if _, err = p.RerunPaymentEvents(context.Background(), RerunPaymentEventsRequest{EventFulfilled}); store.CodeOf(err) != store.CodeInvalid {
		t.Error(err)
	}
}
