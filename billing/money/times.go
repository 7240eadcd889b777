package money

import "github.com/shopspring/decimal"

var hundred = decimal.New(100, 0)

// Times is the amount n times, exact. It fails as Add does.
func (a Amount) Times(n int64) (Amount, error) {
	return Amount{value: a.value.Mul(decimal.New(n, 0))}.Add(Amount{})
}

// Reaches reports whether the amount is so many percent of a limit, or more:
// exactly, by multiplying across.
func (a Amount) Reaches(limit Amount, percent int) bool {
	return a.value.Mul(hundred).Cmp(limit.value.Mul(decimal.New(int64(percent), 0))) >= 0
}
