package billing

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"jpintel/billing/money"
	"jpintel/store"
)

// CustomerStatus is the one state that a customer is in, whatever its
// operations are doing.
type CustomerStatus string

// The states.
const (
	Provisioning   CustomerStatus = "provisioning"
	Ready          CustomerStatus = "ready"
	NeedsAttention CustomerStatus = "needs_attention" // a person has to decide
	Frozen         CustomerStatus = "frozen"
)

// customerStatus tells where a customer stands; "" where billing knows nothing
// of it.
func customerStatus(q store.Querier, customer string) (CustomerStatus, error) {
	a, err := getAccount(q, customer)
	if err != nil || a == nil {
		return "", err
	}
	var stuck, ready, lost bool
	err = q.QueryRow(`
		SELECT EXISTS (SELECT 1 FROM partner_operations WHERE customer_id = $1 AND status = 'reconciliation_needed'),
		  EXISTS (SELECT 1 FROM partner_operations WHERE customer_id = $1 AND action = 'provision_customer' AND status = 'succeeded'),
		  EXISTS (SELECT 1 FROM model_keys k WHERE k.customer_id = $1 AND k.status <> 'revoked'
		    AND NOT EXISTS (SELECT 1 FROM key_secrets s WHERE s.operation_id = k.operation_id))`, customer).Scan(&stuck, &ready, &lost)
	if err != nil {
		return "", fmt.Errorf("reading a customer's status: %w", err)
	}
	switch {
	case stuck || lost:
		return NeedsAttention, nil
	case a.Frozen:
		return Frozen, nil
	case ready:
		return Ready, nil
	}
	return Provisioning, nil
}

// Status tells where a customer stands; nil where billing has nothing to do with
// it.
func (s *Service) Status(ctx context.Context, customer string) (*CustomerStatus, error) {
	status, err := customerStatus(s.DB.Reader(ctx), customer)
	if err != nil || status == "" {
		return nil, err
	}
	return &status, nil
}

// CustomerRequest asks for a customer.
type CustomerRequest struct {
	CustomerID string `path:"id" json:"-"`
}

// Customer is what operators see of one.
type Customer struct {
	CustomerID string          `json:"customer_id"`
	Tier       store.Tier      `json:"tier"`
	Status     *CustomerStatus `json:"status"` // null: billing has nothing to do with it
	GroupID    *string         `json:"group_id"`
	Keys       []ModelKey      `json:"keys"`
	SpendLimit *string         `json:"spend_limit"` // the one in force
	Currency   *string         `json:"currency"`
}

// Customer reads a customer with its billing.
func (s *Service) Customer(ctx context.Context, r CustomerRequest) (c Customer, err error) {
	err = s.DB.View(ctx, func(q store.Querier) error {
		c, err = readCustomer(q, r.CustomerID)
		return err
	})
	return c, err
}

func readCustomer(q store.Querier, id string) (c Customer, err error) {
	tenant, err := store.GetCustomer(q, id)
	if err != nil {
		return c, err
	}
	c = Customer{CustomerID: id, Tier: tenant.Tier}
	if c.Keys, err = modelKeys(q, id); err != nil {
		return c, err
	}
	a, err := getAccount(q, id)
	if err != nil || a == nil {
		return c, err
	}
	status, err := customerStatus(q, id)
	if err != nil {
		return c, err
	}
	c.Status, c.Currency = &status, new(string(a.Currency))
	if a.GroupID != "" {
		c.GroupID = &a.GroupID
	}
	c.SpendLimit, err = limitInForce(q, id)
	return c, err
}

// limitInForce is the newest limit that the upstream has confirmed, as text; nil:
// none.
func limitInForce(q store.Querier, customer string) (*string, error) {
	p, err := policyInForce(q, customer, "")
	if p == nil || err != nil {
		return nil, err
	}
	return new(p.Limit.Text(p.Currency)), nil
}

// policy is one version of a customer's limit.
type policy struct {
	Version  int64
	Limit    money.Amount
	Currency money.Currency
}

// policyInForce is the newest one that the upstream has confirmed, as if one
// operation had not been; nil: none.
func policyInForce(q store.Querier, customer, except string) (*policy, error) {
	var p policy
	var limit string
	err := q.QueryRow(`
		SELECT intent_version, amount, currency FROM partner_operations
		WHERE customer_id = $1 AND action IN ('set_limit', 'set_initial_limit') AND status = 'succeeded' AND operation_id <> $2
		ORDER BY intent_version DESC LIMIT 1`, customer, except).Scan(&p.Version, &limit, &p.Currency)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err == nil {
		p.Limit, err = money.Parse(limit)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the limit in force: %w", err)
	}
	return &p, nil
}
