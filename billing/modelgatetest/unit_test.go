package modelgatetest

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"
)

func TestScientific(t *testing.T) {
	for text, want := range map[string]string{"25.00": "2.5E+1", "-5.00": "-5E+0", "0.000412500000": "4.125E-4", "100": "1E+2", "0.00": "0E-2", "1234.5": "1.2345E+3"} {
		got := scientific(mustMoney(text))
		if got != want || !decimal.RequireFromString(got).Equal(mustMoney(text)) {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
}

func TestPrintMoney(t *testing.T) {
	for _, test := range []struct{ text, currency, want string }{
		{"100", "USD", "100.00"}, {"0.1", "USD", "0.10"}, {"12.345678", "USD", "12.345678"}, {"7.1000", "USD", "7.10"}, {"-5", "USD", "-5.00"}, {"0", "USD", "0.00"},
		{"500", "JPY", "500"}, {"500.00", "JPY", "500"}, {"0.50", "JPY", "0.5"}, {"100", "JPY", "100"},
	} {
		if got := printMoney(mustMoney(test.text), test.currency); got != test.want {
			t.Errorf("%s %s is %s, want %s", test.text, test.currency, got, test.want)
		}
	}
}

func TestPeriodStart(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) // a Sunday
	for period, want := range map[string]string{"day": "2026-03-01", "week": "2026-02-23", "month": "2026-03-01"} {
		if got := periodStart(period, at).Format(time.DateOnly); got != want {
			t.Errorf("%s: %s, want %s", period, got, want)
		}
	}
}

// Time goes on, whatever the real clock does.
func TestClock(t *testing.T) {
	real := time.Date(2026, 3, 1, 12, 0, 0, 1, time.UTC)
	c := clock{real: func() time.Time { return real }}
	first := c.now()
	real = real.Add(-time.Hour)
	if c.now() != first || c.advance(time.Minute) != first.Add(time.Minute) || c.now() != first.Add(time.Minute) {
		t.Errorf("%s, then %s", first, c.now())
	}
	real = real.Add(2 * time.Hour)
	if got := c.now(); got != first.Add(time.Hour+time.Minute) {
		t.Errorf("later it is %s", got)
	}
}

// What a transaction has put is gone after a rollback, what was there before is
// as it was.
func TestRollback(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	rows := newTable[int]()
	rows.put(&tx{now: now}, "a", 1)
	x := &tx{now: now}
	rows.put(x, "b", 2)
	rows.put(x, "a", 3)
	rows.put(x, "b", 4)
	x.rollback()
	var left []int
	for row := range rows.all(now) {
		left = append(left, row)
	}
	if len(left) != 1 || left[0] != 1 || len(rows.order) != 1 {
		t.Errorf("%v %v", left, rows.order)
	}
	if _, there := rows.get("a", now.Add(-time.Millisecond)); there {
		t.Error("it was there before it was made")
	}
}

// The stand-in shares nothing with what is tested against it.
func TestImportsNothingOfTheProgram(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			if path := strings.Trim(spec.Path.Value, `"`); strings.HasPrefix(path, "jpintel") || path == "testing" {
				t.Errorf("%s imports %s", name, path)
			}
		}
	}
}
