package billingtest

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strings"
	"testing"
)

// A secret is found in whatever it is wrapped in.
func TestSecretsAreFound(t *testing.T) {
	const secret = "mg_abcdefghijklmnopqrstuvwxyz"
	found := func(text string) bool {
		for _, written := range writings(secret) {
			if strings.Contains(text, written) {
				return true
			}
		}
		return false
	}
	for _, before := range []string{"", "x", "xy", "xyz"} {
		text := before + secret + "and more"
		for name, wrapped := range map[string]string{
			"plain": text, "hex": hex.EncodeToString([]byte(text)), "base64": base64.StdEncoding.EncodeToString([]byte(text)),
			"base64 for URLs": base64.RawURLEncoding.EncodeToString([]byte(text)), "a query": url.QueryEscape(text), "broken off": text[:len(before)+len(secret)-3],
		} {
			if !found(wrapped) {
				t.Errorf("it is not found in %s: %s", name, wrapped)
			}
		}
		if found(before + "mg_abcdef and more") {
			t.Error("a prefix is taken for it")
		}
	}
}
