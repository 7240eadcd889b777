package main

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"jpintel/billing/ledger"
	"jpintel/store"
	"jpintel/webhook"
	"jpintel/webhook/programs"
)

type (
	subscriptionPage = store.Page[webhook.Subscription]
	deliveryPage     = store.Page[webhook.Delivery]
)

const (
	subscribePath = "/v1/webhooks/subscribe"
	listPath      = "/v1/webhooks/subscriptions"
)

func deliveriesPath(subscription string) string { return listPath + "/" + subscription + "/deliveries" }

// deliveries waits until a subscription has this many, all of them finished,
// and returns them, newest first.
func (c *testClient) deliveries(subscription string, n int) []webhook.Delivery {
	c.server.t.Helper()
	var page deliveryPage
	eventually(c.server.t, func() bool {
		page = get[deliveryPage](c, deliveriesPath(subscription)+"?limit=100")
		return len(page.Data) >= n && !slices.ContainsFunc(page.Data, func(d webhook.Delivery) bool { return d.Status == webhook.StatusPending })
	})
	if len(page.Data) != n {
		c.server.t.Fatalf("%d deliveries, want %d", len(page.Data), n)
	}
	return page.Data
}

// feed reads everything that the customer may see, of these types or of all.
func (c *testClient) feed(types ...webhook.Type) []webhook.Event {
	c.server.t.Helper()
	var all []webhook.Event
	for after := ""; ; {
		page := get[webhook.EventPage](c, "/v1/events?limit=100&after="+after+"&types="+joinTypes(types))
		if len(page.Data) == 0 {
			return all
		}
		all, after = append(all, page.Data...), page.NextCursor
	}
}

func joinTypes(types []webhook.Type) string {
	var names []string
	for _, t := range types {
		names = append(names, string(t))
	}
	return strings.Join(names, ",")
}

// putProgram ingests a program and returns the answer.
func (s *testServer) putProgram(id, body string, status int) programs.PutProgramResponse {
	s.t.Helper()
	return decode[programs.PutProgramResponse](s.t, s.admin.call("PUT", "/v1/admin/programs/"+id, body, status))
}

// importPrograms ingests n new programs in one stream.
func (s *testServer) importPrograms(prefix string, n int) programs.Report {
	s.t.Helper()
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, `{"unified_id":"%s-%03d","primary_name":"補助金 %d","prefectures":["東京都"]}`+"\n", prefix, i, i)
	}
	return decode[programs.Report](s.t, s.admin.with("Content-Type", "application/x-ndjson").call("POST", "/v1/admin/programs", lines.String(), 200))
}

// --- subscriptions ---

func TestSubscribe(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	a := cus.call("POST", subscribePath, `{"url":"HTTP://127.0.0.1:8443","events":["program.updated","program.created","program.updated"],
		"filter":{"prefecture":["東京都","全国","東京都"],"authority_level":"national"},"envelope":"v2","description":"本番 <1>"}`, 201)
	got := decode[map[string]any](t, a)
	id, secret := got["subscription_id"].(string), got["signing_secret"].(string)
	if !regexp.MustCompile(`^sub_[0-9A-HJKMNP-TV-Z]{26}$`).MatchString(id) {
		t.Errorf("subscription_id %q", id)
	}
	if !regexp.MustCompile(`^whsec_[0-9a-f]{64}$`).MatchString(secret) {
		t.Errorf("signing_secret %q", secret)
	}
	want := fmt.Sprintf(`{"subscription_id":%q,"signing_secret":%q,"url":"http://127.0.0.1:8443/","events":["program.created","program.updated"],`+
		`"filter":{"authority_level":"national","prefecture":["全国","東京都"]},"envelope":"v2","description":"本番 <1>","created_at":%q,"secret_shown_once":true,"warnings":[]}`+"\n",
		id, secret, got["created_at"])
	if a.body != want {
		t.Errorf("answer\n%swant\n%s", a.body, want)
	}
	if at, err := time.Parse(time.RFC3339, got["created_at"].(string)); err != nil || !strings.HasSuffix(got["created_at"].(string), "+09:00") || time.Since(at).Abs() > time.Hour {
		t.Errorf("created_at %v: %v", got["created_at"], err)
	}
	least := cus.subscribeWith(map[string]any{"url": "http://127.0.0.1/", "events": []string{"program.created"}, "filter": nil})
	if least.Envelope != "v1" || least.Description != "" || len(least.Filter) != 0 || least.SigningSecret == secret {
		t.Errorf("the least: %+v", least)
	}
}

func TestSubscriptionLifecycle(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	first, second := cus.subscribe(hook, "program.created"), cus.subscribe(hook, "program.updated")
	if got := ids(get[subscriptionPage](cus, listPath).Data); !slices.Equal(got, []string{second.SubscriptionID, first.SubscriptionID}) {
		t.Errorf("list %v, want the newest first", got)
	}
	path := listPath + "/" + first.SubscriptionID
	sub := get[webhook.Subscription](cus, path)
	if sub.URL != hook.url || sub.State != "active" || sub.DisabledReason != nil || sub.LastDeliveryAt != nil || sub.SuccessRateHour != nil {
		t.Errorf("subscription: %+v", sub)
	}
	for _, p := range []string{listPath, path} {
		if body := cus.call("GET", p, nil, 200).body; strings.Contains(body, first.SigningSecret) || strings.Contains(body, "secret") {
			t.Errorf("%s shows a secret: %s", p, body)
		}
	}
	if a := cus.call("DELETE", path, nil, 204); a.header.Get("Content-Type") != "" {
		t.Errorf("204 with a content type: %v", a.header)
	}
	cus.refused("GET", path, nil, 404, "subscription "+first.SubscriptionID+" not found")
	cus.refused("GET", path+"/deliveries", nil, 404, "subscription "+first.SubscriptionID+" not found")
	cus.call("DELETE", path, nil, 204)
	cus.call("DELETE", listPath+"/sub_00000000000000000000000000", nil, 404)
	if got := ids(get[subscriptionPage](cus, listPath).Data); !slices.Equal(got, []string{second.SubscriptionID}) {
		t.Errorf("list after the deletion: %v", got)
	}
}

func ids(subs []webhook.Subscription) []string {
	var all []string
	for _, sub := range subs {
		all = append(all, sub.SubscriptionID)
	}
	return all
}

func TestSubscriptionLimitUnderConcurrency(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	other := s.customer("cus_b", "paid")
	body := `{"url":"http://127.0.0.1:9/","events":["program.created"]}`
	other.call("POST", subscribePath, body, 201)
	var all sync.WaitGroup
	answers := make(chan testAnswer, 50)
	for range cap(answers) {
		all.Go(func() {
			a, err := cus.send("POST", subscribePath, body)
			if err != nil {
				t.Error(err)
			}
			answers <- a
		})
	}
	all.Wait()
	close(answers)
	count := map[string]int{}
	for a := range answers {
		if a.status == 201 {
			a.body = ""
		}
		count[strconv.Itoa(a.status)+" "+a.body]++
	}
	const limit = "subscription limit 20 reached for tier=paid"
	if want := map[string]int{"201 ": 20, "409 " + errorBody(limit): 30}; !maps.Equal(count, want) {
		t.Fatalf("answers %v, want %v", count, want)
	}
	page := get[subscriptionPage](cus, listPath+"?limit=100")
	if len(page.Data) != 20 {
		t.Fatalf("%d subscriptions", len(page.Data))
	}
	cus.call("DELETE", listPath+"/"+page.Data[7].SubscriptionID, nil, 204)
	cus.call("POST", subscribePath, body, 201)
	cus.refused("POST", subscribePath, body, 409, limit)
}

func TestHTTPSRequired(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_ALLOW_HTTP=", "JPINTEL_WEBHOOK_ALLOW_CIDRS=")
	cus := s.customer("cus_a", "paid")
	for _, u := range []string{"http://hooks.example.com/", "http://127.0.0.1/", "ftp://hooks.example.com/", "hooks.example.com"} {
		cus.refused("POST", subscribePath, map[string]any{"url": u, "events": []string{"program.created"}}, 400, "https required")
	}
	cus.refused("POST", subscribePath, `{"url":"https://127.0.0.1/","events":["program.created"]}`, 400, "url: the address is not a public one (loopback_address)")
	cus.refused("POST", subscribePath, `{"url":"https://93.184.216.34:25/","events":["program.created"]}`, 400, "url: port 25 is not one of 443, 8443 (port)")
	if got := get[subscriptionPage](cus, listPath).Data; len(got) != 0 {
		t.Errorf("subscriptions: %+v", got)
	}
}

// --- who may call ---

// fill puts ids into a route's path.
func (r route) fill(id string) string { return pathParameter.ReplaceAllString(r.path, id) }

func TestOnlyWithAKey(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	const detail = "missing or unknown API key: send it as X-API-Key"
	callers := []*testClient{s.admin}
	for _, key := range []string{"", "jpk_" + strings.Repeat("0", 64), testAdminToken, cus.header.Get("X-API-Key") + "0"} {
		callers = append(callers, cus.with("X-API-Key", key))
	}
	for i, r := range (&api{}).routes() {
		if r.who == customer || r.who == paid {
			for _, c := range callers {
				c.at(fmt.Sprintf("127.0.0.%d", 2+i)).refused(r.method, r.fill("x"), nil, 401, detail)
			}
		}
	}
	s.command("keys", "revoke", cus.keyID)
	cus.refused("GET", listPath, nil, 401, detail)
}

func TestTooManyCalls(t *testing.T) {
	s := newServer(t, "JPINTEL_API_RATE=1")
	alice, bob := s.customer("cus_alice", "paid"), s.customer("cus_bob", "paid")
	var a testAnswer
	eventually(t, func() bool {
		a = alice.try("GET", "/v1/events", nil)
		return a.status != 200
	})
	if a.status != 429 || a.body != errorBody("too many calls") || a.header.Get("Retry-After") != "1" {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
	bob.call("GET", "/v1/events", nil, 200)
	eventually(t, func() bool { return alice.try("GET", "/v1/events", nil).status == 200 })
}

func TestTooManyWrongKeys(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	guesser := cus.with("X-API-Key", "jpk_guess").at("127.0.0.2")
	tries := 0
	var a testAnswer
	eventually(t, func() bool {
		a = guesser.try("GET", "/v1/events", nil)
		tries++
		return a.status != 401
	})
	if retry, err := strconv.Atoi(a.header.Get("Retry-After")); tries <= 20 || a.status != 429 || a.body != errorBody("too many wrong keys from this address") || err != nil || retry < 1 {
		t.Errorf("after %d tries: %d %v %s", tries, a.status, a.header, a.body)
	}
	cus.call("GET", "/v1/events", nil, 200) // at another address
	s.admin.call("POST", "/v1/admin/customers", `{"customer_id":"cus_b"}`, 201)
	if a := s.admin.with("Authorization", "Bearer wrong").at("127.0.0.3").try("POST", "/v1/admin/customers", `{}`); a.status != 401 {
		t.Errorf("the operator's first wrong token: %d %s", a.status, a.body)
	}
}

func TestFreeTier(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_free", "free")
	for _, r := range (&api{}).routes() {
		if r.who == paid {
			cus.refused(r.method, r.fill("x"), nil, 403, "webhook subscriptions not available on free tier")
		}
	}
	cus.call("GET", "/v1/event-types", nil, 200)
	cus.call("POST", "/v1/saved-filters", `{"filter":{"prefecture":"奈良県"}}`, 201)
	cus.call("PUT", "/v1/tracked-programs/UNI-1", nil, 204)
}

func TestOperatorOnly(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	none := cus.with("X-API-Key", "")
	callers := []*testClient{none, cus,
		none.with("Authorization", "Bearer "), none.with("Authorization", testAdminToken), none.with("Authorization", "Basic "+testAdminToken),
		none.with("Authorization", "Bearer "+testAdminToken+"0"), none.with("Authorization", "Bearer "+testAdminToken[1:])}
	for i, r := range (&api{}).routes() {
		if r.who == admin {
			for _, c := range callers {
				c.at(fmt.Sprintf("127.0.0.%d", 2+i)).refused(r.method, r.fill("x"), nil, 401, "missing or wrong admin token: send it as Authorization: Bearer …")
			}
		}
	}
}

func TestNoOperatorWithoutToken(t *testing.T) {
	s := newServer(t, "JPINTEL_ADMIN_TOKEN=")
	for _, c := range []*testClient{s.admin, s.admin.with("Authorization", ""), s.admin.with("Authorization", "Bearer ")} {
		for _, r := range (&api{}).routes() {
			if r.who == admin {
				c.refused(r.method, r.fill("x"), nil, 404, "no such call")
			}
		}
	}
}

func TestAdminCustomers(t *testing.T) {
	s := newServer(t)
	whole := `{"customer_id":"cus_a","tier":"paid","email":"ops@example.com","beta":true,"daily_limit":1000}`
	a := s.admin.call("POST", "/v1/admin/customers", whole, 201)
	created := decode[map[string]any](t, a)["created_at"]
	if want := fmt.Sprintf(`{"customer_id":"cus_a","tier":"paid","email":"ops@example.com","beta":true,"daily_limit":1000,"created_at":%q}`+"\n", created); a.body != want {
		t.Errorf("%s, want %s", a.body, want)
	}
	if again := s.admin.call("POST", "/v1/admin/customers", whole, 200); again.body != a.body {
		t.Errorf("again: %s, want %s", again.body, a.body)
	}
	s.admin.refused("POST", "/v1/admin/customers", `{"customer_id":"cus_a","tier":"paid"}`, 409, "customer cus_a exists with other values")
	if a := decode[map[string]any](t, s.admin.call("POST", "/v1/admin/customers", `{"customer_id":"cus_b"}`, 201)); a["tier"] != "free" {
		t.Errorf("the least: %v", a)
	}
	for body, detail := range map[string]string{
		`{}`:                                    "customer_id: want 1 to 64 letters, digits or _ . : @ + -",
		`{"customer_id":"a/b"}`:                 "customer_id: want 1 to 64 letters, digits or _ . : @ + -",
		`{"customer_id":"cus_c","tier":"gold"}`: "tier: want free or paid",
		`{"customer_id":"cus_c","email":"Ops <o>"}`: "email: want a plain address like ops@example.com",
		`{"customer_id":"cus_c","daily_limit":-1}`:  "daily_limit: want a positive number of calls a day, or none",
		`{"customer_id":"cus_c","daily_limit":1.5}`: "daily_limit: want a whole number",
		`{"customer_id":"cus_c","beta":"yes"}`:      "beta: want true or false",
	} {
		s.admin.refused("POST", "/v1/admin/customers", body, 400, detail)
	}
	key := decode[createKeyAnswer](t, s.admin.call("POST", "/v1/admin/customers/cus_a/keys", nil, 201))
	if key.CustomerID != "cus_a" || !regexp.MustCompile(`^jpk_[0-9a-f]{64}$`).MatchString(key.APIKey) {
		t.Errorf("key: %+v", key)
	}
	s.admin.refused("POST", "/v1/admin/customers/cus_none/keys", nil, 404, "customer cus_none not found")
}

// TestAccount shows a customer its own account, on either tier.
func TestAccount(t *testing.T) {
	s := newServer(t)
	s.admin.call("POST", "/v1/admin/customers", `{"customer_id":"cus_a","tier":"paid","email":"ops@example.com","beta":true,"daily_limit":1000}`, 201)
	alice, bob := s.client("cus_a"), s.customer("cus_b", "free")
	show := func(c *testClient) string {
		t.Helper()
		a := c.call("GET", "/v1/customer", nil, 200)
		created := decode[account](t, a).CreatedAt
		if _, offset := created.Zone(); offset != 9*60*60 || time.Since(created) > time.Hour {
			t.Errorf("created at %s", created)
		}
		return strings.Replace(a.body, created.Format(time.RFC3339Nano), "T", 1)
	}
	for c, want := range map[*testClient]string{
		alice: `{"customer_id":"cus_a","tier":"paid","email":"ops@example.com","daily_limit":1000,"opted_out":false,"status":null,"created_at":"T"}`,
		bob:   `{"customer_id":"cus_b","tier":"free","daily_limit":null,"opted_out":false,"status":null,"created_at":"T"}`,
	} {
		if got := show(c); got != want+"\n" {
			t.Errorf("%s, want %s", got, want)
		}
	}
	alice.call("PUT", "/v1/webhooks/opt-out", nil, 200)
	if got := show(alice); !strings.Contains(got, `"opted_out":true`) {
		t.Errorf("stopped: %s", got)
	}
}

// TestTenancy walks over every route of customers with another customer's ids.
func TestTenancy(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=1h")
	alice, bob := s.customer("cus_alice", "paid"), s.customer("cus_bob", "paid")
	sub := alice.subscribe(newReceiver(t, nil), "program.created", "program.matching_filter")
	filter := decode[programs.SavedFilter](t, alice.call("POST", "/v1/saved-filters", `{"filter":{"unified_id":"UNI-secret"}}`, 201))
	alice.call("PUT", "/v1/tracked-programs/UNI-secret", nil, 204)
	s.putProgram("UNI-secret", `{"primary_name":"補助金"}`, 201)
	delivery := alice.deliveries(sub.SubscriptionID, 2)[0].DeliveryID
	private := alice.feed(webhook.TypeProgramMatchingFilter)[0].EventID
	replay := alice.replay(sub.SubscriptionID, "failed").JobID
	alice.replayed(replay)
	s.post(movement(t, "led_secret", alice.id, ledger.TopUp, "USD", "25.00", ledger.StripeClearing))

	seen := func() (all string) {
		for _, path := range []string{listPath, listPath + "/" + sub.SubscriptionID, deliveriesPath(sub.SubscriptionID), "/v1/webhooks/deliveries/" + delivery, "/v1/webhooks/replays/" + replay,
			"/v1/customer", "/v1/saved-filters", "/v1/tracked-programs", "/v1/ledger", "/v1/events", "/v1/events/" + private} {
			all += alice.call("GET", path, nil, 200).body
		}
		return all
	}
	before := seen()
	// Which of Alice's ids goes into a route's path, and what Bob is answered.
	type call struct {
		id     string
		status int
	}
	calls := map[string]call{
		"GET /v1/webhooks/subscriptions/:id":                       {sub.SubscriptionID, 404},
		"DELETE /v1/webhooks/subscriptions/:id":                    {sub.SubscriptionID, 404},
		"GET /v1/webhooks/subscriptions/:id/deliveries":            {sub.SubscriptionID, 404},
		"PATCH /v1/webhooks/subscriptions/:id":                     {sub.SubscriptionID, 404},
		"POST /v1/webhooks/subscriptions/:id/disable":              {sub.SubscriptionID, 404},
		"POST /v1/webhooks/subscriptions/:id/enable":               {sub.SubscriptionID, 404},
		"POST /v1/webhooks/subscriptions/:id/rotate-secret":        {sub.SubscriptionID, 404},
		"POST /v1/webhooks/subscriptions/:id/rotate-secret/finish": {sub.SubscriptionID, 404},
		"POST /v1/webhooks/test/:id":                               {sub.SubscriptionID, 404},
		"GET /v1/webhooks/deliveries/:id":                          {delivery, 404},
		"POST /v1/webhooks/deliveries/:id/replay":                  {delivery, 404},
		"POST /v1/webhooks/subscriptions/:id/replay":               {sub.SubscriptionID, 404},
		"GET /v1/webhooks/replays/:id":                             {replay, 404},
		"GET /v1/events/:id":                                       {private, 404},
		"DELETE /v1/saved-filters/:id":                             {filter.FilterID, 404},
		"GET /v1/budget":                                           {"none", 404}, // Bob has none
		// Not anybody's: what Bob does here concerns only his own list.
		"GET /v1/event-types/:type":               {"program.created", 200},
		"PUT /v1/tracked-programs/:unified_id":    {"UNI-secret", 204},
		"DELETE /v1/tracked-programs/:unified_id": {"UNI-secret", 204},
	}
	bodies := map[string]any{ // the body is read first
		"PATCH /v1/webhooks/subscriptions/:id":       `{"description":"of Bob"}`,
		"POST /v1/webhooks/subscriptions/:id/replay": `{"since":"2026-01-01T00:00:00Z","status":"success"}`,
	}
	for _, r := range (&api{}).routes() {
		name := r.method + " " + r.path
		if r.who != customer && r.who != paid {
			continue
		}
		want, hasID := calls[name]
		switch {
		case hasID:
			a := bob.call(r.method, r.fill(want.id), bodies[name], want.status)
			if want.status != 404 {
				continue
			}
			none := bob.call(r.method, r.fill("missing"), bodies[name], 404)
			if strings.ReplaceAll(a.body, want.id, "ID") != strings.ReplaceAll(none.body, "missing", "ID") {
				t.Errorf("%s tells another's object from a missing one: %s, %s", name, a.body, none.body)
			}
		case strings.Contains(r.path, ":"):
			t.Errorf("%s is not walked: say which id goes into it", name)
		case r.method == "GET":
			body := bob.call("GET", r.path, nil, 200).body
			for _, id := range []string{alice.id, sub.SubscriptionID, filter.FilterID, delivery, private, "led_secret"} {
				if strings.Contains(body, id) {
					t.Errorf("%s shows Bob %s", name, id)
				}
			}
		}
	}
	if after := seen(); after != before {
		t.Errorf("before\n%safter\n%s", before, after)
	}
}

// --- bad input ---

func TestBadBodies(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	const good = `"url":"http://127.0.0.1/","events":["program.created"]`
	big := `{"description":"` + strings.Repeat("x", 65<<10) + `"}`
	for _, c := range []struct {
		body   string
		status int
		detail string
	}{
		{``, 400, "the body is not a JSON object"},
		{" \n", 400, "the body is not a JSON object"},
		{`{"url":`, 400, "the body is not a JSON object"},
		{`{` + good, 400, "the body is not a JSON object"},
		{`[]`, 400, "the body is not a JSON object"},
		{`"url"`, 400, "the body is not a JSON object"},
		{`null`, 400, "the body is not a JSON object"},
		{`{` + good + `} x`, 400, "there is something after the JSON object"},
		{`{` + good + `}{}`, 400, "there is something after the JSON object"},
		{`{` + good + `,"secret":"x"}`, 400, "secret: unknown field"},
		{`{` + good + `,"Envelope":"v2"}`, 400, "Envelope: unknown field"},
		{`{` + good + `,"url":"http://127.0.0.2/"}`, 400, "url: there twice"},
		{`{}`, 400, "url: required"},
		{`{"url":null,"events":["program.created"]}`, 400, "url: required"},
		{`{"url":1,"events":["program.created"]}`, 400, "url: want a string"},
		{`{"url":{},"events":["program.created"]}`, 400, "url: want a string"},
		{`{"url":"http://127.0.0.1/"}`, 400, "events: want at least one event type"},
		{`{"url":"http://127.0.0.1/","events":[]}`, 400, "events: want at least one event type"},
		{`{"url":"http://127.0.0.1/","events":null}`, 400, "events: want at least one event type"},
		{`{"url":"http://127.0.0.1/","events":"program.created"}`, 400, "events: want a list, each a string"},
		{`{"url":"http://127.0.0.1/","events":[1]}`, 400, "events: want a list, each a string"},
		{`{"url":"http://127.0.0.1/","events":["*"]}`, 400, `events: unknown event type "*"; GET /v1/event-types lists them`},
		{`{"url":"http://127.0.0.1/","events":["program.created","program.gone"]}`, 400, `events: unknown event type "program.gone"; GET /v1/event-types lists them`},
		{`{"url":"http://127.0.0.1/","events":["webhook.test"]}`, 400, `events: unknown event type "webhook.test"; GET /v1/event-types lists them`},
		{`{` + good + `,"filter":[]}`, 400, "filter: want an object of attribute to a string or a list of strings"},
		{`{` + good + `,"filter":{"prefecture":1}}`, 400, "filter.prefecture: want a string or a list of strings"},
		{`{` + good + `,"filter":{"prefecture":null}}`, 400, "filter.prefecture: want a string or a list of strings"},
		{`{` + good + `,"filter":{"prefecture":[]}}`, 400, "filter.prefecture: want 1 to 100 values"},
		{`{` + good + `,"filter":{"prefecture":""}}`, 400, "filter.prefecture: want values of 1 to 256 bytes"},
		{`{` + good + `,"filter":{"city":"奈良市"}}`, 400, `filter: unknown attribute "city"; these types can be filtered by authority_level, prefecture, target_type, unified_id`},
		{`{"url":"http://127.0.0.1/","events":["usage.finalized"],"filter":{"currency":"USD"}}`, 400, `filter: unknown attribute "currency"; these types can be filtered by nothing`},
		{`{` + good + `,"envelope":"v3"}`, 400, "envelope: want v1 or v2"},
		{`{` + good + `,"description":"` + strings.Repeat("あ", 86) + `"}`, 400, "description: at most 256 bytes"},
		{`{"url":"http://u:p@127.0.0.1/","events":["program.created"]}`, 400, "url: no user name or password (userinfo)"},
		{`{"url":"http://127.0.0.1/#","events":["program.created"]}`, 400, "url: no fragment (#) (fragment)"},
		{big, 413, "the body has more than 65536 bytes"},
		{big[:64<<10], 400, "the body is not a JSON object"},
	} {
		cus.refused("POST", subscribePath, c.body, c.status, c.detail)
	}
	if got := get[subscriptionPage](cus, listPath).Data; len(got) != 0 {
		t.Errorf("subscriptions: %+v", got)
	}
}

func TestContentType(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	const filter = `{"filter":{"prefecture":"奈良県"}}`
	for _, c := range []struct {
		given  string
		status int
	}{
		{"application/json", 201}, {"application/json; charset=utf-8", 201}, {"APPLICATION/JSON", 201},
		{"text/plain", 415}, {"application/x-www-form-urlencoded", 415}, {"application/jsonx", 415}, {"nonsense;", 415},
	} {
		a := cus.with("Content-Type", c.given).call("POST", "/v1/saved-filters", filter, c.status)
		if c.status == 415 && a.body != errorBody("Content-Type: want application/json") {
			t.Errorf("%q: %s", c.given, a.body)
		}
	}
	for _, given := range []string{"application/json", "text/plain"} {
		s.admin.with("Content-Type", given).refused("POST", "/v1/admin/programs", `{}`, 415, "Content-Type: want application/x-ndjson")
	}
}

func TestBadQueries(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	sub := cus.subscribe(newReceiver(t, nil), "program.created")
	for _, path := range []string{listPath, deliveriesPath(sub.SubscriptionID), "/v1/saved-filters", "/v1/tracked-programs", "/v1/events"} {
		for limit, detail := range map[string]string{
			"0": "limit: want a positive number", "-1": "limit: want a positive number", "x": "limit: want a positive number", "1.5": "limit: want a positive number",
			"101": "limit: want 1 to 100", "99999999999999999999": "limit: want a positive number",
		} {
			cus.refused("GET", path+"?limit="+limit, nil, 400, detail)
		}
		for _, limit := range []string{"1", "100"} {
			cus.call("GET", path+"?limit="+limit, nil, 200)
		}
		if path == "/v1/events" {
			continue
		}
		for _, cursor := range []string{"x", "!", "MA", "LTE", "eA", "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5"} { // 0, -1, x, too large
			cus.refused("GET", path+"?cursor="+cursor, nil, 400, "cursor: not one that this list has given out")
		}
	}
	for query, detail := range map[string]string{
		"status=gone":      "status: want pending, success, failed or dead_letter",
		"since=yesterday":  "since: want a time like 2026-05-14T09:00:00+09:00",
		"until=2026-05-14": "until: want a time like 2026-05-14T09:00:00+09:00",
	} {
		cus.refused("GET", deliveriesPath(sub.SubscriptionID)+"?"+query, nil, 400, detail)
	}
	for query, detail := range map[string]string{
		"types=program.gone":                 `types: unknown event type "program.gone"; GET /v1/event-types lists them`,
		"types=program.created,":             `types: unknown event type ""; GET /v1/event-types lists them`,
		"types=webhook.test":                 `types: unknown event type "webhook.test"; GET /v1/event-types lists them`,
		"after=x":                            "after: not a cursor that the feed has given out",
		"after=%00":                          "after: not a cursor that the feed has given out",
		"after=" + feedCursorOf("e", "-1:0"): "after: not a cursor that the feed has given out",
		"after=" + feedCursorOf("e", "x:0"):  "after: not a cursor that the feed has given out",
	} {
		cus.refused("GET", "/v1/events?"+query, nil, 400, detail)
	}
}

// feedCursorOf forges a cursor of the feed.
func feedCursorOf(epoch, position string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(epoch + ":" + position))
}

func TestRequestID(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	for _, id := range []string{"a", "order-42_B", strings.Repeat("x", 128)} {
		for path, status := range map[string]int{"/healthz": 200, listPath: 200, "/v1/events/missing": 404} {
			if got := cus.with("X-Request-Id", id).call("GET", path, nil, status).header.Get("X-Request-Id"); got != id {
				t.Errorf("%s: X-Request-Id %q, want %q", path, got, id)
			}
		}
	}
	made := regexp.MustCompile(`^req_[0-9A-HJKMNP-TV-Z]{26}$`)
	for _, id := range []string{"", " ", "a b", "a/b", "a.b", "é", strings.Repeat("x", 129)} {
		if got := cus.with("X-Request-Id", id).call("GET", listPath, nil, 200).header.Get("X-Request-Id"); !made.MatchString(got) {
			t.Errorf("given %q: X-Request-Id %q", id, got)
		}
	}
	eventually(t, func() bool {
		return slices.ContainsFunc(s.log.entries("http_request"), func(e map[string]any) bool {
			return e["request_id"] == "order-42_B" && e["path"] == listPath && e["status"] == 200.0
		})
	})
}

func TestUnknownCalls(t *testing.T) {
	s := newServer(t)
	for _, c := range []struct {
		method, path string
		status       int
		detail       string
		allow        string
	}{
		{"GET", "/", 404, "no such call", ""},
		{"GET", "/v1", 404, "no such call", ""},
		{"GET", "/v1/events/", 404, "no such call", ""},
		{"GET", "/V1/events", 404, "no such call", ""},
		{"GET", "/v1//events", 404, "no such call", ""},
		{"POST", "/v1/nothing", 404, "no such call", ""},
		{"PUT", "/v1/webhooks/subscriptions/x", 405, "no such call: this path allows DELETE, GET, PATCH", "DELETE, GET, PATCH"},
		{"POST", "/v1/events", 405, "no such call: this path allows GET", "GET"},
		{"OPTIONS", "/v1/events", 405, "no such call: this path allows GET", "GET"},
		{"DELETE", "/healthz", 405, "no such call: this path allows GET", "GET"},
		{"GET", "/v1/admin/customers", 405, "no such call: this path allows POST", "POST"},
	} {
		a := s.admin.with("X-Request-Id", "my-id").undocumented(c.method, c.path)
		if a.status != c.status || a.body != errorBody(c.detail) || a.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: %d Allow %q %s", c.method, c.path, a.status, a.header.Get("Allow"), a.body)
		}
		if a.header.Get("X-Request-Id") != "my-id" || a.header.Get("Content-Type") != "application/json; charset=utf-8" {
			t.Errorf("%s %s: headers %v", c.method, c.path, a.header)
		}
	}
}

// --- what is there to read ---

func TestHealth(t *testing.T) {
	s := newServer(t)
	nobody := s.admin.with("Authorization", "")
	want := `{"status":"ok","version":"` + version + `","kill_switch":{"on":false,"source":""},"rollout":"ga"}` + "\n"
	if a := nobody.call("GET", "/healthz", nil, 200); a.body != want {
		t.Errorf("healthz: %s", a.body)
	}
	eventually(t, func() bool { // the worker has begun its rounds
		a := nobody.try("GET", "/readyz", nil)
		return a.status == 200 && a.body == want
	})
}

func TestPolicy(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=10ms,90s,2h,3d", "JPINTEL_WEBHOOK_ENDPOINT_CONCURRENCY=3", "JPINTEL_WEBHOOK_RATE=7", "JPINTEL_WEBHOOK_DAILY_CAP=5",
		"JPINTEL_WEBHOOK_DEAD_LETTER_LIMIT=6", "JPINTEL_WEBHOOK_RETENTION=20d", "JPINTEL_EVENT_RETENTION=36d", "JPINTEL_WEBHOOK_ROTATION_GRACE=30m")
	want := `{"retry_schedule":["10ms","90s","2h","3d"],"connect_timeout":"3s","answer_timeout":"7s","endpoint_concurrency":3,"rate":7,"daily_cap":5,"dead_letter_limit":6,"retention":"20d","event_retention":"36d","warn_after":"1d","disable_after":null,"rotation_grace":"30m","subscriptions":20,` +
		`"max_data_bytes":65536,"signature_tolerance":"5m","ports":[443,8443]}` + "\n"
	if a := s.customer("cus_a", "paid").call("GET", "/v1/webhooks/policy", nil, 200); a.body != want {
		t.Errorf("%s, want %s", a.body, want)
	}
}

func TestEventTypes(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "free")
	want, err := json.Marshal(webhook.EventTypes())
	if err != nil {
		t.Fatal(err)
	}
	page := get[store.Page[json.RawMessage]](cus, "/v1/event-types")
	if len(page.Data) != len(webhook.EventTypes()) || page.NextCursor != nil {
		t.Errorf("%d types, next_cursor %v", len(page.Data), page.NextCursor)
	}
	var all []string
	for _, raw := range page.Data {
		all = append(all, string(raw))
		name := decode[webhook.EventType](t, testAnswer{body: string(raw)}).Type
		if one := cus.call("GET", "/v1/event-types/"+string(name), nil, 200).body; one != string(raw)+"\n" {
			t.Errorf("%s alone: %s, in the list: %s", name, one, raw)
		}
	}
	if got := "[" + strings.Join(all, ",") + "]"; decodedJSON(t, got) != decodedJSON(t, string(want)) {
		t.Errorf("the catalogue: %s, want %s", got, want)
	}
	cus.refused("GET", "/v1/event-types/program.gone", nil, 404, `event type "program.gone" not found; GET /v1/event-types lists them`)
}

// decodedJSON writes JSON in one form, for comparing.
func decodedJSON(t *testing.T, text string) string {
	t.Helper()
	out, err := json.Marshal(decode[any](t, testAnswer{body: text}))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestDeliveryPages(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	sub := cus.subscribe(hook, "program.created")
	s.importPrograms("UNI", 120)
	hook.wait(120)
	var got []string
	var sizes []int
	for cursor := ""; ; {
		page := get[deliveryPage](cus, deliveriesPath(sub.SubscriptionID)+"?limit=50&cursor="+cursor)
		sizes = append(sizes, len(page.Data))
		for _, d := range page.Data {
			got = append(got, d.EventID)
		}
		if page.NextCursor == nil {
			break
		}
		cursor = *page.NextCursor
	}
	var want []string
	for _, e := range slices.Backward(cus.feed()) {
		want = append(want, e.EventID)
	}
	if !slices.Equal(sizes, []int{50, 50, 20}) || !slices.Equal(got, want) {
		t.Errorf("pages of %v deliveries:\n%v\nwant, newest first,\n%v", sizes, got, want)
	}
	if page := get[deliveryPage](cus, deliveriesPath(sub.SubscriptionID)); len(page.Data) != 50 {
		t.Errorf("%d deliveries without a limit", len(page.Data))
	}
	if a := cus.undocumented("GET", deliveriesPath(sub.SubscriptionID)+"?limit=&cursor=&status=&event_type=&since="); len(decode[deliveryPage](t, a).Data) != 50 {
		t.Errorf("with empty parameters: %s", a.body)
	}
	if page := get[deliveryPage](cus, deliveriesPath(sub.SubscriptionID)+"?limit=60&cursor="); len(page.Data) != 60 || page.NextCursor == nil {
		t.Errorf("%d deliveries, next_cursor %v", len(page.Data), page.NextCursor)
	}
}

func TestDeliveryFilters(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=5ms")
	cus := s.customer("cus_a", "paid")
	sub := cus.subscribe(newReceiver(t, func(_ int, r received) int {
		if strings.Contains(r.body, "UNI-bad") {
			return 500
		}
		return 204
	}), "program.created", "program.updated")
	s.putProgram("UNI-1", `{"primary_name":"補助金"}`, 201)
	s.putProgram("UNI-bad", `{"primary_name":"補助金"}`, 201)
	latest := cus.deliveries(sub.SubscriptionID, 2)[0].CreatedAt
	eventually(t, func() bool { return time.Since(latest) > 2*time.Millisecond }) // the third is of a later millisecond
	s.putProgram("UNI-1", `{"primary_name":"補助金 改"}`, 200)
	all := cus.deliveries(sub.SubscriptionID, 3)
	third, second, first := all[0], all[1], all[2]
	at := func(d webhook.Delivery) string { return url.QueryEscape(d.CreatedAt.Format(time.RFC3339Nano)) }
	for query, want := range map[string][]webhook.Delivery{
		"status=success":                                 {third, first},
		"status=dead_letter":                             {second},
		"status=pending":                                 {},
		"status=failed":                                  {},
		"event_type=program.created":                     {second, first},
		"event_type=program.updated":                     {third},
		"event_type=adoption.published":                  {},
		"event_id=" + second.EventID:                     {second},
		"event_id=evt_none":                              {},
		"since=" + at(third):                             {third},
		"until=" + at(third):                             {second, first},
		"since=" + at(third) + "&until=" + at(third):     {},
		"since=2020-01-01T00:00:00Z":                     {third, second, first},
		"until=2020-01-01T00:00:00%2B09:00":              {},
		"status=success&event_type=program.created":      {first},
		"status=success&until=" + at(third) + "&limit=1": {first},
		"event_type=program.created&since=" + at(first):  {second, first},
		"status=dead_letter&event_id=" + third.EventID:   {},
	} {
		page := get[deliveryPage](cus, deliveriesPath(sub.SubscriptionID)+"?"+query)
		if !slices.EqualFunc(page.Data, want, func(a, b webhook.Delivery) bool { return a.DeliveryID == b.DeliveryID }) {
			t.Errorf("%s: %+v", query, page.Data)
		}
	}
}

func TestDeliveryAttempts(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=10ms,10ms")
	cus := s.customer("cus_a", "paid")
	hook := newReceiver(t, func(n int, _ received) int { return []int{500, 204}[n-1] })
	sub := cus.subscribe(hook, "program.created")
	event := *s.putProgram("UNI-1", `{"primary_name":"補助金"}`, 201).EventID
	listed := cus.deliveries(sub.SubscriptionID, 1)[0]
	d := get[webhook.DeliveryDetail](cus, "/v1/webhooks/deliveries/"+listed.DeliveryID)
	if d.EventID != event || d.SubscriptionID != sub.SubscriptionID || d.EventType != "program.created" || d.Status != "success" ||
		d.AttemptCount != 2 || *d.LastStatus != 204 || *d.LastErrorCategory != "" || d.LastLatencyMS == nil || d.NextAttemptAt != nil || d.FinishedAt == nil || d.Reason != nil {
		t.Errorf("delivery: %+v", d)
	}
	if len(d.Attempts) != 2 {
		t.Fatalf("attempts: %+v", d.Attempts)
	}
	remote := strings.TrimSuffix(strings.TrimPrefix(hook.url, "http://"), "/")
	for i, a := range d.Attempts {
		if a.Attempt != i+1 || *a.Status != []int{500, 204}[i] || a.ErrorCategory != []webhook.Category{webhook.Category5xx, ""}[i] || a.RemoteAddr != remote || a.DurationMS < 0 {
			t.Errorf("attempt: %+v", a)
		}
	}
	if d.Attempts[1].StartedAt.Before(d.Attempts[0].StartedAt) {
		t.Errorf("attempts: %+v", d.Attempts)
	}
	got := get[webhook.Subscription](cus, listPath+"/"+sub.SubscriptionID)
	if got.FailuresStreak != 0 || *got.LastStatus != 204 || got.LastSuccessAt == nil || got.LastDeliveryAt == nil || *got.SuccessRateHour != 0.5 {
		t.Errorf("subscription: %+v", got)
	}
	cus.refused("GET", "/v1/webhooks/deliveries/dlv_none", nil, 404, "delivery dlv_none not found")
}

// TestDeletedSubscriptionFailsItsDeliveries also sees a delivery that waits.
func TestDeletedSubscriptionFailsItsDeliveries(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=1h")
	cus := s.customer("cus_a", "paid")
	sub := cus.subscribe(newReceiver(t, func(int, received) int { return 503 }), "program.created")
	s.putProgram("UNI-1", `{"primary_name":"補助金"}`, 201)
	var waiting webhook.Delivery
	eventually(t, func() bool {
		page := get[deliveryPage](cus, deliveriesPath(sub.SubscriptionID)+"?status=pending")
		return len(page.Data) == 1 && func() bool { waiting = page.Data[0]; return waiting.AttemptCount == 1 }()
	})
	if waiting.NextAttemptAt == nil || waiting.FinishedAt != nil || *waiting.LastErrorCategory != webhook.Category5xx {
		t.Errorf("waiting: %+v", waiting)
	}
	cus.call("DELETE", listPath+"/"+sub.SubscriptionID, nil, 204)
	d := get[webhook.DeliveryDetail](cus, "/v1/webhooks/deliveries/"+waiting.DeliveryID)
	if d.Status != "failed" || d.Reason == nil || d.NextAttemptAt != nil || d.FinishedAt == nil || len(d.Attempts) != 1 {
		t.Errorf("after the deletion: %+v", d)
	}
}

// --- the feed ---

func TestFeed(t *testing.T) {
	s := newServer(t)
	alice, bob := s.customer("cus_alice", "paid"), s.customer("cus_bob", "paid")
	alice.call("PUT", "/v1/tracked-programs/UNI-1", nil, 204)
	start := get[webhook.EventPage](alice, "/v1/events")
	if len(start.Data) != 0 || start.NextCursor == "" {
		t.Errorf("an empty feed: %+v", start)
	}
	want := []string{*s.putProgram("UNI-1", `{"primary_name":"補助金"}`, 201).EventID}
	rule := decode[programs.Published](t, s.admin.call("POST", "/v1/admin/exclusion-rules", ruleBody, 201))
	want = append(want, rule.EventIDs...)
	want = append(want, *s.putProgram("UNI-1", `{"primary_name":"補助金 改"}`, 200).EventID)
	public := []string{want[0], want[2]}
	for path, c := range map[string]struct {
		client *testClient
		want   []string
	}{
		"/v1/events": {alice, want}, "/v1/events?limit=2": {alice, want[:2]}, "/v1/events?after=" + start.NextCursor: {alice, want},
		"/v1/events?types=program.created": {alice, want[:1]}, "/v1/events?types=program.updated,exclusion_rule.added": {alice, want[1:]},
		"/v1/events?": {bob, public}, "/v1/events?types=exclusion_rule.added": {bob, nil}, "/v1/events?limit=100": {bob, public},
	} {
		if got := eventIDs(get[webhook.EventPage](c.client, path).Data); !slices.Equal(got, c.want) {
			t.Errorf("%s as %s: %v, want %v", path, c.client.id, got, c.want)
		}
	}
	private := get[webhook.Event](alice, "/v1/events/"+want[1])
	if private.CustomerID == nil || *private.CustomerID != "cus_alice" || private.Subject != (webhook.Subject{Type: "exclusion_rule", ID: "ER-1"}) ||
		string(private.Data) != ruleBody || private.SchemaVersion != "1" || private.CorrelationID != nil {
		t.Errorf("event: %+v", private)
	}
	if e := get[webhook.Event](bob, "/v1/events/"+want[0]); e.CustomerID != nil {
		t.Errorf("a public event: %+v", e)
	}
	bob.refused("GET", "/v1/events/"+want[1], nil, 404, "event "+want[1]+" not found")
}

const ruleBody = `{"rule_id":"ER-1","program_a":"UNI-1","program_b":"UNI-2","kind":"mutex","severity":"block"}`

func eventIDs(events []webhook.Event) []string {
	var all []string
	for _, e := range events {
		all = append(all, e.EventID)
	}
	return all
}

// TestFeedPolling polls while events are committed: each comes once, in order.
func TestFeedPolling(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	const n = 60
	var writers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			for i := range n / 3 {
				if a, err := s.admin.send("PUT", fmt.Sprintf("/v1/admin/programs/UNI-%d-%d", w, i), `{"primary_name":"補助金"}`); err != nil || a.status != 201 {
					t.Errorf("%d %s: %v", a.status, a.body, err)
				}
			}
		})
	}
	var got []string
	after := ""
	eventually(t, func() bool {
		page := get[webhook.EventPage](cus, "/v1/events?limit=7&after="+after)
		got, after = append(got, eventIDs(page.Data)...), page.NextCursor
		return len(got) >= n
	})
	writers.Wait()
	if all := eventIDs(cus.feed()); !slices.Equal(got, all) {
		t.Errorf("polled\n%v\nthe whole feed\n%v", got, all)
	}
	// With types, an empty page moves the cursor on.
	page := get[webhook.EventPage](cus, "/v1/events?types=adoption.published")
	if len(page.Data) != 0 || page.NextCursor != after {
		t.Errorf("a page without events: %+v, want next_cursor %s", page, after)
	}
}

func TestFeedExpiredCursor(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	event := *s.putProgram("UNI-1", `{"primary_name":"補助金"}`, 201).EventID
	own, err := base64.RawURLEncoding.DecodeString(get[webhook.EventPage](cus, "/v1/events").NextCursor)
	if err != nil {
		t.Fatal(err)
	}
	epoch, _, _ := strings.Cut(string(own), ":")
	for _, cursor := range []string{feedCursorOf("another", "1:0"), feedCursorOf("", "1:0"), feedCursorOf(epoch, "1000:0"), feedCursorOf(epoch, "1:1000")} {
		a := cus.call("GET", "/v1/events?after="+cursor, nil, 410)
		detail := decode[map[string]string](t, a)["detail"]
		oldest, ok := strings.CutPrefix(detail, "after: this cursor has expired; the oldest available is ")
		if !ok {
			t.Fatalf("detail %q", detail)
		}
		if got := eventIDs(get[webhook.EventPage](cus, "/v1/events?after="+oldest).Data); !slices.Equal(got, []string{event}) {
			t.Errorf("after the oldest: %v, want %v", got, event)
		}
	}
}

// --- what is sent ---

// TestEnvelopes compares the bytes that arrive, on a failed attempt and on the
// next, with what the contract says, for both envelopes and both scopes.
func TestEnvelopes(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=5ms")
	cus := s.customer("cus_a", "paid")
	cus.call("PUT", "/v1/tracked-programs/UNI-1", nil, 204)
	type hooked struct {
		*testReceiver
		sub webhook.SubscribeAnswer
	}
	hooks := map[string]hooked{}
	for _, envelope := range []string{"v1", "v2"} {
		for _, typ := range []string{"program.created", "exclusion_rule.added"} {
			hook := newReceiver(t, func(n int, _ received) int { return []int{503, 204}[n-1] })
			hooks[envelope+" "+typ] = hooked{hook, cus.subscribeWith(map[string]any{"url": hook.url, "events": []string{typ}, "envelope": envelope})}
		}
	}
	created := s.putProgram("UNI-1", `{"primary_name":"省エネ <A&B> \"x\" 補助金","authority_level":"prefecture","prefectures":["奈良県"],"amount_max_man_yen":300,"enriched_json":{"x":1}}`, 201)
	rule := decode[programs.Published](t, s.admin.call("POST", "/v1/admin/exclusion-rules", ruleBody, 201))
	data := map[string]string{
		"program.created": `{"unified_id":"UNI-1","primary_name":"省エネ <A&B> \"x\" 補助金","authority_level":"prefecture","prefecture":"奈良県",` +
			`"amount_max_man_yen":300,"source_url":""}`,
		"exclusion_rule.added": ruleBody,
	}
	ids := map[string]string{"program.created": *created.EventID, "exclusion_rule.added": rule.EventIDs[0]}
	subject := map[string]string{"program.created": `{"type":"program","id":"UNI-1"}`, "exclusion_rule.added": `{"type":"exclusion_rule","id":"ER-1"}`}
	partner := map[string]string{"program.created": `null`, "exclusion_rule.added": `"cus_a"`}
	for name, hook := range hooks {
		envelope, typ, _ := strings.Cut(name, " ")
		event := get[webhook.Event](cus, "/v1/events/"+ids[typ])
		want := fmt.Sprintf(`{"version":"v1","event_id":%q,"event_type":%q,"created_at":%q,"subscription_id":%q,"data":%s}`,
			event.EventID, typ, event.CreatedAt, hook.sub.SubscriptionID, data[typ])
		if envelope == "v2" {
			want = fmt.Sprintf(`{"version":"v2","event_id":%q,"type":%q,"occurred_at":%q,"partner_id":%s,"subject":%s,"schema_version":"1","correlation_id":null,"subscription_id":%q,"data":%s}`,
				event.EventID, typ, event.OccurredAt.UTC().Format("2006-01-02T15:04:05Z"), partner[typ], subject[typ], hook.sub.SubscriptionID, data[typ])
		}
		for n, got := range hook.wait(2) {
			if got.body != want {
				t.Errorf("%s, attempt %d:\n%s\nwant\n%s", name, n+1, got.body, want)
			}
		}
		if !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+09:00$`).MatchString(event.CreatedAt) {
			t.Errorf("created_at %q", event.CreatedAt)
		}
		cus.deliveries(hook.sub.SubscriptionID, 1)
	}
}

func TestSentHeaders(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=5ms")
	cus := s.customer("cus_a", "paid")
	hook := newReceiver(t, func(n int, _ received) int { return []int{503, 204}[n-1] })
	sub := cus.subscribe(hook, "program.created")
	event := *s.putProgram("UNI-1", `{"primary_name":"補助金"}`, 201).EventID
	delivery := cus.deliveries(sub.SubscriptionID, 1)[0]
	for n, got := range hook.wait(2) {
		for name, want := range map[string]string{
			"Content-Type": "application/json; charset=utf-8", "User-Agent": "Jpintel-Webhooks/" + version,
			"X-Jpintel-Event": "program.created", "X-Jpintel-Delivery": delivery.DeliveryID, "X-Jpintel-Attempt": strconv.Itoa(n + 1),
			"Webhook-Id": event, "Content-Length": strconv.Itoa(len(got.body)),
		} {
			if got.header.Get(name) != want {
				t.Errorf("attempt %d: %s: %q, want %q", n+1, name, got.header.Get(name), want)
			}
		}
		checkSignatures(t, sub.SigningSecret, got)
	}
}

// checkSignatures computes both signatures as the two schemes are published,
// and has them verified; then breaks the request in every way.
func checkSignatures(t *testing.T, secret string, got received) {
	t.Helper()
	at := got.header.Get("Webhook-Timestamp")
	mac := func(key []byte, message string) []byte {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(message))
		return m.Sum(nil)
	}
	if want := "t=" + at + ",v1=" + hex.EncodeToString(mac([]byte(secret), at+"."+got.body)); got.header.Get("X-Jpintel-Signature") != want {
		t.Errorf("X-Jpintel-Signature %q, want %q", got.header.Get("X-Jpintel-Signature"), want)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	message := got.header.Get("Webhook-Id") + "." + at + "." + got.body
	if want := "v1," + base64.StdEncoding.EncodeToString(mac(key, message)); got.header.Get("Webhook-Signature") != want {
		t.Errorf("webhook-signature %q, want %q", got.header.Get("Webhook-Signature"), want)
	}

	verify := func(secret string, header http.Header, body string) error {
		return webhook.Verify(secret, "Jpintel", header, []byte(body), time.Now())
	}
	if err := verify(secret, got.header, got.body); err != nil {
		t.Errorf("not verified: %v", err)
	}
	flip := func(text string) string {
		return text[:len(text)/2] + string(text[len(text)/2]^1) + text[len(text)/2+1:]
	}
	if verify(secret, got.header, flip(got.body)) == nil || verify(flip(secret), got.header, got.body) == nil {
		t.Error("verified although a byte of the body or of the secret is another")
	}
	for _, name := range []string{"X-Jpintel-Signature", "Webhook-Signature", "Webhook-Id"} {
		header := got.header.Clone()
		header.Set(name, flip(header.Get(name)))
		if verify(secret, header, got.body) == nil {
			t.Errorf("verified although a byte of %s is another", name)
		}
	}
	if webhook.Verify(secret, "Jpintel", got.header, []byte(got.body), time.Now().Add(webhook.Tolerance+time.Minute)) == nil {
		t.Error("verified although it is too old")
	}
}

// --- programs, from the ingest to the receiver ---

func TestPutPrograms(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	sub := cus.subscribe(hook, "program.created", "program.updated")
	created := s.putProgram("UNI-1", `{"primary_name":"補助金","prefectures":["奈良県","大阪府"]}`, 201)
	same := s.putProgram("UNI-1", `{"prefectures":["奈良県","大阪府"], "primary_name":"補助金"}`, 200)
	updated := s.putProgram("UNI-1", `{"primary_name":"補助金","amount_max_man_yen":50}`, 200)
	if created.Result != "created" || same.Result != "unchanged" || same.EventID != nil || same.Checksum != created.Checksum || updated.Result != "updated" {
		t.Errorf("%+v\n%+v\n%+v", created, same, updated)
	}
	cus.deliveries(sub.SubscriptionID, 2)
	want := map[string]string{
		*created.EventID: `{"unified_id":"UNI-1","primary_name":"補助金","authority_level":null,"prefecture":null,"amount_max_man_yen":null,"source_url":""}`,
		*updated.EventID: fmt.Sprintf(`{"unified_id":"UNI-1","changed_fields":["amount_max_man_yen","prefectures"],"previous_checksum":%q,"current_checksum":%q}`, created.Checksum, updated.Checksum),
	}
	if got := dataByEvent(t, hook.all()); !maps.Equal(got, want) {
		t.Errorf("arrived\n%v\nwant\n%v", got, want)
	}
	for body, detail := range map[string]string{
		`[]`: "want a JSON object", `{}`: "primary_name: required", `{"primary_name":1}`: "primary_name: want a text of 1 to 4096 bytes",
		`{"primary_name":"x","unified_id":"UNI-2"}`: "unified_id: want the one of the path, or none",
	} {
		s.admin.refused("PUT", "/v1/admin/programs/UNI-1", body, 400, detail)
	}
}

// dataByEvent returns the data that arrived, by event id.
func dataByEvent(t *testing.T, all []received) map[string]string {
	t.Helper()
	data := map[string]string{}
	for _, got := range all {
		body := decode[struct {
			EventID string          `json:"event_id"`
			Data    json.RawMessage `json:"data"`
		}](t, testAnswer{body: got.body})
		data[body.EventID] = string(body.Data)
	}
	return data
}

func TestImportPrograms(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	sub := cus.subscribe(hook, "program.created", "program.updated")
	stream := s.admin.with("Content-Type", "application/x-ndjson")
	first := `{"unified_id":"UNI-1","primary_name":"一","source_url":"https://example.jp/1"}` + "\n" + `{"unified_id":"UNI-2","primary_name":"二"}` + "\n\n" +
		`{"unified_id":"UNI-3"}` + "\n" + `{"unified_id":"UNI-4","primary_name":"四"}`
	a := stream.call("POST", "/v1/admin/programs", first, 200)
	if want := `{"read":4,"created":3,"updated":0,"unchanged":0,"rejected":1,"errors":[{"line":4,"id":"UNI-3","error":"primary_name: required"}]}` + "\n"; a.body != want {
		t.Errorf("%s, want %s", a.body, want)
	}
	second := `{"unified_id":"UNI-1","primary_name":"一"}` + "\n" + `{"unified_id":"UNI-2","primary_name":"二 改"}`
	a = stream.call("POST", "/v1/admin/programs", second, 200)
	if want := `{"read":2,"created":0,"updated":1,"unchanged":1,"rejected":0,"errors":[]}` + "\n"; a.body != want {
		t.Errorf("%s, want %s", a.body, want)
	}
	if a := stream.call("POST", "/v1/admin/programs", "", 200); a.body != `{"read":0,"created":0,"updated":0,"unchanged":0,"rejected":0,"errors":[]}`+"\n" {
		t.Errorf("an empty stream: %s", a.body)
	}
	cus.deliveries(sub.SubscriptionID, 4)
	events := cus.feed()
	if got := dataByEvent(t, hook.all()); len(got) != 4 || len(events) != 4 {
		t.Fatalf("%d events arrived, %d are in the feed", len(got), len(events))
	}
	for i, want := range []webhook.Type{"program.created", "program.created", "program.created", "program.updated"} {
		if events[i].EventType != want || events[i].Subject.ID != []string{"UNI-1", "UNI-2", "UNI-4", "UNI-2"}[i] {
			t.Errorf("event %d: %+v", i, events[i])
		}
	}
}

// TestBrokenStream sends a stream whose second chunk is none.
func TestBrokenStream(t *testing.T) {
	s := newServer(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	line := `{"unified_id":"UNI-1","primary_name":"一"}` + "\n"
	fmt.Fprintf(conn, "POST /v1/admin/programs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\nnot a chunk\r\n",
		testAdminToken, len(line), line)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest("POST", s.base+"/v1/admin/programs", nil)
	if err != nil {
		t.Fatal(err)
	}
	a := testAnswer{resp.StatusCode, resp.Header, string(body)}
	if err := checkAnswer(req, a); err != nil || a.status != 400 || a.body != errorBody("the stream ended early; a part of it may be stored: send it again") {
		t.Errorf("%d %s: %v", a.status, a.body, err)
	}
	if report := decode[programs.Report](t, s.admin.with("Content-Type", "application/x-ndjson").call("POST", "/v1/admin/programs", line, 200)); report.Read != 1 || report.Rejected != 0 {
		t.Errorf("again: %+v", report)
	}
}

func TestSubscriptionFilter(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	sub := cus.subscribeWith(map[string]any{"url": hook.url, "events": []string{"program.created", "program.updated"}, "filter": map[string]any{"prefecture": []string{"奈良県", "京都府"}}})
	s.putProgram("UNI-no", `{"primary_name":"x","prefectures":["全国"]}`, 201)
	want := []string{
		*s.putProgram("UNI-1", `{"primary_name":"x","prefectures":["大阪府","奈良県"]}`, 201).EventID,
		*s.putProgram("UNI-1", `{"primary_name":"y","prefectures":["大阪府","奈良県"]}`, 200).EventID, // its data has no prefecture
	}
	s.putProgram("UNI-1", `{"primary_name":"y","prefectures":["大阪府"]}`, 200)
	last := *s.putProgram("UNI-2", `{"primary_name":"x","prefectures":["京都府"]}`, 201).EventID // all before it have been fanned out
	var got []string
	for _, d := range slices.Backward(cus.deliveries(sub.SubscriptionID, 3)) {
		got = append(got, d.EventID)
	}
	if !slices.Equal(got, append(want, last)) {
		t.Errorf("delivered %v, want %v", got, append(want, last))
	}
}

func TestSavedFilters(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	other, otherHook := s.customer("cus_b", "paid"), newReceiver(t, nil)
	sub, otherSub := cus.subscribe(hook, "program.matching_filter"), other.subscribe(otherHook, "program.matching_filter", "program.created")
	s.putProgram("UNI-0", `{"primary_name":"x","prefectures":["奈良県"]}`, 201) // before there are filters
	a := decode[programs.SavedFilter](t, cus.call("POST", "/v1/saved-filters", `{"filter":{"prefecture":"奈良県","target_type":["中小企業者","個人"]}}`, 201))
	b := decode[programs.SavedFilter](t, cus.call("POST", "/v1/saved-filters", `{"filter":{"authority_level":"national"}}`, 201))
	if page := get[store.Page[programs.SavedFilter]](cus, "/v1/saved-filters"); len(page.Data) != 2 || page.Data[0].FilterID != b.FilterID || page.Data[1].FilterID != a.FilterID {
		t.Errorf("saved filters: %+v", page)
	}
	cus.call("DELETE", "/v1/saved-filters/"+b.FilterID, nil, 204)
	cus.refused("DELETE", "/v1/saved-filters/"+b.FilterID, nil, 404, "saved filter "+b.FilterID+" not found")
	s.putProgram("UNI-1", `{"primary_name":"x","prefectures":["奈良県"],"target_types":["個人"]}`, 201)
	s.putProgram("UNI-1", `{"primary_name":"y","prefectures":["奈良県"],"target_types":["個人"]}`, 200) // not new
	s.putProgram("UNI-2", `{"primary_name":"x","prefectures":["奈良県"]}`, 201)
	s.putProgram("UNI-3", `{"primary_name":"x","prefectures":["全国"],"target_types":["個人"]}`, 201)
	s.putProgram("UNI-4", `{"primary_name":"x","prefectures":["奈良県"],"target_types":["個人"]}`, 201)
	cus.deliveries(sub.SubscriptionID, 2)
	got := slices.Sorted(maps.Values(dataByEvent(t, hook.all())))
	want := []string{}
	for _, id := range []string{"UNI-1", "UNI-4"} {
		want = append(want, fmt.Sprintf(`{"unified_id":%q,"filter_id":%q,"matched_fields":["prefecture","target_type"]}`, id, a.FilterID))
	}
	if !slices.Equal(got, want) {
		t.Errorf("arrived %v, want %v", got, want)
	}
	other.deliveries(otherSub.SubscriptionID, 5) // UNI-0 to UNI-4, and no match
	for body, detail := range map[string]string{
		`{}`: "filter: want at least one attribute", `{"filter":{}}`: "filter: want at least one attribute",
		`{"filter":{"year":"2026"}}`: `filter: unknown attribute "year"; these types can be filtered by authority_level, prefecture, target_type, unified_id`,
	} {
		cus.refused("POST", "/v1/saved-filters", body, 400, detail)
	}
}

func TestExclusionRules(t *testing.T) {
	s := newServer(t)
	both, one, none := s.customer("cus_both", "paid"), s.customer("cus_one", "paid"), s.customer("cus_none", "paid")
	for client, tracked := range map[*testClient][]string{both: {"UNI-1", "UNI-2"}, one: {"UNI-2", "UNI-9"}, none: {"UNI-9"}} {
		for _, id := range append(tracked, tracked[0]) { // the first one twice
			client.call("PUT", "/v1/tracked-programs/"+id, nil, 204)
		}
		if page := get[store.Page[programs.TrackedProgram]](client, "/v1/tracked-programs"); len(page.Data) != len(tracked) || page.Data[0].UnifiedID != tracked[len(tracked)-1] {
			t.Errorf("tracked: %+v", page.Data)
		}
	}
	hook := newReceiver(t, nil)
	sub := one.subscribeWith(map[string]any{"url": hook.url, "events": []string{"exclusion_rule.added"}, "filter": map[string]any{"severity": "block"}})
	rule := decode[programs.Published](t, s.admin.call("POST", "/v1/admin/exclusion-rules", ruleBody, 201))
	if len(rule.EventIDs) != 2 {
		t.Fatalf("events: %v", rule.EventIDs)
	}
	if a := s.admin.call("POST", "/v1/admin/exclusion-rules", ruleBody, 200); a.body != `{"event_ids":[]}`+"\n" {
		t.Errorf("again: %s", a.body)
	}
	s.admin.refused("POST", "/v1/admin/exclusion-rules", strings.Replace(ruleBody, "mutex", "other", 1), 409, "exclusion rule ER-1 exists with other values")
	s.admin.refused("POST", "/v1/admin/exclusion-rules", `{"rule_id":"ER-2","program_a":"UNI-1","program_b":"UNI-1","kind":"k","severity":"s"}`, 400, "program_b: want another program than program_a")
	one.deliveries(sub.SubscriptionID, 1)
	if got := slices.Collect(maps.Values(dataByEvent(t, hook.all()))); !slices.Equal(got, []string{ruleBody}) {
		t.Errorf("arrived: %v", got)
	}
	for client, n := range map[*testClient]int{both: 1, one: 1, none: 0} {
		if got := client.feed(webhook.TypeExclusionRuleAdded); len(got) != n {
			t.Errorf("%s sees %d, want %d", client.id, len(got), n)
		}
	}
	one.call("DELETE", "/v1/tracked-programs/UNI-2", nil, 204)
	one.call("DELETE", "/v1/tracked-programs/UNI-2", nil, 204)
	if a := s.admin.call("POST", "/v1/admin/exclusion-rules", strings.Replace(ruleBody, "ER-1", "ER-3", 1), 201); len(decode[programs.Published](t, a).EventIDs) != 1 {
		t.Errorf("after the end of tracking: %s", a.body)
	}
	one.refused("PUT", "/v1/tracked-programs/a%20b", nil, 400, "unified_id: want 1 to 128 letters, digits or _ . : -")
}

func TestAdoptions(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	s.putProgram("UNI-1", `{"primary_name":"x","prefectures":["奈良県"]}`, 201)
	sub := cus.subscribeWith(map[string]any{"url": hook.url, "events": []string{"adoption.published"}, "filter": map[string]any{"prefecture": "奈良県", "year": "2026"}})
	const body = `{"adoption_id":"ADP-1","program_id":"UNI-1","year":2026,"count_added":42,"evidence_url":"https://example.jp/1"}`
	s.admin.call("POST", "/v1/admin/adoptions", `{"adoption_id":"ADP-2","program_id":"UNI-1","year":2025,"count_added":0}`, 201)
	s.admin.call("POST", "/v1/admin/adoptions", `{"adoption_id":"ADP-3","program_id":"UNI-none","year":2026,"count_added":1}`, 201)
	added := decode[programs.Published](t, s.admin.call("POST", "/v1/admin/adoptions", body, 201)) // all before it have been fanned out when it arrives
	if a := s.admin.call("POST", "/v1/admin/adoptions", body, 200); a.body != `{"event_ids":[]}`+"\n" {
		t.Errorf("again: %s", a.body)
	}
	s.admin.refused("POST", "/v1/admin/adoptions", strings.Replace(body, "42", "43", 1), 409, "adoption ADP-1 exists with other values")
	for from, c := range map[string][2]string{
		`"ADP-1"`: {`""`, "adoption_id: want 1 to 128 letters, digits or _ . : -"}, `2026`: {`"2026"`, "year: want a whole number"},
		`42`: {`-1`, "count_added: want the number of records, 0 or more"}, `https:`: {`ftp:`, "evidence_url: want an http or https URL of at most 2048 bytes"},
	} {
		s.admin.refused("POST", "/v1/admin/adoptions", strings.Replace(body, from, c[0], 1), 400, c[1])
	}
	cus.deliveries(sub.SubscriptionID, 1)
	if got := dataByEvent(t, hook.all()); !maps.Equal(got, map[string]string{added.EventIDs[0]: body}) {
		t.Errorf("arrived: %v", got)
	}
	if got := cus.feed(webhook.TypeAdoptionPublished); len(got) != 3 {
		t.Errorf("%d in the feed", len(got))
	}
}

// --- beside the server, and over its end ---

// TestTierFromTheCommandLine moves a customer with the command line, beside the
// running server.
func TestTierFromTheCommandLine(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	sub, deleted := cus.subscribe(hook, "program.created"), cus.subscribe(hook, "program.created")
	cus.call("DELETE", listPath+"/"+deleted.SubscriptionID, nil, 204)
	s.command("customers", "set-tier", "cus_a", "free")
	cus.refused("GET", listPath, nil, 403, "webhook subscriptions not available on free tier")
	shown := decode[webhook.Subscription](t, testAnswer{body: s.command("subscriptions", "show", sub.SubscriptionID, "--json")})
	if shown.State != "disabled" || shown.DisabledReason == nil || *shown.DisabledReason != webhook.ReasonTier || shown.DisabledAt == nil {
		t.Errorf("on the free tier: %+v", shown)
	}
	missed := *s.putProgram("UNI-1", `{"primary_name":"x"}`, 201).EventID
	s.command("customers", "set-tier", "cus_a", "paid")
	page := get[subscriptionPage](cus, listPath)
	if len(page.Data) != 1 || page.Data[0].State != "active" || page.Data[0].DisabledReason != nil {
		t.Errorf("back on the paid tier: %+v", page.Data)
	}
	event := *s.putProgram("UNI-2", `{"primary_name":"x"}`, 201).EventID
	if got := cus.deliveries(sub.SubscriptionID, 1)[0]; got.EventID != event || got.Status != webhook.StatusSuccess {
		t.Errorf("delivered: %+v", got)
	}
	if got := eventIDs(cus.feed()); !slices.Equal(got, []string{missed, event}) {
		t.Errorf("the feed has %v, want what was missed too: %v", got, []string{missed, event})
	}
}

func TestKillSwitchFromTheCommandLine(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	sub := cus.subscribe(hook, "program.created")
	state := func() string {
		return string(decode[struct {
			KillSwitch json.RawMessage `json:"kill_switch"`
		}](t, s.admin.call("GET", "/healthz", nil, 200)).KillSwitch)
	}
	s.command("kill-switch", "on")
	eventually(t, func() bool { return state() == `{"on":true,"source":"runtime"}` })
	s.putProgram("UNI-1", `{"primary_name":"x"}`, 201)
	eventually(t, func() bool { return len(get[deliveryPage](cus, deliveriesPath(sub.SubscriptionID)).Data) == 1 })
	s.stop()
	s.start() // it stays on
	if got := get[deliveryPage](cus, deliveriesPath(sub.SubscriptionID)).Data[0]; got.Status != webhook.StatusPending || got.AttemptCount != 0 || len(hook.all()) != 0 || state() != `{"on":true,"source":"runtime"}` {
		t.Errorf("while it is on: %+v, %d requests, %s", got, len(hook.all()), state())
	}
	s.command("kill-switch", "off")
	if got := cus.deliveries(sub.SubscriptionID, 1)[0]; got.Status != webhook.StatusSuccess || got.AttemptCount != 1 || len(hook.all()) != 1 {
		t.Errorf("afterwards: %+v, %d requests", got, len(hook.all()))
	}
}

// TestCommandLineBesideTheServer ingests in another process's way: the server
// has to notice.
func TestCommandLineBesideTheServer(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	sub := cus.subscribe(hook, "program.created")
	report := decode[programs.Report](t, testAnswer{body: s.command("programs", "import", "testdata/jgrants/list-2026-11-02.json", "--json")})
	if report.Created == 0 || report.Created != report.Read || report.Rejected != 0 {
		t.Fatalf("report: %+v", report)
	}
	cus.deliveries(sub.SubscriptionID, report.Created)
}

// TestStopFinishesWhatIsInFlight stops the server while a receiver is thinking.
func TestStopFinishesWhatIsInFlight(t *testing.T) {
	s := newServer(t)
	cus, answer := s.customer("cus_a", "paid"), make(chan struct{})
	hook := newReceiver(t, func(int, received) int { <-answer; return 204 })
	sub := cus.subscribe(hook, "program.created")
	s.putProgram("UNI-1", `{"primary_name":"x"}`, 201)
	hook.wait(1)
	stopped := make(chan struct{})
	go func() { defer close(stopped); s.stop() }()
	eventually(t, func() bool { return len(s.log.entries("stopping")) == 1 })
	close(answer)
	<-stopped
	s.start()
	d := cus.deliveries(sub.SubscriptionID, 1)[0]
	if d.Status != webhook.StatusSuccess || d.AttemptCount != 1 || len(hook.all()) != 1 {
		t.Errorf("%+v, %d requests", d, len(hook.all()))
	}
}

// TestStopAtOnce stops the server when it has only just begun to listen.
func TestStopAtOnce(t *testing.T) {
	s := newServer(t)
	for range 5 {
		s.stop() // fails the test where the server does not end well
		s.start()
	}
}

// TestStartPicksUpWhatIsPending has a receiver that is down until the server
// has been stopped.
func TestStartPicksUpWhatIsPending(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE="+strings.Repeat("100ms,", 999)+"100ms")
	cus, up := s.customer("cus_a", "paid"), make(chan struct{})
	hook := newReceiver(t, func(int, received) int {
		select {
		case <-up:
			return 204
		default:
			return 503
		}
	})
	sub := cus.subscribe(hook, "program.created")
	s.importPrograms("UNI", 5)
	eventually(t, func() bool { return len(dataByEvent(t, hook.all())) == 5 })
	s.stop()
	before := decode[deliveryPage](t, testAnswer{body: s.command("deliveries", "list", "--subscription", sub.SubscriptionID, "--json")})
	for _, d := range before.Data {
		if d.Status != webhook.StatusPending || d.AttemptCount == 0 {
			t.Errorf("while the server is down: %+v", d)
		}
	}
	close(up)
	s.start()
	for i, d := range cus.deliveries(sub.SubscriptionID, 5) {
		if d.Status != webhook.StatusSuccess || d.DeliveryID != before.Data[i].DeliveryID || d.AttemptCount != before.Data[i].AttemptCount+1 {
			t.Errorf("%+v, before it was %+v", d, before.Data[i])
		}
	}
	bodies := map[string]string{} // the same bytes under the same id, before and after
	for _, got := range hook.all() {
		id := got.header.Get("Webhook-Id")
		if bodies[id] != "" && bodies[id] != got.body {
			t.Errorf("%s: %s, before %s", id, got.body, bodies[id])
		}
		bodies[id] = got.body
	}
}
