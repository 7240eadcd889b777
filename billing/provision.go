package billing

import (
	"context"
	"database/sql"
	"fmt"

	"jpintel/billing/modelgate"
	"jpintel/billing/money"
	"jpintel/store"
	"jpintel/webhook"
)

// SignUp is a customer that wants a group, a key and a limit.
type SignUp struct {
	Customer   store.Customer
	Version    int64 // of the sign-up; a new one is a new intent
	SpendLimit string
	Currency   string // default USD
	Key        string // the caller's Idempotency-Key
}

// defaultCurrency is the wallet's.
const defaultCurrency = "USD"

// defaultPurpose is the first key's.
const defaultPurpose = "default"

// SignUp begins the provisioning of a customer, or returns the one that there
// is: however often it is called there is one operation, and one of each of its
// children.
func (s *Service) SignUp(ctx context.Context, in SignUp) (o *Operation, err error) {
	if in.Version < 1 {
		return nil, store.Errorf(store.CodeInvalid, "signup_version: want a whole number from 1")
	}
	limit, currency, err := parseLimit(in.SpendLimit, in.Currency)
	if err != nil {
		return nil, err
	}
	call, err := newCall("signup", in.Key, in)
	if err != nil {
		return nil, err
	}
	err = s.DB.Write(ctx, func(tx *store.Tx) error {
		o, err = call.once(tx, func() (*Operation, error) { return s.signUp(tx, in, limit, currency) })
		return err
	})
	return o, err
}

func parseLimit(text, code string) (limit money.Amount, c money.Currency, err error) {
	if limit, err = money.Parse(text); err != nil {
		return limit, c, store.Errorf(store.CodeInvalid, "spend_limit: %v", err)
	}
	if code == "" {
		code = defaultCurrency
	}
	if c, err = money.ParseCurrency(code); err == nil {
		err = c.Check()
	}
	if err != nil {
		return limit, c, store.Errorf(store.CodeInvalid, "currency: %v", err)
	}
	return limit, c, nil
}

func (s *Service) signUp(tx *store.Tx, in SignUp, limit money.Amount, c money.Currency) (*Operation, error) {
	if err := addCustomer(tx, in.Customer); err != nil {
		return nil, err
	}
	customer := in.Customer.CustomerID
	if err := onlySignUp(tx, customer, in.Version); err != nil {
		return nil, err
	}
	parent, created, err := accept(tx, signupIntent(customer, in.Version, limit, c))
	if err != nil || !created {
		return parent, err
	}
	if err := createAccount(tx, Account{CustomerID: customer, Currency: c, SignupVersion: in.Version}); err != nil {
		return nil, err
	}
	child := groupIntent(customer, in.Version, s.Models, c)
	child.parent = parent.OperationID
	if _, _, err := accept(tx, child); err != nil {
		return nil, err
	}
	s.wake(tx)
	return parent, convergeHeld(tx, customer)
}

// addCustomer adds the customer, where there is none. Of one that there is,
// whatever is given has to be so.
func addCustomer(tx *store.Tx, c store.Customer) error {
	if c.Tier == "" {
		there, err := store.GetCustomer(tx, c.CustomerID)
		if err == nil && (c == store.Customer{CustomerID: c.CustomerID}) {
			return nil
		}
		if c.Tier = there.Tier; err != nil {
			c.Tier = store.TierFree
		}
	}
	_, _, err := store.CreateCustomer(tx, c)
	return err
}

// onlySignUp refuses another sign-up of a customer that has a group, or may be
// about to get one: two of them would make two.
func onlySignUp(q store.Querier, customer string, version int64) error {
	var other sql.NullInt64
	err := q.QueryRow(`
		SELECT MAX(intent_version) FROM partner_operations
		WHERE customer_id = $1 AND action = $2 AND intent_version <> $3 AND status <> 'failed_final'`,
		customer, string(ProvisionCustomer), version).Scan(&other)
	if err != nil {
		return fmt.Errorf("looking for a sign-up: %w", err)
	}
	if other.Valid {
		return store.Errorf(store.CodeConflict, "customer %s was signed up with signup_version %d, and has a group or is getting one", customer, other.Int64)
	}
	return nil
}

// advance is everything that follows from the success of an operation, in the
// transaction of that success.
func (r rules) advance(ctx context.Context, tx *store.Tx, o *Operation, a modelgate.Answer) error {
	switch o.Action {
	case CreateGroup:
		return r.groupCreated(tx, o, a)
	case CreateKey:
		return r.keyCreated(ctx, tx, o, a)
	case SetInitialLimit:
		if err := r.limitChanged(ctx, tx, o); err != nil {
			return err
		}
		return r.provisioned(ctx, tx, o)
	case SetLimit:
		return r.limitChanged(ctx, tx, o)
	case RevokeKey:
		return r.keyRevoked(ctx, tx, o)
	case FreezeGroup:
		return r.frozen(ctx, tx, o, true)
	case ThawGroup:
		if err := r.frozen(ctx, tx, o, false); err != nil {
			return err
		}
		return convergeHeld(tx, o.CustomerID)
	case TopUpCredit, DebitCredit:
		return r.creditMoved(ctx, tx, o, a)
	}
	return nil
}

// groupCreated: the group is there, the key comes next.
func (r rules) groupCreated(tx *store.Tx, o *Operation, a modelgate.Answer) error {
	if err := setGroup(tx, o.CustomerID, a.TargetID); err != nil {
		return err
	}
	if o.ParentID == nil {
		return nil // unreachable: groups are made by provisioning
	}
	return next(tx, *o.ParentID, PhaseKey, keyIntent(o.CustomerID, a.TargetID, defaultPurpose, 1))
}

// secretKept: the first key and its secret are there, the limit comes next.
func (r rules) secretKept(tx *store.Tx, o *Operation, group string) error {
	parent, err := GetOperation(tx, *o.ParentID)
	if err != nil {
		return err
	}
	limit, c, err := parent.money()
	if err != nil {
		return err
	}
	in, err := newLimit(tx, SetInitialLimit, o.CustomerID, group, limit, c, "sign-up")
	if err != nil {
		return err
	}
	return next(tx, parent.OperationID, PhaseLimit, in)
}

// next moves a provisioning to a phase and inserts the child that it waits for.
func next(tx *store.Tx, parent string, phase Phase, child intent) error {
	n, err := tx.Update(`
		UPDATE partner_operations SET status = 'pending', phase = $1, last_error_code = NULL, last_error_message = NULL, updated_at_ms = $2
		WHERE operation_id = $3 AND status IN ('pending', 'reconciliation_needed')`, string(phase), tx.NowMS(), parent)
	if err != nil {
		return fmt.Errorf("provisioning: %w", err)
	}
	if n == 0 {
		return store.Errorf(store.CodeConflict, "the provisioning %s has ended", parent)
	}
	child.parent = parent
	_, _, err = accept(tx, child)
	return err
}

// block has a provisioning wait for the operator.
func block(tx *store.Tx, parent string, phase Phase, code, message string) error {
	_, err := tx.Exec(`
		UPDATE partner_operations SET status = 'reconciliation_needed', phase = $1, last_error_code = $2, last_error_message = $3, updated_at_ms = $4
		WHERE operation_id = $5 AND finished_at_ms IS NULL`, string(phase), code, message, tx.NowMS(), parent)
	if err != nil {
		return fmt.Errorf("provisioning: %w", err)
	}
	return nil
}

// provisioned ends a provisioning: the customer is ready, and is told so.
func (r rules) provisioned(ctx context.Context, tx *store.Tx, o *Operation) error {
	if o.ParentID == nil {
		return nil // unreachable: initial limits are set by provisioning
	}
	parent, err := GetOperation(tx, *o.ParentID)
	if err != nil {
		return err
	}
	n, err := tx.Update(`
		UPDATE partner_operations SET status = 'succeeded', phase = 'provisioned', target_public_id = $1, last_error_code = NULL, last_error_message = NULL,
		  updated_at_ms = $2, finished_at_ms = $2
		WHERE operation_id = $3 AND status IN ('pending', 'reconciliation_needed')`, o.Intent, tx.NowMS(), parent.OperationID)
	if err != nil {
		return fmt.Errorf("provisioning: %w", err)
	}
	if n == 0 {
		return nil // the operator has ended it
	}
	var keyID string
	if err := tx.QueryRow(`SELECT key_id FROM model_keys WHERE customer_id = $1 AND purpose = $2 ORDER BY key_version DESC LIMIT 1`,
		o.CustomerID, defaultPurpose).Scan(&keyID); err != nil {
		return fmt.Errorf("reading the first key: %w", err)
	}
	if err := note(tx, parent.OperationID, system, "provisioned", "group "+o.Intent+", key "+keyID+", limit "+*o.Amount+" "+*o.Currency); err != nil {
		return err
	}
	_, err = r.outbox.PublishCaused(ctx, tx, webhook.CustomerProvisioned{CustomerID: o.CustomerID, GroupID: o.Intent, KeyID: keyID,
		Currency: *o.Currency, SpendLimit: *o.Amount}, parent.OperationID)
	if err != nil {
		return err
	}
	return convergeHeld(tx, o.CustomerID) // what was paid before there was a group
}
