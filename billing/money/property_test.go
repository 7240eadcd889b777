package money

import (
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// texts draws amounts of all lengths, as they may be written.
var texts = rapid.Custom(func(t *rapid.T) string {
	text := rapid.StringMatching(`-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,12})?`).Draw(t, "text")
	return strings.TrimSuffix(text, "\n")
})

func rat(t *rapid.T, text string) *big.Rat {
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		t.Fatalf("%q is no number", text)
	}
	return r
}

func drawn(t *rapid.T, label string) (Amount, *big.Rat) {
	text := texts.Draw(t, label)
	a, err := ParseSigned(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return a, rat(t, text)
}

var limit = new(big.Rat).SetInt64(1_000_000_000_000_000)

// Sums and differences are what exact fractions say, or refused where they have
// 16 digits before the point.
func TestSumsAreThoseOfExactFractions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, x := drawn(t, "a")
		b, y := drawn(t, "b")
		for name, op := range map[string]struct {
			got  func(Amount) (Amount, error)
			want *big.Rat
		}{"+": {a.Add, new(big.Rat).Add(x, y)}, "-": {a.Sub, new(big.Rat).Sub(x, y)}} {
			got, err := op.got(b)
			if fits := new(big.Rat).Abs(op.want).Cmp(limit) < 0; fits != (err == nil) {
				t.Fatalf("%s %s %s: %v", a, name, b, err)
			}
			if err == nil && (rat(t, got.String()).Cmp(op.want) != 0 || got.Sign() != op.want.Sign()) {
				t.Fatalf("%s %s %s is %s, want %s", a, name, b, got, op.want.FloatString(12))
			}
		}
		if a.Cmp(b) != x.Cmp(y) || a.Equal(b) != (x.Cmp(y) == 0) || rat(t, a.Neg().String()).Cmp(new(big.Rat).Neg(x)) != 0 {
			t.Fatalf("%s and %s: compared %d, want %d", a, b, a.Cmp(b), x.Cmp(y))
		}
	})
}

// A text is read again as the same amount and written as the same text, in every
// currency, with at least its digits.
func TestTextsAreReadAgainAsTheSameAmount(t *testing.T) {
	codes := rapid.SampledFrom(strings.Fields(iso))
	rapid.Check(t, func(t *rapid.T) {
		a, x := drawn(t, "a")
		c := Currency(codes.Draw(t, "currency"))
		text := a.Text(c)
		again, err := ParseSigned(text)
		if err != nil || !again.Equal(a) || again.Text(c) != text {
			t.Fatalf("%s in %s is %s, and read again %s (%v)", a.Raw(), c, text, again, err)
		}
		_, fraction, _ := strings.Cut(text, ".")
		if rat(t, text).Cmp(x) != 0 || len(fraction) < c.Digits() || text == "-0" || strings.HasPrefix(text, "-0") && x.Sign() == 0 {
			t.Fatalf("%s in %s is %s", a.Raw(), c, text)
		}
	})
}

// Round is the neighbour that is nearer, of two that are as near the even one;
// and rounding again changes nothing.
func TestRoundIsHalfToEven(t *testing.T) {
	codes := rapid.SampledFrom([]Currency{"USD", "JPY", "KWD"})
	rapid.Check(t, func(t *rapid.T) {
		a, x := drawn(t, "a")
		c := codes.Draw(t, "currency")
		unit := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(c.Digits())), nil))
		want := evenly(new(big.Rat).Mul(x, unit))
		want.Quo(want, unit)
		got, err := a.Round(c)
		if fits := new(big.Rat).Abs(want).Cmp(limit) < 0; fits != (err == nil) {
			t.Fatalf("%s in %s: %v", a, c, err)
		}
		if err != nil {
			return
		}
		if rat(t, got.String()).Cmp(want) != 0 {
			t.Fatalf("%s in %s is rounded to %s, want %s", a, c, got, want.FloatString(3))
		}
		if again, err := got.Round(c); err != nil || !again.Equal(got) {
			t.Fatalf("%s is rounded again to %s (%v)", got, again, err)
		}
	})
}

// evenly is the whole number that is nearest to x, half to even.
func evenly(x *big.Rat) *big.Rat {
	double := new(big.Int).Mul(x.Num(), big.NewInt(2))
	floor := new(big.Int).Div(double.Add(double, x.Denom()), new(big.Int).Mul(x.Denom(), big.NewInt(2))) // of x + 1/2
	tie := new(big.Rat).Sub(new(big.Rat).SetInt(floor), x).Cmp(big.NewRat(1, 2)) == 0
	if tie && floor.Bit(0) == 1 {
		floor.Sub(floor, big.NewInt(1))
	}
	return new(big.Rat).SetInt(floor)
}

func TestRoundByHand(t *testing.T) {
	for _, c := range []struct {
		text string
		code Currency
		want string
	}{
		{"0.005", "USD", "0.00"}, {"0.015", "USD", "0.02"}, {"0.025", "USD", "0.02"}, {"-0.015", "USD", "-0.02"}, {"0.0050000001", "USD", "0.01"}, {"1.2748", "USD", "1.27"},
		{"0.5", "JPY", "0"}, {"1.5", "JPY", "2"}, {"2.5", "JPY", "2"}, {"-0.5", "JPY", "0"}, {"1.0005", "KWD", "1.000"}, {"99.999999999999", "USD", "100.00"},
	} {
		if got, err := parse(t, c.text).Round(c.code); err != nil || got.Text(c.code) != c.want {
			t.Errorf("%s %s is rounded to %s (%v), want %s", c.text, c.code, got.Text(c.code), err, c.want)
		}
	}
	if got, err := parse(t, "999999999999999.999").Round("USD"); err == nil {
		t.Errorf("it is rounded to %s", got)
	}
}
