package webhook

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"sync"
	"time"

	"jpintel/store"
)

// DailyCap bounds the attempts of a customer and day; days are counted in the
// file's time zone. It is exact: an attempt counts before it starts. After a
// SIGKILL those whose result was not yet in the file are uncounted. A nil cap
// lets everything through and counts nothing.
type DailyCap struct {
	db    *store.DB
	limit int // 0: no limit

	mu   sync.Mutex
	used map[customerDay]int // those in the file and those in flight
}

// customerDay is what attempts are counted by. Around midnight both days are
// asked for in turn, by callers that have looked at the clock a little earlier
// or later.
type customerDay struct{ customer, day string }

// maxDayCounts bounds the counts that are remembered before those of other days
// are forgotten.
const maxDayCounts = 10_000

// NewDailyCap returns the cap of a file. A limit of 0 lets everything through.
func NewDailyCap(db *store.DB, limit int) *DailyCap {
	return &DailyCap{db: db, limit: limit, used: map[customerDay]int{}}
}

// dayOf is the day that an instant belongs to.
func dayOf(at time.Time, location *time.Location) string {
	return at.In(location).Format(time.DateOnly)
}

// nextDay is when the day of an instant is over.
func nextDay(at time.Time, location *time.Location) time.Time {
	y, m, d := at.In(location).Date()
	return time.Date(y, m, d+1, 0, 0, 0, 0, location)
}

// take counts one attempt that is about to start. day names what it was counted
// under; ok is false, and nothing is counted, when the day's attempts are used up.
func (c *DailyCap) take(ctx context.Context, customer string, now time.Time) (day string, ok bool, err error) {
	if c == nil {
		return "", true, nil
	}
	if day = dayOf(now, c.db.Location); c.limit == 0 {
		return day, true, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	used, err := c.count(ctx, customerDay{customer, day})
	if err != nil || used >= c.limit {
		return day, false, err
	}
	c.used[customerDay{customer, day}]++
	return day, true, nil
}

// release takes back an attempt that was not made after all.
func (c *DailyCap) release(customer, day string) {
	if c == nil || day == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := (customerDay{customer, day}); c.used[of] > 0 {
		c.used[of]--
	}
}

// open reports whether the customer may make another attempt today, without
// counting one.
func (c *DailyCap) open(ctx context.Context, customer string, now time.Time) (bool, error) {
	left, err := c.left(ctx, customer, now)
	return left > 0, err
}

// left is how many attempts the customer may still make today.
func (c *DailyCap) left(ctx context.Context, customer string, now time.Time) (int, error) {
	if c.max() == 0 {
		return math.MaxInt, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	used, err := c.count(ctx, customerDay{customer, dayOf(now, c.db.Location)})
	if err != nil {
		return 0, err
	}
	return max(c.limit-used, 0), nil
}

// max is the attempts of a day; 0: no limit.
func (c *DailyCap) max() int {
	if c == nil {
		return 0
	}
	return c.limit
}

// count is the customer's count of a day, read from the file the first time.
func (c *DailyCap) count(ctx context.Context, of customerDay) (used int, err error) {
	if used, ok := c.used[of]; ok {
		return used, nil
	}
	if len(c.used) >= maxDayCounts {
		maps.DeleteFunc(c.used, func(other customerDay, _ int) bool { return other.day != of.day })
	}
	err = c.db.Reader(ctx).QueryRow(`SELECT attempts FROM webhook_daily_attempts WHERE customer_id = $1 AND day = $2`, of.customer, of.day).Scan(&used)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("reading the day's attempts: %w", err)
	}
	c.used[of] = used
	return used, nil
}

// exhausted says, for the API, that the day's attempts are used up, and when
// there are new ones.
func (c *DailyCap) exhausted(code store.Code, now time.Time) error {
	return &store.Error{
		Code: code, RetryAfter: nextDay(now, c.db.Location).Sub(now),
		Message: fmt.Sprintf("the daily cap of %d delivery attempts is used up; it resets at midnight (%s)", c.limit, c.db.Location),
	}
}

// dailyAttempts are the attempts that a transaction writes down.
type dailyAttempts map[customerDay]int

func (d dailyAttempts) add(customer, day string) { d[customerDay{customer, day}]++ }

func (d dailyAttempts) write(tx *store.Tx) error {
	for of, n := range d {
		if _, err := tx.Exec(`
			INSERT INTO webhook_daily_attempts (customer_id, day, attempts) VALUES ($1, $2, $3)
			ON CONFLICT (customer_id, day) DO UPDATE SET attempts = attempts + excluded.attempts`, of.customer, of.day, n); err != nil {
			return fmt.Errorf("counting attempts: %w", err)
		}
	}
	return nil
}

// DayAttempts are the attempts of one day.
type DayAttempts struct {
	Day      string // YYYY-MM-DD
	Attempts int64
}

// AttemptsOf are a customer's attempts of a month (YYYY-MM), by day; days without
// any are left out.
func AttemptsOf(q store.Querier, customer, month string) ([]DayAttempts, error) {
	rows, err := q.Query(`SELECT day, attempts FROM webhook_daily_attempts WHERE customer_id = $1 AND day BETWEEN $2 AND $3 ORDER BY day`,
		customer, month+"-01", month+"-31")
	if err != nil {
		return nil, fmt.Errorf("reading a month's attempts: %w", err)
	}
	all, err := store.Collect(rows, func(rows *sql.Rows) (d DayAttempts, err error) { return d, rows.Scan(&d.Day, &d.Attempts) })
	if err != nil {
		return nil, fmt.Errorf("reading a month's attempts: %w", err)
	}
	return all, nil
}
