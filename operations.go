package main

import (
	"fmt"
	"log/slog"
	"time"

	"jpintel/billing"
	"jpintel/billing/modelgate"
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
