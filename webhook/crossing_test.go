package webhook

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func TestCrossed(t *testing.T) {
	const none = 0
	for _, c := range []struct {
		valueBefore, limitBefore, valueAfter, limitAfter int64
		percent                                          int
		want                                             bool
	}{
		{7_999, 10_000, 8_000, 10_000, 80, true},
		{7_998, 10_000, 7_999, 10_000, 80, false},
		{8_000, 10_000, 8_001, 10_000, 80, false},
		{7_000, 10_000, 10_000, 10_000, 80, true}, // a jump crosses both
		{7_000, 10_000, 10_000, 10_000, 100, true},
		{9_000, 10_000, 7_000, 10_000, 80, false},
		{2, 3, 3, 3, 80, true}, // 2.4 of 3
		{0, 1, 1, 1, 80, true},
		{70, 100, 70, 80, 80, true},    // the limit is lowered
		{90, 100, 90, 200, 80, false},  // raised
		{90, 100, 90, 95, 80, false},   // it was reached before
		{90, none, 90, 100, 80, true},  // there was none
		{90, 100, 90, none, 80, false}, // there is none any more
		{0, none, math.MaxInt64, none, 80, false},
		{0, math.MaxInt64, math.MaxInt64, math.MaxInt64, 100, true},
		{math.MaxInt64 / 5 * 4, math.MaxInt64, math.MaxInt64/5*4 + 2, math.MaxInt64, 80, true},
		{-5, 10, 8, 10, 80, true},
		{math.MinInt64, 10, math.MinInt64, 10, 80, false},
	} {
		if got := Crossed(c.valueBefore, c.limitBefore, c.valueAfter, c.limitAfter, c.percent); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// The rule as it is written, in numbers of any size.
func TestCrossedIsExact(t *testing.T) {
	product := func(n, factor int64) *big.Int { return new(big.Int).Mul(big.NewInt(n), big.NewInt(factor)) }
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, math.MaxInt64)
		value := rapid.OneOf(rapid.Int64Range(0, math.MaxInt64), rapid.Int64Range(0, 200))
		vb, lb, va, la := value.Draw(t, "before"), limit.Draw(t, "limit before"), value.Draw(t, "after"), limit.Draw(t, "limit after")
		percent := rapid.IntRange(1, 100).Draw(t, "percent")
		want := product(vb, 100).Cmp(product(lb, int64(percent))) < 0 && product(va, 100).Cmp(product(la, int64(percent))) >= 0
		if got := Crossed(vb, lb, va, la, percent); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	})
}
