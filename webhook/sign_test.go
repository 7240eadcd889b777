package webhook

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	secretA = "whsec_000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	secretB = "whsec_9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
)

// Vectors that openssl made, with
//
//	printf '%s.%s' "$t" "$body" | openssl dgst -sha256 -mac HMAC -macopt key:"$secret"
//	printf '%s.%s.%s' "$id" "$t" "$body" | openssl dgst -sha256 -mac HMAC -macopt hexkey:"$decoded" -binary | openssl base64
func TestSignatureVectors(t *testing.T) {
	var vectors []struct {
		Name      string `json:"name"`
		Secret    string `json:"secret"`
		ID        string `json:"id"`
		Timestamp int64  `json:"timestamp"`
		Body      string `json:"body"`
		Hex       string `json:"v1_hex"`
		Base64    string `json:"v1_base64"`
	}
	if err := json.Unmarshal(testdata(t, "golden", "signatures.json"), &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) == 0 {
		t.Fatal("no vectors")
	}
	for _, v := range vectors {
		at := time.Unix(v.Timestamp, 999_999_999)
		want := signatures{stripe: "t=" + strconv.FormatInt(v.Timestamp, 10) + ",v1=" + v.Hex, standard: "v1," + v.Base64}
		if got := sign([]string{v.Secret}, v.ID, at, []byte(v.Body)); got != want {
			t.Errorf("%s: got %+v, want %+v", v.Name, got, want)
		}
	}
}

func TestTheNewestSecretSignsFirst(t *testing.T) {
	at, body := time.Unix(1778716800, 0), []byte("x")
	a, b := sign([]string{secretA}, "evt_1", at, body), sign([]string{secretB}, "evt_1", at, body)
	want := signatures{
		stripe:   b.stripe + strings.TrimPrefix(a.stripe, "t=1778716800"),
		standard: b.standard + " " + a.standard,
	}
	if got := sign([]string{secretB, secretA}, "evt_1", at, body); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestNewSecret(t *testing.T) {
	a, b := newSecret(), newSecret()
	if form := regexp.MustCompile(`^whsec_[0-9a-f]{64}$`); !form.MatchString(a) || !form.MatchString(b) || a == b {
		t.Errorf("got %s and %s", a, b)
	}
}

// signed are the headers of a request as a receiver gets it.
func signed(secrets []string, at time.Time, body []byte) http.Header {
	s := sign(secrets, "evt_1", at, body)
	return http.Header{
		"X-Acme-Signature": {s.stripe}, "Webhook-Id": {"evt_1"},
		"Webhook-Timestamp": {strconv.FormatInt(at.Unix(), 10)}, "Webhook-Signature": {s.standard},
	}
}

func TestVerify(t *testing.T) {
	now := time.Unix(1778716800, 0)
	body := []byte(`{"version":"v1"}`)
	sent := sign([]string{secretB, secretA}, "evt_1", now, body)
	v1 := strings.Split(sent.stripe, ",") // t, new, old
	standard := strings.Split(sent.standard, " ")
	for _, c := range []struct {
		name   string
		change func(h http.Header)
		secret string
		body   string
		now    time.Time
		want   string // part of the error; "": none
	}{
		{name: "new secret", secret: secretB},
		{name: "old secret", secret: secretA},
		{name: "another secret", secret: secretPrefix + strings.Repeat("0", 64), want: "X-Acme-Signature: no signature matches"},
		{name: "no secret", secret: "", want: "no signature matches"},
		{name: "another body", body: `{"version":"v2"}`, want: "no signature matches"},
		{name: "a longer body", body: string(body) + " ", want: "no signature matches"},
		{name: "as late as allowed", now: now.Add(Tolerance)},
		{name: "too late", now: now.Add(Tolerance + time.Second), want: "off by 5m1s"},
		{name: "as early as allowed", now: now.Add(-Tolerance)},
		{name: "too early", now: now.Add(-Tolerance - time.Second), want: "off by 5m1s"},
		{name: "parts in another order", change: set("X-Acme-Signature", v1[2]+", "+v1[1]+" ,"+v1[0])},
		{name: "old signature alone, new secret", secret: secretB, change: set("X-Acme-Signature", v1[0]+","+v1[2]), want: "no signature matches"},
		{name: "other families beside it", change: set("X-Acme-Signature", "v0=abc,"+sent.stripe+",v2=def,,x")},
		{name: "the time is signed", change: set("X-Acme-Signature", "t=1778716801,"+v1[1]+","+v1[2]), want: "no signature matches"},
		{name: "no time", change: set("X-Acme-Signature", v1[1]), want: "no timestamp"},
		{name: "no number for a time", change: set("X-Acme-Signature", "t=now,"+v1[1]), want: "no timestamp"},
		{name: "an absurd time", change: set("X-Acme-Signature", "t=-9223372036854775808,"+v1[1]), want: "off by"},
		{name: "no v1", change: set("X-Acme-Signature", v1[0]), want: "no signature matches"},
		{name: "an empty v1", change: set("X-Acme-Signature", v1[0]+",v1="), want: "no signature matches"},
		{name: "another brand", change: func(h http.Header) { h["X-Jpintel-Signature"] = h["X-Acme-Signature"]; h.Del("X-Acme-Signature") }, want: "X-Acme-Signature: no timestamp"},
		{name: "standard in another order", change: set("Webhook-Signature", standard[1]+"  "+standard[0]+" v2,x")},
		{name: "standard's old one alone, new secret", secret: secretB, change: set("Webhook-Signature", standard[1]), want: "webhook-signature: no signature matches"},
		{name: "no standard signature", change: set("Webhook-Signature", ""), want: "webhook-signature: no signature matches"},
		{name: "standard signs the id", change: set("Webhook-Id", "evt_2"), want: "webhook-signature: no signature matches"},
		{name: "no id", change: func(h http.Header) { h.Del("Webhook-Id") }, want: "webhook-signature: no signature matches"},
		{name: "standard signs the time", change: set("Webhook-Timestamp", "1778716801"), want: "webhook-signature: no signature matches"},
		{name: "standard's time too late", change: set("Webhook-Timestamp", "1778716499"), want: "webhook-signature: the timestamp is off by 5m1s"},
		{name: "no standard time", change: func(h http.Header) { h.Del("Webhook-Timestamp") }, want: "webhook-signature: no timestamp"},
	} {
		h := signed([]string{secretB, secretA}, now, body)
		if c.change != nil {
			c.change(h)
		}
		secret, received, at := secretA, body, now
		if c.secret != "" || c.name == "no secret" {
			secret = c.secret
		}
		if c.body != "" {
			received = []byte(c.body)
		}
		if !c.now.IsZero() {
			at = c.now
		}
		err := Verify(secret, "Acme", h, received, at)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func set(name, value string) func(http.Header) {
	return func(h http.Header) { h.Set(name, value) }
}

// What is signed verifies with each of its secrets, and no byte can be changed.
func TestSignedVerifies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secrets := make([]string, rapid.IntRange(1, 5).Draw(t, "secrets"))
		for i := range secrets {
			secrets[i] = newSecret()
		}
		at := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "at"), 0)
		body := rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(t, "body")
		h := signed(secrets, at, body)
		for _, secret := range secrets {
			if err := Verify(secret, "Acme", h, body, at); err != nil {
				t.Fatal(err)
			}
		}
		body[rapid.IntRange(0, len(body)-1).Draw(t, "place")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if Verify(secrets[0], "Acme", h, body, at) == nil {
			t.Fatal("another body was accepted")
		}
	})
}

// Whatever the headers are, Verify returns, and it accepts only what holds the
// right signatures of both families.
func FuzzVerify(f *testing.F) {
	now, body := time.Unix(1778716800, 0), []byte("x")
	right := sign([]string{secretA}, "evt_1", now, body)
	f.Add(right.stripe, "evt_1", "1778716800", right.standard)
	f.Add("", "", "", "")
	f.Add("t=,v1=", "\x00", "-1", "v1,")
	f.Add("t=t=1,,=,v1", "evt_1", "99999999999999999999", "v1 v1, ,v1")
	f.Add("t=1778716800,v1="+strings.Repeat("0", 64), "evt_1", "+1778716800", "v1,"+strings.Repeat("A", 44))
	f.Fuzz(func(t *testing.T, stripe, id, at, standard string) {
		h := http.Header{"X-Acme-Signature": {stripe}, "Webhook-Id": {id}, "Webhook-Timestamp": {at}, "Webhook-Signature": {standard}}
		if Verify(secretA, "Acme", h, body, now) != nil {
			return
		}
		v1 := strings.TrimPrefix(right.stripe, "t=1778716800,")
		if id != "evt_1" || at != "1778716800" || !strings.Contains(stripe, v1) || !strings.Contains(standard, right.standard) {
			t.Error("accepted without the right signatures")
		}
	})
}
