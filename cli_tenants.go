package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"jpintel/billing"
	"jpintel/store"
	"jpintel/webhook"
)

type customersCmd struct {
	Add      customersAddCmd      `cmd:"" help:"Add a customer. The same id with the same values again is fine."`
	List     customersListCmd     `cmd:"" help:"List customers."`
	Show     customersShowCmd     `cmd:"" help:"Show one customer."`
	SetTier  customersSetTierCmd  `cmd:"" help:"Move a customer to the free or the paid tier."`
	SetLimit customersSetLimitCmd `cmd:"" help:"Change how many API calls a customer may make a day."`
	SetBeta  customersSetBetaCmd  `cmd:"" help:"Let a customer take part in the beta, or no more."`
	OptOut   customersOptOutCmd   `cmd:"" help:"Stop all webhooks of a customer, or end that."`
}

type customersAddCmd struct {
	ID         string     `required:"" help:"The customer's id: 1 to 64 letters, digits or _ . : @ + -"`
	Tier       store.Tier `default:"free" enum:"free,paid" help:"free or paid."`
	Email      string     `help:"The owner's contact for notices."`
	DailyLimit int64      `help:"API calls a day; none: no limit."`
	Beta       bool       `help:"Takes part in the beta."`
}

// Run adds a customer.
func (c *customersAddCmd) Run(ctx context.Context, a *app) error {
	return a.withDB(ctx, func(db *store.DB) error {
		var added store.Customer
		if err := db.Write(ctx, func(tx *store.Tx) (err error) {
			added, _, err = store.CreateCustomer(tx, store.Customer{CustomerID: c.ID, Tier: c.Tier, Email: c.Email, Beta: c.Beta, DailyLimit: c.DailyLimit})
			return err
		}); err != nil {
			return err
		}
		return show(a, added.In(db.Location))
	})
}

type customersListCmd struct {
	Limit int    `default:"50" help:"How many, 1 to 100."`
	After string `name:"cursor" help:"next_cursor of the page before."`
}

// Run lists customers in the order of their ids; the cursor is the last id.
func (c *customersListCmd) Run(ctx context.Context, a *app) error {
	if c.Limit < 1 || c.Limit > store.MaxLimit {
		return store.Errorf(store.CodeInvalid, "--limit: want 1 to %d", store.MaxLimit)
	}
	return a.withDB(ctx, func(db *store.DB) error {
		found, err := store.ListCustomers(ctx, db, c.After, c.Limit+1)
		if err != nil {
			return err
		}
		for i := range found {
			found[i] = found[i].In(db.Location)
		}
		page := store.Page[store.Customer]{Data: found}
		if len(found) > c.Limit {
			page = store.Page[store.Customer]{Data: found[:c.Limit], NextCursor: &found[c.Limit-1].CustomerID}
		}
		return list(a, page, "CUSTOMER\tTIER\tBETA\tEMAIL\tCREATED", func(c store.Customer) []any {
			return []any{c.CustomerID, c.Tier, c.Beta, c.Email, c.CreatedAt.Format("2006-01-02")}
		})
	})
}

type customersShowCmd struct {
	ID string `arg:"" help:"The customer's id."`
}

// Run shows one customer.
func (c *customersShowCmd) Run(ctx context.Context, a *app) error {
	return a.withDB(ctx, func(db *store.DB) error {
		found, err := store.GetCustomer(db.Reader(ctx), c.ID)
		if err != nil {
			return err
		}
		return show(a, found.In(db.Location))
	})
}

type customersSetTierCmd struct {
	ID   string     `arg:"" help:"The customer's id."`
	Tier store.Tier `arg:"" enum:"free,paid" help:"free or paid."`
}

// Run moves a customer between the tiers.
func (c *customersSetTierCmd) Run(ctx context.Context, a *app) error {
	return a.withDB(ctx, func(db *store.DB) error {
		var moved store.Customer
		if err := db.Write(ctx, func(tx *store.Tx) (err error) {
			if err := webhook.SetTier(tx, c.ID, c.Tier); err != nil {
				return err
			}
			moved, err = store.GetCustomer(tx, c.ID)
			return err
		}); err != nil {
			return err
		}
		return show(a, moved.In(db.Location))
	})
}

type customersSetBetaCmd struct {
	ID   string `arg:"" help:"The customer's id."`
	Beta string `arg:"" enum:"on,off" help:"on or off."`
}

// Run sets or takes the flag. A running server heeds it at once.
func (c *customersSetBetaCmd) Run(ctx context.Context, a *app) error {
	return a.withDB(ctx, func(db *store.DB) error {
		var changed store.Customer
		if err := db.Write(ctx, func(tx *store.Tx) (err error) {
			changed, err = store.SetBeta(tx, c.ID, c.Beta == "on")
			return err
		}); err != nil {
			return err
		}
		return show(a, changed.In(db.Location))
	})
}

type customersSetLimitCmd struct {
	ID    string `arg:"" help:"The customer's id."`
	Limit string `arg:"" help:"API calls a day, or none."`
}

// Run changes a customer's daily limit.
func (c *customersSetLimitCmd) Run(ctx context.Context, a *app) error {
	var calls int64
	if c.Limit != "none" {
		var err error
		if calls, err = strconv.ParseInt(c.Limit, 10, 64); err != nil || calls < 1 {
			return usageError{errors.New("limit: want a positive number of calls a day, or none")}
		}
	}
	return a.withWebhooks(ctx, func(s *webhook.Service) error {
		changed, err := s.SetDailyLimit(ctx, webhook.LimitRequest{CustomerID: c.ID, DailyLimit: webhook.NewLimit(calls)})
		if err != nil {
			return err
		}
		return show(a, changed)
	})
}

type customersOptOutCmd struct {
	ID  string `arg:"" help:"The customer's id."`
	End bool   `help:"End the opt-out: what it had disabled goes on."`
}

// Run stops all webhooks of a customer, or ends that.
func (c *customersOptOutCmd) Run(ctx context.Context, a *app) error {
	return a.withWebhooks(ctx, func(s *webhook.Service) error {
		change := s.StopAll
		if c.End {
			change = s.EndOptOut
		}
		answer, err := change(ctx, webhook.OptOutRequest{CustomerID: c.ID})
		if err != nil {
			return err
		}
		return show(a, answer)
	})
}

type keysCmd struct {
	Create keysCreateCmd `cmd:"" help:"Make an API key for a customer. It is shown this once."`
	List   keysListCmd   `cmd:"" help:"List a customer's API keys."`
	Revoke keysRevokeCmd `cmd:"" help:"End an API key at once."`
	Rekey  keysRekeyCmd  `cmd:"" help:"Seal every secret again under the first key of JPINTEL_MASTER_KEY."`
}

type keysCreateCmd struct {
	Customer string `arg:"" help:"The customer's id."`
}

// Run makes a key.
func (c *keysCreateCmd) Run(ctx context.Context, a *app) error {
	return a.withDB(ctx, func(db *store.DB) error {
		key, err := createKey(ctx, db, c.Customer)
		if err != nil {
			return err
		}
		fmt.Fprintln(a.stderr, "Keep the key now: it is not shown again.")
		return show(a, key)
	})
}

type keysListCmd struct {
	Customer string `arg:"" help:"The customer's id."`
}

// Run lists a customer's keys.
func (c *keysListCmd) Run(ctx context.Context, a *app) error {
	return a.withDB(ctx, func(db *store.DB) error {
		found, err := store.ListAPIKeys(db.Reader(ctx), c.Customer)
		if err != nil {
			return err
		}
		return list(a, store.Page[store.APIKey]{Data: found}, "KEY\tCREATED\tLAST USED\tREVOKED", func(k store.APIKey) []any {
			return []any{k.KeyID, when(&k.CreatedAt), when(k.LastUsedAt), when(k.RevokedAt)}
		})
	})
}

type keysRevokeCmd struct {
	KeyID string `arg:"" help:"The key's id (apk_…), not the key."`
}

// Run ends a key.
func (c *keysRevokeCmd) Run(ctx context.Context, a *app) error {
	return a.withDB(ctx, func(db *store.DB) error {
		if err := db.Write(ctx, func(tx *store.Tx) error { return store.RevokeAPIKey(tx, c.KeyID) }); err != nil {
			return err
		}
		return show(a, map[string]any{"key_id": c.KeyID, "revoked": true})
	})
}

type keysRekeyCmd struct{}

// Run seals everything again. The server must have both keys while it runs;
// afterwards the old one can go.
func (keysRekeyCmd) Run(ctx context.Context, a *app) error {
	return a.withDB(ctx, func(db *store.DB) error {
		secrets, err := webhook.Rekey(ctx, db)
		if err != nil {
			return err
		}
		answers, err := store.RekeyAnswers(ctx, db)
		if err != nil {
			return err
		}
		keys, err := billing.Rekey(ctx, db)
		if err != nil {
			return err
		}
		if err := db.Write(ctx, store.RekeyCheck); err != nil {
			return err
		}
		return show(a, map[string]int{"resealed": secrets + answers + keys})
	})
}
