package webhook

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

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
		const first = `{"attempt":1,"started_at":"2000-01-01T09:00:00+09:00","status":503,"duration_ms":30,"error_category":"http_5xx","error_detail":"","blocked_reason":"","response_excerpt":"<no>","remote_addr":"1.1.1.1:443"}`
		const second = `{"attempt":2,"started_at":"2000-01-01T09:01:00+09:00","status":null,"duration_ms":0,"error_category":"dns","error_detail":"the host name does not resolve","blocked_reason":"","response_excerpt":"","remote_addr":""}`
		why := func(blocked string) string {
			return `"matched":{"event_type":"program.updated","attributes":{},"filter":{}},"blocked":` + blocked + `,`
		}
		if got, want := show(), head+`"status":"pending","reason":null,"attempt_count":0,"last_status":null,"last_latency_ms":null,"last_error_category":null,`+
			`"next_attempt_at":"2000-01-01T09:00:00+09:00","created_at":"2000-01-01T09:00:00+09:00","finished_at":null,`+why("null")+`"attempts":[]}`; got != want {
			t.Errorf("new:\ngot  %s\nwant %s", got, want)
		}
		finishWith(t, s, sub.SubscriptionID, Result{StartedAt: time.Now(), Duration: 30 * time.Millisecond, Status: 503, Category: Category5xx, Excerpt: "<no>", RemoteAddr: "1.1.1.1:443"})
		if got, want := show(), head+`"status":"pending","reason":null,"attempt_count":1,"last_status":503,"last_latency_ms":30,"last_error_category":"http_5xx",`+
			`"next_attempt_at":"2000-01-01T09:01:00+09:00","created_at":"2000-01-01T09:00:00+09:00","finished_at":null,`+why(`"the last attempt has failed (http_5xx); the next one waits for its time"`)+`"attempts":[`+first+`]}`; got != want {
			t.Errorf("tried once:\ngot  %s\nwant %s", got, want)
		}
		time.Sleep(time.Minute)
		finishWith(t, s, sub.SubscriptionID, Result{StartedAt: time.Now(), Category: CategoryDNS, Detail: "the host name does not resolve"})
		if got, want := show(), head+`"status":"pending","reason":null,"attempt_count":2,"last_status":null,"last_latency_ms":0,"last_error_category":"dns",`+
			`"next_attempt_at":"2000-01-01T09:06:00+09:00","created_at":"2000-01-01T09:00:00+09:00","finished_at":null,`+why(`"the last attempt has failed (dns); the next one waits for its time"`)+`"attempts":[`+first+`,`+second+`]}`; got != want {
			t.Errorf("tried twice:\ngot  %s\nwant %s", got, want)
		}

		// What was pending when its subscription was disabled is failed, before and
		// after the sweep has written it down.
		seq := subSeq(t, s, sub.SubscriptionID)
		write(t, s.DB, func(tx *store.Tx) error { _, err := disable(tx, seq, ReasonUser); return err })
		disabled := head + `"status":"failed","reason":"the subscription was disabled","attempt_count":2,"last_status":null,"last_latency_ms":0,"last_error_category":"dns",` +
			`"next_attempt_at":null,"created_at":"2000-01-01T09:00:00+09:00","finished_at":"2000-01-01T09:01:00+09:00",` + why(`"the subscription was disabled"`) + `"attempts":[` + first + `,` + second + `]}`
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
