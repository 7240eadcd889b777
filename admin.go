package main

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"time"

	"jpintel/billing"
	"jpintel/store"
	"jpintel/webhook/programs"
)

// createCustomerRequest adds a customer; with a spend limit it is a sign-up.
type createCustomerRequest struct {
	Key        string     `header:"Idempotency-Key" json:"-"` // of a sign-up
	CustomerID string     `json:"customer_id"`
	Tier       store.Tier `json:"tier"` // default free
	Email      string     `json:"email"`
	Beta       bool       `json:"beta"`
	DailyLimit int64      `json:"daily_limit"`

	SignupVersion int64  `json:"signup_version"` // default 1
	SpendLimit    string `json:"spend_limit"`    // "": no group, no key, no limit
	Currency      string `json:"currency"`
}

// customerAnswer is the customer, or the operation that a sign-up has begun.
type customerAnswer interface{ HTTPStatus() int }

// createCustomerAnswer is the customer; 201 when it is new.
type createCustomerAnswer struct {
	store.Customer
	created bool
}

// HTTPStatus is 201 for a new customer.
func (a createCustomerAnswer) HTTPStatus() int {
	if a.created {
		return http.StatusCreated
	}
	return http.StatusOK
}

func (a *api) createCustomer(ctx context.Context, r createCustomerRequest) (customerAnswer, error) {
	if r.SpendLimit != "" {
		return a.signUp(ctx, r)
	}
	if r.Currency != "" || r.SignupVersion != 0 {
		return nil, store.Errorf(store.CodeInvalid, "spend_limit: required with currency and signup_version")
	}
	if r.Tier == "" {
		r.Tier = store.TierFree
	}
	var answer createCustomerAnswer
	err := a.db.Write(ctx, func(tx *store.Tx) (err error) {
		answer.Customer, answer.created, err = store.CreateCustomer(tx,
			store.Customer{CustomerID: r.CustomerID, Tier: r.Tier, Email: r.Email, Beta: r.Beta, DailyLimit: r.DailyLimit})
		return err
	})
	answer.Customer = answer.Customer.In(a.db.Location)
	return answer, err
}

// signUp adds the customer and begins its provisioning.
func (a *api) signUp(ctx context.Context, r createCustomerRequest) (customerAnswer, error) {
	o, err := a.billing.SignUp(ctx, billing.SignUp{
		Customer: store.Customer{CustomerID: r.CustomerID, Tier: r.Tier, Email: r.Email, Beta: r.Beta, DailyLimit: r.DailyLimit},
		Version:  cmp.Or(r.SignupVersion, 1), SpendLimit: r.SpendLimit, Currency: r.Currency, Key: r.Key,
	})
	if err != nil {
		return nil, err
	}
	return a.billing.Accepted(ctx, o)
}

// createKeyRequest makes an API key.
type createKeyRequest struct {
	CustomerID string `path:"id" json:"-"`
}

// createKeyAnswer is the one time that a key is shown.
type createKeyAnswer struct {
	KeyID      string `json:"key_id"`
	CustomerID string `json:"customer_id"`
	APIKey     string `json:"api_key"`
}

// HTTPStatus is 201 Created.
func (createKeyAnswer) HTTPStatus() int { return http.StatusCreated }

func (a *api) createKey(ctx context.Context, r createKeyRequest) (createKeyAnswer, error) {
	return createKey(ctx, a.db, r.CustomerID)
}

func createKey(ctx context.Context, db *store.DB, customer string) (answer createKeyAnswer, err error) {
	err = db.Write(ctx, func(tx *store.Tx) error {
		key, text, err := store.CreateAPIKey(tx, customer)
		answer = createKeyAnswer{key.KeyID, key.CustomerID, text}
		return err
	})
	return answer, err
}

// streamPause is how long an import may wait for its next bytes.
const streamPause = time.Minute

// importPrograms takes a stream of programs; what is counted is on disk.
func (a *api) importPrograms(c *call) error {
	if _, err := c.query(nil); err != nil {
		return err
	}
	if err := wantContentType(c.r, "application/x-ndjson"); err != nil {
		return err
	}
	report, err := a.programs.Import(c.r.Context(), &patientReader{c.r.Body, http.NewResponseController(c.w)}, programs.ImportOptions{})
	if err != nil {
		return err
	}
	return writeJSON(c.w, http.StatusOK, report)
}

// patientReader gives each read of a long stream its own deadline, in place of
// one over the whole request. So a drip can go on for ever; but only the
// operator can begin one, and it holds nothing that others wait for.
type patientReader struct {
	body io.Reader
	conn *http.ResponseController
}

func (p *patientReader) Read(b []byte) (int, error) {
	// Where the connection has no deadlines (in tests), there is none to move.
	_ = p.conn.SetReadDeadline(time.Now().Add(streamPause))
	_ = p.conn.SetWriteDeadline(time.Now().Add(streamPause + writeTimeout))
	n, err := p.body.Read(b)
	if err != nil && err != io.EOF {
		err = &store.Error{Code: store.CodeInvalid, Message: "the stream ended early; a part of it may be stored: send it again", Err: err}
	}
	return n, err
}
