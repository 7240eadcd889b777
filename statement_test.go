package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"jpintel/billing"
	"jpintel/billing/metering"
	"jpintel/billing/modelgatetest"
	"jpintel/webhook"
)

// The attempts of a customer, by day, with their price: exact, and rounded once.
func TestTheStatementThroughTheAPI(t *testing.T) {
	setting, zone := noon(t)
	s := newServer(t, setting)
	cus := s.customer("cus_a", "paid")
	other := s.customer("cus_b", "free")
	hook := newReceiver(t, nil)
	sub := cus.subscribe(hook, "program.created")
	for range 3 {
		cus.call("POST", "/v1/webhooks/test/"+sub.SubscriptionID, nil, 200)
	}
	month := metering.Month(time.Now(), zone)
	got := get[metering.Statement](cus, "/v1/usage")
	if a := got.Attempts; got.Month != month || a.Attempts != 3 || a.Exact != "1.5" || a.Rounded != "2" || a.Currency != "JPY" || a.Billed || len(a.Days) != 1 || got.Models != nil || !got.Provisional {
		t.Errorf("%+v", got)
	}
	if of := get[metering.Statement](s.admin, "/v1/admin/usage?customer=cus_a&format=json&month="+month); of.Attempts.Exact != "1.5" {
		t.Errorf("as the operator sees it: %+v", of)
	}
	if got := get[metering.Statement](other, "/v1/usage"); got.CustomerID != "cus_b" || got.Attempts.Attempts != 0 || got.Attempts.Exact != "0" {
		t.Errorf("another's: %+v", got)
	}
	file := cus.call("GET", "/v1/usage?format=csv", nil, 200)
	if name := file.header.Get("Content-Disposition"); !strings.Contains(file.body, "webhook_attempts_total,"+month+",3,,JPY,1.5,2,provisional,\r\n") || name != `attachment; filename="usage-`+month+`.csv"` {
		t.Errorf("%q: %s", name, file.body)
	}
	if shown := s.command("usage", "statement", "--customer", "cus_a", "--csv"); shown != file.body {
		t.Errorf("the command: %s", shown)
	}
	for path, detail := range map[string]string{
		"/v1/usage?format=xls": "format: want json or csv", "/v1/usage?month=2026-1": "month: want a month like 2026-05",
		"/v1/usage?month=9999-12": "month: 9999-12 has not begun", "/v1/usage?customer=cus_b": "customer: unknown parameter",
	} {
		cus.refused("GET", path, nil, 400, detail)
	}
	s.admin.refused("GET", "/v1/admin/usage", nil, 400, "customer: required")
	s.admin.refused("GET", "/v1/admin/usage?customer=cus_x", nil, 404, "customer cus_x not found")
	cus.refused("GET", "/v1/budget", nil, 404, "there is no budget: models are not part of this account")

	// Another price holds from now on, whoever asks.
	s.stop()
	s.env["JPINTEL_WEBHOOK_ATTEMPT_PRICE"] = "0.75"
	s.start()
	if a := get[metering.Statement](s.client("cus_a"), "/v1/usage").Attempts; a.Exact != "2.25" || a.Rounded != "2" || a.Days[0].UnitPrice != "0.75" {
		t.Errorf("with another price: %+v", a)
	}
	s.env["JPINTEL_WEBHOOK_ATTEMPT_PRICE"] = "100"
	var shown metering.Statement
	if err := json.Unmarshal([]byte(s.command("usage", "statement", "--customer", "cus_a", "--month", month, "--json")), &shown); err != nil || shown.Attempts.Exact != "2.25" {
		t.Errorf("the command: %+v (%v)", shown, err)
	}
}

// What models cost is polled, counted, and held against the limit; the customer's
// webhooks tell of it.
func TestUsageOfModelsThroughTheAPI(t *testing.T) {
	setting, zone := noon(t)
	up := modelgatetest.New(modelgatetest.Options{}).Start(t)
	s := newServer(t, setting, "MODELGATE_BASE_URL="+up.BaseURL(), "MODELGATE_API_KEY="+modelgatetest.DevToken, "JPINTEL_USAGE_POLL=20ms")
	cus := s.customer("cus_a", "paid")
	hook := newReceiver(t, nil)
	cus.subscribe(hook, "budget.threshold_crossed")
	s.admin.with("Idempotency-Key", "click-1").call("POST", "/v1/admin/customers", signUpBody, 202)
	c := billed(t, s, billing.Ready)
	if _, err := up.Use(modelgatetest.Used{KeyID: c.Keys[0].KeyID, Model: "m1", Cost: "80.125"}); err != nil {
		t.Fatal(err)
	}
	month := metering.Month(time.Now(), zone)
	if got := hook.wait(1)[0].body; !strings.Contains(got, `"data":{"customer_id":"cus_a","period":"`+month+`","currency":"USD","threshold_percent":80,"spend":"80.125","limit":"100.00"}`) {
		t.Errorf("sent: %s", got)
	}
	b := get[billing.Budget](cus, "/v1/budget")
	if b.Period != month || b.Spend != "80.125" || *b.Remaining != "19.875" || b.Reached || len(b.Thresholds) != 1 || b.AsOf == nil {
		t.Errorf("%+v", b)
	}
	got := get[metering.Statement](cus, "/v1/usage")
	if m := got.Models; m == nil || m.Exact != "80.125" || len(m.Days) != 1 || m.Days[0].Status != metering.Provisional {
		t.Errorf("%+v", got)
	}
	if events := cus.feed("budget.threshold_crossed"); len(events) != 1 || decode[webhook.BudgetThresholdCrossed](t, testAnswer{body: string(events[0].Data)}).ThresholdPercent != 80 {
		t.Errorf("%+v", events)
	}
}
