package money

import "github.com/shopspring/decimal"

var hundred = decimal.New(100, 0)

// Rounded is the amount in whole minor units of a currency, half to even. It is
// for what is shown or billed at last: rounded once, and never calculated with
// again.
func (a Amount) Rounded(c Currency) Amount {
	return Amount{value: a.value.RoundBank(int32(c.Digits()))}
}

// Times is the amount n times, exact. It fails as Add does.
func (a Amount) Times(n int64) (Amount, error) {
	return Amount{value: a.value.Mul(decimal.New(n, 0))}.Add(Amount{})
}

// Reaches reports whether the amount is so many percent of a limit, or more:
// exactly, by multiplying across.
func (a Amount) Reaches(limit Amount, percent int) bool {
	return a.value.Mul(hundred).Cmp(limit.value.Mul(decimal.New(int64(percent), 0))) >= 0
}
