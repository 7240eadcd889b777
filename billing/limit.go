package billing

import (
	"context"
	"database/sql"
	"fmt"

	"jpintel/billing/modelgate"
	"jpintel/billing/money"
	"jpintel/store"
)

// LimitRequest changes a customer's spend limit.
type LimitRequest struct {
	Key        string `header:"Idempotency-Key" json:"-"`
	CustomerID string `path:"id" json:"-"`
	SpendLimit string `json:"spend_limit"`
	Currency   string `json:"currency"` // default: the account's
	ApprovedBy string `json:"approved_by"`
}

// Accepted names the operation that a call has begun, and where the customer
// stands.
type Accepted struct {
	CustomerID  string         `json:"customer_id"`
	OperationID string         `json:"operation_id"`
	Status      CustomerStatus `json:"status"`
	done        bool
}

// HTTPStatus is 202 until the operation is done.
func (a Accepted) HTTPStatus() int {
	if a.done {
		return 200
	}
	return 202
}

// SetLimit begins to change a customer's limit, as the next version of its
// policy.
func (s *Service) SetLimit(ctx context.Context, r LimitRequest) (Accepted, error) {
	if err := approved(r.ApprovedBy); err != nil {
		return Accepted{}, err
	}
	limit, _, err := parseLimit(r.SpendLimit, r.Currency)
	if err != nil {
		return Accepted{}, err
	}
	return s.begin(ctx, "limit", r.Key, r.CustomerID, r, func(tx *store.Tx, a *Account) (intent, error) {
		if r.Currency != "" && r.Currency != string(a.Currency) {
			return intent{}, store.Errorf(store.CodeInvalid, "currency: the account is in %s", a.Currency)
		}
		return newLimit(tx, SetLimit, r.CustomerID, a.GroupID, limit, a.Currency, r.ApprovedBy)
	})
}

// begin accepts an intent for a customer that has a group, once for each
// Idempotency-Key.
func (s *Service) begin(ctx context.Context, scope, key, customer string, request any, make func(*store.Tx, *Account) (intent, error)) (Accepted, error) {
	return s.record(ctx, scope, key, customer, request, func(tx *store.Tx) (intent, error) {
		account, err := withGroup(tx, customer)
		if err != nil {
			return intent{}, err
		}
		return make(tx, account)
	})
}

// record accepts an intent, once for each Idempotency-Key.
func (s *Service) record(ctx context.Context, scope, key, customer string, request any, make func(*store.Tx) (intent, error)) (Accepted, error) {
	call, err := newCall(scope, key, []any{customer, request})
	if err != nil {
		return Accepted{}, err
	}
	var o *Operation
	err = s.DB.Write(ctx, func(tx *store.Tx) error {
		o, err = call.once(tx, func() (*Operation, error) {
			in, err := make(tx)
			if err != nil {
				return nil, err
			}
			o, _, err := accept(tx, in)
			s.wake(tx)
			return o, err
		})
		return err
	})
	if err != nil {
		return Accepted{}, err
	}
	return s.Accepted(ctx, o)
}

// Accepted is the answer that names an operation.
func (s *Service) Accepted(ctx context.Context, o *Operation) (Accepted, error) {
	status, err := customerStatus(s.DB.Reader(ctx), o.CustomerID)
	return Accepted{o.CustomerID, o.OperationID, status, !o.open() && o.Status != ReconciliationNeeded}, err
}

// newLimit writes the next version of a customer's policy and returns the intent
// that brings it about.
func newLimit(tx *store.Tx, action Action, customer, group string, limit money.Amount, c money.Currency, approvedBy string) (in intent, err error) {
	var latest sql.NullInt64
	if err := tx.QueryRow(`SELECT MAX(policy_version) FROM limit_policies WHERE customer_id = $1`, customer).Scan(&latest); err != nil {
		return in, fmt.Errorf("reading the limit's version: %w", err)
	}
	version := latest.Int64 + 1
	_, err = tx.Exec(`
		INSERT INTO limit_policies (customer_id, policy_version, spend_limit, currency, period, approved_by, created_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`, customer, version, limit.Text(c), string(c), modelgate.Period, approvedBy, tx.NowMS())
	if err != nil {
		return in, fmt.Errorf("writing the limit's version: %w", err)
	}
	in = limitIntent(action, customer, group, version, limit, c)
	in.approvedBy = approvedBy
	return in, nil
}
