package webhook

import (
	"context"
	"fmt"
	"testing"
	"time"

	"jpintel/store"
)

// benchPending gives each subscription deliveries that are due, all of events
// with a body of about 1 KB.
func benchPending(b *testing.B, s *Service, each int) {
	b.Helper()
	for from := 0; from < each; from += 1000 {
		write(b, s.DB, func(tx *store.Tx) error {
			for i := from; i < min(from+1000, each); i++ {
				if err := addBenchDeliveries(tx, s, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// addBenchDeliveries publishes an event and its deliveries to everybody.
func addBenchDeliveries(tx *store.Tx, s *Service, i int) error {
	id, err := s.Outbox.Publish(context.Background(), tx, benchProgram(i))
	if err != nil {
		return err
	}
	if _, err := tx.Exec(`UPDATE outbox_events SET published_at_ms = $1 WHERE event_id = $2`, tx.NowMS(), id); err != nil {
		return err
	}
	n, err := tx.Update(`
		INSERT INTO webhook_deliveries (delivery_id, event_seq, sub_seq, generation, envelope, status, next_attempt_at_ms, created_at_ms)
		SELECT $1 || '.' || s.sub_seq, e.seq, s.sub_seq, s.generation, s.envelope, 'pending', $2, $2
		FROM webhook_subscriptions s, outbox_events e WHERE e.event_id = $3`, tx.NewID("dlv"), tx.NowMS(), id)
	if err != nil {
		return err
	}
	added := totals{}
	added.move(n, "", StatusPending)
	return added.write(tx)
}

// BenchmarkClaim reads the first 128 of 100,000 pending deliveries of one
// subscription.
func BenchmarkClaim(b *testing.B) {
	s := newService(b)
	benchSubscribers(b, s, 1, 1)
	benchPending(b, s, 100_000)
	sub := number(b, s.DB, `SELECT sub_seq FROM webhook_subscriptions`)
	now := time.Now().Add(time.Minute)
	b.ReportAllocs()
	for b.Loop() {
		found, err := claimFor(context.Background(), s.DB, sub, now, claimRows, claimBytes)
		if err != nil || len(found.due) != claimRows {
			b.Fatal(len(found.due), err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*claimRows), "ns/delivery")
}

// BenchmarkClaimFew is a claim of the one delivery that is due: what an idle
// subscription costs when an event comes.
func BenchmarkClaimFew(b *testing.B) {
	s := newService(b)
	benchSubscribers(b, s, 1, 1)
	benchPending(b, s, 1)
	sub := number(b, s.DB, `SELECT sub_seq FROM webhook_subscriptions`)
	now := time.Now().Add(time.Minute)
	b.ReportAllocs()
	for b.Loop() {
		found, err := claimFor(context.Background(), s.DB, sub, now, 4, claimBytes)
		if err != nil || len(found.due) != 1 {
			b.Fatal(len(found.due), err)
		}
	}
}

// BenchmarkQueueTake takes one delivery and gives it back, with 10,000
// subscriptions that all have something to send. Nothing is read from the file.
func BenchmarkQueueTake(b *testing.B) {
	const lanes = 10_000
	q := newQueue(nil, queueOptions{slots: 64, perLane: 4})
	now := time.Now()
	for sub := range int64(lanes) {
		t := &target{customerID: fmt.Sprintf("cus_%d", sub/maxSubscriptions), url: fmt.Sprintf("https://r%d.example.com/", sub), until: noneDue}
		q.wake(sub, noneDue-1) // it waits in the heap, so that it is not forgotten
		l := q.lanes[sub]
		l.probation, l.claimed, l.target, l.aimed = false, now, t, now
		for i := range int64(4) {
			l.held = append(l.held, work{seq: sub*4 + i, subSeq: sub, target: t})
		}
		q.place(l)
	}
	b.ReportAllocs()
	for b.Loop() {
		w, err := q.take(context.Background(), now)
		if err != nil || w == nil {
			b.Fatal(w, err)
		}
		l := q.lanes[w.subSeq]
		l.held = append(l.held, *w)
		q.done(settled{work: w, next: noneDue})
	}
}
