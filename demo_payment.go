package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"time"

	"jpintel/billing/ledger"
	"jpintel/billing/modelgatetest"
)

// demoStripe signs what the demo sends in Stripe's name.
const demoStripe = "whsec_demo0123456789abcdef"

// demoEvents are what Stripe tells of one payment of 25.00 USD: two events, in
// its shapes. %d is when.
var demoEvents = []string{
	`{"id":"evt_demo_session","object":"event","api_version":"2025-09-30.clover","created":%[1]d,"livemode":false,"type":"checkout.session.completed",` +
		`"data":{"object":{"id":"cs_demo","object":"checkout.session","mode":"payment","payment_status":"paid","amount_total":2500,"currency":"usd",` +
		`"client_reference_id":"cus_demo","metadata":{},"payment_intent":"pi_demo","livemode":false}},"pending_webhooks":1,"request":{"id":null,"idempotency_key":null}}`,
	`{"id":"evt_demo_intent","object":"event","api_version":"2025-09-30.clover","created":%[1]d,"livemode":false,"type":"payment_intent.succeeded",` +
		`"data":{"object":{"id":"pi_demo","object":"payment_intent","status":"succeeded","amount":2500,"amount_received":2500,"currency":"usd",` +
		`"latest_charge":"ch_demo","metadata":{},"livemode":false}},"pending_webhooks":1,"request":{"id":null,"idempotency_key":null}}`,
}

// pay has Stripe tell of a payment, more often than once, while the partner API
// books the credit and drops the line.
func (d *demo) pay(ctx context.Context) error {
	d.say("\n6. A payment of 25.00 USD. Stripe tells of it in two events, each of them twice; the partner books the credit and drops the line.")
	err := d.partner.AddFaults(modelgatetest.Rule{
		Match: modelgatetest.Match{Method: "POST", PathRE: "/top-ups$"}, At: modelgatetest.AtAfterCommit, Do: "reset", Times: 1,
	})
	if err != nil {
		return err
	}
	for _, event := range append(demoEvents, demoEvents...) {
		if err := d.tell(ctx, fmt.Sprintf(event, time.Now().Unix())); err != nil {
			return err
		}
	}
	const want = "25.00"
	err = d.until(ctx, "the credit", func() (bool, error) {
		var b ledger.Balances
		err := d.client.customer(ctx, "GET", "/v1/balance", nil, &b)
		return len(b.Data) == 1 && b.Data[0].Balance == want, err
	})
	if err != nil {
		return err
	}
	if made := d.partner.State().Transactions; len(made) != 1 || made[0].Amount != want {
		return fmt.Errorf("the partner API has the transactions %+v: want one of %s", made, want)
	}
	d.say("   At the partner API: 1 top-up of 25.00 USD. The customer's balance is 25.00 USD.")
	if err := d.settled(ctx); err != nil {
		return err
	}
	if err := d.showArrived("credit.adjustment_posted"); err != nil {
		return err
	}
	out, err := runChild(ctx, d.dir, []string{"JPINTEL_DB=" + d.db()}, "ledger", "verify")
	d.say("   jpintel ledger verify: %s", strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "\n      "))
	return err
}

// tell delivers an event as Stripe does.
func (d *demo) tell(ctx context.Context, event string) error {
	now := time.Now().Unix()
	mac := hmac.New(sha256.New, []byte(demoStripe))
	fmt.Fprintf(mac, "%d.%s", now, event)
	signature := fmt.Sprintf("t=%d,v1=%x", now, mac.Sum(nil))
	status, out, err := d.client.send(ctx, http.MethodPost, "/v1/billing/webhooks/stripe", http.Header{"Stripe-Signature": {signature}}, []byte(event))
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("a payment event: %d: %s", status, out)
	}
	d.say("   Stripe -> %d %s", status, bytes.TrimSpace(out))
	return err
}
