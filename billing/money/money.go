// Package money is exact amounts of money: text at the border, decimals inside,
// text again. There is no binary floating point in it, nor anywhere under
// billing.
//
// An [Amount] is made by [Parse], [ParseSigned], or by adding up others. What is
// parsed has to have the one form that the contract knows; the decimal library
// behind it would take exponents, plus signs and digits of other scripts too, so
// the form is judged before the library sees the text. Nothing here divides, and
// nothing rounds but [Amount.Rounded].
package money

import (
	"fmt"
	"strings"

	"github.com/shopspring/decimal"
)

// The bounds of an amount. They are the contract's: what is longer is no money.
const (
	maxText     = 32 // bytes
	maxInteger  = 15 // digits before the point
	maxFraction = 12 // digits after it
)

// Amount is an exact amount without a currency. The zero value is 0. Amounts are
// compared by [Amount.Equal] and [Amount.Cmp], never by == and never as text:
// 1.5 and 1.50 are the same amount.
type Amount struct {
	raw   string
	value decimal.Decimal
}

// Parse reads an amount that has no sign: 0, 12, 0.10.
func Parse(text string) (Amount, error) {
	if err := checkForm(text); err != nil {
		return Amount{}, err
	}
	return read(text, text)
}

// ParseSigned is Parse for amounts that may be negative: a minus may come first.
// -0 is 0.
func ParseSigned(text string) (Amount, error) {
	if len(text) > maxText { // before anything copies it
		return Amount{}, errForm
	}
	digits, negative := strings.CutPrefix(text, "-")
	if err := checkForm(digits); err != nil {
		return Amount{}, err
	}
	a, err := read(text, digits)
	if negative {
		a.value = a.value.Neg()
	}
	return a, err
}

var errForm = fmt.Errorf("want an amount like 12 or 0.10: at most %d digits before the point and %d after it, and nothing else", maxInteger, maxFraction)

// checkForm judges ^(0|[1-9][0-9]{0,14})(\.[0-9]{1,12})?$ byte by byte: a long
// text costs nothing.
func checkForm(text string) error {
	if len(text) > maxText {
		return errForm
	}
	integer, fraction, point := strings.Cut(text, ".")
	if !digits(integer, maxInteger) || len(integer) > 1 && integer[0] == '0' || point && !digits(fraction, maxFraction) {
		return errForm
	}
	return nil
}

func digits(text string, most int) bool {
	if text == "" || len(text) > most {
		return false
	}
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func read(raw, digits string) (Amount, error) {
	value, err := decimal.NewFromString(digits)
	if err != nil {
		return Amount{}, fmt.Errorf("%w: %w", errForm, err) // unreachable: the form was judged
	}
	return Amount{raw, value}, nil
}

// Raw is the text as it was received; "" for what was computed.
func (a Amount) Raw() string { return a.raw }

// Text is the canonical text: all digits that count, and at least as many after
// the point as the currency has. It is what is stored and sent.
func (a Amount) Text(c Currency) string {
	text := a.String()
	integer, fraction, _ := strings.Cut(text, ".")
	if missing := c.Digits() - len(fraction); missing > 0 {
		return integer + "." + fraction + strings.Repeat("0", missing)
	}
	return text
}

// String is the amount without zeros that do not count: 25, 0.1.
func (a Amount) String() string { return a.value.String() }

// Equal reports whether a and b are the same amount.
func (a Amount) Equal(b Amount) bool { return a.value.Equal(b.value) }

// Cmp is -1, 0 or 1: a is less than b, equal, greater.
func (a Amount) Cmp(b Amount) int { return a.value.Cmp(b.value) }

// Sign is -1, 0 or 1.
func (a Amount) Sign() int { return a.value.Sign() }

// Neg is -a.
func (a Amount) Neg() Amount { return Amount{value: a.value.Neg()} }

// Sub is a - b, exact, and fails as Add does.
func (a Amount) Sub(b Amount) (Amount, error) { return a.Add(b.Neg()) }

// Add is a + b, exact. It fails where the sum has more digits than an amount may.
func (a Amount) Add(b Amount) (Amount, error) {
	sum := Amount{value: a.value.Add(b.value)}
	if checkForm(strings.TrimPrefix(sum.String(), "-")) != nil {
		return Amount{}, fmt.Errorf("%s and %s: the sum has more than %d digits before the point", a, b, maxInteger)
	}
	return sum, nil
}
