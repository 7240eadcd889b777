package billing

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/billing/modelgatetest"
	"jpintel/store"
)

// S02: the process dies between the attempt's record and its first byte.
func TestS02ACrashAfterTheAttemptIsUnknown(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.crash(true)
		if n := s.step(); n != 0 {
			t.Errorf("%d steps while the lease holds", n)
		}
		if err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
			n, err := releaseLeases(tx, s.DB.BootID)
			if n != 1 {
				t.Errorf("%d leases released", n)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		s.ready("cus_a", "100.00")
		o := s.want("cus_a", CreateGroup, Succeeded)
		if o.UnknownCount != 1 || o.AttemptCount != 2 || s.wire(o).WireRequests != 1 {
			t.Errorf("%d unknown of %d, %+v", o.UnknownCount, o.AttemptCount, s.wire(o))
		}
		got := s.strings(`SELECT attempt_no || ' ' || kind || ' ' || outcome FROM operation_attempts WHERE operation_id = $1 ORDER BY attempt_no`, o.OperationID)
		if !slices.Equal(got, []string{"1 send interrupted", "2 replay succeeded"}) {
			t.Errorf("%q", got)
		}
	})
}

// S17: a date in Retry-After counts from the answer's own, whatever our clock
// says: it is ten minutes ahead, or behind.
func TestS17ADateByTheUpstreamsClock(t *testing.T) {
	for _, ahead := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		t.Run(ahead.String(), func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.ahead = ahead
				s.engine.Jitter = func(int64) int64 { return 0 }
				s.rules(fault("POST", groupsPath, modelgatetest.AtBeforeAuth, "status:429 retry_after:date+30s", 1))
				s.signUp("cus_a")
				s.ready("cus_a", "100.00")
				all := s.attempts(s.operation("cus_a", CreateGroup))
				if waited := all[1].StartedAt.Sub(all[0].StartedAt); len(all) != 2 || waited < 30*time.Second || waited > 31*time.Second {
					t.Errorf("%d attempts, %s apart", len(all), waited)
				}
			})
		})
	}
}

// S18: a Retry-After that says too much, or nothing that can be used.
func TestS18RetryAfterThatCannotBeUsed(t *testing.T) {
	const backoff = 2 * time.Second // the first step, in full
	for value, want := range map[string]time.Duration{
		"999999999": time.Hour, "99999999999999999999": backoff, "-5": backoff, "1.5": backoff, "soon": backoff, "": backoff, "0": backoff, "7": 7 * time.Second,
		"2000-01-01T00:10:00Z": backoff, "Sat, 01 Jan 2000 00:00:00 GMT": backoff, "Fri, 01 Jan 2100 00:00:00 GMT": time.Hour,
	} {
		t.Run(value, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.rules(fault("POST", groupsPath, modelgatetest.AtBeforeAuth, "status:429 retry_after:"+value, 1))
				s.signUp("cus_a")
				s.ready("cus_a", "100.00")
				all := s.attempts(s.operation("cus_a", CreateGroup))
				if waited := all[1].StartedAt.Sub(all[0].StartedAt); len(all) != 2 || waited < want || waited > want+time.Second {
					t.Errorf("%d attempts, %s apart, want %s", len(all), waited, want)
				}
				if o := s.operation("cus_a", CreateGroup); o.UnknownCount != 0 {
					t.Errorf("unknown %d", o.UnknownCount)
				}
			})
		})
	}
}

// S12: a file that is full before the attempt is recorded lets nothing out.
func TestS12AFileThatIsFull(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		var o *Operation
		if err := s.DB.Write(context.Background(), func(tx *store.Tx) (err error) {
			o, err = claim(tx, s.DB.BootID+"/1", "")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		// The file grows no more, and an attempt needs more than there is.
		s.exec(`CREATE TABLE filler (x BLOB)`)
		s.exec(`CREATE TRIGGER filled AFTER INSERT ON operation_attempts BEGIN INSERT INTO filler VALUES (zeroblob(100000)); END`)
		s.exec(`PRAGMA max_page_count = 1`)
		if err := s.engine.send(context.Background(), o); store.CodeOf(err) != store.CodeUnavailable || s.up.State().Requests != 0 {
			t.Errorf("%v, %d requests", err, s.up.State().Requests)
		}
		s.exec(`PRAGMA max_page_count = 1000000`)
		if o := s.want("cus_a", CreateGroup, Pending); o.SendState != "not_sent" || o.AttemptCount != 0 {
			t.Errorf("%s, %d attempts", o.SendState, o.AttemptCount)
		}
		if !strings.Contains(s.log.String(), "store_unavailable") {
			t.Error("nobody is told")
		}
		time.Sleep(leaseTime + time.Second)
		s.ready("cus_a", "100.00")
	})
}

// S38 and T24: the answer comes when the lease is lost, as after days in which
// the machine was suspended. It changes nothing, and whoever has the operation
// then reads it before anything is sent.
func TestS38ALateAnswerIsKept(t *testing.T) {
	for action, path := range map[Action]string{CreateGroup: groupsPath, CreateKey: keysPath, SetInitialLimit: limitsPath} {
		t.Run(string(action), func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.rules(fault("", path, modelgatetest.AtBeforeExecute, "delay:0s", 1)) // it counts
				s.signUp("cus_a")
				s.answering = func(s *scene) {
					if s.up.State().Faults[0].Hits == 1 {
						s.answering = nil
						s.exec(`UPDATE partner_operations SET lock_token = lock_token + 1, locked_by = 'boot_other/cli', locked_until_ms = $1 WHERE action = $2`,
							time.Now().Add(time.Minute).UnixMilli(), string(action))
					}
				}
				s.step()
				if o := s.want("cus_a", action, Pending); o.SendState != "maybe_sent" {
					t.Errorf("%s", o.SendState)
				}
				if n := len(s.strings(`SELECT operation_id FROM late_results WHERE read_at_ms IS NULL`)); n != 1 {
					t.Fatalf("%d answers kept", n)
				}
				s.holds() // it is sealed
				time.Sleep(3 * 24 * time.Hour)
				s.ready("cus_a", "100.00")
				if o := s.operation("cus_a", action); s.wire(o).WireRequests != 1 || s.mutations() != 3 {
					t.Errorf("%+v, %d requests", s.wire(o), s.mutations())
				}
				if c, err := s.Customer(context.Background(), CustomerRequest{"cus_a"}); err != nil || !c.Keys[0].SecretAvailable {
					t.Errorf("the secret is lost: %+v (%v)", c, err)
				}
			})
		})
	}
}

// T12: a refusal after a send that may have had its effect is no end.
func TestARefusalInDoubtIsLookedInto(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.rules(modelgatetest.Rule{Match: modelgatetest.Match{Method: "POST", PathRE: groupsPath, Nth: 2}, At: modelgatetest.AtBeforeAuth, Do: "status:422 code:name_taken"},
			fault("POST", groupsPath, modelgatetest.AtAfterCommit, "reset", 1))
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		if o := s.want("cus_a", CreateGroup, Succeeded); o.AttemptCount != 2 || len(s.evidence(o)) != 1 {
			t.Errorf("%d attempts, %q", o.AttemptCount, s.evidence(o))
		}
	})
}

// S25: one that is held by our key holds all; the operator's word about it frees
// all.
func TestS25ARetryFreesWhatIsHeld(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.rules(fault("POST", groupsPath, modelgatetest.AtBeforeAuth, "status:403", 1))
		s.signUp("cus_a")
		s.signUp("cus_b")
		s.work(time.Hour)
		if o := s.want("cus_b", CreateGroup, Pending); o.SendState != "not_sent" || s.mutations() != 1 {
			t.Errorf("%s, %d requests", o.SendState, s.mutations())
		}
		s.exec(`UPDATE partner_operations SET status = 'failed_retryable', hold_reason = $1 WHERE action = 'create_group'`, holdAuth) // as two at once would be
		if _, err := s.Retry(context.Background(), RetryRequest{s.operation("cus_a", CreateGroup).OperationID, "aki", "the key is set"}); err != nil {
			t.Fatal(err)
		}
		s.ready("cus_a", "100.00")
		s.ready("cus_b", "100.00")
	})
}

// Twelve sends that settle nothing are followed by looking, not by a thirteenth.
func TestTwelveSendsThenALook(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.rules(fault("POST", groupsPath, modelgatetest.AtAfterCommit, "status:502 html", 0))
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		o := s.want("cus_a", CreateGroup, Succeeded)
		if got := s.evidence(o); o.AttemptCount != maxSends || s.wire(o).WireRequests != maxSends || !slices.Equal(got, []string{"groups succeeded " + s.group("cus_a")}) {
			t.Errorf("%d attempts, %q", o.AttemptCount, got)
		}
	})
}

func TestBackoffDoublesToItsCap(t *testing.T) {
	e := &Engine{Jitter: func(most int64) int64 { return most }}
	for n, want := range []time.Duration{2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900} {
		if got := e.backoff(n + 1); got != want*time.Second {
			t.Errorf("after %d: %s", n, got)
		}
	}
	for range 1000 {
		if d := (&Engine{}).backoff(3); d < 0 || d > 8*time.Second {
			t.Fatal(d)
		}
	}
	if errors.Is(errGivenBack, errLeaseLost) {
		t.Error("a claim that was given back is not lost")
	}
}
