package webhook

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
)

// vector is one received request for those who write a verification: the
// examples in docs/verify, and customers.
type vector struct {
	Name    string            `json:"name"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
	Secret  string            `json:"secret"`
	Now     int64             `json:"now"` // unix seconds
	Accept  bool              `json:"accept"`
}

const (
	vectorID   = "evt_01HX9Z2K7V3B4C5D6E7F8G9H0J"
	vectorTime = 1778716800
	vectorBody = `{"version":"v1","data":{"unified_id":"UNI-7f3c21"}}`
	// vectorSpaced is what no JSON library writes again as it was.
	vectorSpaced = "{ \"version\" : \"v1\",\n\t\"data\": {\"amount\": 1.50, \"name\": \"\\u7701\\/\"} }\n"
)

// vectorFamily is one of the two kinds of signatures.
type vectorFamily struct {
	name, header string // header has the signatures
	verify       func(secret string, h http.Header, body []byte, now time.Time) error
}

var vectorFamilies = []vectorFamily{
	{"jpintel", "X-Jpintel-Signature", func(secret string, h http.Header, body []byte, now time.Time) error {
		return verifyStripe(secret, h.Get("X-Jpintel-Signature"), body, now)
	}},
	{"standard", "webhook-signature", verifyStandard},
}

// headers are a request's, signed at the time t, which may be one that is none.
func (f vectorFamily) headers(secrets []string, t, body string) map[string]string {
	stripe, standard := "t="+t, []string{}
	for _, secret := range secrets {
		stripe += ",v1=" + hex.EncodeToString(stripeMAC(secret, t, []byte(body)))
		standard = append(standard, "v1,"+base64.StdEncoding.EncodeToString(standardMAC(secret, vectorID, t, []byte(body))))
	}
	if f.name == "jpintel" {
		return map[string]string{f.header: stripe}
	}
	return map[string]string{"webhook-id": vectorID, "webhook-timestamp": t, f.header: strings.Join(standard, " ")}
}

// vectorCase is one case for both kinds; what is left out is as in a request
// that is signed with secretA now.
type vectorCase struct {
	name     string
	secrets  []string // that sign
	t        string   // when it was signed
	timeless bool     // t is empty, and so it was signed
	body     string   // that was signed
	received string   // the body as it came
	secret   string   // the receiver's
	change   func(value string) string
	rename   func(header string) string
	accept   bool
}

func vectorCases() []vectorCase {
	at := func(seconds int) string { return strconv.Itoa(vectorTime + seconds) }
	other := secretPrefix + strings.Repeat("c", 64)
	return []vectorCase{
		{name: "valid", accept: true},
		{name: "two signatures, ours is the first", secrets: []string{secretA, secretB}, accept: true},
		{name: "two signatures, ours is the last", secrets: []string{secretB, secretA}, accept: true},
		{name: "five signatures, ours is in the middle", secrets: []string{secretB, other, secretA, other, other}, accept: true},
		{name: "two signatures, none is ours", secrets: []string{secretB, other}},
		{name: "wrong secret", secret: secretB},
		{name: "tampered body", received: strings.Replace(vectorBody, "7f3c21", "7f3c22", 1)},
		{name: "a line break after the body", received: vectorBody + "\n"},
		{name: "a space in place of the body", received: " "},
		{name: "5 minutes old", t: at(-300), accept: true},
		{name: "5 minutes and a second old", t: at(-301)},
		{name: "5 minutes ahead", t: at(300), accept: true},
		{name: "5 minutes and a second ahead", t: at(301)},
		{name: "the time is a word", t: "soon"},
		{name: "the time is a fraction", t: at(0) + ".0"},
		{name: "the time has digits of another script", t: "１７７８７１６８００"},
		{name: "the time is negative", t: "-" + at(0)},
		{name: "the time is larger than any number", t: "99999999999999999999"},
		{name: "the time is empty", timeless: true},
		{name: "header names in upper case", rename: strings.ToUpper, accept: true},
		{name: "header names in lower case", rename: strings.ToLower, accept: true},
		{name: "an empty signature header", change: func(string) string { return "" }},
		{name: "no words that mean anything", change: func(string) string { return ",= ;é" }},
		{name: "a signature in letters that are not ASCII", change: func(v string) string { return strings.NewReplacer("a", "ä", "b", "あ", "c", "é").Replace(v) }},
		{name: "a signature that is cut short", change: func(v string) string { return v[:len(v)-4] }},
		{name: "a signature and more", change: func(v string) string { return v + "0000" }},
		{name: "a signature of which the last four are wrong", change: func(v string) string { return v[:len(v)-4] + "0000" }},
		{name: "a signature in the other case", change: vectorSwapCase},
		{name: "only a signature of the unknown scheme v0", change: func(v string) string { return strings.ReplaceAll(v, "v1", "v0") }},
		{name: "Japanese", body: `{"data":{"primary_name":"省エネ設備更新補助金 <&> 𠮷 é"}}`, accept: true},
		{name: "spaces that another JSON library would not write", body: vectorSpaced, accept: true},
		{name: "the same JSON without the spaces", body: vectorSpaced, received: `{"version":"v1","data":{"amount":1.5,"name":"省/"}}`},
	}
}

// vectorSwapCase makes capitals of the signature's small letters, and the other
// way round.
func vectorSwapCase(v string) string {
	at := strings.LastIndexAny(v, "=,") + 1
	if strings.HasSuffix(v, "=") { // base64
		at = strings.LastIndex(v, ",") + 1
	}
	return v[:at] + strings.Map(func(r rune) rune {
		if unicode.IsLower(r) {
			return unicode.ToUpper(r)
		}
		return unicode.ToLower(r)
	}, v[at:])
}

func (c vectorCase) vector(f vectorFamily) vector {
	or := func(value, otherwise string) string {
		if value == "" {
			return otherwise
		}
		return value
	}
	if c.secrets == nil {
		c.secrets = []string{secretA}
	}
	if !c.timeless {
		c.t = or(c.t, strconv.Itoa(vectorTime))
	}
	c.body = or(c.body, vectorBody)
	headers := f.headers(c.secrets, c.t, c.body)
	if c.change != nil {
		headers[f.header] = c.change(headers[f.header])
	}
	if c.rename != nil {
		renamed := map[string]string{}
		for name, value := range headers {
			renamed[c.rename(name)] = value
		}
		headers = renamed
	}
	return vector{f.name + ": " + c.name, headers, or(c.received, c.body), or(c.secret, secretA), vectorTime, c.accept}
}

// vectorSpecials are cases of one kind, or of both together: each kind that is
// there has to be right.
func vectorSpecials() []vector {
	jpintel, standard := vectorFamilies[0], vectorFamilies[1]
	t := strconv.Itoa(vectorTime)
	special := func(f vectorFamily, name string, accept bool, change func(h map[string]string)) vector {
		secrets := []string{secretB, secretA}
		headers := f.headers(secrets, t, vectorBody)
		if f.name == "both" {
			headers = jpintel.headers(secrets, t, vectorBody)
			maps.Copy(headers, standard.headers(secrets, t, vectorBody))
		}
		change(headers)
		return vector{f.name + ": " + name, headers, vectorBody, secretA, vectorTime, accept}
	}
	both := vectorFamily{name: "both"}
	edit := func(header string, change func(v string) string) func(map[string]string) {
		return func(h map[string]string) { h[header] = change(h[header]) }
	}
	drop := func(headers ...string) func(map[string]string) {
		return func(h map[string]string) {
			for _, name := range headers {
				delete(h, name)
			}
		}
	}
	to := func(value string) func(string) string { return func(string) string { return value } }
	parts := func(v string) []string { return strings.Split(v, ",") } // t, v1 of B, v1 of A
	return []vector{
		special(jpintel, "elements in another order, with spaces", true, edit("X-Jpintel-Signature", func(v string) string { p := parts(v); return p[2] + ", " + p[0] + " ," + p[1] })),
		special(jpintel, "unknown and broken elements beside it", true, edit("X-Jpintel-Signature", func(v string) string { return "v0=abc,," + v + ",v2=def,x,=" })),
		special(jpintel, "an empty v1", false, edit("X-Jpintel-Signature", func(v string) string { return parts(v)[0] + ",v1=" })),
		special(jpintel, "no v1", false, edit("X-Jpintel-Signature", func(v string) string { return parts(v)[0] })),
		special(jpintel, "no t", false, edit("X-Jpintel-Signature", func(v string) string { return strings.Join(parts(v)[1:], ",") })),
		special(jpintel, "another t than was signed", false, edit("X-Jpintel-Signature", func(v string) string { return strings.Replace(v, t, "1778716801", 1) })),
		special(standard, "signatures in another order, with spaces", true, edit("webhook-signature", func(v string) string { a, b, _ := strings.Cut(v, " "); return " " + b + "  " + a })),
		special(standard, "unknown and broken elements beside it", true, edit("webhook-signature", func(v string) string { return "v1a,abc v0,def " + v + " v2 , v1," })),
		special(standard, "an empty v1", false, edit("webhook-signature", to("v1,"))),
		special(standard, "another time than was signed", false, edit("webhook-timestamp", to("1778716801"))),
		special(standard, "another id than was signed", false, edit("webhook-id", to("evt_01HX9Z2K7V3B4C5D6E7F8G9H0K"))),
		special(standard, "no id", false, drop("webhook-id")),
		special(standard, "no time", false, drop("webhook-timestamp")),
		special(both, "valid", true, drop()),
		special(both, "X-Jpintel-Signature alone is left", true, drop("webhook-signature")),
		special(both, "webhook-signature alone is left", true, drop("X-Jpintel-Signature")),
		special(both, "X-Jpintel-Signature is wrong", false, edit("X-Jpintel-Signature", func(v string) string { return strings.Join(parts(v)[:2], ",") })),
		special(both, "webhook-signature is wrong", false, edit("webhook-signature", func(v string) string { a, _, _ := strings.Cut(v, " "); return a })),
		special(both, "no signature", false, drop("X-Jpintel-Signature", "webhook-signature")),
		special(both, "no headers", false, func(h map[string]string) { clear(h) }),
	}
}

// testdata/verify-vectors.json is for customers, too: it stays as it is, and
// what it says is what Verify says.
func TestVerifyVectors(t *testing.T) {
	var vectors []vector
	for _, f := range vectorFamilies {
		for _, c := range vectorCases() {
			v := c.vector(f)
			h := http.Header{}
			for name, value := range v.Headers {
				h.Set(name, value)
			}
			if err := f.verify(v.Secret, h, []byte(v.Body), time.Unix(v.Now, 0)); (err == nil) != v.Accept {
				t.Errorf("%s: %v, want accepted: %v", v.Name, err, v.Accept)
			}
			vectors = append(vectors, v)
		}
	}
	sent := sign([]string{secretA}, vectorID, time.Unix(vectorTime, 0), []byte(vectorBody))
	if vectors[0].Headers["X-Jpintel-Signature"] != sent.stripe || vectors[len(vectorCases())].Headers["webhook-signature"] != sent.standard {
		t.Errorf("a valid vector is not what is sent: %v, want %+v", vectors[0].Headers, sent)
	}
	vectors = append(vectors, vectorSpecials()...)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(vectors); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("../testdata/verify-vectors.json", b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := testdata(t, "verify-vectors.json"); !bytes.Equal(b.Bytes(), want) {
		t.Errorf("testdata/verify-vectors.json is not what is made now: go test ./webhook -run VerifyVectors -update")
	}
}
