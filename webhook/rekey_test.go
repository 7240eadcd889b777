package webhook

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

func keyring(t *testing.T, keys string) *store.Keyring {
	t.Helper()
	k, err := store.ParseKeyring(keys, storetest.Salt)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestRekey(t *testing.T) {
	const n = rekeyRows + 1 // more than a step
	s := newService(t)
	addSubscriptions(t, s.DB, n)
	ids := lines(t, s.DB, `SELECT subscription_id FROM webhook_subscriptions ORDER BY sub_seq`)
	secrets := make([]string, n)
	write(t, s.DB, func(tx *store.Tx) error {
		for i, id := range ids {
			secrets[i] = newSecret()
			if err := addSecret(tx, &Subscription{SubscriptionID: id, seq: int64(i) + 1}, 1, secrets[i]); err != nil {
				return err
			}
		}
		return nil
	})
	opened := func(keys *store.Keyring) (all []string, err error) {
		for i, id := range ids {
			found, err := readSecrets(s.DB.Reader(t.Context()), keys, int64(i)+1, id, time.Now())
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
		return all, nil
	}
	const newKey = "new:202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
	alone := keyring(t, newKey)
	s.DB.Keys = alone
	if _, err := Rekey(t.Context(), s.DB); err == nil || !strings.Contains(err.Error(), `"test"`) {
		t.Errorf("without the old key: %v", err)
	}
	s.DB.Keys = keyring(t, newKey+","+storetest.MasterKeys)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Rekey(stopped, s.DB); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	if _, err := opened(alone); err == nil {
		t.Error("the new key alone opens what is still sealed with the old one")
	}
	for _, want := range []int{n, 0} { // the second time finds nothing to do
		if got, err := Rekey(t.Context(), s.DB); got != want || err != nil {
			t.Errorf("sealed %d again, %v; want %d", got, err, want)
		}
	}
	if got, err := opened(alone); err != nil || !slices.Equal(got, secrets) {
		t.Errorf("the new key alone opens %d secrets, %v; want all %d, unchanged", len(got), err, n)
	}
}
