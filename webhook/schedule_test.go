package webhook

import (
	"math"
	"net/http"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var almostOne = math.Nextafter(1, 0)

func TestNextAttempt(t *testing.T) {
	now := time.Date(2026, 5, 14, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name   string
		n      int
		random float64
		hint   time.Duration
		want   time.Duration // -1: none
	}{
		{"after the first", 1, 0.5, 0, time.Minute},
		{"after the second", 2, 0.5, 0, 5 * time.Minute},
		{"after the third", 3, 0.5, 0, 30 * time.Minute},
		{"after the fourth", 4, 0.5, 0, 2 * time.Hour},
		{"after the fifth", 5, 0.5, 0, 12 * time.Hour},
		{"after the last", 6, 0.5, 0, -1},
		{"after the last, with a hint", 6, 0.5, time.Hour, -1},
		{"long after the last", 600, 0.5, 0, -1},
		{"as early as can be", 1, 0, 0, 54 * time.Second},
		{"as early as can be, later on", 5, 0, 0, 10*time.Hour + 48*time.Minute},
		{"a hint that is sooner", 2, 0.5, 4 * time.Minute, 5 * time.Minute},
		{"a hint that is sooner than the jittered time", 1, almostOne, 65 * time.Second, 66 * time.Second},
		{"a hint that is later", 2, 0.5, 6 * time.Minute, 6 * time.Minute},
		{"a hint is not jittered", 1, 0, time.Hour, time.Hour},
		{"a hint of more than a day", 1, 0.5, 25 * time.Hour, 24 * time.Hour},
		{"a negative hint", 1, 0.5, -time.Hour, time.Minute},
	} {
		at, again := nextAttempt(DefaultSchedule, c.n, now, c.random, c.hint)
		if again != (c.want >= 0) {
			t.Errorf("%s: again %t", c.name, again)
		}
		// The largest number below 1 comes to a microsecond less than 10 %.
		if got := at.Sub(now); again && (got > c.want || got < c.want-time.Microsecond) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	if _, again := nextAttempt(nil, 1, now, 0.5, 0); again {
		t.Error("an empty schedule has one attempt")
	}
}

func TestJitterIsWithinTenPercent(t *testing.T) {
	now := time.Date(2026, 5, 14, 0, 0, 0, 0, time.UTC)
	random := rapid.OneOf(rapid.SampledFrom([]float64{0, 0.5, almostOne}), rapid.Float64Range(0, almostOne))
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, len(DefaultSchedule)).Draw(t, "n")
		at, again := nextAttempt(DefaultSchedule, n, now, random.Draw(t, "random"), 0)
		plan := DefaultSchedule[n-1]
		if got := at.Sub(now); !again || got < plan-plan/10 || got > plan+plan/10 {
			t.Fatalf("got %v, %t after attempt %d", got, again, n)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 5, 14, 0, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":                                  0,
		"0":                                 0,
		"120":                               2 * time.Minute,
		"86400":                             24 * time.Hour,
		"4294967295":                        math.MaxUint32 * time.Second,
		"4294967296":                        math.MaxUint32 * time.Second, // more than fits
		"99999999999999999999999":           math.MaxUint32 * time.Second,
		"-1":                                0,
		"+1":                                0,
		"1.5":                               0,
		"1e3":                               0,
		"0x10":                              0,
		"1_000":                             0,
		"soon":                              0,
		"1h":                                0,
		"12,34":                             0,
		now.Format(http.TimeFormat):         0,
		now.Add(-1).Format(http.TimeFormat): 0,
		now.Add(time.Hour).Format(http.TimeFormat): time.Hour,
		"Thursday, 14-May-26 00:01:00 GMT":         time.Minute, // the two obsolete forms
		"Thu May 14 00:01:00 2026":                 time.Minute,
		"Fri, 31 Dec 9999 23:59:59 GMT":            math.MaxInt64, // saturates
		"2026-05-14T01:00:00Z":                     0,
		"Thu, 14 May 2026 09:01:00 JST":            0,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: got %v, want %v", value, got, want)
		}
	}
}
