package billing

import (
	"math/rand/v2"
	"time"
)

const (
	// replayWindow is how long we rely on the upstream knowing a key: a day less
	// than the seven that it promises, for clocks that differ.
	replayWindow = 6 * 24 * time.Hour
	// windowMargin: what would be sent so shortly before the window's end is
	// looked up instead.
	windowMargin = time.Hour
	// maxSends is how often the same bytes go out before the upstream is asked.
	maxSends = 12
	// maxUnclear is how often a conflict that does not say which is tried again.
	maxUnclear = 3
	// DefaultRetryBase is the first step of the backoff.
	DefaultRetryBase = 2 * time.Second
	maxBackoff       = 15 * time.Minute
)

// backoff is how long to wait after so many sends: a random share of a step that
// doubles. Full jitter: whoever failed together does not come back together.
func (e *Engine) backoff(sends int) time.Duration {
	return time.Duration(e.jitter(int64(doubled(e.retryBase(), sends-1, maxBackoff))))
}

// doubled is base·2ⁿ, at most limit; base where n is negative.
func doubled(base time.Duration, n int, limit time.Duration) time.Duration {
	for range n {
		if base >= limit {
			break
		}
		base *= 2
	}
	return min(base, limit)
}

// jitter is a random number from 0 to most.
func (e *Engine) jitter(most int64) int64 {
	if e.Jitter != nil {
		return e.Jitter(most)
	}
	return rand.Int64N(most + 1)
}

func (e *Engine) retryBase() time.Duration {
	if e.RetryBase > 0 {
		return e.RetryBase
	}
	return DefaultRetryBase
}

// nextTry is when the operation may be sent again: not before the upstream wants
// it. ok is false where that is too near to the end of the window to wait for.
func (e *Engine) nextTry(o *Operation, now time.Time, retryAfter time.Duration) (at time.Time, ok bool) {
	at = now.Add(max(e.backoff(o.AttemptCount), retryAfter))
	return at, o.Deadline == nil || at.Before(o.Deadline.Add(-windowMargin))
}
