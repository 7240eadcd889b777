package money

import (
	"errors"
	"slices"
)

// Currency is an ISO 4217 code in capital letters.
type Currency string

// ParseCurrency reads a code. It judges the form alone: which currencies a
// wallet has is for others to know.
func ParseCurrency(code string) (Currency, error) {
	if len(code) != 3 {
		return "", errCurrency
	}
	for _, c := range []byte(code) {
		if c < 'A' || c > 'Z' {
			return "", errCurrency
		}
	}
	return Currency(code), nil
}

var errCurrency = errors.New("want three capital letters like USD (ISO 4217)")

// Currencies that have no minor unit, and those whose minor unit is a
// thousandth, sorted. All others have hundredths.
var (
	noMinor   = []Currency{"BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF", "XOF", "XPF"}
	thousands = []Currency{"BHD", "JOD", "KWD", "OMR", "TND"}
)

// Digits is how many digits after the point the currency is written with.
func (c Currency) Digits() int {
	if _, found := slices.BinarySearch(noMinor, c); found {
		return 0
	}
	if _, found := slices.BinarySearch(thousands, c); found {
		return 3
	}
	return 2
}
