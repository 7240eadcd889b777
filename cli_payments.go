package main

import (
	"context"
	"errors"
	"fmt"

	"jpintel/billing"
)

type paymentsCmd struct {
	List  paymentsListCmd  `cmd:"" help:"List payment events, the last received first."`
	Show  paymentsShowCmd  `cmd:"" help:"Show a payment event, and what has become of it."`
	Rerun paymentsRerunCmd `cmd:"" help:"Have payment events be worked on again: one, all that are held, or all that have failed."`
}

type paymentsListCmd struct {
	Status   billing.EventStatus `help:"In this state only: received, held, fulfilled, ignored or failed."`
	Customer string              `help:"Of this customer only."`
	Payment  string              `help:"Of this payment only."`
	pageFlags
}

// Run lists payment events.
func (c *paymentsListCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		page, err := e.Rules.PaymentEvents(ctx, billing.PaymentEventsRequest{PageRequest: c.request(), Status: c.Status, CustomerID: c.Customer, PaymentID: c.Payment})
		if err != nil {
			return err
		}
		return list(a, page, "EVENT\tTYPE\tSTATUS\tRECEIVED\tATTEMPTS\tCUSTOMER\tPAYMENT\tERROR", func(p *billing.PaymentEvent) []any {
			return []any{p.EventID, p.Type, p.Status, when(&p.ReceivedAt), p.AttemptCount, orDash(p.CustomerID), orDash(p.PaymentID), orDash(p.LastError)}
		})
	})
}

type paymentsShowCmd struct {
	ID string `arg:"" help:"Stripe's id of the event (evt_…)."`
}

// Run shows a payment event.
func (c *paymentsShowCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		event, err := e.Rules.PaymentEvent(ctx, billing.PaymentEventRequest{EventID: c.ID})
		if err != nil {
			return err
		}
		return show(a, event)
	})
}

type paymentsRerunCmd struct {
	ID     string `arg:"" optional:"" help:"Stripe's id of the event (evt_…)."`
	Held   bool   `xor:"which" help:"All that are held."`
	Failed bool   `xor:"which" help:"All that have failed."`
}

// Validate holds that exactly one thing is meant. Kong calls it.
func (c *paymentsRerunCmd) Validate() error {
	if (c.ID != "") == (c.Held || c.Failed) {
		return errors.New("want an event's id, --held or --failed")
	}
	return nil
}

// Run has payment events be worked on again; the server does it.
func (c *paymentsRerunCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		if c.ID != "" {
			event, err := e.Rules.RerunPaymentEvent(ctx, billing.PaymentEventRequest{EventID: c.ID})
			if err != nil {
				return err
			}
			return show(a, event)
		}
		status := billing.EventFailed
		if c.Held {
			status = billing.EventHeld
		}
		rerun, err := e.Rules.RerunPaymentEvents(ctx, billing.RerunPaymentEventsRequest{Status: status})
		if err != nil {
			return err
		}
		if a.json {
			return printJSON(a.stdout, rerun)
		}
		_, err = fmt.Fprintf(a.stdout, "%d events are worked on again.\n", rerun.Events)
		return err
	})
}
