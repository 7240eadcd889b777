package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"jpintel/store"
)

// WorkerOptions configures a Worker.
type WorkerOptions struct {
	Schedule            []time.Duration // after the first attempt
	Concurrency         int             // requests in flight, in all
	EndpointConcurrency int             // to one subscription
	Rate                int             // requests a second to one URL of a customer; 0: no limit
	Cap                 *DailyCap       // attempts of a customer and day; nil: no limit, and nothing is counted
	DeadLetterLimit     int             // of a subscription since it was enabled; 0: no limit
	BetaOnly            bool            // what customers without the beta flag would be sent waits
	Tick                time.Duration   // the fallback: look for work even if nobody woke us
	Drain               time.Duration   // how long a stop waits for what is in flight
	Retention           time.Duration   // of finished deliveries; 0: nothing is ever deleted
	EventRetention      time.Duration   // of events, no shorter
	DisableAfter        time.Duration   // of nothing but failures a subscription is disabled; 0: never
	WarnAfter           time.Duration   // of nothing but failures a subscription's owner is warned; 0: never
	Notices             Notices
	// Steps are other packages' background work, run when the outbox is woken
	// and at each tick, until they report no more.
	Steps []func(context.Context) (more bool, err error)
	// Random is in [0, 1), for jitter; default math/rand.
	Random func() float64
}

// Worker moves events out: it fans them out and sends what is due.
//
//	Publish ──▶ follow: fan-out's first step, in the publisher's transaction
//	                │ committed            │ what is left
//	                │                      ▼
//	                │    tick ──▶ publisher ── fan-out steps, other steps
//	                │ new deliveries       │
//	                ▼                      ▼
//	 due times ──▶ dispatcher ── take ──▶ sender × Concurrency
//	                         ▲                      │ Result
//	                         └────── committed ◀── finisher: many results, one transaction
//
// What is in flight is in memory only. A crash leaves it pending, the next
// start picks it up, and the receiver sees the same event id again.
type Worker struct {
	db     *store.DB
	outbox *Outbox
	sender *Sender
	log    *slog.Logger
	opt    WorkerOptions

	fanout     *fanout
	finisher   *finisher
	dispatcher *dispatcher
	crowded    time.Time // until when fan-out is the publisher's alone; the door's

	turn *turn
}

// turn remembers when the worker last went round, for readiness.
type turn struct {
	mu sync.Mutex
	at time.Time
}

func (t *turn) mark() {
	t.mu.Lock()
	t.at = time.Now()
	t.mu.Unlock()
}

// NewWorker returns a worker; Run starts it.
func NewWorker(db *store.DB, outbox *Outbox, sender *Sender, log *slog.Logger, opt WorkerOptions) *Worker {
	if opt.Random == nil {
		opt.Random = rand.Float64
	}
	expired := &retention{db: db, log: log, deliveries: opt.Retention, events: opt.EventRetention}
	replays := &replayer{db: db, cap: opt.Cap, attempts: len(opt.Schedule) + 1}
	opt.Steps = append([]func(context.Context) (bool, error){
		func(ctx context.Context) (bool, error) { return sweepStep(ctx, db) },
		expired.step, replays.step,
		(&warnings{db: db, log: log, notices: opt.Notices, after: opt.WarnAfter}).step,
	}, opt.Steps...)
	w := &Worker{
		db: db, outbox: outbox, sender: sender, log: log, opt: opt,
		fanout: newFanout(db), finisher: newFinisher(db, outbox, log, opt.Schedule, opt.Random, ahead*opt.Concurrency),
		turn: &turn{},
	}
	w.dispatcher = newDispatcher(sender, w.finisher, log, opt.Tick, newQueue(db, queueOptions{
		slots: opt.Concurrency, perLane: opt.EndpointConcurrency, rate: opt.Rate, cap: opt.Cap, betaOnly: opt.BetaOnly,
	}))
	replays.wake = w.dispatcher.wake
	w.finisher.cap, w.finisher.deadLimit = opt.Cap, opt.DeadLetterLimit
	w.finisher.failLimit, w.finisher.notices = opt.DisableAfter, opt.Notices
	outbox.fanOut = &store.Follower{Run: w.follow}
	return w
}

// LastTurn is when the worker last looked for work.
func (w *Worker) LastTurn() time.Time {
	w.turn.mu.Lock()
	defer w.turn.mu.Unlock()
	return w.turn.at
}

// Reload makes the worker read everything again: another process has changed
// the file.
func (w *Worker) Reload() {
	w.dispatcher.tell(func(n *news) { n.reload = true })
	w.outbox.Wake()
}

// Forget makes the worker read a subscription and what is due to it again, at
// once and before it sends anything more to it. Call it after the commit that
// has changed it.
func (w *Worker) Forget(subSeq int64) {
	w.dispatcher.tell(func(n *news) { n.stale = append(n.stale, subSeq) })
}

// SetKillSwitch turns the run-time kill switch on or off.
func (w *Worker) SetKillSwitch(on bool) {
	if !w.sender.Kill.Set(on) {
		return
	}
	state := w.sender.Kill.State()
	w.log.Warn("kill_switch", "on", state.On, "source", state.Source)
	w.dispatcher.notify()
}

// KillSwitch tells whether requests are stopped.
func (w *Worker) KillSwitch() KillSwitchState { return w.sender.Kill.State() }

// Run works until ctx ends, then stops: nothing new is taken, what is in
// flight has Drain to finish, and what is cut off then is no attempt.
func (w *Worker) Run(ctx context.Context) error {
	found, err := w.dispatcher.queue.scan(ctx)
	if ctx.Err() != nil {
		return nil // stopped before it had begun
	}
	if err != nil {
		return fmt.Errorf("looking for pending deliveries: %w", err)
	}
	state := w.KillSwitch()
	w.log.Info("worker_started", "subscriptions_with_pending", found, "concurrency", w.opt.Concurrency, "kill_switch", state.On, "kill_switch_source", state.Source)
	sending, cutOff := context.WithCancel(context.WithoutCancel(ctx))
	defer cutOff()
	context.AfterFunc(ctx, func() { time.AfterFunc(w.opt.Drain, cutOff) })

	var workers sync.WaitGroup
	workers.Go(func() { w.publish(ctx) })
	workers.Go(func() { w.dispatcher.run(ctx, sending) })
	finished := make(chan struct{})
	go func() { defer close(finished); w.finisher.run() }()
	workers.Wait()
	w.finisher.close()
	<-finished
	w.log.Info("worker_stopped")
	return nil
}

// crowdedPause is how long those who publish are spared fan-out steps after one
// that was not enough: a step may read hundreds of subscriptions.
const crowdedPause = time.Second

// follow fans out, within a transaction, what it publishes; what takes longer
// than one step is left to the publisher.
func (w *Worker) follow(tx *store.Tx, given []any) error {
	if tx.Now.Before(w.crowded) {
		tx.AfterCommit(w.outbox.Wake)
		return nil
	}
	events := make([]unpublished, len(given))
	for i := range given {
		events[i] = given[i].(unpublished)
	}
	done, err := w.fanout.stepIn(tx, events)
	if err != nil {
		return err
	}
	if done.more {
		w.crowded = tx.Now.Add(crowdedPause)
	}
	tx.AfterCommit(func() {
		w.dispatcher.hand(done.works)
		if done.more {
			w.outbox.Wake()
		}
	})
	return nil
}

// publish runs fan-out and the other background steps when woken.
func (w *Worker) publish(ctx context.Context) {
	tick := time.NewTicker(w.opt.Tick)
	defer tick.Stop()
	logFailure(ctx, w.log, "fanout", w.fanout.load(ctx))
	for {
		w.turn.mark()
		w.publishAll(ctx)
		select {
		case <-ctx.Done():
			return
		case <-w.outbox.Committed():
		case <-tick.C:
		}
	}
}

func (w *Worker) publishAll(ctx context.Context) {
	for more := true; more && ctx.Err() == nil; {
		done, err := w.fanout.step(ctx)
		logFailure(ctx, w.log, "fanout", err)
		w.dispatcher.hand(done.works)
		more = done.more && err == nil
		for _, step := range w.opt.Steps {
			stepMore, err := step(ctx)
			logFailure(ctx, w.log, "step", err)
			more = more || stepMore && err == nil
		}
	}
}

// logFailure logs what the next tick will try again.
func logFailure(ctx context.Context, log *slog.Logger, what string, err error) {
	if err != nil && ctx.Err() == nil {
		log.Error("worker_"+what+"_failed", "error", err)
	}
}

// errInterrupted marks, in the log, requests that the stop cut off.
var errInterrupted = errors.New("the service is stopping; the attempt does not count")
