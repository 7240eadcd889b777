package money

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// Half an amount goes to the even one, and nothing else is changed.
func TestRoundingOnce(t *testing.T) {
	for text, want := range map[string]string{"0": "0", "0.5": "0", "1.5": "2", "2.5": "2", "2.500000000001": "3", "3.499999999999": "3", "22.5": "22", "999999999999999.5": "1000000000000000"} {
		if got := parse(t, text).Rounded("JPY").Text("JPY"); got != want {
			t.Errorf("%s yen: %s, want %s", text, got, want)
		}
	}
	if got := parse(t, "0.125").Rounded("USD").Text("USD"); got != "0.12" {
		t.Errorf("%s", got)
	}
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
