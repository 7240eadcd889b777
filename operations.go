package main

import (
	"fmt"
	"log/slog"
	"time"

	"jpintel/billing"
	"jpintel/billing/modelgate"
	"jpintel/billing/stripe"
	"jpintel/store"
	"jpintel/webhook"
)

// upstream is the client of the partner API; nil where none is configured.
func (c *Config) upstream() (*modelgate.Client, error) {
	if c.ModelGateURL == "" {
		return nil, nil
	}
	client, err := modelgate.New(modelgate.Options{BaseURL: c.ModelGateURL, APIKey: string(c.ModelGateKey), Version: version, Timeout: time.Duration(c.ModelGateTimeout)})
	if err != nil {
		return nil, fmt.Errorf("MODELGATE_BASE_URL or MODELGATE_API_KEY: %w", err) // unreachable: the configuration was validated
	}
	return client, nil
}

// operations is what accepts intents and brings them forward.
func (a *app) operations(db *store.DB, outbox *webhook.Outbox, log *slog.Logger, upstream *modelgate.Client) *billing.Engine {
	return &billing.Engine{
		DB: db, Client: upstream, Log: log, Rules: &billing.Service{
			DB: db, Outbox: outbox, Models: a.config.ModelGateModels, AttemptPrice: a.config.AttemptPrice.Amount, Log: log,
			Stripe: billing.StripeOptions{Secrets: a.config.stripeSecrets(), Livemode: a.config.StripeLivemode},
		},
		RetryBase: time.Duration(a.config.BillingRetryBase), Settle: time.Duration(a.config.BillingSettle),
	}
}

// sweeper holds the outside world against the file. What is not configured is
// not asked.
func (a *app) sweeper(e *billing.Engine) *billing.Sweeper {
	s := &billing.Sweeper{DB: e.DB, Log: e.Log, Client: e.Client, Every: time.Duration(a.config.BillingSweepEvery)}
	if a.config.StripeKey == "" {
		return s
	}
	events, err := stripe.NewLister(stripe.ListerOptions{APIKey: string(a.config.StripeKey), BaseURL: a.config.StripeURL, Version: version})
	if err != nil {
		panic(err) // unreachable: the configuration was validated
	}
	s.Events, s.Known, s.Ingest = events, e.Rules.KnowsPayment, e.Rules.IngestPayment
	return s
}
