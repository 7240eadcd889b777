package webhook

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
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
		{After: base64.RawURLEncoding.EncodeToString([]byte("x:-1"))}, {After: base64.RawURLEncoding.EncodeToString([]byte("x:y"))},
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

func TestCursorsEnd(t *testing.T) {
	s := newService(t)
	_, first := feed(t, s, EventsRequest{})
	ids := publish(t, s, updated("UNI-1", nil), updated("UNI-2", nil), updated("UNI-3", nil), updated("UNI-4", nil))
	var cursors []string // [i]: after event i
	for after := first; len(cursors) < len(ids); {
		page, err := s.Events(t.Context(), EventsRequest{After: after, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		after = page.NextCursor
		cursors = append(cursors, after)
	}
	exec(t, s.DB, `DELETE FROM outbox_events WHERE seq <= 2`)
	oldest := "the oldest available is " + cursors[1]
	for i, cursor := range append([]string{first}, cursors...) {
		page, err := s.Events(t.Context(), EventsRequest{After: cursor})
		if i < 2 {
			wantCode(t, err, store.CodeGone, oldest)
		} else if err != nil || len(page.Data) != 4-i {
			t.Errorf("after %d: %+v, %v", i, page, err)
		}
	}
	if got, _ := feed(t, s, EventsRequest{}); !slices.Equal(got, ids[2:]) {
		t.Errorf("without a cursor: %q, want from the oldest on", got)
	}

	// A cursor of the future, or of another history of the file.
	text, err := base64.RawURLEncoding.DecodeString(cursors[3])
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Events(t.Context(), EventsRequest{After: base64.RawURLEncoding.EncodeToString(append(text, '0'))})
	wantCode(t, err, store.CodeGone, oldest)
	exec(t, s.DB, `UPDATE control SET epoch = 'restored'`)
	_, err = s.Events(t.Context(), EventsRequest{After: cursors[3]})
	wantCode(t, err, store.CodeGone, "this cursor has expired")
	message := err.Error()
	page, err := s.Events(t.Context(), EventsRequest{After: message[strings.LastIndex(message, " ")+1:]})
	if err != nil || len(page.Data) != 2 {
		t.Errorf("from the cursor that the message gives: %+v, %v", page, err)
	}
}

// Where every event has expired, a cursor still stands where it stood: one that
// is up to date misses nothing of what comes, and an older one has expired.
func TestCursorsOfAnEmptyFeed(t *testing.T) {
	s := newService(t)
	if _, cursor := feed(t, s, EventsRequest{}); cursor == "" {
		t.Error("no cursor of a new file")
	}
	publish(t, s, updated("UNI-1", nil))
	_, behind := feed(t, s, EventsRequest{})
	publish(t, s, updated("UNI-2", nil))
	exec(t, s.DB, `DELETE FROM outbox_events`)
	got, upToDate := feed(t, s, EventsRequest{})
	if len(got) != 0 {
		t.Errorf("an empty feed has %q", got)
	}
	_, err := s.Events(t.Context(), EventsRequest{After: behind})
	wantCode(t, err, store.CodeGone, "the oldest available is "+upToDate)
	ids := publish(t, s, updated("UNI-3", nil))
	if got, _ := feed(t, s, EventsRequest{After: upToDate}); !slices.Equal(got, ids) {
		t.Errorf("after the last cursor of an empty feed: %q, want %q", got, ids)
	}
}

// However many write at once, no event appears behind a cursor that was given
// out: what a poller has collected is what was committed, in that order.
func TestTheFeedHasNoGaps(t *testing.T) {
	writers, each := 8, 25
	if reduced() {
		each = 10
	}
	s := newService(t)
	for w := range writers {
		customer(t, s, fmt.Sprintf("cus_%d", w))
	}
	var running atomic.Int32
	running.Store(int32(writers))
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			defer running.Add(-1)
			for i := range each {
				var p Payload = updated(fmt.Sprintf("UNI-%d-%d", w, i), nil)
				if i%3 == 0 {
					p = warning(fmt.Sprintf("cus_%d", w))
				}
				publish(t, s, p)
			}
		})
	}
	var mu sync.Mutex
	got := map[string][]string{}
	for _, who := range []string{"", "cus_3"} {
		all.Go(func() {
			var ids []string
			r := EventsRequest{CustomerID: who, Limit: 7}
			for {
				over := running.Load() == 0
				page, err := s.Events(context.Background(), r)
				if err != nil {
					t.Error(err)
					return
				}
				for _, e := range page.Data {
					ids = append(ids, e.EventID)
				}
				if over && len(page.Data) == 0 {
					break
				}
				r.After = page.NextCursor
			}
			mu.Lock()
			got[who] = ids
			mu.Unlock()
		})
	}
	all.Wait()
	if want := lines(t, s.DB, `SELECT event_id FROM outbox_events ORDER BY seq`); !slices.Equal(got[""], want) || len(want) != writers*each {
		t.Errorf("collected %d, committed %d, or in another order", len(got[""]), len(want))
	}
	if want := lines(t, s.DB, `SELECT event_id FROM outbox_events WHERE customer_id IS NULL OR customer_id = 'cus_3' ORDER BY seq`); !slices.Equal(got["cus_3"], want) {
		t.Errorf("one customer's: collected %d, committed %d, or in another order", len(got["cus_3"]), len(want))
	}
}
