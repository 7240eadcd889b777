package billing

import (
	"context"
	"time"

	"jpintel/billing/metering"
	"jpintel/billing/money"
	"jpintel/store"
)

// StatementRequest asks for a customer's statement of a month.
type StatementRequest struct {
	CustomerID string
	Month      string // YYYY-MM; "": this month
}

// Statement reads what a customer has used in a month: webhook attempts with
// their price, and what models have cost.
func (s *Service) Statement(ctx context.Context, r StatementRequest) (statement metering.Statement, err error) {
	err = s.DB.View(ctx, func(q store.Querier) error {
		if _, err := store.GetCustomer(q, r.CustomerID); err != nil {
			return err
		}
		a, err := getAccount(q, r.CustomerID)
		if err != nil {
			return err
		}
		var c money.Currency
		if a != nil {
			c = a.Currency
		}
		statement, err = metering.ReadStatement(q, r.CustomerID, r.Month, c, s.AttemptPrice, time.Now(), s.DB.Location)
		return err
	})
	return statement, err
}
