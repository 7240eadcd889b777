package stripe

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Tolerance is how old a signature may be, in whole seconds: what an older one
// signs may be a replay.
const Tolerance = 5 * time.Minute

// The reasons to refuse a signature. Their texts are public.
var (
	errHeader  = errors.New("want t=<seconds>,v1=<hex>, with one t and at least one v1")
	errNoMatch = errors.New("no v1 signature of this body is made with a secret that is known here")
	errOld     = errors.New("the time is more than 5 minutes ago")
)

// Verify judges the header Stripe-Signature: one of its v1 values has to be made
// with one of the secrets, over its time and the body as it came. A time in the
// future is accepted, since it is no replay; ahead is how far it is, for a caller
// to wonder about our clock.
func Verify(header string, body []byte, secrets []string, now time.Time) (ahead time.Duration, err error) {
	at, given, err := parseHeader(header)
	if err != nil {
		return 0, err
	}
	if !matches(at, body, given, secrets) {
		return 0, errNoMatch
	}
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return 0, errHeader // unreachable: it is a few digits
	}
	if now.Unix()-seconds > int64(Tolerance/time.Second) {
		return 0, errOld
	}
	return time.Duration(max(0, seconds-now.Unix())) * time.Second, nil
}

const (
	// maxGiven is how many v1 values are looked at: one for each secret that an
	// endpoint has, and it has two while one is replaced.
	maxGiven = 16
	// maxTime is how many digits the time may have: enough for 3,000 years.
	maxTime = 11
)

// parseHeader takes the time, as it is written, and the v1 values out of the
// header. Other schemes are not looked at.
func parseHeader(header string) (at string, given [][]byte, err error) {
	times := 0
	for part := range strings.SplitSeq(header, ",") {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "t":
			at = value
			times++
		case "v1":
			if sum, err := hex.DecodeString(value); err == nil && len(given) < maxGiven {
				given = append(given, sum)
			}
		}
	}
	if times != 1 || !isTime(at) || len(given) == 0 {
		return "", nil, errHeader
	}
	return at, given, nil
}

func isTime(text string) bool {
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return text != "" && len(text) <= maxTime
}

// matches compares every secret's signature with every one that was given, in a
// time that tells nothing of them.
func matches(at string, body []byte, given [][]byte, secrets []string) bool {
	found := false
	for _, secret := range secrets {
		want := signature(secret, at, body)
		for _, sum := range given {
			found = hmac.Equal(want, sum) || found
		}
	}
	return found
}

func signature(secret, at string, body []byte) []byte {
	m := hmac.New(sha256.New, []byte(secret))
	m.Write([]byte(at + "."))
	m.Write(body)
	return m.Sum(nil)
}
