// Package metering is what customers have used of models, counted once, and what
// of it is final.
//
// # What is stored
//
// usage_requests: one short row per request to a model that the upstream has told
// of. usage_records: one row per customer, day and number: what is closed
// together. meters: what a customer has spent in a month, which budgets are held
// against. usage_passes: how far the upstream has been asked. attempt_prices: what
// a webhook attempt has cost since when.
//
// Days and months are those of the file's time zone. A request belongs to the day
// in which the upstream says that it was made.
//
// # What is atomic
//
// A page of requests with the records and the meter that it changes, with the
// thresholds that it crosses (the caller's), and with how far reading has come. A
// record's closing with its journal entry and its event.
//
// # What a crash leaves
//
// Before the commit of a page: nothing of it, and the page is asked for again.
// After it: a page that may be asked for again, of which each request is known.
package metering

import (
	"fmt"
	"time"

	"jpintel/billing/money"
)

// Spend is the meter of what models have cost in a month.
const Spend = "model_spend"

// monthLayout is a month as it is written.
const monthLayout = "2006-01"

// Month is the month of an instant, like 2026-05.
func Month(at time.Time, zone *time.Location) string { return at.In(zone).Format(monthLayout) }

// MonthBounds are a month's first instant and its end, exclusive.
func MonthBounds(month string, zone *time.Location) (start, end time.Time, err error) {
	first, err := time.Parse(monthLayout, month)
	return midnight(first.Year(), first.Month(), 1, zone), midnight(first.Year(), first.Month()+1, 1, zone), err
}

// dayBounds are the same of the day of an instant, with its name.
func dayBounds(at time.Time, zone *time.Location) (day string, start, end time.Time) {
	y, m, d := at.In(zone).Date()
	return at.In(zone).Format(time.DateOnly), midnight(y, m, d, zone), midnight(y, m, d+1, zone)
}

// midnight is a day's first instant: where clocks are put forward then, an hour
// later than its name.
func midnight(y int, m time.Month, d int, zone *time.Location) time.Time {
	at := time.Date(y, m, d, 0, 0, 0, 0, zone)
	if at.Day() != time.Date(y, m, d, 12, 0, 0, 0, zone).Day() {
		at = at.Add(time.Hour)
	}
	return at
}

// Crossed is the crossing rule: before the change the value was below so many
// percent of the limit, and after it it is there or above, whichever of the two
// has changed. A limit of 0 is none, which no value reaches.
func Crossed(valueBefore, limitBefore, valueAfter, limitAfter money.Amount, percent int) bool {
	return !reached(valueBefore, limitBefore, percent) && reached(valueAfter, limitAfter, percent)
}

func reached(value, limit money.Amount, percent int) bool {
	return limit.Sign() > 0 && value.Reaches(limit, percent)
}

// amount reads what was stored.
func amount(text string) (money.Amount, error) {
	a, err := money.Parse(text)
	if err != nil {
		return a, fmt.Errorf("a stored amount %q: %w", text, err) // unreachable: it was written by this package
	}
	return a, nil
}
