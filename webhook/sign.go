package webhook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// secretPrefix marks a signing secret. After it come 64 lower-case hex digits:
// 32 random bytes for Stripe's scheme, which takes the whole text as the key,
// and valid base64 (of 48 bytes) for Standard Webhooks, which decodes it.
const secretPrefix = "whsec_"

// Tolerance is how far a signature's time may be off for Verify: what receivers
// are advised to use.
const Tolerance = 5 * time.Minute

func newSecret() string {
	random := make([]byte, 32)
	rand.Read(random) // never fails
	return secretPrefix + hex.EncodeToString(random)
}

// signatures are the two families' headers for one request, made with the same
// secrets, newest first.
type signatures struct {
	stripe   string // t=…,v1=…[,v1=…]: Stripe's scheme
	standard string // v1,…[ v1,…]: Standard Webhooks
}

// sign signs body as the event id's, at the time of sending.
//
// The schemes are those of https://docs.stripe.com/webhooks#verify-manually
// and https://github.com/standard-webhooks/standard-webhooks.
func sign(secrets []string, id string, at time.Time, body []byte) signatures {
	t := strconv.FormatInt(at.Unix(), 10)
	s := signatures{stripe: "t=" + t}
	var standard []string
	for _, secret := range secrets {
		s.stripe += ",v1=" + hex.EncodeToString(stripeMAC(secret, t, body))
		standard = append(standard, "v1,"+base64.StdEncoding.EncodeToString(standardMAC(secret, id, t, body)))
	}
	s.standard = strings.Join(standard, " ")
	return s
}

func stripeMAC(secret, t string, body []byte) []byte {
	return mac([]byte(secret), t+".", body)
}

func standardMAC(secret, id, t string, body []byte) []byte {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, secretPrefix))
	if err != nil {
		key = nil // unreachable: hex digits are base64
	}
	return mac(key, id+"."+t+".", body)
}

func mac(key []byte, prefix string, body []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(prefix))
	m.Write(body)
	return m.Sum(nil)
}

// Verify checks a received request's signatures, both families, as a receiver
// should: every v1 value is tried, the time may be off by Tolerance. brand is
// the sender's JPINTEL_WEBHOOK_BRAND.
func Verify(secret, brand string, header http.Header, body []byte, now time.Time) error {
	if err := verifyStripe(secret, header.Get("X-"+brand+"-Signature"), body, now); err != nil {
		return fmt.Errorf("X-%s-Signature: %w", brand, err)
	}
	if err := verifyStandard(secret, header, body, now); err != nil {
		return fmt.Errorf("webhook-signature: %w", err)
	}
	return nil
}

var errNoMatch = errors.New("no signature matches")

func verifyStripe(secret, value string, body []byte, now time.Time) error {
	var t string
	var given []string
	for part := range strings.SplitSeq(value, ",") {
		switch name, v, _ := strings.Cut(strings.TrimSpace(part), "="); name {
		case "t":
			t = v
		case "v1":
			given = append(given, v)
		}
	}
	if err := verifyTime(t, now); err != nil {
		return err
	}
	want := hex.EncodeToString(stripeMAC(secret, t, body))
	return matchAny(want, given)
}

func verifyStandard(secret string, header http.Header, body []byte, now time.Time) error {
	t := header.Get("webhook-timestamp")
	if err := verifyTime(t, now); err != nil {
		return err
	}
	var given []string
	for part := range strings.FieldsSeq(header.Get("webhook-signature")) {
		if v, ok := strings.CutPrefix(part, "v1,"); ok {
			given = append(given, v)
		}
	}
	want := base64.StdEncoding.EncodeToString(standardMAC(secret, header.Get("webhook-id"), t, body))
	return matchAny(want, given)
}

func verifyTime(t string, now time.Time) error {
	seconds, err := strconv.ParseInt(t, 10, 64)
	if err != nil {
		return errors.New("no timestamp")
	}
	if off := now.Sub(time.Unix(seconds, 0)).Abs(); off > Tolerance {
		return fmt.Errorf("the timestamp is off by %s, more than %s", off.Round(time.Second), Tolerance)
	}
	return nil
}

func matchAny(want string, given []string) error {
	for _, g := range given {
		if hmac.Equal([]byte(want), []byte(g)) {
			return nil
		}
	}
	return errNoMatch
}
