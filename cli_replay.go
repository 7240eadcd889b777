package main

import (
	"context"
	"errors"
	"fmt"

	"jpintel/webhook"
)

type deliveriesReplayCmd struct {
	ID           string         `arg:"" optional:"" help:"The one delivery's id; or use --subscription for many."`
	Subscription string         `help:"Replay many of this subscription's, in the background."`
	Since        string         `placeholder:"TIME" help:"With --subscription: those created at this time or later, like 2026-05-14T09:00:00+09:00."`
	Until        string         `placeholder:"TIME" help:"With --subscription: those created before this time; none: now."`
	Status       webhook.Status `help:"With --subscription: success, failed, dead_letter, or missed: what came while it was disabled."`
}

// Validate tells the two forms apart.
func (c *deliveriesReplayCmd) Validate() error {
	many := c.Since != "" || c.Until != "" || c.Status != ""
	switch {
	case (c.ID == "") == (c.Subscription == ""):
		return errors.New("want either a delivery's id, or --subscription with --since and --status")
	case c.ID != "" && many:
		return errors.New("--since, --until and --status go with --subscription")
	case c.Subscription != "" && (c.Since == "" || c.Status == ""):
		return errors.New("--subscription wants --since and --status")
	}
	return nil
}

// Run queues one delivery, or a job for many.
func (c *deliveriesReplayCmd) Run(ctx context.Context, a *app) error {
	return a.withWebhooks(ctx, func(s *webhook.Service) error {
		if c.ID != "" {
			d, err := s.Replay(ctx, webhook.DeliveryRequest{DeliveryID: c.ID})
			if err != nil {
				return err
			}
			fmt.Fprintln(a.stderr, "Queued: the server sends it within a second.")
			return show(a, d)
		}
		job, err := s.ReplayAll(ctx, webhook.ReplayAllRequest{SubscriptionID: c.Subscription, Since: c.Since, Until: c.Until, Status: c.Status})
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stderr, "The server goes on with it. How far it is: jpintel deliveries progress %s\n", job.JobID)
		return show(a, job)
	})
}

type deliveriesProgressCmd struct {
	ID string `arg:"" help:"The replay's id (rpl_…)."`
}

// Run shows how far a replay is.
func (c *deliveriesProgressCmd) Run(ctx context.Context, a *app) error {
	return a.withWebhooks(ctx, func(s *webhook.Service) error {
		job, err := s.ReplayProgress(ctx, webhook.ReplayJobRequest{JobID: c.ID})
		if err != nil {
			return err
		}
		return show(a, job)
	})
}
