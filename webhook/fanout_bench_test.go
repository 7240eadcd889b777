package webhook

import (
	"context"
	"fmt"
	"testing"

	"jpintel/store"
)

// benchSubscribers adds n subscriptions to program.created, as many customers
// as they need, of which one in each takes the events of benchProgram; the
// others filter on another prefecture.
func benchSubscribers(b *testing.B, s *Service, n, each int) {
	b.Helper()
	for i := range n {
		if i%maxSubscriptions == 0 {
			customer(b, s, fmt.Sprintf("cus_%d", i/maxSubscriptions))
		}
		prefecture := "奈良県"
		if i%each != 0 {
			prefecture = "大阪府"
		}
		subscribe(b, s, SubscribeRequest{
			CustomerID: fmt.Sprintf("cus_%d", i/maxSubscriptions), Events: []Type{TypeProgramCreated},
			Filter: Filter{"prefecture": {prefecture}},
		})
	}
}

// benchProgram is an event whose body has about 1 KB.
func benchProgram(i int) ProgramCreated {
	return ProgramCreated{
		Attributes: Attributes{"unified_id": {fmt.Sprintf("UNI-%08d", i)}, "prefecture": {"奈良県"}, "authority_level": {"prefecture"}},
		UnifiedID:  fmt.Sprintf("UNI-%08d", i), PrimaryName: fmt.Sprintf("%0600d", i), AuthorityLevel: new("prefecture"), Prefecture: new("奈良県"),
		AmountMaxManYen: new(int64(300)), SourceURL: fmt.Sprintf("https://example.jp/programs/%d", i),
	}
}

// BenchmarkFanOut publishes 128 events and fans them out. One operation is all
// of them; what a delivery costs is reported beside it.
func BenchmarkFanOut(b *testing.B) {
	const events = stepEvents
	for _, c := range []struct {
		name                string
		subscriptions, each int // one in each matches
	}{
		{"1", 1, 1},
		{"10", 10, 1},
		{"50 of 500", 500, 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newService(b)
			benchSubscribers(b, s, c.subscriptions, c.each)
			f := newFanout(s.DB)
			published := 0
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				write(b, s.DB, func(tx *store.Tx) error {
					for range events {
						published++
						if _, err := s.Outbox.Publish(context.Background(), tx, benchProgram(published)); err != nil {
							return err
						}
					}
					return nil
				})
				b.StartTimer()
				for more := true; more; {
					done, err := f.step(context.Background())
					if err != nil {
						b.Fatal(err)
					}
					more = done.more
				}
			}
			deliveries := number(b, s.DB, `SELECT COUNT(*) FROM webhook_deliveries`)
			if want := int64(published * c.subscriptions / c.each); deliveries != want {
				b.Fatalf("%d deliveries, want %d", deliveries, want)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(deliveries), "ns/delivery")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(published), "ns/event")
		})
	}
}

// BenchmarkPublish publishes program.created, a hundred in a transaction; beside
// it what the checks of its data against the schema are of that.
func BenchmarkPublish(b *testing.B) {
	b.Run("publish", func(b *testing.B) {
		const each = 100
		s := newService(b)
		n := 0
		b.ReportAllocs()
		for b.Loop() {
			write(b, s.DB, func(tx *store.Tx) error {
				for range each {
					n++
					if _, err := s.Outbox.Publish(context.Background(), tx, benchProgram(n)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/event")
	})
	b.Run("validate", func(b *testing.B) {
		data, err := marshal(benchProgram(1))
		if err != nil {
			b.Fatal(err)
		}
		entry := catalogue[TypeProgramCreated]
		b.ReportAllocs()
		for b.Loop() {
			if err := entry.validate(data); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("encode", func(b *testing.B) {
		p := benchProgram(1)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := marshal(p); err != nil {
				b.Fatal(err)
			}
		}
	})
}
