package webhook

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/store"
)

// listTypes are the types of the events of fillList, from the most frequent one
// on. The last never happens.
var listTypes = []Type{TypeProgramUpdated, TypeProgramCreated, TypeTierQuotaWarning, TypeAdoptionPublished}

// fillList writes n events and their deliveries to a subscription, with states
// as weights say, and a few to others. The clock is set back now and then.
func fillList(t testing.TB, s *Service, random *rand.Rand, subs []int64, n int, weights map[Status]int) {
	t.Helper()
	var states []Status
	for _, status := range statuses {
		states = append(states, slices.Repeat([]Status{status}, weights[status])...)
	}
	at := time.Date(2026, 5, 14, 0, 0, 0, 0, time.UTC).UnixMilli()
	write(t, s.DB, func(tx *store.Tx) error {
		moved := totals{}
		for i := range n {
			at += int64(random.IntN(20_000))
			if random.IntN(200) == 0 {
				at -= clockStep.Milliseconds() / 2
			}
			typ, status, sub := listTypes[0], states[random.IntN(len(states))], subs[0]
			switch k := random.IntN(100); {
			case k == 0:
				typ = listTypes[2]
			case k == 1:
				sub = subs[1]
			case k < 30:
				typ = listTypes[1]
			}
			if err := insertFinished(tx, i, sub, typ, status, 1+random.Int64N(2), at); err != nil {
				return err
			}
			moved.move(1, "", status)
		}
		return moved.write(tx)
	})
}

// insertFinished adds an event and its delivery, as they are in a file.
func insertFinished(tx *store.Tx, i int, sub int64, typ Type, status Status, generation, at int64) error {
	var owner any
	if typ == TypeTierQuotaWarning {
		owner = "cus_a"
	}
	event, err := tx.Insert(`
		INSERT INTO outbox_events (event_id, event_type, customer_id, subject_type, subject_id, occurred_at_ms, created_at, created_at_ms, schema_version, attributes, data, published_at_ms)
		VALUES ($1, $2, $3, 'program', 'UNI-1', $4, '', $4, '1', '{}', X'7B7D', $4)`, fmt.Sprintf("evt_%d", i), string(typ), owner, at)
	if err != nil {
		return err
	}
	var next, finished, reason any
	attempts := 0
	switch status {
	case StatusPending:
		next = at + int64(i*7919%100_000)
	case StatusFailed:
		finished, reason = at, reasonFree
	case StatusSuccess, StatusDeadLetter:
		finished, attempts, generation = at, 1, 2
	}
	delivery, err := tx.Insert(`
		INSERT INTO webhook_deliveries (delivery_id, event_seq, sub_seq, generation, envelope, status, reason, attempt_count, next_attempt_at_ms, created_at_ms, finished_at_ms)
		VALUES ($1, $2, $3, $4, 'v1', $5, $6, $7, $8, $9, $10)`, fmt.Sprintf("dlv_%d", i), event, sub, generation, string(status), reason, attempts, next, at, finished)
	if err != nil || attempts == 0 {
		return err
	}
	_, err = tx.Exec(`INSERT INTO webhook_attempts (delivery_seq, attempt, started_at_ms, duration_ms, status) VALUES ($1, 1, $2, 5, 200)`, delivery, at)
	return err
}

// Whatever filters are combined, and whichever index they lead to, the pages
// have each delivery once that a plain query finds, in its order.
func TestListsShowWhatIsThere(t *testing.T) {
	lists := 40
	if reduced() {
		lists = 10
	}
	for name, weights := range map[string]map[Status]int{
		"hardly any failures": {StatusSuccess: 1000, StatusFailed: 2, StatusDeadLetter: 3, StatusPending: 4},
		"many of each":        {StatusSuccess: 1, StatusFailed: 1, StatusDeadLetter: 1, StatusPending: 1},
		"hardly any success":  {StatusSuccess: 1, StatusFailed: 1000, StatusPending: 500},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			customer(t, s, "cus_a")
			subs := []string{subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID, subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID}
			random := rand.New(rand.NewPCG(3, 4))
			fillList(t, s, random, []int64{subSeq(t, s, subs[0]), subSeq(t, s, subs[1])}, 2*lookRows+500, weights)
			// Half of what is pending is of an older generation and not yet swept.
			exec(t, s.DB, `UPDATE webhook_subscriptions SET generation = 2, sweep = 1`)
			for range 2 {
				for range lists {
					checkList(t, s, random, subs)
				}
				for more := true; more; {
					var err error
					if more, err = sweepStep(t.Context(), s.DB); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// checkList makes up a list and compares it with a plain query.
func checkList(t *testing.T, s *Service, random *rand.Rand, subs []string) {
	t.Helper()
	r := DeliveriesRequest{CustomerID: "cus_a", SubscriptionID: subs[random.IntN(2)]}
	if random.IntN(4) == 0 {
		r.CustomerID, r.SubscriptionID = "", ""
	}
	if random.IntN(2) == 0 {
		r.Status = statuses[random.IntN(len(statuses))]
	}
	if random.IntN(2) == 0 {
		r.EventType = listTypes[random.IntN(len(listTypes))]
	}
	if random.IntN(8) == 0 {
		r.EventID = fmt.Sprintf("evt_%d", random.IntN(2*lookRows))
	}
	times := []string{"2020-01-01T00:00:00Z", "2026-05-14T03:00:00Z", "2026-05-14T06:30:00.001Z", "2026-05-14T13:00:00+09:00", "2030-01-01T00:00:00Z"}
	if random.IntN(3) == 0 {
		r.Since = times[random.IntN(len(times))]
	}
	if random.IntN(3) == 0 {
		r.Until = times[random.IntN(len(times))]
	}
	var got []string
	for pages := 0; ; pages++ {
		r.Limit = store.MaxLimit - random.IntN(50)
		page, err := s.Deliveries(t.Context(), r)
		if err != nil || len(page.Data) > r.Limit || pages > 10_000 {
			t.Fatalf("%+v: %d deliveries, page %d, %v", r, len(page.Data), pages, err)
		}
		for _, d := range page.Data {
			got = append(got, d.DeliveryID)
			if r.Status != "" && d.Status != r.Status || r.EventType != "" && d.EventType != r.EventType {
				t.Errorf("%+v: %+v", r, d)
			}
		}
		if page.NextCursor == nil {
			break
		}
		r.Cursor = *page.NextCursor
	}
	since, _ := parseInstant("since", r.Since, 0)
	until, _ := parseInstant("until", r.Until, 1<<60)
	want := lines(t, s.DB, `
		SELECT d.delivery_id FROM webhook_deliveries d JOIN webhook_subscriptions s ON s.sub_seq = d.sub_seq JOIN outbox_events e ON e.seq = d.event_seq
		WHERE $1 IN ('', s.subscription_id) AND $2 IN ('', `+derivedStatus+`) AND $3 IN ('', e.event_type) AND $4 IN ('', e.event_id)
		  AND d.created_at_ms >= $5 AND d.created_at_ms < $6 ORDER BY d.delivery_seq DESC`,
		r.SubscriptionID, string(r.Status), string(r.EventType), r.EventID, since, until)
	if !slices.Equal(got, want) {
		t.Errorf("%+v: %d deliveries, want %d", r, len(got), len(want))
	}
}

// A page looks at lookRows rows and ends there, and says how to go on.
func TestAPageLooksAtABoundedNumber(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	fillList(t, s, rand.New(rand.NewPCG(5, 6)), []int64{subSeq(t, s, sub.SubscriptionID), subSeq(t, s, sub.SubscriptionID)}, lookRows+fewRows+1, map[Status]int{StatusFailed: 1})
	exec(t, s.DB, `UPDATE webhook_subscriptions SET generation = 2`)
	r := DeliveriesRequest{CustomerID: "cus_a", SubscriptionID: sub.SubscriptionID, Status: StatusSuccess}
	page, err := s.Deliveries(t.Context(), r)
	if err != nil || len(page.Data) != 0 || page.Data == nil || page.NextCursor == nil || *page.NextCursor != *store.Cursor(fewRows + 2) {
		t.Fatalf("the first page: %+v, %v", page, err)
	}
	r.Cursor = *page.NextCursor
	if page, err = s.Deliveries(t.Context(), r); err != nil || len(page.Data) != 0 || page.NextCursor != nil {
		t.Errorf("the last page: %+v, %v", page, err)
	}
}

// Each list reads through an index that has what it asks for, in the order of
// the list or few enough to sort; none reads a table from end to end.
func TestListsWalkTheirIndex(t *testing.T) {
	const few, many = 10, fewRows + 50
	for name, c := range map[string]struct {
		weights map[Status]int
		n       int
		change  func(*DeliveriesRequest)
		want    string
	}{
		"all":                  {map[Status]int{StatusSuccess: 1}, many, func(*DeliveriesRequest) {}, "SEARCH d USING INDEX webhook_deliveries_list (sub_seq=? AND delivery_seq>? AND delivery_seq<?)"},
		"dead letters":         {map[Status]int{StatusSuccess: 1}, many, func(r *DeliveriesRequest) { r.Status = StatusDeadLetter }, "SEARCH d USING INDEX webhook_deliveries_ended (sub_seq=? AND status=? AND delivery_seq>? AND delivery_seq<?)"},
		"many dead letters":    {map[Status]int{StatusDeadLetter: 1}, many, func(r *DeliveriesRequest) { r.Status = StatusDeadLetter }, "SEARCH d USING INDEX webhook_deliveries_ended (sub_seq=? AND status=? AND delivery_seq>? AND delivery_seq<?)"},
		"failed ones":          {map[Status]int{StatusSuccess: 1}, many, func(r *DeliveriesRequest) { r.Status = StatusFailed }, "SEARCH d USING INDEX webhook_deliveries_ended (sub_seq=? AND status=? AND delivery_seq>? AND delivery_seq<?)"},
		"successful ones":      {map[Status]int{StatusFailed: 1}, many, func(r *DeliveriesRequest) { r.Status = StatusSuccess }, "SEARCH d USING INDEX webhook_deliveries_list (sub_seq=? AND delivery_seq>? AND delivery_seq<?)"},
		"few pending":          {map[Status]int{StatusPending: 1}, few, func(r *DeliveriesRequest) { r.Status = StatusPending }, "SEARCH d USING INDEX webhook_deliveries_due (sub_seq=?)"},
		"many pending":         {map[Status]int{StatusPending: 1}, 3 * many, func(r *DeliveriesRequest) { r.Status = StatusPending }, "SEARCH d USING INDEX webhook_deliveries_list (sub_seq=? AND delivery_seq>? AND delivery_seq<?)"},
		"an event's":           {map[Status]int{StatusSuccess: 1}, many, func(r *DeliveriesRequest) { r.EventID = "evt_1" }, "SEARCH d USING INDEX sqlite_autoindex_webhook_deliveries_2 (event_seq=? AND sub_seq=?"},
		"a rare type's":        {map[Status]int{StatusSuccess: 1}, many, func(r *DeliveriesRequest) { r.EventType = TypeTierQuotaWarning }, "SEARCH d USING INDEX sqlite_autoindex_webhook_deliveries_2 (event_seq=? AND sub_seq=?"},
		"a frequent type's":    {map[Status]int{StatusSuccess: 1}, 2 * many, func(r *DeliveriesRequest) { r.EventType = TypeProgramUpdated }, "SEARCH d USING INDEX webhook_deliveries_list (sub_seq=? AND delivery_seq>? AND delivery_seq<?)"},
		"dead ones of a type":  {map[Status]int{StatusSuccess: 1}, 2 * many, func(r *DeliveriesRequest) { r.Status, r.EventType = StatusDeadLetter, TypeProgramUpdated }, "SEARCH d USING INDEX webhook_deliveries_ended (sub_seq=? AND status=? AND delivery_seq>? AND delivery_seq<?)"},
		"the operator's":       {map[Status]int{StatusSuccess: 1}, many, func(r *DeliveriesRequest) { r.SubscriptionID = "" }, "SEARCH d USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"},
		"the operator's dead":  {map[Status]int{StatusSuccess: 1}, many, func(r *DeliveriesRequest) { r.SubscriptionID, r.Status = "", StatusDeadLetter }, "SEARCH d USING INDEX webhook_deliveries_ended_all (status=? AND delivery_seq>? AND delivery_seq<?)"},
		"the operator's types": {map[Status]int{StatusSuccess: 1}, many, func(r *DeliveriesRequest) { r.SubscriptionID, r.EventType = "", TypeTierQuotaWarning }, "SEARCH d USING INDEX sqlite_autoindex_webhook_deliveries_2 (event_seq=?"},
		"the operator's event": {map[Status]int{StatusSuccess: 1}, many, func(r *DeliveriesRequest) { r.SubscriptionID, r.EventID = "", "evt_1" }, "SEARCH d USING INDEX sqlite_autoindex_webhook_deliveries_2 (event_seq=?"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			customer(t, s, "cus_a")
			sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID
			seq := subSeq(t, s, sub)
			fillList(t, s, rand.New(rand.NewPCG(7, 8)), []int64{seq, seq}, c.n, c.weights)
			exec(t, s.DB, `UPDATE webhook_subscriptions SET generation = 2, sweep = 1`)
			for more := true; more; {
				var err error
				if more, err = sweepStep(t.Context(), s.DB); err != nil {
					t.Fatal(err)
				}
			}
			l := deliveryList{DeliveriesRequest: DeliveriesRequest{SubscriptionID: sub}, source: everyDelivery}
			c.change(&l.DeliveriesRequest)
			q := s.DB.Reader(t.Context())
			for _, step := range []func() error{l.parse, func() error { return l.findSubscription(q) }, func() error { return l.findSpan(q) }, func() error { return l.choose(q) }} {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			plan := explain(t, s.DB, l.page(), len(l.args()))
			if !strings.Contains(plan, c.want) {
				t.Errorf("the plan has no %q:\n%s", c.want, plan)
			}
			if strings.Contains(plan, "SCAN webhook_deliveries") || strings.Contains(plan, "SCAN outbox_events") || strings.Contains(plan, "SCAN e") {
				t.Errorf("the plan reads everything:\n%s", plan)
			}
			if sorts := strings.Contains(plan, "TEMP B-TREE"); sorts && !strings.Contains(c.want, "event_seq=?") && !strings.Contains(c.want, "_due") {
				t.Errorf("the plan sorts:\n%s", plan)
			}
		})
	}
}
