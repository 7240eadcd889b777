package stripe

import (
	"encoding/hex"
	"strconv"
	"strings"
	"testing"
	"time"

	"jpintel/billing/stripe/stripetest"
)

const secretA, secretB = "whsec_a_secret_of_the_tests", "whsec_another_secret_of_the_tests"

// S57 and S58, for the signature alone.
func TestVerify(t *testing.T) {
	now := time.Unix(1764460800, 999_000_000)
	body := []byte(`{"id":"evt_1"}`)
	signed := func(at time.Time, secrets ...string) string { return stripetest.Sign(string(body), at, secrets...) }
	both := []string{secretA, secretB}
	sum := func(at string) string { return hex.EncodeToString(signature(secretA, at, body)) }
	at := strconv.FormatInt(now.Unix(), 10)
	for _, c := range []struct {
		what, header string
		secrets      []string
		want         error
		ahead        time.Duration
	}{
		{"as it should be", signed(now, secretA), []string{secretA}, nil, 0},
		{"either of two secrets here", signed(now, secretB), both, nil, 0},
		{"two signatures, the first of ours", signed(now, secretA, "whsec_new"), []string{secretA}, nil, 0},
		{"two signatures, the last of ours", signed(now, "whsec_new", secretA), []string{secretA}, nil, 0},
		{"another scheme beside it", signed(now, secretA) + ",v0=6f", []string{secretA}, nil, 0},
		{"a v1 that is no hex beside it", "v1=?," + signed(now, secretA), []string{secretA}, nil, 0},
		{"capital hex", strings.ToUpper(signed(now, secretA)[15:]), []string{secretA}, errHeader, 0},
		{"300 seconds ago", signed(now.Add(-300*time.Second), secretA), []string{secretA}, nil, 0},
		{"301 seconds ago", signed(now.Add(-301*time.Second), secretA), []string{secretA}, errOld, 0},
		{"an hour ahead", signed(now.Add(time.Hour), secretA), []string{secretA}, nil, time.Hour},
		{"another secret", signed(now, secretB), []string{secretA}, errNoMatch, 0},
		{"no secret here", signed(now, secretA), nil, errNoMatch, 0},
		{"the time of another", strings.Replace(signed(now, secretA), at, at[:9]+"1", 1), []string{secretA}, errNoMatch, 0},
		{"half a signature", signed(now, secretA)[:40], []string{secretA}, errNoMatch, 0},
		{"v0 alone", strings.Replace(signed(now, secretA), "v1", "v0", 1), []string{secretA}, errHeader, 0},
		{"no header", "", []string{secretA}, errHeader, 0},
		{"two times", "t=1," + signed(now, secretA), []string{secretA}, errHeader, 0},
		{"no time", "v1=" + sum(""), []string{secretA}, errHeader, 0},
		{"a time with a sign", "t=+" + at + ",v1=" + sum("+"+at), []string{secretA}, errHeader, 0},
		{"a time before time", "t=-1,v1=" + sum("-1"), []string{secretA}, errHeader, 0},
		{"a time without end", "t=9" + at + "000,v1=" + sum("9"+at+"000"), []string{secretA}, errHeader, 0},
		{"spaces", " " + signed(now, secretA), []string{secretA}, errHeader, 0},
	} {
		if ahead, err := Verify(c.header, body, c.secrets, now); err != c.want || ahead != c.ahead {
			t.Errorf("%s: %s (%v), want %s (%v)", c.what, ahead, err, c.ahead, c.want)
		}
	}
	for _, other := range []string{`{ "id": "evt_1" }`, `{"id":"evt_2"}`, `{"id":"evt_1"}` + "\n", ""} {
		if _, err := Verify(signed(now, secretA), []byte(other), both, now); err != errNoMatch {
			t.Errorf("the signature holds for %q: %v", other, err)
		}
	}
}

// FuzzVerify: nothing makes it panic, and no header is accepted that has no
// signature of the secret's in it.
func FuzzVerify(f *testing.F) {
	now := time.Unix(1764460800, 0)
	f.Add(stripetest.Sign("{}", now, secretA), []byte("{}"))
	f.Add("t=1,v1=,v1=00,t", []byte(""))
	f.Add(strings.Repeat("v1=00,", 100)+"t=99999999999", []byte("x"))
	f.Fuzz(func(t *testing.T, header string, body []byte) {
		ahead, err := Verify(header, body, []string{secretA}, now)
		if err != nil {
			return
		}
		at, _, err := parseHeader(header)
		if err != nil || ahead < 0 || !strings.Contains(strings.ToLower(header), hex.EncodeToString(signature(secretA, at, body))) {
			t.Fatalf("%q is accepted (%v)", header, err)
		}
	})
}
