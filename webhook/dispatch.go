package webhook

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// dispatcher has due deliveries sent, as many at a time as there are slots.
//
// Each slot is a sender. One that has nothing to do is given something; when its
// request is over it takes the next delivery from the queue itself, so that a
// slot is empty only while nothing is due. What is in flight is in memory only.
type dispatcher struct {
	sender   *Sender
	finisher *finisher
	log      *slog.Logger
	tick     time.Duration

	turns sync.Mutex // guards queue and idle
	queue *queue
	idle  int // senders that have nothing to do

	telling sync.Mutex
	news    news
	signal  chan struct{}
}

// news is what others have told the dispatcher since it last looked.
type news struct {
	works  []work         // new deliveries
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

func (n *news) empty() bool {
	return len(n.works)+len(n.woken)+len(n.stale) == 0 && !n.reload
}

func newDispatcher(sender *Sender, finisher *finisher, log *slog.Logger, tick time.Duration, queue *queue) *dispatcher {
	return &dispatcher{sender: sender, finisher: finisher, log: log, tick: tick, queue: queue, idle: queue.opt.slots, signal: make(chan struct{}, 1)}
}

func (d *dispatcher) tell(what func(*news)) {
	d.telling.Lock()
	what(&d.news)
	d.telling.Unlock()
	d.notify()
}

func (d *dispatcher) notify() {
	select {
	case d.signal <- struct{}{}:
	default: // it is about to look anyway
	}
}

// hand gives new deliveries to the dispatcher: in memory as long as it keeps up,
// else it is told where to look for them.
func (d *dispatcher) hand(works []work) {
	if len(works) == 0 {
		return
	}
	d.tell(func(n *news) {
		for i := range works {
			if n.bytes >= heldBytes {
				n.wake(works[i].subSeq)
				continue
			}
			n.works = append(n.works, works[i])
			n.bytes += len(works[i].event.data)
		}
	})
}

// wake tells the dispatcher that subscriptions have something due in the file.
func (d *dispatcher) wake(subs []int64) {
	d.tell(func(n *news) {
		for _, sub := range subs {
			n.wake(sub)
		}
	})
}

// run works until ctx ends, and then until the senders have come to the end of
// their requests; sending ends those.
func (d *dispatcher) run(ctx, sending context.Context) {
	give, stop := d.startSenders(ctx, sending)
	defer stop()
	look := newPacer()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(d.offer(ctx, give))
		select {
		case <-ctx.Done():
			return
		case <-d.signal:
		case back := <-d.finisher.committed:
			d.settle(back)
		case <-timer.C:
			look.run(func() { d.scan(ctx) })
		}
	}
}

// startSenders starts the senders. They stay: a goroutine for each request would
// have to grow its stack each time.
func (d *dispatcher) startSenders(ctx, sending context.Context) (give chan<- *work, stop func()) {
	var senders sync.WaitGroup
	given := make(chan *work, d.idle)
	for range d.idle {
		senders.Go(func() {
			for item := range given {
				for item != nil {
					item = d.next(ctx, item, d.send(sending, item))
				}
			}
		})
	}
	return given, func() { close(given); senders.Wait() }
}

// offer gives idle senders what is due, and returns for how long there is
// nothing more to do: until the next due time, and for a tick at the most.
func (d *dispatcher) offer(ctx context.Context, give chan<- *work) time.Duration {
	d.turns.Lock()
	defer d.turns.Unlock()
	d.receive(ctx)
	for d.idle > 0 {
		item := d.take(ctx)
		if item == nil {
			break
		}
		d.idle--
		give <- item // never waits: there are as many places as senders
	}
	now := time.Now()
	next := d.queue.due(now)
	switch {
	case d.queue.ready() && d.idle > 0 && d.mayGive(ctx):
		return 0 // it became due since the last look
	case next != noneDue:
		return min(d.tick, max(time.Duration(next-now.UnixMilli())*time.Millisecond, time.Millisecond))
	}
	return d.tick
}

// send makes one request. Nothing of the file, nor of the queue, is held
// meanwhile.
func (d *dispatcher) send(ctx context.Context, item *work) Result {
	if item.refused != "" || item.capped {
		return Result{}
	}
	return d.sender.Send(ctx, item.request())
}

// next hands a result over and takes another delivery for the same sender, or
// nil where there is none.
func (d *dispatcher) next(ctx context.Context, item *work, r Result) *work {
	d.turns.Lock()
	defer d.turns.Unlock()
	d.queue.sent(item) // before it can be committed
	d.finisher.results <- finished{item, r}
	d.receive(ctx) // a subscription that was changed since is read again first
	next := d.take(ctx)
	if next == nil {
		d.idle++
		d.notify() // it may have become due later than the dispatcher knows
	}
	return next
}

// take takes a delivery that may be sent now, or nil. Where one cannot be read,
// that lane waits a second, and the others do not.
func (d *dispatcher) take(ctx context.Context) *work {
	for d.mayGive(ctx) {
		item, err := d.queue.take(ctx, time.Now())
		if err == nil {
			return item
		}
		logFailure(ctx, d.log, "claim", err)
	}
	return nil
}

// mayGive reports whether a request may begin.
func (d *dispatcher) mayGive(ctx context.Context) bool {
	return ctx.Err() == nil && !d.queue.full() && !d.sender.Kill.stopped()
}

// settle takes back what is committed.
func (d *dispatcher) settle(back []settled) {
	d.turns.Lock()
	defer d.turns.Unlock()
	for _, s := range back {
		d.queue.done(s)
	}
}

// receive takes what others have told.
func (d *dispatcher) receive(ctx context.Context) {
	d.telling.Lock()
	n := d.news
	d.news = news{}
	d.telling.Unlock()
	if n.empty() {
		return
	}
	now := time.Now()
	for sub := range n.woken { // before the new ones: they are behind those in the file
		d.queue.wake(sub, now.UnixMilli())
	}
	for i := range n.works {
		d.queue.add(&n.works[i], now)
	}
	for _, sub := range n.stale {
		d.queue.forget(sub)
		d.queue.wake(sub, now.UnixMilli())
	}
	if n.reload {
		d.queue.forget()
		_, err := d.queue.scan(ctx)
		logFailure(ctx, d.log, "scan", err)
	}
}

// scan looks for what nobody has told of.
func (d *dispatcher) scan(ctx context.Context) {
	d.turns.Lock()
	defer d.turns.Unlock()
	d.receive(ctx) // lanes with news are not idle
	_, err := d.queue.scan(ctx)
	logFailure(ctx, d.log, "scan", err)
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
