package billing

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/billing/modelgatetest"
	"jpintel/billing/stripe"
	"jpintel/billing/stripe/stripetest"
	"jpintel/store"
)

const stripeSecret = "whsec_of_the_tests_0123456789abcdef"

// paymentBench is a scene that Stripe tells of payments, whose consequences the
// test decides.
type paymentBench struct {
	*scene
	seen    []string // the events whose consequences were asked for
	outcome func(*store.Tx, *stripe.Event) (applied, error)
}

func newPaymentBench(t *testing.T) *paymentBench {
	t.Helper()
	return withPayments(stillScene(t))
}

func withPayments(b *scene) *paymentBench {
	p := &paymentBench{scene: b}
	p.Stripe, p.Log = StripeOptions{Secrets: []string{stripeSecret}, Livemode: true}, p.engine.Log
	p.outcome = func(*store.Tx, *stripe.Event) (applied, error) {
		return applied{status: EventFulfilled, customerID: "cus_a", paymentID: "pay_1"}, nil
	}
	p.engine.apply = func(_ context.Context, tx *store.Tx, e *stripe.Event) (applied, error) {
		p.seen = append(p.seen, e.ID)
		return p.outcome(tx, e)
	}
	return p
}

// deliver delivers a body as Stripe does.
func (p *paymentBench) deliver(body string) error {
	_, err := p.ReceivePayment(context.Background(), PaymentWebhook{Signature: stripetest.Sign(body, time.Now(), stripeSecret), Body: []byte(body)})
	return err
}

func (p *paymentBench) delivered(bodies ...string) {
	p.t.Helper()
	for _, body := range bodies {
		if err := p.deliver(body); err != nil {
			p.t.Fatal(err)
		}
	}
}

// pay works on what is due.
func (p *paymentBench) pay() (steps int) {
	p.t.Helper()
	for ; steps < 1000; steps++ {
		worked, err := p.engine.StepPayment(context.Background())
		if err != nil {
			p.t.Fatal(err)
		}
		if !worked {
			return steps
		}
	}
	p.t.Fatal("it does not come to rest")
	return 0
}

// event is how an event stands.
func (p *paymentBench) event(id string) *PaymentEvent {
	p.t.Helper()
	e, err := p.PaymentEvent(context.Background(), PaymentEventRequest{id})
	if err != nil {
		p.t.Fatal(err)
	}
	return e
}

func (p *paymentBench) wantEvent(id string, want EventStatus) *PaymentEvent {
	p.t.Helper()
	e := p.event(id)
	if e.Status != want {
		p.t.Errorf("%s is %s (%s), want %s", id, e.Status, deref(e.LastError), want)
	}
	return e
}

// events counts the rows.
func (p *paymentBench) events() int {
	return len(p.strings(`SELECT event_id FROM payment_webhook_events`))
}

// S45: five deliveries, two of them at the same instant, are one event.
func TestS45TheSameEventFiveTimes(t *testing.T) {
	p := newPaymentBench(t)
	body := stripetest.Event(t, "checkout.session.completed", "evt_a")
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if err := p.deliver(body); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	p.delivered(body)
	p.pay()
	// Dressed otherwise, it is the same event.
	p.delivered(strings.Replace(body, `"pending_webhooks": 1`, `"pending_webhooks": 0`, 1), body)
	p.pay()
	e := p.wantEvent("evt_a", EventFulfilled)
	if p.events() != 1 || e.DeliveryCount != 5 || len(p.seen) != 1 || e.AttemptCount != 1 || e.OtherSemanticHash != nil {
		t.Errorf("%d rows, %+v, consequences of %q", p.events(), e, p.seen)
	}
	if e.Type != "checkout.session.completed" || !e.Livemode || *e.CustomerID != "cus_a" || *e.PaymentID != "pay_1" || !e.CreatedAt.Equal(time.Unix(1764460800, 0)) || e.NextAttemptAt != nil {
		t.Errorf("%+v", e)
	}
	if stored := p.strings(`SELECT payload FROM payment_webhook_events`); stored[0] != body {
		t.Error("the payload is not the one that was signed")
	}
}

// S57: what is not signed, not signed by Stripe, not signed now or changed on its
// way is refused, and nothing of it is stored.
func TestS57WhatIsNotSignedIsRefused(t *testing.T) {
	p := newPaymentBench(t)
	body, now := stripetest.Event(t, "checkout.session.completed", "evt_a"), time.Now()
	sign := func(at time.Time, secret string) string { return stripetest.Sign(body, at, secret) }
	for what, r := range map[string]struct{ header, body, want string }{
		"no header":          {"", body, "Stripe-Signature: missing"},
		"no signature":       {"t=1", body, "Stripe-Signature: want t=<seconds>,v1=<hex>, with one t and at least one v1"},
		"another secret":     {sign(now, "whsec_another"), body, "Stripe-Signature: no v1 signature of this body is made with a secret that is known here"},
		"no secret":          {sign(now, ""), body, "Stripe-Signature: no v1 signature of this body is made with a secret that is known here"},
		"an old time":        {sign(now.Add(-302*time.Second), stripeSecret), body, "Stripe-Signature: the time is more than 5 minutes ago"},
		"serialised again":   {sign(now, stripeSecret), strings.Join(strings.Fields(body), ""), "Stripe-Signature: no v1 signature of this body is made with a secret that is known here"},
		"another amount":     {sign(now, stripeSecret), strings.ReplaceAll(body, "2500", "9900"), "Stripe-Signature: no v1 signature of this body is made with a secret that is known here"},
		"not JSON":           {stripetest.Sign("x", now, stripeSecret), "x", "the body is no event: not JSON, or cut off"},
		"not an event":       {stripetest.Sign("{}", now, stripeSecret), "{}", "the body is no event: object: want a string"},
		"another one behind": {stripetest.Sign(body+body, now, stripeSecret), body + body, "the body is no event: something follows the JSON value"},
	} {
		_, err := p.ReceivePayment(context.Background(), PaymentWebhook{r.header, []byte(r.body)})
		if store.CodeOf(err) != store.CodeInvalid || err.Error() != r.want {
			t.Errorf("%s: %v, want %s", what, err, r.want)
		}
	}
	p.Stripe.Secrets = nil
	if err := p.deliver(body); store.CodeOf(err) != store.CodeNotFound {
		t.Errorf("nothing is set up: %v", err)
	}
	if p.events() != 0 {
		t.Errorf("%d rows", p.events())
	}
}

// S58: while a secret is replaced Stripe signs with both, and we may know the one
// or the other, or both.
func TestS58TwoSecrets(t *testing.T) {
	p := newPaymentBench(t)
	body := stripetest.Event(t, "checkout.session.completed", "evt_a")
	for _, known := range [][]string{{"whsec_old"}, {"whsec_new"}, {"whsec_new", "whsec_old"}} {
		p.Stripe.Secrets = known
		if _, err := p.ReceivePayment(context.Background(), PaymentWebhook{stripetest.Sign(body, time.Now(), "whsec_old", "whsec_new"), []byte(body)}); err != nil {
			t.Errorf("%q: %v", known, err)
		}
	}
	if e := p.event("evt_a"); e.DeliveryCount != 3 {
		t.Errorf("%+v", e)
	}
}

// S60: a type that billing has no use for, a session that is no payment, the
// other mode and another account are stored and ignored; a thin event is not one.
func TestS60WhatIsIgnored(t *testing.T) {
	p := newPaymentBench(t)
	p.delivered(
		stripetest.Event(t, "customer.created", "evt_type"),
		stripetest.Event(t, "checkout.session.completed.subscription", "evt_mode"),
		strings.Replace(stripetest.Event(t, "refund.created", "evt_test"), `"livemode": true`, `"livemode": false`, 1),
		strings.Replace(stripetest.Event(t, "refund.created", "evt_account"), `"object": "event"`, `"object": "event", "account": "acct_1"`, 1))
	p.pay()
	for id, why := range map[string]string{"evt_type": "nothing follows from it for billing", "evt_mode": "nothing follows from it for billing",
		"evt_test":    "it is about test money, and this is set up for real money (JPINTEL_STRIPE_LIVEMODE)",
		"evt_account": "it is about another account's money: acct_1"} {
		if e := p.wantEvent(id, EventIgnored); deref(e.LastError) != why {
			t.Errorf("%s: %s", id, deref(e.LastError))
		}
	}
	if len(p.seen) != 0 {
		t.Errorf("consequences of %q", p.seen)
	}
	if err := p.deliver(stripetest.Event(t, "thin", "evt_thin")); store.CodeOf(err) != store.CodeInvalid || p.events() != 4 {
		t.Errorf("a thin event: %v, %d rows", err, p.events())
	}

	// Set up for tests, it is the other way round; what was ignored can be rerun.
	p.Stripe.Livemode = false
	if _, err := p.RerunPaymentEvent(context.Background(), PaymentEventRequest{"evt_test"}); err != nil {
		t.Fatal(err)
	}
	p.delivered(stripetest.Event(t, "refund.updated", "evt_live"))
	p.pay()
	p.wantEvent("evt_test", EventFulfilled)
	p.wantEvent("evt_live", EventIgnored)
}

// Another telling of an event that is here already is an alarm, and the first
// stays. In another API version the same thing looks different.
func TestAnEventThatContradictsItself(t *testing.T) {
	p := newPaymentBench(t)
	body := stripetest.Event(t, "refund.created", "evt_a")
	p.delivered(body, strings.Replace(strings.Replace(body, "2025-09-30.clover", "2020-08-27", 1), `"reason"`, `"why"`, 1))
	if e := p.event("evt_a"); e.OtherSemanticHash != nil || strings.Contains(p.log.String(), paymentNeedsAttention) {
		t.Errorf("another version is taken for a contradiction: %+v", e)
	}
	p.delivered(strings.Replace(body, `"amount": 300`, `"amount": 400`, 1), body)
	e := p.event("evt_a")
	if e.OtherSemanticHash == nil || *e.OtherSemanticHash == e.SemanticHash || e.DeliveryCount != 4 || strings.Count(p.log.String(), "payment_event_contradicted") != 1 {
		t.Errorf("%+v\n%s", e, p.log)
	}
	p.outcome = func(_ *store.Tx, e *stripe.Event) (applied, error) {
		if e.Refund.AmountMinor != 300 {
			t.Errorf("%+v", e.Refund)
		}
		return applied{status: EventFulfilled}, nil
	}
	p.pay()
	p.wantEvent("evt_a", EventFulfilled)
}

// A signature from the future is no replay; somebody should look at our clock.
func TestASignatureFromTheFuture(t *testing.T) {
	p := newPaymentBench(t)
	body := stripetest.Event(t, "refund.created", "evt_a")
	for _, ahead := range []time.Duration{30 * time.Second, time.Hour} {
		r := PaymentWebhook{stripetest.Sign(body, time.Now().Add(ahead), stripeSecret), []byte(body)}
		if _, err := p.ReceivePayment(context.Background(), r); err != nil {
			t.Error(err)
		}
		if said := strings.Contains(p.log.String(), "payment_clock_skew"); said != (ahead > maxAhead) {
			t.Errorf("%s ahead: said %v", ahead, said)
		}
	}
}

// Where there is no room an event is refused, so that Stripe comes back with it.
func TestAnEventThatCannotBeStored(t *testing.T) {
	p := newPaymentBench(t)
	body := stripetest.Event(t, "refund.created", "evt_a")
	// The file grows no more, and an event needs more than there is.
	p.exec(`CREATE TABLE filler (x BLOB)`)
	p.exec(`CREATE TRIGGER filled AFTER INSERT ON payment_webhook_events BEGIN INSERT INTO filler VALUES (zeroblob(100000)); END`)
	p.exec(`PRAGMA max_page_count = 1`) // the least: what it has
	if err := p.deliver(body); store.CodeOf(err) != store.CodeUnavailable {
		t.Errorf("%v", err)
	}
	p.exec(`PRAGMA max_page_count = 1000000`)
	p.delivered(body)
	p.pay()
	p.wantEvent("evt_a", EventFulfilled)
}

// S78, the part of payments: with the kill switch on, or without a partner API,
// events are accepted and worked on.
func TestS78PaymentEventsGoOnWhileNothingIsSent(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, b *scene) {
		p := withPayments(b)
		stop := p.run(WorkerOptions{KillSwitch: true, Tick: time.Hour})
		synctest.Wait()
		p.delivered(stripetest.Event(t, "refund.created", "evt_a"), stripetest.Event(t, "refund.updated", "evt_b"))
		synctest.Wait() // for no tick: the commit wakes
		p.wantEvent("evt_a", EventFulfilled)
		p.wantEvent("evt_b", EventFulfilled)
		p.signUp("cus_a")
		time.Sleep(2 * time.Hour)
		stop()
		if n := p.mutations(); n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}
