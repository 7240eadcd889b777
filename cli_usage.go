package main

import (
	"context"

	"jpintel/billing"
)

type usageCmd struct {
	Statement usageStatementCmd `cmd:"" help:"Print what a customer has used in a month, with its price."`
}

type usageStatementCmd struct {
	Customer string `required:"" help:"The customer's id."`
	Month    string `placeholder:"YYYY-MM" help:"The month, in JPINTEL_TIMEZONE. Default: this one."`
	CSV      bool   `name:"csv" help:"Print comma-separated values."`
}

// Run prints a statement, as GET /v1/admin/usage does.
func (c *usageStatementCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		s, err := e.Rules.Statement(ctx, billing.StatementRequest{CustomerID: c.Customer, Month: c.Month})
		if err != nil {
			return err
		}
		if c.CSV {
			return s.WriteCSV(a.stdout)
		}
		return show(a, s)
	})
}
