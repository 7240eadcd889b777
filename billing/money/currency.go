package money

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Currency is an ISO 4217 code in capital letters.
type Currency string

// ParseCurrency reads a code. It judges the form alone: Check knows which there
// are, and which one a wallet has is for others to know.
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

// iso are the codes of ISO 4217 in which one pays, sorted: of the list as it is
// since BGN has left it (2026), without funds (CLF, UYW …), metals (XAU …), what is
// there for tests (XTS, XXX) and what was withdrawn (HRK, ANG …).
const iso = "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF " +
	"CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD " +
	"HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL " +
	"LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP " +
	"PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT " +
	"TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VED VES VND VUV WST XAF XCD XCG XOF XPF YER ZAR ZMW ZWG"

// Check says why a code stands for no currency in which one can pay.
func (c Currency) Check() error {
	if _, err := ParseCurrency(string(c)); err != nil {
		return err
	}
	for known := range strings.FieldsSeq(iso) {
		if known == string(c) {
			return nil
		}
	}
	return fmt.Errorf("%s is not among the currencies of ISO 4217 in which one pays", c)
}

// Currencies that have no minor unit, and those whose minor unit is a
// thousandth, sorted. All others have hundredths.
var (
	noMinor   = []Currency{"BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF", "XOF", "XPF"}
	thousands = []Currency{"BHD", "JOD", "KWD", "OMR", "TND"}
)

// Digits is how many digits after the point the currency is written with: those
// that payment providers count in. ISK is sent with two, which are always 00.
func (c Currency) Digits() int {
	if _, found := slices.BinarySearch(noMinor, c); found {
		return 0
	}
	if _, found := slices.BinarySearch(thousands, c); found {
		return 3
	}
	return 2
}
