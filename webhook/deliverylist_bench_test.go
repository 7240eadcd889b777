package webhook

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

// historyRows is the history that a list must not notice.
const historyRows = 1_000_000

// historyRare is how many events a history begins with that are of a rare type.
const historyRare = 20

// history is a file with n finished events. One subscription has a successful
// delivery of each, another a failed one.
type history struct {
	s                 *Service
	succeeded, failed string
}

// newHistory makes a file quickly. Nothing checks its invariants at the end:
// that would take longer than all else.
func newHistory(b *testing.B, n int) history {
	b.Helper()
	db, err := store.Open(context.Background(), filepath.Join(b.TempDir(), "jpintel.db"), store.Options{Server: true, Keys: storetest.Keys(b)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	s := serviceOn(db)
	customer(b, s, "cus_a")
	h := history{s, subscribe(b, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID, subscribe(b, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID}
	for from := 1; from <= n; from += 100_000 {
		h.fill(b, from, min(n, from+99_999))
	}
	return h
}

// fill adds events, a second apart, and their deliveries.
func (h history) fill(b *testing.B, from, to int) {
	b.Helper()
	succeeded, failed := subSeq(b, h.s, h.succeeded), subSeq(b, h.s, h.failed)
	write(b, h.s.DB, func(tx *store.Tx) error {
		if _, err := tx.Exec(`
			WITH RECURSIVE n (i) AS (SELECT $1 UNION ALL SELECT i + 1 FROM n WHERE i < $2)
			INSERT INTO outbox_events (seq, event_id, event_type, customer_id, subject_type, subject_id, occurred_at_ms, created_at, created_at_ms, schema_version, attributes, data, published_at_ms)
			SELECT i, 'evt_01HX9Z2K7V3B4C5D6E7F8G' || i, CASE WHEN i <= $3 THEN 'tier.quota.warning' ELSE 'program.updated' END, CASE WHEN i <= $3 THEN 'cus_a' END,
			  'program', 'UNI-' || i, $4 + i * 1000, '2026-05-14T09:00:00+09:00', $4 + i * 1000, '1', '{}', CAST($5 AS BLOB), $4 + i * 1000 FROM n`,
			from, to, historyRare, historyBegin.UnixMilli(), `{"unified_id":"UNI-1","text":"`+fmt.Sprintf("%0200d", 0)+`"}`); err != nil {
			return err
		}
		for i, sub := range []int64{succeeded, failed} {
			if _, err := tx.Exec(`
				INSERT INTO webhook_deliveries (delivery_seq, delivery_id, event_seq, sub_seq, generation, envelope, status, reason, attempt_count, last_status, created_at_ms, finished_at_ms)
				SELECT seq * 2 + $4, 'dlv_01HX9Z2K7V3B4C5D6E7F8G' || (seq * 2 + $4), seq, $3, 1, 'v1', CASE $4 WHEN 0 THEN 'success' ELSE 'failed' END, CASE $4 WHEN 1 THEN 'x' END, 1, 200, created_at_ms, created_at_ms
				FROM outbox_events WHERE seq >= $1 AND seq <= $2`, from, to, sub, i); err != nil {
				return err
			}
		}
		return nil
	})
}

var historyBegin = time.Date(2020, 5, 14, 0, 0, 0, 0, time.UTC)

// histories are an empty file, one in which a page finds all that it may look
// at, and one with a million.
func histories(b *testing.B) (h [3]history) {
	if testing.Short() {
		b.Skip("it fills a file with a million deliveries")
	}
	for i, n := range []int{0, lookRows + historyRare, historyRows} {
		h[i] = newHistory(b, n)
	}
	return h
}

// compare times a call on the three files in turn and reports the fastest of
// each: other work on the machine only adds to that. The call returns how many
// rows it has, which tell whether the files can be compared.
func compare(b *testing.B, files [3]history, call func(history) (int, error)) {
	var took [3][]time.Duration
	var rows [3]int
	for b.Loop() {
		for i, file := range files {
			began := time.Now()
			n, err := call(file)
			took[i] = append(took[i], time.Since(began))
			if rows[i] = n; err != nil {
				b.Fatal(err)
			}
		}
	}
	var least [3]float64
	for i, name := range []string{"empty-ns", "small-ns", "million-ns"} {
		least[i] = float64(slices.Min(took[i]))
		b.ReportMetric(least[i], name)
	}
	b.ReportMetric(0, "ns/op") // of all three
	b.ReportMetric(float64(rows[2]), "rows")
	if rows[1] != rows[2] {
		b.Fatalf("%v rows", rows)
	}
	b.ReportMetric(least[2]/least[1], "million/small")
	if rows[0] == rows[2] {
		b.ReportMetric(least[2]/least[0], "million/empty")
	}
}

func historyTime(second int) string {
	return historyBegin.Add(time.Duration(second) * time.Second).Format(time.RFC3339)
}

// BenchmarkListDeliveries is a page of each kind of list, on files with no, with
// few and with a million finished deliveries.
func BenchmarkListDeliveries(b *testing.B) {
	files := histories(b)
	for _, c := range []struct {
		name   string
		change func(*DeliveriesRequest)
	}{
		{"all", func(*DeliveriesRequest) {}},
		{"success", func(r *DeliveriesRequest) { r.Status = StatusSuccess }},
		{"dead_letter", func(r *DeliveriesRequest) { r.Status = StatusDeadLetter }},
		{"failed", func(r *DeliveriesRequest) { r.Status = StatusFailed }},
		{"pending", func(r *DeliveriesRequest) { r.Status = StatusPending }},
		{"a type that others have", func(r *DeliveriesRequest) { r.EventType = TypeProgramCreated }},
		{"a rare type, the oldest", func(r *DeliveriesRequest) { r.EventType = TypeTierQuotaWarning }},
		{"a frequent type", func(r *DeliveriesRequest) { r.EventType = TypeProgramUpdated }},
		{"dead_letter of a frequent type", func(r *DeliveriesRequest) { r.Status, r.EventType = StatusDeadLetter, TypeProgramUpdated }},
		{"an event", func(r *DeliveriesRequest) { r.EventID = "evt_01HX9Z2K7V3B4C5D6E7F8G30" }},
		{"an event that is not there", func(r *DeliveriesRequest) { r.EventID = "evt_none" }},
		{"until long ago", func(r *DeliveriesRequest) { r.Until = "2019-01-01T00:00:00Z" }},
		{"since tomorrow", func(r *DeliveriesRequest) { r.Since = "2036-01-01T00:00:00Z" }},
		{"between, long ago", func(r *DeliveriesRequest) { r.Since, r.Until = historyTime(500), historyTime(530) }},
		{"success, long ago", func(r *DeliveriesRequest) {
			r.Status, r.Since, r.Until = StatusSuccess, historyTime(500), historyTime(530)
		}},
		{"everybody's", func(r *DeliveriesRequest) { r.SubscriptionID = "" }},
		{"everybody's dead_letter", func(r *DeliveriesRequest) { r.SubscriptionID, r.Status = "", StatusDeadLetter }},
		{"everybody's pending", func(r *DeliveriesRequest) { r.SubscriptionID, r.Status = "", StatusPending }},
		{"everybody's, a rare type", func(r *DeliveriesRequest) { r.SubscriptionID, r.EventType = "", TypeTierQuotaWarning }},
		{"everybody's, a type that never was", func(r *DeliveriesRequest) { r.SubscriptionID, r.EventType = "", TypeProgramCreated }},
	} {
		b.Run(c.name, func(b *testing.B) {
			compare(b, files, func(h history) (int, error) {
				r := DeliveriesRequest{SubscriptionID: h.succeeded}
				c.change(&r)
				if r.SubscriptionID != "" {
					r.CustomerID = "cus_a"
				}
				page, err := h.s.Deliveries(context.Background(), r)
				return len(page.Data), err
			})
		})
	}
	// No index has these: the page looks at as many rows as it may.
	b.Run("as much as it may: success among failed", func(b *testing.B) {
		compare(b, files, func(h history) (int, error) {
			page, err := h.s.Deliveries(context.Background(), DeliveriesRequest{CustomerID: "cus_a", SubscriptionID: h.failed, Status: StatusSuccess})
			return len(page.Data), err
		})
	})
}

// BenchmarkFeed is a page of the feed, on the same files.
func BenchmarkFeed(b *testing.B) {
	files := histories(b)
	for _, c := range []struct {
		name string
		r    EventsRequest
	}{
		{"from the oldest on", EventsRequest{CustomerID: "cus_a"}},
		{"a type that never was", EventsRequest{CustomerID: "cus_a", Types: "program.created"}},
		{"a rare type", EventsRequest{CustomerID: "cus_a", Types: "tier.quota.warning"}},
		{"a frequent type", EventsRequest{CustomerID: "cus_a", Types: "program.updated"}},
		{"three types", EventsRequest{CustomerID: "cus_a", Types: "program.updated,tier.quota.warning,program.created"}},
		{"a customer without events", EventsRequest{CustomerID: "cus_b", Types: "tier.quota.warning"}},
		{"everybody's", EventsRequest{}},
		{"everybody's, a type that never was", EventsRequest{Types: "program.created"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			compare(b, files, func(h history) (int, error) {
				page, err := h.s.Events(context.Background(), c.r)
				return len(page.Data), err
			})
		})
	}
	// The end, which is what a poller asks for nearly always.
	var ends [3]string
	for i, h := range files {
		epoch, last := epochOf(b, h.s), number(b, h.s.DB, `SELECT COALESCE(MAX(seq), 0) FROM outbox_events`)
		ends[i] = (&feedWalk{epoch: epoch}).cursor(last)
	}
	for _, types := range []string{"", "tier.quota.warning"} {
		b.Run("the end "+types, func(b *testing.B) {
			i := 0
			compare(b, files, func(h history) (int, error) {
				page, err := h.s.Events(context.Background(), EventsRequest{CustomerID: "cus_a", After: ends[i%3], Types: types})
				i++
				return len(page.Data), err
			})
		})
	}
}

func epochOf(b *testing.B, s *Service) string {
	b.Helper()
	control, err := store.ReadControl(s.DB.Reader(context.Background()))
	if err != nil {
		b.Fatal(err)
	}
	return control.Epoch
}
