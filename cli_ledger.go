package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"jpintel/billing/ledger"
	"jpintel/store"
)

type ledgerCmd struct {
	Show   ledgerShowCmd   `cmd:"" help:"Show entries with their lines, the newest first."`
	Verify ledgerVerifyCmd `cmd:"" help:"Hold the journal against itself, the operations and, with --upstream, the partner API. Exit status 1: something does not hold."`
	Export ledgerExportCmd `cmd:"" help:"Write the journal, the oldest entry first."`
}

func (a *app) withJournal(ctx context.Context, fn func(ledger.Journal) error) error {
	return a.withDB(ctx, func(db *store.DB) error { return fn(ledger.Journal{DB: db}) })
}

// ledgerFilter says which entries are meant.
type ledgerFilter struct {
	Customer string `help:"Of this customer only."`
	Payment  string `help:"About this payment only."`
	Account  string `help:"With a line on this account only, such as reversal:refund."`
}

type ledgerShowCmd struct {
	ledgerFilter
	pageFlags
}

// ledgerRow is a line of the table: an entry's first one says what the entry is.
type ledgerRow struct {
	entry ledger.Posted
	line  ledger.PostedLine
}

// Run shows entries.
func (c *ledgerShowCmd) Run(ctx context.Context, a *app) error {
	return a.withJournal(ctx, func(j ledger.Journal) error {
		page, err := j.Entries(ctx, ledger.EntriesRequest{PageRequest: c.request(), CustomerID: c.Customer, PaymentID: c.Payment, Account: c.Account})
		if err != nil {
			return err
		}
		if a.json {
			return printJSON(a.stdout, page)
		}
		rows := store.Page[ledgerRow]{NextCursor: page.NextCursor}
		for _, e := range page.Data {
			for _, l := range e.Lines {
				rows.Data = append(rows.Data, ledgerRow{e, l})
			}
		}
		return list(a, rows, "ENTRY\tOCCURRED\tKIND\tACCOUNT\tAMOUNT\tCURRENCY\tBALANCE AFTER\tPAYMENT\tOPERATION", func(r ledgerRow) []any {
			e := r.entry
			return []any{printable(e.EntryID), e.OccurredAt.Format(time.RFC3339), e.Kind, printable(r.line.Account), r.line.Amount, e.Currency, e.BalanceAfter, printable(fmt.Sprint(orDash(e.PaymentID))), orDash(e.OperationID)}
		})
	})
}

type ledgerVerifyCmd struct {
	Upstream bool `help:"Also ask the partner API what it has booked for each group."`
}

// Run verifies, beside a server that may be running.
func (c *ledgerVerifyCmd) Run(ctx context.Context, a *app) error {
	var upstream ledger.Upstream
	if c.Upstream {
		client, err := a.config.upstream()
		if err != nil {
			return err
		}
		if client == nil {
			return usageError{errors.New("--upstream: MODELGATE_BASE_URL and MODELGATE_API_KEY say where the partner API is, and are not set")}
		}
		upstream = client.GroupTotal
	}
	return a.withDB(ctx, func(db *store.DB) error {
		report, err := ledger.Verify(ctx, db.Reader(ctx), upstream)
		if err != nil {
			return err
		}
		if err := a.printReport(report, c.Upstream); err != nil {
			return err
		}
		if report.FaultCount > 0 {
			return errSilent
		}
		return nil
	})
}

func (a *app) printReport(r ledger.Report, upstream bool) error {
	if a.json {
		return printJSON(a.stdout, r)
	}
	table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ACCOUNT\tCURRENCY\tSUM")
	for _, account := range r.Accounts {
		fmt.Fprintf(table, "%s\t%s\t%s\n", printable(account.Account), printable(account.Currency), account.Sum)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, f := range r.Faults {
		fmt.Fprintln(a.stderr, faultLine(f))
	}
	if more := r.FaultCount - int64(len(r.Faults)); more > 0 {
		fmt.Fprintf(a.stderr, "and %d more\n", more)
	}
	for _, customer := range r.Unsettled {
		fmt.Fprintf(a.stderr, "unsettled: customer %s: the partner API has booked something else, while credit is being moved; ask again later\n", printable(customer))
	}
	fmt.Fprintf(a.stderr, "%d entries, %d lines, %d operations that moved credit: %d faults\n", r.Entries, r.Lines, r.Operations, r.FaultCount)
	if upstream {
		fmt.Fprintf(a.stderr, "%d groups have upstream what they have here\n", r.Groups)
	}
	return nil
}

// faultLine is a fault in one line.
func faultLine(f ledger.Fault) string {
	line := f.Code
	for _, about := range []struct{ name, id string }{{"entry", f.EntryID}, {"operation", f.OperationID}, {"customer", f.CustomerID}} {
		if about.id != "" {
			line += " " + about.name + " " + about.id
		}
	}
	return printable(line + ": " + f.Detail)
}

type ledgerExportCmd struct {
	ledgerFilter
	Format string `required:"" enum:"csv,json" help:"csv: a row for each line of an entry (RFC 4180); json: an entry on each line."`
}

// Run exports beside a server that may be running: what is posted meanwhile is
// not in it.
func (c *ledgerExportCmd) Run(ctx context.Context, a *app) error {
	return a.withJournal(ctx, func(j ledger.Journal) error {
		write := map[string]func(context.Context, io.Writer, ledger.Filter) error{"csv": j.WriteCSV, "json": j.WriteJSON}[c.Format]
		return write(ctx, a.stdout, ledger.Filter{CustomerID: c.Customer, PaymentID: c.Payment, Account: c.Account})
	})
}
