package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/mail"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// Tier is what a customer has bought: webhooks and the feed are for paid ones.
type Tier string

// The tiers. There are no others.
const (
	TierFree Tier = "free"
	TierPaid Tier = "paid"
)

// Valid reports whether t is a tier.
func (t Tier) Valid() bool { return t == TierFree || t == TierPaid }

// Customer is a tenant.
type Customer struct {
	CustomerID string     `json:"customer_id"`
	Tier       Tier       `json:"tier"`
	Email      string     `json:"email,omitempty"`       // the owner's contact for notices
	Beta       bool       `json:"beta,omitempty"`        // takes part in JPINTEL_WEBHOOK_ROLLOUT=beta
	DailyLimit int64      `json:"daily_limit,omitempty"` // API calls a day; 0: no limit
	OptedOutAt *time.Time `json:"opted_out_at,omitempty"`
	CreatedAt  time.Time  `json:"created_at"`
}

// In is the customer with its times in a time zone, as people are shown them.
func (c Customer) In(zone *time.Location) Customer {
	c.CreatedAt = c.CreatedAt.In(zone)
	if c.OptedOutAt != nil {
		at := c.OptedOutAt.In(zone)
		c.OptedOutAt = &at
	}
	return c
}

// customerID leaves out what would need escaping in a path or a log line.
var customerID = regexp.MustCompile(`^[A-Za-z0-9_.:@+-]{1,64}$`)

func (c Customer) validate() error {
	if !customerID.MatchString(c.CustomerID) {
		return Errorf(CodeInvalid, "customer_id: want 1 to 64 letters, digits or _ . : @ + -")
	}
	if !c.Tier.Valid() {
		return Errorf(CodeInvalid, "tier: want free or paid")
	}
	if c.Email != "" && !validEmail(c.Email) {
		return Errorf(CodeInvalid, "email: want a plain address like ops@example.com")
	}
	if c.DailyLimit < 0 {
		return errDailyLimit
	}
	return nil
}

var errDailyLimit = Errorf(CodeInvalid, "daily_limit: want a positive number of calls a day, or none")

// validEmail reports whether a text is an address without a name or quotes, and
// with nothing in it that would end a header or a line of SMTP.
func validEmail(text string) bool {
	a, err := mail.ParseAddress(text)
	return err == nil && a.Address == text && len(text) <= 254 && // the longest that SMTP takes (RFC 5321)
		!strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' })
}

// CreateCustomer adds a customer. The same id again with the same values is
// the same customer, and created is false; with other values it is a conflict.
func CreateCustomer(tx *Tx, c Customer) (stored Customer, created bool, err error) {
	if err := c.validate(); err != nil {
		return c, false, err
	}
	n, err := tx.Update(`
		INSERT INTO customers (customer_id, tier, email, beta, daily_limit, created_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`,
		c.CustomerID, c.Tier, Nullable(c.Email), Bit(c.Beta), Nullable(c.DailyLimit), tx.NowMS())
	if err != nil {
		return c, false, fmt.Errorf("adding customer: %w", err)
	}
	stored, err = GetCustomer(tx, c.CustomerID)
	if err != nil {
		return c, false, err
	}
	if n == 0 && (stored.Tier != c.Tier || stored.Email != c.Email || stored.Beta != c.Beta || stored.DailyLimit != c.DailyLimit) {
		return stored, false, Errorf(CodeConflict, "customer %s exists with other values", c.CustomerID)
	}
	return stored, n == 1, nil
}

const customerColumns = `customer_id, tier, COALESCE(email, ''), beta, COALESCE(daily_limit, 0), opted_out_at_ms, created_at_ms`

func scanCustomer(row interface{ Scan(...any) error }) (Customer, error) {
	var c Customer
	var optedOut sql.NullInt64
	var created int64
	err := row.Scan(&c.CustomerID, &c.Tier, &c.Email, &c.Beta, &c.DailyLimit, &optedOut, &created)
	c.CreatedAt = FromMS(created)
	if optedOut.Valid {
		at := FromMS(optedOut.Int64)
		c.OptedOutAt = &at
	}
	return c, err
}

// GetCustomer reads a customer.
func GetCustomer(q Querier, id string) (Customer, error) {
	c, err := scanCustomer(q.QueryRow(`SELECT `+customerColumns+` FROM customers WHERE customer_id = $1`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return c, Errorf(CodeNotFound, "customer %s not found", id)
	}
	if err != nil {
		return c, fmt.Errorf("reading customer: %w", err)
	}
	return c, nil
}

// ListCustomers reads customers in the order of their ids, after the given
// one, limit at most.
func ListCustomers(ctx context.Context, db *DB, after string, limit int) ([]Customer, error) {
	rows, err := db.Reader(ctx).Query(`
		SELECT `+customerColumns+` FROM customers WHERE customer_id > $1 ORDER BY customer_id LIMIT $2`, after, limit)
	if err != nil {
		return nil, fmt.Errorf("listing customers: %w", err)
	}
	return Collect(rows, func(r *sql.Rows) (Customer, error) { return scanCustomer(r) })
}

// SetTier changes a customer's tier; changed is false where it had it already.
// What hangs on the tier is for the caller to change in the same transaction.
func SetTier(tx *Tx, id string, tier Tier) (changed bool, err error) {
	if !tier.Valid() {
		return false, Errorf(CodeInvalid, "tier: want free or paid")
	}
	if _, err := GetCustomer(tx, id); err != nil {
		return false, err
	}
	n, err := tx.Update(`UPDATE customers SET tier = $1 WHERE customer_id = $2 AND tier <> $1`, tier, id)
	if err != nil {
		return false, fmt.Errorf("setting the tier: %w", err)
	}
	return n == 1, nil
}

// Quota is what a customer may call a day.
type Quota struct {
	CustomerID string
	Tier       Tier
	DailyLimit int64 // calls; 0: no limit
	Version    int64 // rises with each change of DailyLimit
}

// GetQuota reads a customer's quota.
func GetQuota(q Querier, id string) (Quota, error) {
	quota := Quota{CustomerID: id}
	err := q.QueryRow(`SELECT tier, COALESCE(daily_limit, 0), limit_version FROM customers WHERE customer_id = $1`, id).
		Scan(&quota.Tier, &quota.DailyLimit, &quota.Version)
	if errors.Is(err, sql.ErrNoRows) {
		return quota, Errorf(CodeNotFound, "customer %s not found", id)
	}
	if err != nil {
		return quota, fmt.Errorf("reading the quota: %w", err)
	}
	return quota, nil
}

// SetDailyLimit changes a customer's daily limit, 0 to none, and returns the
// quota as it is then. The limit that there is already is no change. What hangs
// on it is for the caller to do in the same transaction.
func SetDailyLimit(tx *Tx, id string, calls int64) (Quota, error) {
	if calls < 0 {
		return Quota{}, errDailyLimit
	}
	if _, err := tx.Exec(`
		UPDATE customers SET daily_limit = $1, limit_version = limit_version + 1 WHERE customer_id = $2 AND COALESCE(daily_limit, 0) <> $3`,
		Nullable(calls), id, calls); err != nil {
		return Quota{}, fmt.Errorf("setting the daily limit: %w", err)
	}
	return GetQuota(tx, id)
}

// SetBeta gives a customer the beta flag or takes it, and returns the customer.
func SetBeta(tx *Tx, id string, beta bool) (Customer, error) {
	if _, err := tx.Exec(`UPDATE customers SET beta = $1 WHERE customer_id = $2`, Bit(beta), id); err != nil {
		return Customer{}, fmt.Errorf("setting the beta flag: %w", err)
	}
	return GetCustomer(tx, id)
}

// SetOptOut notes that a customer has stopped all webhooks, or that this has
// ended. Stopping twice keeps the first time. What hangs on it is for the caller
// to change in the same transaction.
func SetOptOut(tx *Tx, id string, out bool) error {
	var at any
	if out {
		at = tx.NowMS()
	}
	n, err := tx.Update(`
		UPDATE customers SET opted_out_at_ms = CASE WHEN $1 IS NULL THEN NULL ELSE COALESCE(opted_out_at_ms, $1) END WHERE customer_id = $2`, at, id)
	if err != nil {
		return fmt.Errorf("setting the opt-out: %w", err)
	}
	if n == 0 {
		return Errorf(CodeNotFound, "customer %s not found", id)
	}
	return nil
}
