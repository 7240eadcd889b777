package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"jpintel/billing/stripe"
	"jpintel/billing/stripe/stripetest"
)

// stripeVerdict is what the official library says: how it signs, or whether it
// accepts.
type stripeVerdict struct {
	Header  string `json:"header"`
	EventID string `json:"event_id"`
	Error   string `json:"error"`
}

// TestStripesOwnLibrary holds our reading of Stripe's signatures against Stripe's
// library: what it signs is accepted by a running server, and what we would sign
// by it; with another secret, neither.
func TestStripesOwnLibrary(t *testing.T) {
	oracle := oracleStart(t, "payments.mjs")
	s := newServer(t, "JPINTEL_STRIPE_WEBHOOK_SECRETS="+stripeSecret)
	files, err := filepath.Glob(stripetest.Dir + "/*.*.json")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d fixtures (%v)", len(files), err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for secret, status := range map[string]int{stripeSecret: 200, "whsec_another_secret": 400} {
			var signed stripeVerdict
			oracle.ask(map[string]any{"payload_base64": body, "secret": secret}, &signed)
			s.stripe("").with("Stripe-Signature", signed.Header).call("POST", stripePath, string(body), status)

			var verified stripeVerdict
			oracle.ask(map[string]any{"payload_base64": body, "secret": stripeSecret, "header": stripetest.Sign(string(body), time.Now(), secret)}, &verified)
			if accepted := verified.EventID != "" && verified.Error == ""; accepted != (status == 200) {
				t.Errorf("%s, signed with %s: %+v", file, secret, verified)
			}
		}
		var old stripeVerdict
		oracle.ask(map[string]any{"payload_base64": body, "secret": stripeSecret, "header": stripetest.Sign(string(body), time.Now().Add(-stripe.Tolerance-2*time.Second), stripeSecret)}, &old)
		if old.Error == "" {
			t.Errorf("%s: an old signature is accepted by the library", file)
		}
	}
}
