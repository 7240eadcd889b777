package money

import (
	"fmt"

	"github.com/shopspring/decimal"
)

// FromMinor is an amount that a payment provider gives in the currency's minor
// units: 2500 in USD is 25.00, 5000 in JPY is 5000. It fails where it is not
// certain what the units are.
func FromMinor(minor int64, c Currency) (Amount, error) {
	if c.Digits() == 3 && minor%10 != 0 {
		return Amount{}, fmt.Errorf("%d in %s: want a multiple of 10", minor, c)
	}
	return Amount{value: decimal.New(minor, -int32(c.Digits()))}, nil
}
