package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"jpintel/store"
	"jpintel/webhook"
)

const usagePath = "/v1/admin/usage"

// use reports a customer's calls, and returns the day with them.
func (s *testServer) use(customer string, calls int, at time.Time) webhook.UsageAnswer {
	s.t.Helper()
	body := map[string]any{"customer_id": customer, "calls": calls}
	if !at.IsZero() {
		body["at"] = at.Format(time.RFC3339)
	}
	return decode[webhook.UsageAnswer](s.t, s.admin.once(store.NewID("k")).call("POST", usagePath, body, 200))
}

// quotaWarnings are what a customer was told, as the feed has it.
func (c *testClient) quotaWarnings() (all []webhook.TierQuotaWarning) {
	c.server.t.Helper()
	for _, e := range c.feed("tier.quota.warning") {
		all = append(all, decode[webhook.TierQuotaWarning](c.server.t, testAnswer{body: string(e.Data)}))
	}
	return all
}

// noon is a time zone in which it is about noon, so that no midnight ends the
// day of a test: its setting and itself.
func noon(t *testing.T) (setting string, zone *time.Location) {
	t.Helper()
	ahead := 12 - time.Now().UTC().Hour()
	name := fmt.Sprintf("Etc/GMT%+d", -ahead) // the sign is the other way round there
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return "JPINTEL_TIMEZONE=" + name, zone
}

func TestUsage(t *testing.T) {
	setting, zone := noon(t)
	s := newServer(t, setting)
	cus := s.customer("cus_a", "paid")
	hook := newReceiver(t, nil)
	cus.subscribe(hook, "tier.quota.warning")
	year, month, day := time.Now().In(zone).Date()
	midnight := time.Date(year, month, day+1, 0, 0, 0, 0, zone)
	resets := midnight.Format("2006-01-02T15:04:05-07:00")

	first := s.admin.once("k").call("POST", usagePath, `{"customer_id":"cus_a","calls":70}`, 200)
	if want := fmt.Sprintf(`{"usage_today":70,"limit":null,"resets_at":%q}`+"\n", resets); first.body != want {
		t.Errorf("%s, want %s", first.body, want)
	}
	s.admin.call("PATCH", "/v1/admin/customers/cus_a", `{"daily_limit":100}`, 200)
	if again := s.admin.once("k").call("POST", usagePath, `{"calls":70,"at":null,"customer_id":"cus_a"}`, 200); again.body != first.body {
		t.Errorf("again: %s, want %s", again.body, first.body)
	}
	s.admin.once("k").refused("POST", usagePath, `{"customer_id":"cus_a","calls":71}`, 409, "Idempotency-Key: used before, for another request")
	if late := s.use("cus_a", 99, midnight.Add(-24*time.Hour-time.Second)); late.UsageToday != 99 || late.ResetsAt != midnight.Add(-24*time.Hour).Format("2006-01-02T15:04:05-07:00") {
		t.Errorf("yesterday's: %+v", late)
	}
	if got := cus.quotaWarnings(); len(got) != 0 {
		t.Errorf("told too early: %+v", got)
	}
	if got := s.use("cus_a", 10, time.Time{}); got.UsageToday != 80 || got.Limit == nil || *got.Limit != 100 {
		t.Errorf("%+v", got)
	}
	if got := hook.wait(1)[0].body; !strings.Contains(got, `"data":{"customer_id":"cus_a","tier":"paid","usage_today":80,"limit":100,"resets_at":"`+resets+`"}`) {
		t.Errorf("sent: %s", got)
	}
	s.use("cus_a", -5, time.Time{}) // does not re-arm it
	s.use("cus_a", 25, time.Time{})
	s.admin.once("l").refused("POST", usagePath, `{"customer_id":"cus_a","calls":-101}`, 409,
		"calls: 101 cannot be taken back, since 100 are counted for "+midnight.Add(-time.Hour).Format(time.DateOnly))
	if got := cus.quotaWarnings(); len(got) != 1 {
		t.Errorf("told %+v, want it once", got)
	}
}

// A limit that is changed can cross, too, by the API and by the command beside
// the server.
func TestDailyLimit(t *testing.T) {
	setting, _ := noon(t)
	s := newServer(t, setting)
	cus := s.customer("cus_a", "paid")
	hook := newReceiver(t, nil)
	cus.subscribe(hook, "tier.quota.warning")
	s.use("cus_a", 80, time.Time{})
	const path = "/v1/admin/customers/cus_a"
	limit := func(body string, want int64) {
		t.Helper()
		if got := decode[store.Customer](t, s.admin.call("PATCH", path, body, 200)); got.DailyLimit != want || got.CustomerID != "cus_a" || got.Tier != "paid" {
			t.Errorf("%s: %+v", body, got)
		}
	}
	limit(`{"daily_limit":101}`, 101)
	limit(`{}`, 101)
	limit(`{"daily_limit":100}`, 100) // told
	limit(`{"daily_limit":100}`, 100)
	limit(`{"daily_limit":90}`, 90) // it was reached before
	limit(`{"daily_limit":null}`, 0)
	if got := s.command("customers", "set-limit", "cus_a", "95", "--json"); !strings.Contains(got, `"daily_limit":95`) { // told
		t.Errorf("set-limit: %s", got)
	}
	hook.wait(2)
	if got := cus.quotaWarnings(); len(got) != 2 || got[0].Limit != 100 || got[1].Limit != 95 || got[1].UsageToday != 80 {
		t.Errorf("told %+v", got)
	}
	for body, detail := range map[string]string{
		`{"daily_limit":0}`:      "daily_limit: want a positive number of calls a day, or null for no limit",
		`{"daily_limit":"many"}`: "daily_limit: want a positive number of calls a day, or null for no limit",
		`{"tier":"free"}`:        "tier: unknown field",
	} {
		s.admin.refused("PATCH", path, body, 400, detail)
	}
	s.admin.refused("PATCH", "/v1/admin/customers/cus_b", `{"daily_limit":1}`, 404, "customer cus_b not found")
	s.admin.refused("PATCH", "/v1/admin/customers/cus_b", `{}`, 404, "customer cus_b not found")
}

func TestUsageUnderConcurrency(t *testing.T) {
	setting, _ := noon(t)
	s := newServer(t, setting)
	cus := s.customer("cus_a", "paid")
	s.admin.call("PATCH", "/v1/admin/customers/cus_a", `{"daily_limit":100}`, 200)
	var group sync.WaitGroup
	for i := range 60 {
		group.Go(func() { // each of 30 keys twice
			if a, err := s.admin.once(fmt.Sprint(i/2)).send("POST", usagePath, `{"customer_id":"cus_a","calls":3}`); err != nil || a.status != 200 {
				t.Errorf("%d %s: %v", a.status, a.body, err)
			}
		})
	}
	group.Wait()
	if got := s.use("cus_a", 1, time.Time{}); got.UsageToday != 91 {
		t.Errorf("%d calls, want 91", got.UsageToday)
	}
	if got := cus.quotaWarnings(); len(got) != 1 || got[0].UsageToday != 81 {
		t.Errorf("told %+v, want it once, at 81", got)
	}
}

func TestUsageRefusals(t *testing.T) {
	s := newServer(t)
	s.customer("cus_a", "paid")
	s.admin.refused("POST", usagePath, `{"customer_id":"cus_a","calls":1}`, 400, "Idempotency-Key: required")
	for body, detail := range map[string]string{
		`{"calls":1}`:                                                   "customer_id: required",
		`{"customer_id":"cus_a"}`:                                       "calls: want a number other than 0, of at most 1000000000, negative to take back",
		`{"customer_id":"cus_a","calls":1.5}`:                           "calls: want a whole number",
		`{"customer_id":"cus_a","calls":1,"at":"today"}`:                "at: want a time like 2026-05-14T09:00:00+09:00",
		`{"customer_id":"cus_a","calls":1,"at":"9999-01-01T00:00:00Z"}`: "at: more than 5m in the future",
		`{"customer_id":"cus_a","calls":1,"day":"2026-05-14"}`:          "day: unknown field",
	} {
		s.admin.once("k").refused("POST", usagePath, body, 400, detail)
	}
	s.admin.once("k").refused("POST", usagePath, `{"customer_id":"cus_b","calls":1}`, 404, "customer cus_b not found")
}
