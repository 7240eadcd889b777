// Command verify verifies the signature of a webhook, with the standard library
// alone.
//
// Copy the first part into your receiver and call verify before you look at
// anything else. The last part is for tests: go run . cases.json
package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	signature = "X-Jpintel-Signature" // another brand has another name
	tolerance = 5 * time.Minute       // in both directions
)

// verify reports whether a request comes from us, unchanged and just now.
//
//	headers: the request's
//	body:    the raw bytes as they came, before any parser has touched them
//	secret:  the signing secret as it was shown to you, "whsec_" included
//
// A request carries two kinds of signatures, made with the same secret. Each
// kind that is there has to be right, and at least one has to be there.
func verify(headers http.Header, body []byte, secret string, now time.Time) bool {
	jpintel, standard := len(headers.Values(signature)) > 0, len(headers.Values("webhook-signature")) > 0
	return (jpintel || standard) &&
		(!jpintel || verifyJpintel(headers, body, secret, now)) &&
		(!standard || verifyStandard(headers, body, secret, now))
}

// verifyJpintel checks t=<seconds>,v1=<hex>[,v1=<hex>…], in any order; others
// are ignored.
func verifyJpintel(headers http.Header, body []byte, secret string, now time.Time) bool {
	var timestamp string
	var given []string
	for element := range strings.SplitSeq(headers.Get(signature), ",") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(element), "="); name {
		case "t":
			timestamp = value
		case "v1":
			given = append(given, value)
		}
	}
	expected := hex.EncodeToString(sign([]byte(secret), timestamp+".", body))
	return isRecent(timestamp, now) && isAny(expected, given)
}

// verifyStandard checks Standard Webhooks' v1,<base64>[ v1,<base64>…]; others
// are ignored.
func verifyStandard(headers http.Header, body []byte, secret string, now time.Time) bool {
	id, timestamp := headers.Get("webhook-id"), headers.Get("webhook-timestamp")
	var given []string
	for s := range strings.FieldsSeq(headers.Get("webhook-signature")) {
		if value, ok := strings.CutPrefix(s, "v1,"); ok {
			given = append(given, value)
		}
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return false // this is not the secret
	}
	expected := base64.StdEncoding.EncodeToString(sign(key, id+"."+timestamp+".", body))
	return isRecent(timestamp, now) && isAny(expected, given)
}

func sign(key []byte, prefix string, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(prefix))
	mac.Write(body)
	return mac.Sum(nil)
}

func isRecent(timestamp string, now time.Time) bool {
	seconds, err := strconv.ParseUint(timestamp, 10, 40)
	return err == nil && now.Sub(time.Unix(int64(seconds), 0)).Abs() <= tolerance
}

// isAny tries every signature: while a secret is replaced there are several.
func isAny(expected string, given []string) bool {
	for _, s := range given {
		if hmac.Equal([]byte(expected), []byte(s)) {
			return true
		}
	}
	return false
}

// --- for tests ---

type testCase struct {
	Name    string            `json:"name"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
	Secret  string            `json:"secret"`
	Now     int64             `json:"now"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run reads a case, or a list of them, and prints a verdict for each.
func run() error {
	text, err := read()
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		text = append(append([]byte("["), text...), ']')
	}
	var cases []testCase
	if err := json.Unmarshal(text, &cases); err != nil {
		return err
	}
	for _, c := range cases {
		headers := http.Header{}
		for name, value := range c.Headers {
			headers.Set(name, value)
		}
		verdict := "rejected"
		if verify(headers, []byte(c.Body), c.Secret, time.Unix(c.Now, 0)) {
			verdict = "accepted"
		}
		fmt.Println(verdict, c.Name)
	}
	return nil
}

func read() ([]byte, error) {
	if len(os.Args) > 1 {
		return os.ReadFile(os.Args[1])
	}
	return io.ReadAll(os.Stdin)
}
