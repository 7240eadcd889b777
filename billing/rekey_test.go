package billing

import (
	"context"
	"strings"
	"testing"

	"jpintel/billing/modelgatetest"
	"jpintel/store"
	"jpintel/store/storetest"
)

// A new master key takes over every sealed value: secrets and late answers.
func TestRekey(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.step()
		key := s.operation("cus_a", CreateKey)
		if err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
			_, err := tx.Exec(`INSERT INTO late_results (operation_id, lock_token, at_ms, http_status, sealed_body) VALUES ($1, 7, 0, 200, $2)`,
				key.OperationID, tx.Keys().Seal([]byte("x"), lateContext(key.OperationID, 7)))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		newKey := "new:" + strings.Repeat("ab", 32)
		both, err := store.ParseKeyring(newKey+","+storetest.MasterKeys, storetest.Salt)
		if err != nil {
			t.Fatal(err)
		}
		s.DB.Keys = both
		for _, want := range []int{2, 0} {
			if n, err := Rekey(context.Background(), s.DB); err != nil || n != want {
				t.Errorf("%d resealed, want %d (%v)", n, want, err)
			}
		}
		if s.DB.Keys, err = store.ParseKeyring(newKey, storetest.Salt); err != nil {
			t.Fatal(err)
		}
		if r, err := s.Reveal(context.Background(), RevealRequest{"r1", *key.TargetID}); err != nil || r.Secret != s.up.Secrets()[1] {
			t.Errorf("%s (%v)", r.KeyID, err)
		}
	})
}
