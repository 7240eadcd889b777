package webhook

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// feed reads the whole feed from a cursor on, page by page.
func feed(t testing.TB, s *Service, r EventsRequest) (ids []string, cursor string) {
	t.Helper()
	for {
		page, err := s.Events(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Data {
			ids = append(ids, e.EventID)
		}
		if page.NextCursor == r.After || page.NextCursor == "" {
			return ids, page.NextCursor
		}
		r.After = page.NextCursor
	}
}

func pick(ids []string, places ...int) (picked []string) {
	for _, i := range places {
		picked = append(picked, ids[i])
	}
	return picked
}

func TestFeed(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	if page, err := s.Events(t.Context(), EventsRequest{CustomerID: "cus_a"}); err != nil || page.Data == nil || len(page.Data) != 0 || page.NextCursor == "" {
		t.Errorf("an empty feed: %+v, %v", page, err)
	}
	// Nobody subscribes and nothing is fanned out: the feed has them all the same.
	ids := publish(t, s, updated("UNI-1", nil), warning("cus_a"), warning("cus_b"), updated("UNI-2", nil), warning("cus_a"), updated("UNI-3", nil))
	for _, c := range []struct {
		name string
		r    EventsRequest
		want []string
	}{
		{"a's", EventsRequest{CustomerID: "cus_a"}, pick(ids, 0, 1, 3, 4, 5)},
		{"b's", EventsRequest{CustomerID: "cus_b"}, pick(ids, 0, 2, 3, 5)},
		{"the operator's", EventsRequest{}, ids},
		{"one at a time", EventsRequest{CustomerID: "cus_a", Limit: 1}, pick(ids, 0, 1, 3, 4, 5)},
		{"two at a time", EventsRequest{CustomerID: "cus_b", Limit: 2}, pick(ids, 0, 2, 3, 5)},
		{"one type", EventsRequest{CustomerID: "cus_a", Types: "tier.quota.warning", Limit: 1}, pick(ids, 1, 4)},
		{"two types", EventsRequest{CustomerID: "cus_a", Types: "tier.quota.warning,program.updated"}, pick(ids, 0, 1, 3, 4, 5)},
		{"a type that did not happen", EventsRequest{CustomerID: "cus_a", Types: "program.created"}, nil},
		{"the operator's, one type", EventsRequest{Types: "tier.quota.warning"}, pick(ids, 1, 2, 4)},
	} {
		got, cursor := feed(t, s, c.r)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		// An empty page too has moved the cursor to the end.
		if page, err := s.Events(t.Context(), EventsRequest{CustomerID: c.r.CustomerID, After: cursor}); err != nil || len(page.Data) != 0 {
			t.Errorf("%s: after the end: %+v, %v", c.name, page, err)
		}
	}
	for _, r := range []EventsRequest{
		{Limit: -1}, {Limit: 101}, {Types: "program.deleted"}, {Types: "webhook.test"}, {Types: "program.created,"}, {After: "?"}, {After: "AAAA"},
		{After: base64.RawURLEncoding.EncodeToString([]byte("x:-1:0"))}, {After: base64.RawURLEncoding.EncodeToString([]byte("x:y:0"))},
		{After: base64.RawURLEncoding.EncodeToString([]byte("x:1:y"))}, {After: base64.RawURLEncoding.EncodeToString([]byte("x:1"))},
	} {
		if _, err := s.Events(t.Context(), r); store.CodeOf(err) != store.CodeInvalid {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func TestAnEventAsItIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.DB.Location = time.FixedZone("JST", 9*60*60)
		customer(t, s, "cus_a")
		customer(t, s, "cus_b")
		ids := publish(t, s, updated("UNI-<1>", Attributes{"unified_id": {"UNI-<1>"}}), warning("cus_a"))
		exec(t, s.DB, `UPDATE outbox_events SET correlation_id = 'op_1' WHERE seq = 2`)
		want := []string{
			`{"event_id":"` + ids[0] + `","event_type":"program.updated","created_at":"2000-01-01T09:00:00+09:00","occurred_at":"2000-01-01T00:00:00Z","customer_id":null,` +
				`"subject":{"type":"program","id":"UNI-<1>"},"schema_version":"1","correlation_id":null,` +
				`"data":{"unified_id":"UNI-<1>","changed_fields":["primary_name"],"previous_checksum":"a","current_checksum":"b"}}`,
			`{"event_id":"` + ids[1] + `","event_type":"tier.quota.warning","created_at":"2000-01-01T09:00:00+09:00","occurred_at":"2000-01-01T00:00:00Z","customer_id":"cus_a",` +
				`"subject":{"type":"customer","id":"cus_a"},"schema_version":"1","correlation_id":"op_1",` +
				`"data":{"customer_id":"cus_a","tier":"paid","usage_today":80,"limit":100,"resets_at":"2026-05-15T00:00:00+09:00"}}`,
		}
		page, err := s.Events(t.Context(), EventsRequest{CustomerID: "cus_a"})
		if err != nil || len(page.Data) != 2 {
			t.Fatalf("%+v, %v", page, err)
		}
		for i, id := range ids {
			listed, _ := marshal(page.Data[i])
			e, err := s.Event(t.Context(), EventRequest{"cus_a", id})
			single, _ := marshal(e)
			if err != nil || string(listed) != want[i] || string(single) != want[i] {
				t.Errorf("listed %s\nalone  %s, %v\nwant   %s", listed, single, err, want[i])
			}
			if _, err := s.Event(t.Context(), EventRequest{"", id}); err != nil {
				t.Errorf("the operator: %v", err)
			}
		}
		_, err = s.Event(t.Context(), EventRequest{"cus_b", ids[1]})
		wantCode(t, err, store.CodeNotFound, ids[1])
		_, err = s.Event(t.Context(), EventRequest{"cus_b", "evt_none"})
		wantCode(t, err, store.CodeNotFound, "evt_none")
	})
}

// expire lets retention delete published events, by their places from 1.
func expire(t testing.TB, s *Service, seqs ...int) {
	t.Helper()
	for _, seq := range seqs {
		exec(t, s.DB, `UPDATE outbox_events SET created_at_ms = 0, published_at_ms = 0 WHERE seq = $1`, seq)
	}
	r := retention{events: day}
	write(t, s.DB, func(tx *store.Tx) error { _, _, err := r.deleteEvents(tx); return err })
}

// cursorAfter is the cursor of a page that ends with the event at a place.
func cursorAfter(t testing.TB, s *Service, customer string, place int) string {
	t.Helper()
	for r := (EventsRequest{CustomerID: customer, Limit: 1}); ; {
		page, err := s.Events(t.Context(), r)
		if err != nil || len(page.Data) == 0 || page.Data[0].seq > int64(place) {
			t.Fatalf("no page ends at %d: %+v, %v", place, page, err)
		}
		if page.Data[0].seq == int64(place) {
			return page.NextCursor
		}
		r.After = page.NextCursor
	}
}

func TestCursorsEnd(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	_, first := feed(t, s, EventsRequest{CustomerID: "cus_a"})
	// 1 2 3 are for all, 4 is a's, 5 b's, 6 for all.
	ids := publish(t, s, updated("UNI-1", nil), updated("UNI-2", nil), updated("UNI-3", nil), warning("cus_a"), warning("cus_b"), updated("UNI-6", nil))
	after := map[int]string{0: first}
	for _, place := range []int{1, 2, 3, 4, 6} {
		after[place] = cursorAfter(t, s, "cus_a", place)
	}
	want := func(name, who, cursor string, events ...int) {
		t.Helper()
		page, err := s.Events(t.Context(), EventsRequest{CustomerID: who, After: cursor})
		var got, want []string
		for _, e := range page.Data {
			got = append(got, e.EventID)
		}
		for _, place := range events {
			want = append(want, ids[place-1])
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, want events %v", name, got, err, events)
		}
	}
	gone := func(name, who, cursor string, events ...int) {
		t.Helper()
		_, err := s.Events(t.Context(), EventsRequest{CustomerID: who, After: cursor})
		wantCode(t, err, store.CodeGone, "the oldest available is ")
		if err != nil {
			_, oldest, _ := strings.Cut(err.Error(), "the oldest available is ")
			want(name+", from the oldest", who, oldest, events...)
		}
	}

	expire(t, s, 1, 3) // 2 is kept, as if a delivery of it were pending
	gone("the start", "cus_a", after[0], 2, 4, 6)
	gone("after 1", "cus_a", after[1], 2, 4, 6) // it has lost 3
	gone("after 2", "cus_a", after[2], 2, 4, 6)
	want("after 3", "cus_a", after[3], 4, 6)
	want("the oldest on", "cus_a", "", 2, 4, 6)
	// Cursors that were given out since then have lost nothing, wherever they are.
	again := cursorAfter(t, s, "cus_a", 2)
	want("after 2, given out later", "cus_a", again, 4, 6)
	_, err := s.Events(t.Context(), EventsRequest{CustomerID: "cus_a", After: after[2], Types: "tier.quota.warning"})
	wantCode(t, err, store.CodeGone, "this cursor has expired") // whatever the types

	// The one that was kept goes, behind the start and before what went first.
	start := mustEvents(t, s, EventsRequest{CustomerID: "cus_a", Limit: 1, Types: "tier.quota.warning"}).NextCursor // after 4
	mid := cursorAfter(t, s, "cus_b", 2)
	expire(t, s, 2)
	want("after 4", "cus_a", start, 6)
	want("after 2", "cus_b", mid, 5, 6)
	gone("after 1, twice gone", "cus_a", after[1], 4, 6)
	want("after 2, given out before it went", "cus_a", again, 4, 6)

	// What others lose is not a loss.
	expire(t, s, 5)
	want("after 4, without b's", "cus_a", after[4], 6)
	gone("b's own", "cus_b", mid, 6)
	gone("the operator's", "", mid, 4, 6)

	// Nothing is left; what comes goes on.
	expire(t, s, 4, 6)
	want("the end", "cus_a", after[6])
	gone("after 4, empty", "cus_a", after[4])
	_, empty := feed(t, s, EventsRequest{CustomerID: "cus_b"})
	ids = append(ids, publish(t, s, updated("UNI-7", nil))...)
	want("from the end", "cus_a", after[6], 7)
	want("from the start of an empty feed", "cus_b", empty, 7)
	if n := number(t, s.DB, `SELECT COUNT(*) FROM feed_deletions`); n != 3 {
		t.Errorf("%d notes of deletions, want one of each customer and one of all", n)
	}

	// A cursor of the future, or of another history of the file.
	for _, cursor := range []string{
		feedCursor(s, "SELECT epoch || ':8:0' FROM control"), feedCursor(s, "SELECT epoch || ':1:99' FROM control"), feedCursor(s, "SELECT 'restored:7:3'"),
	} {
		gone("not of this file", "cus_a", cursor, 7)
	}
	exec(t, s.DB, `UPDATE control SET epoch = 'restored'`)
	gone("restored", "cus_a", after[6], 7)
}

// Whatever is deleted in whatever order, a cursor has expired when and only when
// an event that it could have read was deleted after it was given out.
func TestCursorsEndWithALoss(t *testing.T) {
	type given struct {
		customer, cursor string
		seq              int64
		step             int
	}
	s := newService(t)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	random := rand.New(rand.NewPCG(9, 10))
	owners := map[int64]string{}
	deleted := map[int64]int{} // the step
	var cursors []given
	steps := 120
	if reduced() {
		steps = 40
	}
	for step := 1; step <= steps; step++ {
		if random.IntN(3) > 0 {
			owner := []string{"", "cus_a", "cus_b"}[random.IntN(3)]
			var p Payload = updated("UNI-1", nil)
			if owner != "" {
				p = warning(owner)
			}
			publish(t, s, p)
			owners[number(t, s.DB, `SELECT MAX(seq) FROM outbox_events`)] = owner
		} else if left := lines(t, s.DB, `SELECT seq FROM outbox_events ORDER BY seq LIMIT 4`); len(left) > 0 {
			seq, _ := strconv.Atoi(left[random.IntN(len(left))])
			expire(t, s, seq)
			deleted[int64(seq)] = step
		}
		r := EventsRequest{CustomerID: []string{"", "cus_a", "cus_b"}[random.IntN(3)], Limit: 1 + random.IntN(5)}
		page := mustEvents(t, s, r)
		_, seq, _, err := parseFeedCursor(page.NextCursor)
		if err != nil {
			t.Fatal(err)
		}
		cursors = append(cursors, given{r.CustomerID, page.NextCursor, seq, step})
		for _, c := range cursors {
			lost := false
			for seq, owner := range owners {
				lost = lost || seq > c.seq && deleted[seq] > c.step && (c.customer == "" || owner == "" || owner == c.customer)
			}
			if _, err := s.Events(t.Context(), EventsRequest{CustomerID: c.customer, After: c.cursor}); lost != (store.CodeOf(err) == store.CodeGone) || !lost && err != nil {
				t.Fatalf("step %d: %+v: %v, want a loss %v", step, c, err, lost)
			}
		}
	}
}

func mustEvents(t testing.TB, s *Service, r EventsRequest) EventPage {
	t.Helper()
	page, err := s.Events(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// feedCursor encodes what a query finds.
func feedCursor(s *Service, query string) string {
	var text string
	if err := s.DB.Reader(context.Background()).QueryRow(query).Scan(&text); err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

// The operator's feed with types looks at a bounded number of events, and moves
// on.
func TestTheOperatorsFeedLooksAtABoundedNumber(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	payloads := make([]Payload, lookRows+10)
	for i := range payloads {
		payloads[i] = updated("UNI-1", nil)
	}
	payloads[lookRows] = warning("cus_a")
	ids := publish(t, s, payloads...)
	first := mustEvents(t, s, EventsRequest{Types: "tier.quota.warning"})
	if want := feedCursor(s, fmt.Sprintf("SELECT epoch || ':%d:0' FROM control", lookRows)); len(first.Data) != 0 || first.NextCursor != want {
		t.Errorf("the first page: %+v, want none up to %d", first, lookRows)
	}
	second := mustEvents(t, s, EventsRequest{Types: "tier.quota.warning", After: first.NextCursor})
	if len(second.Data) != 1 || second.Data[0].EventID != ids[lookRows] {
		t.Errorf("the second page: %+v", second)
	}
	if page := mustEvents(t, s, EventsRequest{CustomerID: "cus_a", Types: "tier.quota.warning", Limit: 1}); len(page.Data) != 1 {
		t.Errorf("the customer's page has %d events", len(page.Data))
	}
}

// What a poller has collected is what was committed, in that order, whatever
// the sizes of its pages: with 16 writers at once, some of whose transactions
// are rolled back, no event appears behind a cursor that was given out, none
// twice, and none that was not committed.
func TestTheFeedHasNoGaps(t *testing.T) {
	const writers = 16
	each := 25
	if reduced() {
		each = 10
	}
	s := newService(t)
	for w := range writers {
		customer(t, s, fmt.Sprintf("cus_%d", w))
	}
	var running atomic.Int32
	running.Store(writers)
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			defer running.Add(-1)
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for i := range each {
				if err := writeSome(s, random, fmt.Sprintf("cus_%d", w), i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	pollers := []*poller{
		{condition: `TRUE`}, {types: "tier.quota.warning", condition: `event_type = 'tier.quota.warning'`},
		{customer: "cus_3", condition: `customer_id IS NULL OR customer_id = 'cus_3'`},
		{customer: "cus_3", types: "tier.quota.warning", condition: `customer_id = 'cus_3'`},
		{customer: "cus_4", types: "program.updated,tier.quota.warning,program.created", condition: `customer_id IS NULL OR customer_id = 'cus_4'`},
		{customer: "cus_4", types: "program.created", condition: `FALSE`},
	}
	for i, p := range pollers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(2, uint64(i)))
			if err := p.poll(s, random, func() bool { return running.Load() == 0 }); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := number(t, s.DB, `SELECT COUNT(*) FROM outbox_events WHERE subject_id = 'rolled back'`); n != 0 {
		t.Errorf("%d events of transactions that were rolled back", n)
	}
	for _, p := range pollers {
		if want := lines(t, s.DB, `SELECT event_id FROM outbox_events WHERE `+p.condition+` ORDER BY seq`); !slices.Equal(p.ids, want) {
			t.Errorf("%s's with types %q: collected %d, committed %d, or in another order", p.customer, p.types, len(p.ids), len(want))
		}
	}
}

// writeSome commits one to three events, or rolls them back.
func writeSome(s *Service, random *rand.Rand, customer string, i int) error {
	rollBack := random.IntN(4) == 0
	errRolledBack := errors.New("rolled back")
	err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
		for range 1 + random.IntN(3) {
			var p Payload = updated(fmt.Sprintf("UNI-%s-%d", customer, i), nil)
			if random.IntN(3) == 0 {
				p = warning(customer)
			}
			if rollBack {
				p = updated("rolled back", nil)
			}
			if _, err := s.Outbox.Publish(context.Background(), tx, p); err != nil {
				return err
			}
		}
		if rollBack {
			return errRolledBack
		}
		return nil
	})
	if rollBack && errors.Is(err, errRolledBack) {
		return nil
	}
	return err
}

// poller collects the ids of a feed.
type poller struct {
	customer, types, condition string
	ids                        []string
}

// poll pages until it has seen the end after everything was written.
func (p *poller) poll(s *Service, random *rand.Rand, written func() bool) error {
	r := EventsRequest{CustomerID: p.customer, Types: p.types}
	for {
		over := written()
		r.Limit = 1 + random.IntN(9)
		page, err := s.Events(context.Background(), r)
		if err != nil {
			return err
		}
		for _, e := range page.Data {
			p.ids = append(p.ids, e.EventID)
		}
		if over && page.NextCursor == r.After {
			return nil
		}
		r.After = page.NextCursor
	}
}
