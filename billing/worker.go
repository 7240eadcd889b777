package billing

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"sync"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/billing/money"
	"jpintel/store"
)

const (
	// defaultWorkers is how many operations are worked on at a time, each of
	// another customer.
	defaultWorkers = 4
	// probeEvery is how often it is tried whether what holds operations is over.
	probeEvery = time.Minute
	// shortestWait keeps a worker from spinning on a file that it cannot write.
	shortestWait = 10 * time.Millisecond
)

// Worker is the server's: it brings operations forward until it is stopped.
type Worker struct {
	engine  *Engine
	workers int
	tick    time.Duration
	off     bool
	sweeper *Sweeper // nil: none, or not now
	woken   chan struct{}
	told    chan struct{} // there may be a payment event to work on
	usage   *poller
	poll    time.Duration
}

// WorkerOptions says how a worker works.
type WorkerOptions struct {
	Workers int           // default 4
	Tick    time.Duration // how late work is found that nobody announced; default 1 s
	// KillSwitch keeps every request from the upstream. What is accepted is
	// recorded, and done when it is off again. Payment events are worked on all
	// the same: that sends nothing.
	KillSwitch bool
	// Poll is how often the upstream is asked what customers have used. 0: never.
	Poll time.Duration
	// UsageSettle is how long a day and its usage have to be over before they are
	// closed. Default DefaultUsageSettle.
	UsageSettle time.Duration
	Sweeper     *Sweeper // nil: no sweeps
}

// NewWorker returns a worker that drives the engine. With an engine without a
// client it sends nothing.
func NewWorker(engine *Engine, opt WorkerOptions) *Worker {
	w := &Worker{engine: engine, workers: opt.Workers, tick: opt.Tick, off: opt.KillSwitch || engine.Client == nil,
		poll: opt.Poll, usage: newPoller(engine, opt.UsageSettle)}
	if w.workers == 0 {
		w.workers = defaultWorkers
	}
	if w.tick == 0 {
		w.tick = time.Second
	}
	if !opt.KillSwitch {
		w.sweeper = opt.Sweeper
	}
	w.woken, w.told = make(chan struct{}, w.workers), make(chan struct{}, 1)
	return w
}

// Wake has a worker look for work. Call it after a commit.
func (w *Worker) Wake() {
	select {
	case w.woken <- struct{}{}:
	default: // all of them are about to look
	}
	select {
	case w.told <- struct{}{}:
	default:
	}
}

// Run works until ctx ends, and returns when nothing of it is in flight. What
// earlier boots of the server had claimed is free again.
func (w *Worker) Run(ctx context.Context) error {
	err := w.engine.DB.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		n, err := releaseLeases(tx, w.engine.DB.BootID)
		if n > 0 {
			w.engine.Log.Info("operations_recovered", "released", n)
		}
		return err
	})
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	all.Go(func() { w.payments(ctx) })
	if w.sweeper != nil {
		all.Go(func() { w.sweeper.Run(ctx, w.tick) })
	}
	if w.off {
		w.engine.Log.Warn("operations_wait", "upstream_configured", w.engine.Client != nil)
	} else {
		for i := range w.workers {
			all.Go(func() { w.loop(ctx, w.engine.DB.BootID+"/"+strconv.Itoa(i+1)) })
		}
		all.Go(func() { w.probe(ctx) })
		if w.poll > 0 {
			all.Go(func() { w.pollUsage(ctx) })
		}
	}
	all.Wait()
	return nil
}

// payments works on payment events, one after the other.
func (w *Worker) payments(ctx context.Context) {
	for ctx.Err() == nil {
		worked, err := w.engine.StepPayment(ctx)
		if worked && err == nil {
			continue
		}
		pause := w.wait(ctx, nextEvent)
		if err != nil && ctx.Err() == nil {
			w.engine.Log.Error("payment_step_failed", "error", err)
			pause = w.tick // the file is in trouble, whatever is due
		}
		select {
		case <-ctx.Done():
		case <-w.told:
		case <-time.After(pause):
		}
	}
}

// loop is one worker.
func (w *Worker) loop(ctx context.Context, owner string) {
	for ctx.Err() == nil {
		worked, err := w.engine.Step(ctx, owner)
		if err != nil && ctx.Err() == nil {
			w.engine.Log.Error("operation_step_failed", "error", err)
		}
		if worked && err == nil {
			w.Wake() // there may be more, for others too
			continue
		}
		select {
		case <-ctx.Done():
		case <-w.woken:
		case <-time.After(w.wait(ctx, nextDue)):
		}
	}
}

// wait is how long there is nothing to do, as far as is known: until what is next.
func (w *Worker) wait(ctx context.Context, what func(context.Context, *store.DB) (time.Time, error)) time.Duration {
	next, err := what(ctx, w.engine.DB)
	if err != nil || next.IsZero() {
		return w.tick
	}
	return min(max(time.Until(next), shortestWait), w.tick)
}

// probe tries once a minute whether what holds operations is over.
func (w *Worker) probe(ctx context.Context) {
	regularly(ctx, probeEvery, func() {
		if err := w.engine.Probe(ctx); err != nil && ctx.Err() == nil {
			w.engine.Log.Error("operation_probe_failed", "error", err)
		}
	})
}

// regularly does something again and again until ctx ends, first when one interval
// is over.
func regularly(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// pollUsage asks, again and again, what customers have used.
func (w *Worker) pollUsage(ctx context.Context) {
	regularly(ctx, w.poll, func() {
		for more := true; more && ctx.Err() == nil; {
			var err error
			if more, err = w.usage.turn(ctx); err != nil && ctx.Err() == nil {
				w.engine.Log.Error("usage_turn_failed", "error", err)
				break
			}
		}
	})
}

// Probe asks the upstream for the partner's wallet, if anything is held, and
// frees what the answer says is not in the way any more.
func (e *Engine) Probe(ctx context.Context) error {
	var held int
	if err := e.DB.Reader(ctx).QueryRow(`SELECT COUNT(*) FROM partner_operations WHERE hold_reason IS NOT NULL`).Scan(&held); err != nil || held == 0 {
		return err
	}
	found, err := e.Client.Wallet(ctx)
	if ctx.Err() != nil { // this program is stopping: that nothing came is no evidence
		return nil
	}
	look := seen("balance", found, err, func(b modelgate.Balance) string { return b.Balance.Text(b.Currency) + " " + string(b.Currency) })
	if look.verdict != "" {
		e.Log.Warn("operations_held", "held", held, "probe", look.code)
		look.verdict = verdictNone // of an operation, this is no failed look
	}
	return e.write(ctx, func(tx *store.Tx) error {
		if len(found.Items) == 0 {
			return walletUnknown(tx, look)
		}
		return free(tx, found.Items[0], look)
	})
}

// walletUnknown keeps that the wallet could not be read, for what waits for it.
func walletUnknown(tx *store.Tx, look finding) error {
	look.verdict = verdictNone
	waiting, err := waitingOperations(tx)
	for _, o := range waiting {
		if err := look.writeNew(tx, o.id); err != nil {
			return err
		}
	}
	return err
}

// free ends the holds that an accepted key and a wallet of this size end.
func free(tx *store.Tx, wallet modelgate.Balance, look finding) error {
	_, err := tx.Exec(`
		UPDATE partner_operations SET hold_reason = NULL, next_attempt_at_ms = $1, updated_at_ms = $1 WHERE hold_reason IN ('`+holdAuth+`', '`+holdRedirect+`')`, tx.NowMS())
	if err != nil {
		return fmt.Errorf("ending a hold: %w", err)
	}
	waiting, err := waitingOperations(tx)
	if err != nil {
		return err
	}
	for _, o := range waiting {
		look.verdict = o.judge(wallet)
		if err := look.writeNew(tx, o.id); err != nil {
			return err
		}
		if look.verdict != verdictFunded {
			continue
		}
		if _, err := tx.Exec(`UPDATE partner_operations SET hold_reason = NULL, next_attempt_at_ms = $1, updated_at_ms = $1 WHERE operation_id = $2`, tx.NowMS(), o.id); err != nil {
			return fmt.Errorf("ending a hold: %w", err)
		}
	}
	return nil
}

// waitingForMoney is an operation that the wallet was too small for.
type waitingForMoney struct{ id, amount, currency string }

// waitingOperations reads what the wallet was too small for, the oldest first.
func waitingOperations(q store.Querier) ([]waitingForMoney, error) {
	rows, err := q.Query(`SELECT operation_id, COALESCE(amount, '0'), COALESCE(currency, '') FROM partner_operations WHERE hold_reason = '` + holdWallet + `' ORDER BY operation_seq`)
	if err != nil {
		return nil, fmt.Errorf("reading what is held: %w", err)
	}
	all, err := store.Collect(rows, func(r *sql.Rows) (o waitingForMoney, err error) { return o, r.Scan(&o.id, &o.amount, &o.currency) })
	if err != nil {
		return nil, fmt.Errorf("reading what is held: %w", err)
	}
	return all, nil
}

// judge tells whether the wallet is large enough by now.
func (o waitingForMoney) judge(wallet modelgate.Balance) verdict {
	amount, err := money.ParseSigned(o.amount)
	if err != nil || o.currency != "" && o.currency != string(wallet.Currency) || amount.Cmp(wallet.Balance) > 0 {
		return verdictLow
	}
	return verdictFunded
}
