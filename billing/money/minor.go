package money

import (
	"fmt"
	"slices"

	"github.com/shopspring/decimal"
)

// DoubtError says why it is not certain how much an amount in minor units is.
// Whoever gets one holds the payment for a person to look at: a guess would be
// wrong by a hundred times, or by ten.
type DoubtError struct {
	Minor    int64
	Currency Currency
	Why      string // in words
}

func (e *DoubtError) Error() string { return fmt.Sprintf("%d in %s: %s", e.Minor, e.Currency, e.Why) }

// doubtful are currencies whose minor units ISO 4217 and payment providers do
// not agree on, or which providers themselves document in two ways, sorted. MGA
// and ISK are not among them: there what is sent is documented, and is one thing.
var doubtful = []Currency{"IQD", "LYD", "UGX"}

// FromMinor is an amount that a payment provider gives in minor units: 2500 in
// USD is 25.00, 5000 in JPY is 5000, 1500 in KWD is 1.500, 50000 in ISK is 500.
// It fails with a DoubtError where that is not certain.
func FromMinor(minor int64, c Currency) (Amount, error) {
	doubt := func(why string) (Amount, error) { return Amount{}, &DoubtError{minor, c, why} }
	if err := c.Check(); err != nil {
		return doubt("the currency is unknown: " + err.Error())
	}
	if _, found := slices.BinarySearch(doubtful, c); found {
		return doubt("it is documented in more than one way what the minor unit is")
	}
	switch {
	case c.Digits() == 3 && minor%10 != 0:
		return doubt("want a multiple of 10, as amounts in thousandths are sent")
	case c == "ISK" && minor%100 != 0:
		return doubt("want a multiple of 100: hundredths are sent, and there are none")
	}
	a := Amount{value: decimal.New(minor, -int32(c.Digits()))}
	if !a.fits() {
		return doubt(fmt.Sprintf("more than %d digits before the point", maxInteger))
	}
	return a, nil
}
