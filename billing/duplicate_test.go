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

const groupPath = `^/groups/[^/]+$`

// duplicated is a sign-up in the queue: somebody has made a second group with its
// reference. It returns the two, ours first.
func (s *scene) duplicated() (ours, other string) {
	s.t.Helper()
	s.afterTwelve()
	s.stranger("POST", "/groups", "console", `{"name":"by hand","external_ref":"cus_a:signup:1"}`)
	s.work(48 * time.Hour)
	s.want("cus_a", CreateGroup, ReconciliationNeeded)
	groups := s.up.State().Groups
	if len(groups) != 2 {
		s.t.Fatalf("%+v", groups)
	}
	return groups[0].ID, groups[1].ID
}

// remove is the operator's word about a duplicate.
func (s *scene) remove(group string) error {
	s.t.Helper()
	calls++
	_, err := s.DeleteGroup(context.Background(), DeleteGroupRequest{Key: fmt.Sprint("call-", calls), CustomerID: "cus_a", GroupID: group, ApprovedBy: "aki"})
	return err
}

// deletions are the groups that were deleted there, as the audit log has them.
func (s *scene) deletions() (ids []string) {
	for _, e := range s.up.State().Audit {
		if e.Action == "group.delete" {
			ids = append(ids, e.Target.ID)
		}
	}
	return ids
}

func (s *scene) wantRefused(err error, code store.Code, words string) {
	s.t.Helper()
	if store.CodeOf(err) != code || !strings.Contains(fmt.Sprint(err), words) {
		s.t.Errorf("%v, want %s: %s", err, code, words)
	}
}

// S74: the duplicate is deleted, once, whatever becomes of the answer; then the
// sign-up goes on with the group that is left.
func TestS74ADuplicateIsDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		rules []modelgatetest.Rule
		sends int
		last  string // evidence
	}{
		"at once": {nil, 1, "groups duplicate_upstream "},
		"the answer is lost": {[]modelgatetest.Rule{
			fault("DELETE", groupPath, modelgatetest.AtAfterCommit, "reset", 1)}, 2, "groups duplicate_upstream "},
		"every answer is lost": {[]modelgatetest.Rule{
			fault("DELETE", groupPath, modelgatetest.AtBeforeAuth, "reset", maxSends-1), fault("DELETE", groupPath, modelgatetest.AtAfterCommit, "reset", 1)}, maxSends, "groups succeeded "},
		"nothing comes in at first": {[]modelgatetest.Rule{
			fault("DELETE", groupPath, modelgatetest.AtBeforeAuth, "reset", maxSends)}, maxSends + 1, "audit absent"},
		"the group cannot be read": {[]modelgatetest.Rule{
			fault("GET", groupPath, modelgatetest.AtBeforeExecute, "status:503", 10)}, 1, "groups duplicate_upstream "},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				ours, other := s.duplicated()
				s.rules(c.rules...)
				if err := s.remove(other); err != nil {
					t.Fatal(err)
				}
				s.wantRefused(s.remove(other), store.CodeConflict, "group_id: "+other+" is being deleted")
				made := s.operation("cus_a", CreateGroup)
				resolve := ResolveRequest{OperationID: made.OperationID, Who: "op", Note: "seen", Outcome: resolveSucceeded, TargetID: ours}
				_, err := s.Resolve(context.Background(), resolve)
				s.wantRefused(err, store.CodeConflict, "has not ended: it comes first")
				_, err = s.Reconcile(context.Background(), ReconcileRequest{OperationID: made.OperationID, Who: "op", Note: "n"})
				s.wantRefused(err, store.CodeConflict, "has not ended: it comes first")
				s.work(48 * time.Hour)
				o := s.want("cus_a", DeleteGroup, Succeeded)
				if seen := s.evidence(o); deref(o.TargetID) != other || deref(o.ApprovedBy) != "aki" || s.wire(o).Executions != 1 || len(s.attempts(o)) != c.sends || !strings.HasPrefix(seen[len(seen)-1], c.last) || len(seen) > 6 {
					t.Errorf("target %s, %+v, %d sends, %q", deref(o.TargetID), s.wire(o), len(s.attempts(o)), seen)
				}
				if got := s.deletions(); !slices.Equal(got, []string{other}) {
					t.Errorf("deleted: %q", got)
				}
				resolve.TargetID = other
				_, err = s.Resolve(context.Background(), resolve)
				s.wantRefused(err, store.CodeConflict, "target_id: "+o.OperationID+" has deleted the group")
				resolve.TargetID = ours
				if _, err := s.Resolve(context.Background(), resolve); err != nil {
					t.Fatal(err)
				}
				s.ready("cus_a", "100.00")
				s.wantRefused(s.remove(ours), store.CodeConflict, "group_id: "+ours+" is the group that customer cus_a works with")
			})
		})
	}
}

// S74, and nobody resolves it by hand: a look finds the one that is left.
func TestS74TheGroupThatIsLeftIsFound(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		ours, other := s.duplicated()
		if err := s.remove(other); err != nil {
			t.Fatal(err)
		}
		s.work(48 * time.Hour)
		if _, err := s.Reconcile(context.Background(), ReconcileRequest{OperationID: s.operation("cus_a", CreateGroup).OperationID, Who: "op", Note: "one is left"}); err != nil {
			t.Fatal(err)
		}
		s.ready("cus_a", "100.00")
		if s.group("cus_a") != ours {
			t.Errorf("the group is %s, want %s", s.group("cus_a"), ours)
		}
	})
}

// What is not a duplicate of this customer's is not deleted, whoever approves it.
func TestAGroupThatIsNoDuplicate(t *testing.T) {
	for name, body := range map[string]string{
		"of another customer":              `{"name":"by hand","external_ref":"cus_b:signup:1"}`,
		"of a sign-up that was never made": `{"name":"by hand","external_ref":"cus_a:signup:2"}`,
		"without a reference":              `{"name":"by hand"}`,
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.signUp("cus_a")
				s.wantRefused(s.remove("grp_any"), store.CodeConflict, "group_id: the customer's create_group")
				s.ready("cus_a", "100.00")
				s.stranger("POST", "/groups", "console", body)
				groups := s.up.State().Groups
				if err := s.remove(groups[1].ID); err != nil {
					t.Fatal(err)
				}
				s.work(48 * time.Hour)
				o := s.want("cus_a", DeleteGroup, ReconciliationNeeded)
				if deref(o.ErrorCode) != string(verdictForeign) || s.wire(o).WireRequests != 0 || len(s.deletions()) != 0 || len(s.attempts(o)) != 0 {
					t.Errorf("%s, %+v, deleted %q", deref(o.ErrorCode), s.wire(o), s.deletions())
				}
				s.resolve(o, resolveFailed)
				s.wantStatus("cus_a", Ready)
			})
		})
	}
}

// A deletion that has nothing to do has succeeded; one that the upstream refuses
// has failed, with its reason.
func TestADeletionThatIsNotNeededOrRefused(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		if err := s.remove("grp_nowhere"); err != nil {
			t.Fatal(err)
		}
		s.work(time.Hour)
		if o := s.want("cus_a", DeleteGroup, Succeeded); s.wire(o).WireRequests != 0 {
			t.Errorf("%+v", s.wire(o))
		}

		s.stranger("POST", "/groups", "console-1", `{"name":"by hand","external_ref":"cus_a:signup:1"}`)
		other := s.up.State().Groups[1].ID
		s.answering = func(s *scene) { // between the look and the deletion
			s.answering = nil
			s.stranger("DELETE", "/groups/"+other, "console-2", "")
		}
		if err := s.remove(other); err != nil {
			t.Fatal(err)
		}
		s.work(48 * time.Hour)
		s.want("cus_a", DeleteGroup, Succeeded)

		s.stranger("POST", "/groups", "console-3", `{"name":"by hand","external_ref":"cus_a:signup:1"}`)
		rich := s.up.State().Groups[2].ID
		s.stranger("POST", "/groups/"+rich+"/top-ups", "console-4", `{"amount":"5.00","currency":"USD","external_ref":"by hand"}`)
		s.strange[rich] = []string{"5.00"}
		if err := s.remove(rich); err != nil {
			t.Fatal(err)
		}
		s.work(48 * time.Hour)
		o := s.want("cus_a", DeleteGroup, FailedFinal)
		if deref(o.ErrorCode) != "group_has_balance" || deref(o.Key) != "delete-group:cus_a:"+rich+":1" {
			t.Errorf("%s under %s", deref(o.ErrorCode), deref(o.Key))
		}
		s.stranger("POST", "/groups/"+rich+"/adjustments", "console-5", `{"amount":"-5.00","currency":"USD","reason":"correction","external_ref":"by hand too"}`)
		s.strange[rich] = append(s.strange[rich], "-5.00")
		s.resolve(o, resolveNewVersion)
		s.work(48 * time.Hour)
		if o := s.want("cus_a", DeleteGroup, Succeeded); deref(o.Key) != "delete-group:cus_a:"+rich+":2" {
			t.Errorf("under %s", deref(o.Key))
		}
	})
}

// What is wrong with the call itself is named.
func TestDeletionsThatAreRefused(t *testing.T) {
	s := stillScene(t)
	ctx := context.Background()
	for field, r := range map[string]DeleteGroupRequest{
		"approved_by: required":     {Key: "k", CustomerID: "cus_a", GroupID: "grp_1", ApprovedBy: " "},
		"group_id: want an id":      {Key: "k", CustomerID: "cus_a", GroupID: "grp/1", ApprovedBy: "aki"},
		"Idempotency-Key: required": {CustomerID: "cus_a", GroupID: "grp_1", ApprovedBy: "aki"},
	} {
		_, err := s.DeleteGroup(ctx, r)
		s.wantRefused(err, store.CodeInvalid, field)
	}
	s.wantRefused(s.remove("grp_1"), store.CodeNotFound, "customer cus_a not found")
	if err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
		_, _, err := store.CreateCustomer(tx, store.Customer{CustomerID: "cus_a", Tier: store.TierFree})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s.wantRefused(s.remove("grp_1"), store.CodeConflict, "customer cus_a was never signed up")
}
