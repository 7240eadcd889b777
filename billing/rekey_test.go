package billing

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"jpintel/store"
	"jpintel/store/storetest"
)

// A new master key takes over every sealed value: secrets and late answers.
func TestRekey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	b := benchAt(t, path)
	b.signUp("cus_a")
	b.step()
	if err := b.DB.Write(context.Background(), func(tx *store.Tx) error {
		_, err := tx.Exec(`INSERT INTO late_results (operation_id, lock_token, at_ms, http_status, sealed_body) SELECT operation_id, 7, 0, 200, $1 FROM partner_operations WHERE action = 'create_key'`,
			tx.Keys().Seal([]byte("x"), lateContext(b.operation("cus_a", CreateKey).OperationID, 7)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	newKey := "new:" + strings.Repeat("ab", 32)
	both, err := store.ParseKeyring(newKey+","+storetest.MasterKeys, storetest.Salt)
	if err != nil {
		t.Fatal(err)
	}
	b.DB.Keys = both
	for _, want := range []int{2, 0} {
		if n, err := Rekey(context.Background(), b.DB); err != nil || n != want {
			t.Errorf("%d resealed, want %d (%v)", n, want, err)
		}
	}
	if b.DB.Keys, err = store.ParseKeyring(newKey, storetest.Salt); err != nil {
		t.Fatal(err)
	}
	if r, err := b.Reveal(context.Background(), RevealRequest{"r1", "key_1"}); err != nil || r.Secret != "mg_ab12_secret_number_1" {
		t.Errorf("%+v (%v)", r, err)
	}
}
