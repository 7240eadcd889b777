package webhook

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"jpintel/store"
)

var tokyo = time.FixedZone("JST", 9*60*60)

// use reports calls of a customer, under a key of their own.
func use(t testing.TB, s *Service, customer string, calls int64, at string) UsageAnswer {
	t.Helper()
	answer, err := s.AddUsage(t.Context(), UsageRequest{IdempotencyKey: store.NewID("k"), CustomerID: customer, Calls: calls, At: at})
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func limitTo(t testing.TB, s *Service, customer string, calls int64) {
	t.Helper()
	if _, err := s.SetDailyLimit(t.Context(), LimitRequest{CustomerID: customer, DailyLimit: NewLimit(calls)}); err != nil {
		t.Fatal(err)
	}
}

// quotaWarnings are what a customer was told, as "usage/limit until".
func quotaWarnings(t testing.TB, s *Service, customer string) (all []string) {
	t.Helper()
	for _, text := range lines(t, s.DB, `SELECT data FROM outbox_events WHERE event_type = 'tier.quota.warning' AND customer_id = $1 ORDER BY seq`, customer) {
		var p TierQuotaWarning
		if err := json.Unmarshal([]byte(text), &p); err != nil || p.CustomerID != customer || p.Tier != "paid" {
			t.Errorf("%s: %v", text, err)
		}
		all = append(all, fmt.Sprintf("%d/%d %s", p.UsageToday, p.Limit, p.ResetsAt))
	}
	return all
}

func TestUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.DB.Location = tokyo // it is nine o'clock there, on 2000-01-01
		customer(t, s, "cus_a")
		want := func(got UsageAnswer, calls, limit int64, resets string) {
			t.Helper()
			if got.UsageToday != calls || got.ResetsAt != resets || (got.Limit == nil) != (limit == 0) || got.Limit != nil && *got.Limit != limit {
				text, _ := json.Marshal(got)
				t.Errorf("got %s, want %d of %d until %s", text, calls, limit, resets)
			}
		}
		const today, tomorrow, yesterday = "2000-01-02T00:00:00+09:00", "2000-01-03T00:00:00+09:00", "2000-01-01T00:00:00+09:00"
		want(use(t, s, "cus_a", 70, ""), 70, 0, today)
		limitTo(t, s, "cus_a", 100)
		want(use(t, s, "cus_a", 9, ""), 79, 100, today)
		want(use(t, s, "cus_a", 200, "1999-12-31T14:59:59.999Z"), 200, 100, yesterday) // over, and nobody is told
		want(use(t, s, "cus_a", -1, "1999-12-31T15:00:00Z"), 78, 100, today)
		if got := quotaWarnings(t, s, "cus_a"); len(got) != 0 {
			t.Errorf("told too early: %q", got)
		}
		want(use(t, s, "cus_a", 2, ""), 80, 100, today)
		want(use(t, s, "cus_a", -80, ""), 0, 100, today)
		want(use(t, s, "cus_a", 100, ""), 100, 100, today)
		time.Sleep(15*time.Hour - 2*time.Minute)
		want(use(t, s, "cus_a", 80, "2000-01-01T15:01:00Z"), 180, 100, today) // a clock ahead: it is not tomorrow yet
		time.Sleep(2 * time.Minute)
		want(use(t, s, "cus_a", 81, ""), 81, 100, tomorrow)
		limitTo(t, s, "cus_a", 100) // no change, no new version
		use(t, s, "cus_a", -10, "")
		use(t, s, "cus_a", 10, "")
		limitTo(t, s, "cus_a", 200)
		limitTo(t, s, "cus_a", 100)
		if got, want := quotaWarnings(t, s, "cus_a"), []string{"80/100 " + today, "81/100 " + tomorrow, "81/100 " + tomorrow}; !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
	})
}

func TestUsageRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		use(t, s, "cus_a", 5, "")
		for _, c := range []struct {
			r    UsageRequest
			code store.Code
			says string
		}{
			{UsageRequest{CustomerID: "cus_a", Calls: 1}, store.CodeInvalid, "Idempotency-Key: required"},
			{UsageRequest{IdempotencyKey: "k", Calls: 1}, store.CodeInvalid, "customer_id: required"},
			{UsageRequest{IdempotencyKey: "k", CustomerID: "cus_b", Calls: 1}, store.CodeNotFound, "customer cus_b not found"},
			{UsageRequest{IdempotencyKey: "k", CustomerID: "cus_a"}, store.CodeInvalid, "calls: want a number other than 0"},
			{UsageRequest{IdempotencyKey: "k", CustomerID: "cus_a", Calls: maxCalls + 1}, store.CodeInvalid, "calls: want"},
			{UsageRequest{IdempotencyKey: "k", CustomerID: "cus_a", Calls: -6}, store.CodeConflict, "calls: 6 cannot be taken back, since 5 are counted for 2000-01-01"},
			{UsageRequest{IdempotencyKey: "k", CustomerID: "cus_a", Calls: 1, At: "2000-01-01"}, store.CodeInvalid, "at: want a time like"},
			{UsageRequest{IdempotencyKey: "k", CustomerID: "cus_a", Calls: 1, At: "2000-01-01T00:05:01Z"}, store.CodeInvalid, "at: more than 5m in the future"},
		} {
			_, err := s.AddUsage(t.Context(), c.r)
			wantCode(t, err, c.code, c.says)
		}
		_, err := s.SetDailyLimit(t.Context(), LimitRequest{CustomerID: "cus_b", DailyLimit: NewLimit(1)})
		wantCode(t, err, store.CodeNotFound, "customer cus_b not found")
		exec(t, s.DB, `UPDATE usage_days SET calls = 9223372036854775807`)
		_, err = s.AddUsage(t.Context(), UsageRequest{IdempotencyKey: "k", CustomerID: "cus_a", Calls: 1})
		wantCode(t, err, store.CodeConflict, "calls: too many")
	})
}

// Where clocks are put forward at midnight, the day ends an hour later.
func TestMidnightAfter(t *testing.T) {
	cairo, err := time.LoadLocation("Africa/Cairo")
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{
		"2024-04-25T20:00:00Z": "2024-04-26T01:00:00+03:00",
		"2024-04-25T22:00:00Z": "2024-04-27T00:00:00+03:00",
		"2024-12-31T21:59:59Z": "2025-01-01T00:00:00+02:00",
	} {
		parsed, err := parseTime("at", at)
		if got := midnightAfter(parsed, cairo); err != nil || got != want {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
	}
}

// usageModel is what the meter has to do, in the plainest words.
type usageModel struct {
	limit, version int64
	calls          map[string]int64 // by day
	told           map[string]bool  // by day and version
	warnings       []string
}

func (m *usageModel) reached(day string) bool { return m.limit > 0 && m.calls[day]*100 >= m.limit*80 }

// change makes a change and notes the warning that it has to bring.
func (m *usageModel) change(today string, fn func()) {
	before := m.reached(today)
	fn()
	if at := today + " " + strconv.FormatInt(m.version, 10); !before && m.reached(today) && !m.told[at] {
		m.told[at] = true
		midnight, _ := time.ParseInLocation(time.DateOnly, today, tokyo)
		m.warnings = append(m.warnings, fmt.Sprintf("%d/%d %s", m.calls[today], m.limit, midnight.AddDate(0, 0, 1).Format(time.RFC3339)))
	}
}

// usageStep is one step of the test below.
type usageStep struct {
	What  string // limit, wait or calls
	Limit int64
	Wait  time.Duration
	Calls int64
	Ago   time.Duration
}

var usageSteps = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) usageStep {
	return usageStep{
		What:  rapid.SampledFrom([]string{"calls", "calls", "calls", "calls", "limit", "wait"}).Draw(t, "what"),
		Limit: rapid.Int64Range(0, 20).Draw(t, "limit"),
		Wait:  time.Duration(rapid.IntRange(1, 30).Draw(t, "wait")) * time.Hour,
		Calls: rapid.Int64Range(-12, 20).Draw(t, "calls"),
		Ago:   time.Duration(rapid.SampledFrom([]int{0, 0, 0, 6, 30}).Draw(t, "ago")) * time.Hour,
	}
}), 1, 40)

// Jumps, reversals, other limits and midnights in any order: the counts and the
// warnings are the model's.
func TestUsageIsTheModels(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps, fault := usageSteps.Draw(rt, "steps"), ""
		synctest.Test(t, func(t *testing.T) { fault = playUsage(t, steps) })
		if fault != "" {
			rt.Fatal(fault)
		}
	})
}

func playUsage(t *testing.T, steps []usageStep) (fault string) {
	s := newService(t)
	s.DB.Location = tokyo
	customer(t, s, "cus_a")
	m := &usageModel{version: 1, calls: map[string]int64{}, told: map[string]bool{}}
	for i, step := range steps {
		today := dayOf(time.Now(), tokyo)
		switch step.What {
		case "limit":
			m.change(today, func() {
				if step.Limit != m.limit {
					m.limit, m.version = step.Limit, m.version+1
				}
			})
			limitTo(t, s, "cus_a", step.Limit)
		case "wait":
			time.Sleep(step.Wait)
		default:
			at := time.Now().Add(-step.Ago)
			day := dayOf(at, tokyo)
			possible := step.Calls != 0 && m.calls[day]+step.Calls >= 0
			if possible {
				m.change(today, func() { m.calls[day] += step.Calls })
			}
			answer, err := s.AddUsage(t.Context(), UsageRequest{IdempotencyKey: strconv.Itoa(i), CustomerID: "cus_a", Calls: step.Calls, At: at.Format(time.RFC3339)})
			if (err == nil) != possible || possible && answer.UsageToday != m.calls[day] {
				return fmt.Sprintf("step %d: %+v, %v; the model has %d", i, answer, err, m.calls[day])
			}
		}
		if got := quotaWarnings(t, s, "cus_a"); !slices.Equal(got, m.warnings) {
			return fmt.Sprintf("step %d: told %q, the model says %q", i, got, m.warnings)
		}
	}
	return ""
}

// Whoever calls at the same time: nothing is lost, a repetition counts once, and
// one warning is given.
func TestUsageUnderConcurrency(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	limitTo(t, s, "cus_a", 1000)
	var group sync.WaitGroup
	for caller := range 8 {
		group.Go(func() {
			for i := range 25 {
				r := UsageRequest{IdempotencyKey: fmt.Sprint(caller, i), CustomerID: "cus_a", Calls: int64(caller + 1)}
				for range 1 + i%2 {
					if _, err := s.AddUsage(t.Context(), r); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	group.Wait()
	if got := number(t, s.DB, `SELECT SUM(calls) FROM usage_days`); got != 25*(1+2+3+4+5+6+7+8) {
		t.Errorf("%d calls are counted", got)
	}
	if got := quotaWarnings(t, s, "cus_a"); len(got) != 1 {
		t.Errorf("told %q, want it once", got)
	}
}
