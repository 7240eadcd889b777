package billing

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/billing/modelgatetest"
	"jpintel/store"
)

// refused signs a customer up whose group the upstream refuses.
func (s *scene) refused() *Operation {
	s.t.Helper()
	s.configure(func(o *modelgatetest.Options) { o.Models = []string{"m2"} })
	s.signUp("cus_a")
	s.step()
	return s.want("cus_a", CreateGroup, FailedFinal)
}

// S23: what was refused is done by a new operation, with a key and bytes of its
// own, when somebody says so.
func TestS23ANewVersionTakesItsPlace(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		o := s.refused()
		parent := s.want("cus_a", ProvisionCustomer, ReconciliationNeeded)
		if *parent.Phase != PhaseBlocked || deref(parent.ErrorCode) != "model_unknown" || s.wire(o).WireRequests != 1 {
			t.Errorf("%s %s, %+v", *parent.Phase, deref(parent.ErrorCode), s.wire(o))
		}
		s.Models = []string{"m2"} // what was wrong
		renew := ResolveRequest{OperationID: o.OperationID, Who: "aki", Note: "the model has another name", Outcome: resolveNewVersion}
		record, err := s.Resolve(context.Background(), renew)
		if err != nil || len(record.Notes) != 1 || record.Notes[0].Who != "aki" {
			t.Fatalf("%+v (%v)", record, err)
		}
		s.ready("cus_a", "100.00")
		renewed := s.operation("cus_a", CreateGroup)
		if renewed.IntentVersion != 2 || deref(renewed.ApprovedBy) != "aki" || deref(renewed.Supersedes) != o.OperationID || *renewed.Key != "create-group-for-customer:cus_a:2" ||
			*renewed.Fingerprint == *o.Fingerprint || !slices.Equal(s.up.State().Groups[0].Models, []string{"m2"}) {
			t.Errorf("%+v", renewed)
		}
		if _, err := s.Resolve(context.Background(), renew); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("a second new version: %v", err)
		}
	})
}

func TestGivingUpAndSigningUpAgain(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.refused()
		s.resolve(s.operation("cus_a", ProvisionCustomer), resolveFailed)
		s.Models = []string{"m2"}
		if _, err := s.SignUp(context.Background(), SignUp{Customer: store.Customer{CustomerID: "cus_a"}, Version: 2, SpendLimit: "50", Key: "again"}); err != nil {
			t.Fatal(err)
		}
		s.ready("cus_a", "50.00")
	})
}

// Two customers never share an object, whatever the upstream answers.
func TestAnObjectOfAnotherOperation(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		s.signUp("cus_b")
		o, group := s.operation("cus_b", CreateGroup), s.group("cus_a")
		s.exec(`UPDATE partner_operations SET lock_token = 1 WHERE operation_id = $1`, o.OperationID)
		if err := s.DB.Write(context.Background(), func(tx *store.Tx) error { // an answer that was kept, with another's group
			_, err := tx.Exec(`INSERT INTO late_results (operation_id, lock_token, at_ms, http_status, sealed_body) VALUES ($1, 1, 0, 201, $2)`, o.OperationID,
				tx.Keys().Seal(fmt.Appendf(nil, `{"id":%q,"external_ref":"cus_b:signup:1","name":"cus_b","status":"active","spend_limit":"0.00","period":"month"}`, group), lateContext(o.OperationID, 1)))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		s.step()
		o = s.want("cus_b", CreateGroup, ReconciliationNeeded)
		if deref(o.ErrorCode) != "target_taken" || s.mutations() != 3 {
			t.Errorf("%s, %d requests", deref(o.ErrorCode), s.mutations())
		}
		if _, err := s.Resolve(context.Background(), ResolveRequest{OperationID: o.OperationID, Who: "aki", Note: "n", Outcome: resolveSucceeded, TargetID: group}); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("%v", err)
		}
		s.wantStatus("cus_a", Ready)
	})
}

// A person's word that it has happened is as good as a finding.
func TestResolvedAsSucceeded(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.rules(fault("POST", groupsPath, modelgatetest.AtBeforeAuth, "mismatch", 1))
		s.signUp("cus_a")
		s.step()
		o := s.want("cus_a", CreateGroup, ReconciliationNeeded)
		for _, r := range []ResolveRequest{
			{Who: "aki", Note: "n", Outcome: "succeeded"}, {Who: "aki", Note: "n", Outcome: "succeeded", TargetID: "../x"},
			{Who: "aki", Note: "n", Outcome: "failed", TargetID: "grp_7"}, {Who: "aki", Note: "n", Outcome: "perhaps"},
			{Who: "", Note: "n", Outcome: "failed"}, {Who: "aki", Note: " ", Outcome: "failed"}, {Who: "system", Note: "n", Outcome: "failed"}, {Who: "a\x00", Note: "n", Outcome: "failed"},
		} {
			r.OperationID = o.OperationID
			if _, err := s.Resolve(context.Background(), r); store.CodeOf(err) != store.CodeInvalid {
				t.Errorf("%+v: %v", r, err)
			}
		}
		s.stranger("POST", "/groups", "console", `{"name":"by hand","external_ref":"cus_a:signup:1"}`)
		there := s.up.State().Groups[0].ID
		record, err := s.Resolve(context.Background(), ResolveRequest{OperationID: o.OperationID, Who: "aki", Note: "made in the console", Outcome: "succeeded", TargetID: there})
		if err != nil || record.Status != Succeeded || *record.TargetID != there {
			t.Fatalf("%+v (%v)", record, err)
		}
		s.ready("cus_a", "100.00")
		if _, err := s.Resolve(context.Background(), ResolveRequest{OperationID: o.OperationID, Who: "aki", Note: "n", Outcome: "failed"}); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("what succeeded can be resolved: %v", err)
		}
	})
}

func TestRetryAndReconcileByHand(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.rules(fault("POST", groupsPath, modelgatetest.AtBeforeAuth, "status:429 retry_after:3600", 1))
		s.signUp("cus_a")
		s.step()
		o := s.want("cus_a", CreateGroup, FailedRetryable)
		if _, err := s.Retry(context.Background(), RetryRequest{o.OperationID, "aki", "they say that it is over"}); err != nil {
			t.Fatal(err)
		}
		s.step()
		s.wantStatus("cus_a", Ready)
		if _, err := s.Retry(context.Background(), RetryRequest{o.OperationID, "aki", "again"}); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("what has ended can be retried: %v", err)
		}
		if _, err := s.Reconcile(context.Background(), ReconcileRequest{"op_none", "aki", "x"}); store.CodeOf(err) != store.CodeNotFound {
			t.Errorf("an unknown operation: %v", err)
		}
		// By a command, beside a server: the claim decides.
		s.rules(fault("PATCH", limitsPath, modelgatetest.AtAfterCommit, "reset", 1))
		id := s.limit("cus_a", "250.00")
		s.stepOnce()
		time.Sleep(time.Minute)
		if _, err := s.Reconcile(context.Background(), ReconcileRequest{id, "aki", "what of it?"}); err != nil {
			t.Fatal(err)
		}
		if err := s.engine.ReconcileNow(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		record, err := s.Record(context.Background(), RecordRequest{id})
		if err != nil || record.Status != Succeeded || len(record.Attempts) != 2 || record.Attempts[1].Kind != kindReconcile || !record.Attempts[1].Replayed {
			t.Errorf("%+v (%v)", record, err)
		}
	})
}

func TestListsOfOperations(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.step()
		s.signUp("cus_b")
		page, err := s.Operations(context.Background(), OperationsRequest{CustomerID: "cus_a"})
		var got []string
		for _, o := range page.Data {
			got = append(got, string(o.Action)+" "+string(o.Status))
		}
		if want := "set_initial_limit succeeded, create_key succeeded, create_group succeeded, provision_customer succeeded"; err != nil || strings.Join(got, ", ") != want {
			t.Errorf("%q (%v)", got, err)
		}
		record, err := s.Record(context.Background(), RecordRequest{page.Data[3].OperationID})
		if err != nil || len(record.Children) != 3 || record.Request != nil {
			t.Errorf("%+v (%v)", record, err)
		}
		if page, err := s.Operations(context.Background(), OperationsRequest{Status: Pending}); err != nil || len(page.Data) != 2 || page.Data[0].CustomerID != "cus_b" {
			t.Errorf("%+v (%v)", page, err)
		}
		if _, err := s.Operations(context.Background(), OperationsRequest{Status: "done"}); store.CodeOf(err) != store.CodeInvalid {
			t.Errorf("%v", err)
		}
	})
}
