package billing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

// simulated runs a test on the bubble's clock.
func simulated(t *testing.T, fn func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fn(t, newPipeBench(t)) })
}

// S02 to S06, and what comes of each: the same key, the same bytes, one object.
func TestS02ToS06LostRequestsAndAnswers(t *testing.T) {
	for name, fault := range map[string]func(p *partner, nth int){
		"S04 cut off before anything": func(p *partner, nth int) { p.before = on(nth, func(http.ResponseWriter) bool { return cut() }) },
		"S05 done, then cut off":      func(p *partner, nth int) { p.after = on(nth, func(http.ResponseWriter) bool { return cut() }) },
		"S13 500, then 201": func(p *partner, nth int) {
			p.before = on(nth, func(w http.ResponseWriter) bool { return status(w, 500, "internal") })
		},
		"S15 502": func(p *partner, nth int) {
			p.before = on(nth, func(w http.ResponseWriter) bool { w.WriteHeader(502); return true })
		},
		"done, then 500": func(p *partner, nth int) {
			p.after = on(nth, func(w http.ResponseWriter) bool { return status(w, 500, "internal") })
		},
		"S28 done, then half an answer": func(p *partner, nth int) {
			p.after = on(nth, func(w http.ResponseWriter) bool { _, _ = w.Write([]byte(`{"id":"grp_1"`)); return true })
		},
	} {
		for _, nth := range []int{1, 3} { // the group and the limit: a key's secret is another matter
			t.Run(fmt.Sprintf("%s, request %d", name, nth), func(t *testing.T) {
				simulated(t, func(t *testing.T, b *bench) {
					fault(b.partner, nth)
					b.signUp("cus_a")
					b.work(time.Hour)
					b.want("cus_a", ProvisionCustomer, Succeeded)
					b.wantStatus("cus_a", Ready)
					if len(b.partner.groups) != 1 || len(b.partner.keys) != 1 || len(b.partner.sent) != 4 || b.partner.sent[nth-1] != b.partner.sent[nth] {
						t.Errorf("%d groups, %d keys, %+v", len(b.partner.groups), len(b.partner.keys), b.partner.sent)
					}
					b.once()
				})
			})
		}
	}
}

// S02: the process dies between the attempt's record and its first byte.
func TestS02ACrashAfterTheAttemptIsUnknown(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.signUp("cus_a")
		if err := b.DB.Write(context.Background(), func(tx *store.Tx) error {
			o, err := claim(tx, "boot_before/1", "")
			if err == nil {
				_, err = o.begin(tx)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if n := b.step(); n != 0 {
			t.Errorf("%d steps while the lease holds", n)
		}
		if err := b.DB.Write(context.Background(), func(tx *store.Tx) error {
			n, err := releaseLeases(tx, b.DB.BootID)
			if n != 1 {
				t.Errorf("%d leases released", n)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		b.step()
		o := b.want("cus_a", CreateGroup, Succeeded)
		if o.UnknownCount != 1 || o.AttemptCount != 2 {
			t.Errorf("%d unknown of %d", o.UnknownCount, o.AttemptCount)
		}
		got := b.strings(`SELECT attempt_no || ' ' || kind || ' ' || outcome FROM operation_attempts WHERE operation_id = $1 ORDER BY attempt_no`, o.OperationID)
		if !slices.Equal(got, []string{"1 send interrupted", "2 replay succeeded"}) {
			t.Errorf("%q", got)
		}
	})
}

// S16, S17 and S20: the upstream says when.
func TestTheUpstreamSaysWhen(t *testing.T) {
	for name, c := range map[string]struct {
		answer  func(w http.ResponseWriter) bool
		times   int
		least   time.Duration
		unknown int
	}{
		"S16 503": {func(w http.ResponseWriter) bool {
			w.Header().Set("Retry-After", "7")
			return status(w, 503, "overloaded")
		}, 1, 7 * time.Second, 1},
		"S16 503 not started": {func(w http.ResponseWriter) bool {
			w.Header().Set("Retry-After", "7")
			return status(w, 503, "not_started")
		}, 1, 7 * time.Second, 0},
		"S18 429 for ever": {func(w http.ResponseWriter) bool {
			w.Header().Set("Retry-After", "999999999")
			return status(w, 429, "rate")
		}, 1, time.Hour, 0},
		"S20 in progress": {func(w http.ResponseWriter) bool {
			w.Header().Set("Retry-After", "1")
			return status(w, 409, "idempotency_in_progress")
		}, 3, 3 * time.Second, 0},
		"S17 429 by the upstream's clock": {func(w http.ResponseWriter) bool {
			theirs := time.Now().Add(-10 * time.Minute)
			w.Header().Set("Date", theirs.UTC().Format(http.TimeFormat))
			w.Header().Set("Retry-After", theirs.Add(30*time.Second).UTC().Format(http.TimeFormat))
			return status(w, 429, "rate")
		}, 1, 30 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, b *bench) {
				b.partner.before = func(n int, w http.ResponseWriter, _ *http.Request) bool { return n <= c.times && c.answer(w) }
				b.engine.Jitter = func(int64) int64 { return 0 }
				b.signUp("cus_a")
				started := time.Now()
				b.work(3 * time.Hour)
				o := b.want("cus_a", CreateGroup, Succeeded)
				if took := o.FinishedAt.Sub(started); took < c.least || took > c.least+time.Minute {
					t.Errorf("it took %s, want %s", took, c.least)
				}
				if o.UnknownCount != c.unknown || o.AttemptCount != c.times+1 || len(b.partner.groups) != 1 {
					t.Errorf("%d unknown of %d attempts, %d groups", o.UnknownCount, o.AttemptCount, len(b.partner.groups))
				}
				b.once()
			})
		})
	}
}

// S21 to S23: what is not tried again.
func TestS21ToS23WhatIsNotTriedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		status  int
		code    string
		sends   int
		want    Status
		stopped string
	}{
		"S21 reused":   {409, "idempotency_key_reused", 1, ReconciliationNeeded, "idempotency_key_reused"},
		"S21 stripe":   {400, "idempotency_error", 1, ReconciliationNeeded, "idempotency_error"},
		"S21 strict":   {409, "idempotency_conflict", 1, ReconciliationNeeded, "idempotency_conflict"},
		"S22 unclear":  {409, "", 4, ReconciliationNeeded, "conflict_unclear"},
		"S23 refused":  {422, "model_unknown", 1, FailedFinal, "model_unknown"},
		"S23 missing":  {400, "idempotency_key_missing", 1, FailedFinal, "idempotency_key_missing"},
		"group frozen": {409, "group_frozen", 1, FailedFinal, "group_frozen"},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, b *bench) {
				b.partner.before = func(_ int, w http.ResponseWriter, _ *http.Request) bool {
					if c.code == "" {
						w.WriteHeader(c.status)
						return true
					}
					return status(w, c.status, c.code)
				}
				b.signUp("cus_a")
				b.work(24 * time.Hour)
				if o := b.want("cus_a", CreateGroup, c.want); deref(o.ErrorCode) != c.stopped || len(b.partner.sent) != c.sends {
					t.Errorf("%s after %d sends", deref(o.ErrorCode), len(b.partner.sent))
				}
				b.wantStatus("cus_a", NeedsAttention)
				if !strings.Contains(b.log.String(), "operation_needs_attention") {
					t.Error("nobody is told")
				}
			})
		})
	}
}

// T12: a refusal after a send that may have had its effect is no end.
func TestARefusalInDoubtIsLookedInto(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.partner.after = on(1, func(http.ResponseWriter) bool { return cut() })
		b.partner.before = on(2, func(w http.ResponseWriter) bool { return status(w, 422, "name_taken") })
		b.signUp("cus_a")
		b.work(time.Hour)
		o := b.want("cus_a", CreateGroup, Succeeded)
		if o.AttemptCount != 2 || len(b.partner.groups) != 1 {
			t.Errorf("%d attempts, %d groups", o.AttemptCount, len(b.partner.groups))
		}
		b.wantStatus("cus_a", Ready)
	})
}

// S12: a disk that is full before the attempt is recorded lets nothing out.
func TestS12ADiskThatIsFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	b := benchAt(t, path)
	b.signUp("cus_a")
	var o *Operation
	if err := b.DB.Write(context.Background(), func(tx *store.Tx) (err error) {
		o, err = claim(tx, b.DB.BootID+"/1", "")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	fill(b, "operation_attempts")
	err := b.engine.send(context.Background(), o)
	if store.CodeOf(err) != store.CodeUnavailable || len(b.partner.sent) != 0 {
		t.Errorf("%v, %d requests", err, len(b.partner.sent))
	}
	b.exec(`PRAGMA max_page_count = 1000000`)
	if o := b.want("cus_a", CreateGroup, Pending); o.SendState != "not_sent" || o.AttemptCount != 0 {
		t.Errorf("%s, %d attempts", o.SendState, o.AttemptCount)
	}
	if !strings.Contains(b.log.String(), "store_unavailable") {
		t.Error("nobody is told")
	}
	b.exec(`UPDATE partner_operations SET locked_by = NULL, locked_until_ms = NULL`)
	b.step()
	b.wantStatus("cus_a", Ready)
}

// fill lets the file grow no more, and has an attempt need more than there is.
func fill(b *bench, table string) {
	b.t.Helper()
	b.exec(`CREATE TABLE filler (x BLOB)`)
	b.exec(`CREATE TRIGGER filled AFTER INSERT ON ` + table + ` BEGIN INSERT INTO filler VALUES (zeroblob(100000)); END`)
	b.exec(`PRAGMA max_page_count = 1`) // the least: what it has
}

// S38 and T24: an answer that comes when the lease is lost changes nothing, and
// its successor reads it before it sends.
func TestS38ALateAnswerIsKept(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.signUp("cus_a")
		b.partner.after = func(n int, _ http.ResponseWriter, _ *http.Request) bool {
			if n == 2 { // the key: its secret is in this one answer
				b.exec(`UPDATE partner_operations SET lock_token = lock_token + 1, locked_by = 'boot_other/cli', locked_until_ms = $1 WHERE action = 'create_key'`, time.Now().Add(time.Minute).UnixMilli())
			}
			return false
		}
		b.step()
		if o := b.want("cus_a", CreateKey, Pending); o.SendState != "maybe_sent" {
			t.Errorf("%s", o.SendState)
		}
		if n := len(b.strings(`SELECT operation_id FROM late_results WHERE read_at_ms IS NULL`)); n != 1 {
			t.Fatalf("%d answers kept", n)
		}
		for _, sealed := range b.strings(`SELECT CAST(sealed_body AS TEXT) FROM late_results`) {
			if strings.Contains(sealed, "mg_ab12") {
				t.Error("it is kept in the clear")
			}
		}
		time.Sleep(2 * time.Minute)
		b.step()
		b.wantStatus("cus_a", Ready)
		if len(b.partner.keys) != 1 || len(b.partner.sent) != 3 {
			t.Errorf("%d keys, %d requests", len(b.partner.keys), len(b.partner.sent))
		}
		c, err := b.Customer(context.Background(), CustomerRequest{"cus_a"})
		if err != nil || !c.Keys[0].SecretAvailable {
			t.Errorf("the secret is lost: %+v (%v)", c, err)
		}
	})
}

// S25: our own key is refused. Everything waits, nothing is counted, and it goes
// on when the key is right again.
func TestS25AWrongKeyHoldsEverything(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		wrong := true
		b.partner.before = func(_ int, w http.ResponseWriter, _ *http.Request) bool {
			return wrong && status(w, 401, "unauthorized")
		}
		b.signUp("cus_a")
		b.signUp("cus_b")
		b.work(time.Hour)
		if o := b.want("cus_a", CreateGroup, FailedRetryable); deref(o.Hold) != holdAuth || o.AttemptCount != 0 {
			t.Errorf("hold %s, %d attempts", deref(o.Hold), o.AttemptCount)
		}
		if o := b.want("cus_b", CreateGroup, Pending); o.SendState != "not_sent" || len(b.partner.sent) != 1 {
			t.Errorf("%s, %d requests", o.SendState, len(b.partner.sent))
		}
		b.exec(`UPDATE partner_operations SET status = 'failed_retryable', hold_reason = $1 WHERE action = 'create_group'`, holdAuth) // as two at once would be
		wrong = false
		if _, err := b.Retry(context.Background(), RetryRequest{b.operation("cus_a", CreateGroup).OperationID, "aki", "the key is set"}); err != nil {
			t.Fatal(err)
		}
		b.work(time.Hour)
		b.wantStatus("cus_a", Ready)
		b.wantStatus("cus_b", Ready)
		b.once()
	})
}

// S29: redirected, it is held and asks again when that is over.
func TestS29ARedirectHolds(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.partner.before = on(1, func(w http.ResponseWriter) bool {
			w.Header().Set("Location", "http://127.0.0.1/x")
			w.WriteHeader(307)
			return true
		})
		b.signUp("cus_a")
		b.work(time.Hour)
		if o := b.want("cus_a", CreateGroup, FailedRetryable); deref(o.Hold) != holdRedirect || o.UnknownCount != 1 || len(b.partner.sent) != 1 {
			t.Errorf("hold %s, %d unknown, %d requests", deref(o.Hold), o.UnknownCount, len(b.partner.sent))
		}
		if err := b.engine.Probe(context.Background()); err != nil {
			t.Fatal(err)
		}
		b.work(time.Hour)
		b.wantStatus("cus_a", Ready)
	})
}

// Twelve sends that settle nothing are followed by looking, not by a thirteenth.
func TestTwelveSendsThenALook(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.partner.after = func(n int, w http.ResponseWriter, _ *http.Request) bool { return n <= 12 && status(w, 500, "internal") }
		b.signUp("cus_a")
		b.work(24 * time.Hour)
		o := b.want("cus_a", CreateGroup, Succeeded)
		if o.AttemptCount != 12 || len(b.partner.groups) != 1 {
			t.Errorf("%d attempts, %d groups", o.AttemptCount, len(b.partner.groups))
		}
		if got := b.strings(`SELECT surface || ' ' || verdict || ' ' || match_ids FROM reconcile_evidence`); !slices.Equal(got, []string{"groups succeeded grp_1"}) {
			t.Errorf("%q", got)
		}
		b.wantStatus("cus_a", Ready)
	})
}

// benchAt is newBench on a file of the test's.
func benchAt(t *testing.T, path string) *bench {
	t.Helper()
	b := newBench(t)
	b.DB = storetest.Open(t, path)
	b.engine.DB = b.DB
	return b
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
