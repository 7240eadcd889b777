package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/time/rate"

	"jpintel/billing"
	"jpintel/billing/ledger"
	"jpintel/billing/metering"
	"jpintel/billing/modelgate"
	"jpintel/store"
	"jpintel/webhook"
	"jpintel/webhook/mail"
	"jpintel/webhook/programs"
)

const (
	// controlPoll is how often the server looks for what other processes have
	// changed in the file.
	controlPoll = 200 * time.Millisecond
	// drain is how long a stop waits for webhook requests in flight: longer
	// than any of them may take.
	drain = 12 * time.Second
	// gcPercent is how much the heap may grow between two collections: 400 took
	// 11 to 24 % less CPU than 100, for 11 MiB.
	gcPercent = 400
	// stopHTTP is how long a stop waits for API calls in progress.
	stopHTTP = 10 * time.Second
)

type serveCmd struct{}

// Run serves until the context ends.
//
//	HTTP ──▶ api ──▶ billing.Service ──▶ billing.Worker ── modelgate.Client ──▶ partner API
//	          │                 │ Outbox                └── billing.Sweeper ──▶ the same, and Stripe
//	          └────▶ webhook.Service, programs.Service ──▶ store.DB
//	                            │ Outbox                      ▲
//	                            ▼                             │
//	                     webhook.Worker ── Sender ──▶ customers' URLs
//	                            │ mails, in the file
//	                            ▼
//	                       mail.Sender ── SMTP ──▶ customers' mailboxes
//
// The order of a stop: no new API calls, then no new webhook requests and no
// new mails, then what is in flight, then the file.
func (serveCmd) Run(ctx context.Context, a *app) error {
	log, err := a.logger()
	if err != nil {
		return err
	}
	// SQLite's memory is not on Go's heap, which is so small that it would be
	// collected all the time: let it grow further. GOGC overrides.
	if a.getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	// What the standard library says on its own is a line of ours too.
	slog.SetLogLoggerLevel(slog.LevelDebug)
	slog.SetDefault(log)
	db, err := a.openServer(ctx, log)
	if err != nil {
		return err
	}
	err = a.serve(ctx, db, log)
	return errors.Join(err, db.Close())
}

func (a *app) serve(ctx context.Context, db *store.DB, log *slog.Logger) error {
	guard := a.config.guard()
	sender := webhook.NewSender(guard, a.config.Brand, version)
	sender.Kill = webhook.NewKillSwitch(a.config.KillSwitch)
	if a.config.Rollout == webhook.RolloutOff {
		sender.Kill.Shut()
	}
	defer sender.Close()
	send, err := a.config.sendMail()
	if err != nil {
		return err
	}
	upstream, err := a.config.upstream()
	if err != nil {
		return err
	}
	if err := a.setAttemptPrice(ctx, db); err != nil {
		return err
	}
	server := a.api(db, log, guard, sender, upstream, mail.NewSender(db, log, send, time.Duration(a.config.Tick)))
	listener, err := net.Listen("tcp", a.config.Addr)
	if err != nil {
		return fmt.Errorf("JPINTEL_ADDR: %w", err)
	}
	return server.run(ctx, listener)
}

// api wires everything up to the listener.
func (a *app) api(db *store.DB, log *slog.Logger, guard *webhook.Guard, sender *webhook.Sender, upstream *modelgate.Client, mails *mail.Sender) *api {
	outbox := webhook.NewOutbox()
	engine := a.operations(db, outbox, log, upstream)
	operations := billing.NewWorker(engine, billing.WorkerOptions{Workers: a.config.BillingWorkers, Tick: time.Duration(a.config.Tick), KillSwitch: a.config.BillingKillSwitch,
		Poll: time.Duration(a.config.UsagePoll), UsageSettle: time.Duration(a.config.UsageSettle), Sweeper: a.sweeper(engine)})
	engine.Rules.Wake = operations.Wake
	state := &programs.Service{DB: db, Outbox: outbox}
	service := a.webhooks(db, outbox, guard)
	service.Sender = sender
	worker := webhook.NewWorker(db, outbox, sender, log, webhook.WorkerOptions{
		Schedule: a.config.schedule(), Concurrency: a.config.Concurrency, EndpointConcurrency: a.config.EndpointConcurrency,
		Rate: a.config.Rate, Cap: service.Cap, DeadLetterLimit: a.config.DeadLetterLimit, BetaOnly: a.config.Rollout == webhook.RolloutBeta, Tick: time.Duration(a.config.Tick), Drain: drain,
		Retention: time.Duration(a.config.Retention), EventRetention: time.Duration(a.config.EventRetention),
		DisableAfter: time.Duration(a.config.DisableAfter.Duration), WarnAfter: time.Duration(a.config.WarnAfter.Duration),
		Notices: webhook.Notices{Brand: a.config.Brand, PublicURL: a.config.PublicURL, Wake: mails.Wake}, Steps: []func(context.Context) (bool, error){
			state.Step,
			func(ctx context.Context) (bool, error) { return store.ForgetKeys(ctx, db) },
			func(ctx context.Context) (bool, error) { return metering.Forget(ctx, db) },
		},
	})
	service.Changed = worker.Forget
	return &api{
		db: db, log: log, programs: state, worker: worker, mails: mails, tick: time.Duration(a.config.Tick),
		hasAdmin: a.config.AdminToken != "", admin: sha256.Sum256([]byte(a.config.AdminToken)),
		billing: engine.Rules, operations: operations, journal: ledger.Journal{DB: db},
		webhooks: service, fly: a.config.Fly != "", rollout: a.config.Rollout,
		calls: newLimiters(a.config.callRate(), max(a.config.APIRate, 1)), guesses: newLimiters(rate.Every(guessEvery), guessBurst),
	}
}

// webhooks is the service behind the customers' calls and the CLI.
func (a *app) webhooks(db *store.DB, outbox *webhook.Outbox, guard *webhook.Guard) *webhook.Service {
	return &webhook.Service{
		DB: db, Outbox: outbox, Guard: guard, Cap: webhook.NewDailyCap(db, a.config.DailyCap),
		Schedule: a.config.Schedule, EndpointConcurrency: a.config.EndpointConcurrency, DeadLetterLimit: a.config.DeadLetterLimit,
		Rate: a.config.Rate, Retention: a.config.Retention, EventRetention: a.config.EventRetention, RotationGrace: a.config.RotationGrace,
		WarnAfter: a.config.WarnAfter.Duration, DisableAfter: a.config.DisableAfter.Duration,
	}
}

// run serves until ctx ends, then stops in order.
func (a *api) run(ctx context.Context, listener net.Listener) error {
	schema, err := a.db.Migrations(ctx)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	control, err := store.ReadControl(a.db.Reader(ctx))
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	a.worker.SetKillSwitch(control.KillSwitch) // before its first request
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	worked := make(chan error, 1)
	go func() { worked <- a.worker.Run(working) }()
	mailed := make(chan struct{})
	go func() { defer close(mailed); a.mails.Run(working) }()
	defer func() { stopWorking(); <-mailed }()
	settled := make(chan error, 1)
	go func() { settled <- a.operations.Run(working) }()
	go a.watchControl(working, control.Version)

	server := &http.Server{
		Handler: a.handler(), ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	a.log.Info("listening", "addr", listener.Addr().String(), "version", version, "schema", len(schema), "boot_id", a.db.BootID, "db", a.db.Path(), "pid", os.Getpid(), "rollout", string(a.rollout))

	var failed error
	select {
	case <-ctx.Done():
		a.log.Info("stopping", "reason", fmt.Sprint(context.Cause(ctx)))
	case failed = <-served:
	case err := <-worked:
		return errors.Join(err, server.Close())
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopHTTP)
	defer cancel()
	if err := server.Shutdown(stopping); err != nil {
		a.log.Warn("http_cut_off", "error", err)
		_ = server.Close() // what is left of it
	}
	stopWorking()
	return errors.Join(failed, <-worked, <-settled)
}

// watchControl heeds what another process has changed in the file.
func (a *api) watchControl(ctx context.Context, seen int64) {
	tick := time.NewTicker(controlPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		control, err := store.ReadControl(a.db.Reader(ctx))
		switch {
		case err != nil && ctx.Err() == nil:
			a.log.Error("control_not_read", "error", err)
		case err == nil && control.Version != seen:
			seen = control.Version
			a.worker.SetKillSwitch(control.KillSwitch)
			a.worker.Reload()
			a.operations.Wake()
		}
	}
}

// openServer opens the file as its only server.
func (a *app) openServer(ctx context.Context, log *slog.Logger) (*store.DB, error) {
	keys, warning, err := a.config.keyring()
	if err != nil {
		return nil, err
	}
	if warning != "" {
		log.Warn("keys_beside_database", "detail", warning)
	}
	db, err := store.Open(ctx, a.config.DB, store.Options{Server: true, Keys: keys, Location: a.config.Timezone.Location, Logger: log})
	if errors.Is(err, store.ErrLocked) {
		return nil, fmt.Errorf("%w; only one server may own the file (on Fly.io: fly scale count 1)", err)
	}
	return db, err
}

// logger writes to standard output: lines of JSON, or text on a terminal.
func (a *app) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.config.LogLevel)); err != nil {
		return nil, fmt.Errorf("JPINTEL_LOG_LEVEL: %w", err) // unreachable: the configuration was validated
	}
	options := &slog.HandlerOptions{Level: level}
	if a.config.LogFormat == "text" || a.config.LogFormat == "" && isTerminal(a.stdout) {
		return slog.New(slog.NewTextHandler(a.stdout, options)), nil
	}
	return slog.New(slog.NewJSONHandler(a.stdout, options)), nil
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
