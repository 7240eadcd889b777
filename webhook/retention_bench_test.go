package webhook

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"jpintel/store"
)

// paced publishes 100 events a second, whether or not those before are done,
// until it is told to stop, and returns how long each took from when it was due.
func paced(b *testing.B, s *Service, stop func(n int) bool) (took []time.Duration) {
	b.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	due := time.Now()
	for n := 0; !stop(n); n++ {
		time.Sleep(time.Until(due))
		began := due
		all.Go(func() {
			err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
				_, err := s.Outbox.Publish(context.Background(), tx, updated("UNI-1", nil))
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			if took = append(took, time.Since(began)); err != nil {
				b.Error(err)
			}
		})
		due = due.Add(10 * time.Millisecond)
	}
	all.Wait()
	return took
}

func percentile(took []time.Duration, p float64) float64 {
	slices.Sort(took)
	return float64(took[int(p*float64(len(took)-1))])
}

// BenchmarkRetentionBesideLoad lets retention delete 100,000 deliveries, their
// attempts and their events while 100 events a second are published, and reports
// how long the publications took, beside as many without.
func BenchmarkRetentionBesideLoad(b *testing.B) {
	if testing.Short() {
		b.Skip("it fills a file with 100,000 deliveries")
	}
	var alone, beside []time.Duration
	var passes time.Duration
	for b.Loop() {
		h := newHistory(b, 50_000)
		exec(b, h.s.DB, `INSERT INTO webhook_attempts (delivery_seq, attempt, started_at_ms, duration_ms, status) SELECT delivery_seq, 1, created_at_ms, 5, 200 FROM webhook_deliveries`)
		exec(b, h.s.DB, `UPDATE webhook_totals SET deliveries = (SELECT COUNT(*) FROM webhook_deliveries d WHERE d.status = webhook_totals.status)`)
		r := &retention{db: h.s.DB, log: slog.New(slog.DiscardHandler), deliveries: 30 * day, events: 90 * day}
		over := make(chan struct{})
		began := time.Now()
		go func() {
			defer close(over)
			for more := true; more; {
				var err error
				more, err = r.step(context.Background())
				if err != nil {
					b.Error(err)
					return
				}
			}
			passes += time.Since(began)
		}()
		during := paced(b, h.s, func(int) bool {
			select {
			case <-over:
				return true
			default:
				return false
			}
		})
		beside = append(beside, during...)
		alone = append(alone, paced(b, h.s, func(n int) bool { return n == len(during) })...)
		if n := number(b, h.s.DB, `SELECT COUNT(*) FROM webhook_deliveries`); n != 0 {
			b.Fatalf("%d deliveries are left", n)
		}
		if err := h.s.DB.Close(); err != nil {
			b.Fatal(err)
		}
	}
	for _, p := range []struct {
		name string
		p    float64
	}{{"p50", 0.5}, {"p99", 0.99}} {
		b.ReportMetric(percentile(alone, p.p)/1e6, "alone-"+p.name+"-ms")
		b.ReportMetric(percentile(beside, p.p)/1e6, "beside-"+p.name+"-ms")
	}
	b.ReportMetric(percentile(beside, 0.99)/percentile(alone, 0.99), "beside/alone-p99")
	b.ReportMetric(passes.Seconds()/float64(b.N), "s/pass")
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(len(beside)), "writes")
}
