package webhook

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"jpintel/store"
)

// BenchmarkFinish writes 64 results of ten subscriptions in one transaction and
// logs them. One operation is all of them.
func BenchmarkFinish(b *testing.B) {
	const results, subscriptions = 64, 10
	s := newService(b)
	benchSubscribers(b, s, subscriptions, 1)
	f := newFinisher(s.DB, s.Outbox, slog.New(slog.NewJSONHandler(io.Discard, nil)), DefaultSchedule, func() float64 { return 0.5 }, finishBatch)
	var first, last int64
	if err := s.DB.Reader(context.Background()).QueryRow(`SELECT MIN(sub_seq), MAX(sub_seq) FROM webhook_subscriptions`).Scan(&first, &last); err != nil {
		b.Fatal(err)
	}
	published := 0
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		write(b, s.DB, func(tx *store.Tx) error {
			for range (results + subscriptions - 1) / subscriptions {
				published++
				if err := addBenchDeliveries(tx, s, published); err != nil {
					return err
				}
			}
			return nil
		})
		var batch []finished
		for sub := first; sub <= last; sub++ {
			found, err := claimFor(context.Background(), s.DB, sub, time.Now(), results, claimBytes)
			if err != nil {
				b.Fatal(err)
			}
			for i := range found.due {
				batch = append(batch, finished{&found.due[i], Result{StartedAt: time.Now(), Duration: time.Millisecond, Status: 204, RemoteAddr: "203.0.113.7:443"}})
			}
		}
		batch = batch[:results]
		b.StartTimer()
		if err := f.commit(batch); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		<-f.committed
		exec(b, s.DB, `DELETE FROM webhook_deliveries WHERE status = 'pending'`)
		exec(b, s.DB, `UPDATE webhook_totals SET deliveries = 0 WHERE status = 'pending'`)
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*results), "ns/result")
}
