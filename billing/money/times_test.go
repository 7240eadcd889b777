package money

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// Times is exact, or fails.
func TestTimes(t *testing.T) {
	if _, err := parse(t, "999999999999999").Times(2); err == nil {
		t.Error("a product with too many digits")
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1_000_000_000).Draw(t, "attempts")
		price := rapid.StringMatching(`[0-9](\.[0-9]{1,6})?`).Draw(t, "price")
		unit, err := Parse(price)
		if err != nil {
			t.Fatal(err)
		}
		got, err := unit.Times(n)
		want, _ := new(big.Rat).SetString(price)
		want.Mul(want, new(big.Rat).SetInt64(n))
		if exact, _ := new(big.Rat).SetString(got.String()); err != nil || exact.Cmp(want) != 0 {
			t.Errorf("%s × %d is %s (%v)", price, n, got, err)
		}
	})
}
