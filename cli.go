package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"jpintel/store"
	"jpintel/webhook"
)

const description = "Outbound webhooks and billing operations: one binary, one SQLite file. " +
	"The environment configures it (jpintel config). Data goes to standard output, words to standard error; " +
	"exit status 0: done, 1: failed, 2: wrong use."

// commands is the grammar: verbs follow nouns.
type commands struct {
	DB   string `name:"db" placeholder:"FILE" help:"The database file, in place of JPINTEL_DB."`
	JSON bool   `name:"json" help:"Print JSON, in shapes that stay."`

	Serve         serveCmd        `cmd:"" help:"Serve the API and send webhooks."`
	Demo          demoCmd         `cmd:"" help:"Show everything in one go, on a temporary file."`
	Listen        listenCmd       `cmd:"" help:"A local receiver that verifies signatures and prints what arrives."`
	DevUpstream   devUpstreamCmd  `cmd:"" name:"dev-upstream" help:"A stand-in for the upstream partner API, on the loopback, that breaks on demand."`
	Migrate       migrateCmd      `cmd:"" help:"The file's schema: bring it up to date, or show its status."`
	Config        configCmd       `cmd:"" help:"Print every environment variable with its value and meaning."`
	Customers     customersCmd    `cmd:"" help:"Customers: add, list, show, set-tier, set-limit, set-beta, opt-out."`
	Keys          keysCmd         `cmd:"" help:"API keys: create, list, revoke; secrets: rekey."`
	Programs      programsCmd     `cmd:"" help:"Programs: import."`
	Events        eventsCmd       `cmd:"" help:"Events: list, show, publish."`
	Subscriptions subscriptionCmd `cmd:"" help:"Subscriptions: list, show, enable, disable."`
	Deliveries    deliveriesCmd   `cmd:"" help:"Deliveries: list, show, replay, progress."`
	Ops           opsCmd          `cmd:"" help:"Customers and operations at the partner API: sign-up, limit, freeze, thaw, keys; list, show, retry, reconcile, resolve."`
	Ledger        ledgerCmd       `cmd:"" help:"The journal of money: show, verify, export."`
	Payments      paymentsCmd     `cmd:"" help:"What Stripe has told of payments: list, show, rerun."`
	Usage         usageCmd        `cmd:"" help:"What customers have used: statement."`
	Rollout       rolloutCmd      `cmd:"" help:"Whom webhooks are open to: status."`
	KillSwitch    killSwitchCmd   `cmd:"" help:"Stop every webhook request, or let them go on: status, on, off."`
	Version       versionCmd      `cmd:"" help:"Print the version."`
}

// app is what commands run in.
type app struct {
	config Config
	json   bool
	getenv func(string) string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// withDB opens the file beside a server that may be running.
func (a *app) withDB(ctx context.Context, fn func(*store.DB) error) error {
	keys, _, err := a.config.keyring()
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, a.config.DB, store.Options{Keys: keys, Location: a.config.Timezone.Location})
	if err != nil {
		return err
	}
	defer db.Close()
	return fn(db)
}

// withWebhooks is withDB for the commands that read what the API shows.
func (a *app) withWebhooks(ctx context.Context, fn func(*webhook.Service) error) error {
	return a.withDB(ctx, func(db *store.DB) error {
		return fn(a.webhooks(db, webhook.NewOutbox(), a.config.guard()))
	})
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// show prints one object.
func show(a *app, v any) error {
	if a.json {
		return printJSON(a.stdout, v)
	}
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// list prints a page: JSON as it is, or a table with a column per heading.
func list[T any](a *app, page store.Page[T], headings string, row func(T) []any) error {
	if a.json {
		return printJSON(a.stdout, page)
	}
	table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, headings)
	for _, v := range page.Data {
		for i, cell := range row(v) {
			if i > 0 {
				fmt.Fprint(table, "\t")
			}
			fmt.Fprint(table, cell)
		}
		fmt.Fprintln(table)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if page.NextCursor != nil {
		fmt.Fprintf(a.stderr, "There is more: --cursor %s\n", *page.NextCursor)
	}
	return nil
}

// when prints an optional time.
func when(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.RFC3339)
}

// orDash prints an optional value.
func orDash[T any](v *T) any {
	if v == nil {
		return "-"
	}
	return *v
}

// pageFlags ask for a page of a list.
type pageFlags struct {
	Limit  int    `default:"50" help:"How many, 1 to 100."`
	Cursor string `help:"next_cursor of the page before."`
}

func (f pageFlags) request() store.PageRequest {
	return store.PageRequest{Limit: f.Limit, Cursor: f.Cursor}
}

type versionCmd struct{}

// Run prints the version.
func (versionCmd) Run(a *app) error {
	if a.json {
		return printJSON(a.stdout, map[string]string{"version": version})
	}
	_, err := fmt.Fprintln(a.stdout, version)
	return err
}

type configCmd struct{}

// Run prints the configuration.
func (configCmd) Run(a *app) error { return a.config.print(a.stdout, a.json) }

type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" default:"1" help:"Bring the file's schema up to date and list what ran. The default."`
	Status migrateStatusCmd `cmd:"" help:"List what ran and what is pending, and change nothing."`
}

type (
	migrateUpCmd     struct{}
	migrateStatusCmd struct{}
)

// Run migrates, which opening does, and lists the schema's history.
func (migrateUpCmd) Run(ctx context.Context, a *app) error {
	return a.withDB(ctx, func(db *store.DB) error {
		applied, err := db.Migrations(ctx)
		if err != nil {
			return err
		}
		return a.listMigrations(applied)
	})
}

// Run needs no keys, and works beside a server that an older or a newer program
// has started.
func (migrateStatusCmd) Run(ctx context.Context, a *app) error {
	found, err := store.MigrationStatus(ctx, a.config.DB)
	if len(found) == 0 && err != nil {
		return err
	}
	return errors.Join(a.listMigrations(found), err)
}

func (a *app) listMigrations(found []store.Applied) error {
	type row struct {
		Version   int        `json:"version"`
		Name      string     `json:"name"`
		SHA256    string     `json:"sha256"`
		AppliedAt *time.Time `json:"applied_at"` // null: it is pending
	}
	page := store.Page[row]{Data: []row{}}
	for _, m := range found {
		r := row{m.Version, m.Name, m.Hash, nil}
		if !m.At.IsZero() {
			r.AppliedAt = &m.At
		}
		page.Data = append(page.Data, r)
	}
	return list(a, page, "VERSION\tNAME\tAPPLIED", func(r row) []any {
		if r.AppliedAt == nil {
			return []any{r.Version, r.Name, "pending"}
		}
		return []any{r.Version, r.Name, when(r.AppliedAt)}
	})
}
