// Package stripetest gives tests events as Stripe sends them.
package stripetest

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Dir is where the fixtures are: testdata/stripe, a file for each kind of event
// and API version.
var Dir = func() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../../../testdata/stripe")
}()

// Event is the fixture of this name, under an id of the test's choice.
func Event(t testing.TB, name, id string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Dir, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(text), `"id": "evt_`)
	_, rest, ok := strings.Cut(rest, `"`)
	if !ok {
		t.Fatalf("%s has no id", name)
	}
	return head + `"id": "` + id + `"` + rest
}

// Sign is the header Stripe-Signature of a body that is sent at this time, while
// the endpoint has these secrets.
func Sign(body string, at time.Time, secrets ...string) string {
	header := fmt.Sprintf("t=%d", at.Unix())
	for _, secret := range secrets {
		m := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(m, "%d.%s", at.Unix(), body)
		header += fmt.Sprintf(",v1=%x", m.Sum(nil))
	}
	return header
}
