package webhook

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

func TestUnsubscribe(t *testing.T) {
	s := newService(t)
	var changed []int64
	s.Changed = func(sub int64) { changed = append(changed, sub) }
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	kept := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	publish(t, s, updated("UNI-1", nil))
	fanOut(t, s)
	for range 2 {
		if _, err := s.Unsubscribe(t.Context(), SubscriptionRequest{"cus_b", sub.SubscriptionID}); store.CodeOf(err) != store.CodeNotFound {
			t.Errorf("another customer's: %v", err)
		}
		answer, err := s.Unsubscribe(t.Context(), SubscriptionRequest{"cus_a", sub.SubscriptionID})
		if err != nil || answer.HTTPStatus() != 204 {
			t.Fatal(err)
		}
	}
	if want := []string{"1 user 2 1", "0 - 1 0"}; !slices.Equal(lines(t, s.DB, `
		SELECT disabled_at_ms IS NOT NULL AND deleted_at_ms = disabled_at_ms, disabled_reason, generation, sweep FROM webhook_subscriptions ORDER BY sub_seq`), want) {
		t.Errorf("want %q", want)
	}
	if len(changed) == 0 || changed[0] != subSeq(t, s, sub.SubscriptionID) || slices.Contains(changed, subSeq(t, s, kept.SubscriptionID)) {
		t.Errorf("changed: %v", changed)
	}
	_, err := s.Subscription(t.Context(), SubscriptionRequest{"cus_a", sub.SubscriptionID})
	wantCode(t, err, store.CodeNotFound, sub.SubscriptionID)
	page, err := s.Subscriptions(t.Context(), SubscriptionsRequest{CustomerID: "cus_a"})
	if err != nil || len(page.Data) != 1 || page.Data[0].SubscriptionID != kept.SubscriptionID {
		t.Errorf("listed %+v, %v", page, err)
	}
	publish(t, s, updated("UNI-2", nil))
	fanOut(t, s)
	if got := deliveriesOf(t, s, sub.SubscriptionID); len(got) != 1 {
		t.Errorf("deliveries of what is deleted: %q", got)
	}
	_, err = s.Unsubscribe(t.Context(), SubscriptionRequest{"cus_a", "sub_none"})
	wantCode(t, err, store.CodeNotFound, "sub_none")
}

// Another customer's subscription is as one that does not exist.
func TestForeignSubscriptions(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	_, foreign := s.Subscription(t.Context(), SubscriptionRequest{"cus_b", sub.SubscriptionID})
	_, missing := s.Subscription(t.Context(), SubscriptionRequest{"cus_b", "sub_none"})
	if got := strings.ReplaceAll(fmt.Sprint(foreign), sub.SubscriptionID, "sub_none"); store.CodeOf(foreign) != store.CodeNotFound || got != missing.Error() {
		t.Errorf("another's: %v, missing: %v", foreign, missing)
	}
	page, err := s.Subscriptions(t.Context(), SubscriptionsRequest{CustomerID: "cus_b"})
	if err != nil || len(page.Data) != 0 {
		t.Errorf("another's are listed: %+v, %v", page, err)
	}
	if _, err := s.Subscription(t.Context(), SubscriptionRequest{"", sub.SubscriptionID}); err != nil {
		t.Errorf("the operator: %v", err)
	}
}

func TestSubscriptionsArePaged(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	var want []string
	for range 5 {
		want = append([]string{subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID}, want...)
		subscribe(t, s, SubscribeRequest{CustomerID: "cus_b"})
	}
	var got []string
	r := SubscriptionsRequest{CustomerID: "cus_a", PageRequest: store.PageRequest{Limit: 2}}
	for {
		page, err := s.Subscriptions(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, sub := range page.Data {
			got = append(got, sub.SubscriptionID)
		}
		if page.NextCursor == nil {
			break
		}
		r.Cursor = *page.NextCursor
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q, newest first", got, want)
	}
	all, err := s.Subscriptions(t.Context(), SubscriptionsRequest{})
	if err != nil || len(all.Data) != 10 {
		t.Errorf("the operator sees %d, %v", len(all.Data), err)
	}
	for _, bad := range []store.PageRequest{{Limit: -1}, {Limit: 101}, {Cursor: "?"}} {
		_, err := s.Subscriptions(t.Context(), SubscriptionsRequest{CustomerID: "cus_a", PageRequest: bad})
		if store.CodeOf(err) != store.CodeInvalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// The last hour's rate is summed from buckets; older ones do not count.
func TestSuccessRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		now := time.Now()
		for _, b := range []struct {
			age        time.Duration
			ok, failed int
		}{{0, 2, 1}, {55 * time.Minute, 1, 0}, {time.Hour, 0, 100}} {
			exec(t, s.DB, `INSERT INTO webhook_rates VALUES ($1, $2, $3, $4)`, subSeq(t, s, sub.SubscriptionID), now.Add(-b.age).UnixMilli(), b.ok, b.failed)
		}
		got, err := s.Subscription(t.Context(), SubscriptionRequest{"cus_a", sub.SubscriptionID})
		if err != nil || got.SuccessRateHour == nil || *got.SuccessRateHour != 0.75 {
			t.Errorf("got %v, %v; want 3 of 4", got.SuccessRateHour, err)
		}
	})
}

func TestSetTier(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	active := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	paused := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	deleted := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	subscribe(t, s, SubscribeRequest{CustomerID: "cus_b"})
	write(t, s.DB, func(tx *store.Tx) error {
		_, err := disable(tx, subSeq(t, s, paused.SubscriptionID), ReasonUser)
		return err
	})
	exec(t, s.DB, `UPDATE webhook_subscriptions SET failures_streak = 7, last_dns = 1, probation = 0`)
	setTier := func(tier store.Tier) {
		t.Helper()
		write(t, s.DB, func(tx *store.Tx) error { return SetTier(tx, "cus_a", tier) })
	}
	states := func() []string {
		return lines(t, s.DB, `SELECT COALESCE(disabled_reason, 'active'), generation, failures_streak, last_dns, probation FROM webhook_subscriptions ORDER BY sub_seq`)
	}
	for range 2 { // again changes nothing
		setTier(store.TierFree)
		if want := []string{"tier 2 7 1 0", "user 2 7 1 0", "tier 2 7 1 0", "active 1 7 1 0"}; !slices.Equal(states(), want) {
			t.Errorf("free: %q, want %q", states(), want)
		}
	}
	if _, err := s.Unsubscribe(t.Context(), SubscriptionRequest{"cus_a", deleted.SubscriptionID}); err != nil {
		t.Fatal(err)
	}
	publish(t, s, updated("UNI-1", nil))
	for range 2 {
		setTier(store.TierPaid)
		if want := []string{"active 2 0 0 1", "user 2 7 1 0", "user 2 7 1 0", "active 1 7 1 0"}; !slices.Equal(states(), want) {
			t.Errorf("paid again: %q, want %q", states(), want)
		}
	}
	later := publish(t, s, updated("UNI-2", nil))
	fanOut(t, s)
	if got, want := deliveriesOf(t, s, active.SubscriptionID), []string{later[0] + " pending"}; !slices.Equal(got, want) {
		t.Errorf("delivered %q, want %q: not what came while it was on the free tier", got, want)
	}
	err := s.DB.Write(t.Context(), func(tx *store.Tx) error { return SetTier(tx, "cus_a", "gold") })
	wantCode(t, err, store.CodeInvalid, "tier")
	err = s.DB.Write(t.Context(), func(tx *store.Tx) error { return SetTier(tx, "cus_c", store.TierFree) })
	wantCode(t, err, store.CodeNotFound, "cus_c")
}
