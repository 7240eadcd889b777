package billing

import (
	"database/sql"
	"errors"
	"fmt"

	"jpintel/billing/money"
	"jpintel/store"
)

// Account is what billing knows of a customer.
type Account struct {
	CustomerID    string
	Currency      money.Currency
	SignupVersion int64
	GroupID       string // the upstream's; "": not made yet
	Frozen        bool
}

// getAccount reads an account; nil where the customer has none.
func getAccount(q store.Querier, customer string) (*Account, error) {
	a := Account{CustomerID: customer}
	err := q.QueryRow(`SELECT currency, signup_version, COALESCE(group_id, ''), spend_status = 'frozen' FROM billing_accounts WHERE customer_id = $1`, customer).
		Scan(&a.Currency, &a.SignupVersion, &a.GroupID, &a.Frozen)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading an account: %w", err)
	}
	return &a, nil
}

// withGroup reads the account of a customer that has a group upstream.
func withGroup(q store.Querier, customer string) (*Account, error) {
	if _, err := store.GetCustomer(q, customer); err != nil {
		return nil, err
	}
	a, err := getAccount(q, customer)
	if err == nil && (a == nil || a.GroupID == "") {
		return nil, store.Errorf(store.CodeConflict, "customer %s is not provisioned yet", customer)
	}
	return a, err
}

// createAccount opens a customer's account, or moves one that has no group to
// another sign-up.
func createAccount(tx *store.Tx, a Account) error {
	_, err := tx.Exec(`
		INSERT INTO billing_accounts (customer_id, currency, signup_version, created_at_ms) VALUES ($1, $2, $3, $4)
		ON CONFLICT (customer_id) DO UPDATE SET currency = excluded.currency, signup_version = excluded.signup_version, version = version + 1
		WHERE group_id IS NULL`, a.CustomerID, string(a.Currency), a.SignupVersion, tx.NowMS())
	if err != nil {
		return fmt.Errorf("opening an account: %w", err)
	}
	return nil
}

// setGroup notes the group that was made for a customer.
func setGroup(tx *store.Tx, customer, group string) error {
	_, err := tx.Exec(`UPDATE billing_accounts SET group_id = $1, version = version + 1 WHERE customer_id = $2`, group, customer)
	if err != nil {
		return fmt.Errorf("noting the group: %w", err)
	}
	return nil
}

// setSpend notes that a customer's spending was stopped, or goes on.
func setSpend(tx *store.Tx, customer, status string) error {
	_, err := tx.Exec(`UPDATE billing_accounts SET spend_status = $1, version = version + 1 WHERE customer_id = $2`, status, customer)
	if err != nil {
		return fmt.Errorf("noting the spend status: %w", err)
	}
	return nil
}
