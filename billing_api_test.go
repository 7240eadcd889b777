package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"jpintel/billing"
	"jpintel/store"
)

const partnerKey = "mgp_0123456789abcdefghij"

// partner answers every mutation of the partner API as if it had done it. It
// remembers what it was sent.
type partner struct {
	*httptest.Server
	mu   sync.Mutex
	sent []string // Idempotency-Keys
	keys int
	fail bool // refuse groups
}

func newPartner(t *testing.T) *partner {
	t.Helper()
	p := &partner{}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

func (p *partner) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, r.Header.Get("Idempotency-Key"))
	w.Header().Set("Content-Type", "application/json")
	if r.Header.Get("Authorization") != "Bearer "+partnerKey || p.fail {
		w.WriteHeader(422)
		_, _ = io.WriteString(w, `{"error":{"code":"model_unknown","message":"no such model"}}`)
		return
	}
	body, _ := io.ReadAll(r.Body)
	answer := map[string]any{"id": "grp_1", "external_ref": "cus_a:signup:1", "name": "cus_a", "status": "active", "spend_limit": "0.00", "period": "month"}
	_ = json.Unmarshal(body, &answer) // what was sent is confirmed
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case strings.HasSuffix(r.URL.Path, "/keys"):
		p.keys++
		answer["id"], answer["group_id"] = fmt.Sprint("key_", p.keys), parts[1]
		answer["secret"], answer["secret_available"] = fmt.Sprint("mg_ab12_secret_number_", p.keys), true
	case strings.HasSuffix(r.URL.Path, "/limits"):
		answer["group_id"] = parts[1]
	case r.Method == "DELETE":
		answer["id"], answer["status"] = parts[1], "revoked"
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (p *partner) refuse(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail = yes
}

func newBillingServer(t *testing.T, env ...string) (*testServer, *partner) {
	t.Helper()
	p := newPartner(t)
	return newServer(t, append([]string{"MODELGATE_BASE_URL=" + p.URL, "MODELGATE_API_KEY=" + partnerKey, "JPINTEL_BILLING_RETRY_BASE=10ms", "JPINTEL_BILLING_SETTLE=100ms"}, env...)...), p
}

const signUpBody = `{"customer_id":"cus_a","tier":"paid","signup_version":1,"spend_limit":"100.00","currency":"USD"}`

// billed waits until a customer is in a state.
func billed(t *testing.T, s *testServer, want billing.CustomerStatus) billing.Customer {
	t.Helper()
	var c billing.Customer
	eventually(t, func() bool {
		c = get[billing.Customer](s.admin, "/v1/admin/customers/cus_a")
		return c.Status != nil && *c.Status == want
	})
	return c
}

func TestASignUpThroughTheAPI(t *testing.T) {
	s, p := newBillingServer(t)
	click := func(key string) *testClient { return s.admin.with("Idempotency-Key", key) }
	first := decode[billing.Accepted](t, click("click-1").call("POST", "/v1/admin/customers", signUpBody, 202))
	if first.CustomerID != "cus_a" || !strings.HasPrefix(first.OperationID, "op_") {
		t.Errorf("%+v", first)
	}
	c := billed(t, s, billing.Ready)
	if c.Tier != store.TierPaid || *c.GroupID != "grp_1" || *c.SpendLimit != "100.00" || *c.Currency != "USD" || len(c.Keys) != 1 || c.Keys[0].KeyID != "key_1" || !c.Keys[0].SecretAvailable {
		t.Errorf("%+v", c)
	}
	for _, key := range []string{"click-1", "click-2"} {
		if again := decode[billing.Accepted](t, click(key).call("POST", "/v1/admin/customers", signUpBody, 200)); again.OperationID != first.OperationID || again.Status != billing.Ready {
			t.Errorf("%+v", again)
		}
	}
	s.admin.refused("POST", "/v1/admin/customers", signUpBody, 400, "Idempotency-Key: required")
	s.admin.refused("POST", "/v1/admin/customers", `{"customer_id":"cus_b","currency":"USD"}`, 400, "spend_limit: required with currency and signup_version")
	click("click-3").refused("POST", "/v1/admin/customers", strings.Replace(signUpBody, `"signup_version":1`, `"signup_version":2`, 1), 409,
		"customer cus_a was signed up with signup_version 1, and has a group or is getting one")
	click("click-1").refused("POST", "/v1/admin/customers", strings.Replace(signUpBody, "100.00", "200.00", 1), 409, "Idempotency-Key: used before, for another request")

	// Its key is shown once.
	key := click("reveal-1").call("POST", "/v1/admin/model-keys/key_1/reveal", nil, 200)
	if revealed := decode[billing.Revealed](t, key); revealed.Secret != "mg_ab12_secret_number_1" || revealed.CustomerID != "cus_a" {
		t.Errorf("%+v", revealed)
	}
	click("reveal-2").refused("POST", "/v1/admin/model-keys/key_1/reveal", nil, 410, "the secret of key_1 was shown before; rotate makes a new key")
	click("reveal-3").refused("POST", "/v1/admin/model-keys/key_9/reveal", nil, 404, "model key key_9 not found, or its secret never arrived")

	// Limits, freezing, keys.
	const path = "/v1/admin/customers/cus_a"
	click("limit-1").call("POST", path+"/limit", `{"spend_limit":"250","approved_by":"aki"}`, 202)
	eventually(t, func() bool { return *get[billing.Customer](s.admin, path).SpendLimit == "250.00" })
	click("limit-1").call("POST", path+"/limit", `{"spend_limit":"250","approved_by":"aki"}`, 200)
	click("limit-2").refused("POST", path+"/limit", `{"spend_limit":"250"}`, 400, "approved_by: required")
	click("limit-2").refused("POST", path+"/limit", `{"spend_limit":"2.5e2","approved_by":"aki"}`, 400, "spend_limit: want an amount like 12 or 0.10: at most 15 digits before the point and 12 after it, and nothing else")
	click("freeze-1").call("POST", path+"/freeze", `{"cause_ref":"dp_1"}`, 202)
	if c := billed(t, s, billing.Frozen); c.Keys[0].Status != "frozen" {
		t.Errorf("%+v", c)
	}
	click("thaw-1").call("POST", path+"/thaw", `{"cause_ref":"dp_1","approved_by":"aki"}`, 202)
	billed(t, s, billing.Ready)
	click("key-1").call("POST", path+"/model-keys", `{"action":"rotate"}`, 202)
	eventually(t, func() bool { return len(get[billing.Customer](s.admin, path).Keys) == 2 })
	click("key-2").refused("POST", path+"/model-keys", `{"action":"create"}`, 409, "purpose: there is a key for default; rotate replaces it")

	// All of it is on record.
	page := get[store.Page[billing.Operation]](s.admin, "/v1/admin/operations?customer=cus_a&status=succeeded")
	if len(page.Data) != 9 || page.Data[8].OperationID != first.OperationID {
		t.Errorf("%d operations", len(page.Data))
	}
	record := get[billing.Record](s.admin, "/v1/admin/operations/"+page.Data[7].OperationID)
	if len(record.Attempts) != 1 || record.Request.Path != "/groups" || *record.ParentID != first.OperationID {
		t.Errorf("%+v", record)
	}
	get[billing.Record](s.admin, "/v1/admin/operations/"+first.OperationID)
	s.admin.refused("GET", "/v1/admin/operations?status=done", nil, 400, "status: want pending, succeeded, failed_retryable, failed_final, reconciling or reconciliation_needed")
	s.admin.refused("GET", "/v1/admin/operations/op_none", nil, 404, "operation op_none not found")
	if len(p.sent) != 8 {
		t.Errorf("sent: %q", p.sent)
	}
	if strings.Contains(s.log.String(), partnerKey) || strings.Contains(s.log.String(), "mg_ab12_secret") {
		t.Error("a secret is in the log")
	}
}

// What is stuck is in the queue, and the operator's word leads on: through the
// API, and by a command beside the server.
func TestTheQueueThroughTheAPI(t *testing.T) {
	s, p := newBillingServer(t)
	p.refuse(true)
	s.admin.with("Idempotency-Key", "click-1").call("POST", "/v1/admin/customers", signUpBody, 202)
	billed(t, s, billing.NeedsAttention)
	queue := get[store.Page[billing.Operation]](s.admin, "/v1/admin/operations?status=reconciliation_needed")
	failed := get[store.Page[billing.Operation]](s.admin, "/v1/admin/operations?status=failed_final")
	if len(queue.Data) != 1 || *queue.Data[0].Phase != billing.PhaseBlocked || len(failed.Data) != 1 || *failed.Data[0].ErrorCode != "model_unknown" {
		t.Fatalf("%+v %+v", queue, failed)
	}
	path := "/v1/admin/operations/" + failed.Data[0].OperationID
	s.admin.refused("POST", path+"/retry", `{"who":"aki","note":"again"}`, 409, "the operation has ended: failed_final")
	s.admin.refused("POST", path+"/reconcile", `{"who":"aki","note":"again"}`, 409, "the operation has ended: failed_final")
	s.admin.refused("POST", path+"/resolve", `{"who":"aki","note":"again","outcome":"perhaps"}`, 400, "outcome: want succeeded, failed, new_version or replace_key")
	s.admin.refused("POST", path+"/resolve", `{"note":"again","outcome":"failed"}`, 400, "who: required, at most 100 bytes")
	p.refuse(false)
	if shown := s.command("ops", "list", "--status", "reconciliation_needed", "--json"); !strings.Contains(shown, queue.Data[0].OperationID) {
		t.Errorf("ops list: %s", shown)
	}
	s.command("ops", "resolve", failed.Data[0].OperationID, "--who", "aki", "--note", "the model is there now", "--outcome", "new_version")
	billed(t, s, billing.Ready)
	record := get[billing.Record](s.admin, path)
	if len(record.Notes) != 1 || record.Notes[0].Who != "aki" {
		t.Errorf("%+v", record.Notes)
	}
	shown := s.command("ops", "show", failed.Data[0].OperationID, "--json")
	var again billing.Record
	if err := json.Unmarshal([]byte(shown), &again); err != nil || len(again.Attempts) != 1 || len(again.Notes) != 1 {
		t.Errorf("%s (%v)", shown, err)
	}
}

// S78: with the switch on, and where no partner API is configured, everything is
// accepted and nothing is sent.
func TestS78NothingIsSentThroughTheAPI(t *testing.T) {
	s, p := newBillingServer(t, "JPINTEL_BILLING_KILL_SWITCH=1")
	s.admin.with("Idempotency-Key", "click-1").call("POST", "/v1/admin/customers", signUpBody, 202)
	s.stop()
	s.env["JPINTEL_BILLING_KILL_SWITCH"], s.env["MODELGATE_BASE_URL"], s.env["MODELGATE_API_KEY"] = "0", "", ""
	s.start()
	if c := get[billing.Customer](s.admin, "/v1/admin/customers/cus_a"); *c.Status != billing.Provisioning || len(p.sent) != 0 {
		t.Errorf("%+v, %q", c, p.sent)
	}
	s.stop()
	s.env["MODELGATE_BASE_URL"], s.env["MODELGATE_API_KEY"] = p.URL, partnerKey
	s.start()
	billed(t, s, billing.Ready)
}
