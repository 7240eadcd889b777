package modelgatetest

import (
	"crypto/rand"
	"time"

	"github.com/oklog/ulid/v2"
)

// clock is the upstream's time: the real one, moved on.
type clock struct {
	real  func() time.Time
	ahead time.Duration
	last  time.Time
}

// now is the time in UTC, in whole milliseconds as it is written on the wire. It
// never goes back, whatever the real clock does.
func (c *clock) now() time.Time {
	if now := c.real().Add(c.ahead).UTC().Truncate(time.Millisecond); now.After(c.last) {
		c.last = now
	}
	return c.last
}

func (c *clock) advance(d time.Duration) time.Time {
	if d < 0 {
		panic("modelgatetest: the clock does not go back")
	}
	c.now()
	c.ahead += d
	c.last = c.last.Add(d) // also where the real clock stands still or lags behind
	return c.last
}

// stamp is a time on the wire.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// ids makes ids that rise, so that the order by time and id is the order in
// which things were made.
type ids struct{ entropy *ulid.MonotonicEntropy }

func newIDs() ids { return ids{ulid.Monotonic(rand.Reader, 0)} }

// next is an id like grp_01K….
func (i ids) next(prefix string, now time.Time) string {
	return prefix + "_" + ulid.MustNew(ulid.Timestamp(now), i.entropy).String()
}
