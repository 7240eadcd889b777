package webhook

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"jpintel/store"
)

const (
	// finishBatch is how many results share a transaction at most.
	finishBatch = 256
	// maxLastTries is how often, a second apart, a stop tries to write results
	// to a file that cannot be written.
	maxLastTries = 10
)

// finished is a result on its way into the file.
type finished struct {
	work   *work
	result Result
}

// settled is a delivery whose result is in the file, and what the queue has to
// know of it.
type settled struct {
	work      *work
	next      int64  // when it is due again, ms; noneDue: it is finished
	probation bool   // the subscription's, after this result
	disabled  Reason // why the subscription was disabled by this result; "": it was not
}

// finisher writes results down: those that are there, in one transaction, with
// the deliveries' new states and the subscriptions' streaks and rates.
type finisher struct {
	db        *store.DB
	outbox    *Outbox
	log       *slog.Logger
	schedule  []time.Duration
	random    func() float64
	cap       *DailyCap     // nil: nothing is counted
	deadLimit int           // dead letters of a subscription; 0: no limit
	failLimit time.Duration // of nothing but failures of a subscription; 0: no limit
	notices   Notices
	results   chan finished
	committed chan []settled
	closing   atomic.Bool
}

// newFinisher returns a finisher for so many results at a time: its channel is
// never full, since a sender must not wait for a file that cannot be written.
func newFinisher(db *store.DB, outbox *Outbox, log *slog.Logger, schedule []time.Duration, random func() float64, results int) *finisher {
	return &finisher{db: db, outbox: outbox, log: log, schedule: schedule, random: random,
		results: make(chan finished, results), committed: make(chan []settled, 1)}
}

// close ends run once every result that was handed over is in the file.
func (f *finisher) close() {
	f.closing.Store(true)
	close(f.results)
}

func (f *finisher) run() {
	for first := range f.results {
		batch := append(make([]finished, 0, 16), first)
		for len(batch) < finishBatch {
			select {
			case next, ok := <-f.results:
				if ok {
					batch = append(batch, next)
					continue
				}
			default:
			}
			break
		}
		f.finish(batch)
	}
}

// finish commits a batch and gives it back to the dispatcher. While the file
// cannot be written the results are kept: to forget one would be to send its
// delivery again although it may have arrived.
func (f *finisher) finish(batch []finished) {
	err := f.commit(batch)
	for tries := 1; store.CodeOf(err) == store.CodeUnavailable; tries++ {
		f.log.Error("webhook_results_not_written", "error", err, "results", len(batch))
		if f.closing.Load() && tries > maxLastTries {
			return // the next start sends these again, under the same ids
		}
		time.Sleep(time.Second)
		err = f.commit(batch)
	}
	if err == nil {
		return
	}
	// One result must not hold up the others.
	f.log.Error("webhook_results_not_written", "error", err, "results", len(batch))
	if len(batch) > 1 {
		for i := range batch {
			f.finish(batch[i : i+1])
		}
		return
	}
	f.giveBack([]settled{{work: batch[0].work, next: time.Now().Add(time.Minute).UnixMilli(), probation: true}})
}

// commit writes a batch in one transaction, logs it and gives it back.
func (f *finisher) commit(batch []finished) error {
	var records []record
	if err := f.db.Write(context.Background(), func(tx *store.Tx) (err error) {
		records, err = f.write(tx, batch)
		return err
	}); err != nil {
		return err
	}
	back := make([]settled, len(records))
	for i := range records {
		records[i].log(f.log)
		if w := records[i].work; !w.capped && !records[i].attempted() {
			f.cap.release(w.target.customerID, w.day)
		}
		back[i] = records[i].settled
	}
	f.giveBack(back)
	return nil
}

// giveBack does not wait for a dispatcher that has stopped: it takes the last
// parcel back and adds to it.
func (f *finisher) giveBack(back []settled) {
	select {
	case f.committed <- back:
	default:
		select {
		case earlier := <-f.committed:
			back = append(earlier, back...)
		default:
		}
		f.committed <- back
	}
}

// record is what was written for one result.
type record struct {
	settled
	result Result
	status Status
}

// attempted reports whether a request was made that counts for the day: one
// that the guard refused, or that the service stopped, does not.
func (r *record) attempted() bool {
	return r.work.refused == "" && !r.work.capped && !r.result.Interrupted && r.result.Category != CategoryBlocked
}

// write puts a batch into one transaction.
func (f *finisher) write(tx *store.Tx, batch []finished) ([]record, error) {
	subs, moved, counted := map[int64]*progress{}, totals{}, dailyAttempts{}
	var records []record
	for _, done := range batch {
		w := done.work
		p := subs[w.subSeq]
		if p == nil {
			var err error
			if p, err = readProgress(tx, w.subSeq); err != nil {
				return nil, err
			}
			subs[w.subSeq] = p
		}
		r, err := f.writeOne(tx, moved, p, done)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
		if w.day != "" && r.attempted() {
			counted.add(w.target.customerID, w.day)
		}
	}
	for _, p := range subs {
		if err := p.write(tx); err != nil {
			return nil, err
		}
	}
	return records, errors.Join(counted.write(tx), moved.write(tx))
}

func (f *finisher) writeOne(tx *store.Tx, moved totals, p *progress, done finished) (record, error) {
	w, r := done.work, done.result
	rec := record{settled: settled{work: w, next: noneDue, probation: p.probation}, result: r, status: StatusFailed}
	switch {
	case w.refused != "":
		return rec, fail(tx, moved, w, w.refused)
	case w.capped && !p.concerns(w):
		return rec, nil // the sweep has it
	case w.capped:
		active, err := f.disable(tx, w, ReasonCostCap)
		if active { // the first of those that were given out together
			rec.disabled = ReasonCostCap
		}
		return rec, err
	case r.Interrupted:
		rec.status, rec.next = StatusPending, w.dueMS
		return rec, nil
	case r.OK():
		rec.status = StatusSuccess
	default:
		rec.status = StatusDeadLetter
		if r.Category == CategoryInternal {
			w.scheduleBase++ // our fault uses up none of the customer's attempts
		}
		n := max(w.attempts+1-w.scheduleBase, 1)
		next, again := nextAttempt(f.schedule, n, tx.Now, f.random(), hint(r))
		switch {
		case again:
			rec.status, rec.next = StatusPending, next.UnixMilli()
		case !p.concerns(w): // it reads as failed already; the sweep writes that down
			rec.status, rec.next = StatusPending, w.dueMS
		}
	}
	if p.concerns(w) {
		rec.disabled = p.add(tx, r, f.failLimit)
		if rec.status == StatusDeadLetter && p.bury(f.deadLimit) && rec.disabled == "" {
			rec.disabled = ReasonDeadLetterOverflow
		}
	}
	rec.probation = p.probation
	if err := settle(tx, moved, w, r, rec.status, rec.next); err != nil {
		return rec, err
	}
	if rec.disabled == "" {
		return rec, nil
	}
	active, err := f.disable(tx, w, rec.disabled)
	if !active {
		rec.disabled = "" // it was disabled before
	}
	return rec, err
}

// disable stops a subscription on the service's own account, whatever the
// reason, and tells its owner: by mail and at the other ones. It reports whether the subscription was active.
func (f *finisher) disable(tx *store.Tx, w *work, reason Reason) (bool, error) {
	active, err := disable(tx, w.subSeq, reason)
	if err != nil || !active {
		return false, err
	}
	if err := f.notices.disabled(tx, noticed{w.target.subscriptionID, w.target.customerID, w.target.url}, reason); err != nil {
		return false, err
	}
	shown, err := origin(w.target.url)
	if err != nil {
		return false, err
	}
	_, err = f.outbox.Publish(context.Background(), tx, SubscriptionDisabled{
		CustomerID: w.target.customerID, SubscriptionID: w.target.subscriptionID, URLOrigin: shown,
		DisabledReason: string(reason), DisabledAt: tx.Local().Format(createdAtLayout),
	})
	return true, err
}

// log writes the one line of an attempt.
func (r *record) log(log *slog.Logger) {
	w, res := r.work, r.result
	if w.refused != "" {
		log.Info("webhook_refused", "subscription_id", w.target.subscriptionID, "delivery_id", w.deliveryID, "event_id", w.event.id, "reason", w.refused)
		return
	}
	if w.capped {
		r.logDisabled(log)
		return
	}
	if res.Interrupted {
		log.Info("webhook_interrupted", "subscription_id", w.target.subscriptionID, "delivery_id", w.deliveryID, "event_id", w.event.id, "reason", errInterrupted)
		return
	}
	args := []any{
		"event", "webhook_delivered", "subscription_id", w.target.subscriptionID, "delivery_id", w.deliveryID, "event_id", w.event.id,
		"event_type", string(w.event.typ), "customer_id_hash", w.target.customerHash, "status", res.Status,
		"attempt", w.attempts + 1, "duration_ms", res.Duration.Milliseconds(), "ok", res.OK(), "error_category", string(res.Category),
	}
	if res.Reason != "" {
		args = append(args, "blocked_reason", res.Reason)
	}
	log.Info("webhook_delivered", args...)
	r.logDisabled(log)
}

func (r *record) logDisabled(log *slog.Logger) {
	if r.disabled != "" {
		log.Warn("webhook_subscription_disabled", "subscription_id", r.work.target.subscriptionID,
			"customer_id_hash", r.work.target.customerHash, "reason", string(r.disabled))
	}
}
