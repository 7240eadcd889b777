package money

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestFromMinor is a table by hand: what a provider sends, and what was paid. ""
// is held, with these words.
func TestFromMinor(t *testing.T) {
	for _, c := range []struct {
		minor int64
		code  Currency
		want  string
		why   string
	}{
		{2500, "USD", "25.00", ""}, {1, "USD", "0.01", ""}, {0, "USD", "0.00", ""}, {10, "EUR", "0.10", ""}, {-500, "USD", "-5.00", ""},
		{9999, "GBP", "99.99", ""}, {100, "CHF", "1.00", ""}, {12345, "HUF", "123.45", ""}, {100, "TWD", "1.00", ""}, {100, "SLE", "1.00", ""}, {100, "ZWG", "1.00", ""},
		{5000, "JPY", "5000", ""}, {1, "JPY", "1", ""}, {7, "BIF", "7", ""}, {7, "CLP", "7", ""}, {7, "DJF", "7", ""}, {7, "GNF", "7", ""}, {7, "KMF", "7", ""}, {7, "KRW", "7", ""},
		{7, "MGA", "7", ""}, {7, "PYG", "7", ""}, {7, "RWF", "7", ""}, {7, "VND", "7", ""}, {7, "VUV", "7", ""}, {7, "XAF", "7", ""}, {7, "XOF", "7", ""}, {7, "XPF", "7", ""},
		{1500, "KWD", "1.500", ""}, {1010, "BHD", "1.010", ""}, {10, "JOD", "0.010", ""}, {10, "OMR", "0.010", ""}, {-10, "TND", "-0.010", ""},
		{1005, "KWD", "", "want a multiple of 10"}, {1, "BHD", "", "want a multiple of 10"}, {-1, "JOD", "", "want a multiple of 10"},
		{50000, "ISK", "500.00", ""}, {-100, "ISK", "-1.00", ""}, {50001, "ISK", "", "want a multiple of 100"}, {10, "ISK", "", "want a multiple of 100"},
		{500, "UGX", "", "documented in more than one way"}, {50000, "UGX", "", "documented in more than one way"},
		{1000, "LYD", "", "documented in more than one way"}, {1000, "IQD", "", "documented in more than one way"},
		{100, "XYZ", "", "XYZ is not among the currencies"}, {100, "ZZZ", "", "not among"}, {100, "DEM", "", "not among"}, {100, "XXX", "", "not among"}, {100, "XTS", "", "not among"},
		{100, "XAU", "", "not among"}, {100, "CLF", "", "not among"}, {100, "BGN", "", "not among"},
		{100, "usd", "", "three capital letters"}, {100, "", "", "three capital letters"}, {100, "U D", "", "three capital letters"}, {100, "USD ", "", "three capital letters"},
		{99999999999999999, "USD", "999999999999999.99", ""}, {100000000000000000, "USD", "", "more than 15 digits"},
		{math.MaxInt64, "USD", "", "more than 15 digits"}, {math.MinInt64, "USD", "", "more than 15 digits"}, {999999999999999, "JPY", "999999999999999", ""}, {1000000000000000, "JPY", "", "more than 15 digits"},
	} {
		a, err := FromMinor(c.minor, c.code)
		doubt, held := errors.AsType[*DoubtError](err)
		switch {
		case c.want != "" && (err != nil || a.Text(c.code) != c.want || a.Raw() != ""):
			t.Errorf("%d %s is %s (%v), want %s", c.minor, c.code, a.Text(c.code), err, c.want)
		case c.want == "" && (!held || doubt.Minor != c.minor || doubt.Currency != c.code || !strings.Contains(err.Error(), c.why) || a != Amount{}):
			t.Errorf("%d %s is %s, %v: want it held: %s", c.minor, c.code, a, err, c.why)
		}
	}
}

// The codes are those of the list that Debian keeps, but for what has changed
// since 2023, what is no money, and funds.
func TestCurrenciesAreThoseOfISO(t *testing.T) {
	text, err := os.ReadFile("/usr/share/iso-codes/json/iso_4217.json")
	if err != nil {
		t.Skipf("not held against Debian's list: the package iso-codes is not there: %v", err)
	}
	var list struct {
		Codes []struct {
			Code Currency `json:"alpha_3"`
		} `json:"4217"`
	}
	if err := json.Unmarshal(text, &list); err != nil || len(list.Codes) < 150 {
		t.Fatalf("%d codes: %v", len(list.Codes), err)
	}
	gone := strings.Fields("HRK SLL ZWL ANG CUC BGN BOV CHE CHW CLF COU MXV USN UYI UYW XAG XAU XBA XBB XBC XBD XDR XPD XPT XSU XTS XUA XXX XAD")
	var there []Currency
	for _, c := range list.Codes {
		there = append(there, c.Code)
		if known := c.Code.Check() == nil; known == slices.Contains(gone, string(c.Code)) {
			t.Errorf("%s: known %v", c.Code, known)
		}
	}
	for code := range strings.FieldsSeq(iso) {
		if !slices.Contains(there, Currency(code)) && !slices.Contains([]string{"XCG", "ZWG", "SLE", "VED"}, code) {
			t.Errorf("%s is not on the list", code)
		}
	}
	if codes := strings.Fields(iso); !slices.IsSorted(codes) || len(slices.Compact(codes)) != len(strings.Fields(iso)) {
		t.Error("the codes are not in order, or there twice")
	}
}
