package modelgatetest

import (
	"regexp"
	"strings"

	"github.com/shopspring/decimal"
)

// The grammar of money. It comes before the decimals' own, which takes 1E+3, +5
// and a Unicode minus.
var (
	moneyForm  = regexp.MustCompile(`^(0|[1-9][0-9]{0,14})(\.[0-9]{1,12})?$`)
	signedForm = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,12})?$`)
)

// parseMoney reads an amount; a sign only where it may have one.
func parseMoney(text string, signed bool) (decimal.Decimal, bool) {
	form := moneyForm
	if signed {
		form = signedForm
	}
	if !form.MatchString(text) {
		return decimal.Decimal{}, false
	}
	return mustMoney(text), true
}

// mustMoney reads what has been looked at before.
func mustMoney(text string) decimal.Decimal { return decimal.RequireFromString(text) }

// costDigits is how many digits a usage's cost has after the point, always.
const costDigits = 12

// printMoney writes an amount with its currency's minor digits, and as many more
// as it needs.
func printMoney(amount decimal.Decimal, currency string) string {
	minor := int32(2)
	if currency == "JPY" || currency == "KRW" {
		minor = 0
	}
	text := amount.StringFixed(max(minor, -amount.Exponent()))
	whole, fraction, _ := strings.Cut(text, ".")
	for len(fraction) > int(minor) && strings.HasSuffix(fraction, "0") {
		fraction = fraction[:len(fraction)-1]
	}
	if fraction == "" {
		return whole
	}
	return whole + "." + fraction
}
