package billing

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/store"
)

// refused signs a customer up whose group the upstream refuses.
func refused(b *bench) *Operation {
	b.t.Helper()
	b.partner.before = func(_ int, w http.ResponseWriter, _ *http.Request) bool { return status(w, 422, "model_unknown") }
	b.signUp("cus_a")
	b.step()
	b.partner.before = nil
	return b.want("cus_a", CreateGroup, FailedFinal)
}

// S23: what was refused is done by a new operation, with a key and bytes of its
// own, when somebody says so.
func TestS23ANewVersionTakesItsPlace(t *testing.T) {
	b := newBench(t)
	o := refused(b)
	parent := b.want("cus_a", ProvisionCustomer, ReconciliationNeeded)
	if *parent.Phase != PhaseBlocked || deref(parent.ErrorCode) != "model_unknown" {
		t.Errorf("%s %s", *parent.Phase, deref(parent.ErrorCode))
	}
	b.Models = []string{"m2"} // what was wrong
	b.engine.Rules.Models = b.Models
	record, err := b.Resolve(context.Background(), ResolveRequest{OperationID: o.OperationID, Who: "aki", Note: "the model has another name", Outcome: "new_version"})
	if err != nil || len(record.Notes) != 1 || record.Notes[0].Who != "aki" {
		t.Fatalf("%+v (%v)", record, err)
	}
	b.step()
	b.wantStatus("cus_a", Ready)
	renewed := b.operation("cus_a", CreateGroup)
	if renewed.IntentVersion != 2 || deref(renewed.ApprovedBy) != "aki" || deref(renewed.Supersedes) != o.OperationID || *renewed.Key != "create-group-for-customer:cus_a:2" ||
		*renewed.Fingerprint == *o.Fingerprint || !strings.Contains(b.partner.sent[1].body, "m2") {
		t.Errorf("%+v", renewed)
	}
	if _, err := b.Resolve(context.Background(), ResolveRequest{OperationID: o.OperationID, Who: "aki", Note: "again", Outcome: "new_version"}); store.CodeOf(err) != store.CodeConflict {
		t.Errorf("a second new version: %v", err)
	}
	b.once()
}

func TestGivingUpAndSigningUpAgain(t *testing.T) {
	b := newBench(t)
	refused(b)
	parent := b.operation("cus_a", ProvisionCustomer)
	if _, err := b.Resolve(context.Background(), ResolveRequest{OperationID: parent.OperationID, Who: "aki", Note: "cancelled", Outcome: "failed"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.SignUp(context.Background(), SignUp{Customer: store.Customer{CustomerID: "cus_a"}, Version: 2, SpendLimit: "50", Key: "again"}); err != nil {
		t.Fatal(err)
	}
	b.step()
	b.wantStatus("cus_a", Ready)
}

// Two customers never share an object, whatever the upstream answers.
func TestAnObjectOfAnotherOperation(t *testing.T) {
	b := newBench(t)
	b.signUp("cus_a")
	b.step()
	b.partner.after = func(n int, w http.ResponseWriter, _ *http.Request) bool {
		if n == 4 {
			_, _ = w.Write([]byte(`{"id":"grp_1","external_ref":"cus_b:signup:1","name":"cus_b","status":"active","spend_limit":"0.00","period":"month"}`))
		}
		return n == 4
	}
	b.signUp("cus_b")
	b.step()
	o := b.want("cus_b", CreateGroup, ReconciliationNeeded)
	if deref(o.ErrorCode) != "target_taken" {
		t.Errorf("%s", deref(o.ErrorCode))
	}
	if _, err := b.Resolve(context.Background(), ResolveRequest{OperationID: o.OperationID, Who: "aki", Note: "n", Outcome: "succeeded", TargetID: "grp_1"}); store.CodeOf(err) != store.CodeConflict {
		t.Errorf("%v", err)
	}
	b.wantStatus("cus_a", Ready)
}

// A person's word that it has happened is as good as a finding.
func TestResolvedAsSucceeded(t *testing.T) {
	b := newBench(t)
	b.partner.before = func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		return status(w, 409, "idempotency_key_reused")
	}
	b.signUp("cus_a")
	b.step()
	b.partner.before = nil
	o := b.want("cus_a", CreateGroup, ReconciliationNeeded)
	for _, r := range []ResolveRequest{
		{Who: "aki", Note: "n", Outcome: "succeeded"}, {Who: "aki", Note: "n", Outcome: "succeeded", TargetID: "../x"},
		{Who: "aki", Note: "n", Outcome: "failed", TargetID: "grp_7"}, {Who: "aki", Note: "n", Outcome: "perhaps"},
		{Who: "", Note: "n", Outcome: "failed"}, {Who: "aki", Note: " ", Outcome: "failed"}, {Who: "system", Note: "n", Outcome: "failed"}, {Who: "a\x00", Note: "n", Outcome: "failed"},
	} {
		r.OperationID = o.OperationID
		if _, err := b.Resolve(context.Background(), r); store.CodeOf(err) != store.CodeInvalid {
			t.Errorf("%+v: %v", r, err)
		}
	}
	record, err := b.Resolve(context.Background(), ResolveRequest{OperationID: o.OperationID, Who: "aki", Note: "seen in the console", Outcome: "succeeded", TargetID: "grp_7"})
	if err != nil || record.Status != Succeeded || *record.TargetID != "grp_7" {
		t.Fatalf("%+v (%v)", record, err)
	}
	b.step()
	b.wantStatus("cus_a", Ready)
	if b.partner.sent[1].path != "/groups/grp_7/keys" {
		t.Errorf("%+v", b.partner.sent)
	}
	if _, err := b.Resolve(context.Background(), ResolveRequest{OperationID: o.OperationID, Who: "aki", Note: "n", Outcome: "failed"}); store.CodeOf(err) != store.CodeConflict {
		t.Errorf("what succeeded can be resolved: %v", err)
	}
}

func TestRetryAndReconcileByHand(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.partner.before = on(1, func(w http.ResponseWriter) bool { w.Header().Set("Retry-After", "3600"); return status(w, 429, "rate") })
		b.signUp("cus_a")
		b.step()
		o := b.want("cus_a", CreateGroup, FailedRetryable)
		if _, err := b.Retry(context.Background(), RetryRequest{o.OperationID, "aki", "they say that it is over"}); err != nil {
			t.Fatal(err)
		}
		b.step()
		b.wantStatus("cus_a", Ready)
		if _, err := b.Retry(context.Background(), RetryRequest{o.OperationID, "aki", "again"}); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("what has ended can be retried: %v", err)
		}
		if _, err := b.Reconcile(context.Background(), ReconcileRequest{"op_none", "aki", "x"}); store.CodeOf(err) != store.CodeNotFound {
			t.Errorf("an unknown operation: %v", err)
		}
		// By a command, beside a server: the claim decides.
		b.partner.after = on(5, func(http.ResponseWriter) bool { return cut() })
		id := b.limit("cus_a", "250.00")
		b.stepOnce()
		time.Sleep(time.Minute)
		if _, err := b.Reconcile(context.Background(), ReconcileRequest{id, "aki", "what of it?"}); err != nil {
			t.Fatal(err)
		}
		if err := b.engine.ReconcileNow(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		record, err := b.Record(context.Background(), RecordRequest{id})
		if err != nil || record.Status != Succeeded || len(record.Attempts) != 2 || record.Attempts[1].Kind != "reconcile" || !record.Attempts[1].Replayed {
			t.Errorf("%+v (%v)", record, err)
		}
	})
}

func TestListsOfOperations(t *testing.T) {
	b := newBench(t)
	b.signUp("cus_a")
	b.step()
	b.signUp("cus_b")
	page, err := b.Operations(context.Background(), OperationsRequest{CustomerID: "cus_a"})
	var got []string
	for _, o := range page.Data {
		got = append(got, string(o.Action)+" "+string(o.Status))
	}
	if err != nil || !slices.Equal(got, []string{"set_initial_limit succeeded", "create_key succeeded", "create_group succeeded", "provision_customer succeeded"}) {
		t.Errorf("%q (%v)", got, err)
	}
	if page, err := b.Operations(context.Background(), OperationsRequest{Status: Pending}); err != nil || len(page.Data) != 2 || page.Data[0].CustomerID != "cus_b" {
		t.Errorf("%+v (%v)", page, err)
	}
	if _, err := b.Operations(context.Background(), OperationsRequest{Status: "done"}); store.CodeOf(err) != store.CodeInvalid {
		t.Errorf("%v", err)
	}
	record, err := b.Record(context.Background(), RecordRequest{page.Data[3].OperationID})
	if err != nil || len(record.Children) != 3 || record.Request != nil {
		t.Errorf("%+v (%v)", record, err)
	}
}
