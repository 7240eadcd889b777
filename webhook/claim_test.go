package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"reflect"
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
	found, err := claimFor(context.Background(), s.DB, subSeq(t, s, subscriptionID), time.Now(), 1000, 1<<30)
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
			found, err := claimFor(t.Context(), s.DB, seq, time.UnixMilli(start).Add(c.after), c.limit, c.bytes)
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
			if !slices.Equal(got, want) || found.next != start+c.next {
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
	if _, err := claimFor(t.Context(), s.DB, 99, time.Now(), 1, 1); err == nil {
		t.Error("a subscription that there is not")
	}
	exec(t, s.DB, `UPDATE webhook_secrets SET sealed = x'00'`)
	if _, err := claimFor(t.Context(), s.DB, subSeq(t, s, sub.SubscriptionID), time.Now(), 1, 1); err == nil || !strings.Contains(err.Error(), sub.SubscriptionID) {
		t.Errorf("a secret that does not open: %v", err)
	}
}

func TestSecretsAreSealed(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	a, b := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}), subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	var file []byte
	for _, side := range []string{"", "-wal"} {
		content, err := os.ReadFile(s.DB.Path() + side)
		if err != nil {
			t.Fatal(err)
		}
		file = append(file, content...)
	}
	if !bytes.Contains(file, []byte(a.SubscriptionID)) || !bytes.Contains(file, s.DB.Keys.Hash(a.SigningSecret)) {
		t.Fatal("these are not the bytes of the file")
	}
	for _, secret := range []string{a.SigningSecret, b.SigningSecret} {
		if bytes.Contains(file, []byte(strings.TrimPrefix(secret, secretPrefix))) {
			t.Error("a secret is in the file")
		}
	}
	read := func(of, id string, at time.Time) ([]string, error) {
		return readSecrets(s.DB.Reader(t.Context()), s.DB.Keys, subSeq(t, s, of), id, at)
	}
	now := time.Now()
	if got, err := read(a.SubscriptionID, a.SubscriptionID, now); err != nil || !slices.Equal(got, []string{a.SigningSecret}) {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := read(a.SubscriptionID, b.SubscriptionID, now); err == nil || strings.Contains(err.Error(), "whsec_") {
		t.Errorf("a secret opens in another's place: %q, %v", got, err)
	}
	// A replaced secret signs until its end, after the newest.
	exec(t, s.DB, `UPDATE webhook_secrets SET expires_at_ms = $1`, now.UnixMilli())
	sub := &Subscription{SubscriptionID: a.SubscriptionID, seq: subSeq(t, s, a.SubscriptionID)}
	write(t, s.DB, func(tx *store.Tx) error { return addSecret(tx, sub, 2, secretA) })
	for at, want := range map[time.Time][]string{now.Add(-time.Second): {secretA, a.SigningSecret}, now: {secretA}} {
		if got, err := read(a.SubscriptionID, a.SubscriptionID, at); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("at %v: got %q, %v; want %q", at, got, err, want)
		}
	}
}
