package billing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/billing/modelgatetest"
	"jpintel/store"
)

// sweeper is the scene's, on its client and its log.
func (s *scene) sweeper() *Sweeper {
	return &Sweeper{DB: s.DB, Client: s.engine.Client, Log: s.engine.Log}
}

// sweep runs a sweep now.
func (s *scene) sweep(names ...SweepName) {
	s.t.Helper()
	for _, name := range names {
		if err := s.sweeper().Sweep(context.Background(), name); err != nil {
			s.t.Fatalf("sweep %s: %v", name, err)
		}
	}
}

// findings are those in a state, the oldest first.
func (s *scene) findings(state string) (all []Finding) {
	s.t.Helper()
	page, err := s.Findings(context.Background(), FindingsRequest{State: state})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range page.Data {
		all = append([]Finding{f}, all...)
	}
	return all
}

// found fails the test unless what is open is this: kind and subject, in order.
func (s *scene) found(want ...string) []Finding {
	s.t.Helper()
	all := s.findings(findingOpen)
	name := func(f Finding) string { return string(f.Kind) + " " + f.Subject }
	slices.SortFunc(all, func(a, s Finding) int { return strings.Compare(name(a), name(s)) })
	slices.Sort(want)
	var got []string
	for _, f := range all {
		got = append(got, name(f))
	}
	if !slices.Equal(got, want) {
		s.t.Fatalf("found %q, want %q", got, want)
	}
	return all
}

func detailOf[T any](t testing.TB, f Finding) (d T) {
	t.Helper()
	if err := json.Unmarshal(f.Detail, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func (s *scene) acknowledge(f Finding) {
	s.t.Helper()
	if _, err := s.Acknowledge(context.Background(), AcknowledgeRequest{f.FindingID, "aki", "it was me"}); err != nil {
		s.t.Fatal(err)
	}
}

// seen is how many audit events are of a class.
func (s *scene) seen(class auditClass) int {
	s.t.Helper()
	return len(s.strings(`SELECT audit_id FROM upstream_audit_seen WHERE classified = $1`, string(class)))
}

// lines is how often the log says something.
func (s *scene) lines(words string) int { return strings.Count(s.log.String(), words) }

// sweepStatus is a sweep as it stands.
func (s *scene) sweepStatus(name SweepName) Sweep {
	s.t.Helper()
	page, err := s.Sweeps(context.Background(), SweepsRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, s := range page.Data {
		if s.Name == name {
			return s
		}
	}
	s.t.Fatalf("there is no sweep %s", name)
	return Sweep{}
}

// S75: what somebody changes in the upstream's console is on the list with who
// and when, once; our own changes never are.
func TestS75SomebodyChangesALimit(t *testing.T) {
	scenario(t, modelgatetest.Options{AuditLag: time.Minute, ListLag: time.Minute}, func(t *testing.T, s *scene) {
		defer s.run(WorkerOptions{Tick: time.Hour, Sweeper: s.sweeper()})()
		s.signUp("cus_a")
		s.signUp("cus_b")
		time.Sleep(24 * time.Hour)
		s.limit("cus_a", "200.00")
		time.Sleep(24 * time.Hour)
		s.found()
		if got := s.seen(auditOurs); got != 7 {
			t.Errorf("%d of our changes were seen, want 7", got)
		}
		time.Sleep(time.Minute)
		s.stranger("PATCH", "/groups/"+s.group("cus_a")+"/limits", "console", `{"spend_limit":"9000.00","currency":"USD","period":"month","policy_version":"9"}`)
		changed := time.Now()
		time.Sleep(24 * time.Hour)
		found := s.found("foreign_change "+s.up.State().Audit[7].ID, "limit_differs "+s.group("cus_a"))
		d := detailOf[auditDetail](t, found[0])
		if d.Action != "limit.update" || d.TargetID != s.group("cus_a") || d.SourceIP == "" || d.RequestID == "" || d.Metadata["spend_limit"] != "9000.00" ||
			d.OccurredAt.Sub(changed).Abs() > time.Second || deref(found[0].CustomerID) != "cus_a" {
			t.Errorf("%+v", d)
		}
		if d := detailOf[limitDetail](t, found[1]); d != (limitDetail{"200.00", "9000.00", "2", "9", "USD", "month"}) {
			t.Errorf("%+v", d)
		}
		time.Sleep(72 * time.Hour)
		again := s.found("foreign_change "+d.AuditID, "limit_differs "+s.group("cus_a"))
		if again[0].FindingID != found[0].FindingID || again[1].FindingID != found[1].FindingID || !again[1].LastSeenAt.After(found[1].LastSeenAt) || !again[1].FirstSeenAt.Equal(found[1].FirstSeenAt) {
			t.Errorf("%+v", again)
		}
		if s.lines("sweep_found") != 2 || s.lines("foreign_change=1") != 1 || s.lines("limit_differs=1") != 1 {
			t.Errorf("the log:\n%s", s.log)
		}

		// What somebody knows of is off the list; what changes is on it again.
		s.acknowledge(found[0])
		s.acknowledge(found[1])
		time.Sleep(48 * time.Hour)
		s.found()
		s.stranger("PATCH", "/groups/"+s.group("cus_a")+"/limits", "console-2", `{"spend_limit":"200.00","currency":"USD","period":"month","policy_version":"10"}`)
		time.Sleep(24 * time.Hour)
		s.found("foreign_change "+s.up.State().Audit[8].ID, "limit_differs "+s.group("cus_a"))
	})
}

// What an open operation may have asked for is not judged before it has ended:
// whether by a replay, which tells the first request's id, or by a look.
func TestAChangeWhoseAnswerWasLost(t *testing.T) {
	for name, times := range map[string]int{"replayed": 1, "looked up": 0} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
				s.signUp("cus_a")
				s.ready("cus_a", "100.00")
				s.rules(fault("PATCH", limitsPath, modelgatetest.AtAfterCommit, "reset", times))
				s.limit("cus_a", "250.00")
				s.stepOnce()
				s.want("cus_a", SetLimit, FailedRetryable)
				time.Sleep(time.Second)
				s.sweep(SweepAudit)
				if s.found(); s.seen(auditUndecided) != 1 {
					t.Errorf("%q", s.strings(`SELECT action || ' ' || classified FROM upstream_audit_seen`))
				}
				// A stranger's change at the same time stays on the list of what is to be judged.
				s.stranger("PATCH", "/groups/"+s.group("cus_a"), "console", `{"name":"by hand"}`)
				s.ready("cus_a", "250.00")
				time.Sleep(24 * time.Hour)
				s.sweep(SweepAudit)
				s.found("foreign_change " + s.up.State().Audit[4].ID)
				if s.seen(auditUndecided) != 0 || s.seen(auditOurs) != 4 {
					t.Errorf("%q", s.strings(`SELECT action || ' ' || classified FROM upstream_audit_seen`))
				}
			})
		})
	}
}

// A stranger who does the same as an open operation does not hide behind it.
func TestAForeignChangeBesideOurs(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		s.rules(fault("PATCH", `^/groups/[^/]+$`, modelgatetest.AtAfterCommit, "reset", 1))
		if _, err := s.Freeze(context.Background(), SpendRequest{Key: "freeze-1", CustomerID: "cus_a", CauseRef: "dp_1"}); err != nil {
			t.Fatal(err)
		}
		s.stepOnce()
		s.stranger("PATCH", "/groups/"+s.group("cus_a"), "console", `{"name":"by hand"}`)
		time.Sleep(time.Second)
		s.sweep(SweepAudit)
		s.found()
		s.work(time.Hour)
		s.want("cus_a", FreezeGroup, Succeeded)
		s.sweep(SweepAudit)
		s.found("foreign_change " + s.up.State().Audit[4].ID)
	})
}

// What is changed without anything of ours is listed without a customer.
func TestAnUnmatchedChange(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		s.stranger("POST", "/groups", "console-1", `{"name":"by hand","external_ref":"somebody:signup:1"}`)
		s.stranger("POST", "/groups", "console-2", `{"name":"by hand","external_ref":"cus_a:signup:2"}`)
		time.Sleep(time.Minute)
		s.sweep(SweepAudit)
		state := s.up.State()
		found := s.found("foreign_change "+state.Audit[4].ID, "unmatched_change "+state.Audit[3].ID)
		if deref(found[0].CustomerID) != "cus_a" || found[1].CustomerID != nil {
			t.Errorf("%+v", found)
		}
		if s.lines("foreign_change=1 unmatched_change=1") != 1 {
			t.Errorf("the log:\n%s", s.log)
		}
	})
}

// An operation that the operator has ended as failed, and that took effect.
func TestFailedButDone(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		s.rules(fault("PATCH", limitsPath, modelgatetest.AtAfterCommit, "reset", 1))
		s.limit("cus_a", "250.00")
		s.stepOnce()
		s.exec(`UPDATE partner_operations SET status = 'reconciliation_needed' WHERE action = 'set_limit'`)
		s.resolve(s.operation("cus_a", SetLimit), resolveFailed)
		time.Sleep(time.Minute)
		s.sweep(SweepAudit, SweepAccounts)
		s.found("failed_but_done "+s.operation("cus_a", SetLimit).OperationID, "limit_differs "+s.group("cus_a"))
		s.sweep(SweepAudit)
		s.found("failed_but_done "+s.operation("cus_a", SetLimit).OperationID, "limit_differs "+s.group("cus_a"))
	})
}

// An operation that the upstream says has changed two things.
func TestDoneTwice(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, b *scene) {
		b.signUp("cus_a")
		b.step()
		o := b.operation("cus_a", CreateGroup)
		for _, id := range []string{"aud_1", "aud_2", "aud_2", "aud_3"} {
			e := modelgate.AuditEvent{ID: id, RequestID: deref(o.RequestID), Action: "group.create", TargetType: "group", TargetID: "grp_" + id, OccurredAt: time.Now()}
			if id == "aud_3" {
				e.RequestID = deref(b.operation("cus_a", CreateKey).RequestID)
			}
			if err := b.DB.Write(context.Background(), func(tx *store.Tx) error { return keepAuditEvent(tx, e) }); err != nil {
				t.Fatal(err)
			}
		}
		if d := detailOf[twiceDetail](t, b.found("done_twice " + o.OperationID)[0]); !slices.Equal(d.AuditIDs, []string{"aud_1", "aud_2"}) {
			t.Errorf("%+v", d)
		}
	})
}

// A group's state and keys: what differs is found, and closed when it is over.
func TestStateAndKeysDiffer(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		s.sweep(SweepAccounts)
		s.found()
		group := s.group("cus_a")
		s.stranger("POST", "/groups/"+group+"/keys", "console-1", `{"name":"by hand","purpose":"other"}`)
		s.stranger("PATCH", "/groups/"+group, "console-2", `{"status":"frozen"}`)
		time.Sleep(time.Minute)
		s.sweep(SweepAccounts)
		found := s.found("keys_differ "+group, "state_differs "+group)
		if d := detailOf[differs](t, found[1]); d != (differs{"active", "frozen"}) {
			t.Errorf("%+v", d)
		}
		extra := s.up.State().Keys[1].ID
		if d := detailOf[sidesDetail](t, found[0]); len(d.OnlyHere) != 0 || len(d.OnlyThere) != 1 || d.OnlyThere[0] != extra {
			t.Errorf("%+v", d)
		}
		s.stranger("PATCH", "/groups/"+group, "console-3", `{"status":"active"}`)
		s.stranger("DELETE", "/keys/"+extra, "console-4", "")
		time.Sleep(time.Minute)
		s.sweep(SweepAccounts)
		s.found()
		if closed := s.findings(findingResolved); len(closed) != 2 || closed[0].ResolvedAt == nil {
			t.Errorf("%+v", closed)
		}
	})
}

// What an operation is changing just now is not judged.
func TestNothingIsFoundWhileItChanges(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		s.rules(fault("PATCH", limitsPath, modelgatetest.AtAfterCommit, "reset", 1))
		s.limit("cus_a", "250.00")
		s.stepOnce()
		s.sweep(SweepAccounts)
		s.found()
		s.ready("cus_a", "250.00")
		s.sweep(SweepAccounts)
		s.found()
	})
}

// credit inserts an operation that has moved credit, with the row that proves it.
func (s *scene) credit(customer, action, ref, target, amount, status string) (id string) {
	s.t.Helper()
	err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
		id = tx.NewID("op")
		var finished, there any
		if status == "succeeded" {
			finished, there = tx.NowMS(), target
		}
		_, err := tx.Exec(`
			INSERT INTO partner_operations (operation_id, customer_id, action, intent, intent_version, idempotency_key, request_method, request_path, request_fingerprint,
			  external_ref, status, send_state, attempt_count, first_sent_at_ms, replay_deadline_ms, next_attempt_at_ms, target_public_id, amount, currency, created_at_ms, updated_at_ms, finished_at_ms)
			VALUES ($1, $2, $3, $4, 1, $4, 'POST', '/groups/x', 'v1:x', $4, $5, 'answered', 1, $6, $6, $6, $7, $8, 'USD', $6, $6, $9)`,
			id, customer, action, ref, status, tx.NowMS(), there, amount, finished)
		if err != nil {
			return err
		}
		_, err = tx.Exec(`
			INSERT INTO operation_attempts (operation_id, attempt_no, lock_token, kind, started_at_ms, finished_at_ms, wrote_request, outcome)
			VALUES ($1, 1, 1, 'send', $2, $2, 1, $3)`, id, tx.NowMS(), map[bool]string{true: "succeeded", false: "unknown"}[finished != nil])
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// transact moves credit at the upstream, and returns the transaction's id.
func (s *scene) transact(customer, call, ref, body string) string {
	s.t.Helper()
	s.stranger("POST", "/groups/"+s.group(customer)+"/"+call, ref, body)
	all := s.up.State().Transactions
	return all[len(all)-1].ID
}

// The money sweep: sums and ids on both sides; what is over is closed, and what
// is under way is not judged.
func TestMoneyDiffers(t *testing.T) {
	scenario(t, modelgatetest.Options{ListLag: time.Minute}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.signUp("cus_b")
		s.work(time.Hour)
		group := s.group("cus_a")
		topUp := func(ref, amount string) string {
			return s.transact("cus_a", "top-ups", ref, `{"amount":"`+amount+`","currency":"USD","external_ref":"`+ref+`"}`)
		}
		s.credit("cus_a", "top_up_credit", "led_1", topUp("led_1", "25.10"), "25.10", "succeeded")
		s.credit("cus_a", "debit_credit", "led_2", s.transact("cus_a", "adjustments", "led_2", `{"amount":"-5.05","currency":"USD","reason":"refund","external_ref":"led_2"}`), "-5.05", "succeeded")
		s.sweep(SweepAccounts) // both are too fresh to be in the list
		s.found()
		time.Sleep(time.Hour)
		s.sweep(SweepAccounts)
		s.found()

		// There and not here; here and not there; with another amount.
		byHand := topUp("by_hand", "7.00")
		missing := s.credit("cus_a", "top_up_credit", "led_3", "txn_none", "1.000000000001", "succeeded")
		other := topUp("led_4", "3.00")
		s.credit("cus_a", "top_up_credit", "led_4", other, "4.00", "succeeded")
		// Not known here yet, because its operation is under way.
		open := topUp("led_5", "11.00")
		openID := s.credit("cus_a", "top_up_credit", "led_5", "", "11.00", "failed_retryable")
		time.Sleep(time.Hour)
		s.sweep(SweepAccounts)
		d := detailOf[moneyDetail](t, s.found("money_differs " + group)[0])
		if fmt.Sprint(d) != fmt.Sprint(moneyDetail{"USD", "25.050000000001", "30.05", []string{missing}, []string{byHand}, []string{other}}) {
			t.Errorf("%+v", d)
		}

		// Found again it is the same row, and over when the two agree.
		s.exec(`UPDATE partner_operations SET status = 'succeeded', target_public_id = $1, finished_at_ms = $2, updated_at_ms = $2 WHERE operation_id = $3`, open, time.Now().UnixMilli(), openID)
		s.exec(`UPDATE operation_attempts SET outcome = 'succeeded' WHERE operation_id = $1`, openID)
		time.Sleep(time.Hour)
		s.sweep(SweepAccounts)
		if again := s.found("money_differs " + group); detailOf[moneyDetail](t, again[0]).Here != "36.050000000001" || again[0].FirstSeenAt.Equal(again[0].LastSeenAt) {
			t.Errorf("%+v", again)
		}
		s.credit("cus_a", "top_up_credit", "by_hand", byHand, "7.00", "succeeded")
		s.credit("cus_a", "top_up_credit", "led_6", topUp("led_6", "1.000000000001"), "1.000000000001", "succeeded")
		time.Sleep(time.Hour)
		s.sweep(SweepAccounts)
		if d := detailOf[moneyDetail](t, s.found("money_differs " + group)[0]); d.There != "42.050000000001" || len(d.OnlyThere) != 0 || len(d.OnlyHere) != 1 || len(d.Differing) != 1 {
			t.Errorf("%+v", d)
		}
		s.transact("cus_a", "adjustments", "undo", `{"amount":"-42.050000000001","currency":"USD","reason":"correction"}`) // for I3
		// They were bare rows: there is no payment to them, and no entry.
		s.exec(`DROP TRIGGER operation_attempts_keep`)
		s.exec(`DROP TRIGGER partner_operations_keep`)
		s.exec(`DELETE FROM operation_attempts WHERE operation_id IN (SELECT operation_id FROM partner_operations WHERE action IN ('top_up_credit', 'debit_credit'))`)
		s.exec(`DELETE FROM partner_operations WHERE action IN ('top_up_credit', 'debit_credit')`)
	})
}

// A sweep that fails goes on where it was, alarms after a day, and is over with
// the first success.
func TestASweepThatFails(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		for _, customer := range []string{"cus_a", "cus_b", "cus_c"} {
			s.signUp(customer)
		}
		s.work(time.Hour)
		s.rules(fault("GET", "^/groups/"+s.group("cus_b")+limitsPath, modelgatetest.AtBeforeAuth, "status:502 html", 0))
		before := s.up.State().Requests
		sweeper := s.sweeper()
		if err := sweeper.Sweep(context.Background(), SweepAccounts); err == nil {
			t.Error("it has succeeded")
		}
		if got := s.up.State().Requests - before; got != 4+2 {
			t.Errorf("%d requests", got)
		}
		state := s.sweepStatus(SweepAccounts)
		if deref(state.LastError) != "http_502" || state.Failures != 1 || time.Until(*state.NextAt) != time.Minute || state.Running || state.SucceededAt != nil {
			t.Errorf("%+v", state)
		}
		defer s.run(WorkerOptions{Tick: time.Minute, Sweeper: sweeper})()
		time.Sleep(23 * time.Hour)
		s.found()
		time.Sleep(3 * time.Hour)
		found := s.found("sweep_failing accounts")
		if d := detailOf[failingDetail](t, found[0]); d.Code != "http_502" || s.lines("sweep_failing sweep=accounts") == 0 {
			t.Errorf("%+v", d)
		}
		before = s.up.State().Requests
		s.outside(func() error { s.up.ClearFaults(); return nil })
		time.Sleep(2 * time.Hour)
		if got := s.up.State().Requests - before; got != 4+4 { // cus_a was done
			t.Errorf("%d requests", got)
		}
		s.found()
		if state := s.sweepStatus(SweepAccounts); state.Failures != 0 || state.LastError != nil || state.SucceededAt == nil || state.Checked != 2 {
			t.Errorf("%+v", state)
		}
	})
}

// A group whose lists make no sense is a finding of its own, and the others are
// compared; where none makes sense, the sweep has failed.
func TestAnUnreadableGroup(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		for _, customer := range []string{"cus_a", "cus_b", "cus_c", "cus_d", "cus_e"} {
			s.signUp(customer)
		}
		s.work(time.Hour)
		s.rules(fault("GET", "^/groups/"+s.group("cus_b")+keysPath, modelgatetest.AtOnResponse, "cursor_loop", 0))
		s.sweep(SweepAccounts)
		found := s.found("unreadable " + s.group("cus_b"))
		if d := detailOf[codeDetail](t, found[0]); d.Code != "cursor_loop" || deref(found[0].CustomerID) != "cus_b" || s.sweepStatus(SweepAccounts).Checked != 5 {
			t.Errorf("%+v", d)
		}
		s.outside(func() error { s.up.ClearFaults(); return nil })
		s.sweep(SweepAccounts)
		s.found()
		s.rules(fault("GET", "", modelgatetest.AtOnResponse, "malformed_json", 0))
		if err := s.sweeper().Sweep(context.Background(), SweepAccounts); err == nil || s.sweepStatus(SweepAccounts).Checked != maxUnread || len(s.findings(findingOpen)) != maxUnread {
			t.Errorf("%v after %d groups", err, s.sweepStatus(SweepAccounts).Checked)
		}
	})
}

// A stop in the middle is no failure: the next start goes on from there, and
// nothing is done twice.
func TestARestartInTheMiddleOfASweep(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		for _, customer := range []string{"cus_a", "cus_b"} {
			s.signUp(customer)
		}
		s.work(time.Hour)
		s.stranger("PATCH", "/groups/"+s.group("cus_a"), "console", `{"status":"frozen"}`)
		time.Sleep(time.Minute)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		answers := 0
		s.answering = func(*scene) {
			if answers++; answers == 6 { // in the middle of cus_b
				cancel()
			}
		}
		stopped := s.sweeper()
		if err := stopped.Sweep(ctx, SweepAccounts); err == nil {
			t.Error("it has succeeded")
		}
		if state := s.sweepStatus(SweepAccounts); state.Failures != 0 || state.Running {
			t.Errorf("%+v", state)
		}
		found := s.found("state_differs " + s.group("cus_a"))
		before := s.up.State().Requests
		s.sweep(SweepAccounts)
		if got := s.up.State().Requests - before; got != 4 {
			t.Errorf("%d requests", got)
		}
		if again := s.found("state_differs " + s.group("cus_a")); !again[0].LastSeenAt.Equal(found[0].LastSeenAt) || s.lines("sweep_found") != 1 {
			t.Errorf("%+v", again)
		}
	})
}

// One at a time, also beside the server; who has lost its claim writes nothing.
func TestOneSweepAtATime(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, b *scene) {
		s := b.sweeper()
		r, err := s.claim(context.Background(), SweepAudit, true)
		if err != nil || r == nil {
			t.Fatal(err)
		}
		if err := s.Sweep(context.Background(), SweepAudit); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("%v", err)
		}
		if !b.sweepStatus(SweepAudit).Running {
			t.Error("it is not shown as running")
		}
		time.Sleep(sweepLease)
		if err := s.Sweep(context.Background(), SweepAudit); err != nil { // its process has died
			t.Error(err)
		}
		err = r.write(context.Background(), func(tx *store.Tx) error { return r.done(tx, time.Now().Add(time.Hour)) })
		if !errors.Is(err, errSweepLost) || b.sweepStatus(SweepAudit).DoneUntil.After(time.Now()) {
			t.Errorf("%v", err)
		}
	})
}

// S78: with the kill switch on, nothing is asked.
func TestS78NoSweepsWithTheKillSwitch(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.ready("cus_a", "100.00")
		lister := &listed{}
		sweeper := s.sweeper()
		sweeper.Events, sweeper.Ingest, sweeper.Known = lister, lister.ingest, lister.known
		before := s.up.State().Requests
		stop := s.run(WorkerOptions{Tick: time.Hour, KillSwitch: true, Sweeper: sweeper})
		time.Sleep(72 * time.Hour)
		stop()
		if got := s.up.State().Requests - before; got != 0 || len(lister.since) != 0 {
			t.Errorf("%d requests, %d lists", got, len(lister.since))
		}
		client := s.engine.Client
		s.engine.Client, sweeper.Client = nil, nil // the payment provider is asked also where there is no upstream
		stop = s.run(WorkerOptions{Tick: time.Hour, Sweeper: sweeper})
		time.Sleep(50 * time.Hour)
		stop()
		s.engine.Client = client
		if len(lister.since) != 3 {
			t.Errorf("%d lists", len(lister.since))
		}
	})
}

// listed is a payment provider.
type listed struct {
	since  []time.Time
	events []string
	fails  error // at the end
	took   []string
}

// Events implements eventLister.
func (l *listed) Events(_ context.Context, since time.Time, each func([]byte) error) error {
	l.since = append(l.since, since)
	for _, id := range l.events {
		if err := each([]byte(`{"id":"` + id + `","object":"event"}`)); err != nil {
			return err
		}
	}
	return l.fails
}

func (l *listed) ingest(_ context.Context, body []byte) (Ingested, error) {
	id := eventID(body)
	if strings.Contains(id, "bad") {
		return Ingested{}, store.Errorf(store.CodeInvalid, "not an event")
	}
	l.took = append(l.took, id)
	return Ingested{id, true}, nil
}

func (l *listed) known(_ context.Context, id string) (bool, error) {
	return slices.Contains(l.took, id), nil
}

// What never arrived is taken in once, and is on the list until a round has
// nothing of the kind.
func TestMissedEvents(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, b *scene) {
		l := &listed{events: []string{"evt_3", "evt_bad", "evt_1"}, fails: errors.New("no more")}
		s := b.sweeper()
		s.Events, s.Ingest, s.Known = l, l.ingest, l.known
		run := func() error { return s.Sweep(context.Background(), SweepEvents) }
		began := time.Now()
		if err := run(); err == nil {
			t.Error("it has succeeded")
		}
		// What was missed is on the list although the try has failed.
		want := []string{"missed_events events", "refused_events events"}
		if d := detailOf[eventsDetail](t, b.found(want...)[0]); d.Count != 2 || fmt.Sprint(d.EventIDs) != "[evt_3 evt_1]" || !d.Since.Equal(began.Add(-eventsAgo)) {
			t.Errorf("%+v", d)
		}
		l.fails = nil
		if err := run(); err != nil || b.sweepStatus(SweepEvents).Checked != 3 {
			t.Error(err)
		}
		b.found(want...)
		l.events = []string{"evt_3"}
		time.Sleep(24 * time.Hour)
		if err := run(); err != nil {
			t.Error(err)
		}
		b.found()
		if len(l.took) != 2 {
			t.Errorf("taken in: %q", l.took)
		}
		if len(l.since) != 3 || !l.since[1].Equal(began.Add(-eventsAgo)) || !l.since[2].Equal(began.Add(-eventsOverlap)) {
			t.Errorf("asked since %s", l.since)
		}
	})
}

// manyEvents lists audit events, each so long after the one before, as the
// contract says.
func manyEvents(first time.Time, apart time.Duration, count int, requests *int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		*requests++
		q := r.URL.Query()
		from, _ := time.Parse(time.RFC3339, q.Get("from"))
		to, _ := time.Parse(time.RFC3339, q.Get("to"))
		var start int
		_, _ = fmt.Sscan(q.Get("cursor"), &start)
		var rows []string
		next := "null"
		for i := start; i < count; i++ {
			at := first.Add(time.Duration(i) * apart)
			if at.Before(from) || !at.Before(to) {
				continue
			}
			if len(rows) == pageOf(q.Get("limit")) {
				next = fmt.Sprintf("%q", fmt.Sprint(i))
				break
			}
			rows = append(rows, fmt.Sprintf(`{"id":"aud_%d","action":"group.create","target":{"type":"group","id":"grp_x%d"},"occurred_at":%q}`, i, i, at.Format(time.RFC3339)))
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"data":[%s],"next_cursor":%s}`, strings.Join(rows, ","), next)
	}
}

func pageOf(limit string) (n int) {
	_, _ = fmt.Sscan(limit, &n)
	return n
}

// Long lists are read in slices of time; one that is too long for the shortest
// slice ends the try. Both with a bounded number of requests.
func TestLongListsAreBounded(t *testing.T) {
	if race {
		t.Skip("thousands of rows, one after the other: nothing to find")
	}
	for name, c := range map[string]struct {
		apart      time.Duration
		fails      bool
		kept, most int
	}{
		"spread over a day": {50 * time.Second, false, 1500, 40},
		"in one second":     {0, true, 0, 400},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, modelgatetest.Options{}, func(t *testing.T, b *scene) {
				requests := 0
				defer b.answers(manyEvents(time.Now().Add(10*time.Second), c.apart, 1500, &requests))()
				time.Sleep(23 * time.Hour)
				err := b.sweeper().Sweep(context.Background(), SweepAudit)
				if (err != nil) != c.fails || requests > c.most {
					t.Errorf("%v after %d requests", err, requests)
				}
				if got := b.seen(auditUnmatched); got != c.kept {
					t.Errorf("%d events are kept, want %d", got, c.kept)
				}
				page, err := b.Findings(context.Background(), FindingsRequest{})
				if err != nil || c.kept > 0 && (len(page.Data) != store.DefaultLimit || page.NextCursor == nil || b.lines("sweep_found") != 1) {
					t.Errorf("%d findings on a page (%v)", len(page.Data), err)
				}
			})
		})
	}
}

// Requests that mean nothing say what would be right.
func TestFindingsRefuse(t *testing.T) {
	b := stillScene(t)
	ctx := context.Background()
	for want, call := range map[string]func() error{
		"kind: want foreign_change, unmatched_change": func() error { _, err := b.Findings(ctx, FindingsRequest{Kind: "x"}); return err },
		"state: want open, acknowledged":              func() error { _, err := b.Findings(ctx, FindingsRequest{State: "x"}); return err },
		"who: required":                               func() error { _, err := b.Acknowledge(ctx, AcknowledgeRequest{"fnd_1", "", "x"}); return err },
		"note: required":                              func() error { _, err := b.Acknowledge(ctx, AcknowledgeRequest{"fnd_1", "aki", ""}); return err },
		"finding fnd_1 not found":                     func() error { _, err := b.Acknowledge(ctx, AcknowledgeRequest{"fnd_1", "aki", "x"}); return err },
		"sweep: want audit, accounts, events":         func() error { _, err := b.SweepNow(ctx, SweepNowRequest{"x"}); return err },
		"the sweep events has nobody to ask":          func() error { return b.sweeper().Sweep(ctx, SweepEvents) },
	} {
		if err := call(); err == nil || !strings.HasPrefix(err.Error(), want) || store.CodeOf(err) == "" {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
