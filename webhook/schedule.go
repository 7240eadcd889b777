package webhook

import (
	"errors"
	"net/http"
	"strconv"
	"time"
)

const (
	// jitter spreads retries: an outage must not end in a stampede.
	jitter = 0.10
	// maxRetryAfter caps what a receiver can ask for.
	maxRetryAfter = 24 * time.Hour
)

// DefaultSchedule is what follows the first attempt: six attempts in about 15
// hours. Then the delivery is a dead letter.
var DefaultSchedule = []time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 12 * time.Hour}

// nextAttempt returns when the attempt after number n of a schedule is due, or
// false when n was the last. random is in [0, 1); hint is the receiver's
// Retry-After, which can only make it later.
func nextAttempt(schedule []time.Duration, n int, now time.Time, random float64, hint time.Duration) (time.Time, bool) {
	if n > len(schedule) {
		return time.Time{}, false
	}
	wait := time.Duration(float64(schedule[n-1]) * (1 + jitter*(2*random-1)))
	return now.Add(max(wait, min(hint, maxRetryAfter))), true
}

// hint is what the receiver asks to wait, where that is heeded: it is there and
// cannot take the event for now. A refusal is retried on the schedule alone.
func hint(r Result) time.Duration {
	switch {
	case r.Status == http.StatusRequestTimeout, r.Status == http.StatusTooEarly, r.Status == http.StatusTooManyRequests, r.Status >= 500:
		return r.RetryAfter
	}
	return 0
}

// retryAfter reads a Retry-After header, in seconds or as an HTTP date
// (RFC 9110, section 10.2.3). What is not one of these, or is past, is no hint.
func retryAfter(value string, now time.Time) time.Duration {
	if value == "" {
		return 0
	}
	seconds, err := strconv.ParseUint(value, 10, 32)
	if err == nil || errors.Is(err, strconv.ErrRange) { // more than fits is the most that fits
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}
