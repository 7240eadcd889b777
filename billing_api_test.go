package main

import (
	"encoding/json"
	"strings"
	"testing"

	"jpintel/billing"
	"jpintel/billing/billingtest"
	"jpintel/billing/modelgatetest"
	"jpintel/store"
)

func newBillingServer(t *testing.T, env ...string) (*testServer, *modelgatetest.Upstream) {
	t.Helper()
	up := modelgatetest.New(modelgatetest.Options{}).Start(t)
	return newServer(t, append([]string{"MODELGATE_BASE_URL=" + up.BaseURL(), "MODELGATE_API_KEY=" + modelgatetest.DevToken, "JPINTEL_BILLING_RETRY_BASE=10ms", "JPINTEL_BILLING_SETTLE=100ms"}, env...)...), up
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
	s, up := newBillingServer(t)
	click := func(key string) *testClient { return s.admin.with("Idempotency-Key", key) }
	first := decode[billing.Accepted](t, click("click-1").call("POST", "/v1/admin/customers", signUpBody, 202))
	if first.CustomerID != "cus_a" || !strings.HasPrefix(first.OperationID, "op_") {
		t.Errorf("%+v", first)
	}
	c := billed(t, s, billing.Ready)
	if c.Tier != store.TierPaid || *c.GroupID != up.State().Groups[0].ID || *c.SpendLimit != "100.00" || *c.Currency != "USD" || len(c.Keys) != 1 || c.Keys[0].KeyID != up.State().Keys[0].ID || !c.Keys[0].SecretAvailable {
		t.Errorf("%+v", c)
	}
	customer := s.client("cus_a")
	if got := get[account](customer, "/v1/customer").Status; got == nil || *got != billing.Ready {
		t.Errorf("the customer is told that it is %v", got)
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
	keyID := c.Keys[0].KeyID
	key := click("reveal-1").call("POST", "/v1/admin/model-keys/"+keyID+"/reveal", nil, 200)
	if revealed := decode[billing.Revealed](t, key); revealed.Secret != up.Secrets()[1] || revealed.CustomerID != "cus_a" {
		t.Errorf("%+v", revealed)
	}
	click("reveal-2").refused("POST", "/v1/admin/model-keys/"+keyID+"/reveal", nil, 410, "the secret of "+keyID+" was shown before; rotate makes a new key")
	click("reveal-3").refused("POST", "/v1/admin/model-keys/key_9/reveal", nil, 404, "model key key_9 not found, or its secret never arrived")

	// Limits, freezing, keys.
	const path = "/v1/admin/customers/cus_a"
	click("limit-1").call("POST", path+"/limit", `{"spend_limit":"250","approved_by":"aki"}`, 202)
	eventually(t, func() bool { return *get[billing.Customer](s.admin, path).SpendLimit == "250.00" })
	limit := decode[billing.Accepted](t, click("limit-1").call("POST", path+"/limit", `{"spend_limit":"250","approved_by":"aki"}`, 200))
	if again := s.command("ops", "limit", "cus_a", "250", "--key", "limit-1", "--approved-by", "aki", "--json"); !strings.Contains(again, limit.OperationID) {
		t.Errorf("as a command: %s, want %s", again, limit.OperationID)
	}
	click("limit-2").refused("POST", path+"/limit", `{"spend_limit":"250"}`, 400, "approved_by: required")
	click("limit-2").refused("POST", path+"/limit", `{"spend_limit":"2.5e2","approved_by":"aki"}`, 400, "spend_limit: want an amount like 12 or 0.10: at most 15 digits before the point and 12 after it, and nothing else")
	click("freeze-1").call("POST", path+"/freeze", `{"cause_ref":"dp_1"}`, 202)
	if c := billed(t, s, billing.Frozen); c.Keys[0].Status != "frozen" {
		t.Errorf("%+v", c)
	}
	if got := get[account](customer, "/v1/customer").Status; *got != billing.Frozen {
		t.Errorf("the customer is told that it is %s", *got)
	}
	click("thaw-1").call("POST", path+"/thaw", `{"cause_ref":"dp_1","approved_by":"aki"}`, 202)
	billed(t, s, billing.Ready)
	click("key-1").call("POST", path+"/model-keys", `{"action":"rotate"}`, 202)
	eventually(t, func() bool { return len(get[billing.Customer](s.admin, path).Keys) == 2 })
	click("key-2").refused("POST", path+"/model-keys", `{"action":"create"}`, 409, "purpose: there is a key for default; rotate replaces it")

	// A group that is gone needs no deletion; the customer's own is not deleted.
	click("delete-1").refused("POST", path+"/delete-group", `{"group_id":"`+*c.GroupID+`","approved_by":"aki"}`, 409, "group_id: "+*c.GroupID+" is the group that customer cus_a works with")
	click("delete-1").refused("POST", path+"/delete-group", `{"group_id":"grp_9"}`, 400, "approved_by: required")
	click("delete-1").call("POST", path+"/delete-group", `{"group_id":"grp_9","approved_by":"aki"}`, 202)
	eventually(t, func() bool {
		return len(get[store.Page[billing.Operation]](s.admin, "/v1/admin/operations?customer=cus_a&status=succeeded").Data) == 10
	})
	click("delete-1").call("POST", path+"/delete-group", `{"group_id":"grp_9","approved_by":"aki"}`, 200)

	// All of it is on record.
	page := get[store.Page[billing.Operation]](s.admin, "/v1/admin/operations?customer=cus_a&status=succeeded")
	if len(page.Data) != 10 || page.Data[9].OperationID != first.OperationID {
		t.Errorf("%d operations", len(page.Data))
	}
	record := get[billing.Record](s.admin, "/v1/admin/operations/"+page.Data[8].OperationID)
	if len(record.Attempts) != 1 || record.Request.Path != "/groups" || *record.ParentID != first.OperationID {
		t.Errorf("%+v", record)
	}
	get[billing.Record](s.admin, "/v1/admin/operations/"+first.OperationID)
	s.admin.refused("GET", "/v1/admin/operations?status=done", nil, 400, "status: want pending, succeeded, failed_retryable, failed_final, reconciling or reconciliation_needed")
	s.admin.refused("GET", "/v1/admin/operations/op_none", nil, 404, "operation op_none not found")
	if state := up.State(); state.Requests != 9 || len(state.Idempotency) != 8 {
		t.Errorf("sent: %+v", state.Idempotency)
	}
	billingtest.NoSecrets(t, up.Secrets(), map[string]string{"the log": s.log.String()})
}

// What is stuck is in the queue, and the operator's word leads on: through the
// API, and by a command beside the server.
func TestTheQueueThroughTheAPI(t *testing.T) {
	s, up := newBillingServer(t)
	if err := up.AddFaults(modelgatetest.Rule{Match: modelgatetest.Match{Method: "POST"}, At: modelgatetest.AtBeforeExecute, Do: "status:422 code:model_unknown"}); err != nil {
		t.Fatal(err)
	}
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
	up.ClearFaults()
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
	s, up := newBillingServer(t, "JPINTEL_BILLING_KILL_SWITCH=1")
	s.admin.with("Idempotency-Key", "click-1").call("POST", "/v1/admin/customers", signUpBody, 202)
	s.stop()
	s.env["JPINTEL_BILLING_KILL_SWITCH"], s.env["MODELGATE_BASE_URL"], s.env["MODELGATE_API_KEY"] = "0", "", ""
	s.start()
	if c := get[billing.Customer](s.admin, "/v1/admin/customers/cus_a"); *c.Status != billing.Provisioning || up.State().Requests != 0 {
		t.Errorf("%+v, %d requests", c, up.State().Requests)
	}
	s.stop()
	s.env["MODELGATE_BASE_URL"], s.env["MODELGATE_API_KEY"] = up.BaseURL(), modelgatetest.DevToken
	s.start()
	billed(t, s, billing.Ready)
}
