package webhook

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"jpintel/store"
)

const (
	// quotaPercent is where a customer is warned of the daily limit.
	quotaPercent = 80
	// meterDailyCalls is the meter of crossings of the daily limit.
	meterDailyCalls = "daily_calls"
	// maxCalls is the most calls that are reported, or taken back, at once.
	maxCalls = 1_000_000_000
)

// UsageRequest reports calls that a customer has made, or takes some back.
type UsageRequest struct {
	IdempotencyKey string `header:"Idempotency-Key" json:"-"` // required
	CustomerID     string `json:"customer_id"`
	Calls          int64  `json:"calls"` // negative: they are taken back
	At             string `json:"at"`    // RFC 3339; default: now
}

// UsageAnswer is a customer's day: the one that the calls were made on.
type UsageAnswer struct {
	UsageToday int64  `json:"usage_today"` // calls
	Limit      *int64 `json:"limit"`       // calls a day; null: no limit
	ResetsAt   string `json:"resets_at"`   // the midnight that ends the day, with its offset
}

// AddUsage counts calls for the day that they were made on, in the file's time
// zone. When that takes today's calls over 80 % of the daily limit, the customer
// is warned in the same transaction. A day that is over is counted and warned
// of no more: its quota has been reset. A time that is a little ahead is now.
// Taking back more than there is is a CodeConflict.
func (s *Service) AddUsage(ctx context.Context, r UsageRequest) (answer UsageAnswer, err error) {
	once, err := store.NewOnce("usage", r.IdempotencyKey, r)
	if err != nil {
		return answer, err
	}
	at, err := r.check(time.Now())
	if err != nil {
		return answer, err
	}
	err = s.DB.Write(ctx, func(tx *store.Tx) (err error) {
		answer, err = store.DoOnce(tx, once, func() (UsageAnswer, error) { return s.addUsage(ctx, tx, r, at) })
		return err
	})
	return answer, err
}

// check returns when the calls were made; zero: now.
func (r UsageRequest) check(now time.Time) (at time.Time, err error) {
	if r.CustomerID == "" {
		return at, store.Errorf(store.CodeInvalid, "customer_id: required")
	}
	if r.Calls == 0 || r.Calls > maxCalls || r.Calls < -maxCalls {
		return at, store.Errorf(store.CodeInvalid, "calls: want a number other than 0, of at most %d, negative to take back", maxCalls)
	}
	return pastTime("at", r.At, now)
}

func (s *Service) addUsage(ctx context.Context, tx *store.Tx, r UsageRequest, at time.Time) (UsageAnswer, error) {
	quota, err := store.GetQuota(tx, r.CustomerID)
	if err != nil {
		return UsageAnswer{}, err
	}
	if at.IsZero() || at.After(tx.Now) {
		at = tx.Now
	}
	day := dayOf(at, s.DB.Location)
	before, err := callsOf(tx, r.CustomerID, day)
	if err != nil {
		return UsageAnswer{}, err
	}
	after, err := addCalls(before, r.Calls, day)
	if err != nil {
		return UsageAnswer{}, err
	}
	if err := setCalls(tx, r.CustomerID, day, after); err != nil {
		return UsageAnswer{}, err
	}
	if day == dayOf(tx.Now, s.DB.Location) && Crossed(before, quota.DailyLimit, after, quota.DailyLimit, quotaPercent) {
		err = s.warn(ctx, tx, quota, after)
	}
	answer := UsageAnswer{UsageToday: after, ResetsAt: midnightAfter(at, s.DB.Location)}
	if quota.DailyLimit > 0 {
		answer.Limit = &quota.DailyLimit
	}
	return answer, err
}

func addCalls(before, calls int64, day string) (int64, error) {
	if calls < 0 && before < -calls {
		return 0, store.Errorf(store.CodeConflict, "calls: %d cannot be taken back, since %d are counted for %s", -calls, before, day)
	}
	if calls > 0 && before > math.MaxInt64-calls {
		return 0, store.Errorf(store.CodeConflict, "calls: too many are counted for %s", day)
	}
	return before + calls, nil
}

func callsOf(q store.Querier, customer, day string) (calls int64, err error) {
	err = q.QueryRow(`SELECT calls FROM usage_days WHERE customer_id = $1 AND day = $2`, customer, day).Scan(&calls)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("reading the day's calls: %w", err)
	}
	return calls, nil
}

func setCalls(tx *store.Tx, customer, day string, calls int64) error {
	if _, err := tx.Exec(`
		INSERT INTO usage_days (customer_id, day, calls) VALUES ($1, $2, $3)
		ON CONFLICT (customer_id, day) DO UPDATE SET calls = excluded.calls`, customer, day, calls); err != nil {
		return fmt.Errorf("counting calls: %w", err)
	}
	return nil
}

// warn tells a customer, once a day and version of the limit, that 80 % of it
// are used.
func (s *Service) warn(ctx context.Context, tx *store.Tx, quota store.Quota, calls int64) error {
	crossing := Crossing{CustomerID: quota.CustomerID, Meter: meterDailyCalls, Period: dayOf(tx.Now, s.DB.Location), LimitVersion: quota.Version, Percent: quotaPercent}
	return s.Outbox.PublishCrossing(ctx, tx, crossing, TierQuotaWarning{
		CustomerID: quota.CustomerID, Tier: string(quota.Tier), UsageToday: calls, Limit: quota.DailyLimit, ResetsAt: midnightAfter(tx.Now, s.DB.Location),
	}, "")
}

// midnightAfter is the end of an instant's day, as customers are shown it.
func midnightAfter(at time.Time, location *time.Location) string {
	year, month, day := at.In(location).Date()
	end := time.Date(year, month, day+1, 0, 0, 0, 0, location)
	if dayOf(end, location) == dayOf(at, location) { // there is no midnight: clocks are put forward then
		end = end.Add(time.Hour)
	}
	return end.Format(createdAtLayout)
}

// LimitRequest changes a customer's daily limit.
type LimitRequest struct {
	CustomerID string      `path:"id" json:"-"`
	DailyLimit LimitChange `json:"daily_limit"`
}

// LimitChange is the limit that takes the place of another; null is none.
type LimitChange struct {
	to    int64 // 0: none
	given bool
}

// NewLimit changes the limit to so many calls a day; 0: none.
func NewLimit(calls int64) LimitChange { return LimitChange{calls, true} }

// UnmarshalJSON takes a positive number or null.
func (l *LimitChange) UnmarshalJSON(text []byte) error {
	if l.given = true; bytes.Equal(text, []byte("null")) {
		return nil
	}
	if json.Unmarshal(text, &l.to) != nil || l.to < 1 {
		return store.Errorf(store.CodeInvalid, "daily_limit: want a positive number of calls a day, or null for no limit")
	}
	return nil
}

// SetDailyLimit changes a customer's daily limit. When the calls that were made
// today are 80 % of the new one, and were not of the old one, the customer is
// warned in the same transaction.
func (s *Service) SetDailyLimit(ctx context.Context, r LimitRequest) (changed store.Customer, err error) {
	err = s.DB.Write(ctx, func(tx *store.Tx) (err error) {
		if r.DailyLimit.given {
			if err := s.setDailyLimit(ctx, tx, r.CustomerID, r.DailyLimit.to); err != nil {
				return err
			}
		}
		changed, err = store.GetCustomer(tx, r.CustomerID)
		return err
	})
	return changed, err
}

func (s *Service) setDailyLimit(ctx context.Context, tx *store.Tx, customer string, limit int64) error {
	before, err := store.GetQuota(tx, customer)
	if err != nil {
		return err
	}
	after, err := store.SetDailyLimit(tx, customer, limit)
	if err != nil {
		return err
	}
	calls, err := callsOf(tx, customer, dayOf(tx.Now, s.DB.Location))
	if err != nil || !Crossed(calls, before.DailyLimit, calls, after.DailyLimit, quotaPercent) {
		return err
	}
	return s.warn(ctx, tx, after, calls)
}
