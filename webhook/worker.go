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

	fanout   *fanout
	finisher *finisher
	queue    *queue // the dispatcher's alone

	mu     sync.Mutex
	news   news
	signal chan struct{}
	sent   chan *work // deliveries whose request is over; never full

	turn *turn
}

// news is what others have told the dispatcher since it last looked.
type news struct {
	works  []fresh        // new deliveries
	bytes  int            // of their bodies
	woken  map[int64]bool // subscriptions with deliveries that are due
	stale  []int64        // subscriptions that were changed
	reload bool
}

func (n *news) wake(sub int64) {
	if n.woken == nil {
		n.woken = map[int64]bool{}
	}
	n.woken[sub] = true
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
		queue:  newQueue(db, queueOptions{slots: opt.Concurrency, perLane: opt.EndpointConcurrency, rate: opt.Rate, cap: opt.Cap, betaOnly: opt.BetaOnly}),
		signal: make(chan struct{}, 1), sent: make(chan *work, ahead*opt.Concurrency), turn: &turn{},
	}
	replays.fanout, replays.wake = w.fanout, w.wake
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
	w.tell(func(n *news) { n.reload = true })
	w.outbox.Wake()
}

// Forget makes the worker read a subscription and what is due to it again, at
// once and before it sends anything more to it. Call it after the commit that
// has changed it.
func (w *Worker) Forget(subSeq int64) {
	w.tell(func(n *news) { n.stale = append(n.stale, subSeq) })
}

// SetKillSwitch turns the run-time kill switch on or off.
func (w *Worker) SetKillSwitch(on bool) {
	if !w.sender.Kill.Set(on) {
		return
	}
	state := w.sender.Kill.State()
	w.log.Warn("kill_switch", "on", state.On, "source", state.Source)
	w.notify()
}

// KillSwitch tells whether requests are stopped.
func (w *Worker) KillSwitch() KillSwitchState { return w.sender.Kill.State() }

func (w *Worker) tell(what func(*news)) {
	w.mu.Lock()
	what(&w.news)
	w.mu.Unlock()
	w.notify()
}

func (w *Worker) notify() {
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// Run works until ctx ends, then stops: nothing new is taken, what is in
// flight has Drain to finish, and what is cut off then is no attempt.
func (w *Worker) Run(ctx context.Context) error {
	found, err := w.queue.scan(ctx)
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
	workers.Go(func() { w.dispatch(ctx, sending) })
	finished := make(chan struct{})
	go func() { defer close(finished); w.finisher.run() }()
	workers.Wait()
	w.finisher.close()
	<-finished
	w.log.Info("worker_stopped")
	return nil
}

// follow fans out, within a transaction, what it publishes; what takes longer
// than one step is left to the publisher.
func (w *Worker) follow(tx *store.Tx) error {
	done, err := w.fanout.stepIn(tx)
	if err != nil {
		return err
	}
	tx.AfterCommit(func() {
		w.hand(done.works)
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
		w.failed(ctx, "fanout", err)
		w.hand(done.works)
		more = done.more && err == nil
		for _, step := range w.opt.Steps {
			stepMore, err := step(ctx)
			w.failed(ctx, "step", err)
			more = more || stepMore && err == nil
		}
	}
}

// failed logs what the next tick will try again.
func (w *Worker) failed(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		w.log.Error("worker_"+what+"_failed", "error", err)
	}
}

// hand gives new deliveries to the dispatcher: in memory as long as it keeps up,
// else it is told where to look for them.
func (w *Worker) hand(works []fresh) {
	if len(works) == 0 {
		return
	}
	w.tell(func(n *news) {
		for i := range works {
			if n.bytes < heldBytes {
				n.works = append(n.works, works[i])
				n.bytes += len(works[i].event.data)
				continue
			}
			n.wake(works[i].subSeq)
		}
	})
}

// wake tells the dispatcher that subscriptions have something due in the file.
func (w *Worker) wake(subs []int64) {
	w.tell(func(n *news) {
		for _, sub := range subs {
			n.wake(sub)
		}
	})
}

// dispatch gives due deliveries to senders, as many at a time as there are
// slots. It is the only goroutine that touches the queue.
func (w *Worker) dispatch(ctx, sending context.Context) {
	slots := w.opt.Concurrency
	give, stop := w.startSenders(sending, slots)
	defer stop()
	look := newPacer()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for w.mayGive(slots) && ctx.Err() == nil {
			item, err := w.queue.take(ctx, time.Now())
			if err != nil {
				w.failed(ctx, "claim", err)
				continue // that lane waits a second; the others do not
			}
			if item == nil {
				break
			}
			slots--
			give <- item // never waits: there are as many places as slots
		}
		w.setTimer(timer, slots)
		select {
		case <-ctx.Done():
			return
		case <-w.signal:
			w.receive(ctx)
		case item := <-w.sent:
			w.queue.sent(item)
			slots += 1 + w.sentAll()
		case back := <-w.finisher.committed:
			slots += w.sentAll() // a delivery was sent before it was committed
			for _, s := range back {
				w.queue.done(s)
			}
		case <-timer.C:
			w.receive(ctx) // lanes with news are not idle
			look.run(func() { _, err := w.queue.scan(ctx); w.failed(ctx, "scan", err) })
		}
	}
}

// startSenders starts as many senders as there are slots. They stay: a goroutine
// for each request would have to grow its stack each time.
func (w *Worker) startSenders(sending context.Context, slots int) (give chan<- *work, stop func()) {
	var senders sync.WaitGroup
	given := make(chan *work, slots)
	for range slots {
		senders.Go(func() {
			for item := range given {
				w.send(sending, item)
			}
		})
	}
	return given, func() { close(given); senders.Wait() }
}

// mayGive reports whether a request may begin.
func (w *Worker) mayGive(slots int) bool {
	return slots > 0 && !w.queue.full() && !w.sender.Kill.stopped()
}

// setTimer wakes the dispatcher at the next due time, and at each tick at the
// latest.
func (w *Worker) setTimer(timer *time.Timer, slots int) {
	wait := w.opt.Tick
	now := time.Now()
	if next := w.queue.due(now); next != noneDue {
		wait = min(wait, max(time.Duration(next-now.UnixMilli())*time.Millisecond, time.Millisecond))
	}
	if w.queue.ready() && w.mayGive(slots) {
		wait = 0 // it became due since the last look
	}
	timer.Reset(wait)
}

// receive takes what others have told.
func (w *Worker) receive(ctx context.Context) {
	w.mu.Lock()
	n := w.news
	w.news = news{}
	w.mu.Unlock()
	now := time.Now()
	for sub := range n.woken { // before the new ones: they are behind those in the file
		w.queue.wake(sub, now.UnixMilli())
	}
	for i := range n.works {
		w.queue.add(&n.works[i], now)
	}
	for _, sub := range n.stale {
		w.queue.forget(sub)
		w.queue.wake(sub, now.UnixMilli())
	}
	if n.reload {
		w.queue.forget()
		_, err := w.queue.scan(ctx)
		w.failed(ctx, "scan", err)
	}
}

// sentAll takes note of the requests that are over by now, and returns how many
// slots that frees.
func (w *Worker) sentAll() (slots int) {
	for {
		select {
		case item := <-w.sent:
			w.queue.sent(item)
			slots++
		default:
			return slots
		}
	}
}

// send makes one request and hands its result over. Nothing of the file is
// held meanwhile.
func (w *Worker) send(ctx context.Context, item *work) {
	var r Result
	if item.refused == "" && !item.capped {
		r = w.sender.Send(ctx, item.request())
	}
	w.sent <- item
	w.finisher.results <- finished{item, r}
}

// pacer spends at most a fiftieth of the time on something that may be slow.
type pacer struct {
	last time.Time
	took time.Duration
}

func newPacer() *pacer { return &pacer{last: time.Now()} }

func (p *pacer) run(fn func()) {
	now := time.Now()
	if now.Sub(p.last) < 50*p.took {
		return
	}
	fn()
	p.last, p.took = time.Now(), time.Since(now)
}

// errInterrupted marks, in the log, requests that the stop cut off.
var errInterrupted = errors.New("the service is stopping; the attempt does not count")
