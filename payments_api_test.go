package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"jpintel/billing"
	"jpintel/billing/stripe/stripetest"
	"jpintel/store"
)

const (
	stripeSecret = "whsec_of_the_tests_0123456789abcdef"
	stripePath   = "/v1/billing/webhooks/stripe"
)

// stripe is a caller that signs a body as Stripe does, with these secrets.
func (s *testServer) stripe(body string, secrets ...string) *testClient {
	header := http.Header{"Stripe-Signature": {stripetest.Sign(body, time.Now(), secrets...)}, "Content-Type": {"application/json; charset=utf-8"}}
	return &testClient{server: s, header: header}
}

func (s *testServer) paid(body string) {
	s.t.Helper()
	if a := s.stripe(body, stripeSecret).call("POST", stripePath, body, 200); !strings.Contains(body, decode[billing.PaymentReceived](s.t, a).EventID) {
		s.t.Errorf("answered with %s", a.body)
	}
}

func (s *testServer) event(id string) billing.PaymentEvent {
	s.t.Helper()
	return get[billing.PaymentEvent](s.admin, "/v1/admin/payments/events/"+id)
}

// S45 and S57, from outside, with the limits that a server has by itself.
func TestPaymentWebhooksThroughTheAPI(t *testing.T) {
	s := newServer(t, "JPINTEL_STRIPE_WEBHOOK_SECRETS="+stripeSecret, "JPINTEL_API_RATE=1")
	body := stripetest.Event(t, "checkout.session.completed", "evt_a")
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if a, err := s.stripe(body, stripeSecret).send("POST", stripePath, body); err != nil || a.status != 200 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	both.Wait()
	for range 3 {
		s.paid(body)
	}
	if e := s.event("evt_a"); e.DeliveryCount != 5 || e.Type != "checkout.session.completed" || !e.Livemode || e.LastReceivedAt.Before(e.ReceivedAt) {
		t.Errorf("%+v", e)
	}
	for i := range 60 { // Stripe comes from few addresses, with all that happens
		s.paid(stripetest.Event(t, "customer.created", fmt.Sprint("evt_", i)))
	}

	signed := s.stripe(body, stripeSecret)
	signed.with("Stripe-Signature", "").refused("POST", stripePath, body, 400, "Stripe-Signature: missing")
	s.stripe(body, "whsec_another_secret").refused("POST", stripePath, body, 400, "Stripe-Signature: no v1 signature of this body is made with a secret that is known here")
	signed.refused("POST", stripePath, strings.ReplaceAll(body, "2500", "9900"), 400, "Stripe-Signature: no v1 signature of this body is made with a secret that is known here")
	signed.refused("POST", stripePath, strings.Join(strings.Fields(body), ""), 400, "Stripe-Signature: no v1 signature of this body is made with a secret that is known here")
	signed.with("Stripe-Signature", stripetest.Sign(body, time.Now().Add(-time.Hour), stripeSecret)).refused("POST", stripePath, body, 400, "Stripe-Signature: the time is more than 5 minutes ago")
	thin := stripetest.Event(t, "thin", "evt_thin")
	s.stripe(thin, stripeSecret).refused("POST", stripePath, thin, 400, "the body is no event: object: a thin event; the endpoint has to be set up for snapshot events")

	// A large event is one; too large a body is none.
	large := strings.Replace(stripetest.Event(t, "customer.created", "evt_large"), `"balance": 0`, `"description": "`+strings.Repeat("x", 900<<10)+`"`, 1)
	s.paid(large)
	tooLarge := large + strings.Repeat(" ", 200<<10)
	s.stripe(tooLarge, stripeSecret).refused("POST", stripePath, tooLarge, 413, "the body has more than 1048576 bytes")

	page := get[store.Page[billing.PaymentEvent]](s.admin, "/v1/admin/payments/events?limit=100")
	if len(page.Data) != 62 || page.Data[61].EventID != "evt_a" {
		t.Errorf("%d events are stored, want 62", len(page.Data))
	}
	for _, secret := range []string{stripeSecret, "山田", "buyer@shop.example", "9999"} { // of the server and of the payload
		if strings.Contains(s.log.String(), secret) {
			t.Errorf("%q is in the log", secret)
		}
	}
}

// S58: the operator replaces the secret, with both for a while.
func TestS58AReplacedSecretThroughTheAPI(t *testing.T) {
	s := newServer(t, "JPINTEL_STRIPE_WEBHOOK_SECRETS="+stripeSecret)
	body := stripetest.Event(t, "refund.created", "evt_a")
	const next = "whsec_the_next_0123456789abcdef"
	s.stripe(body, stripeSecret, next).call("POST", stripePath, body, 200)
	s.stripe(body, next).call("POST", stripePath, body, 400)
	s.stop()
	s.env["JPINTEL_STRIPE_WEBHOOK_SECRETS"] = next + "," + stripeSecret
	s.start()
	for _, secrets := range [][]string{{stripeSecret}, {next}, {stripeSecret, next}} {
		s.stripe(body, secrets...).call("POST", stripePath, body, 200)
	}
	s.stop()
	s.env["JPINTEL_STRIPE_WEBHOOK_SECRETS"] = ""
	s.start()
	s.stripe(body, next).refused("POST", stripePath, body, 404, "no such call: payments are not set up here")
	if e := s.event("evt_a"); e.DeliveryCount != 4 {
		t.Errorf("%+v", e)
	}
}

// S60 and S61, as the operator sees them; S78: with the kill switch on, and with
// no partner API, all of it goes on.
func TestPaymentEventsOfTheOperator(t *testing.T) {
	s := newServer(t, "JPINTEL_STRIPE_WEBHOOK_SECRETS="+stripeSecret, "JPINTEL_BILLING_KILL_SWITCH=1", "JPINTEL_BILLING_RETRY_BASE=1ms")
	s.paid(stripetest.Event(t, "customer.created", "evt_other"))
	s.paid(strings.Replace(stripetest.Event(t, "refund.created", "evt_test"), `"livemode": true`, `"livemode": false`, 1))
	s.paid(strings.Replace(stripetest.Event(t, "refund.created", "evt_odd"), `"amount": 300`, `"amount": 3.5`, 1))
	for _, id := range []string{"evt_other", "evt_test"} {
		eventually(t, func() bool { return s.event(id).Status == billing.EventIgnored })
	}
	eventually(t, func() bool { return s.event("evt_odd").Status == billing.EventFailed })

	failed := get[store.Page[billing.PaymentEvent]](s.admin, "/v1/admin/payments/events?status=failed")
	if len(failed.Data) != 1 || *failed.Data[0].LastError != "event evt_odd (refund.created): data.object.amount: want a whole number from 0, in minor units where it is money" {
		t.Errorf("%+v", failed)
	}
	if none := get[store.Page[billing.PaymentEvent]](s.admin, "/v1/admin/payments/events?customer=cus_nobody&payment=pay_none"); len(none.Data) != 0 {
		t.Errorf("%+v", none)
	}
	// When it has failed for good, a rerun is what has it tried again.
	eventually(t, func() bool { return s.event("evt_odd").NextAttemptAt == nil })
	eventually(t, func() bool { return len(s.log.entries("payment_needs_attention")) == 1 })
	if rerun := decode[billing.PaymentEvent](t, s.admin.call("POST", "/v1/admin/payments/events/evt_odd/rerun", nil, 200)); rerun.Status != billing.EventReceived {
		t.Errorf("%+v", rerun)
	}
	eventually(t, func() bool { return len(s.log.entries("payment_needs_attention")) == 2 })
	if rerun := decode[billing.Rerun](t, s.admin.call("POST", "/v1/admin/payments/rerun", `{"status":"failed"}`, 200)); rerun.Events != 1 {
		t.Errorf("%+v", rerun)
	}
	eventually(t, func() bool { return len(s.log.entries("payment_needs_attention")) == 3 })
	if said := s.command("payments", "rerun", "--failed"); said != "1 events are worked on again.\n" {
		t.Error(said)
	}
	eventually(t, func() bool { return len(s.log.entries("payment_needs_attention")) == 4 })
	if shown := s.command("payments", "list", "--status", "failed", "--json"); !strings.Contains(shown, `"evt_odd"`) || strings.Contains(shown, `"evt_test"`) {
		t.Error(shown)
	}
	if shown := s.command("payments", "show", "evt_test"); !strings.Contains(shown, "it is about test money") || strings.Contains(shown, "pi_3TestJpintel0001") {
		t.Error(shown)
	}
	s.admin.refused("GET", "/v1/admin/payments/events/evt_none", nil, 404, "payment event evt_none not found")
	s.admin.refused("POST", "/v1/admin/payments/events/evt_none/rerun", nil, 404, "payment event evt_none not found")
	s.admin.refused("POST", "/v1/admin/payments/rerun", `{"status":"fulfilled"}`, 400, "status: want held or failed")
	s.admin.refused("GET", "/v1/admin/payments/events?status=done", nil, 400, "status: want received, held, fulfilled, ignored or failed")
	s.admin.with("Authorization", "").call("GET", "/v1/admin/payments/events", nil, 401)
}
