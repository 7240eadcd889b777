package webhook

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

func signalled(o *Outbox) bool {
	select {
	case <-o.Committed():
		return true
	default:
		return false
	}
}

var errBoom = errors.New("boom")

func TestAnEventIsCommittedWithItsState(t *testing.T) {
	s := newService(t)
	change := func(end error) error {
		return s.DB.Write(t.Context(), func(tx *store.Tx) error {
			if _, _, err := store.CreateCustomer(tx, store.Customer{CustomerID: "cus_a", Tier: store.TierPaid}); err != nil {
				return err
			}
			if _, err := s.Outbox.Publish(t.Context(), tx, warning("cus_a")); err != nil {
				return err
			}
			return end
		})
	}
	rows := func() []string {
		return lines(t, s.DB, `SELECT (SELECT COUNT(*) FROM customers), (SELECT COUNT(*) FROM outbox_events)`)
	}
	if err := change(errBoom); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	if got := rows(); got[0] != "0 0" || signalled(s.Outbox) {
		t.Errorf("after a rollback: %s customers and events, or a signal", got)
	}
	if err := change(nil); err != nil {
		t.Fatal(err)
	}
	if got := rows(); got[0] != "1 1" || !signalled(s.Outbox) {
		t.Errorf("after a commit: %s customers and events, or no signal", got)
	}
}

func TestManyCommitsMayShareASignal(t *testing.T) {
	s := newService(t)
	for range 3 { // nobody listens meanwhile, and nobody waits
		publish(t, s, updated("UNI-1", nil), updated("UNI-2", nil))
	}
	if !signalled(s.Outbox) || signalled(s.Outbox) {
		t.Error("want one signal")
	}
}

func TestWhatIsStoredOfAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.DB.Location = time.FixedZone("JST", 9*60*60)
		customer(t, s, "cus_a")
		time.Sleep(1234 * time.Millisecond)
		var ids []string
		if err := s.DB.Write(t.Context(), func(tx *store.Tx) error {
			for ctx, p := range map[context.Context]Payload{
				store.WithRequestID(t.Context(), "req_1"): ProgramMatchingFilter{CustomerID: "cus_a", UnifiedID: "UNI-1", FilterID: "flt_1", MatchedFields: []string{"prefecture"},
					Attributes: Attributes{"prefecture": {"奈良県", "大阪府"}, "unified_id": {"UNI-1"}}},
			} {
				id, err := s.Outbox.Publish(ctx, tx, p)
				if err != nil {
					return err
				}
				ids = append(ids, id)
			}
			id, err := s.Outbox.Publish(t.Context(), tx, updated("UNI-<&>", nil))
			ids = append(ids, id)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		got := lines(t, s.DB, `
			SELECT seq, event_id, event_type, customer_id, subject_type, subject_id, occurred_at_ms, created_at, created_at_ms, schema_version,
			  correlation_id, request_id, attributes, data, fanout_cursor, published_at_ms FROM outbox_events ORDER BY seq`)
		want := []string{
			`1 ` + ids[0] + ` program.matching_filter cus_a program UNI-1 946684801234 2000-01-01T09:00:01+09:00 946684801234 1` +
				` - req_1 {"prefecture":["奈良県","大阪府"],"unified_id":["UNI-1"]} {"unified_id":"UNI-1","filter_id":"flt_1","matched_fields":["prefecture"]} 0 -`,
			`2 ` + ids[1] + ` program.updated - program UNI-<&> 946684801234 2000-01-01T09:00:01+09:00 946684801234 1` +
				` - - {} {"unified_id":"UNI-<&>","changed_fields":["primary_name"],"previous_checksum":"a","current_checksum":"b"} 0 -`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
		for _, id := range ids {
			if !strings.HasPrefix(id, "evt_") || len(id) != len("evt_")+26 {
				t.Errorf("id %q", id)
			}
		}
	})
}

// custom is a payload that says of itself whatever the test wants.
type custom struct {
	typ      Type
	customer string
	data     any
}

func (c custom) Type() Type                   { return c.typ }
func (c custom) SubjectID() string            { return "x" }
func (c custom) Customer() string             { return c.customer }
func (c custom) MarshalJSON() ([]byte, error) { return marshal(c.data) }

func TestPublishRefuses(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	long := func(n int) ProgramUpdated {
		p := updated("UNI-1", nil)
		p.CurrentChecksum = strings.Repeat("x", n)
		return p
	}
	room := maxData - len(`{"unified_id":"UNI-1","changed_fields":["primary_name"],"previous_checksum":"a","current_checksum":""}`)
	for name, c := range map[string]struct {
		p    Payload
		code store.Code
		text string
	}{
		"the test ping":             {Test{}, "", "not an event type"},
		"what is not catalogued":    {custom{"program.deleted", "", nil}, "", "not an event type"},
		"no customer":               {warning(""), "", "scope"},
		"a customer for all":        {custom{TypeProgramUpdated, "cus_a", nil}, "", "scope"},
		"an unknown customer":       {warning("cus_b"), "", "FOREIGN KEY"},
		"one byte too much":         {long(room + 1), store.CodeTooLarge, "65537 bytes"},
		"null for a list":           {ProgramUpdated{UnifiedID: "UNI-1", PreviousChecksum: "a", CurrentChecksum: "b"}, store.CodeInvalid, "changed_fields"},
		"an empty id":               {updated("", nil), store.CodeInvalid, "unified_id"},
		"another tier":              {TierQuotaWarning{CustomerID: "cus_a", Tier: "gold", ResetsAt: "x"}, store.CodeInvalid, "tier"},
		"a negative count":          {TierQuotaWarning{CustomerID: "cus_a", Tier: "paid", UsageToday: -1, ResetsAt: "x"}, store.CodeInvalid, "usage_today"},
		"money with an exponent":    {CustomerProvisioned{"cus_a", "g", "k", "USD", "1e3"}, store.CodeInvalid, "spend_limit"},
		"money without a number":    {CustomerProvisioned{"cus_a", "g", "k", "USD", ""}, store.CodeInvalid, "spend_limit"},
		"a currency in small print": {CustomerProvisioned{"cus_a", "g", "k", "usd", "1"}, store.CodeInvalid, "currency"},
		"a list":                    {custom{TypeTierQuotaWarning, "cus_a", []int{1}}, store.CodeInvalid, "data"},
		"what has no JSON form":     {custom{TypeTierQuotaWarning, "cus_a", func() {}}, "", "publishing tier.quota.warning"},
	} {
		// The caller forgets to return the error: still there must be nothing.
		var err error
		write(t, s.DB, func(tx *store.Tx) error {
			_, err = s.Outbox.Publish(t.Context(), tx, c.p)
			return nil
		})
		if err == nil {
			t.Errorf("%s: published", name)
			continue
		}
		t.Run(name, func(t *testing.T) { wantCode(t, err, c.code, c.text) })
	}
	if n := number(t, s.DB, `SELECT COUNT(*) FROM outbox_events`); n != 0 || signalled(s.Outbox) {
		t.Errorf("%d events, or a signal, of refused ones", n)
	}
	publish(t, s, long(room))
	if n := number(t, s.DB, `SELECT length(data) FROM outbox_events`); n != maxData {
		t.Errorf("%d bytes, want the most that is allowed", n)
	}
}
