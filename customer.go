package main

import (
	"context"
	"time"

	"jpintel/billing"
	"jpintel/store"
)

// accountRequest asks for the caller's own account.
type accountRequest struct {
	CustomerID string `bind:"customer" json:"-"`
}

// account is a customer as it sees itself: what its events report changes of.
type account struct {
	CustomerID string     `json:"customer_id"`
	Tier       store.Tier `json:"tier"`
	Email      string     `json:"email,omitempty"` // for notices
	DailyLimit *int64     `json:"daily_limit"`     // API calls a day; null: no limit
	OptedOut   bool       `json:"opted_out"`       // all webhooks are stopped

	Status    *billing.CustomerStatus `json:"status"` // at the partner API; null: not signed up there
	CreatedAt time.Time               `json:"created_at"`
}

func (a *api) account(ctx context.Context, r accountRequest) (account, error) {
	c, err := store.GetCustomer(a.db.Reader(ctx), r.CustomerID)
	if err != nil {
		return account{}, err
	}
	status, err := a.billing.Status(ctx, r.CustomerID)
	if err != nil {
		return account{}, err
	}
	answer := account{Status: status, CustomerID: c.CustomerID, Tier: c.Tier, Email: c.Email, OptedOut: c.OptedOutAt != nil, CreatedAt: c.CreatedAt.In(a.db.Location)}
	if c.DailyLimit > 0 {
		answer.DailyLimit = &c.DailyLimit
	}
	return answer, nil
}
