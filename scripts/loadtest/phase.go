package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"jpintel/store"
)

const (
	phasePlain  = "plain"  // nothing in the file that is not needed
	phaseLoaded = "loaded" // with the history and beside the dead subscriptions
)

const (
	// warmUp is how many events go before those that are measured.
	warmUp = 200
	// stuck is how long nothing may arrive before a run is given up.
	stuck = time.Minute
)

// phase is what one phase came to.
type phase struct {
	name       string
	deliveries int
	took       time.Duration // from the first event (of a drain: arrival) to the last arrival
	publishing published     // nothing in a drain
	arrived    arrivals
	used       process // cpu and written are the phase's, rss and peak the process's
}

// phase fills the file, starts the service on it and measures.
func (b *bench) phase(name string) (phase, error) {
	if err := withFile(b.ctx, b.db(), func(f *file) error { return b.fill(f, name == phaseLoaded) }); err != nil {
		return phase{}, err
	}
	b.say("phase %s", name)
	p := phase{name: name, deliveries: b.events * b.fanout}
	measure := b.live
	if b.drain {
		measure = b.drained
	}
	err := measure(&p)
	return p, err
}

// fill writes what a phase needs in the file.
func (b *bench) fill(f *file, loaded bool) error {
	if loaded && b.history > 0 {
		b.say("writing %d finished deliveries", b.history)
		if err := f.history(b.ctx, b.history); err != nil {
			return err
		}
	}
	if loaded && b.dead > 0 {
		b.say("writing %d pending deliveries to each of %d dead subscriptions", b.pending, b.dead)
		to := func(int) (string, []int64) { return elsewhere, f.dead }
		if err := f.backlog(b.ctx, b.pending, b.dead, to); err != nil {
			return err
		}
		if b.sudden {
			if err := f.reachable(b.ctx); err != nil {
				return err
			}
		}
	}
	if !b.drain {
		return nil
	}
	b.say("writing %d pending deliveries", b.events*b.fanout)
	return f.backlog(b.ctx, b.events, b.fanout, func(i int) (string, []int64) {
		group := i % b.groups()
		return prefecture(group), f.ok[group*b.fanout:][:b.fanout]
	})
}

// live measures events from their client to their receivers. Where endpoints
// die at once, what comes first is what is to be measured: no warming up.
func (b *bench) live(p *phase) error {
	return b.serving(func(s *service, db *store.DB) error {
		if p.name != phaseLoaded || !b.sudden {
			if _, err := b.put(db, warmUp, 0); err != nil {
				return err
			}
		}
		before, err := readProcess(s.pid())
		if err != nil {
			return err
		}
		if p.publishing, err = b.put(db, b.events, b.rate); err != nil {
			return err
		}
		if err := b.finish(p, s, before); err != nil {
			return err
		}
		p.took = time.Unix(0, p.arrived.LastNS).Sub(p.publishing.began)
		return nil
	})
}

// drained measures a backlog from the service's start to its end. What the
// start itself costs is taken off: that of the start on the empty file.
func (b *bench) drained(p *phase) error {
	succeeded := 0
	if err := withFile(b.ctx, b.db(), func(f *file) (err error) { succeeded, err = b.begin(f.db); return err }); err != nil {
		return err
	}
	return b.serving(func(s *service, db *store.DB) error {
		if err := b.await(db, succeeded, p.deliveries); err != nil {
			return err
		}
		if err := b.finish(p, s, b.idle); err != nil {
			return err
		}
		p.took = time.Duration(p.arrived.LastNS - p.arrived.FirstNS)
		return nil
	})
}

// finish reads what the phase has used and what has arrived.
func (b *bench) finish(p *phase, s *service, before process) (err error) {
	if p.used, err = readProcess(s.pid()); err != nil {
		return err
	}
	p.used.cpu -= before.cpu
	p.used.written -= before.written
	p.arrived, err = b.receiver.stats(b.ctx)
	return err
}

// await waits until as many deliveries have arrived, and then until as many
// more than before have succeeded in the file.
func (b *bench) await(db *store.DB, before, deliveries int) error {
	return errors.Join(
		b.reach("arrivals", deliveries, func() (int, error) { return b.receiver.count(b.ctx) }),
		b.reach("results in the file", before+deliveries, func() (int, error) { return successes(b.ctx, db) }),
	)
}

func (b *bench) reach(what string, want int, look func() (int, error)) error {
	last, since := -1, time.Now()
	for {
		n, err := look()
		if err != nil || n >= want {
			return err
		}
		if n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) > stuck {
			return fmt.Errorf("%d of %d %s, and no more for %s: the service's log may say why (--keep)", n, want, what, stuck)
		}
		select {
		case <-b.ctx.Done():
			return fmt.Errorf("%d of %d %s: %w", n, want, what, context.Cause(b.ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func successes(ctx context.Context, db *store.DB) (n int, err error) {
	err = db.Reader(ctx).QueryRow(`SELECT deliveries FROM webhook_totals WHERE status = 'success'`).Scan(&n)
	return n, err
}

// put publishes events and waits until all of their deliveries have arrived and
// are written down.
func (b *bench) put(db *store.DB, events int, rate float64) (published, error) {
	before, err := b.begin(db)
	if err != nil {
		return published{}, err
	}
	o := b.options
	o.rate = rate
	p, err := publish(b.ctx, b.client, o, b.puts, events)
	if err != nil {
		return p, err
	}
	b.puts += events
	return p, b.await(db, before, events*b.fanout)
}

// begin forgets what has arrived, and returns how many deliveries have
// succeeded so far.
func (b *bench) begin(db *store.DB) (succeeded int, err error) {
	if err := b.receiver.forget(b.ctx); err != nil {
		return 0, err
	}
	return successes(b.ctx, db)
}
