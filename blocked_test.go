package main

import (
	"slices"
	"strings"
	"testing"

	"jpintel/webhook"
)

// The document lists the guard's words as the guard does.
func TestOpenAPIHasTheBlockedReasons(t *testing.T) {
	var listed []webhook.BlockedReason
	for _, word := range document(t).Components.Schemas["BlockedReason"].Value.Enum {
		listed = append(listed, webhook.BlockedReason(word.(string)))
	}
	if want := append([]webhook.BlockedReason{""}, webhook.BlockedReasons...); !slices.Equal(listed, want) {
		t.Errorf("%q, want %q", listed, want)
	}
}

// A refusal has the same word for who subscribes, who changes, who pings, who
// reads the attempt, and who reads the log.
func TestBlockedReasonIsOneWord(t *testing.T) {
	s := newServer(t)
	cus, hook := s.customer("cus_a", "paid"), newReceiver(t, nil)
	id := cus.subscribe(hook, "program.created").SubscriptionID
	s.stop()
	s.env["JPINTEL_WEBHOOK_ALLOW_CIDRS"] = "127.9.0.0/16" // what was let through is no more
	s.start()

	s.admin.call("PUT", "/v1/admin/programs/UNI-1", `{"primary_name":"補助金"}`, 201)
	path := deliveriesPath(id)
	eventually(t, func() bool {
		page := get[deliveryPage](cus, path)
		return len(page.Data) == 1 && page.Data[0].AttemptCount == 1
	})
	d := get[webhook.DeliveryDetail](cus, "/v1/webhooks/deliveries/"+get[deliveryPage](cus, path).Data[0].DeliveryID)
	if a := d.Attempts[0]; a.ErrorCategory != webhook.CategoryBlocked || a.BlockedReason != webhook.BlockedLoopback || a.RemoteAddr != "" {
		t.Errorf("attempt: %+v", a)
	}
	ping := decode[webhook.PingAnswer](t, cus.call("POST", testPath(id), nil, 200))
	if ping.ErrorCategory != webhook.CategoryBlocked || ping.BlockedReason != webhook.BlockedLoopback {
		t.Errorf("ping: %+v", ping)
	}
	word := string(webhook.BlockedLoopback)
	for _, a := range []testAnswer{
		cus.call("POST", subscribePath, map[string]any{"url": hook.url, "events": []string{"program.created"}}, 400),
		cus.call("PATCH", listPath+"/"+id, map[string]string{"url": hook.url + "other"}, 400),
	} {
		if a.body != errorBody("url: the address is not a public one ("+word+")") {
			t.Errorf("subscribe or change: %s", a.body)
		}
	}
	eventually(t, func() bool { return len(s.log.entries("webhook_delivered")) == 1 })
	if entry := s.log.entries("webhook_delivered")[0]; entry["blocked_reason"] != word || entry["error_category"] != string(webhook.CategoryBlocked) {
		t.Errorf("log: %v", entry)
	}
	if strings.Contains(s.log.String(), hook.url) || len(hook.all()) != 0 {
		t.Errorf("%d requests, or the log has the URL", len(hook.all()))
	}

	// What was let through has no word.
	s.stop()
	s.env["JPINTEL_WEBHOOK_ALLOW_CIDRS"] = "127.0.0.0/8"
	s.start()
	if ping := decode[webhook.PingAnswer](t, cus.call("POST", testPath(id), nil, 200)); !ping.OK || ping.BlockedReason != "" {
		t.Errorf("ping: %+v", ping)
	}
}
