package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"jpintel/webhook"
)

// longAgo is before all that a test makes.
const longAgo = "2020-01-01T00:00:00+09:00"

func replayPath(subscription string) string { return listPath + "/" + subscription + "/replay" }

func redeliverPath(delivery string) string { return "/v1/webhooks/deliveries/" + delivery + "/replay" }

// replay begins a job over all of a subscription's deliveries in a state.
func (c *testClient) replay(subscription, status string) webhook.ReplayJob {
	c.server.t.Helper()
	body := map[string]any{"since": longAgo, "status": status}
	return decode[webhook.ReplayJob](c.server.t, c.call("POST", replayPath(subscription), body, 202))
}

// replayed waits for the end of a job.
func (c *testClient) replayed(job string) (j webhook.ReplayJob) {
	c.server.t.Helper()
	eventually(c.server.t, func() bool {
		j = get[webhook.ReplayJob](c, "/v1/webhooks/replays/"+job)
		return j.State != webhook.ReplayRunning
	})
	return j
}

// A dead letter is sent again, on a fresh schedule and with the same bytes.
func TestReplayOfADelivery(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=10ms,10ms")
	cus := s.customer("cus_a", "paid")
	hook := newReceiver(t, func(n int, _ received) int { return []int{500, 500, 500, 500, 500, 204, 204}[n-1] })
	sub := cus.subscribeWith(map[string]any{"url": hook.url, "events": []string{"program.created"}, "envelope": "v2", "filter": map[string]any{"prefecture": "奈良県"}})
	s.putProgram("UNI-1", `{"primary_name":"補助金 <&>","prefectures":["奈良県"]}`, 201)
	dead := cus.deliveries(sub.SubscriptionID, 1)[0]
	detail := get[webhook.DeliveryDetail](cus, "/v1/webhooks/deliveries/"+dead.DeliveryID)
	if dead.Status != webhook.StatusDeadLetter || dead.AttemptCount != 3 || detail.Blocked == nil || detail.Matched.EventType != "program.created" ||
		!slices.Equal(detail.Matched.Attributes["prefecture"], []string{"奈良県"}) || !slices.Equal(detail.Matched.Filter["prefecture"], []string{"奈良県"}) {
		t.Fatalf("dead letter: %+v", detail)
	}
	cus.call("PATCH", listPath+"/"+sub.SubscriptionID, `{"envelope":"v1"}`, 200) // holds for later events
	cus.call("POST", redeliverPath(dead.DeliveryID), nil, 202)
	hook.wait(6)
	got := cus.deliveries(sub.SubscriptionID, 1)[0]
	if got.DeliveryID != dead.DeliveryID || got.EventID != dead.EventID || got.Status != webhook.StatusSuccess || got.AttemptCount != 6 {
		t.Errorf("replayed: %+v", got)
	}
	again := decode[webhook.Delivery](t, cus.call("POST", redeliverPath(dead.DeliveryID), nil, 202))
	if again.DeliveryID != dead.DeliveryID || again.Status != webhook.StatusPending || again.AttemptCount != 6 || again.FinishedAt != nil {
		t.Errorf("accepted: %+v", again)
	}
	for i, r := range hook.wait(7) {
		if r.body != hook.all()[0].body || r.header.Get("webhook-id") != dead.EventID || r.header.Get("X-Jpintel-Delivery") != dead.DeliveryID || r.header.Get("X-Jpintel-Attempt") != strconv.Itoa(i+1) {
			t.Errorf("request %d: %v\n%s", i+1, r.header, r.body)
		}
		checkSignatures(t, sub.SigningSecret, r)
	}
	if d := get[webhook.DeliveryDetail](cus, "/v1/webhooks/deliveries/"+cus.deliveries(sub.SubscriptionID, 1)[0].DeliveryID); d.Blocked != nil || len(d.Attempts) != 7 {
		t.Errorf("at last: %+v", d)
	}
}

func TestReplayIsRefused(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	sub := cus.subscribe(hook, "program.created", "program.updated")
	s.putProgram("UNI-1", `{"primary_name":"x"}`, 201)
	one := redeliverPath(cus.deliveries(sub.SubscriptionID, 1)[0].DeliveryID)
	many, all := replayPath(sub.SubscriptionID), map[string]any{"since": longAgo, "status": "success"}
	refused := func(detail string) {
		t.Helper()
		cus.refused("POST", one, nil, 409, detail)
		cus.refused("POST", many, all, 409, detail)
	}
	const disabled, stopped = "the subscription is disabled (user): enable it first", "all webhooks are stopped for this customer: DELETE /v1/webhooks/opt-out first"
	cus.call("POST", listPath+"/"+sub.SubscriptionID+"/disable", nil, 200)
	refused(disabled)
	cus.call("POST", listPath+"/"+sub.SubscriptionID+"/enable", nil, 200)
	cus.call("PUT", "/v1/webhooks/opt-out", nil, 200)
	refused(stopped)
	cus.call("DELETE", "/v1/webhooks/opt-out", nil, 200)
	cus.call("PATCH", listPath+"/"+sub.SubscriptionID, `{"events":["program.updated"]}`, 200)
	cus.refused("POST", one, nil, 409, "the subscription no longer has the event's type")
	job := cus.replay(sub.SubscriptionID, "success")
	if got := cus.replayed(job.JobID); got.State != webhook.ReplayDone || got.Matched != 1 || got.Queued != 0 || got.Skipped != 1 {
		t.Errorf("a job over what is not subscribed to: %+v", got)
	}
	const want = "status: want dead_letter, failed, success or missed"
	for body, detail := range map[string]string{
		`{}`:                          want,
		`{"since":"` + longAgo + `"}`: want,
		`{"since":"` + longAgo + `","status":"pending"}`:                                                     want,
		`{"status":"failed"}`:                                                                                "since: want a time like 2026-05-14T09:00:00+09:00",
		`{"status":"failed","since":"yesterday"}`:                                                            "since: want a time like 2026-05-14T09:00:00+09:00",
		`{"status":"failed","since":"` + longAgo + `","until":"2026-05-14"}`:                                 "until: want a time like 2026-05-14T09:00:00+09:00",
		`{"status":"failed","since":"` + longAgo + `","until":"` + longAgo + `"}`:                            "since: want a time before until, which is now at the latest",
		`{"status":"failed","since":"` + time.Now().Add(time.Hour).Format(time.RFC3339) + `"}`:               "since: want a time before until, which is now at the latest",
		`{"status":"failed","since":"` + longAgo + `","all":true}`:                                           "all: unknown field",
		`{"status":"failed","since":"` + longAgo + `","until":"2020-01-02T00:00:00Z","until":"` + "x" + `"}`: "until: there twice",
	} {
		cus.refused("POST", many, body, 400, detail)
	}
	cus.call("DELETE", listPath+"/"+sub.SubscriptionID, nil, 204)
	cus.refused("POST", one, nil, 409, "the subscription was deleted")
	cus.refused("POST", many, all, 404, "subscription "+sub.SubscriptionID+" not found")
	if len(hook.all()) != 1 {
		t.Errorf("%d requests", len(hook.all()))
	}
}

// Over the cap there is nothing to be had until midnight.
func TestReplayOverTheCap(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_DAILY_CAP=1")
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	sub := cus.subscribe(hook, "program.created")
	s.putProgram("UNI-1", `{"primary_name":"x"}`, 201)
	d := cus.deliveries(sub.SubscriptionID, 1)[0]
	for _, path := range []string{redeliverPath(d.DeliveryID), testPath(sub.SubscriptionID)} {
		a := cus.call("POST", path, nil, 429)
		wait, err := strconv.Atoi(a.header.Get("Retry-After"))
		if a.body != errorBody(fmt.Sprintf(capDetail, 1)) || err != nil || wait < 1 || wait > 24*60*60 {
			t.Errorf("%s: %s, Retry-After: %q", path, a.body, a.header.Get("Retry-After"))
		}
	}
	// A job waits for its day; another like it is told which one is there.
	job := cus.replay(sub.SubscriptionID, "success")
	cus.refused("POST", replayPath(sub.SubscriptionID), map[string]any{"since": longAgo, "status": "success"}, 409,
		job.JobID+" is replaying this already: GET /v1/webhooks/replays/"+job.JobID)
	if got := get[webhook.ReplayJob](cus, "/v1/webhooks/replays/"+job.JobID); got.State != webhook.ReplayRunning || got.Queued != 0 || got.FinishedAt != nil {
		t.Errorf("over the cap: %+v", got)
	}
	cus.call("POST", listPath+"/"+sub.SubscriptionID+"/disable", nil, 200)
	if got := cus.replayed(job.JobID); got.State != webhook.ReplayStopped || got.FinishedAt == nil {
		t.Errorf("disabled: %+v", got)
	}
	if len(hook.all()) != 1 {
		t.Errorf("%d requests", len(hook.all()))
	}
}

// What came while the subscription was disabled arrives once, on request; what
// was pending then is failed, and is replayed as that.
func TestReplayOfWhatWasMissed(t *testing.T) {
	s := newServer(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=1h")
	cus := s.customer("cus_a", "paid")
	hook := newReceiver(t, func(n int, _ received) int { return map[bool]int{true: 503, false: 204}[n == 1] })
	sub := cus.subscribe(hook, "program.created")
	pending := *s.putProgram("UNI-1", `{"primary_name":"x"}`, 201).EventID
	hook.wait(1)
	cus.call("POST", listPath+"/"+sub.SubscriptionID+"/disable", nil, 200)
	var want []string
	for i := range 3 {
		want = append(want, *s.putProgram("UNI-missed-"+strconv.Itoa(i), `{"primary_name":"x"}`, 201).EventID)
	}
	s.putProgram("UNI-1", `{"primary_name":"y"}`, 200) // program.updated is not subscribed to
	cus.call("POST", listPath+"/"+sub.SubscriptionID+"/enable", nil, 200)
	s.stop()
	s.start()
	job := cus.replay(sub.SubscriptionID, "missed")
	if job.SubscriptionID != sub.SubscriptionID || job.Status != "missed" || job.Since.Year() != 2020 || job.Until.Before(job.CreatedAt) {
		t.Errorf("job: %+v", job)
	}
	if got := cus.replayed(job.JobID); got.State != webhook.ReplayDone || got.Matched != 3 || got.Queued != 3 || got.Skipped != 0 {
		t.Errorf("missed: %+v", got)
	}
	hook.wait(4)
	if got := cus.replayed(cus.replay(sub.SubscriptionID, "missed").JobID); got.Matched != 0 {
		t.Errorf("missed, again: %+v", got)
	}
	if got := cus.replayed(cus.replay(sub.SubscriptionID, "failed").JobID); got.Queued != 1 {
		t.Errorf("failed: %+v", got)
	}
	count := map[string]int{}
	for _, r := range hook.wait(5) {
		count[r.header.Get("webhook-id")]++
	}
	if all := map[string]int{pending: 2, want[0]: 1, want[1]: 1, want[2]: 1}; !maps.Equal(count, all) {
		t.Errorf("received %v, want %v", count, all)
	}
}

// The command line replays beside the server, which has to notice.
func TestReplayFromTheCommandLine(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	sub := cus.subscribe(hook, "program.created").SubscriptionID
	s.putProgram("UNI-1", `{"primary_name":"x"}`, 201)
	delivery := cus.deliveries(sub, 1)[0].DeliveryID
	if d := decode[webhook.Delivery](t, testAnswer{body: s.command("deliveries", "replay", delivery, "--json")}); d.DeliveryID != delivery || d.Status != webhook.StatusPending {
		t.Errorf("replayed: %+v", d)
	}
	hook.wait(2)
	for _, c := range []struct {
		off, on []string
		reason  string
	}{
		{[]string{"subscriptions", "disable", sub}, []string{"subscriptions", "enable", sub}, "user"},
		{[]string{"customers", "opt-out", "cus_a"}, []string{"customers", "opt-out", "cus_a", "--end"}, "user_opt_out"},
	} {
		s.command(c.off...)
		if got := cus.states()[sub]; got != c.reason {
			t.Errorf("%v: %s", c.off, got)
		}
		s.putProgram("UNI-"+c.reason, `{"primary_name":"x"}`, 201)
		s.command(c.on...)
		if got := cus.states()[sub]; got != "active" {
			t.Errorf("%v: %s", c.on, got)
		}
	}
	job := decode[webhook.ReplayJob](t, testAnswer{body: s.command("deliveries", "replay", "--subscription", sub, "--since", longAgo, "--status", "missed", "--json")})
	if got := cus.replayed(job.JobID); got.Queued != 2 {
		t.Errorf("missed: %+v", got)
	}
	hook.wait(4)
	if got := decode[webhook.ReplayJob](t, testAnswer{body: s.command("deliveries", "progress", job.JobID, "--json")}); got.State != webhook.ReplayDone || got.Queued != 2 {
		t.Errorf("progress: %+v", got)
	}
}
