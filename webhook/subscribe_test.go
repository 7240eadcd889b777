package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

func TestSubscribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.DB.Location = time.FixedZone("JST", 9*60*60)
		customer(t, s, "cus_a")
		a, err := s.Subscribe(t.Context(), SubscribeRequest{
			CustomerID: "cus_a", URL: "HTTPS://93.184.215.14:443/Hook", Events: []Type{TypeProgramUpdated, TypeProgramCreated, TypeProgramUpdated},
			Filter: Filter{"prefecture": {"大阪府", "奈良県"}, "unified_id": {"UNI-1"}}, Envelope: EnvelopeV2, Description: "本番",
		})
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`{"subscription_id":%q,"signing_secret":%q,"url":"https://93.184.215.14/Hook","events":["program.created","program.updated"],`+
			`"filter":{"prefecture":["大阪府","奈良県"],"unified_id":"UNI-1"},"envelope":"v2","description":"本番","created_at":"2000-01-01T09:00:00+09:00",`+
			`"secret_shown_once":true,"warnings":["93.184.215.14 is an address: the TLS certificate must be valid for it"]}`, a.SubscriptionID, a.SigningSecret)
		if got, err := json.Marshal(a); err != nil || string(got) != want {
			t.Errorf("got  %s, %v\nwant %s", got, err, want)
		}
		if a.HTTPStatus() != 201 || !strings.HasPrefix(a.SubscriptionID, "sub_") || !strings.HasPrefix(a.SigningSecret, "whsec_") {
			t.Errorf("%d, %s, %s", a.HTTPStatus(), a.SubscriptionID, a.SigningSecret)
		}
		got, err := s.Subscription(t.Context(), SubscriptionRequest{"cus_a", a.SubscriptionID})
		text, _ := json.Marshal(got)
		wantSub := fmt.Sprintf(`{"subscription_id":%q,"url":"https://93.184.215.14/Hook","events":["program.created","program.updated"],`+
			`"filter":{"prefecture":["大阪府","奈良県"],"unified_id":"UNI-1"},"envelope":"v2","description":"本番","state":"active","disabled_at":null,"disabled_reason":null,`+
			`"failures_streak":0,"failing_since":null,"last_delivery_at":null,"last_success_at":null,"last_status":null,"success_rate_hour":null,"created_at":"2000-01-01T09:00:00+09:00"}`, a.SubscriptionID)
		if err != nil || string(text) != wantSub {
			t.Errorf("got  %s, %v\nwant %s", text, err, wantSub)
		}
	})
}

func TestSubscribeRefuses(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	storetest.Customer(t, s.DB, "cus_free", store.TierFree)
	customer(t, s, "cus_out")
	exec(t, s.DB, `UPDATE customers SET opted_out_at_ms = 1 WHERE customer_id = 'cus_out'`)
	for name, c := range map[string]struct {
		change func(r *SubscribeRequest)
		code   store.Code
		text   string
	}{
		"plain http":             {func(r *SubscribeRequest) { r.URL = "http://93.184.215.14/" }, store.CodeInvalid, "https required"},
		"a private address":      {func(r *SubscribeRequest) { r.URL = "https://10.0.0.1/" }, store.CodeInvalid, "url: the address is not a public one (private_address)"},
		"a port":                 {func(r *SubscribeRequest) { r.URL = "https://93.184.215.14:22/" }, store.CodeInvalid, "url: port 22 is not one of 443, 8443 (port)"},
		"no URL":                 {func(r *SubscribeRequest) { r.URL = "" }, store.CodeInvalid, "url: required"},
		"no events":              {func(r *SubscribeRequest) { r.Events = nil }, store.CodeInvalid, "events: want at least one"},
		"the test ping":          {func(r *SubscribeRequest) { r.Events = []Type{TypeTest} }, store.CodeInvalid, `"webhook.test"`},
		"every event":            {func(r *SubscribeRequest) { r.Events = []Type{"*"} }, store.CodeInvalid, `"*"`},
		"an unknown attribute":   {func(r *SubscribeRequest) { r.Filter = Filter{"kind": {"x"}} }, store.CodeInvalid, `"kind"`},
		"another envelope":       {func(r *SubscribeRequest) { r.Envelope = "v3" }, store.CodeInvalid, "envelope: want v1 or v2"},
		"a long description":     {func(r *SubscribeRequest) { r.Description = strings.Repeat("x", 257) }, store.CodeInvalid, "description: at most 256 bytes"},
		"the free tier":          {func(r *SubscribeRequest) { r.CustomerID = "cus_free" }, store.CodeForbidden, "webhook subscriptions not available on free tier"},
		"an unknown customer":    {func(r *SubscribeRequest) { r.CustomerID = "cus_b" }, store.CodeNotFound, "cus_b"},
		"one who has opted out":  {func(r *SubscribeRequest) { r.CustomerID = "cus_out" }, store.CodeConflict, "opt-out"},
		"more of it, in advance": {func(r *SubscribeRequest) { r.URL, r.Events = "x", nil }, store.CodeInvalid, "https required"},
	} {
		r := SubscribeRequest{CustomerID: "cus_a", URL: publicURL, Events: []Type{TypeProgramUpdated}}
		c.change(&r)
		_, err := s.Subscribe(t.Context(), r)
		t.Run(name, func(t *testing.T) { wantCode(t, err, c.code, c.text) })
	}
	if n := number(t, s.DB, `SELECT (SELECT COUNT(*) FROM webhook_subscriptions) + (SELECT COUNT(*) FROM webhook_secrets)`); n != 0 {
		t.Errorf("%d rows of refused subscriptions", n)
	}
}

func TestSubscribeResolvesTheName(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	s.Guard = strict(t, zone{"broken.example": {{Fail: true}}})
	for host, c := range map[string]struct {
		err     string
		warning string
	}{
		"public.example":                      {},
		"nxdomain.example":                    {err: "url: the host name nxdomain.example does not resolve"},
		"empty.example":                       {err: "url: the host name empty.example does not resolve"},
		"priv.example":                        {err: "url: the address is not a public one (private_address)"},
		"mixed-aaaa.example":                  {err: "url: the address is not a public one (private_address)"},
		"broken.example":                      {warning: "could not be looked up just now"},
		"93.184.215.14":                       {warning: "93.184.215.14 is an address"},
		"[2606:4700:4700:0::1111]":            {warning: "2606:4700:4700::1111 is an address"},
		"a.b.c.d.e.f.public.example.":         {},
		"localhost":                           {err: "url: the name is not a public one (private_name)"},
		"xn--bcher-kva.example:8443/a?b=c%20": {},
	} {
		a, err := s.Subscribe(t.Context(), SubscribeRequest{CustomerID: "cus_a", URL: "https://" + host, Events: []Type{TypeProgramUpdated}})
		if c.err != "" {
			t.Run(host, func(t *testing.T) { wantCode(t, err, store.CodeInvalid, c.err) })
			continue
		}
		if err != nil || a.Warnings == nil || (len(a.Warnings) > 0) != (c.warning != "") || !strings.Contains(strings.Join(a.Warnings, ""), c.warning) {
			t.Errorf("%s: %q, %v; want %q", host, a.Warnings, err, c.warning)
		}
	}
}

// In development plain http to an address needs no certificate.
func TestNoWarningWithoutTLS(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	s.Guard = NewGuard(GuardOptions{AllowHTTP: true, AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	a := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", URL: "http://127.0.0.1:9000/"})
	if len(a.Warnings) != 0 || a.URL != "http://127.0.0.1:9000/" {
		t.Errorf("%+v", a)
	}
}

func TestTheLimitIsExact(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	var callers sync.WaitGroup
	var accepted atomic.Int32
	for range maxSubscriptions + 10 {
		callers.Go(func() {
			_, err := s.Subscribe(context.Background(), SubscribeRequest{CustomerID: "cus_a", URL: publicURL, Events: []Type{TypeProgramUpdated}})
			if err == nil {
				accepted.Add(1)
			} else if store.CodeOf(err) != store.CodeConflict || err.Error() != "subscription limit 20 reached for tier=paid" {
				t.Errorf("got %v", err)
			}
		})
	}
	callers.Wait()
	if n := accepted.Load(); n != maxSubscriptions {
		t.Errorf("%d were accepted", n)
	}
	subscribe(t, s, SubscribeRequest{CustomerID: "cus_b"}) // another's limit is its own
	page, err := s.Subscriptions(t.Context(), SubscriptionsRequest{CustomerID: "cus_a"})
	if err != nil || len(page.Data) != maxSubscriptions {
		t.Fatalf("%d, %v", len(page.Data), err)
	}
	if _, err := s.Unsubscribe(t.Context(), SubscriptionRequest{"cus_a", page.Data[3].SubscriptionID}); err != nil {
		t.Fatal(err)
	}
	subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}) // one that is deleted does not count
}

func TestOnlyLaterEventsAreDelivered(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	publish(t, s, updated("UNI-1", nil)) // committed before, fanned out after
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	after := publish(t, s, updated("UNI-2", nil))
	fanOut(t, s)
	if got, want := deliveriesOf(t, s, sub.SubscriptionID), []string{after[0] + " pending"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
