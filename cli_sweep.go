package main

import (
	"context"
	"fmt"
	"log/slog"

	"jpintel/billing"
	"jpintel/store"
)

type opsSweepCmd struct {
	Names  []billing.SweepName `arg:"" optional:"" help:"audit, accounts or events; without any: those that have somebody to ask."`
	Status bool                `help:"Only show how the sweeps stand."`
}

// Run sweeps in this process, beside a server that may be running.
func (c *opsSweepCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		if !c.Status {
			s := a.sweeper(e)
			s.Log = slog.New(slog.NewTextHandler(a.stderr, nil)) // what is counted here is not counted again by the server
			if err := c.sweep(ctx, a, s); err != nil {
				return err
			}
		}
		page, err := e.Rules.Sweeps(ctx, billing.SweepsRequest{})
		if err != nil {
			return err
		}
		return list(a, page, "SWEEP\tDONE UNTIL\tLAST SUCCESS\tNEXT\tCHECKED\tFAILURES\tERROR", func(s billing.Sweep) []any {
			return []any{s.Name, when(s.DoneUntil), when(s.SucceededAt), when(s.NextAt), s.Checked, s.Failures, orDash(s.LastError)}
		})
	})
}

func (c *opsSweepCmd) sweep(ctx context.Context, a *app, s *billing.Sweeper) error {
	if a.config.BillingKillSwitch {
		return store.Errorf(store.CodeConflict, "JPINTEL_BILLING_KILL_SWITCH is on: nobody is asked anything")
	}
	names := c.Names
	if len(names) == 0 {
		names = s.Able()
	}
	if len(names) == 0 {
		return store.Errorf(store.CodeConflict, "there is nobody to ask: set MODELGATE_BASE_URL or JPINTEL_STRIPE_API_KEY")
	}
	for _, name := range names {
		if err := s.Sweep(ctx, name); err != nil {
			return fmt.Errorf("sweep %s: %w", name, err)
		}
	}
	return nil
}

type opsFindingsCmd struct {
	Kind     billing.FindingKind `help:"Of this kind only."`
	State    string              `help:"open, acknowledged, resolved or all." default:"open"`
	Customer string              `help:"Of this customer only."`
	pageFlags
}

// Run lists findings.
func (c *opsFindingsCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		page, err := e.Rules.Findings(ctx, billing.FindingsRequest{PageRequest: c.request(), Kind: c.Kind, State: c.State, CustomerID: c.Customer})
		if err != nil {
			return err
		}
		return list(a, page, "FINDING\tKIND\tCUSTOMER\tSTATE\tFIRST SEEN\tSUBJECT\tDETAIL", func(f billing.Finding) []any {
			return []any{f.FindingID, f.Kind, orDash(f.CustomerID), f.State, when(&f.FirstSeenAt), f.Subject, string(f.Detail)}
		})
	})
}

type opsAcknowledgeCmd struct {
	ID   string `arg:"" help:"The finding's id (fnd_…)."`
	Who  string `required:"" help:"Who knows of it."`
	Note string `required:"" help:"What it is."`
}

// Run takes a finding off the list of what is open.
func (c *opsAcknowledgeCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		f, err := e.Rules.Acknowledge(ctx, billing.AcknowledgeRequest{FindingID: c.ID, Who: c.Who, Note: c.Note})
		if err != nil {
			return err
		}
		return show(a, f)
	})
}
