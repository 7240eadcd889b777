package stripe

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"jpintel/billing/stripe/stripetest"
)

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	return []byte(stripetest.Event(t, name, fixtureID))
}

const fixtureID = "evt_1TestJpintel"

// facts are what the fixtures tell.
var facts = map[string]any{
	"checkout.session.completed":               Payment{"pi_3TestJpintel0001", "cs_live_a1TestJpintel0001", "", "cus_a", Paid, 2500, "USD"},
	"checkout.session.completed.unpaid":        Payment{"pi_3TestJpintel0001", "cs_live_a1TestJpintel0001", "", "cus_of_the_metadata", Awaiting, 5000, "JPY"},
	"checkout.session.completed.expanded":      Payment{"pi_3TestJpintel0001", "cs_live_a1TestJpintel0001", "", "", Paid, 2500, "USD"},
	"checkout.session.completed.free":          Payment{"", "cs_live_a1TestJpintel0001", "", "cus_a", Free, 0, "USD"},
	"checkout.session.completed.subscription":  nil,
	"checkout.session.completed.setup":         nil,
	"checkout.session.completed.2020-08-27":    Payment{"pi_1TestJpintel0002", "cs_live_a1TestJpintel0001", "", "cus_b", Paid, 2500, "USD"},
	"checkout.session.async_payment_succeeded": Payment{"pi_3TestJpintel0001", "cs_live_a1TestJpintel0001", "", "cus_of_the_metadata", Paid, 5000, "JPY"},
	"checkout.session.async_payment_failed":    Payment{"pi_3TestJpintel0001", "cs_live_a1TestJpintel0001", "", "cus_a", Failed, 5000, "JPY"},
	"checkout.session.expired":                 Payment{"", "cs_live_a1TestJpintel0001", "", "cus_a", Failed, 0, ""},
	"payment_intent.succeeded":                 Payment{"pi_3TestJpintel0001", "", "ch_3TestJpintel0001", "cus_a", Paid, 2500, "USD"},
	"payment_intent.succeeded.2022-11-15":      Payment{"pi_3TestJpintel0001", "", "ch_3TestJpintel0001", "", Paid, 2500, "USD"},
	"payment_intent.succeeded.2020-08-27":      Payment{"pi_3TestJpintel0001", "", "ch_1TestJpintel0009", "cus_a", Paid, 2500, "USD"},
	"payment_intent.payment_failed":            Payment{"pi_3TestJpintel0001", "", "ch_3TestJpintel0001", "cus_a", Awaiting, 2500, "USD"},
	"charge.refunded":                          Charge{"ch_3TestJpintel0001", "pi_3TestJpintel0001", 2500, 500, "USD"},
	"charge.refunded.2020-08-27":               Charge{"ch_3TestJpintel0001", "", 2500, 2500, "USD"},
	"refund.created":                           Refund{"re_3TestJpintel0001", "pi_3TestJpintel0001", "ch_3TestJpintel0001", 300, "USD", "pending"},
	"refund.updated":                           Refund{"re_3TestJpintel0001", "pi_3TestJpintel0001", "ch_3TestJpintel0001", 300, "USD", "succeeded"},
	"refund.failed":                            Refund{"re_3TestJpintel0001", "pi_3TestJpintel0001", "", 300, "USD", "failed"},
	"charge.refund.updated.2020-08-27":         Refund{"re_3TestJpintel0001", "", "ch_3TestJpintel0001", 300, "USD", "canceled"},
	"charge.dispute.created":                   Dispute{"dp_1TestJpintel0001", "pi_3TestJpintel0001", "ch_3TestJpintel0001", 2000, "USD", "needs_response", true, false},
	"charge.dispute.created.inquiry":           Dispute{"dp_1TestJpintel0001", "pi_3TestJpintel0001", "ch_3TestJpintel0001", 2000, "USD", "warning_needs_response", false, false},
	"charge.dispute.updated":                   Dispute{"dp_1TestJpintel0001", "pi_3TestJpintel0001", "ch_3TestJpintel0001", 2000, "USD", "under_review", false, false},
	"charge.dispute.funds_withdrawn":           Dispute{"dp_1TestJpintel0001", "pi_3TestJpintel0001", "ch_3TestJpintel0001", 2000, "USD", "needs_response", true, false},
	"charge.dispute.funds_reinstated":          Dispute{"dp_1TestJpintel0001", "pi_3TestJpintel0001", "ch_3TestJpintel0001", 2000, "USD", "won", false, true},
	"charge.dispute.closed.won":                Dispute{"dp_1TestJpintel0001", "pi_3TestJpintel0001", "ch_3TestJpintel0001", 2000, "USD", "won", false, true},
	"charge.dispute.closed.lost":               Dispute{"dp_1TestJpintel0001", "", "ch_3TestJpintel0001", 2000, "USD", "lost", true, false},
	"charge.dispute.closed.2020-08-27":         Dispute{"dp_1TestJpintel0002", "pi_3TestJpintel0001", "ch_3TestJpintel0001", 2000, "USD", "warning_closed", false, false},
	"customer.created":                         nil,
}

// fact is the one fact of an event.
func fact(t testing.TB, e *Event) any {
	t.Helper()
	var all []any
	for _, one := range []any{e.Payment, e.Charge, e.Refund, e.Dispute} {
		if v := reflect.ValueOf(one); !v.IsNil() {
			all = append(all, v.Elem().Interface())
		}
	}
	if len(all) > 1 {
		t.Fatalf("%d facts in one event", len(all))
	}
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

func TestFixtures(t *testing.T) {
	for name, want := range facts {
		e, err := Parse(fixture(t, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := fact(t, e); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if !strings.HasPrefix(name, e.Type) || e.ID != fixtureID || !e.Livemode || e.APIVersion == "" || e.Created.Before(time.Unix(1764460800, 0)) {
			t.Errorf("%s: %+v", name, e)
		}
	}
	files, err := filepath.Glob(stripetest.Dir + "/*.json")
	if err != nil || len(files) != len(facts)+1 {
		t.Errorf("%d fixtures (%v), %d of them looked at", len(files), err, len(facts)+1)
	}
}

// A thin event has nothing in it that could be acted on.
func TestS60AThinEventIsRefused(t *testing.T) {
	if _, err := ParseEnvelope(fixture(t, "thin")); err == nil || err.Error() != "object: a thin event; the endpoint has to be set up for snapshot events" {
		t.Error(err)
	}
}

// TestRefusals changes one thing of a fixture, which is then an error that names
// it: of the envelope, or of the object.
func TestRefusals(t *testing.T) {
	const session, intent, refund, dispute = "checkout.session.completed", "payment_intent.succeeded", "refund.created", "charge.dispute.created"
	for _, c := range []struct{ name, from, to, envelope, object string }{
		{session, `"object": "event"`, `"object": "events"`, "object: want event", ""},
		{session, `"object": "event"`, `"Object": "event"`, "object: want a string", ""},
		{session, `"type": "checkout.session.completed"`, `"type": "a", "type": "b"`, "a name is there twice, or in two spellings", ""},
		{session, `"type": "checkout.session.completed"`, `"type": "a", "TYPE": "b"`, "a name is there twice, or in two spellings", ""},
		{session, `"type": "checkout.session.completed"`, `"type": "a b"`, "type: want small letters, digits, _ and points", ""},
		{session, `"livemode": true,
  "pending`, `"livemode": "true", "pending`, "livemode: want true or false", ""},
		{session, `"created": 1764460800`, `"created": 1764460800.5`, "created: want a whole number from 0, in minor units where it is money", ""},
		{session, `"created": 1764460800`, `"created": 253402300800`, "created: want seconds since 1970", ""},
		{session, `"id": "evt_1TestJpintel"`, `"id": "evt/1"`, "id: want at most 255 letters, digits or _ . -", ""},
		{session, `"data": {`, `"date": {`, "data: want an object", ""},
		{session, `"amount_total": 2500`, `"amount_total": 2500.0`, "", "data.object.amount_total: want a whole number from 0, in minor units where it is money"},
		{session, `"amount_total": 2500`, `"amount_total": 25e2`, "", "data.object.amount_total: want a whole number from 0, in minor units where it is money"},
		{session, `"amount_total": 2500`, `"amount_total": -2500`, "", "data.object.amount_total: want a whole number from 0, in minor units where it is money"},
		{session, `"amount_total": 2500`, `"amount_total": "2500"`, "", "data.object.amount_total: want a whole number from 0, in minor units where it is money"},
		{session, `"amount_total": 2500`, `"amount_total": null`, "", "data.object.amount_total: want a whole number from 0, in minor units where it is money"},
		{session, `"amount_total": 2500`, `"amount_total": 9999999999999999999`, "", "data.object.amount_total: want a whole number from 0, in minor units where it is money"},
		{session, `"currency": "usd"`, `"currency": null`, "", "data.object.currency: want a string"},
		{session, `"currency": "usd"`, `"currency": "USD"`, "", "data.object.currency: want three small letters like usd"},
		{session, `"payment_status": "paid"`, `"payment_status": "maybe"`, "", "data.object.payment_status: want paid, unpaid or no_payment_required"},
		{session, `"client_reference_id": "cus_a"`, `"client_reference_id": 1`, "", "data.object.client_reference_id: want a string or null"},
		{session, `"payment_intent": "pi_3TestJpintel0001"`, `"payment_intent": {"object": "payment_intent"}`, "", "data.object.payment_intent.id: want a string"},
		{session, `"payment_intent": "pi_3TestJpintel0001"`, `"payment_intent": 1`, "", "data.object.payment_intent: want an id, an object or null"},
		{session, `"object": "checkout.session"`, `"object": "payment_intent"`, "", "data.object.object: want checkout.session"},
		{intent, `"amount_received": 2500`, `"amount_received": null`, "", "data.object.amount_received: want a whole number from 0, in minor units where it is money"},
		{intent, `"customer_id": "cus_a"`, `"customer_id": {}`, "", "data.object.metadata.customer_id: want a string or null"},
		{refund, `"status": "pending"`, `"status": "done"`, "", "data.object.status: want one of pending, requires_action, succeeded, failed, canceled"},
		{dispute, `"status": "needs_response"`, `"status": null`, "", "data.object.status: want a string"},
	} {
		body := strings.Replace(string(fixture(t, c.name)), c.from, c.to, 1)
		envelope, err := ParseEnvelope([]byte(body))
		if c.envelope != "" {
			if err == nil || err.Error() != c.envelope {
				t.Errorf("%s, %s: %v, want %s", c.name, c.to, err, c.envelope)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s, %s: the envelope: %v", c.name, c.to, err)
			continue
		}
		if _, err := envelope.Fact(); err == nil || !strings.HasSuffix(err.Error(), "): "+c.object) {
			t.Errorf("%s, %s: %v, want %s", c.name, c.to, err, c.object)
		}
	}
	for _, body := range []string{"", "null", "[]", `{"object":"event"}`, string(fixture(t, session)) + "{}", strings.Repeat(`{"a":`, 100_000)} {
		if _, err := ParseEnvelope([]byte(body)); err == nil {
			t.Errorf("%.40s is accepted", body)
		}
	}
}

// The hash is of what the event tells, in whatever dress it comes.
func TestSemanticHash(t *testing.T) {
	hash := func(change func(map[string]any)) string {
		var o map[string]any
		if err := json.Unmarshal(fixture(t, "refund.created"), &o); err != nil {
			t.Fatal(err)
		}
		change(o)
		body, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		e, err := ParseEnvelope(body)
		if err != nil {
			t.Fatal(err)
		}
		return e.SemanticHash
	}
	plain := hash(func(map[string]any) {})
	for what, change := range map[string]func(map[string]any){
		"pending_webhooks": func(o map[string]any) { o["pending_webhooks"] = 7 },
		"request":          func(o map[string]any) { o["request"] = nil },
		"previous_attributes": func(o map[string]any) {
			o["data"].(map[string]any)["previous_attributes"] = map[string]any{"status": "pending"}
		},
	} {
		if hash(change) != plain {
			t.Errorf("%s changes the hash", what)
		}
	}
	for what, change := range map[string]func(map[string]any){
		"type":    func(o map[string]any) { o["type"] = "refund.updated" },
		"created": func(o map[string]any) { o["created"] = 1764460801 },
		"amount":  func(o map[string]any) { o["data"].(map[string]any)["object"].(map[string]any)["amount"] = 301 },
	} {
		if hash(change) == plain {
			t.Errorf("%s does not change the hash", what)
		}
	}
}

// FuzzParse: nothing makes it panic, and what is accepted is read the same again
// from other bytes that say the same.
func FuzzParse(f *testing.F) {
	for name := range facts {
		f.Add(fixture(f, name))
	}
	f.Add([]byte(`{"object":"event","id":"a","type":"charge.refunded","created":1,"livemode":true,"data":{"object":{"amount":1e400}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := Parse(body)
		if err != nil {
			return
		}
		fact(t, e)
		var spaced any
		dec := json.NewDecoder(strings.NewReader(string(body)))
		dec.UseNumber()
		if err := dec.Decode(&spaced); err != nil {
			t.Fatalf("%s is accepted, and no JSON: %v", body, err)
		}
		text, err := json.MarshalIndent(spaced, "", "\t")
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Parse(text); err != nil || !reflect.DeepEqual(e, again) {
			t.Fatalf("%s: %+v, then %+v (%v)", body, e, again, err)
		}
	})
}
