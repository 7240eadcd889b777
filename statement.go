package main

import (
	"bytes"
	"context"
	"net/http"

	"jpintel/billing"
	"jpintel/billing/metering"
	"jpintel/store"
)

// statementForm is how a statement is asked for.
type statementForm struct {
	Month  string `query:"month" json:"-"`  // YYYY-MM; default: this month
	Format string `query:"format" json:"-"` // json (the default) or csv
}

// ownStatement asks for the caller's own.
type ownStatement struct {
	CustomerID string `bind:"customer" json:"-"`
	statementForm
}

// anyStatement asks for that of any customer.
type anyStatement struct {
	CustomerID string `query:"customer" json:"-"`
	statementForm
}

// statement serves what a customer has used in a month, to the customer or to the
// operator.
func (a *api) statement(c *call, r ownStatement) error {
	return a.writeStatement(c, r.CustomerID, r.statementForm)
}

func (a *api) anyStatement(c *call, r anyStatement) error {
	if r.CustomerID == "" {
		return store.Errorf(store.CodeInvalid, "customer: required")
	}
	return a.writeStatement(c, r.CustomerID, r.statementForm)
}

func (a *api) writeStatement(c *call, customer string, form statementForm) error {
	if form.Format != "" && form.Format != "json" && form.Format != "csv" {
		return store.Errorf(store.CodeInvalid, "format: want json or csv")
	}
	s, err := a.billing.Statement(c.r.Context(), billing.StatementRequest{CustomerID: customer, Month: form.Month})
	if err != nil {
		return err
	}
	if form.Format != "csv" {
		return writeJSON(c.w, http.StatusOK, s)
	}
	return writeCSV(c.w, s)
}

// writeCSV writes a statement as a file to be saved. Its name is made of the
// month alone.
func writeCSV(w http.ResponseWriter, s metering.Statement) error {
	var b bytes.Buffer
	if err := s.WriteCSV(&b); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="usage-`+s.Month+`.csv"`)
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(b.Bytes()) // the client has gone: nobody is left to tell
	return nil
}

// setAttemptPrice has the configured price hold from today on.
func (a *app) setAttemptPrice(ctx context.Context, db *store.DB) error {
	return db.Write(ctx, func(tx *store.Tx) error { return metering.SetAttemptPrice(tx, a.config.AttemptPrice.Amount) })
}
