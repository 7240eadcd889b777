package billing

import (
	"context"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"jpintel/billing/modelgate"
	"jpintel/billing/modelgatetest"
	"jpintel/billing/money"
	"jpintel/store"
)

var zero money.Amount

func TestKeysAreTheContracts(t *testing.T) {
	pay := &payment{CustomerID: "cus_42", Ref: "pi_1", FirstEventID: "evt_1", EntryID: "led_1"}
	for want, in := range map[string]intent{
		"top-up:cus_42:evt_1:led_1":                        topUpIntent(pay, "grp_1", zero, "USD", 1),
		"top-up:cus_42:evt_1:led_1:2":                      topUpIntent(pay, "grp_1", zero, "USD", 2),
		"debit:cus_42:pi_1:3":                              debitIntent(pay, "grp_1", zero, "USD", 3, modelgate.ReasonRefund, "txn_1"),
		"create-group-for-customer:cus_42:1":               groupIntent("cus_42", 1, nil, "USD"),
		"create-key-for-customer:cus_42:grp_1:default:2":   keyIntent("cus_42", "grp_1", "default", 2),
		"set-spend-limit:cus_42:grp_1:3":                   limitIntent(SetLimit, "cus_42", "grp_1", 3, zero, "USD"),
		"revoke-key:cus_42:key_1:1":                        revokeIntent("cus_42", "key_1", 1),
		"delete-group:cus_42:grp_2:1":                      deleteIntent("cus_42", "grp_2", 1),
		"freeze:cus_42:dp_1":                               statusIntent(FreezeGroup, "cus_42", "grp_1", "dp_1", 1),
		"thaw:cus_42:dp_1":                                 statusIntent(ThawGroup, "cus_42", "grp_1", "dp_1", 1),
		"create-group-for-customer:a%3Ab%40c.d%2Be-f%25:1": groupIntent("a:b@c.d+e-f%", 1, nil, "USD"),
	} {
		if in.request.Key != want || in.keyText != "" {
			t.Errorf("%s, want %s", in.request.Key, want)
		}
	}
	long := statusIntent(FreezeGroup, strings.Repeat("@", 64), "grp_1", "dp_1", 1)
	if !strings.HasPrefix(long.request.Key, "freeze:h:") || len(long.request.Key) != len("freeze:h:")+52 || !strings.HasPrefix(long.keyText, "freeze:%40%40") {
		t.Errorf("%s stands for %s", long.request.Key, long.keyText)
	}
}

// No two lists of segments make one key, and every key can be sent.
func TestKeysAreDifferentForDifferentIntents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		segments := rapid.SliceOfN(rapid.StringN(0, 20, 60), 1, 5)
		a, b := segments.Draw(t, "a"), segments.Draw(t, "b")
		same := len(a) == len(b)
		for i := range a {
			same = same && i < len(b) && a[i] == b[i]
		}
		left, _ := idempotencyKey("p", append([]string{}, a...)...)
		right, _ := idempotencyKey("p", append([]string{}, b...)...)
		if (left == right) != same {
			t.Fatalf("%q and %q: %s, %s", a, b, left, right)
		}
		if len(left) > maxKey || strings.ContainsFunc(left, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Fatalf("%q", left)
		}
	})
}

func TestFingerprints(t *testing.T) {
	r := keyIntent("cus_a", "grp_1", "default", 1).request
	first, err := fingerprint(r)
	if err != nil || !strings.HasPrefix(first, "v1:") || len(first) != 3+64 {
		t.Fatalf("%s (%v)", first, err)
	}
	r.Key, r.Body = "another", []byte(strings.Replace(string(r.Body), `{`, `{ "memo":"words", `, 1)) // neither key nor words nor spaces have a meaning
	if again, err := fingerprint(r); err != nil || again != first {
		t.Errorf("%s (%v)", again, err)
	}
	r.Body = []byte(strings.Replace(string(r.Body), "default", "other", 1))
	if again, _ := fingerprint(r); again == first {
		t.Error("another purpose has the same fingerprint")
	}
	r = revokeIntent("cus_a", "key_1", 1).request
	deleted, _ := fingerprint(r)
	r.Method = "GET"
	if other, _ := fingerprint(r); other == deleted {
		t.Error("another method has the same fingerprint")
	}
}

// S33: whatever rewrites a stored request, it is not sent.
func TestS33ARewrittenBodyIsNotSent(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		if err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
			_, err := tx.Exec(`UPDATE partner_operations SET request_body = '{"name":"x"}' WHERE action = 'create_group'`)
			return err
		}); err == nil {
			t.Fatal("the file lets a stored request be rewritten")
		}
		s.exec(`DROP TRIGGER partner_operations_identity`)
		s.exec(`UPDATE partner_operations SET request_body = CAST('{"name":"x"}' AS BLOB) WHERE action = 'create_group'`)
		s.step()
		o := s.want("cus_a", CreateGroup, ReconciliationNeeded)
		if deref(o.ErrorCode) != "local_fingerprint_mismatch" || o.AttemptCount != 0 || s.up.State().Requests != 0 {
			t.Errorf("%s, %d requests", deref(o.ErrorCode), s.up.State().Requests)
		}
		s.wantStatus("cus_a", NeedsAttention)
		if _, err := s.Retry(context.Background(), RetryRequest{o.OperationID, "aki", "again"}); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("it can be retried: %v", err)
		}
	})
}

// What identifies an operation never changes, success is for good, and nothing
// is deleted: the file itself says so.
func TestTheFileKeepsOperations(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.step()
		for _, query := range []string{
			`UPDATE partner_operations SET idempotency_key = 'x' WHERE action = 'create_group'`,
			`UPDATE partner_operations SET amount = '1.00' WHERE action = 'set_initial_limit'`,
			`UPDATE partner_operations SET intent_version = 9 WHERE action = 'create_group'`,
			`UPDATE partner_operations SET first_sent_at_ms = 1 WHERE action = 'create_group'`,
			`UPDATE partner_operations SET status = 'pending', finished_at_ms = NULL WHERE action = 'create_group'`,
			`DELETE FROM partner_operations`,
			`DELETE FROM operation_attempts`,
		} {
			if err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
				_, err := tx.Exec(query)
				return err
			}); err == nil {
				t.Errorf("%s is let through", query)
			}
		}
	})
}
