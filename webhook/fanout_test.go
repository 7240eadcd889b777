package webhook

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"jpintel/store"
	"jpintel/store/storetest"
)

// Each event goes once to each subscription that it matches, and to no other.
func TestFanOutMatches(t *testing.T) {
	s := newService(t)
	for _, id := range []string{"cus_a", "cus_b", "cus_free", "cus_out"} {
		customer(t, s, id)
	}
	nara := Filter{"prefecture": {"奈良県", "京都府"}}
	both := []Type{TypeProgramUpdated, TypeTierQuotaWarning}
	subs := map[string]SubscribeAnswer{
		"a's both types":  subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Events: both}),
		"a's filter":      subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Filter: nara}),
		"a's other type":  subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Events: []Type{TypeProgramCreated}}),
		"a's same again":  subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Events: both}),
		"a's that is off": subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Events: both}),
		"b's, in v2":      subscribe(t, s, SubscribeRequest{CustomerID: "cus_b", Events: both, Envelope: EnvelopeV2}),
		"a free one":      subscribe(t, s, SubscribeRequest{CustomerID: "cus_free", Events: both}),
		"one opted out":   subscribe(t, s, SubscribeRequest{CustomerID: "cus_out", Events: both}),
	}
	off := subSeq(t, s, subs["a's that is off"].SubscriptionID)
	write(t, s.DB, func(tx *store.Tx) error { _, err := disable(tx, off, ReasonUser); return err })
	exec(t, s.DB, `UPDATE customers SET tier = 'free' WHERE customer_id = 'cus_free'`) // the tier alone is enough
	exec(t, s.DB, `UPDATE customers SET opted_out_at_ms = 1 WHERE customer_id = 'cus_out'`)
	ids := publish(t, s,
		updated("in Nara", Attributes{"prefecture": {"大阪府", "奈良県"}}), updated("anywhere", nil), warning("cus_a"), warning("cus_b"),
		updated("in Osaka", Attributes{"prefecture": {"大阪府"}}), warning("cus_free"))
	fanOut(t, s)
	for name, want := range map[string][]int{
		"a's both types": {0, 1, 2, 4}, "a's filter": {0}, "a's other type": nil, "a's same again": {0, 1, 2, 4}, "a's that is off": nil,
		"b's, in v2": {0, 1, 3, 4}, "a free one": nil, "one opted out": nil,
	} {
		var wanted []string
		for _, i := range want {
			wanted = append(wanted, ids[i]+" pending")
		}
		if got := deliveriesOf(t, s, subs[name].SubscriptionID); !slices.Equal(got, wanted) {
			t.Errorf("%s: got %q, want %q", name, got, wanted)
		}
	}
	got := lines(t, s.DB, `
		SELECT DISTINCT s.customer_id, d.envelope, d.generation, d.attempt_count, d.next_attempt_at_ms = d.created_at_ms, substr(d.delivery_id, 1, 4)
		FROM webhook_deliveries d JOIN webhook_subscriptions s ON s.sub_seq = d.sub_seq ORDER BY 1`)
	if want := []string{"cus_a v1 1 0 1 dlv_", "cus_b v2 1 0 1 dlv_"}; !slices.Equal(got, want) {
		t.Errorf("deliveries are %q, want %q", got, want)
	}
	if left := number(t, s.DB, `SELECT COUNT(*) FROM outbox_events WHERE published_at_ms IS NULL`); left != 0 {
		t.Errorf("%d events are unpublished", left)
	}
}

// addSubscriptions adds subscriptions to program.updated, 20 a customer.
func addSubscriptions(t testing.TB, db *store.DB, n int) {
	t.Helper()
	for from := 0; from < n; from += maxSubscriptions {
		id, _ := storetest.Customer(t, db, fmt.Sprintf("many_%d", from), store.TierPaid)
		write(t, db, func(tx *store.Tx) error {
			for range min(maxSubscriptions, n-from) {
				if _, err := tx.Exec(`
					INSERT INTO webhook_subscriptions (subscription_id, customer_id, url, events, envelope, since_seq, created_at_ms)
					VALUES ($1, $2, $3, '["program.updated"]', 'v1', 0, $4)`, tx.NewID("sub"), id, publicURL, tx.NowMS()); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// However much there is, a step is short, and what is left can be done by
// another process: each step here has a fan-out of its own, and the steps in
// between break.
func TestFanOutIsResumed(t *testing.T) {
	for _, c := range []struct {
		name                  string
		subscriptions, events int
		steps                 int
	}{
		{"nobody", 0, 1, 1},
		{"exactly as many as are read at a time", stepSubscriptions, 1, 1},
		{"more than are read at a time", stepSubscriptions + 1, 1, 1},
		{"a step that is full", stepDeliveries, 1, 1},
		{"one event in two steps", stepDeliveries + 1, 1, 2},
		{"many events", 2, 2*stepEvents + 1, 3},
		{"many deliveries", 400, 8, 4}, // the third event is cut in two, and so is the sixth
	} {
		t.Run(c.name, func(t *testing.T) {
			if reduced() && c.subscriptions*c.events > stepSubscriptions {
				t.Skip("takes long")
			}
			s := newService(t)
			addSubscriptions(t, s.DB, c.subscriptions)
			var payloads []Payload
			for range c.events {
				payloads = append(payloads, updated("UNI-1", nil))
			}
			publish(t, s, payloads...)
			woken := map[int64]bool{}
			steps := 0
			for {
				breakStep(t, s)
				before := number(t, s.DB, `SELECT COUNT(*) FROM webhook_deliveries`)
				done, err := newFanout(s.DB).step(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				steps++
				for _, w := range done.works {
					woken[w.subSeq] = true
				}
				if n := number(t, s.DB, `SELECT COUNT(*) FROM webhook_deliveries`) - before; n > stepDeliveries {
					t.Errorf("a step of %d deliveries", n)
				}
				if !done.more {
					break
				}
			}
			if steps != c.steps || len(woken) != c.subscriptions {
				t.Errorf("%d steps for %d subscriptions, want %d", steps, len(woken), c.steps)
			}
			wantAllPairs(t, s, c.subscriptions, c.events)

			// From the beginning once more: nothing is added.
			exec(t, s.DB, `UPDATE outbox_events SET fanout_cursor = 0, published_at_ms = NULL`)
			fanOut(t, s)
			wantAllPairs(t, s, c.subscriptions, c.events)
		})
	}
}

// breakStep runs a step that fails at its end, and checks that it has left
// nothing.
func breakStep(t *testing.T, s *Service) {
	t.Helper()
	state := func() []string {
		return lines(t, s.DB, `SELECT COUNT(*), SUM(fanout_cursor), COUNT(published_at_ms), (SELECT COUNT(*) FROM webhook_deliveries), (SELECT SUM(deliveries) FROM webhook_totals) FROM outbox_events`)
	}
	before := state()
	exec(t, s.DB, `CREATE TRIGGER broken BEFORE UPDATE OF deliveries ON webhook_totals BEGIN SELECT RAISE(ABORT, 'boom'); END`)
	exec(t, s.DB, `CREATE TRIGGER broken_too BEFORE UPDATE OF published_at_ms ON outbox_events BEGIN SELECT RAISE(ABORT, 'boom'); END`)
	_, err := newFanout(s.DB).step(t.Context())
	exec(t, s.DB, `DROP TRIGGER broken`)
	exec(t, s.DB, `DROP TRIGGER broken_too`)
	unpublished := number(t, s.DB, `SELECT COUNT(*) FROM outbox_events WHERE published_at_ms IS NULL`)
	if got := state(); !slices.Equal(got, before) || (err != nil) != (unpublished > 0) || err != nil && !strings.Contains(err.Error(), "boom") {
		t.Errorf("a step that failed (%v) left %q, before %q", err, got, before)
	}
}

func wantAllPairs(t *testing.T, s *Service, subscriptions, events int) {
	t.Helper()
	got := lines(t, s.DB, `SELECT COUNT(*), COUNT(DISTINCT sub_seq), COUNT(DISTINCT event_seq) FROM webhook_deliveries`)
	want := []string{fmt.Sprint(subscriptions*events, subscriptions, min(events, subscriptions*events))}
	if !slices.Equal(got, want) {
		t.Errorf("deliveries, subscriptions, events: %q, want %q", got, want)
	}
}

// Events for one customer stand between those for all, and each keeps its way.
func TestFanOutOfMixedEvents(t *testing.T) {
	others := stepDeliveries + 1 // more than a step
	if reduced() {
		others = 3
	}
	s := newService(t)
	addSubscriptions(t, s.DB, others)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Events: []Type{TypeProgramUpdated, TypeTierQuotaWarning}})
	ids := publish(t, s, updated("UNI-1", nil), warning("cus_a"), updated("UNI-2", nil), warning("cus_a"), warning("many_0"))
	fanOut(t, s)
	want := []string{ids[0] + " pending", ids[1] + " pending", ids[2] + " pending", ids[3] + " pending"}
	if got := deliveriesOf(t, s, sub.SubscriptionID); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := number(t, s.DB, `SELECT COUNT(*) FROM webhook_deliveries`); n != int64(2*others+4) {
		t.Errorf("%d deliveries", n)
	}
}

// What a subscription lets through is parsed once, and again when it changes.
func TestFanOutSeesChanges(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	f := newFanout(s.DB)
	for _, c := range []struct {
		events, filter string
		want           int
	}{
		{`["program.updated"]`, `{}`, 1},
		{`["program.updated"]`, `{}`, 1},
		{`["program.updated"]`, `{"unified_id":["UNI-2"]}`, 0},
		{`["program.updated"]`, `{"unified_id":["UNI-1"]}`, 1},
		{`["program.created"]`, `{"unified_id":["UNI-1"]}`, 0},
	} {
		exec(t, s.DB, `UPDATE webhook_subscriptions SET events = $1, filter = $2`, c.events, c.filter)
		publish(t, s, updated("UNI-1", Attributes{"unified_id": {"UNI-1"}}))
		done, err := f.step(t.Context())
		if err != nil || len(done.works) != c.want {
			t.Errorf("%s, %s: %d deliveries, %v", c.events, c.filter, len(done.works), err)
		}
	}
	if got := len(deliveriesOf(t, s, sub.SubscriptionID)); got != 3 {
		t.Errorf("%d deliveries", got)
	}
}

// One event that nobody can read must not be passed over in silence.
func TestFanOutOfUnreadableRows(t *testing.T) {
	for what, broken := range map[string]string{
		"event 1: attributes":    `UPDATE outbox_events SET attributes = '['`,
		"subscription 1: events": `UPDATE webhook_subscriptions SET events = '['`,
		"subscription 1: filter": `UPDATE webhook_subscriptions SET filter = '['`,
	} {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		publish(t, s, updated("UNI-1", nil))
		exec(t, s.DB, broken)
		done, err := newFanout(s.DB).step(t.Context())
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %+v, %v", what, done, err)
		}
		if got := deliveriesOf(t, s, sub.SubscriptionID); !reflect.DeepEqual(got, []string{}) {
			t.Errorf("%s: delivered %q", what, got)
		}
	}
}
