package money

import (
	"math/big"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// form is the contract's grammar, as it is written there.
var form = regexp.MustCompile(`^(0|[1-9][0-9]{0,14})(\.[0-9]{1,12})?$`)

func parse(t testing.TB, text string) Amount {
	t.Helper()
	a, err := ParseSigned(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return a
}

// S64: exact in, exact out.
func TestS64AmountsKeepTheirDigits(t *testing.T) {
	for _, c := range []struct {
		text     string
		currency Currency
		want     string
	}{
		{"0.01", "USD", "0.01"}, {"0.10", "USD", "0.10"}, {"0.1", "USD", "0.10"}, {"100.00", "USD", "100.00"}, {"100", "USD", "100.00"},
		{"99.999999999999", "USD", "99.999999999999"}, {"500", "JPY", "500"}, {"500.00", "JPY", "500"}, {"0.5", "JPY", "0.5"},
		{"1.5", "KWD", "1.500"}, {"-5.00", "USD", "-5.00"}, {"0", "JPY", "0"}, {"0.000", "USD", "0.00"},
		{"999999999999999.999999999999", "USD", "999999999999999.999999999999"},
	} {
		a := parse(t, c.text)
		if got := a.Text(c.currency); got != c.want {
			t.Errorf("%s as %s is %s, want %s", c.text, c.currency, got, c.want)
		}
		if a.Raw() != c.text {
			t.Errorf("%s is kept as %s", c.text, a.Raw())
		}
		if again := parse(t, a.Text(c.currency)); !again.Equal(a) {
			t.Errorf("%s is another amount when it is read again", c.text)
		}
	}
}

// refused are texts that look like money to somebody.
var refused = []string{
	"1e-7", "1E+3", "1e3", "NaN", "nan", "Infinity", "-Infinity", "Inf", "", " ", " 1", "1 ", "\t1", "1\n", "+1", "+5", ".5", "5.", ".", "1_000", "1,000", "1.000,00",
	"00.1", "00", "01", "-01", "１２", "٣", "−5", "－5", "1..2", "1.2.3", "--1", "-", "-.5", "0x10", "0b1", "1/2", "$1", "1USD", "null", "\"1\"", "1\x00", "\xff",
	"1234567890123456", "1.1234567890123", "0.0000000000000",
}

// S65: refused at the border.
func TestS65OtherFormsAreRefused(t *testing.T) {
	for _, text := range refused {
		if a, err := Parse(text); err == nil {
			t.Errorf("%q is taken as %s", text, a)
		}
		if a, err := ParseSigned(text); err == nil {
			t.Errorf("%q is taken as %s, signed", text, a)
		}
	}
	if _, err := Parse("-1"); err == nil {
		t.Error("a sign is taken where none may be")
	}
}

// S66: zero is zero, whatever its sign.
func TestS66MinusZeroIsZero(t *testing.T) {
	for _, text := range []string{"-0", "-0.00", "-0.000000000000"} {
		a := parse(t, text)
		if a.Sign() != 0 || !a.Equal(Amount{}) || a.Text("USD") != "0.00" || a.String() != "0" {
			t.Errorf("%s is %s", text, a)
		}
	}
}

// S67: sums are exact.
func TestS67SumsAreExact(t *testing.T) {
	sum, err := parse(t, "999999999999.999999999").Add(parse(t, "0.000000000001"))
	if err != nil || sum.Text("USD") != "999999999999.999999999001" {
		t.Errorf("the sum is %s (%v)", sum, err)
	}
	if sum, err := parse(t, "999999999999999").Add(parse(t, "1")); err == nil {
		t.Errorf("a sum of 16 digits is taken: %s", sum)
	}
	back, err := sum.Add(parse(t, "0.000000000001").Neg())
	if err != nil || !back.Equal(parse(t, "999999999999.999999999")) {
		t.Errorf("taken off again: %s (%v)", back, err)
	}
}

// S68: what is long is refused without a copy of it, and so as fast as what is
// short.
func TestS68LongTextsAreRefusedAtOnce(t *testing.T) {
	long := []string{"1e1000000", strings.Repeat("9", 40), "0." + strings.Repeat("1", 13), strings.Repeat("9", 64<<20), "-" + strings.Repeat("0", 64<<20)}
	for _, text := range long {
		if got := testing.AllocsPerRun(5, func() {
			if _, err := ParseSigned(text); err == nil {
				t.Error("it is taken")
			}
		}); got > 0 {
			t.Errorf("%.16s…: %v allocations", text, got)
		}
	}
}

func TestAmountsAreComparedByValue(t *testing.T) {
	if !parse(t, "1.5").Equal(parse(t, "1.50")) || parse(t, "1.5").Cmp(parse(t, "1.51")) != -1 || parse(t, "-2").Cmp(parse(t, "-3")) != 1 {
		t.Error("1.5 and 1.50 differ, or the order is wrong")
	}
}

func TestCurrencies(t *testing.T) {
	for _, code := range []string{"", "usd", "US", "USDT", "U$D", "ＵＳＤ"} {
		if c, err := ParseCurrency(code); err == nil {
			t.Errorf("%q is taken as %s", code, c)
		}
	}
	if c, err := ParseCurrency("USD"); err != nil || c.Digits() != 2 {
		t.Errorf("USD: %d digits (%v)", c.Digits(), err)
	}
	if !slices.IsSorted(noMinor) || !slices.IsSorted(thousands) {
		t.Error("the lists are searched, so they have to be sorted")
	}
}

// FuzzParse holds the parser against the grammar and against exact fractions.
func FuzzParse(f *testing.F) {
	for _, text := range append([]string{"0", "25.00", "-5.00", "999999999999999.999999999999"}, refused...) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseSigned(text)
		if want := form.MatchString(strings.TrimPrefix(text, "-")) && len(text) <= maxText; (err == nil) != want {
			t.Fatalf("%q: taken %v, want %v", text, err == nil, want)
		}
		if err != nil {
			return
		}
		want, ok := new(big.Rat).SetString(text)
		got, ok2 := new(big.Rat).SetString(a.Text("USD"))
		if !ok || !ok2 || want.Cmp(got) != 0 {
			t.Fatalf("%q became %s", text, a.Text("USD"))
		}
		if again, err := ParseSigned(a.Text("USD")); err != nil || !again.Equal(a) || again.Text("USD") != a.Text("USD") {
			t.Fatalf("%q: %s is read again as %s (%v)", text, a.Text("USD"), again, err)
		}
	})
}
