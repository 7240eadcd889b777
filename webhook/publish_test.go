package webhook

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// report publishes an event of another system, which has to succeed.
func report(t testing.TB, s *Service, key string, r PublishRequest) string {
	t.Helper()
	r.IdempotencyKey = key
	answer, err := s.PublishEvent(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return answer.EventID
}

// outboxRows is what is stored of events but for ids and attributes.
const outboxRows = `SELECT event_type, customer_id, subject_type, subject_id, occurred_at_ms, created_at, created_at_ms, schema_version, correlation_id, data FROM outbox_events WHERE seq %% 2 = %d ORDER BY seq`

// The catalogue's examples leave the same rows whether this service publishes
// them or another one does.
func TestPublishedFromOutsideIsTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_example")
		for _, e := range EventTypes() {
			publish(t, s, e.example)
			report(t, s, string(e.Type), PublishRequest{Type: e.Type, CustomerID: e.example.Customer(), Data: e.Example})
		}
		inside, outside := lines(t, s.DB, fmt.Sprintf(outboxRows, 1)), lines(t, s.DB, fmt.Sprintf(outboxRows, 0))
		if len(inside) != len(EventTypes()) || !slices.Equal(inside, outside) {
			t.Errorf("from inside\n%s\nfrom outside\n%s", strings.Join(inside, "\n"), strings.Join(outside, "\n"))
		}
	})
}

func TestPublishEventAttributes(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	adoption := `{"adoption_id":"A","program_id":"UNI-1","year":2026.0,"count_added":1,"evidence_url":""}`
	for i, c := range []struct {
		r    PublishRequest
		want string
	}{
		{PublishRequest{Type: TypeProgramCreated, Data: catalogue[TypeProgramCreated].Example},
			`{"authority_level":["prefecture"],"prefecture":["奈良県"],"unified_id":["UNI-7f3c21"]}`},
		{PublishRequest{Type: TypeProgramCreated, Data: catalogue[TypeProgramCreated].Example, Attributes: GivenAttributes{"prefecture": {"奈良県", "大阪府", "奈良県"}, "target_type": {"中小企業者"}}},
			`{"authority_level":["prefecture"],"prefecture":["大阪府","奈良県"],"target_type":["中小企業者"],"unified_id":["UNI-7f3c21"]}`},
		{PublishRequest{Type: TypeProgramUpdated, Data: catalogue[TypeProgramUpdated].Example}, `{"unified_id":["UNI-7f3c21"]}`},
		{PublishRequest{Type: TypeAdoptionPublished, Data: json.RawMessage(adoption)}, `{"program_id":["UNI-1"],"unified_id":["UNI-1"],"year":["2026"]}`},
		{PublishRequest{Type: TypeExclusionRuleAdded, CustomerID: "cus_a", Data: catalogue[TypeExclusionRuleAdded].Example}, `{"kind":["mutex"],"severity":["block"]}`},
		{PublishRequest{Type: TypeSubscriptionDisabled, CustomerID: "cus_a", Data: catalogue[TypeSubscriptionDisabled].Example}, `{}`},
	} {
		id := report(t, s, strconv.Itoa(i), c.r)
		if got := lines(t, s.DB, `SELECT attributes FROM outbox_events WHERE event_id = $1`, id); got[0] != c.want {
			t.Errorf("%s with %v: %s, want %s", c.r.Type, c.r.Attributes, got[0], c.want)
		}
	}
}

func TestPublishEventTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		r := PublishRequest{Type: TypeProgramUpdated, Data: catalogue[TypeProgramUpdated].Example}
		for i, c := range []struct {
			at   string
			want int64
		}{
			{"", time.Now().UnixMilli()},
			{"1999-12-31T15:00:00.123+09:00", time.Date(1999, 12, 31, 6, 0, 0, 123e6, time.UTC).UnixMilli()},
			{"2000-01-01T00:05:00Z", time.Date(2000, 1, 1, 0, 5, 0, 0, time.UTC).UnixMilli()}, // five minutes ahead
		} {
			r.OccurredAt = c.at
			id := report(t, s, strconv.Itoa(i), r)
			if got := number(t, s.DB, `SELECT occurred_at_ms FROM outbox_events WHERE event_id = $1`, id); got != c.want {
				t.Errorf("%q: %d, want %d", c.at, got, c.want)
			}
		}
		for at, says := range map[string]string{"2000-01-01T00:05:01Z": "occurred_at: more than 5m in the future", "yesterday": "occurred_at: want a time like"} {
			r.OccurredAt, r.IdempotencyKey = at, "k"
			_, err := s.PublishEvent(t.Context(), r)
			wantCode(t, err, store.CodeInvalid, says)
		}
	})
}

// Of several faults the same one is named each time.
func TestFirstFault(t *testing.T) {
	e := catalogue[TypeTierQuotaWarning]
	for text, want := range map[string]string{
		`{"tier":"gold","usage_today":"x","limit":-1}`:                                                   "data.customer_id: required",
		`{"customer_id":"a","tier":"paid","usage_today":"x","limit":-1,"resets_at":"x"}`:                 "data.limit: minimum: got -1, want 0",
		`{"customer_id":"a","tier":"paid","usage_today":1.5,"limit":1,"resets_at":"x"}`:                  "data.usage_today: got number, want integer",
		`{"customer_id":"a","tier":"gold","usage_today":1,"limit":1,"resets_at":"x"}`:                    "data.tier: value must be one of 'free', 'paid'",
		`{"customer_id":null,"tier":"paid","usage_today":1,"limit":1,"resets_at":"x","other":[{"a":1}]}`: "data.customer_id: got null, want string",
	} {
		for range 8 {
			if err := e.validate([]byte(text)); err == nil || err.Error() != want {
				t.Errorf("%s: %v, want %s", text, err, want)
			}
		}
	}
	long := `{"usage_record_id":"u","customer_id":"a","period_start":"x","period_end":"x","currency":"` + strings.Repeat("円", 999) + `","final_cost":"1"}`
	if err := catalogue[TypeUsageFinalized].validate([]byte(long)); err == nil || len(err.Error()) > maxFault {
		t.Errorf("a long value: %v", err)
	}
}

func BenchmarkPublishEvent(b *testing.B) {
	s := newService(b)
	customer(b, s, "cus_example")
	e := catalogue[TypeUsageFinalized]
	b.Run("alone", func(b *testing.B) {
		for range b.N {
			r := PublishRequest{IdempotencyKey: "k", Type: e.Type, CustomerID: "cus_example", Data: e.Example}
			if _, err := store.NewOnce("events", "k", r); err != nil {
				b.Fatal(err)
			}
			if _, err := r.event(time.Now()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("committed", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				r := PublishRequest{IdempotencyKey: store.NewID("k"), Type: e.Type, CustomerID: "cus_example", Data: e.Example}
				if _, err := s.PublishEvent(b.Context(), r); err != nil {
					b.Error(err)
				}
			}
		})
	})
}
