package metering

import (
	"database/sql"
	"fmt"
	"time"

	"jpintel/billing/money"
	"jpintel/store"
	"jpintel/webhook"
)

// attemptCurrency is that of the price of a webhook attempt.
const attemptCurrency money.Currency = "JPY"

// Statement is what a customer has used in a month. That of a month that is over
// comes out the same whenever it is asked for, but for usage that is told late.
type Statement struct {
	CustomerID  string      `json:"customer_id"`
	Month       string      `json:"month"` // YYYY-MM
	Timezone    string      `json:"timezone"`
	PeriodStart time.Time   `json:"period_start"`
	PeriodEnd   time.Time   `json:"period_end"`  // exclusive
	Provisional bool        `json:"provisional"` // the month is not over, or costs of it are not final
	Attempts    Attempts    `json:"webhook_attempts"`
	Models      *ModelUsage `json:"model_usage"` // null: models are not part of the account
}

// Attempts are webhook attempts with their price. Nothing is charged for them.
type Attempts struct {
	Attempts int64        `json:"attempts"`
	Currency string       `json:"currency"`
	Exact    string       `json:"exact"`   // the sum of the days
	Rounded  string       `json:"rounded"` // the same in whole yen, half to even: the one place where anything is rounded
	Billed   bool         `json:"billed"`  // false: this version charges nobody for them
	Days     []AttemptDay `json:"days"`
}

// AttemptDay is one day of them; days without any are left out.
type AttemptDay struct {
	Day       string `json:"day"`
	Attempts  int64  `json:"attempts"`
	UnitPrice string `json:"unit_price"` // that was in force on the day
	Exact     string `json:"exact"`
}

// ModelUsage is what models have cost.
type ModelUsage struct {
	Currency string     `json:"currency"`
	Requests int64      `json:"requests"`
	Exact    string     `json:"exact"`
	Days     []ModelDay `json:"days"`
}

// ModelDay is one usage record. A day has more than one where usage was told
// late.
type ModelDay struct {
	Day      string `json:"day"`
	RecordID string `json:"usage_record_id"`
	Requests int64  `json:"requests"`
	Exact    string `json:"exact"`
	Status   string `json:"status"` // provisional or final
}

// The states of a ModelDay.
const (
	Provisional = "provisional"
	Final       = "final"
)

// ReadStatement reads a customer's statement of a month, this one where month is
// "". c is the currency of what models cost; "": they are not part of the
// account. price is that of an attempt where none was ever in force.
func ReadStatement(q store.Querier, customer, month string, c money.Currency, price money.Amount, now time.Time, zone *time.Location) (s Statement, err error) {
	if month == "" {
		month = Month(now, zone)
	}
	s = Statement{CustomerID: customer, Month: month, Timezone: zone.String()}
	if s.PeriodStart, s.PeriodEnd, err = MonthBounds(month, zone); err != nil || len(month) != len(monthLayout) {
		return s, store.Errorf(store.CodeInvalid, "month: want a month like 2026-05")
	}
	if s.PeriodStart.After(now) {
		return s, store.Errorf(store.CodeInvalid, "month: %s has not begun", month)
	}
	s.Provisional = now.Before(s.PeriodEnd)
	if s.Attempts, err = readAttempts(q, customer, month, price); err != nil || c == "" {
		return s, err
	}
	s.Models, err = readModels(q, customer, month, c)
	if err != nil {
		return s, err
	}
	for _, d := range s.Models.Days {
		s.Provisional = s.Provisional || d.Status == Provisional
	}
	head, err := GetPass(q, customer, Head)
	s.Provisional = s.Provisional || head == nil || head.At.Before(s.PeriodEnd) // it is not all read
	return s, err
}

func readAttempts(q store.Querier, customer, month string, price money.Amount) (a Attempts, err error) {
	a = Attempts{Currency: string(attemptCurrency), Days: []AttemptDay{}}
	prices, err := readPrices(q)
	if err != nil {
		return a, err
	}
	days, err := webhook.AttemptsOf(q, customer, month)
	if err != nil {
		return a, err
	}
	var sum money.Amount
	for _, d := range days {
		unit := prices.on(d.Day, price)
		exact, err := unit.Times(d.Attempts)
		if err == nil {
			sum, err = sum.Add(exact)
		}
		if err != nil {
			return a, fmt.Errorf("pricing the attempts of %s: %w", d.Day, err)
		}
		a.Attempts += d.Attempts
		a.Days = append(a.Days, AttemptDay{d.Day, d.Attempts, unit.Text(attemptCurrency), exact.Text(attemptCurrency)})
	}
	rounded, err := sum.Round(attemptCurrency)
	a.Exact, a.Rounded = sum.Text(attemptCurrency), rounded.Text(attemptCurrency)
	return a, err
}

func readModels(q store.Querier, customer, month string, c money.Currency) (*ModelUsage, error) {
	rows, err := q.Query(`SELECT `+recordColumns+` FROM usage_records WHERE customer_id = $1 AND day BETWEEN $2 AND $3 ORDER BY day, record_no`,
		customer, month+"-01", month+"-31")
	if err != nil {
		return nil, fmt.Errorf("reading a month's usage records: %w", err)
	}
	records, err := store.Collect(rows, func(rows *sql.Rows) (*Record, error) { return scanRecord(rows) })
	if err != nil {
		return nil, fmt.Errorf("reading a month's usage records: %w", err)
	}
	m := &ModelUsage{Currency: string(c), Days: []ModelDay{}}
	var sum money.Amount
	for _, r := range records {
		if sum, err = sum.Add(r.Cost); err != nil {
			return nil, fmt.Errorf("adding up %s: %w", r.ID(), err)
		}
		m.Requests += r.Requests
		day := ModelDay{r.Day, r.ID(), r.Requests, r.Cost.Text(r.Currency), Provisional}
		if r.Closed {
			day.Status = Final
		}
		m.Days = append(m.Days, day)
	}
	m.Exact = sum.Text(c)
	return m, nil
}
