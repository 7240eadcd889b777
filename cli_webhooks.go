package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"jpintel/store"
	"jpintel/webhook"
	"jpintel/webhook/programs"
)

type programsCmd struct {
	Import programsImportCmd `cmd:"" help:"Import programs: NDJSON, or the Jグランツ API's list or detail JSON."`
}

type programsImportCmd struct {
	Files []string `arg:"" name:"file" help:"The files, in order; - is standard input."`
}

// Run imports files in order and prints one report over all of them. What is
// counted is on disk. A rejected record is named; the rest goes in, and the
// status is 1.
func (c *programsImportCmd) Run(ctx context.Context, a *app) error {
	return a.withDB(ctx, func(db *store.DB) error {
		service := &programs.Service{DB: db, Outbox: webhook.NewOutbox()}
		total := programs.Report{Errors: []programs.ImportError{}}
		var failed error
		for _, name := range c.Files {
			if err := a.importFile(ctx, service, name, &total); err != nil {
				failed = fmt.Errorf("%s: %w", name, err)
				break
			}
		}
		if err := errors.Join(failed, show(a, total)); err != nil {
			return err
		}
		if total.Rejected > 0 {
			return errSilent
		}
		return nil
	})
}

func (a *app) importFile(ctx context.Context, service *programs.Service, name string, total *programs.Report) error {
	in := a.stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	terminal := isTerminal(a.stderr)
	report, err := service.Import(ctx, in, programs.ImportOptions{Progress: func(r programs.Report) {
		if terminal {
			fmt.Fprintf(a.stderr, "\r%s: %d read, %d created, %d updated", name, r.Read, r.Created, r.Updated)
		}
	}})
	if terminal {
		fmt.Fprintln(a.stderr)
	} else {
		fmt.Fprintf(a.stderr, "%s: %d read, %d created, %d updated, %d unchanged, %d rejected\n", name, report.Read, report.Created, report.Updated, report.Unchanged, report.Rejected)
	}
	for _, e := range report.Errors {
		fmt.Fprintf(a.stderr, "%s: line %d: %s: %s\n", name, e.Line, printable(e.ID), printable(e.Error))
	}
	total.Add(report)
	return err
}

type eventsCmd struct {
	List    eventsListCmd    `cmd:"" help:"List events in commit order."`
	Show    eventsShowCmd    `cmd:"" help:"Show one event."`
	Publish eventsPublishCmd `cmd:"" help:"Publish an event of another system: one JSON object, as POST /v1/admin/events takes it."`
}

type eventsListCmd struct {
	Customer string `help:"Only those that this customer may see."`
	Types    string `help:"Only these types, comma."`
	After    string `name:"cursor" help:"next_cursor of the page before."`
	Limit    int    `default:"50" help:"How many, 1 to 100."`
}

// Run lists events as the feed shows them.
func (c *eventsListCmd) Run(ctx context.Context, a *app) error {
	return a.withWebhooks(ctx, func(s *webhook.Service) error {
		page, err := s.Events(ctx, webhook.EventsRequest{CustomerID: c.Customer, After: c.After, Types: c.Types, Limit: c.Limit})
		if err != nil {
			return err
		}
		if a.json {
			return printJSON(a.stdout, page)
		}
		fmt.Fprintf(a.stderr, "What comes after these: --cursor %s\n", page.NextCursor) // always set, so that a poller can go on
		return list(a, store.Page[webhook.Event]{Data: page.Data}, "EVENT\tTYPE\tCREATED\tCUSTOMER\tSUBJECT", func(e webhook.Event) []any {
			return []any{e.EventID, e.EventType, e.CreatedAt, orDash(e.CustomerID), e.Subject.ID}
		})
	})
}

type eventsShowCmd struct {
	ID string `arg:"" help:"The event's id."`
}

// Run shows one event.
func (c *eventsShowCmd) Run(ctx context.Context, a *app) error {
	return a.withWebhooks(ctx, func(s *webhook.Service) error {
		e, err := s.Event(ctx, webhook.EventRequest{EventID: c.ID})
		if err != nil {
			return err
		}
		return show(a, e)
	})
}

type eventsPublishCmd struct {
	File           string `arg:"" help:"The file; - is standard input."`
	IdempotencyKey string `help:"The same key again within 24 hours is the same event. Default: made from the file's content."`
}

// Run publishes an event. Running it again on the same file is harmless, since
// the key follows from the content; another event with the same content needs a
// key of its own.
func (c *eventsPublishCmd) Run(ctx context.Context, a *app) error {
	in := io.NopCloser(a.stdin)
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return err
		}
		in = file
	}
	defer in.Close()
	var r webhook.PublishRequest
	body, err := io.ReadAll(io.LimitReader(in, r.MaxBody()+1))
	if err != nil {
		return err
	}
	if int64(len(body)) > r.MaxBody() {
		return store.Errorf(store.CodeTooLarge, "%s has more than %d bytes", c.File, r.MaxBody())
	}
	if err := decodeRequest(body, &r); err != nil {
		return err
	}
	if r.IdempotencyKey = c.IdempotencyKey; r.IdempotencyKey == "" {
		r.IdempotencyKey = fmt.Sprintf("sha256-%x", sha256.Sum256(body))
	}
	return a.withWebhooks(ctx, func(s *webhook.Service) error {
		published, err := s.PublishEvent(ctx, r)
		if err != nil {
			return err
		}
		return show(a, published)
	})
}

type subscriptionCmd struct {
	List subscriptionsListCmd `cmd:"" help:"List subscriptions, newest first."`
	Show subscriptionsShowCmd `cmd:"" help:"Show one subscription."`

	Enable  subscriptionsEnableCmd  `cmd:"" help:"Let a disabled subscription go on, with what comes from now on."`
	Disable subscriptionsDisableCmd `cmd:"" help:"Pause a subscription; what is pending is given up."`
}

type subscriptionsListCmd struct {
	Customer string `help:"Only this customer's."`
	pageFlags
}

// Run lists subscriptions.
func (c *subscriptionsListCmd) Run(ctx context.Context, a *app) error {
	return a.withWebhooks(ctx, func(s *webhook.Service) error {
		page, err := s.Subscriptions(ctx, webhook.SubscriptionsRequest{CustomerID: c.Customer, PageRequest: c.request()})
		if err != nil {
			return err
		}
		return list(a, page, "SUBSCRIPTION\tSTATE\tREASON\tSTREAK\tFAILING SINCE\tLAST DELIVERY\tURL", func(s webhook.Subscription) []any {
			return []any{s.SubscriptionID, s.State, orDash(s.DisabledReason), s.FailuresStreak, when(s.FailingSince), when(s.LastDeliveryAt), s.URL}
		})
	})
}

type subscriptionsShowCmd struct {
	ID string `arg:"" help:"The subscription's id."`
}

// Run shows one subscription.
func (c *subscriptionsShowCmd) Run(ctx context.Context, a *app) error {
	return a.withWebhooks(ctx, func(s *webhook.Service) error {
		sub, err := s.Subscription(ctx, webhook.SubscriptionRequest{SubscriptionID: c.ID})
		if err != nil {
			return err
		}
		return show(a, sub)
	})
}

type (
	subscriptionsEnableCmd  subscriptionsShowCmd
	subscriptionsDisableCmd subscriptionsShowCmd
)

// Run lets a subscription go on.
func (c *subscriptionsEnableCmd) Run(ctx context.Context, a *app) error {
	return a.changeSubscription(ctx, c.ID, (*webhook.Service).Enable)
}

// Run pauses a subscription.
func (c *subscriptionsDisableCmd) Run(ctx context.Context, a *app) error {
	return a.changeSubscription(ctx, c.ID, (*webhook.Service).Disable)
}

func (a *app) changeSubscription(ctx context.Context, id string, change func(*webhook.Service, context.Context, webhook.SubscriptionRequest) (webhook.Subscription, error)) error {
	return a.withWebhooks(ctx, func(s *webhook.Service) error {
		sub, err := change(s, ctx, webhook.SubscriptionRequest{SubscriptionID: id})
		if err != nil {
			return err
		}
		return show(a, sub)
	})
}

type deliveriesCmd struct {
	List     deliveriesListCmd     `cmd:"" help:"List deliveries, newest first."`
	Show     deliveriesShowCmd     `cmd:"" help:"Show one delivery with its attempts."`
	Replay   deliveriesReplayCmd   `cmd:"" help:"Send a delivery again, or many of a subscription's."`
	Progress deliveriesProgressCmd `cmd:"" help:"Tell how far a replay of many is."`
}

type deliveriesListCmd struct {
	Subscription string         `help:"Only this subscription's."`
	Status       webhook.Status `help:"Only pending, success, failed or dead_letter ones."`
	EventType    webhook.Type   `help:"Only this event type's."`
	EventID      string         `help:"Only this event's."`
	Since        string         `help:"Only what was made from then on: a time like 2026-10-16T00:00:00+09:00."`
	Until        string         `help:"Only what was made before."`
	pageFlags
}

// Run lists deliveries.
func (c *deliveriesListCmd) Run(ctx context.Context, a *app) error {
	return a.withWebhooks(ctx, func(s *webhook.Service) error {
		page, err := s.Deliveries(ctx, webhook.DeliveriesRequest{SubscriptionID: c.Subscription, Status: c.Status,
			EventType: c.EventType, EventID: c.EventID, Since: c.Since, Until: c.Until, PageRequest: c.request()})
		if err != nil {
			return err
		}
		return list(a, page, "DELIVERY\tEVENT TYPE\tSTATUS\tATTEMPTS\tLAST\tERROR\tNEXT ATTEMPT", func(d webhook.Delivery) []any {
			return []any{d.DeliveryID, d.EventType, d.Status, d.AttemptCount, orDash(d.LastStatus), orDash(d.LastErrorCategory), when(d.NextAttemptAt)}
		})
	})
}

type deliveriesShowCmd struct {
	ID string `arg:"" help:"The delivery's id."`
}

// Run shows one delivery.
func (c *deliveriesShowCmd) Run(ctx context.Context, a *app) error {
	return a.withWebhooks(ctx, func(s *webhook.Service) error {
		d, err := s.Delivery(ctx, webhook.DeliveryRequest{DeliveryID: c.ID})
		if err != nil {
			return err
		}
		return show(a, d)
	})
}

type rolloutCmd struct {
	Status rolloutStatusCmd `cmd:"" help:"Tell whom webhooks are open to."`
}

type rolloutStatusCmd struct{}

// Run tells what the environment says, which holds for a server from its start
// on: what the running one has is in its /healthz.
func (rolloutStatusCmd) Run(a *app) error {
	fmt.Fprintln(a.stderr, map[webhook.Rollout]string{
		webhook.RolloutOff:  "Webhooks are open to nobody: every webhook call answers 503, and nothing is sent.",
		webhook.RolloutBeta: "Webhooks are open to paid customers with the beta flag (jpintel customers set-beta).",
		webhook.RolloutGA:   "Webhooks are open to every paid customer.",
	}[a.config.Rollout])
	fmt.Fprintln(a.stderr, "JPINTEL_WEBHOOK_ROLLOUT changes it at the next start of the server.")
	return show(a, map[string]webhook.Rollout{"rollout": a.config.Rollout})
}

type killSwitchCmd struct {
	Status killSwitchStatusCmd `cmd:"" help:"Tell whether it is on, and what turned it on."`
	On     killSwitchOnCmd     `cmd:"" help:"Stop every webhook request within a second; it stays on over a restart."`
	Off    killSwitchOffCmd    `cmd:"" help:"Let webhook requests go on."`
}

type (
	killSwitchStatusCmd struct{}
	killSwitchOnCmd     struct{}
	killSwitchOffCmd    struct{}
)

// Run tells the state.
func (killSwitchStatusCmd) Run(ctx context.Context, a *app) error {
	return a.withDB(ctx, func(db *store.DB) error { return a.showKillSwitch(ctx, db) })
}

// Run turns the switch on.
func (killSwitchOnCmd) Run(ctx context.Context, a *app) error { return a.setKillSwitch(ctx, true) }

// Run turns the switch off.
func (killSwitchOffCmd) Run(ctx context.Context, a *app) error { return a.setKillSwitch(ctx, false) }

func (a *app) setKillSwitch(ctx context.Context, on bool) error {
	return a.withDB(ctx, func(db *store.DB) error {
		if err := db.Write(ctx, func(tx *store.Tx) error { return store.SetKillSwitch(tx, on) }); err != nil {
			return err
		}
		return a.showKillSwitch(ctx, db)
	})
}

func (a *app) showKillSwitch(ctx context.Context, db *store.DB) error {
	control, err := store.ReadControl(db.Reader(ctx))
	if err != nil {
		return err
	}
	kill := webhook.NewKillSwitch(a.config.KillSwitch)
	kill.Set(control.KillSwitch)
	if a.config.KillSwitch {
		fmt.Fprintln(a.stderr, "JPINTEL_WEBHOOK_GLOBAL_KILL_SWITCH=1 is set: it wins until the next start without it.")
	}
	return show(a, kill.State())
}
