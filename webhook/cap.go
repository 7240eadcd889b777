package webhook

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"jpintel/store"
)

// DailyCap bounds the attempts of a customer and day; days are counted in the
// file's time zone. It is exact: an attempt counts before it starts. After a
// SIGKILL those that were in flight are uncounted. A nil cap lets everything
// through and counts nothing.
type DailyCap struct {
	db    *store.DB
	limit int // 0: no limit

	mu   sync.Mutex
	days map[string]*dayCount // by customer
}

// dayCount is a customer's attempts of one day: those in the file and those in
// flight.
type dayCount struct {
	day  string
	used int
}

// maxDayCounts bounds the customers that are remembered before those of earlier
// days are forgotten.
const maxDayCounts = 10_000

// NewDailyCap returns the cap of a file. A limit of 0 lets everything through.
func NewDailyCap(db *store.DB, limit int) *DailyCap {
	return &DailyCap{db: db, limit: limit, days: map[string]*dayCount{}}
}

// dayOf is the day that an instant belongs to.
func dayOf(at time.Time, location *time.Location) string {
	return at.In(location).Format(time.DateOnly)
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
	count, err := c.count(ctx, customer, day)
	if err != nil || count.used >= c.limit {
		return day, false, err
	}
	count.used++
	return day, true, nil
}

// release takes back an attempt that was not made after all.
func (c *DailyCap) release(customer, day string) {
	if c == nil || day == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if count := c.days[customer]; count != nil && count.day == day {
		count.used--
	}
}

// open reports whether the customer may make another attempt today, without
// counting one.
func (c *DailyCap) open(ctx context.Context, customer string, now time.Time) (bool, error) {
	if c.max() == 0 {
		return true, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	count, err := c.count(ctx, customer, dayOf(now, c.db.Location))
	return err == nil && count.used < c.limit, err
}

// max is the attempts of a day; 0: no limit.
func (c *DailyCap) max() int {
	if c == nil {
		return 0
	}
	return c.limit
}

// count is the customer's count of a day, read from the file the first time.
func (c *DailyCap) count(ctx context.Context, customer, day string) (*dayCount, error) {
	if count := c.days[customer]; count != nil && count.day == day {
		return count, nil
	}
	if len(c.days) >= maxDayCounts {
		for other, count := range c.days {
			if count.day != day {
				delete(c.days, other)
			}
		}
	}
	count := &dayCount{day: day}
	err := c.db.Reader(ctx).QueryRow(`SELECT attempts FROM webhook_daily_attempts WHERE customer_id = $1 AND day = $2`, customer, day).Scan(&count.used)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("reading the day's attempts: %w", err)
	}
	c.days[customer] = count
	return count, nil
}

// exhausted says, for the API, that the day's attempts are used up.
func (c *DailyCap) exhausted(code store.Code) error {
	return store.Errorf(code, "the daily cap of %d delivery attempts is used up; it resets at midnight (%s)", c.limit, c.db.Location)
}

// dailyAttempts are the attempts that a transaction writes down.
type dailyAttempts map[struct{ customer, day string }]int

func (d dailyAttempts) add(customer, day string) { d[struct{ customer, day string }{customer, day}]++ }

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
