package billing

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/store"
)

func (b *bench) changeKey(key, action, purpose string) (Accepted, error) {
	return b.ChangeKey(context.Background(), KeyRequest{Key: key, CustomerID: "cus_a", Action: action, Purpose: purpose})
}

// keys are the customer's keys as purpose, id and state.
func (b *bench) keys() []string {
	return b.strings(`SELECT purpose || ' ' || key_id || ' ' || status FROM model_keys ORDER BY created_at_ms, key_id`)
}

func TestKeysAreMadeReplacedAndRevoked(t *testing.T) {
	b := newBench(t)
	b.signUp("cus_a")
	if _, err := b.changeKey("k0", "create", "batch"); store.CodeOf(err) != store.CodeConflict {
		t.Errorf("before there is a group: %v", err)
	}
	b.step()
	if _, err := b.changeKey("k1", "create", ""); store.CodeOf(err) != store.CodeConflict {
		t.Errorf("a second one for a purpose: %v", err)
	}
	for _, step := range []struct {
		key, action, purpose string
		want                 []string
	}{
		{"k2", "create", "batch", []string{"default key_1 active", "batch key_2 active"}},
		{"k3", "rotate", "", []string{"default key_1 revoked", "batch key_2 active", "default key_3 active"}},
		{"k3", "rotate", "", []string{"default key_1 revoked", "batch key_2 active", "default key_3 active"}}, // the same call
		{"k4", "revoke", "batch", []string{"default key_1 revoked", "batch key_2 revoked", "default key_3 active"}},
		{"k5", "create", "batch", []string{"default key_1 revoked", "batch key_2 revoked", "default key_3 active", "batch key_4 active"}},
	} {
		if _, err := b.changeKey(step.key, step.action, step.purpose); err != nil {
			t.Fatal(step, err)
		}
		if b.step(); !slices.Equal(b.keys(), step.want) {
			t.Errorf("%+v: %q", step, b.keys())
		}
	}
	b.wantStatus("cus_a", Ready)
	if _, err := b.changeKey("k6", "revoke", "other"); store.CodeOf(err) != store.CodeConflict {
		t.Errorf("no key to revoke: %v", err)
	}
	for _, r := range [][2]string{{"make", ""}, {"create", "A"}, {"create", "a b"}, {"", ""}} {
		if _, err := b.changeKey("k7", r[0], r[1]); store.CodeOf(err) != store.CodeInvalid {
			t.Errorf("%q: %v", r, err)
		}
	}
	b.once()
}

func TestASecretIsShownOnce(t *testing.T) {
	b := newBench(t)
	b.signUp("cus_a")
	b.step()
	reveal := func(key string) (Revealed, error) {
		return b.Reveal(context.Background(), RevealRequest{key, "key_1"})
	}
	first, err := reveal("r1")
	again, err2 := reveal("r1") // the same call: its answer was lost
	if err != nil || err2 != nil || first != again || first.Secret != "mg_ab12_secret_number_1" || first.CustomerID != "cus_a" {
		t.Errorf("%+v %+v (%v, %v)", first, again, err, err2)
	}
	if _, err := reveal("r2"); store.CodeOf(err) != store.CodeGone {
		t.Errorf("a second time: %v", err)
	}
	if _, err := b.Reveal(context.Background(), RevealRequest{"r3", "key_9"}); store.CodeOf(err) != store.CodeNotFound {
		t.Errorf("an unknown key: %v", err)
	}
	if n := len(b.strings(`SELECT key_id FROM key_secrets WHERE sealed IS NOT NULL`)); n != 0 {
		t.Error("the secret is kept")
	}
	if c, err := b.Customer(context.Background(), CustomerRequest{"cus_a"}); err != nil || c.Keys[0].SecretAvailable || *c.Status != Ready {
		t.Errorf("%+v (%v)", c, err)
	}
}

// S70: the key was made and its secret is lost. Nobody goes on with it, and the
// operator's word replaces it.
func TestS70ASecretThatNeverArrived(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.partner.after = on(2, func(http.ResponseWriter) bool { return cut() })
		b.signUp("cus_a")
		b.work(time.Hour)
		b.want("cus_a", CreateKey, Succeeded)
		parent := b.want("cus_a", ProvisionCustomer, ReconciliationNeeded)
		if *parent.Phase != PhaseSecretLost || len(b.partner.sent) != 3 {
			t.Errorf("%s after %d requests", *parent.Phase, len(b.partner.sent))
		}
		b.wantStatus("cus_a", NeedsAttention)
		resolve := func() error {
			_, err := b.Resolve(context.Background(), ResolveRequest{OperationID: parent.OperationID, Who: "aki", Note: "replace it", Outcome: "replace_key"})
			return err
		}
		if err := resolve(); err != nil {
			t.Fatal(err)
		}
		if err := resolve(); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("twice: %v", err)
		}
		b.work(time.Hour)
		b.wantStatus("cus_a", Ready)
		if got := b.keys(); !slices.Equal(got, []string{"default key_1 revoked", "default key_2 active"}) {
			t.Errorf("%q", got)
		}
		if got := b.strings(`SELECT who || ' ' || action FROM operator_notes WHERE operation_id = $1 ORDER BY note_seq`, parent.OperationID); !slices.Equal(got, []string{"aki resolve", "system provisioned"}) {
			t.Errorf("%q", got)
		}
		b.once()
	})
}

// A key whose secret is lost outside of a sign-up is replaced by rotating it.
func TestASecretThatNeverArrivedWithARotation(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.signUp("cus_a")
		b.work(time.Hour)
		b.partner.after = on(5, func(http.ResponseWriter) bool { return cut() })
		if _, err := b.changeKey("k1", "rotate", ""); err != nil {
			t.Fatal(err)
		}
		b.work(time.Hour)
		b.wantStatus("cus_a", NeedsAttention)
		if _, err := b.changeKey("k2", "rotate", ""); err != nil {
			t.Fatal(err)
		}
		b.work(time.Hour)
		b.wantStatus("cus_a", Ready)
		if got := b.keys(); !slices.Equal(got, []string{"default key_1 revoked", "default key_2 revoked", "default key_3 active"}) {
			t.Errorf("%q", got)
		}
	})
}

// S71: no secret is anywhere in the clear, whatever was answered how.
func TestS71NoSecretInTheClear(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	b := benchAt(t, path)
	b.partner.after = func(n int, w http.ResponseWriter, _ *http.Request) bool {
		if n == 2 { // the key's answer, broken off in the middle of its secret, with ours in it
			_, _ = w.Write([]byte(`{"authorization":"Bearer ` + testKey + `","id":"key_1","secret":"mg_ab12_secret_numb`))
		}
		return n == 2
	}
	b.signUp("cus_a")
	b.step()
	b.dueNow()
	b.step()
	parent := b.operation("cus_a", ProvisionCustomer)
	if _, err := b.Resolve(context.Background(), ResolveRequest{OperationID: parent.OperationID, Who: "aki", Note: "replace it", Outcome: "replace_key"}); err != nil {
		t.Fatal(err)
	}
	b.step()
	b.wantStatus("cus_a", Ready)
	if _, err := b.Reveal(context.Background(), RevealRequest{"r1", "key_2"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, path + "-wal"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{testKey, "mg_ab12_secret_numb"} {
			if strings.Contains(string(text), secret) || strings.Contains(b.log.String(), secret) {
				t.Errorf("%s is in %s or in the log", secret, name)
			}
		}
	}
}
