package main

import (
	"context"
	"fmt"
	"log/slog"

	"jpintel/billing"
	"jpintel/store"
	"jpintel/webhook"
)

type opsCmd struct {
	List      opsListCmd      `cmd:"" help:"List operations, the newest first."`
	Show      opsShowCmd      `cmd:"" help:"Show an operation with its attempts, evidence and notes."`
	Retry     opsRetryCmd     `cmd:"" help:"Have an operation go on now: the same request under the same key."`
	Reconcile opsReconcileCmd `cmd:"" help:"Ask the partner API now what has become of an operation."`
	Resolve   opsResolveCmd   `cmd:"" help:"Decide about an operation that is in the queue."`
	Restored  opsRestoredCmd  `cmd:"" help:"Say that this file was restored from a backup: what was accepted until now is looked up before it is sent."`

	Sweep       opsSweepCmd       `cmd:"" help:"Hold the partner API and Stripe against the file now, or show when that was last done."`
	Findings    opsFindingsCmd    `cmd:"" help:"List where the outside world and the file disagree, the newest first."`
	Acknowledge opsAcknowledgeCmd `cmd:"" help:"Take a finding off the list of what is open."`

	SignUp   opsSignUpCmd   `cmd:"" help:"Make a group, a model key and a spend limit for a customer, and the customer where there is none."`
	Customer opsCustomerCmd `cmd:"" help:"Show a customer with its group, model keys and spend limit."`
	Limit    opsLimitCmd    `cmd:"" help:"Change a customer's spend limit."`
	Freeze   opsFreezeCmd   `cmd:"" help:"Stop a customer's spending: its model keys stop working."`
	Thaw     opsThawCmd     `cmd:"" help:"Let a customer's spending go on."`
	Delete   opsDeleteCmd   `cmd:"" name:"delete-group" help:"Delete a group that carries a customer's reference and is not the customer's."`
	Keys     opsKeysCmd     `cmd:"" help:"Model keys, the partner API's: list, create, rotate, revoke, reveal."`
}

// withOps is withDB for what concerns operations.
func (a *app) withOps(ctx context.Context, fn func(*billing.Engine) error) error {
	upstream, err := a.config.upstream()
	if err != nil {
		return err
	}
	return a.withDB(ctx, func(db *store.DB) error {
		return fn(a.operations(db, webhook.NewOutbox(), slog.New(slog.DiscardHandler), upstream))
	})
}

type opsListCmd struct {
	Customer string         `help:"Of this customer only."`
	Status   billing.Status `help:"In this state only; reconciliation_needed is the queue."`
	pageFlags
}

// Run lists operations.
func (c *opsListCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		page, err := e.Rules.Operations(ctx, billing.OperationsRequest{PageRequest: c.request(), CustomerID: c.Customer, Status: c.Status})
		if err != nil {
			return err
		}
		return list(a, page, "OPERATION\tCUSTOMER\tACTION\tSTATUS\tATTEMPTS\tTARGET\tERROR", func(o *billing.Operation) []any {
			return []any{o.OperationID, o.CustomerID, o.Action, o.Status, o.AttemptCount, orDash(o.TargetID), orDash(o.ErrorCode)}
		})
	})
}

type opsShowCmd struct {
	ID string `arg:"" help:"The operation's id (op_…)."`
}

// Run shows an operation.
func (c *opsShowCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		record, err := e.Rules.Record(ctx, billing.RecordRequest{OperationID: c.ID})
		if err != nil {
			return err
		}
		return show(a, record)
	})
}

// opsDecision is who decides, and why.
type opsDecision struct {
	ID   string `arg:"" help:"The operation's id (op_…)."`
	Who  string `required:"" help:"Who decides."`
	Note string `required:"" help:"Why."`
}

func (d opsDecision) decision() billing.Decision {
	return billing.Decision{OperationID: d.ID, Who: d.Who, Note: d.Note}
}

type opsRetryCmd struct{ opsDecision }

// Run has an operation go on; the server does it.
func (c *opsRetryCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		record, err := e.Rules.Retry(ctx, billing.RetryRequest(c.decision()))
		if err != nil {
			return err
		}
		return show(a, record)
	})
}

type opsReconcileCmd struct{ opsDecision }

// Run asks the partner API itself where it is configured, beside a server that
// may be running; else the server does.
func (c *opsReconcileCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		record, err := e.Rules.Reconcile(ctx, billing.ReconcileRequest(c.decision()))
		if err != nil {
			return err
		}
		if e.Client == nil || a.config.BillingKillSwitch {
			fmt.Fprintln(a.stderr, "The server asks: here no partner API is configured, or JPINTEL_BILLING_KILL_SWITCH is on.")
			return show(a, record)
		}
		if err := e.ReconcileNow(ctx, c.ID); err != nil {
			return err
		}
		if record, err = e.Rules.Record(ctx, billing.RecordRequest{OperationID: c.ID}); err != nil {
			return err
		}
		return show(a, record)
	})
}

type opsResolveCmd struct {
	opsDecision
	Outcome string `required:"" enum:"succeeded,failed,new_version,replace_key" help:"succeeded (with --target-id), failed, new_version, or replace_key."`
	Target  string `name:"target-id" help:"The upstream's id of what there is, with succeeded."`
}

// Run decides about an operation.
func (c *opsResolveCmd) Run(ctx context.Context, a *app) error {
	return a.withOps(ctx, func(e *billing.Engine) error {
		record, err := e.Rules.Resolve(ctx, billing.ResolveRequest{OperationID: c.ID, Who: c.Who, Note: c.Note, Outcome: c.Outcome, TargetID: c.Target})
		if err != nil {
			return err
		}
		return show(a, record)
	})
}

type opsRestoredCmd struct{}

// Run notes that the file was restored, for servers and commands alike.
func (opsRestoredCmd) Run(ctx context.Context, a *app) error {
	return a.withDB(ctx, func(db *store.DB) error { return db.Write(ctx, store.SetBillingRecovered) })
}
