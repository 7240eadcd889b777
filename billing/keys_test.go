package billing

import (
	"context"
	"slices"
	"testing"
	"time"

	"jpintel/billing/modelgatetest"
	"jpintel/store"
)

func (s *scene) changeKey(key, action, purpose string) (Accepted, error) {
	return s.ChangeKey(context.Background(), KeyRequest{Key: key, CustomerID: "cus_a", Action: action, Purpose: purpose})
}

// keys are the customer's keys as purpose, version and state, in the order in
// which they were made.
func (s *scene) keys() []string {
	s.t.Helper()
	return s.strings(`SELECT purpose || ' ' || key_version || ' ' || status FROM model_keys ORDER BY created_at_ms, key_id`)
}

func TestKeysAreMadeReplacedAndRevoked(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		if _, err := s.changeKey("k0", "create", "batch"); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("before there is a group: %v", err)
		}
		s.step()
		if _, err := s.changeKey("k1", "create", ""); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("a second one for a purpose: %v", err)
		}
		for _, step := range []struct {
			key, action, purpose string
			want                 []string
		}{
			{"k2", "create", "batch", []string{"default 1 active", "batch 1 active"}},
			{"k3", "rotate", "", []string{"default 1 revoked", "batch 1 active", "default 2 active"}},
			{"k3", "rotate", "", []string{"default 1 revoked", "batch 1 active", "default 2 active"}}, // the same call
			{"k4", "revoke", "batch", []string{"default 1 revoked", "batch 1 revoked", "default 2 active"}},
			{"k5", "create", "batch", []string{"default 1 revoked", "batch 1 revoked", "default 2 active", "batch 2 active"}},
		} {
			if _, err := s.changeKey(step.key, step.action, step.purpose); err != nil {
				t.Fatal(step, err)
			}
			s.step()
			time.Sleep(time.Second)
			if !slices.Equal(s.keys(), step.want) {
				t.Errorf("%+v: %q", step, s.keys())
			}
			s.holds()
		}
		s.ready("cus_a", "100.00")
		if _, err := s.changeKey("k6", "revoke", "other"); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("no key to revoke: %v", err)
		}
		for _, r := range [][2]string{{"make", ""}, {"create", "A"}, {"create", "a b"}, {"", ""}} {
			if _, err := s.changeKey("k7", r[0], r[1]); store.CodeOf(err) != store.CodeInvalid {
				t.Errorf("%q: %v", r, err)
			}
		}
	})
}

func TestASecretIsShownOnce(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.step()
		id := *s.operation("cus_a", CreateKey).TargetID
		reveal := func(key string) (Revealed, error) {
			return s.Reveal(context.Background(), RevealRequest{key, id})
		}
		first, err := reveal("r1")
		again, err2 := reveal("r1") // the same call: its answer was lost
		if err != nil || err2 != nil || first != again || first.Secret != s.up.Secrets()[1] || first.CustomerID != "cus_a" {
			t.Errorf("%s %s (%v, %v)", first.KeyID, again.KeyID, err, err2)
		}
		if _, err := reveal("r2"); store.CodeOf(err) != store.CodeGone {
			t.Errorf("a second time: %v", err)
		}
		if _, err := s.Reveal(context.Background(), RevealRequest{"r3", "key_9"}); store.CodeOf(err) != store.CodeNotFound {
			t.Errorf("an unknown key: %v", err)
		}
		if n := len(s.strings(`SELECT key_id FROM key_secrets WHERE sealed IS NOT NULL`)); n != 0 {
			t.Error("the secret is kept")
		}
		if c, err := s.Customer(context.Background(), CustomerRequest{"cus_a"}); err != nil || c.Keys[0].SecretAvailable || *c.Status != Ready {
			t.Errorf("%+v (%v)", c, err)
		}
	})
}

// A key whose secret is lost outside of a sign-up is replaced by rotating it.
func TestASecretThatNeverArrivedWithARotation(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.work(time.Hour)
		s.rules(fault("POST", keysPath, modelgatetest.AtAfterCommit, "reset", 1))
		if _, err := s.changeKey("k1", "rotate", ""); err != nil {
			t.Fatal(err)
		}
		s.work(time.Hour)
		s.wantStatus("cus_a", NeedsAttention)
		if _, err := s.changeKey("k2", "rotate", ""); err != nil {
			t.Fatal(err)
		}
		s.ready("cus_a", "100.00")
		if got := s.keys(); !slices.Equal(got, []string{"default 1 revoked", "default 2 revoked", "default 3 active"}) {
			t.Errorf("%q", got)
		}
	})
}
