package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"jpintel/webhook"
)

const optOutPath = "/v1/webhooks/opt-out"

func testPath(subscription string) string { return "/v1/webhooks/test/" + subscription }

// subscription reads one of the caller's subscriptions.
func (c *testClient) subscription(id string) webhook.Subscription {
	c.server.t.Helper()
	return get[webhook.Subscription](c, listPath+"/"+id)
}

// states are the caller's subscriptions, by id: active, or why they are not.
func (c *testClient) states() map[string]string {
	c.server.t.Helper()
	all := map[string]string{}
	for _, sub := range get[subscriptionPage](c, listPath+"?limit=100").Data {
		if all[sub.SubscriptionID] = sub.State; sub.DisabledReason != nil {
			all[sub.SubscriptionID] = string(*sub.DisabledReason)
		}
	}
	return all
}

// --- changes ---

func TestChangeSubscription(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	id := cus.subscribeWith(map[string]any{"url": "http://127.0.0.1:8443/a", "events": []string{"program.created"}, "filter": map[string]any{"prefecture": "奈良県"},
		"description": "first"}).SubscriptionID
	path := listPath + "/" + id
	members := decode[map[string]any](t, cus.call("GET", path, nil, 200))
	for _, c := range []struct {
		body    string
		changed map[string]any
	}{
		{`{}`, nil},
		{`{"url":null,"events":null,"envelope":null,"description":null}`, nil},
		{`{"url":"HTTP://127.0.0.1:8443"}`, map[string]any{"url": "http://127.0.0.1:8443/"}},
		{`{"events":["program.updated","program.created","program.updated"]}`, map[string]any{"events": []any{"program.created", "program.updated"}}},
		{`{"filter":{"authority_level":"national","prefecture":["全国","東京都","東京都"]}}`,
			map[string]any{"filter": map[string]any{"authority_level": "national", "prefecture": []any{"全国", "東京都"}}}},
		{`{"filter":{}}`, map[string]any{"filter": map[string]any{}}},
		{`{"filter":{"prefecture":"大阪府"}}`, map[string]any{"filter": map[string]any{"prefecture": "大阪府"}}},
		{`{"filter":null}`, map[string]any{"filter": map[string]any{}}},
		{`{"envelope":"v2"}`, map[string]any{"envelope": "v2"}},
		{`{"description":"本番 <2>"}`, map[string]any{"description": "本番 <2>"}},
		{`{"description":""}`, map[string]any{"description": ""}},
		{`{"url":"http://127.0.0.2/","events":["adoption.published"],"filter":{"year":"2026"},"envelope":"v1","description":"all"}`, map[string]any{
			"url": "http://127.0.0.2/", "events": []any{"adoption.published"}, "filter": map[string]any{"year": "2026"}, "envelope": "v1", "description": "all"}},
	} {
		maps.Copy(members, c.changed)
		answer := cus.call("PATCH", path, c.body, 200).body
		if got := decode[map[string]any](t, testAnswer{body: answer}); fmt.Sprint(got) != fmt.Sprint(members) {
			t.Errorf("%s: %v, want %v", c.body, got, members)
		}
		if read := cus.call("GET", path, nil, 200).body; read != answer {
			t.Errorf("%s: the answer\n%swhat is read\n%s", c.body, answer, read)
		}
	}
}

func TestChangeIsRefused(t *testing.T) {
	s := newServer(t)
	cus, other := s.customer("cus_a", "paid"), s.customer("cus_b", "paid")
	id := cus.subscribeWith(map[string]any{"url": "http://127.0.0.1/", "events": []string{"program.created"}, "filter": map[string]any{"prefecture": "奈良県"}}).SubscriptionID
	path := listPath + "/" + id
	before := cus.call("GET", path, nil, 200).body
	for body, detail := range map[string]string{
		``:                               "the body is not a JSON object",
		`[]`:                             "the body is not a JSON object",
		`{"state":"disabled"}`:           "state: unknown field",
		`{"url":""}`:                     "url: required",
		`{"url":1}`:                      "url: want a string or null",
		`{"url":"ftp://x.jp/"}`:          "https required",
		`{"url":"https://10.0.0.1/"}`:    "url: the address is not a public one (private_address)",
		`{"url":"http://127.0.0.1/#a"}`:  "url: no fragment (#) (fragment)",
		`{"events":[]}`:                  "events: want at least one event type",
		`{"events":["webhook.test"]}`:    `events: unknown event type "webhook.test"; GET /v1/event-types lists them`,
		`{"events":["usage.finalized"]}`: `filter: unknown attribute "prefecture"; these types can be filtered by nothing`,
		`{"filter":{"city":"奈良市"}}`:      `filter: unknown attribute "city"; these types can be filtered by authority_level, prefecture, target_type, unified_id`,
		`{"filter":[]}`:                  "filter: want an object of attribute to a string or a list of strings",
		`{"filter":{"prefecture":[]}}`:   "filter.prefecture: want 1 to 100 values",
		`{"envelope":"v3"}`:              "envelope: want v1 or v2",
		`{"envelope":"v2","description":"` + strings.Repeat("あ", 86) + `"}`: "description: at most 256 bytes",
	} {
		cus.refused("PATCH", path, body, 400, detail)
	}
	cus.refused("PATCH", path, `{"description":"`+strings.Repeat("x", 65<<10)+`"}`, 413, "the body has more than 65536 bytes")
	cus.with("Content-Type", "text/plain").refused("PATCH", path, `{}`, 415, "Content-Type: want application/json")
	other.refused("PATCH", path, `{"description":"x"}`, 404, "subscription "+id+" not found")
	other.refused("PATCH", listPath+"/sub_none", `{"description":"x"}`, 404, "subscription sub_none not found")
	if after := cus.call("GET", path, nil, 200).body; after != before {
		t.Errorf("before\n%safter\n%s", before, after)
	}
	cus.call("DELETE", path, nil, 204)
	for _, call := range [][2]string{{"PATCH", path}, {"POST", path + "/disable"}, {"POST", path + "/enable"}, {"POST", path + "/rotate-secret"},
		{"POST", path + "/rotate-secret/finish"}, {"POST", testPath(id)}} {
		cus.refused(call[0], call[1], `{}`, 404, "subscription "+id+" not found")
	}
}

// TestChangedURLIsCalled has deliveries go to another receiver from one event to
// the next.
func TestChangedURLIsCalled(t *testing.T) {
	s := newServer(t)
	cus, before, after := s.customer("cus_a", "paid"), newReceiver(t, nil), newReceiver(t, nil)
	sub := cus.subscribe(before, "program.created")
	s.putProgram("UNI-1", `{"primary_name":"x"}`, 201)
	cus.deliveries(sub.SubscriptionID, 1)
	cus.call("PATCH", listPath+"/"+sub.SubscriptionID, map[string]any{"url": after.url, "envelope": "v2"}, 200)
	s.putProgram("UNI-2", `{"primary_name":"x"}`, 201)
	cus.deliveries(sub.SubscriptionID, 2)
	if first, second := before.all(), after.all(); len(first) != 1 || len(second) != 1 || !strings.HasPrefix(first[0].body, `{"version":"v1"`) || !strings.HasPrefix(second[0].body, `{"version":"v2"`) {
		t.Errorf("before: %+v\nafter: %+v", first, second)
	} else {
		checkSignatures(t, sub.SigningSecret, second[0]) // the secret stays
	}
}

// --- pause, and going on ---

func TestDisableAndEnable(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=1h")
	cus := s.customer("cus_a", "paid")
	hook := newReceiver(t, func(n int, _ received) int { return []int{404, 204}[n-1] })
	sub := cus.subscribe(hook, "program.created")
	path := listPath + "/" + sub.SubscriptionID
	waiting := *s.putProgram("UNI-1", `{"primary_name":"x"}`, 201).EventID
	eventually(t, func() bool { return cus.subscription(sub.SubscriptionID).FailuresStreak == 1 })

	active := cus.call("POST", path+"/enable", nil, 200).body // changes nothing, the streak neither
	if got := decode[webhook.Subscription](t, testAnswer{body: active}); got.State != "active" || got.FailuresStreak != 1 {
		t.Errorf("enabled while it is active: %s", active)
	}
	paused := cus.call("POST", path+"/disable", nil, 200).body
	if got := decode[webhook.Subscription](t, testAnswer{body: paused}); got.State != "disabled" || *got.DisabledReason != webhook.ReasonUser || got.DisabledAt == nil {
		t.Errorf("disabled: %s", paused)
	}
	if again := cus.call("POST", path+"/disable", nil, 200).body; again != paused {
		t.Errorf("disabled again: %s, before %s", again, paused)
	}
	missed := *s.putProgram("UNI-2", `{"primary_name":"x"}`, 201).EventID
	on := decode[webhook.Subscription](t, cus.call("POST", path+"/enable", nil, 200))
	if on.State != "active" || on.DisabledAt != nil || on.DisabledReason != nil || on.FailuresStreak != 0 {
		t.Errorf("enabled: %+v", on)
	}
	event := *s.putProgram("UNI-3", `{"primary_name":"x"}`, 201).EventID
	all := cus.deliveries(sub.SubscriptionID, 2)
	if all[0].EventID != event || all[0].Status != webhook.StatusSuccess || all[1].EventID != waiting || all[1].Status != webhook.StatusFailed || all[1].AttemptCount != 1 {
		t.Errorf("deliveries: %+v", all)
	}
	if got := hook.all(); len(got) != 2 || got[1].header.Get("Webhook-Id") != event {
		t.Errorf("arrived: %+v; it must not be %s, which was missed", got, missed)
	}
}

func TestEnableIsLimited(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	body := map[string]any{"url": "http://127.0.0.1:9/", "events": []string{"program.created"}}
	paused := cus.subscribeWith(body).SubscriptionID
	cus.call("POST", listPath+"/"+paused+"/disable", nil, 200)
	var last string
	for range 20 {
		last = cus.subscribeWith(body).SubscriptionID
	}
	cus.refused("POST", listPath+"/"+paused+"/enable", nil, 409, "subscription limit 20 reached for tier=paid")
	cus.call("POST", listPath+"/"+last+"/enable", nil, 200) // it is active
	cus.call("POST", listPath+"/"+last+"/disable", nil, 200)
	cus.call("POST", listPath+"/"+paused+"/enable", nil, 200)
	cus.refused("POST", listPath+"/"+last+"/enable", nil, 409, "subscription limit 20 reached for tier=paid")
}

const capDetail = "the daily cap of %d delivery attempts is used up; it resets at midnight (Asia/Tokyo)"

func TestEnableOverTheCap(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_DAILY_CAP=1")
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	sub, idle := cus.subscribe(hook, "program.created"), cus.subscribe(hook, "program.updated")
	s.putProgram("UNI-1", `{"primary_name":"x"}`, 201)
	s.putProgram("UNI-2", `{"primary_name":"x"}`, 201)
	cus.deliveries(sub.SubscriptionID, 2)
	if got, want := cus.states(), map[string]string{sub.SubscriptionID: "cost_cap", idle.SubscriptionID: "active"}; !maps.Equal(got, want) || len(hook.all()) != 1 {
		t.Errorf("%v, want %v; %d requests", got, want, len(hook.all()))
	}
	for range 2 { // also after a restart
		cus.refused("POST", listPath+"/"+sub.SubscriptionID+"/enable", nil, 409, fmt.Sprintf(capDetail, 1))
		cus.refused("POST", testPath(idle.SubscriptionID), nil, 429, fmt.Sprintf(capDetail, 1))
		cus.call("POST", listPath+"/"+idle.SubscriptionID+"/enable", nil, 200) // changes nothing
		cus.refused("POST", listPath+"/sub_none/enable", nil, 404, "subscription sub_none not found")
		s.stop()
		s.start()
	}
	if len(hook.all()) != 1 {
		t.Errorf("%d requests", len(hook.all()))
	}
}

func TestOptOut(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=1h")
	cus, other := s.customer("cus_a", "paid"), s.customer("cus_b", "paid")
	hook := newReceiver(t, func(n int, _ received) int { return []int{503, 204, 204}[n-1] })
	first := cus.subscribe(hook, "program.created").SubscriptionID
	second := cus.subscribe(newReceiver(t, nil), "program.updated").SubscriptionID
	paused := cus.subscribe(hook, "program.updated").SubscriptionID
	cus.call("POST", listPath+"/"+paused+"/disable", nil, 200)
	theirs := other.subscribe(newReceiver(t, nil), "program.updated").SubscriptionID
	s.putProgram("UNI-1", `{"primary_name":"x"}`, 201)
	eventually(t, func() bool { return cus.subscription(first).LastDeliveryAt != nil })

	const none = `{"opted_out":false,"since":null}` + "\n"
	if a := cus.call("GET", optOutPath, nil, 200); a.body != none {
		t.Errorf("before: %s", a.body)
	}
	stopped := cus.call("PUT", optOutPath, nil, 200).body
	if got := decode[webhook.OptOutAnswer](t, testAnswer{body: stopped}); !got.OptedOut || got.Since == nil || !strings.Contains(stopped, `+09:00"`) {
		t.Errorf("stopped: %s", stopped)
	}
	want := map[string]string{first: "user_opt_out", second: "user_opt_out", paused: "user"}
	for _, call := range []func() string{
		func() string { return cus.call("GET", optOutPath, nil, 200).body },
		func() string { return cus.call("PUT", optOutPath, nil, 200).body },
	} {
		if got := call(); got != stopped || !maps.Equal(cus.states(), want) {
			t.Errorf("again: %s, want %s; %v, want %v", got, stopped, cus.states(), want)
		}
	}
	const detail = "all webhooks are stopped for this customer: DELETE /v1/webhooks/opt-out first"
	cus.refused("POST", subscribePath, map[string]any{"url": hook.url, "events": []string{"program.created"}}, 409, detail)
	for _, id := range []string{first, paused} {
		cus.refused("POST", listPath+"/"+id+"/enable", nil, 409, detail)
	}
	if got := other.states()[theirs]; got != "active" || other.call("GET", optOutPath, nil, 200).body != none {
		t.Errorf("another customer's is %s", got)
	}
	s.putProgram("UNI-2", `{"primary_name":"x"}`, 201) // missed
	cus.call("POST", listPath+"/"+second+"/disable", nil, 200)

	want = map[string]string{first: "active", second: "user", paused: "user"}
	for range 2 {
		if a := cus.call("DELETE", optOutPath, nil, 200); a.body != none || !maps.Equal(cus.states(), want) {
			t.Errorf("ended: %s; %v, want %v", a.body, cus.states(), want)
		}
	}
	event := *s.putProgram("UNI-3", `{"primary_name":"x"}`, 201).EventID
	all := cus.deliveries(first, 2)
	if all[0].EventID != event || all[0].Status != webhook.StatusSuccess || all[1].Status != webhook.StatusFailed || len(hook.all()) != 2 {
		t.Errorf("deliveries: %+v; %d requests", all, len(hook.all()))
	}
	cus.call("POST", listPath+"/"+paused+"/enable", nil, 200)
}

// --- secrets ---

// wantVerified fails the test unless exactly these secrets verify a request, in
// both families and in this order.
func wantVerified(t *testing.T, got received, signing, not []string) {
	t.Helper()
	for _, secret := range signing {
		if err := webhook.Verify(secret, "Jpintel", got.header, []byte(got.body), time.Now()); err != nil {
			t.Errorf("a valid secret does not verify: %v", err)
		}
	}
	for _, secret := range not {
		if webhook.Verify(secret, "Jpintel", got.header, []byte(got.body), time.Now()) == nil {
			t.Error("an ended secret verifies")
		}
	}
	// Each alone makes a header in which its signature stands first.
	stripe, standard := strings.Split(got.header.Get("X-Jpintel-Signature"), ",")[1:], strings.Fields(got.header.Get("Webhook-Signature"))
	if len(stripe) != len(signing) || len(standard) != len(signing) {
		t.Fatalf("%d and %d signatures, want %d", len(stripe), len(standard), len(signing))
	}
	for i, secret := range signing {
		header := got.header.Clone()
		header.Set("X-Jpintel-Signature", "t="+header.Get("Webhook-Timestamp")+","+stripe[i])
		header.Set("Webhook-Signature", standard[i])
		if err := webhook.Verify(secret, "Jpintel", header, []byte(got.body), time.Now()); err != nil {
			t.Errorf("signature %d is not that of secret %d, newest first: %v", i, i, err)
		}
	}
}

func TestRotateSecret(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	sub := cus.subscribe(hook, "program.created")
	path := listPath + "/" + sub.SubscriptionID + "/rotate-secret"
	next := func() received {
		n := len(hook.all())
		s.putProgram(fmt.Sprintf("UNI-%d", n), `{"primary_name":"x"}`, 201)
		return hook.wait(n + 1)[n]
	}
	secrets := []string{sub.SigningSecret} // newest first
	wantVerified(t, next(), secrets, nil)
	for range 4 {
		a := cus.call("POST", path, nil, 200)
		got := decode[webhook.RotateAnswer](t, a)
		want := fmt.Sprintf(`{"subscription_id":%q,"signing_secret":%q,"secret_shown_once":true,"old_secrets_valid_until":%q}`+"\n",
			sub.SubscriptionID, got.SigningSecret, decode[map[string]any](t, a)["old_secrets_valid_until"])
		if a.body != want || slices.Contains(secrets, got.SigningSecret) {
			t.Errorf("%s, want %s", a.body, want)
		}
		secrets = append([]string{got.SigningSecret}, secrets...)
		wantVerified(t, next(), secrets, nil)
	}
	const detail = "4 replaced secrets are still valid: finish the rotation, or wait until the first of them ends"
	cus.refused("POST", path, nil, 409, detail)
	wantVerified(t, next(), secrets, nil)
	for range 2 {
		cus.call("POST", path+"/finish", nil, 204)
		wantVerified(t, next(), secrets[:1], secrets[1:])
	}
	again := decode[webhook.RotateAnswer](t, cus.call("POST", path, nil, 200)).SigningSecret
	wantVerified(t, next(), []string{again, secrets[0]}, secrets[1:])
	for _, p := range []string{listPath, listPath + "/" + sub.SubscriptionID} {
		if body := cus.call("GET", p, nil, 200).body; strings.Contains(body, "whsec_") {
			t.Errorf("%s shows a secret: %s", p, body)
		}
	}
}

// TestRotateInFlight rotates while a request is on its way and before its retry,
// which carries both.
func TestRotateInFlight(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=5ms")
	cus, answer := s.customer("cus_a", "paid"), make(chan int)
	hook := newReceiver(t, func(int, received) int { return <-answer })
	sub := cus.subscribe(hook, "program.created")
	s.putProgram("UNI-1", `{"primary_name":"x"}`, 201)
	hook.wait(1)
	secret := decode[webhook.RotateAnswer](t, cus.call("POST", listPath+"/"+sub.SubscriptionID+"/rotate-secret", nil, 200)).SigningSecret
	answer <- 503
	got := hook.wait(2)
	answer <- 204
	wantVerified(t, got[0], []string{sub.SigningSecret}, []string{secret})
	wantVerified(t, got[1], []string{secret, sub.SigningSecret}, nil)
	if got[0].body != got[1].body {
		t.Errorf("%s, then %s", got[0].body, got[1].body)
	}
	if d := cus.deliveries(sub.SubscriptionID, 1)[0]; d.Status != webhook.StatusSuccess || d.AttemptCount != 2 {
		t.Errorf("delivery: %+v", d)
	}
}

// --- tests ---

func TestPing(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	hook := newReceiver(t, func(n int, _ received) int { return []int{204, 418, 410, 204}[n-1] })
	sub := cus.subscribe(hook, "program.created")
	address := strings.TrimSuffix(strings.TrimPrefix(hook.url, "http://"), "/")
	before := cus.subscription(sub.SubscriptionID)
	ping := func() webhook.PingAnswer {
		t.Helper()
		return decode[webhook.PingAnswer](t, cus.call("POST", testPath(sub.SubscriptionID), nil, 200))
	}
	for n, want := range []struct {
		status   int
		category webhook.Category
	}{{204, ""}, {418, webhook.Category4xx}, {410, webhook.Category4xx}} {
		a := cus.call("POST", testPath(sub.SubscriptionID), nil, 200)
		p := decode[webhook.PingAnswer](t, a)
		text := fmt.Sprintf(`{"ok":%v,"event_id":%q,"status":%d,"duration_ms":%d,"error_category":%q,"error_detail":"","blocked_reason":"","response_excerpt":"","remote_addr":%q}`+"\n",
			want.category == "", p.EventID, want.status, p.DurationMS, want.category, address)
		if a.body != text {
			t.Errorf("%s, want %s", a.body, text)
		}
		got := hook.all()[n]
		checkSignatures(t, sub.SigningSecret, got)
		if h := got.header; h.Get("X-Jpintel-Event") != "webhook.test" || h.Get("Webhook-Id") != p.EventID || h.Get("X-Jpintel-Attempt") != "1" {
			t.Errorf("headers: %v", h)
		}
		if sent := decode[map[string]any](t, testAnswer{body: got.body}); sent["event_type"] != "webhook.test" || sent["subscription_id"] != sub.SubscriptionID || len(sent["data"].(map[string]any)) != 0 {
			t.Errorf("body: %s", got.body)
		}
		cus.refused("GET", "/v1/events/"+p.EventID, nil, 404, "event "+p.EventID+" not found")
	}
	if after := cus.subscription(sub.SubscriptionID); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	if page := get[deliveryPage](cus, deliveriesPath(sub.SubscriptionID)); len(page.Data) != 0 || len(cus.feed()) != 0 {
		t.Errorf("a ping left something: %+v", page.Data)
	}

	// Also while it is disabled, and in the other envelope.
	cus.call("POST", listPath+"/"+sub.SubscriptionID+"/disable", nil, 200)
	cus.call("PATCH", listPath+"/"+sub.SubscriptionID, `{"envelope":"v2"}`, 200)
	if p := ping(); !p.OK || !strings.Contains(hook.all()[3].body, `"type":"webhook.test"`) {
		t.Errorf("%+v; %s", p, hook.all()[3].body)
	}
	if got := cus.states()[sub.SubscriptionID]; got != "user" {
		t.Errorf("it is %s now", got)
	}
	cus.call("PATCH", listPath+"/"+sub.SubscriptionID, `{"url":"http://127.0.0.1:1/"}`, 200)
	if p := ping(); p.OK || p.Status != nil || p.ErrorCategory != webhook.CategoryConnectRefused || p.ErrorDetail == "" {
		t.Errorf("nobody listens: %+v", p)
	}
}

func TestPingAndKillSwitch(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_GLOBAL_KILL_SWITCH=1")
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	sub := cus.subscribe(hook, "program.created")
	cus.refused("POST", testPath(sub.SubscriptionID), nil, 503, "webhook deliveries are stopped by the operator at the moment")
	if len(hook.all()) != 0 {
		t.Errorf("%d requests", len(hook.all()))
	}
	s.stop()
	s.env["JPINTEL_WEBHOOK_GLOBAL_KILL_SWITCH"] = ""
	s.start()
	cus.call("POST", testPath(sub.SubscriptionID), nil, 200)
}

// TestFewPingsAtATime holds pings at their receiver: one a subscription, eight
// in all.
func TestFewPingsAtATime(t *testing.T) {
	s := newServer(t)
	cus, other := s.customer("cus_a", "paid"), s.customer("cus_b", "paid")
	release := make(chan struct{})
	hook := newReceiver(t, func(int, received) int { <-release; return 204 })
	var pings sync.WaitGroup
	var subs []string
	for n := range 8 {
		subs = append(subs, cus.subscribe(hook, "program.created").SubscriptionID)
		pings.Go(func() {
			if a, err := cus.send("POST", testPath(subs[n]), nil); err != nil || a.status != 200 {
				t.Errorf("%d %s: %v", a.status, a.body, err)
			}
		})
		hook.wait(n + 1)
	}
	ninth, theirs := cus.subscribe(hook, "program.created").SubscriptionID, other.subscribe(hook, "program.created").SubscriptionID
	cus.refused("POST", testPath(subs[3]), nil, 429, "a test of this subscription is under way: wait for its answer")
	cus.refused("POST", testPath(ninth), nil, 429, "too many tests are under way: try again in a few seconds")
	other.refused("POST", testPath(theirs), nil, 429, "too many tests are under way: try again in a few seconds")
	close(release)
	pings.Wait()
	for _, id := range []string{subs[3], ninth} {
		cus.call("POST", testPath(id), nil, 200)
	}
	other.call("POST", testPath(theirs), nil, 200)
}

// TestPingOutlivesItsCaller: who goes away has made the attempt all the same.
func TestPingOutlivesItsCaller(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_DAILY_CAP=1")
	cus, release := s.customer("cus_a", "paid"), make(chan struct{})
	hook := newReceiver(t, func(int, received) int { <-release; return 204 })
	sub := cus.subscribe(hook, "program.created")
	ctx, hangUp := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, "POST", s.base+testPath(sub.SubscriptionID), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = cus.header.Clone()
	gone := make(chan error, 1)
	go func() { _, err := s.http("").Do(req); gone <- err }()
	hook.wait(1)
	hangUp()
	if err := <-gone; err == nil {
		t.Error("the caller did not go away")
	}
	close(release)
	eventually(t, func() bool {
		return slices.ContainsFunc(s.log.entries("http_request"), func(e map[string]any) bool { return e["path"] == testPath(sub.SubscriptionID) })
	})
	for range 2 {
		cus.refused("POST", testPath(sub.SubscriptionID), nil, 429, fmt.Sprintf(capDetail, 1))
		s.stop() // the file has it
		s.start()
	}
}

// --- the daily cap ---

// TestCapUnderConcurrency has four times as much due as may be sent, over ten
// subscriptions and up to 64 requests at a time.
func TestCapUnderConcurrency(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_DAILY_CAP=50", "JPINTEL_WEBHOOK_DISPATCH_CONCURRENCY=64", "JPINTEL_WEBHOOK_ENDPOINT_CONCURRENCY=64")
	cus, other := s.customer("cus_a", "paid"), s.customer("cus_b", "paid")
	hook, theirs := newReceiver(t, nil), newReceiver(t, nil)
	var subs []string
	for range 10 {
		subs = append(subs, cus.subscribe(hook, "program.created").SubscriptionID)
	}
	idle := cus.subscribe(hook, "program.updated").SubscriptionID
	another := other.subscribe(theirs, "program.created").SubscriptionID
	s.importPrograms("UNI", 20)
	var count map[webhook.Status]int
	var want map[string]string
	eventually(t, func() bool { // what was in flight when its subscription was disabled succeeds all the same
		count, want = map[webhook.Status]int{}, map[string]string{idle: "active"}
		for _, id := range subs {
			want[id] = "active"
			for _, d := range cus.deliveries(id, 20) {
				if count[d.Status]++; d.Status == webhook.StatusFailed {
					want[id] = "cost_cap"
				}
			}
		}
		return count[webhook.StatusSuccess] >= 50
	})
	if got := cus.states(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v: those that asked for more are disabled", got, want)
	}
	if want := map[webhook.Status]int{webhook.StatusSuccess: 50, webhook.StatusFailed: 150}; !maps.Equal(count, want) || len(hook.all()) != 50 {
		t.Errorf("%v, want %v; %d requests", count, want, len(hook.all()))
	}
	other.deliveries(another, 20) // another customer's day is its own
	if len(theirs.all()) != 20 || other.states()[another] != "active" {
		t.Errorf("another customer: %d requests, %s", len(theirs.all()), other.states()[another])
	}
}
