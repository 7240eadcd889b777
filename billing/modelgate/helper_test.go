package modelgate

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"jpintel/billing/money"
)

// testKey is the API key of the tests: it must turn up nowhere.
const testKey = "mgp_0123456789abcdefghij"

// upstream serves one handler on a real socket and returns a client for it.
func upstream(t testing.TB, handle http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	return clientFor(t, server.URL)
}

func clientFor(t testing.TB, base string) *Client {
	t.Helper()
	c, err := New(Options{BaseURL: base, APIKey: testKey})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// answer answers with one status, headers as "Name: value" and a body.
func answer(status int, body string, headers ...[2]string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Request-Id", "req_1")
		for _, h := range headers {
			w.Header().Set(h[0], h[1])
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func send(t testing.TB, c *Client, r Request) Outcome {
	t.Helper()
	return c.Send(context.Background(), r, time.Now().Add(Timeout))
}

func amount(t testing.TB, text string) money.Amount {
	t.Helper()
	a, err := money.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// The requests of the tests, with answers that confirm them.
var (
	group  = CreateGroup("create-group-for-customer:cus_a:1", "cus_a", "cus_a:signup:1", []string{"m1"}, "USD")
	key    = CreateKey("create-key-for-customer:cus_a:grp_1:default:1", "grp_1", "cus_a default", "default", "cus_a:default:1")
	revoke = RevokeKey("revoke-key:cus_a:key_1:1", "key_1")
	remove = DeleteGroup("delete-group:cus_a:grp_1:1", "grp_1")
	freeze = SetGroupStatus("freeze:cus_a:dp_1", "grp_1", GroupFrozen)

	groupAnswer      = `{"id":"grp_1","external_ref":"cus_a:signup:1","name":"cus_a","status":"active","spend_limit":"0.00","period":"month","version":1,"created_at":"2026-05-14T00:00:00Z","updated_at":"2026-05-14T00:00:00Z"}`
	keyAnswer        = `{"id":"key_1","group_id":"grp_1","purpose":"default","external_ref":"cus_a:default:1","prefix":"mg_ab12","status":"active","secret":"mg_ab12_the_secret_itself","secret_available":true,"created_at":"2026-05-14T00:00:00Z"}`
	limitsAnswer     = `{"group_id":"grp_1","spend_limit":"25.00","currency":"USD","period":"month","policy_version":"4","usage_in_period":"0.00","version":7,"updated_at":"2026-05-14T00:00:00Z"}`
	topUpAnswer      = `{"id":"txn_1","type":"top_up","group_id":"grp_1","amount":"25.00","currency":"USD","balance_after":"25.00","external_ref":"led_1","request_id":"req_1","status":"posted","created_at":"2026-05-14T00:00:00Z"}`
	adjustmentAnswer = `{"id":"txn_2","type":"adjustment","group_id":"grp_1","amount":"-5.00","currency":"USD","balance_after":"20.00","external_ref":"led_2","reason":"refund","related_transaction_id":"txn_1","request_id":"req_1","status":"posted","created_at":"2026-05-14T00:00:00Z"}`
	revokeAnswer     = `{"id":"key_1","status":"revoked","revoked_at":"2026-05-14T00:00:00Z"}`
	removedAnswer    = `{"id":"grp_1","deleted":true}`
	frozenAnswer     = `{"id":"grp_1","external_ref":"cus_a:signup:1","name":"cus_a","status":"frozen","spend_limit":"0.00","period":"month"}`
)

func limits(t testing.TB) Request {
	return SetLimits("set-spend-limit:cus_a:grp_1:4", "grp_1", amount(t, "25"), "USD", "4")
}

func topUp(t testing.TB) Request {
	return TopUp("top-up:cus_a:evt_1:led_1", "grp_1", amount(t, "25"), "USD", "led_1")
}

func adjustment(t testing.TB) Request {
	return Adjust("debit:cus_a:pi_1:1", "grp_1", amount(t, "5").Neg(), "USD", ReasonRefund, "txn_1", "led_2")
}
