package billing

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/billing/modelgatetest"
)

// The scenarios of this file run against the upstream's stand-in, over a real
// socket, and end with the invariants: see scenario.

// What is lost, or comes back broken, at each of the three calls of a sign-up:
// the same key and the same bytes again, and one of each.
func TestScenariosOfASignUp(t *testing.T) {
	for name, c := range map[string]struct {
		at                 modelgatetest.At
		do                 string
		times              int
		sent, lost, replay int // of the call that was hit, as the upstream has seen it
		unknown            int
	}{
		"S04 executed, rolled back, reset": {modelgatetest.AtAfterExecute, "reset", 1, 2, 1, 0, 1},
		"S05 committed, reset":             {modelgatetest.AtAfterCommit, "reset", 1, 2, 0, 1, 1},
		"S13 500 not saved, then 201":      {modelgatetest.AtBeforeExecute, "status:500", 1, 2, 0, 0, 1},
		"S15 502 of a load balancer":       {modelgatetest.AtBeforeAuth, "status:502 html", 1, 2, 0, 0, 1},
		"S15 the same, when it was done":   {modelgatetest.AtAfterCommit, "status:502 html", 1, 2, 0, 1, 1},
		"S16 503 for seven seconds":        {modelgatetest.AtBeforeAuth, "status:503 retry_after:7", 1, 2, 0, 0, 1},
		"S20 409 in progress, three times": {modelgatetest.AtBeforeAuth, "in_progress_for:0s", 3, 4, 0, 0, 0},
		"S28 truncated":                    {modelgatetest.AtOnResponse, "truncate:20", 1, 2, 0, 1, 1},
		"S28 trailing garbage":             {modelgatetest.AtOnResponse, "trailing_garbage", 1, 2, 0, 1, 1},
		"S28 not JSON":                     {modelgatetest.AtOnResponse, "malformed_json", 1, 2, 0, 1, 1},
		"S31 100 MB":                       {modelgatetest.AtOnResponse, "huge_body", 1, 2, 0, 1, 1},
	} {
		for action, path := range map[Action]string{CreateGroup: groupsPath, CreateKey: keysPath, SetInitialLimit: limitsPath} {
			if race && action != CreateKey { // one of three is enough to find races
				continue
			}
			t.Run(name+"/"+string(action), func(t *testing.T) {
				scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
					s.rules(fault("", path, c.at, c.do, c.times))
					s.signUp("cus_a")
					s.work(time.Hour)
					o := s.want("cus_a", action, Succeeded)
					got := s.wire(o)
					if got.WireRequests != c.sent || got.RolledBack != c.lost || got.Replays != c.replay || len(got.Fingerprints) != 1 || o.UnknownCount != c.unknown {
						t.Errorf("%+v, unknown %d", got, o.UnknownCount)
					}
					if action == CreateKey && c.replay > 0 { // S70 goes on from here
						s.wantStatus("cus_a", NeedsAttention)
						return
					}
					s.ready("cus_a", "100.00")
				})
			})
		}
	}
}

// S16: a wait that the upstream asks for is kept, by the same operation.
func TestS16TheUpstreamSaysWhen(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.rules(fault("POST", groupsPath, modelgatetest.AtBeforeAuth, "status:503 retry_after:7", 1))
		s.signUp("cus_a")
		before := s.operation("cus_a", CreateGroup)
		s.ready("cus_a", "100.00")
		attempts := s.attempts(s.operation("cus_a", CreateGroup))
		if len(attempts) != 2 || attempts[1].StartedAt.Sub(attempts[0].StartedAt) < 7*time.Second || before.OperationID != s.operation("cus_a", CreateGroup).OperationID {
			t.Errorf("%+v", attempts)
		}
	})
}

// S20 and S21 in every dialect: a key that is running is waited for, one that
// stands for another request stops the operation for good.
func TestS20S21Dialects(t *testing.T) {
	for _, profile := range []modelgatetest.Profile{modelgatetest.ProfileDefault, modelgatetest.ProfileStripe, modelgatetest.ProfileIETF, modelgatetest.ProfileStrict} {
		t.Run("S20 "+string(profile), func(t *testing.T) {
			scenario(t, modelgatetest.Options{Profile: profile}, func(t *testing.T, s *scene) {
				s.rules(fault("POST", groupsPath, modelgatetest.AtBeforeAuth, "in_progress_for:0s", 3))
				s.signUp("cus_a")
				s.ready("cus_a", "100.00")
				if o := s.operation("cus_a", CreateGroup); o.UnknownCount != 0 || s.wire(o).RefusedRunning != 3 || s.wire(o).Executions != 1 {
					t.Errorf("unknown %d, %+v", o.UnknownCount, s.wire(o))
				}
			})
		})
		t.Run("S21 "+string(profile), func(t *testing.T) {
			scenario(t, modelgatetest.Options{Profile: profile}, func(t *testing.T, s *scene) {
				s.rules(fault("POST", groupsPath, modelgatetest.AtBeforeAuth, "mismatch", 0))
				s.signUp("cus_a")
				s.work(48 * time.Hour)
				o := s.want("cus_a", CreateGroup, ReconciliationNeeded)
				if s.wantStatus("cus_a", NeedsAttention); s.wire(o).WireRequests != 1 || len(s.up.State().Groups) != 0 {
					t.Errorf("%+v", s.wire(o))
				}
			})
		})
	}
}

// S22: a conflict that does not say which is tried again three times.
func TestS22AConflictWithoutACode(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.rules(fault("POST", groupsPath, modelgatetest.AtBeforeAuth, "status:409 empty", 0))
		s.signUp("cus_a")
		s.work(48 * time.Hour)
		if o := s.want("cus_a", CreateGroup, ReconciliationNeeded); s.wire(o).WireRequests != 1+maxUnclear {
			t.Errorf("%+v", s.wire(o))
		}
	})
}

// S23: what is refused is not tried again; corrected, it is another operation.
func TestS23ARefusal(t *testing.T) {
	scenario(t, modelgatetest.Options{Models: []string{"m2"}}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.work(48 * time.Hour)
		first := s.want("cus_a", CreateGroup, FailedFinal)
		if deref(first.ErrorCode) != "model_unknown" || s.wire(first).WireRequests != 1 {
			t.Errorf("%s, %+v", deref(first.ErrorCode), s.wire(first))
		}
		s.Models = []string{"m2"}
		s.resolve(first, resolveNewVersion)
		s.ready("cus_a", "100.00")
		if second := s.operation("cus_a", CreateGroup); second.IntentVersion != 2 || *second.Fingerprint == *first.Fingerprint || deref(second.Supersedes) != first.OperationID {
			t.Errorf("%+v", second)
		}
	})
}

// S25: our key is not accepted any more: everything waits, no attempt is burnt,
// and with the new key it goes on.
func TestS25ARotatedKey(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		const rotated = "mgp_rotated_0123456789"
		s.configure(func(o *modelgatetest.Options) { o.Token = rotated })
		s.signUp("cus_a")
		s.signUp("cus_b")
		s.work(time.Hour)
		s.probe()
		s.work(time.Hour)
		if o := s.want("cus_a", CreateGroup, FailedRetryable); deref(o.Hold) != holdAuth || o.AttemptCount != 0 {
			t.Errorf("hold %s, %d attempts", deref(o.Hold), o.AttemptCount)
		}
		s.want("cus_b", CreateGroup, Pending)
		s.engine.Client = s.client(rotated)
		s.probe()
		s.ready("cus_a", "100.00")
		s.ready("cus_b", "100.00")
	})
}

// S26: an empty wallet holds what it cannot pay, until it is funded.
func TestS26AnEmptyWallet(t *testing.T) {
	scenario(t, modelgatetest.Options{WalletBalance: "99.99"}, func(t *testing.T, s *scene) {
		s.rules(fault("PATCH", limitsPath, modelgatetest.AtBeforeExecute, "status:402", 1))
		s.signUp("cus_a")
		s.work(time.Hour)
		s.probe()
		s.work(time.Hour)
		if o := s.want("cus_a", SetInitialLimit, FailedRetryable); deref(o.Hold) != holdWallet || s.wire(o).WireRequests != 1 {
			t.Errorf("hold %s, %+v", deref(o.Hold), s.wire(o))
		}
		s.outside(func() error { s.up.Fund("100.00"); return nil })
		s.probe()
		s.ready("cus_a", "100.00")
		if o := s.operation("cus_a", SetInitialLimit); s.wire(o).Executions != 1 {
			t.Errorf("%+v", s.wire(o))
		}
	})
}

// S26: each look at the wallet is on the record of what waits for it, as long as
// it says something new: not once a minute, for days.
func TestS26LooksAtTheWallet(t *testing.T) {
	scenario(t, modelgatetest.Options{WalletBalance: "99.99"}, func(t *testing.T, s *scene) {
		s.rules(fault("PATCH", limitsPath, modelgatetest.AtBeforeExecute, "status:402", 1))
		s.signUp("cus_a")
		s.work(time.Hour)
		probes := func() {
			for range 60 {
				s.probe()
				time.Sleep(probeEvery)
			}
		}
		probes()
		s.rules(fault("GET", "^/balance$", modelgatetest.AtBeforeExecute, "status:503", 60))
		probes()
		probes()
		s.outside(func() error { s.up.Fund("-9.99"); return nil }) // for another customer
		probes()
		s.outside(func() error { s.up.Fund("10.00"); return nil })
		probes()
		o := s.operation("cus_a", SetInitialLimit)
		want := []string{"balance wallet_low 99.99 USD", "balance inconclusive ", "balance wallet_low 99.99 USD", "balance wallet_low 90.00 USD", "balance wallet_funded 100.00 USD"}
		if got := s.evidence(o); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		record, err := s.Record(context.Background(), RecordRequest{OperationID: o.OperationID})
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range record.Evidence {
			if wantStatus := []int{200, 503, 200, 200, 200}[i]; e.Query != "/balance" || e.Status == nil || *e.Status != wantStatus || len(e.SHA256) != 64 {
				t.Errorf("%d: %+v", i, e)
			}
		}
		if n := s.strings(`SELECT COUNT(*) FROM reconcile_evidence WHERE surface = 'balance' AND operation_id <> $1`, o.OperationID)[0]; n != "0" {
			t.Errorf("%s looks are on the record of what does not wait", n)
		}
		s.ready("cus_a", "100.00")
	})
}

// S27: another amount is confirmed than was asked for. Where the upstream shows
// that it has the right one, that counts; where it does not, a person decides.
func TestS27AnotherAmountIsEchoed(t *testing.T) {
	for method, want := range map[string]Status{"PATCH": Succeeded, "": ReconciliationNeeded} {
		t.Run("by "+method, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.rules(fault(method, limitsPath, modelgatetest.AtOnResponse, "echo_amount:250.0", 0))
				s.signUp("cus_a")
				for s.operation("cus_a", CreateGroup).Status != Succeeded || s.operation("cus_a", CreateKey).Status != Succeeded {
					s.stepOnce()
				}
				s.stepOnce()
				s.want("cus_a", SetInitialLimit, Reconciling)
				s.work(48 * time.Hour)
				if o := s.want("cus_a", SetInitialLimit, want); want == ReconciliationNeeded && deref(o.ErrorCode) != string(verdictMismatch) {
					t.Errorf("code %s", deref(o.ErrorCode))
				}
			})
		})
	}
}

// S28: a number where the contract has a string leaves no doubt about the amount.
func TestS28ANumberForMoney(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.rules(fault("PATCH", limitsPath, modelgatetest.AtOnResponse, "number_amount", 1))
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		attempts := s.attempts(s.operation("cus_a", SetInitialLimit))
		if len(attempts) != 1 || deref(attempts[0].ErrorCode) != "contract_violation" {
			t.Errorf("%+v", attempts)
		}
	})
}

// S29: nobody follows the upstream elsewhere, nor takes the key there.
func TestS29Elsewhere(t *testing.T) {
	for _, status := range []string{"302", "307"} {
		t.Run(status, func(t *testing.T) {
			elsewhere := modelgatetest.New(modelgatetest.Options{}).Start(t)
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.rules(fault("POST", groupsPath, modelgatetest.AtBeforeExecute, "redirect:"+status+" "+elsewhere.BaseURL()+"/groups", 1))
				s.signUp("cus_a")
				s.work(time.Hour)
				if o := s.want("cus_a", CreateGroup, FailedRetryable); deref(o.Hold) != holdRedirect || elsewhere.State().Requests != 0 {
					t.Errorf("hold %s, %d requests elsewhere", deref(o.Hold), elsewhere.State().Requests)
				}
				if !strings.Contains(s.log.String(), holdRedirect) {
					t.Error("no alarm")
				}
				s.probe()
				s.ready("cus_a", "100.00")
			})
		})
	}
}

// S32: a deploy between two tries changes what a new operation would send.
func TestS32AnotherTemplate(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.rules(fault("POST", groupsPath, modelgatetest.AtAfterExecute, "close", 1))
		s.signUp("cus_a")
		s.stepOnce()
		s.Models = []string{"m2"}
		s.ready("cus_a", "100.00")
		if got := s.up.State().Groups[0].Models; !slices.Equal(got, []string{"m1"}) {
			t.Errorf("models %q", got)
		}
		if o := s.operation("cus_a", CreateGroup); s.wire(o).WireRequests != 2 || len(s.wire(o).Fingerprints) != 1 {
			t.Errorf("%+v", s.wire(o))
		}
	})
}

// S36: the upstream has forgotten the key when we come back.
func TestS36TheKeyHasExpired(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.rules(fault("POST", groupsPath, modelgatetest.AtAfterCommit, "reset", 1))
		s.signUp("cus_a")
		s.stepOnce()
		time.Sleep(7*24*time.Hour + time.Second)
		s.ready("cus_a", "100.00")
		if o := s.operation("cus_a", CreateGroup); s.wire(o).WireRequests != 1 || len(s.evidence(o)) == 0 {
			t.Errorf("%+v, %q", s.wire(o), s.evidence(o))
		}
	})
}

// S43: limits land in the order in which they were wanted.
func TestS43LimitsInOrder(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		s.rules(modelgatetest.Rule{Match: modelgatetest.Match{Method: "PATCH", PathRE: limitsPath, Nth: 2}, At: modelgatetest.AtBeforeAuth, Do: "status:503 retry_after:600"})
		s.limit("cus_a", "150.00")
		s.limit("cus_a", "250.00")
		s.limit("cus_a", "100.00")
		s.ready("cus_a", "100.00")
		var order []string
		for _, e := range s.up.State().Audit {
			if e.Action == "limit.update" {
				order = append(order, e.Metadata["spend_limit"])
			}
		}
		if !slices.Equal(order, []string{"100.00", "150.00", "250.00", "100.00"}) {
			t.Errorf("%q", order)
		}
	})
}

// S44: a limit that is unknown, while a newer one is in force, is not sent again.
func TestS44Superseded(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		s.rules(fault("PATCH", limitsPath, modelgatetest.AtAfterExecute, "reset", 1))
		s.limit("cus_a", "250.00")
		s.stepOnce()
		time.Sleep(7 * 24 * time.Hour)
		s.stranger("PATCH", "/groups/"+deref(s.operation("cus_a", CreateGroup).TargetID)+"/limits", "newer", `{"spend_limit":"300.00","currency":"USD","period":"month","policy_version":"3"}`)
		s.work(48 * time.Hour)
		if o := s.want("cus_a", SetLimit, FailedFinal); deref(o.ErrorCode) != "superseded" || s.wire(o).WireRequests != 1 {
			t.Errorf("%s, %+v", deref(o.ErrorCode), s.wire(o))
		}
		s.made("cus_a", "300.00")
	})
}

// S44, within the window: the replay is told that its version is stale.
func TestS44StaleInTheWindow(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		s.rules(fault("PATCH", limitsPath, modelgatetest.AtAfterExecute, "reset", 1))
		s.limit("cus_a", "250.00")
		s.stepOnce()
		s.stranger("PATCH", "/groups/"+deref(s.operation("cus_a", CreateGroup).TargetID)+"/limits", "newer", `{"spend_limit":"300.00","currency":"USD","period":"month","policy_version":"3"}`)
		s.work(48 * time.Hour)
		if o := s.want("cus_a", SetLimit, FailedFinal); deref(o.ErrorCode) != "superseded" {
			t.Errorf("%s, %+v", deref(o.ErrorCode), s.wire(o))
		}
		s.made("cus_a", "300.00")
	})
}

// S70: the key is there and its secret is lost; the operator has it replaced.
func TestS70ASecretIsLost(t *testing.T) {
	for _, profile := range []modelgatetest.Profile{modelgatetest.ProfileDefault, modelgatetest.ProfileStrict} {
		t.Run(string(profile), func(t *testing.T) {
			scenario(t, modelgatetest.Options{Profile: profile}, func(t *testing.T, s *scene) {
				s.rules(fault("POST", keysPath, modelgatetest.AtAfterCommit, "reset", 1))
				s.signUp("cus_a")
				s.work(48 * time.Hour)
				parent := s.want("cus_a", ProvisionCustomer, ReconciliationNeeded)
				if lost := s.up.State().Keys; *parent.Phase != PhaseSecretLost || len(lost) != 1 {
					t.Fatalf("%s, %d keys", *parent.Phase, len(lost))
				}
				s.resolve(parent, resolveReplaceKey)
				s.ready("cus_a", "100.00")
				if keys := s.up.State().Keys; len(keys) != 2 || keys[0].Status != "revoked" || keys[1].Status != "active" {
					t.Errorf("%+v", keys)
				}
			})
		})
	}
}

// afterTwelve is what a look is for: all sends are done and none was answered;
// the group was made by the last one.
func (s *scene) afterTwelve() {
	s.t.Helper()
	s.rules(fault("POST", groupsPath, modelgatetest.AtBeforeAuth, "reset", maxSends-1), fault("POST", groupsPath, modelgatetest.AtAfterCommit, "reset", 1))
	s.signUp("cus_a")
	for s.operation("cus_a", CreateGroup).AttemptCount < maxSends {
		s.stepOnce()
		time.Sleep(time.Second)
	}
	s.dueNow() // no backoff gives the upstream time: only what is waited for before a look does
}

// S73: the list shows a group 45 s late. That is no sign that there is none.
func TestS73AListIsLate(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.rules(fault("GET", groupsPath, modelgatetest.AtOnResponse, "stale_read:45s", 0))
		s.afterTwelve()
		s.ready("cus_a", "100.00")
		if o := s.operation("cus_a", CreateGroup); s.wire(o).WireRequests != maxSends || s.wire(o).Executions != 1 {
			t.Errorf("%+v", s.wire(o))
		}
	})
}

// S73, later than the upstream promises: absent in the lists, and not in the
// audit log, which says that it was made.
func TestS73AListIsVeryLate(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.rules(fault("GET", groupsPath, modelgatetest.AtOnResponse, "stale_read:1h", 0))
		s.afterTwelve()
		s.work(48 * time.Hour)
		if o := s.want("cus_a", CreateGroup, ReconciliationNeeded); deref(o.ErrorCode) != string(verdictOnlyAudit) || len(s.up.State().Groups) != 1 {
			t.Errorf("%s, %d groups", deref(o.ErrorCode), len(s.up.State().Groups))
		}
	})
}

// S74: two groups with our reference are a person's to tell apart; and a list
// without an end is not read without one.
func TestS74ListsThatDoNotHelp(t *testing.T) {
	t.Run("two", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			s.afterTwelve()
			s.stranger("POST", "/groups", "console", `{"name":"by hand","external_ref":"cus_a:signup:1"}`)
			s.work(48 * time.Hour)
			if o := s.want("cus_a", CreateGroup, ReconciliationNeeded); deref(o.ErrorCode) != string(verdictDuplicate) {
				t.Errorf("%s", deref(o.ErrorCode))
			}
		})
	})
	t.Run("a loop", func(t *testing.T) {
		scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
			s.rules(fault("GET", groupsPath, modelgatetest.AtOnResponse, "cursor_loop", 0))
			s.afterTwelve()
			s.work(48 * time.Hour)
			s.want("cus_a", CreateGroup, ReconciliationNeeded)
			if n := s.up.State().Requests; n > 150 {
				t.Errorf("%d requests in a day", n)
			}
		})
	})
}

// The upstream has lost the key, and knows the reference: what is there is ours,
// whichever way it says so.
func TestAReferenceThatIsTaken(t *testing.T) {
	for mode, looks := range map[modelgatetest.RefMode]bool{modelgatetest.RefConflict: true, modelgatetest.RefReturnExisting: false} {
		t.Run(string(mode), func(t *testing.T) {
			scenario(t, modelgatetest.Options{ExternalRefMode: mode}, func(t *testing.T, s *scene) {
				s.rules(fault("POST", groupsPath, modelgatetest.AtAfterCommit, "lose_idem_record", 1), fault("POST", groupsPath, modelgatetest.AtAfterCommit, "reset", 1))
				s.signUp("cus_a")
				s.ready("cus_a", "100.00")
				if o := s.operation("cus_a", CreateGroup); s.wire(o).WireRequests != 2 || (len(s.evidence(o)) > 0) != looks {
					t.Errorf("%+v, %q", s.wire(o), s.evidence(o))
				}
			})
		})
	}
}

// S05 for what comes after a sign-up: another key, a revocation, a rotation,
// freezing and thawing, each of them committed and not answered.
func TestS05ChangesOfACustomer(t *testing.T) {
	scenario(t, modelgatetest.Options{AuditLag: time.Minute}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		group := deref(s.operation("cus_a", CreateGroup).TargetID)
		spend := SpendRequest{Key: "dp_1", CustomerID: "cus_a", CauseRef: "dp_1"}
		for _, step := range []struct {
			action         Action
			begin          func() (Accepted, error)
			method, path   string
			group, wantKey string // then
		}{
			{FreezeGroup, func() (Accepted, error) { return s.Freeze(context.Background(), spend) }, "PATCH", "^/groups/[^/]+$", "frozen", "active"},
			{ThawGroup, func() (Accepted, error) { return s.Thaw(context.Background(), spend) }, "PATCH", "^/groups/[^/]+$", "active", "active"},
			{RevokeKey, func() (Accepted, error) { return s.changeKey("rotate", "rotate", "default") }, "DELETE", "^/keys/", "active", "revoked"},
		} {
			s.rules(fault(step.method, step.path, modelgatetest.AtAfterCommit, "reset", 1))
			if _, err := step.begin(); err != nil {
				t.Fatalf("%s: %v", step.action, err)
			}
			s.work(48 * time.Hour)
			state := s.up.State()
			if o := s.want("cus_a", step.action, Succeeded); s.wire(o).Replays != 1 || state.Groups[0].Status != step.group || state.Keys[0].Status != step.wantKey {
				t.Errorf("%s of %s: %+v, group %s, key %s", step.action, group, s.wire(o), state.Groups[0].Status, state.Keys[0].Status)
			}
		}
		s.ready("cus_a", "100.00") // with the key that has followed
	})
}

// S31: an answer that drips takes a request's time and no more. The bubble's
// clock does not go on while a socket is read, so this takes real seconds.
func TestS31ASlowAnswer(t *testing.T) {
	t.Parallel()
	up := modelgatetest.New(modelgatetest.Options{}).Start(t)
	client, err := modelgate.New(modelgate.Options{BaseURL: up.BaseURL(), APIKey: modelgatetest.DevToken, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := up.AddFaults(fault("POST", groupsPath, modelgatetest.AtOnResponse, "slow_body:100ms", 1)); err != nil {
		t.Fatal(err)
	}
	in := groupIntent("cus_a", 1, nil, "USD")
	if out := client.Send(t.Context(), in.request, time.Now().Add(time.Minute)); out.Class != modelgate.Malformed || out.Code != "timeout" {
		t.Errorf("%s %s", out.Class, out.Code)
	}
	if out := client.Send(t.Context(), in.request, time.Now().Add(time.Minute)); out.Class != modelgate.Succeeded || !out.Replayed {
		t.Errorf("then %s %s", out.Class, out.Code)
	}
}
