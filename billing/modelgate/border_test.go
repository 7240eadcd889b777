package modelgate

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// S64 to S68 where amounts come in from the upstream: what is no amount is no
// answer, as a text or as a number; what is one keeps its digits.
func TestS64ToS68AmountsOfTheUpstream(t *testing.T) {
	read := func(token string) (string, error) {
		found, err := upstream(t, answer(200, `{"balance":`+token+`,"currency":"USD","as_of":"2026-05-14T00:00:00Z"}`)).Wallet(context.Background())
		if err != nil {
			return "", err
		}
		return found.Items[0].Balance.Text("USD"), nil
	}
	quoted := func(text string) string { q, _ := json.Marshal(text); return string(q) }
	tokens := []string{"1e-7", "1E+3", "1e1000000", strings.Repeat("9", 40), "null", "{}"}
	for _, text := range []string{"1e-7", "1E+3", "NaN", "Infinity", "", " 1", "+1", ".5", "5.", "1_000", "00.1", "１２", "−5", "1e1000000", strings.Repeat("9", 40), "0." + strings.Repeat("1", 13)} {
		tokens = append(tokens, quoted(text))
	}
	for _, token := range tokens {
		got, err := read(token)
		if e, ok := errors.AsType[*ReadError](err); !ok || e.Class != Malformed {
			t.Errorf("%s is read as %s (%v)", token, got, err)
		}
	}
	for token, want := range map[string]string{
		`"0.01"`: "0.01", `"0.10"`: "0.10", `"100.00"`: "100.00", `"99.999999999999"`: "99.999999999999", `"-0"`: "0.00", `"-0.00"`: "0.00", `"-5"`: "-5.00",
		`"999999999999.999999999001"`: "999999999999.999999999001", `99.999999999999`: "99.999999999999",
	} {
		if got, err := read(token); err != nil || got != want {
			t.Errorf("%s is read as %s (%v), want %s", token, got, err, want)
		}
	}
}
