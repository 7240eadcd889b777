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

// lostGroup sends a group whose answer is lost, done or not, and lets so much
// time pass.
func (s *scene) lostGroup(done bool, age time.Duration) {
	s.t.Helper()
	at := modelgatetest.AtAfterExecute
	if done {
		at = modelgatetest.AtAfterCommit
	}
	s.rules(fault("POST", groupsPath, at, "reset", 1))
	s.signUp("cus_a")
	s.stepOnce()
	time.Sleep(age)
}

// pastWindow is six days and an hour: the key may be forgotten.
const pastWindow = replayWindow + time.Hour

// S34 and S36: past the window nothing is sent again, whatever has become of it.
func TestS34PastTheWindowItIsLookedUp(t *testing.T) {
	for name, done := range map[string]bool{"it had happened": true, "it had not happened": false} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.lostGroup(done, pastWindow)
				s.work(time.Hour)
				want, evidence := FailedFinal, []string{"groups absent ", "audit absent ", "groups absent ", "audit absent "}
				if done {
					want, evidence = Succeeded, []string{"groups succeeded " + s.up.State().Groups[0].ID}
				}
				o := s.want("cus_a", CreateGroup, want)
				if got := s.evidence(o); !slices.Equal(got, evidence) || s.wire(o).WireRequests != 1 {
					t.Errorf("%q, %+v", got, s.wire(o))
				}
				if done {
					s.ready("cus_a", "100.00")
					return
				}
				if deref(o.ErrorCode) != "not_executed" || len(s.up.State().Groups) != 0 {
					t.Errorf("%s, %d groups", deref(o.ErrorCode), len(s.up.State().Groups))
				}
				s.wantStatus("cus_a", NeedsAttention)
				s.resolve(o, resolveNewVersion)
				s.ready("cus_a", "100.00")
			})
		})
	}
}

// S35: the window begins with the first send.
func TestS35WhatWasNeverSentMayBeSent(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		time.Sleep(8 * 24 * time.Hour)
		s.ready("cus_a", "100.00")
		if s.up.State().Requests != 3 {
			t.Errorf("%d requests", s.up.State().Requests)
		}
	})
}

// S37: a clock of ours that is set back does not extend the window: the
// upstream's counts. One that is set forward shortens it.
func TestS37OurClockJumps(t *testing.T) {
	for name, jump := range map[string]time.Duration{"back": -2 * 24 * time.Hour, "forward": 9 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.lostGroup(true, 0)
				if jump < 0 { // it is six days and an hour later, and our clock says four
					time.Sleep(pastWindow + jump)
				} else {
					time.Sleep(jump)
				}
				s.ahead = -jump
				s.ready("cus_a", "100.00")
				if o := s.want("cus_a", CreateGroup, Succeeded); s.wire(o).WireRequests != 1 || o.AttemptCount != 1 {
					t.Errorf("%+v", s.wire(o))
				}
			})
		})
	}
}

// S37: our clock was days ahead when it was first sent, and is right again. The
// deadline that was written down then is worth nothing.
func TestS37OurClockWasAhead(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.lostGroup(true, 0)
		s.exec(`DROP TRIGGER partner_operations_identity`)
		s.exec(`UPDATE partner_operations SET first_sent_at_ms = first_sent_at_ms + $1, replay_deadline_ms = replay_deadline_ms + $1 WHERE action = 'create_group'`, (9 * 24 * time.Hour).Milliseconds())
		time.Sleep(8 * 24 * time.Hour)
		s.ready("cus_a", "100.00")
		if o := s.want("cus_a", CreateGroup, Succeeded); s.wire(o).WireRequests != 1 {
			t.Errorf("%+v", s.wire(o))
		}
	})
}

// S37: a clock that is set back leaves leases that seem to last for days.
func TestS37LeasesAreReclaimable(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		if longestLease != number(leaseTime.Milliseconds()) {
			t.Fatalf("longestLease is %s", longestLease)
		}
		s.exec(`UPDATE partner_operations SET locked_by = 'boot_1/cli', locked_until_ms = $1 WHERE action = 'create_group'`, time.Now().Add(2*24*time.Hour).UnixMilli())
		s.step()
		s.wantStatus("cus_a", Ready)
	})
}

// Two looks that find nothing, a minute apart and when everything has settled:
// then the same bytes go out once more under the same key.
func TestWhatIsAbsentInTheWindowIsSentAgain(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.rules(fault("POST", groupsPath, modelgatetest.AtBeforeAuth, "close", maxSends))
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		o := s.want("cus_a", CreateGroup, Succeeded)
		if got := s.evidence(o); !slices.Equal(got, []string{"groups absent ", "audit absent ", "groups absent ", "audit absent "}) {
			t.Errorf("%q", got)
		}
		record, err := s.Record(context.Background(), RecordRequest{o.OperationID})
		if err != nil {
			t.Fatal(err)
		}
		first, second, sent := record.Evidence[1].At, record.Evidence[3].At, record.Attempts[maxSends-1].StartedAt
		if second.Sub(first) < readsApart || first.Sub(sent) < DefaultSettle {
			t.Errorf("looked %s and %s after the last send", first.Sub(sent), second.Sub(sent))
		}
		if s.wire(o).WireRequests != maxSends+1 || s.wire(o).Executions != 1 {
			t.Errorf("%+v", s.wire(o))
		}
	})
}

// The same key for six days is of no use where the upstream goes on saying no:
// sooner or later that is the answer, or a person has to look.
func TestSendingAgainHasAnEnd(t *testing.T) {
	refused := func(do string) []modelgatetest.Rule {
		return []modelgatetest.Rule{fault("POST", groupsPath, modelgatetest.AtAfterExecute, "reset", 1), fault("POST", groupsPath, modelgatetest.AtBeforeExecute, do, 0)}
	}
	for name, c := range map[string]struct {
		rules []modelgatetest.Rule
		most  int
		want  Status
		code  string
	}{
		"a stored failure":     {[]modelgatetest.Rule{fault("POST", groupsPath, modelgatetest.AtBeforeExecute, "status:500 saved", 1)}, 3, ReconciliationNeeded, "stored_failure"},
		"a refusal after all":  {refused("status:422 code:model_unknown"), 3, FailedFinal, "model_unknown"},
		"a reference of none":  {refused("status:409 code:external_ref_conflict"), mostAbsences + 2, ReconciliationNeeded, "absent_again"},
		"an answer to nothing": {[]modelgatetest.Rule{fault("POST", groupsPath, modelgatetest.AtAfterExecute, "reset", 0)}, mostAbsences * (maxSends + 1), ReconciliationNeeded, "absent_again"},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.rules(c.rules...)
				s.signUp("cus_a")
				s.work(5 * 24 * time.Hour)
				o := s.want("cus_a", CreateGroup, c.want)
				if deref(o.ErrorCode) != c.code || s.wire(o).WireRequests > c.most {
					t.Errorf("%s after %d requests", deref(o.ErrorCode), s.wire(o).WireRequests)
				}
				s.outside(func() error { s.up.ClearFaults(); return nil })
				s.resolve(o, resolveNewVersion)
				s.ready("cus_a", "100.00")
			})
		})
	}
}

// What is gone again is a person's to explain.
func TestAGroupThatWasDeleted(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.lostGroup(true, pastWindow)
		s.stranger("DELETE", "/groups/"+s.up.State().Groups[0].ID, "console", "")
		s.work(time.Hour)
		if o := s.want("cus_a", CreateGroup, ReconciliationNeeded); deref(o.ErrorCode) != string(verdictOnlyAudit) || s.wire(o).WireRequests != 1 {
			t.Errorf("%s, %+v", deref(o.ErrorCode), s.wire(o))
		}
		s.wantStatus("cus_a", NeedsAttention)
	})
}

// T22: a day of looking that comes to nothing is handed to a person. A day in
// which the program was off is none, nor is one in which it has looked twice.
func TestADayOfFailedLooks(t *testing.T) {
	for name, off := range map[string]time.Duration{"running": 0, "off for a day before the first look": 24 * time.Hour, "off for two days after it": 48 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.lostGroup(true, pastWindow)
				s.rules(fault("GET", groupsPath, modelgatetest.AtOnResponse, "malformed_json", 0))
				began := time.Now()
				s.stepOnce() // T17
				if strings.HasSuffix(name, "after it") {
					s.stepOnce()
				}
				time.Sleep(off)
				s.stepOnce()
				if o := s.operation("cus_a", CreateGroup); o.Status != Reconciling {
					t.Fatalf("%s after %d looks", o.Status, len(s.evidence(o)))
				}
				s.work(5 * 24 * time.Hour)
				o := s.want("cus_a", CreateGroup, ReconciliationNeeded)
				if n := len(s.evidence(o)); deref(o.ErrorCode) != "inconclusive" || n < fewestLooks || n > 40 || o.UpdatedAt.Sub(began) < 24*time.Hour || o.UpdatedAt.Sub(began) > off+25*time.Hour {
					t.Errorf("%s after %d looks in %s", deref(o.ErrorCode), n, o.UpdatedAt.Sub(began))
				}
			})
		})
	}
}

// T22 within the window: an upstream that is away for a day is looked for, and
// told of, though the key would still protect a send.
func TestADayWithoutTheUpstream(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.afterTwelve()
		s.rules(fault("", ".", modelgatetest.AtAccept, "reset", 0))
		s.work(48 * time.Hour)
		if o := s.want("cus_a", CreateGroup, ReconciliationNeeded); deref(o.ErrorCode) != "inconclusive" {
			t.Errorf("%s", deref(o.ErrorCode))
		}
		s.outside(func() error { s.up.ClearFaults(); return nil })
		if _, err := s.Reconcile(context.Background(), ReconcileRequest{s.operation("cus_a", CreateGroup).OperationID, "aki", "it is back"}); err != nil {
			t.Fatal(err)
		}
		s.ready("cus_a", "100.00")
	})
}

// After a restore nothing is sent that the upstream may know already.
func TestAfterARestoreTheUpstreamIsAskedFirst(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a") // as the backup has it: not sent
		s.stranger("POST", "/groups", "create-group-for-customer:cus_a:1", `{"name":"cus_a","external_ref":"cus_a:signup:1"}`)
		s.signUp("cus_b") // this one never was
		time.Sleep(8 * 24 * time.Hour)
		if err := s.DB.Write(context.Background(), store.SetBillingRecovered); err != nil {
			t.Fatal(err)
		}
		s.ready("cus_a", "100.00")
		if o := s.want("cus_a", CreateGroup, Succeeded); o.AttemptCount != 0 {
			t.Errorf("%d attempts", o.AttemptCount)
		}
		s.work(time.Hour)
		o := s.want("cus_b", CreateGroup, FailedFinal) // it may have been sent before the backup's eight days, and forgotten
		if deref(o.ErrorCode) != "not_executed" || s.wire(o).WireRequests != 0 {
			t.Errorf("%s, %+v", deref(o.ErrorCode), s.wire(o))
		}
		s.resolve(o, resolveNewVersion)
		s.ready("cus_b", "100.00")
	})
}

// An upstream whose lists have no filter for references: ours are found among
// all, and nobody else's is taken for them.
func TestListsWithoutAFilter(t *testing.T) {
	for name, c := range map[string]struct {
		path  string
		done  bool
		wants Action
	}{
		"a group, done": {groupsPath, true, CreateGroup}, "a group, not done": {groupsPath, false, CreateGroup},
		"a key, done": {keysPath, true, CreateKey}, "a key, not done": {keysPath, false, CreateKey},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{NoRefFilter: true}, func(t *testing.T, s *scene) {
				for i := range 30 { // others are there, before and after ours, with and without a reference
					s.stranger("POST", "/groups", fmt.Sprint("before-", i), fmt.Sprintf(`{"name":"x","external_ref":"cus_%d:signup:1"}`, i))
				}
				s.signUp("cus_b")
				s.ready("cus_b", "100.00")
				at := modelgatetest.AtAfterExecute
				if c.done {
					at = modelgatetest.AtAfterCommit
				}
				s.rules(fault("POST", c.path, at, "reset", 1))
				s.signUp("cus_a")
				for s.stepOnce(); c.wants == CreateKey && s.operation("cus_a", CreateGroup).Status != Succeeded; {
					s.stepOnce()
				}
				s.step()
				time.Sleep(pastWindow)
				s.stranger("POST", "/groups", "after", `{"name":"x","external_ref":"cus_z:signup:1"}`)
				s.work(48 * time.Hour)
				want := FailedFinal
				if c.done {
					want = Succeeded
				}
				o := s.want("cus_a", c.wants, want)
				if s.wire(o).WireRequests != 1 || len(s.evidence(o)) == 0 {
					t.Errorf("%+v, %q", s.wire(o), s.evidence(o))
				}
			})
		})
	}
}

func TestLimitsNeedApproval(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		for _, r := range []LimitRequest{
			{Key: "k", CustomerID: "cus_a", SpendLimit: "1.00"},
			{Key: "k", CustomerID: "cus_a", SpendLimit: "1.0.0", ApprovedBy: "aki"},
			{CustomerID: "cus_a", SpendLimit: "1.00", ApprovedBy: "aki"},
			{Key: strings.Repeat("k", 256), CustomerID: "cus_a", SpendLimit: "1.00", ApprovedBy: "aki"},
		} {
			if _, err := s.SetLimit(context.Background(), r); store.CodeOf(err) != store.CodeInvalid {
				t.Errorf("%+v: %v", r, err)
			}
		}
		r := LimitRequest{Key: "k", CustomerID: "cus_a", SpendLimit: "1.00", ApprovedBy: "aki"}
		if _, err := s.SetLimit(context.Background(), r); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("before there is a group: %v", err)
		}
		s.step()
		first, err := s.SetLimit(context.Background(), r)
		again, err2 := s.SetLimit(context.Background(), r)
		if err != nil || err2 != nil || first.OperationID != again.OperationID || first.HTTPStatus() != 202 {
			t.Errorf("%+v %+v (%v, %v)", first, again, err, err2)
		}
		r.SpendLimit = "2.00"
		if _, err := s.SetLimit(context.Background(), r); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("the same key for another limit: %v", err)
		}
		s.ready("cus_a", "1.00")
		if c, err := s.Customer(context.Background(), CustomerRequest{"cus_a"}); err != nil || *c.SpendLimit != "1.00" {
			t.Errorf("%+v (%v)", c, err)
		}
		if got := s.strings(`SELECT policy_version || ' ' || spend_limit || ' ' || approved_by FROM limit_policies ORDER BY policy_version`); !slices.Equal(got, []string{"1 100.00 sign-up", "2 1.00 aki"}) {
			t.Errorf("%q", got)
		}
	})
}
