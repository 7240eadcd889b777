package store_test

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

func createAPIKey(t testing.TB, db *store.DB, customer string) (key store.APIKey, text string) {
	t.Helper()
	write(t, db, func(tx *store.Tx) (err error) {
		key, text, err = store.CreateAPIKey(tx, customer)
		return err
	})
	return key, text
}

func revoke(db *store.DB, keyID string) error {
	return db.Write(context.Background(), func(tx *store.Tx) error { return store.RevokeAPIKey(tx, keyID) })
}

func TestAuthenticate(t *testing.T) {
	db := storetest.New(t)
	_, acme := storetest.Customer(t, db, "acme", store.TierPaid)
	_, other := storetest.Customer(t, db, "other", store.TierFree)
	_, second := createAPIKey(t, db, "acme")
	revoked, revokedText := createAPIKey(t, db, "acme")
	if err := revoke(db, revoked.KeyID); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^jpk_[0-9a-f]{64}$`).MatchString(acme) {
		t.Errorf("key %q, want jpk_ and 64 hex digits", acme)
	}
	for _, test := range []struct{ name, text, customer string }{
		{"first key", acme, "acme"},
		{"second key", second, "acme"},
		{"another customer's", other, "other"},
		{"empty", "", ""},
		{"revoked", revokedText, ""},
		{"unknown", "jpk_" + strings.Repeat("0", 64), ""},
		{"upper case", strings.ToUpper(acme), ""},
		{"without its prefix", strings.TrimPrefix(acme, "jpk_"), ""},
		{"with a space", acme + " ", ""},
		{"a key's id", revoked.KeyID, ""},
		{"a key's hash", string(db.Keys.Hash(acme)), ""},
		{"SQL", "' OR 1=1 --", ""},
	} {
		got, err := db.Authenticate(t.Context(), test.text)
		if test.customer != "" {
			if err != nil || got.CustomerID != test.customer {
				t.Errorf("%s: %+v, %v, want %s", test.name, got, err, test.customer)
			}
			continue
		}
		// One error for all: it does not tell whether a key has been one.
		if store.CodeOf(err) != store.CodeUnauthorized || err.Error() != "missing or unknown API key: send it as X-API-Key" || got != (store.Customer{}) {
			t.Errorf("%s: %+v, %v", test.name, got, err)
		}
	}
}

func TestAPIKeyOfNobody(t *testing.T) {
	db := storetest.New(t)
	err := db.Write(t.Context(), func(tx *store.Tx) error {
		_, _, err := store.CreateAPIKey(tx, "nobody")
		return err
	})
	if store.CodeOf(err) != store.CodeNotFound {
		t.Errorf("creating: %v, want code not_found", err)
	}
	if _, err := store.ListAPIKeys(db.Reader(t.Context()), "nobody"); store.CodeOf(err) != store.CodeNotFound {
		t.Errorf("listing: %v, want code not_found", err)
	}
	if err := revoke(db, "apk_none"); store.CodeOf(err) != store.CodeNotFound {
		t.Errorf("revoking: %v, want code not_found", err)
	}
}

func TestAPIKeysAreListedWithTheirTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.New(t)
		storetest.Customer(t, db, "other", store.TierFree)
		storetest.Customer(t, db, "acme", store.TierFree)
		start := time.Now().UTC()
		time.Sleep(time.Hour)
		key, text := createAPIKey(t, db, "acme")
		time.Sleep(time.Hour)
		if _, err := db.Authenticate(t.Context(), text); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for range 2 { // the second time changes nothing
			time.Sleep(time.Hour)
			if err := revoke(db, key.KeyID); err != nil {
				t.Fatal(err)
			}
		}
		all, err := store.ListAPIKeys(db.Reader(t.Context()), "acme")
		if err != nil || len(all) != 2 {
			t.Fatalf("listed %+v, %v", all, err)
		}
		if first := all[0]; first.CustomerID != "acme" || !first.CreatedAt.Equal(start) || first.LastUsedAt != nil || first.RevokedAt != nil {
			t.Errorf("first key %+v", first)
		}
		second := all[1]
		if second.KeyID != key.KeyID || second.CreatedAt != start.Add(time.Hour) || second.LastUsedAt == nil || *second.LastUsedAt != start.Add(2*time.Hour) ||
			second.RevokedAt == nil || *second.RevokedAt != start.Add(3*time.Hour) {
			t.Errorf("second key %+v", second)
		}
	})
}

func TestLastUseIsNotedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.New(t)
		_, text := storetest.Customer(t, db, "acme", store.TierFree)
		seen := map[time.Time]bool{}
		for range 100 { // 500 s
			for range 3 { // at once: it is noted for one of them
				go func() { _, _ = db.Authenticate(t.Context(), text) }()
			}
			synctest.Wait()
			all, err := store.ListAPIKeys(db.Reader(t.Context()), "acme")
			if err != nil || len(all) != 1 || all[0].LastUsedAt == nil {
				t.Fatalf("listed %+v, %v", all, err)
			}
			if ago := time.Since(*all[0].LastUsedAt); ago >= time.Minute {
				t.Errorf("the last use was %v ago", ago)
			}
			seen[*all[0].LastUsedAt] = true
			time.Sleep(5 * time.Second)
		}
		if len(seen) != 9 { // at 0 s, 60 s … 480 s
			t.Errorf("noted %d times in 500 s", len(seen))
		}
	})
}

func TestAuthenticateWhenNothingCanBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.New(t)
		_, text := storetest.Customer(t, db, "acme", store.TierFree)
		release := hold(db) // a write that does not end
		if c, err := db.Authenticate(t.Context(), text); err != nil || c.CustomerID != "acme" {
			t.Errorf("while the file is busy: %+v, %v", c, err)
		}
		release()
		synctest.Wait()
		time.Sleep(time.Hour)
		// The disk is full: whoever has a key may go on reading.
		full := batch(db, func(tx *store.Tx) error { return fill(tx) })
		if full[0].err != nil {
			t.Fatal(full[0].err)
		}
		if c, err := db.Authenticate(t.Context(), text); err != nil || c.CustomerID != "acme" {
			t.Errorf("on a full disk: %+v, %v", c, err)
		}
	})
}

func TestOnlyHashesOfAPIKeysAreStored(t *testing.T) {
	db := storetest.New(t)
	_, text := storetest.Customer(t, db, "acme", store.TierFree)
	if _, err := db.Authenticate(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, side := range sides[:2] {
		content, err := os.ReadFile(db.Path() + side)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, content...)
	}
	if !bytes.Contains(all, db.Keys.Hash(text)) {
		t.Error("the key's hash is not in the file: this test looks at the wrong bytes")
	}
	for name, secret := range map[string]string{
		"key": text, "key without its prefix": strings.TrimPrefix(text, "jpk_"), "salt": storetest.Salt,
		"master key": strings.TrimPrefix(storetest.MasterKeys, "test:"),
	} {
		if bytes.Contains(bytes.ToLower(all), []byte(secret)) {
			t.Errorf("the %s is in the file", name)
		}
	}
}
