package webhook

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// claimAll claims what is due of a subscription.
func claimAll(t testing.TB, s *Service, subscriptionID string) []*work {
	t.Helper()
	found, err := claim(context.Background(), s.DB, subSeq(t, s, subscriptionID), time.Now(), 1000, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	var all []*work
	for i := range found.due {
		all = append(all, &found.due[i])
	}
	return all
}

func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		seq := subSeq(t, s, sub.SubscriptionID)
		ids := publish(t, s, updated("0", nil), updated("1", nil), updated("2", nil), updated("3", nil), updated("4", nil), updated("5", nil))
		fanOut(t, s)
		// Due in the order 2, 1, 0, 3; 4 is due later, 5 is finished.
		start := time.Now().UnixMilli()
		for i, due := range map[int]int64{0: 30, 1: 20, 2: 10, 3: 30, 4: 31} {
			exec(t, s.DB, `UPDATE webhook_deliveries SET next_attempt_at_ms = $1 WHERE event_seq = $2`, start+due, i+1)
		}
		exec(t, s.DB, `UPDATE webhook_deliveries SET status = 'failed', reason = 'x', next_attempt_at_ms = NULL, finished_at_ms = 1 WHERE event_seq = 6`)
		exec(t, s.DB, `UPDATE webhook_totals SET deliveries = CASE status WHEN 'pending' THEN 5 WHEN 'failed' THEN 1 ELSE 0 END`)
		size := number(t, s.DB, `SELECT length(data) FROM outbox_events WHERE seq = 1`)
		for _, c := range []struct {
			name         string
			after        time.Duration
			limit, bytes int
			want         []int
			next         int64
		}{
			{"before the first", 9 * time.Millisecond, 10, 1 << 20, nil, 10},
			{"the first", 10 * time.Millisecond, 10, 1 << 20, []int{2}, 20},
			{"all that are due", 30 * time.Millisecond, 10, 1 << 20, []int{2, 1, 0, 3}, 31},
			{"two of them", 30 * time.Millisecond, 2, 1 << 20, []int{2, 1}, 30},
			{"as many as fit", 30 * time.Millisecond, 10, int(3*size) + 1, []int{2, 1, 0}, 30},
			{"one at least", 30 * time.Millisecond, 10, 1, []int{2}, 20},
			{"the rest", time.Second, 10, 1 << 20, []int{2, 1, 0, 3, 4}, noneDue - start},
		} {
			found, err := claim(t.Context(), s.DB, seq, time.UnixMilli(start).Add(c.after), c.limit, c.bytes)
			if err != nil {
				t.Fatal(err)
			}
			var got, want []string
			for _, w := range found.due {
				got = append(got, w.event.id)
			}
			for _, i := range c.want {
				want = append(want, ids[i])
			}
			if !slices.Equal(got, want) || found.next != start+c.next || !found.probation {
				t.Errorf("%s: got %q, next %d ms; want %q, %d ms", c.name, got, found.next-start, want, c.next)
			}
		}
	})
}

// What a request is made of, from the row that was committed to the body.
func TestTheRequestOfADelivery(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	v1 := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Events: []Type{TypeTierQuotaWarning}})
	v2 := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Events: []Type{TypeTierQuotaWarning}, Envelope: EnvelopeV2})
	id := publish(t, s, warning("cus_a"))[0]
	fanOut(t, s)
	exec(t, s.DB, `UPDATE webhook_subscriptions SET envelope = 'v1'`) // a change holds for later events
	for sub, version := range map[*SubscribeAnswer]string{&v1: "v1", &v2: "v2"} {
		works := claimAll(t, s, sub.SubscriptionID)
		if len(works) != 1 {
			t.Fatalf("%d deliveries", len(works))
		}
		r := works[0].request()
		delivery := lines(t, s.DB, `SELECT delivery_id FROM webhook_deliveries WHERE sub_seq = $1`, works[0].subSeq)[0]
		if r.URL != publicURL || !slices.Equal(r.Secrets, []string{sub.SigningSecret}) || r.EventID != id || r.EventType != TypeTierQuotaWarning || r.DeliveryID != delivery || r.Attempt != 1 {
			t.Errorf("%s: %+v", version, r)
		}
		var body struct {
			Version        string          `json:"version"`
			EventID        string          `json:"event_id"`
			SubscriptionID string          `json:"subscription_id"`
			Data           json.RawMessage `json:"data"`
		}
		if err := json.Unmarshal(r.Body, &body); err != nil {
			t.Fatal(err)
		}
		stored := lines(t, s.DB, `SELECT data FROM outbox_events`)[0]
		if body.Version != version || body.EventID != id || body.SubscriptionID != sub.SubscriptionID || string(body.Data) != stored {
			t.Errorf("%s: %s", version, r.Body)
		}
	}
}

// An id in a row authorizes nothing.
func TestClaimRefuses(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Events: []Type{TypeProgramUpdated, TypeTierQuotaWarning}})
	publish(t, s, updated("UNI-1", nil), warning("cus_a"))
	fanOut(t, s)
	for _, c := range []struct {
		name, change, undo string
		want               []string // reasons
	}{
		{"as it is", ``, ``, []string{"", ""}},
		{"another customer's event", `UPDATE outbox_events SET customer_id = 'cus_b' WHERE seq = 2`, `UPDATE outbox_events SET customer_id = 'cus_a' WHERE seq = 2`, []string{"", reasonForeign}},
		{"a type that it has no more", `UPDATE webhook_subscriptions SET events = '["program.updated"]'`, `UPDATE webhook_subscriptions SET events = '["program.updated","tier.quota.warning"]'`, []string{"", reasonUnsubscribed}},
		{"the free tier", `UPDATE customers SET tier = 'free'`, `UPDATE customers SET tier = 'paid'`, []string{reasonFree, reasonFree}},
		{"opted out", `UPDATE customers SET opted_out_at_ms = 1`, `UPDATE customers SET opted_out_at_ms = NULL`, []string{reasonOptedOut, reasonOptedOut}},
		{"an older generation", `UPDATE webhook_subscriptions SET generation = 2`, `UPDATE webhook_subscriptions SET generation = 1`, nil},
		{"disabled", `UPDATE webhook_subscriptions SET disabled_at_ms = 1, disabled_reason = 'user'`, `UPDATE webhook_subscriptions SET disabled_at_ms = NULL, disabled_reason = NULL`, nil},
	} {
		if c.change != "" {
			exec(t, s.DB, c.change)
		}
		var got []string
		for _, w := range claimAll(t, s, sub.SubscriptionID) {
			got = append(got, w.refused)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: refused %q, want %q", c.name, got, c.want)
		}
		if c.undo != "" {
			exec(t, s.DB, c.undo)
		}
	}
	if _, err := claim(t.Context(), s.DB, 99, time.Now(), 1, 1); err == nil {
		t.Error("a subscription that there is not")
	}
	exec(t, s.DB, `UPDATE webhook_secrets SET sealed = x'00'`)
	if _, err := claim(t.Context(), s.DB, subSeq(t, s, sub.SubscriptionID), time.Now(), 1, 1); err == nil || !strings.Contains(err.Error(), sub.SubscriptionID) {
		t.Errorf("a secret that does not open: %v", err)
	}
}

// finishWith writes results down for what is due of a subscription, in order.
func finishWith(t testing.TB, s *Service, subscriptionID string, results ...Result) {
	t.Helper()
	f := newTestFinisher(s, nil)
	var batch []finished
	for i, w := range claimAll(t, s, subscriptionID) {
		if i < len(results) {
			batch = append(batch, finished{w, results[i]})
		}
	}
	if err := f.commit(batch); err != nil {
		t.Fatal(err)
	}
}

func TestDeliveriesAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.DB.Location = time.FixedZone("JST", 9*60*60)
		customer(t, s, "cus_a")
		customer(t, s, "cus_b")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Events: []Type{TypeProgramUpdated, TypeTierQuotaWarning}})
		other := subscribe(t, s, SubscribeRequest{CustomerID: "cus_b"})
		ids := publish(t, s, updated("UNI-1", nil), warning("cus_a"))
		fanOut(t, s)
		time.Sleep(time.Hour)
		ids = append(ids, publish(t, s, updated("UNI-2", nil), updated("UNI-3", nil))...)
		fanOut(t, s)
		at := time.Now()
		finishWith(t, s, sub.SubscriptionID, Result{StartedAt: at, Duration: 30 * time.Millisecond, Status: 204, RemoteAddr: "1.1.1.1:443"},
			Result{StartedAt: at, Duration: 3 * time.Second, Category: CategoryConnectTimeout, Detail: "no connection within 3s"})

		list := func(change func(*DeliveriesRequest)) []string {
			t.Helper()
			r := DeliveriesRequest{CustomerID: "cus_a", SubscriptionID: sub.SubscriptionID, PageRequest: store.PageRequest{Limit: 2}}
			if change != nil {
				change(&r)
			}
			var got []string
			for {
				page, err := s.Deliveries(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range page.Data {
					got = append(got, d.EventID)
				}
				if page.NextCursor == nil {
					return got
				}
				r.Cursor = *page.NextCursor
			}
		}
		for name, c := range map[string]struct {
			change func(*DeliveriesRequest)
			want   []string
		}{
			"all, newest first": {nil, pick(ids, 3, 2, 1, 0)},
			"pending":           {func(r *DeliveriesRequest) { r.Status = StatusPending }, pick(ids, 3, 2, 1)},
			"successful":        {func(r *DeliveriesRequest) { r.Status = StatusSuccess }, pick(ids, 0)},
			"dead":              {func(r *DeliveriesRequest) { r.Status = StatusDeadLetter }, nil},
			"of a type":         {func(r *DeliveriesRequest) { r.EventType = TypeTierQuotaWarning }, pick(ids, 1)},
			"of an event":       {func(r *DeliveriesRequest) { r.EventID = ids[2] }, pick(ids, 2)},
			"since":             {func(r *DeliveriesRequest) { r.Since = "2000-01-01T01:00:00Z" }, pick(ids, 3, 2)},
			"since just after":  {func(r *DeliveriesRequest) { r.Since = "2000-01-01T10:00:01+09:00" }, nil},
			"until":             {func(r *DeliveriesRequest) { r.Until = "2000-01-01T10:00:00+09:00" }, pick(ids, 1, 0)},
			"all of it": {func(r *DeliveriesRequest) {
				r.Status, r.EventType, r.Until = StatusPending, TypeTierQuotaWarning, "2001-01-01T00:00:00Z"
			}, pick(ids, 1)},
			"the operator's": {func(r *DeliveriesRequest) { r.CustomerID, r.SubscriptionID, r.EventID = "", "", ids[3] }, pick(ids, 3, 3)},
			"another's":      {func(r *DeliveriesRequest) { r.CustomerID, r.SubscriptionID = "cus_b", other.SubscriptionID }, pick(ids, 3, 2, 0)},
		} {
			if got := list(c.change); !slices.Equal(got, c.want) {
				t.Errorf("%s: got %q, want %q", name, got, c.want)
			}
		}
		for name, c := range map[string]struct {
			r    DeliveriesRequest
			code store.Code
		}{
			"another's subscription": {DeliveriesRequest{CustomerID: "cus_b", SubscriptionID: sub.SubscriptionID}, store.CodeNotFound},
			"none":                   {DeliveriesRequest{CustomerID: "cus_a", SubscriptionID: "sub_none"}, store.CodeNotFound},
			"an unknown state":       {DeliveriesRequest{CustomerID: "cus_a", SubscriptionID: sub.SubscriptionID, Status: "lost"}, store.CodeInvalid},
			"no time":                {DeliveriesRequest{CustomerID: "cus_a", SubscriptionID: sub.SubscriptionID, Since: "yesterday"}, store.CodeInvalid},
			"a time without a zone":  {DeliveriesRequest{CustomerID: "cus_a", SubscriptionID: sub.SubscriptionID, Until: "2000-01-01T10:00:00"}, store.CodeInvalid},
			"no limit":               {DeliveriesRequest{CustomerID: "cus_a", SubscriptionID: sub.SubscriptionID, PageRequest: store.PageRequest{Limit: 101}}, store.CodeInvalid},
		} {
			if _, err := s.Deliveries(t.Context(), c.r); store.CodeOf(err) != c.code {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestADeliveryAndItsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.DB.Location = time.FixedZone("JST", 9*60*60)
		customer(t, s, "cus_a")
		customer(t, s, "cus_b")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		event := publish(t, s, updated("UNI-1", nil))[0]
		fanOut(t, s)
		id := lines(t, s.DB, `SELECT delivery_id FROM webhook_deliveries`)[0]
		show := func() string {
			t.Helper()
			d, err := s.Delivery(t.Context(), DeliveryRequest{"cus_a", id})
			if err != nil {
				t.Fatal(err)
			}
			text, _ := marshal(d)
			return strings.NewReplacer(id, "dlv_1", sub.SubscriptionID, "sub_1", event, "evt_1").Replace(string(text))
		}
		const head = `{"delivery_id":"dlv_1","subscription_id":"sub_1","event_id":"evt_1","event_type":"program.updated",`
		const first = `{"attempt":1,"started_at":"2000-01-01T09:00:00+09:00","status":503,"duration_ms":30,"error_category":"http_5xx","error_detail":"","response_excerpt":"<no>","remote_addr":"1.1.1.1:443"}`
		const second = `{"attempt":2,"started_at":"2000-01-01T09:01:00+09:00","status":null,"duration_ms":0,"error_category":"dns","error_detail":"the host name does not resolve","response_excerpt":"","remote_addr":""}`
		if got, want := show(), head+`"status":"pending","reason":null,"attempt_count":0,"last_status":null,"last_latency_ms":null,"last_error_category":null,`+
			`"next_attempt_at":"2000-01-01T09:00:00+09:00","created_at":"2000-01-01T09:00:00+09:00","finished_at":null,"attempts":[]}`; got != want {
			t.Errorf("new:\ngot  %s\nwant %s", got, want)
		}
		finishWith(t, s, sub.SubscriptionID, Result{StartedAt: time.Now(), Duration: 30 * time.Millisecond, Status: 503, Category: Category5xx, Excerpt: "<no>", RemoteAddr: "1.1.1.1:443"})
		if got, want := show(), head+`"status":"pending","reason":null,"attempt_count":1,"last_status":503,"last_latency_ms":30,"last_error_category":"http_5xx",`+
			`"next_attempt_at":"2000-01-01T09:01:00+09:00","created_at":"2000-01-01T09:00:00+09:00","finished_at":null,"attempts":[`+first+`]}`; got != want {
			t.Errorf("tried once:\ngot  %s\nwant %s", got, want)
		}
		time.Sleep(time.Minute)
		finishWith(t, s, sub.SubscriptionID, Result{StartedAt: time.Now(), Category: CategoryDNS, Detail: "the host name does not resolve"})
		if got, want := show(), head+`"status":"pending","reason":null,"attempt_count":2,"last_status":null,"last_latency_ms":0,"last_error_category":"dns",`+
			`"next_attempt_at":"2000-01-01T09:06:00+09:00","created_at":"2000-01-01T09:00:00+09:00","finished_at":null,"attempts":[`+first+`,`+second+`]}`; got != want {
			t.Errorf("tried twice:\ngot  %s\nwant %s", got, want)
		}

		// What was pending when its subscription was disabled is failed, before and
		// after the sweep has written it down.
		seq := subSeq(t, s, sub.SubscriptionID)
		write(t, s.DB, func(tx *store.Tx) error { _, err := disable(tx, seq, ReasonUser); return err })
		disabled := head + `"status":"failed","reason":"the subscription was disabled","attempt_count":2,"last_status":null,"last_latency_ms":0,"last_error_category":"dns",` +
			`"next_attempt_at":null,"created_at":"2000-01-01T09:00:00+09:00","finished_at":"2000-01-01T09:01:00+09:00","attempts":[` + first + `,` + second + `]}`
		for range 2 {
			if got := show(); got != disabled {
				t.Errorf("disabled:\ngot  %s\nwant %s", got, disabled)
			}
			for status, want := range map[Status]int{StatusFailed: 1, StatusPending: 0} {
				page, err := s.Deliveries(t.Context(), DeliveriesRequest{CustomerID: "cus_a", SubscriptionID: sub.SubscriptionID, Status: status})
				if err != nil || len(page.Data) != want {
					t.Errorf("%s: %+v, %v", status, page, err)
				}
			}
			if _, err := sweepStep(t.Context(), s.DB); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range []DeliveryRequest{{"cus_b", id}, {"cus_a", "dlv_none"}} {
			_, err := s.Delivery(t.Context(), r)
			wantCode(t, err, store.CodeNotFound, r.DeliveryID)
		}
		if _, err := s.Delivery(t.Context(), DeliveryRequest{"", id}); err != nil {
			t.Errorf("the operator: %v", err)
		}
	})
}
