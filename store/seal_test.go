package store_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"jpintel/store"
	"jpintel/store/storetest"
)

const (
	oldKey = "old:1111111111111111111111111111111111111111111111111111111111111111"
	newKey = "new:2222222222222222222222222222222222222222222222222222222222222222"
)

func keyring(t testing.TB, masterKeys, salt string) *store.Keyring {
	t.Helper()
	keys, err := store.ParseKeyring(masterKeys, salt)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestSealedValueOpensInItsPlaceOnly(t *testing.T) {
	keys := storetest.Keys(t)
	for _, secret := range []string{"", "x", "whsec_abc", strings.Repeat("long ", 1000)} {
		sealed := keys.Seal([]byte(secret), "sub_1 1")
		if len(secret) > 1 && bytes.Contains(sealed, []byte(secret)) {
			t.Errorf("%.20q is readable in its sealed form", secret)
		}
		if got, err := keys.Unseal(sealed, "sub_1 1"); err != nil || string(got) != secret {
			t.Errorf("%.20q opened as %.20q, %v", secret, got, err)
		}
		for _, place := range []string{"", "sub_1 2", "sub_1 1 "} {
			if got, err := keys.Unseal(sealed, place); err == nil {
				t.Errorf("%.20q opened at %q as %.20q", secret, place, got)
			}
		}
	}
	if bytes.Equal(keys.Seal([]byte("same"), "same"), keys.Seal([]byte("same"), "same")) {
		t.Error("two seals are equal")
	}
}

func TestChangedSealDoesNotOpen(t *testing.T) {
	keys := storetest.Keys(t)
	secret := bytes.Repeat([]byte("secret"), 50) // longer than a byte can count
	sealed := keys.Seal(secret, "place")
	for i := range sealed {
		for _, flip := range []byte{0x01, 0x80, 0xff} {
			changed := bytes.Clone(sealed)
			changed[i] ^= flip
			if _, err := keys.Unseal(changed, "place"); err == nil {
				t.Errorf("opened with byte %d changed by %#x", i, flip)
			}
		}
		if _, err := keys.Unseal(sealed[:i], "place"); err == nil {
			t.Errorf("the first %d bytes opened", i)
		}
	}
	if _, err := keys.Unseal(append(sealed, 0), "place"); err == nil {
		t.Error("opened with a byte more")
	}
}

func FuzzUnseal(f *testing.F) {
	keys := storetest.Keys(f)
	sealed := keys.Seal([]byte("secret"), "place")
	for _, garbage := range [][]byte{
		nil, {1}, {1, 0}, {1, 4}, {1, 255}, {0, 4, 't', 'e', 's', 't'}, {1, 4, 't', 'e', 's', 't'},
		{1, 4, 't', 'e', 's', 't', 1, 2, 3}, append([]byte{1, 4, 't', 'e', 's', 't'}, make([]byte, 12)...),
		append([]byte{1, 254}, make([]byte, 300)...), append([]byte{1, 255}, make([]byte, 300)...),
		sealed[:len(sealed)-1], []byte("plain text"),
	} {
		f.Add(garbage)
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		if got, err := keys.Unseal(value, "place"); err == nil && string(got) != "secret" || err != nil && got != nil {
			t.Errorf("%x opened as %q, %v", value, got, err)
		}
	})
}

func TestSeveralMasterKeys(t *testing.T) {
	before := keyring(t, oldKey, storetest.Salt)
	both := keyring(t, newKey+", "+oldKey, storetest.Salt)
	after := keyring(t, newKey, storetest.Salt)

	old := before.Seal([]byte("secret"), "place")
	if got, err := both.Unseal(old, "place"); err != nil || string(got) != "secret" {
		t.Errorf("the old key opened %q, %v", got, err)
	}
	if _, err := after.Unseal(old, "place"); err == nil || !strings.Contains(err.Error(), `master key "old"`) {
		t.Errorf("without the old key: %v, want an error that names it", err)
	}
	if got, err := after.Unseal(both.Seal([]byte("secret"), "place"), "place"); err != nil || string(got) != "secret" {
		t.Errorf("the first key did not seal: %q, %v", got, err)
	}
	impostor := keyring(t, strings.Replace(newKey, "new:", "old:", 1), storetest.Salt)
	if _, err := impostor.Unseal(old, "place"); err == nil || !strings.Contains(err.Error(), `master key "old"`) {
		t.Errorf("with another key of the same id: %v", err)
	}
}

func TestMalformedKeys(t *testing.T) {
	digits := strings.Repeat("c0ffee42", 8)
	for _, test := range []struct{ name, masterKeys, salt string }{
		{"empty", "", storetest.Salt},
		{"no id", digits, storetest.Salt},
		{"empty id", ":" + digits, storetest.Salt},
		{"long id", strings.Repeat("i", 33) + ":" + digits, storetest.Salt},
		{"no key", "a:", storetest.Salt},
		{"short key", "a:" + digits[:62], storetest.Salt},
		{"half a byte", "a:" + digits[:63], storetest.Salt},
		{"long key", "a:" + digits + "00", storetest.Salt},
		{"no hex", "a:" + strings.Replace(digits, "c", "g", 1), storetest.Salt},
		{"base64", "a:wP/uQsD/7kLA/+5CwP/uQsD/7kLA/+5CwP/uQsD/7kI=", storetest.Salt},
		{"id and key swapped", digits + ":a", storetest.Salt},
		{"comma at the end", "a:" + digits + ",", storetest.Salt},
		{"bad second key", "a:" + digits + ",b:" + digits[:10], storetest.Salt},
		{"id twice", "a:" + digits + ",a:" + digits, storetest.Salt},
		{"no salt", "a:" + digits, ""},
		{"short salt", "a:" + digits, "c0ffee42c0ffee4"},
	} {
		keys, err := store.ParseKeyring(test.masterKeys, test.salt)
		if err == nil || keys != nil {
			t.Errorf("%s: accepted", test.name)
		} else if text := strings.ToLower(err.Error()); strings.Contains(text, "ffee") || strings.Contains(text, "/+5c") {
			t.Errorf("%s: the error tells a secret: %v", test.name, err)
		}
	}
}

func TestHashes(t *testing.T) {
	keys := storetest.Keys(t)
	// printf cust_1 | openssl dgst -sha256 -mac HMAC -macopt 'key:a salt for tests only'
	if got := keys.HashID("cust_1"); got != "4b553686" {
		t.Errorf("HashID %s", got)
	}
	if other := keyring(t, storetest.MasterKeys, storetest.Salt+"!"); bytes.Equal(keys.Hash("x"), other.Hash("x")) {
		t.Error("the salt does not matter")
	}
}

func TestForeignKeysAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	shut(t, open(t, path, store.Options{})) // the first opening with keys may come later
	shut(t, open(t, path, store.Options{Keys: keyring(t, oldKey, storetest.Salt)}))
	for _, test := range []struct{ name, masterKeys, salt, want string }{
		{"the same", oldKey, storetest.Salt, ""},
		{"a new key first", newKey + "," + oldKey, storetest.Salt, ""},
		{"another salt", oldKey, "another salt for tests", "JPINTEL_API_KEY_SALT"},
		{"another key", newKey, storetest.Salt, "JPINTEL_MASTER_KEY"},
		{"another key of that id", strings.Replace(newKey, "new:", "old:", 1), storetest.Salt, "JPINTEL_MASTER_KEY"},
	} {
		db, err := store.Open(t.Context(), path, store.Options{Server: true, Keys: keyring(t, test.masterKeys, test.salt)})
		if err == nil {
			shut(t, db)
		}
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
		if err != nil && (strings.Contains(err.Error(), test.salt) || strings.Contains(err.Error(), test.masterKeys[4:])) {
			t.Errorf("%s: the error tells a secret: %v", test.name, err)
		}
	}
	shut(t, open(t, path, store.Options{})) // what needs no secrets needs no keys
}

func TestReseal(t *testing.T) {
	before := keyring(t, oldKey, storetest.Salt)
	both := keyring(t, newKey+","+oldKey, storetest.Salt)
	after := keyring(t, newKey, storetest.Salt)
	old := before.Seal([]byte("secret"), "place")

	resealed, changed, err := both.Reseal(old, "place")
	if err != nil || !changed {
		t.Fatalf("changed: %v, %v", changed, err)
	}
	if got, err := after.Unseal(resealed, "place"); err != nil || string(got) != "secret" {
		t.Errorf("without the old key: %q, %v", got, err)
	}
	if again, changed, err := both.Reseal(resealed, "place"); err != nil || changed || !bytes.Equal(again, resealed) {
		t.Errorf("again: changed: %v, %v", changed, err)
	}
	for name, fn := range map[string]func() ([]byte, bool, error){
		"elsewhere":           func() ([]byte, bool, error) { return both.Reseal(old, "elsewhere") },
		"without the old key": func() ([]byte, bool, error) { return after.Reseal(old, "place") },
		"garbage": func() ([]byte, bool, error) {
			return both.Reseal(append([]byte{1, 255}, make([]byte, 300)...), "place")
		},
	} {
		if got, changed, err := fn(); err == nil || changed || got != nil {
			t.Errorf("%s: %x, changed: %v, %v", name, got, changed, err)
		}
	}
}

func TestRekeyCheckLetsGoOfTheOldKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	shut(t, open(t, path, store.Options{Keys: keyring(t, oldKey, storetest.Salt)}))
	only := store.Options{Keys: keyring(t, newKey, storetest.Salt)}
	if db, err := store.Open(t.Context(), path, only); err == nil {
		shut(t, db)
		t.Error("opened without the old key")
	}
	db := open(t, path, store.Options{Keys: keyring(t, newKey+","+oldKey, storetest.Salt)})
	for range 2 { // the second time changes nothing
		write(t, db, store.RekeyCheck)
	}
	shut(t, db)
	shut(t, open(t, path, only))
}
