package billing

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/store"
)

// evidence is what was looked at, in order.
func (b *bench) evidence(o *Operation) []string {
	return b.strings(`SELECT surface || ' ' || verdict || ' ' || match_ids FROM reconcile_evidence WHERE operation_id = $1 ORDER BY evidence_seq`, o.OperationID)
}

// lost makes the first send have its effect, or not, and every answer fail.
func lost(executed bool) func(p *partner) {
	return func(p *partner) {
		if executed {
			p.after = func(int, http.ResponseWriter, *http.Request) bool { return cut() }
		} else {
			p.before = func(int, http.ResponseWriter, *http.Request) bool { return cut() }
		}
	}
}

// old moves the first send of a customer's group so far into the past, past its
// replay deadline.
func old(b *bench, age time.Duration) {
	b.t.Helper()
	b.exec(`DROP TRIGGER IF EXISTS partner_operations_identity`)
	first := time.Now().Add(-age)
	b.exec(`UPDATE partner_operations SET first_sent_at_ms = $1, replay_deadline_ms = $2 WHERE action = 'create_group'`, first.UnixMilli(), first.Add(replayWindow).UnixMilli())
}

// S34 and S36: past the window nothing is sent again, whatever has become of it.
func TestS34PastTheWindowItIsLookedUp(t *testing.T) {
	for name, c := range map[string]struct {
		executed bool
		want     Status
		evidence []string
	}{
		"it had happened":     {true, Succeeded, []string{"groups succeeded grp_1"}},
		"it had not happened": {false, FailedFinal, []string{"groups absent ", "audit absent ", "groups absent ", "audit absent "}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, b *bench) {
				lost(c.executed)(b.partner)
				b.signUp("cus_a")
				b.stepOnce()
				b.partner.before, b.partner.after = nil, nil
				old(b, 6*24*time.Hour+time.Hour)
				b.work(time.Hour)
				o := b.want("cus_a", CreateGroup, c.want)
				if got := b.evidence(o); !slices.Equal(got, c.evidence) {
					t.Errorf("%q", got)
				}
				if n := b.partner.byKey()[*o.Key]; n != 1 {
					t.Errorf("it was sent %d times", n)
				}
				if c.want == FailedFinal {
					if deref(o.ErrorCode) != "not_executed" || len(b.partner.groups) != 0 {
						t.Errorf("%s, %d groups", deref(o.ErrorCode), len(b.partner.groups))
					}
					b.wantStatus("cus_a", NeedsAttention)
				}
			})
		})
	}
}

// S35: the window begins with the first send.
func TestS35WhatWasNeverSentMayBeSent(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.signUp("cus_a")
		time.Sleep(8 * 24 * time.Hour)
		b.step()
		b.wantStatus("cus_a", Ready)
	})
}

// S37: a clock of ours that is set back does not extend the window: the
// upstream's counts. One that is set forward shortens it.
func TestS37OurClockJumps(t *testing.T) {
	for name, jump := range map[string]time.Duration{"back": -2 * 24 * time.Hour, "forward": 9 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, b *bench) {
				var ahead time.Duration // of the upstream's clock before ours
				b.partner.clock = func() time.Time { return time.Now().Add(ahead) }
				b.partner.after = on(1, func(http.ResponseWriter) bool { return cut() })
				b.signUp("cus_a")
				b.stepOnce()
				if jump < 0 { // it is six days and an hour later, and our clock says four
					time.Sleep(6*24*time.Hour + time.Hour + jump)
					ahead = -jump
				} else {
					time.Sleep(jump)
					ahead = -jump
				}
				b.work(time.Hour)
				o := b.want("cus_a", CreateGroup, Succeeded)
				if n := b.partner.byKey()[*o.Key]; n != 1 || o.AttemptCount != 1 {
					t.Errorf("it was sent %d times", n)
				}
			})
		})
	}
}

// S37: our clock was days ahead when it was first sent, and is right again. The
// deadline that was written down then is worth nothing.
func TestS37OurClockWasAhead(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		ahead := 9 * 24 * time.Hour
		b.partner.clock = time.Now
		b.partner.after = on(1, func(http.ResponseWriter) bool { return cut() })
		b.signUp("cus_a")
		b.stepOnce()
		b.exec(`DROP TRIGGER partner_operations_identity`)
		b.exec(`UPDATE partner_operations SET first_sent_at_ms = first_sent_at_ms + $1, replay_deadline_ms = replay_deadline_ms + $1 WHERE action = 'create_group'`, ahead.Milliseconds())
		time.Sleep(8 * 24 * time.Hour)
		b.work(time.Hour)
		o := b.want("cus_a", CreateGroup, Succeeded)
		if n := b.partner.byKey()[*o.Key]; n != 1 {
			t.Errorf("it was sent %d times", n)
		}
	})
}

// Two looks that find nothing, a minute apart and when everything has settled:
// then the same bytes go out once more under the same key.
func TestWhatIsAbsentInTheWindowIsSentAgain(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.partner.before = func(n int, w http.ResponseWriter, _ *http.Request) bool { return n <= 12 && cut() }
		b.signUp("cus_a")
		b.work(24 * time.Hour)
		o := b.want("cus_a", CreateGroup, Succeeded)
		if got := b.evidence(o); !slices.Equal(got, []string{"groups absent ", "audit absent ", "groups absent ", "audit absent "}) {
			t.Errorf("%q", got)
		}
		times := b.strings(`SELECT CAST(at_ms AS TEXT) FROM reconcile_evidence WHERE surface = 'audit' ORDER BY evidence_seq`)
		var first, second int64
		fmt.Sscan(times[0], &first)
		fmt.Sscan(times[1], &second)
		last := b.strings(`SELECT CAST(started_at_ms AS TEXT) FROM operation_attempts WHERE operation_id = $1 AND attempt_no = 12`, o.OperationID)
		var sent int64
		fmt.Sscan(last[0], &sent)
		if second-first < readsApart.Milliseconds() || first-sent < DefaultSettle.Milliseconds() {
			t.Errorf("looked %d ms and %d ms after the last send", first-sent, second-sent)
		}
		if n := b.partner.byKey()[*o.Key]; n != 13 || len(b.partner.groups) != 1 {
			t.Errorf("%d sends, %d groups", n, len(b.partner.groups))
		}
		b.once()
	})
}

// S73: a list that lags does not make a second group.
func TestS73AListThatLags(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		lost(true)(b.partner)
		b.signUp("cus_a")
		b.stepOnce()
		sent := time.Now()
		b.partner.mu.Lock()
		b.partner.before, b.partner.after, b.partner.hideList = nil, nil, true
		b.partner.mu.Unlock()
		old(b, 6*24*time.Hour+time.Hour)
		for time.Since(sent) < 45*time.Second {
			b.step()
			time.Sleep(time.Second)
		}
		b.partner.mu.Lock()
		b.partner.hideList = false
		b.partner.mu.Unlock()
		b.work(time.Hour)
		o := b.want("cus_a", CreateGroup, Succeeded)
		if got := b.evidence(o); len(b.partner.groups) != 1 || !slices.Equal(got, []string{"groups succeeded grp_1"}) {
			t.Errorf("%d groups; it was looked at too early: %q", len(b.partner.groups), got)
		}
	})
}

// The rows of the verdict table that a person has to decide.
func TestVerdictsForAPerson(t *testing.T) {
	for name, c := range map[string]struct {
		upstream func(p *partner)
		code     string
	}{
		"S74 duplicate": {func(p *partner) {
			second := map[string]any{}
			for k, v := range p.groups[0] {
				second[k] = v
			}
			second["id"] = "grp_2"
			p.groups = append(p.groups, second)
		}, "duplicate_upstream"},
		"deleted, as the list says": {func(p *partner) { p.groups[0]["status"] = "deleted" }, "mismatch"},
		"deleted, as the audit log says": {func(p *partner) {
			p.groups = nil
			p.audit[0]["metadata"] = map[string]any{"external_ref": "cus_a:signup:1"}
		}, "audit_without_object"},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, b *bench) {
				lost(true)(b.partner)
				b.signUp("cus_a")
				b.stepOnce()
				c.upstream(b.partner)
				old(b, 6*24*time.Hour+time.Hour)
				b.work(time.Hour)
				if o := b.want("cus_a", CreateGroup, ReconciliationNeeded); deref(o.ErrorCode) != c.code {
					t.Errorf("%s", deref(o.ErrorCode))
				}
				b.wantStatus("cus_a", NeedsAttention)
				if n := len(b.partner.sent); n != 1 {
					t.Errorf("%d requests", n)
				}
			})
		})
	}
}

// S27: what confirms another amount is no success.
func TestS27AnotherAmountIsConfirmed(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.signUp("cus_a")
		b.step()
		b.partner.after = func(_ int, w http.ResponseWriter, _ *http.Request) bool {
			b.partner.mu.Lock()
			b.partner.limits["grp_1"]["spend_limit"] = "2500.0"
			b.partner.mu.Unlock()
			_, _ = w.Write([]byte(`{"group_id":"grp_1","spend_limit":"2500.0","currency":"USD","period":"month","policy_version":"2"}`))
			return true
		}
		b.limit("cus_a", "250.00")
		b.work(time.Hour)
		if o := b.want("cus_a", SetLimit, ReconciliationNeeded); deref(o.ErrorCode) != "mismatch" || len(b.partner.sent) != 5 {
			t.Errorf("%s after %d requests", deref(o.ErrorCode), len(b.partner.sent))
		}
	})
}

// S43: limits land in the order in which they were wanted.
func TestS43LimitsLandInOrder(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.signUp("cus_a")
		b.step()
		b.partner.before = on(5, func(w http.ResponseWriter) bool { w.Header().Set("Retry-After", "600"); return status(w, 429, "rate") })
		for _, amount := range []string{"100.00", "250.00", "100.00"} {
			b.limit("cus_a", amount)
		}
		b.work(time.Hour)
		var got []string
		for _, s := range b.partner.sent[3:] {
			got = append(got, s.key)
		}
		if want := []string{"set-spend-limit:cus_a:grp_1:2", "set-spend-limit:cus_a:grp_1:3", "set-spend-limit:cus_a:grp_1:3", "set-spend-limit:cus_a:grp_1:4"}; !slices.Equal(got, want) {
			t.Errorf("%q", got)
		}
		if l := b.partner.limits["grp_1"]; l["spend_limit"] != "100.00" || l["policy_version"] != "4" {
			t.Errorf("%v", l)
		}
	})
}

// S44: a limit that is unknown while a newer one is in force is never sent again.
func TestS44ASupersededLimit(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.signUp("cus_a")
		b.step()
		b.partner.before = func(int, http.ResponseWriter, *http.Request) bool { return cut() }
		o := b.limit("cus_a", "250.00")
		b.stepOnce()
		b.partner.limits["grp_1"] = map[string]any{"group_id": "grp_1", "spend_limit": "300.00", "currency": "USD", "period": "month", "policy_version": "3"}
		if _, err := b.Reconcile(context.Background(), ReconcileRequest{o, "aki", "a newer one is in force"}); err != nil {
			t.Fatal(err)
		}
		b.exec(`DROP TRIGGER partner_operations_identity`)
		b.exec(`UPDATE partner_operations SET replay_deadline_ms = 1 WHERE operation_id = $1`, o)
		b.work(time.Hour)
		if o := b.want("cus_a", SetLimit, FailedFinal); deref(o.ErrorCode) != "superseded" || len(b.partner.sent) != 4 {
			t.Errorf("%s after %d requests", deref(o.ErrorCode), len(b.partner.sent))
		}
	})
}

// T22: a day of looking that comes to nothing is handed to a person.
func TestADayOfFailedLooks(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		lost(true)(b.partner)
		b.signUp("cus_a")
		b.stepOnce()
		old(b, 6*24*time.Hour+time.Hour)
		b.partner.mu.Lock()
		b.partner.groups[0]["id"] = 7 // no list can be read
		b.partner.mu.Unlock()
		b.work(48 * time.Hour)
		if o := b.want("cus_a", CreateGroup, ReconciliationNeeded); deref(o.ErrorCode) != "inconclusive" || o.UpdatedAt.Sub(*o.FirstSentAt) > 8*24*time.Hour {
			t.Errorf("%s", deref(o.ErrorCode))
		}
		if n := len(b.evidence(b.operation("cus_a", CreateGroup))); n < 20 || n > 40 {
			t.Errorf("%d looks", n)
		}
	})
}

// After a restore nothing is sent that the upstream may know already.
func TestAfterARestoreTheUpstreamIsAskedFirst(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.signUp("cus_a") // as the backup has it: not sent
		b.partner.groups = []map[string]any{{"id": "grp_9", "external_ref": "cus_a:signup:1", "name": "cus_a", "status": "active", "spend_limit": "0.00", "period": "month"}}
		b.signUp("cus_b") // this one never was
		time.Sleep(time.Minute)
		b.engine.Recovered = time.Now()
		b.work(time.Hour)
		if o := b.want("cus_a", CreateGroup, Succeeded); deref(o.TargetID) != "grp_9" || o.AttemptCount != 0 {
			t.Errorf("%s after %d attempts", deref(o.TargetID), o.AttemptCount)
		}
		b.wantStatus("cus_a", Ready)
		b.wantStatus("cus_b", Ready)
		if len(b.partner.groups) != 2 {
			t.Errorf("%d groups", len(b.partner.groups))
		}
	})
}

func (b *bench) limit(customer, amount string) (operationID string) {
	b.t.Helper()
	calls++
	a, err := b.SetLimit(context.Background(), LimitRequest{Key: fmt.Sprint("call-", calls), CustomerID: customer, SpendLimit: amount, ApprovedBy: "aki"})
	if err != nil {
		b.t.Fatal(err)
	}
	return a.OperationID
}

var calls int // for Idempotency-Keys that differ

func TestLimitsNeedApproval(t *testing.T) {
	b := newBench(t)
	b.signUp("cus_a")
	for _, r := range []LimitRequest{
		{Key: "k", CustomerID: "cus_a", SpendLimit: "1.00"},
		{Key: "k", CustomerID: "cus_a", SpendLimit: "1.0.0", ApprovedBy: "aki"},
		{CustomerID: "cus_a", SpendLimit: "1.00", ApprovedBy: "aki"},
		{Key: strings.Repeat("k", 256), CustomerID: "cus_a", SpendLimit: "1.00", ApprovedBy: "aki"},
	} {
		if _, err := b.SetLimit(context.Background(), r); store.CodeOf(err) != store.CodeInvalid {
			t.Errorf("%+v: %v", r, err)
		}
	}
	r := LimitRequest{Key: "k", CustomerID: "cus_a", SpendLimit: "1.00", ApprovedBy: "aki"}
	if _, err := b.SetLimit(context.Background(), r); store.CodeOf(err) != store.CodeConflict {
		t.Errorf("before there is a group: %v", err)
	}
	b.step()
	first, err := b.SetLimit(context.Background(), r)
	again, err2 := b.SetLimit(context.Background(), r)
	if err != nil || err2 != nil || first.OperationID != again.OperationID || first.HTTPStatus() != 202 {
		t.Errorf("%+v %+v (%v, %v)", first, again, err, err2)
	}
	r.SpendLimit = "2.00"
	if _, err := b.SetLimit(context.Background(), r); store.CodeOf(err) != store.CodeConflict {
		t.Errorf("the same key for another limit: %v", err)
	}
	b.step()
	if c, err := b.Customer(context.Background(), CustomerRequest{"cus_a"}); err != nil || *c.SpendLimit != "1.00" {
		t.Errorf("%+v (%v)", c, err)
	}
	if got := b.strings(`SELECT policy_version || ' ' || spend_limit || ' ' || approved_by FROM limit_policies ORDER BY policy_version`); !slices.Equal(got, []string{"1 100.00 sign-up", "2 1.00 aki"}) {
		t.Errorf("%q", got)
	}
}
