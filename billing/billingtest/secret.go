package billingtest

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// noSecrets is I7: neither a model key that the upstream has given out, nor our
// own key there, is anywhere it can be read.
func (w World) noSecrets(t testing.TB) {
	t.Helper()
	places := map[string]string{}
	for name, text := range w.Texts {
		places[name] = text
	}
	for _, end := range []string{"", "-wal", "-shm", "-journal"} {
		text, err := os.ReadFile(w.DB.Path() + end)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		places["the file"+end] = string(text)
	}
	NoSecrets(t, w.Upstream.Secrets(), places)
}

// NoSecrets fails the test where a secret is in one of the texts, in whatever
// writing. It does not say which: this is a log too.
func NoSecrets(t testing.TB, secrets []string, texts map[string]string) {
	t.Helper()
	for i, secret := range secrets {
		for form, written := range writings(secret) {
			for name, text := range texts {
				if strings.Contains(text, written) {
					t.Errorf("I7: secret %d is in %s, %s", i+1, name, form)
				}
			}
		}
	}
}

// writings are the forms in which a secret may stand in a text. Of base64 it is
// what all three alignments have of the secret alone.
func writings(secret string) map[string]string {
	plain := []byte(secret)
	var percent strings.Builder
	for _, c := range plain {
		fmt.Fprintf(&percent, "%%%02X", c)
	}
	all := map[string]string{
		"as it is": secret, "in hex": hex.EncodeToString(plain), "in capital hex": strings.ToUpper(hex.EncodeToString(plain)),
		"percent-encoded": percent.String(), "percent-encoded in small letters": strings.ToLower(percent.String()),
		"in half": secret[:len(secret)*3/4],
	}
	for shift := range 3 {
		whole := plain[(3-shift)%3:]
		whole = whole[:len(whole)/3*3]
		all[fmt.Sprint("in base64, moved by ", shift)] = base64.RawStdEncoding.EncodeToString(whole)
		all[fmt.Sprint("in base64 for URLs, moved by ", shift)] = base64.RawURLEncoding.EncodeToString(whole)
	}
	return all
}
