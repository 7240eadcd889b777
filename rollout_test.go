package main

import (
	"encoding/json"
	"strings"
	"testing"

	"jpintel/webhook"
)

const (
	notOpen   = "webhooks are not open yet"
	notInBeta = "webhooks are open to beta customers only at the moment; this account is not one of them"
	notPaid   = "webhook subscriptions not available on free tier"
)

// restart starts the server again at another step of the rollout.
func (s *testServer) restart(rollout string) {
	s.t.Helper()
	s.stop()
	s.env["JPINTEL_WEBHOOK_ROLLOUT"] = rollout
	s.start()
}

// rollout and kill switch, as /healthz tells them.
func (s *testServer) openTo() string {
	s.t.Helper()
	h := get[health](s.admin, "/healthz")
	kill, _ := json.Marshal(h.KillSwitch)
	return string(h.Rollout) + " " + string(kill)
}

// Every webhook call answers 503 while the rollout is off, to everybody; the
// others do not. Nothing is sent, and nothing is lost.
func TestRolloutOff(t *testing.T) {
	s := newServer(t)
	cus, free, hook := s.customer("cus_a", "paid"), s.customer("cus_b", "free"), newReceiver(t, nil)
	id := cus.subscribe(hook, "program.created").SubscriptionID
	s.restart("off")
	stranger := cus.with("X-API-Key", "jpk_none")
	path := strings.NewReplacer(":id", id)
	calls := 0
	for _, r := range (&api{}).routes() {
		if !strings.HasPrefix(r.path, "/v1/webhooks/") {
			continue
		}
		calls++
		var body any
		if r.method == "POST" || r.method == "PATCH" {
			body = `{}`
		}
		for _, c := range []*testClient{cus, free, stranger} {
			a := c.try(r.method, path.Replace(r.path), body)
			if a.status != 503 || a.body != errorBody(notOpen) || a.header.Get("Retry-After") == "" {
				t.Errorf("%s %s: %d %s", r.method, r.path, a.status, a.body)
			}
		}
	}
	if calls < 16 {
		t.Errorf("only %d calls", calls)
	}
	get[webhook.EventPage](cus, "/v1/events")
	cus.call("GET", "/v1/event-types", nil, 200)
	free.call("GET", "/v1/saved-filters", nil, 200)
	if got := s.openTo(); got != `off {"on":false,"source":""}` {
		t.Error(got)
	}
	s.putProgram("UNI-1", `{"primary_name":"x"}`, 201)
	pending := func() bool { return strings.Contains(s.command("deliveries", "list", "--json"), `"status":"pending"`) }
	eventually(t, pending)
	s.command("kill-switch", "on")
	eventually(t, func() bool { return s.openTo() == `off {"on":true,"source":"runtime"}` })
	s.command("kill-switch", "off") // it is something else: nothing is sent now either
	eventually(t, func() bool { return s.openTo() == `off {"on":false,"source":""}` })
	s.restart("off")
	if !pending() || len(hook.all()) != 0 {
		t.Errorf("%d requests while the rollout is off", len(hook.all()))
	}
	s.restart("ga")
	if d := cus.deliveries(id, 1)[0]; d.Status != webhook.StatusSuccess || d.AttemptCount != 1 || len(hook.all()) != 1 {
		t.Errorf("afterwards: %+v, %d requests", d, len(hook.all()))
	}
}

// The beta is for paid customers with the flag, which the operator gives and
// takes while the server runs.
func TestRolloutBeta(t *testing.T) {
	s := newServer(t)
	in, out, free := s.customer("cus_in", "paid"), s.customer("cus_out", "paid"), s.customer("cus_free", "free")
	inHook, outHook := newReceiver(t, nil), newReceiver(t, nil)
	inID, outID := in.subscribe(inHook, "program.created").SubscriptionID, out.subscribe(outHook, "program.created").SubscriptionID
	s.command("customers", "set-beta", "cus_in", "on")
	s.command("customers", "set-beta", "cus_free", "on")
	s.restart("beta")
	if got := s.openTo(); got != `beta {"on":false,"source":""}` {
		t.Error(got)
	}
	out.refused("GET", listPath, nil, 403, notInBeta)
	out.refused("POST", subscribePath, map[string]any{"url": outHook.url, "events": []string{"program.created"}}, 403, notInBeta)
	out.refused("POST", testPath(outID), nil, 403, notInBeta)
	free.refused("GET", listPath, nil, 403, notPaid)
	out.with("X-API-Key", "jpk_none").call("GET", listPath, nil, 401)
	get[webhook.EventPage](out, "/v1/events") // the feed is no webhook

	s.putProgram("UNI-1", `{"primary_name":"x"}`, 201)
	in.deliveries(inID, 1)
	eventually(t, func() bool {
		return strings.Count(s.command("deliveries", "list", "--json"), `"status":"pending"`) == 1
	})
	if len(inHook.all()) != 1 || len(outHook.all()) != 0 {
		t.Errorf("%d and %d requests", len(inHook.all()), len(outHook.all()))
	}
	s.command("customers", "set-beta", "cus_out", "on")
	if d := out.deliveries(outID, 1)[0]; d.Status != webhook.StatusSuccess || d.AttemptCount != 1 {
		t.Errorf("with the flag: %+v", d)
	}
	s.command("customers", "set-beta", "cus_in", "off")
	in.refused("GET", listPath, nil, 403, notInBeta)
	if len(inHook.all()) != 1 || len(outHook.all()) != 1 {
		t.Errorf("%d and %d requests", len(inHook.all()), len(outHook.all()))
	}
}
