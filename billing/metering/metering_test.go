package metering

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"jpintel/billing/modelgate"
	"jpintel/billing/money"
	"jpintel/store"
	"jpintel/store/storetest"
)

func parse(t interface{ Fatal(...any) }, text string) money.Amount {
	a, err := money.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func rat(t interface{ Fatal(...any) }, text string) *big.Rat {
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		t.Fatal(text)
	}
	return r
}

// times is r×n.
func times(r *big.Rat, n int64) *big.Rat { return new(big.Rat).Mul(r, new(big.Rat).SetInt64(n)) }

func TestCrossed(t *testing.T) {
	for _, c := range []struct {
		valueBefore, limitBefore, valueAfter, limitAfter string
		percent                                          int
		want                                             bool
	}{
		{"79.99", "100.00", "80", "100.00", 80, true},
		{"79.98", "100", "79.999999999999", "100", 80, false},
		{"80", "100", "80.01", "100", 80, false},
		{"70", "100", "100", "100", 80, true}, // a jump crosses both
		{"70", "100", "100", "100", 100, true},
		{"99.999999999998", "100", "99.999999999999", "100", 100, false},
		{"99.999999999999", "100", "100.00", "100", 100, true},
		{"90", "100", "70", "100", 80, false},
		{"0", "0.000000000001", "0.000000000001", "0.000000000001", 80, true},
		{"70", "100", "70", "80", 80, true},   // the limit is lowered
		{"90", "100", "90", "200", 80, false}, // raised
		{"90", "100", "90", "95", 80, false},  // it was reached before
		{"90", "0", "90", "100", 80, true},    // there was none
		{"90", "100", "90", "0", 80, false},   // there is none any more
		{"0", "0", "0", "0", 80, false},
		{"0", "999999999999999.999999999999", "999999999999999.999999999999", "999999999999999.999999999999", 100, true},
	} {
		if got := Crossed(parse(t, c.valueBefore), parse(t, c.limitBefore), parse(t, c.valueAfter), parse(t, c.limitAfter), c.percent); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// anAmount draws amounts of every length, and small ones that lie close together.
func anAmount() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`(0|[1-9][0-9]{0,14})(\.[0-9]{1,12})?`),
		rapid.StringMatching(`(79|80|99|100)(\.(9{1,12}|0{1,11}[01]))?`),
		rapid.StringMatching(`[0-9](\.[0-9])?`))
}

// The rule as it is written, in numbers of any size.
func TestCrossedIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vb, lb, va, la := anAmount().Draw(t, "before"), anAmount().Draw(t, "limit before"), anAmount().Draw(t, "after"), anAmount().Draw(t, "limit after")
		percent := rapid.SampledFrom([]int{1, 80, 100}).Draw(t, "percent")
		before := rat(t, lb).Sign() == 0 || times(rat(t, vb), 100).Cmp(times(rat(t, lb), int64(percent))) < 0
		after := rat(t, la).Sign() > 0 && times(rat(t, va), 100).Cmp(times(rat(t, la), int64(percent))) >= 0
		if got := Crossed(parse(t, vb), parse(t, lb), parse(t, va), parse(t, la), percent); got != (before && after) {
			t.Errorf("%v, want %v", got, !got)
		}
	})
}

func TestMonthsAndDays(t *testing.T) {
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 4, 30, 15, 0, 0, 0, time.UTC)
	day, start, end := dayBounds(at, tokyo)
	if day != "2026-05-01" || !start.Equal(at) || end.Sub(start) != 24*time.Hour || Month(at, tokyo) != "2026-05" || Month(at.Add(-1), tokyo) != "2026-04" {
		t.Errorf("%s %s %s", day, start, end)
	}
	from, to, err := MonthBounds("2026-12", tokyo)
	if err != nil || from.Format(time.RFC3339) != "2026-12-01T00:00:00+09:00" || to.Format(time.RFC3339) != "2027-01-01T00:00:00+09:00" {
		t.Errorf("%s %s %v", from, to, err)
	}
	saoPaulo, err := time.LoadLocation("America/Sao_Paulo") // clocks were put forward at midnight
	if err != nil {
		t.Fatal(err)
	}
	day, start, end = dayBounds(time.Date(2018, 11, 4, 12, 0, 0, 0, saoPaulo), saoPaulo)
	if day != "2018-11-04" || start.Format(time.RFC3339) != "2018-11-04T01:00:00-02:00" || end.Format(time.RFC3339) != "2018-11-05T00:00:00-02:00" {
		t.Errorf("%s %s %s", day, start, end)
	}
}

// bench is a file with a customer whose requests are taken page by page.
type bench struct {
	t  interface{ Fatal(...any) }
	db *store.DB
}

func newBench(t *testing.T) *bench {
	t.Helper()
	db := storetest.New(t)
	for _, id := range []string{"cus_a", "cus_b"} {
		storetest.Customer(t, db, id, store.TierPaid)
	}
	return &bench{t, db}
}

func (b *bench) write(fn func(*store.Tx) error) error {
	return b.db.Write(context.Background(), fn)
}

func (b *bench) take(customer string, used ...modelgate.Used) (taken Taken, err error) {
	err = b.write(func(tx *store.Tx) (err error) {
		taken, err = Take(tx, customer, "USD", used)
		return err
	})
	return taken, err
}

func (b *bench) strings(query string, args ...any) []string {
	rows, err := b.db.Reader(context.Background()).Query(query, args...)
	if err != nil {
		b.t.Fatal(err)
	}
	all, err := store.Collect(rows, func(r *sql.Rows) (s string, err error) { return s, r.Scan(&s) })
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

func used(t interface{ Fatal(...any) }, id, cost string, final bool, at time.Time) modelgate.Used {
	return modelgate.Used{ID: id, Cost: parse(t, cost), Currency: "USD", Finalized: final, CreatedAt: at}
}

var noonMay14 = time.Date(2026, 5, 14, 12, 0, 0, 0, time.UTC)

func TestARequestIsCountedOnce(t *testing.T) {
	b := newBench(t)
	at := noonMay14
	must := func(used ...modelgate.Used) Taken {
		t.Helper()
		taken, err := b.take("cus_a", used...)
		if err != nil {
			t.Fatal(err)
		}
		return taken
	}
	want := func(spend, record string) {
		t.Helper()
		value, err := Value(b.db.Reader(t.Context()), "cus_a", Spend, "2026-05")
		got := b.strings(`SELECT cost || ' ' || requests || ' ' || open FROM usage_records`)
		if err != nil || value.String() != spend || !slices.Equal(got, []string{record}) {
			t.Errorf("spend %s, record %q, want %s and %s (%v)", value, got, spend, record, err)
		}
	}
	first := used(t, "mrq_1", "0.000412500000", false, at)
	if taken := must(first, first); len(taken.Changes) != 1 || taken.Changes[0].RecordID != "usage_cus_a_2026-05-14_1" {
		t.Errorf("%+v", taken)
	}
	want("0.0004125", "0.0004125 1 1")
	must(first)
	want("0.0004125", "0.0004125 1 1")
	must(used(t, "mrq_1", "2", false, at), used(t, "mrq_2", "1.5", true, at))
	want("3.5", "3.50 2 1")
	must(used(t, "mrq_1", "0", true, at.Add(24*time.Hour))) // lower, and said to be of another day
	want("1.5", "1.50 2 0")
	if taken := must(used(t, "mrq_1", "0", false, at), used(t, "mrq_2", "1.500", true, at)); taken.Contradictions != nil || taken.Changes != nil {
		t.Errorf("an old page: %+v", taken)
	}
	if taken := must(used(t, "mrq_2", "1.6", true, at)); !slices.Equal(taken.Contradictions, []string{"mrq_2"}) {
		t.Errorf("contradicted: %+v", taken)
	}
	want("1.5", "1.50 2 0")

	// Nothing of a page counts that has what is not the customer's.
	if _, err := b.take("cus_b", used(t, "mrq_3", "1", true, at), used(t, "mrq_1", "0", true, at)); !errors.Is(err, ErrForeign) {
		t.Errorf("another's: %v", err)
	}
	yen := used(t, "mrq_4", "1", true, at)
	yen.Currency = "JPY"
	if _, err := b.take("cus_b", yen); !errors.Is(err, ErrForeign) {
		t.Errorf("another currency: %v", err)
	}
	if got := b.strings(`SELECT customer_id FROM usage_requests UNION ALL SELECT customer_id FROM meters`); len(got) != 3 || slices.Contains(got, "cus_b") {
		t.Errorf("%q", got)
	}
}

// Pages of any requests, in any order, again and again, with costs that change
// until they are final: what is counted is what the last told.
func TestTakingIsExact(t *testing.T) {
	db := storetest.New(t)
	storetest.Customer(t, db, "cus_a", store.TierPaid)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		customer := fmt.Sprintf("cus_%d", run)
		b := &bench{t, db}
		if err := b.write(func(tx *store.Tx) error {
			_, _, err := store.CreateCustomer(tx, store.Customer{CustomerID: customer, Tier: store.TierPaid})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		told := map[string]modelgate.Used{}
		for range rapid.IntRange(1, 8).Draw(t, "pages") {
			var page []modelgate.Used
			for range rapid.IntRange(0, 6).Draw(t, "rows") {
				n := rapid.IntRange(0, 9).Draw(t, "request")
				u := used(t, fmt.Sprintf("mrq_%d_%d", run, n), rapid.StringMatching(`[0-9]{1}(\.[0-9]{1,12})?`).Draw(t, "cost"), rapid.Bool().Draw(t, "final"), noonMay14.Add(time.Duration(n)*5*24*time.Hour))
				if before, there := told[u.ID]; !there || !before.Finalized {
					told[u.ID] = u
				}
				page = append(page, u)
			}
			if _, err := b.take(customer, page...); err != nil {
				t.Fatal(err)
			}
		}
		months, days := map[string]*big.Rat{}, map[string]*big.Rat{}
		open := 0
		for _, u := range told {
			for key, sums := range map[string]map[string]*big.Rat{u.CreatedAt.Format("2006-01"): months, u.CreatedAt.Format(time.DateOnly): days} {
				if sums[key] == nil {
					sums[key] = new(big.Rat)
				}
				sums[key].Add(sums[key], rat(t, u.Cost.String()))
			}
			open += store.Bit(!u.Finalized)
		}
		compare := func(query string, want map[string]*big.Rat) {
			rows := b.strings(query, customer)
			if len(rows) != len(want) {
				t.Fatalf("%q, want %v", rows, want)
			}
			for _, row := range rows {
				key, value, _ := strings.Cut(row, " ")
				if want[key] == nil || rat(t, value).Cmp(want[key]) != 0 {
					t.Errorf("%s, want %v", row, want[key])
				}
			}
		}
		compare(`SELECT period || ' ' || value FROM meters WHERE customer_id = $1`, months)
		compare(`SELECT day || ' ' || cost FROM usage_records WHERE customer_id = $1`, days)
		if got := b.strings(`SELECT COALESCE(SUM(open), 0) FROM usage_records WHERE customer_id = $1`, customer); got[0] != fmt.Sprint(open) {
			t.Errorf("%s are open, want %d", got[0], open)
		}
	})
}
