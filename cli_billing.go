package main

import (
	"context"
	"fmt"

	"jpintel/billing"
	"jpintel/store"
)

// This file has what the operator wants of the partner API. Each command records
// an operation, as the HTTP call of the same name does; the server does it.

// opsKey names a change, so that the command can be given again.
type opsKey struct {
	Key string `required:"" placeholder:"KEY" help:"The Idempotency-Key: the same command with the same key is the same operation, for ever."`
}

// begin records an operation and prints what the HTTP call answers.
func (a *app) begin(ctx context.Context, fn func(*billing.Service) (billing.Accepted, error)) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		accepted, err := fn(e.Rules)
		if err != nil {
			return err
		}
		return show(a, accepted)
	})
}

type opsSignUpCmd struct {
	Customer string `arg:"" help:"The customer's id. It is added where there is none."`
	opsKey
	SpendLimit    string     `required:"" placeholder:"AMOUNT" help:"What the customer may spend a month, like 100.00."`
	Currency      string     `placeholder:"CODE" help:"The wallet's; none: USD."`
	SignupVersion int64      `default:"1" help:"Another one is another sign-up."`
	Tier          store.Tier `placeholder:"TIER" help:"free or paid; of a new customer free."`
	Email         string     `help:"The owner's contact for notices."`
	DailyLimit    int64      `help:"API calls a day; none: no limit."`
	Beta          bool       `help:"Takes part in the beta."`
}

// Run begins the provisioning of a customer.
func (c *opsSignUpCmd) Run(ctx context.Context, a *app) error {
	return a.begin(ctx, func(s *billing.Service) (billing.Accepted, error) {
		o, err := s.SignUp(ctx, billing.SignUp{
			Customer: store.Customer{CustomerID: c.Customer, Tier: c.Tier, Email: c.Email, Beta: c.Beta, DailyLimit: c.DailyLimit},
			Version:  c.SignupVersion, SpendLimit: c.SpendLimit, Currency: c.Currency, Key: c.Key,
		})
		if err != nil {
			return billing.Accepted{}, err
		}
		return s.Accepted(ctx, o)
	})
}

type opsCustomerCmd struct {
	Customer string `arg:"" help:"The customer's id."`
}

// Run shows a customer with its billing.
func (c *opsCustomerCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		found, err := e.Rules.Customer(ctx, billing.CustomerRequest{CustomerID: c.Customer})
		if err != nil {
			return err
		}
		return show(a, found)
	})
}

type opsLimitCmd struct {
	Customer   string `arg:"" help:"The customer's id."`
	SpendLimit string `arg:"" name:"amount" help:"What it may spend a month, like 250.00."`
	opsKey
	Currency   string `placeholder:"CODE" help:"None: the account's."`
	ApprovedBy string `required:"" placeholder:"WHO" help:"Who has approved it."`
}

// Run begins to change a limit.
func (c *opsLimitCmd) Run(ctx context.Context, a *app) error {
	return a.begin(ctx, func(s *billing.Service) (billing.Accepted, error) {
		return s.SetLimit(ctx, billing.LimitRequest{Key: c.Key, CustomerID: c.Customer, SpendLimit: c.SpendLimit, Currency: c.Currency, ApprovedBy: c.ApprovedBy})
	})
}

// opsSpend is about a customer's spending as a whole.
type opsSpend struct {
	Customer string `arg:"" help:"The customer's id."`
	opsKey
	Cause      string `required:"" placeholder:"REF" help:"Why, such as a dispute's id: one operation for each."`
	ApprovedBy string `placeholder:"WHO" help:"Who has approved it."`
}

func (c opsSpend) request() billing.SpendRequest {
	return billing.SpendRequest{Key: c.Key, CustomerID: c.Customer, CauseRef: c.Cause, ApprovedBy: c.ApprovedBy}
}

type opsFreezeCmd struct{ opsSpend }

// Run begins to freeze a customer's group.
func (c *opsFreezeCmd) Run(ctx context.Context, a *app) error {
	return a.begin(ctx, func(s *billing.Service) (billing.Accepted, error) { return s.Freeze(ctx, c.request()) })
}

type opsThawCmd struct{ opsSpend }

// Run begins to end that.
func (c *opsThawCmd) Run(ctx context.Context, a *app) error {
	return a.begin(ctx, func(s *billing.Service) (billing.Accepted, error) { return s.Thaw(ctx, c.request()) })
}

type opsDeleteCmd struct {
	Customer string `arg:"" help:"The customer's id."`
	Group    string `arg:"" help:"The group's id at the partner API."`
	opsKey
	ApprovedBy string `required:"" placeholder:"WHO" help:"Who has approved it."`
}

// Run begins to delete a duplicate group.
func (c *opsDeleteCmd) Run(ctx context.Context, a *app) error {
	return a.begin(ctx, func(s *billing.Service) (billing.Accepted, error) {
		return s.DeleteGroup(ctx, billing.DeleteGroupRequest{Key: c.Key, CustomerID: c.Customer, GroupID: c.Group, ApprovedBy: c.ApprovedBy})
	})
}

type opsKeysCmd struct {
	List   opsKeysListCmd   `cmd:"" help:"List a customer's model keys."`
	Create opsKeysCreateCmd `cmd:"" help:"Make a model key for a purpose that has none."`
	Rotate opsKeysRotateCmd `cmd:"" help:"Revoke the model key of a purpose, then make another."`
	Revoke opsKeysRevokeCmd `cmd:"" help:"Revoke the model key of a purpose."`
	Reveal opsKeysRevealCmd `cmd:"" help:"Print a model key's secret, this once."`
}

type opsKeysListCmd struct {
	Customer string `arg:"" help:"The customer's id."`
}

// Run lists model keys, the oldest first.
func (c *opsKeysListCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		found, err := e.Rules.Customer(ctx, billing.CustomerRequest{CustomerID: c.Customer})
		if err != nil {
			return err
		}
		return list(a, store.Page[billing.ModelKey]{Data: found.Keys}, "KEY\tPURPOSE\tSTATUS\tSECRET AVAILABLE", func(k billing.ModelKey) []any {
			return []any{k.KeyID, k.Purpose, k.Status, k.SecretAvailable}
		})
	})
}

// opsKeyChange is about the model key of a purpose.
type opsKeyChange struct {
	Customer string `arg:"" help:"The customer's id."`
	opsKey
	Purpose    string `placeholder:"PURPOSE" help:"What the key is for; none: default."`
	ApprovedBy string `placeholder:"WHO" help:"Who has approved it."`
}

func (c opsKeyChange) run(ctx context.Context, a *app, action string) error {
	return a.begin(ctx, func(s *billing.Service) (billing.Accepted, error) {
		return s.ChangeKey(ctx, billing.KeyRequest{Key: c.Key, CustomerID: c.Customer, Action: action, Purpose: c.Purpose, ApprovedBy: c.ApprovedBy})
	})
}

type opsKeysCreateCmd struct{ opsKeyChange }

// Run begins to make a key.
func (c *opsKeysCreateCmd) Run(ctx context.Context, a *app) error { return c.run(ctx, a, "create") }

type opsKeysRotateCmd struct{ opsKeyChange }

// Run begins to replace a key.
func (c *opsKeysRotateCmd) Run(ctx context.Context, a *app) error { return c.run(ctx, a, "rotate") }

type opsKeysRevokeCmd struct{ opsKeyChange }

// Run begins to revoke a key.
func (c *opsKeysRevokeCmd) Run(ctx context.Context, a *app) error { return c.run(ctx, a, "revoke") }

type opsKeysRevealCmd struct {
	ID  string `arg:"" help:"The model key's id."`
	Key string `required:"" placeholder:"KEY" help:"The Idempotency-Key: the same command with the same key prints the secret again, for a day."`
}

// Run prints a key's secret, and nowhere else but on standard output.
func (c *opsKeysRevealCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		revealed, err := e.Rules.Reveal(ctx, billing.RevealRequest{Key: c.Key, KeyID: c.ID})
		if err != nil {
			return err
		}
		fmt.Fprintln(a.stderr, "Keep the secret now: it is not kept here any longer.")
		return show(a, revealed)
	})
}
