package webhook

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// deliveryIDs are the ids of a subscription's deliveries, oldest first.
func deliveryIDs(t testing.TB, s *Service, subscriptionID string) []string {
	t.Helper()
	return lines(t, s.DB, `SELECT delivery_id FROM webhook_deliveries WHERE sub_seq = $1 ORDER BY delivery_seq`, subSeq(t, s, subscriptionID))
}

func replay(t testing.TB, s *Service, deliveryID string) Replayed {
	t.Helper()
	d, err := s.Replay(t.Context(), DeliveryRequest{DeliveryID: deliveryID})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// onOff disables a subscription and enables it again.
func onOff(t testing.TB, s *Service, sub SubscribeAnswer) {
	t.Helper()
	which := SubscriptionRequest{SubscriptionID: sub.SubscriptionID}
	if _, err := s.Disable(t.Context(), which); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Enable(t.Context(), which); err != nil {
		t.Fatal(err)
	}
}

// A dead letter that is replayed gets six attempts more, on the schedule, with
// the same ids and bytes; at once, though nothing but the replay wakes the
// worker.
func TestReplayedDeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a", Envelope: EnvelopeV2})
		r := always(500, 0)
		w, _ := start(t, s, r, tick(1000*time.Hour))
		s.Changed = w.Forget
		publish(t, s, updated("UNI-1 <&> 奈良", nil))
		time.Sleep(48 * time.Hour)
		id := deliveryIDs(t, s, sub.SubscriptionID)[0]
		change(t, s, ChangeRequest{CustomerID: "cus_a", SubscriptionID: sub.SubscriptionID, Envelope: new(EnvelopeV1)})
		began := time.Now()
		if d := replay(t, s, id); d.Status != StatusPending || d.AttemptCount != 6 || !d.NextAttemptAt.Equal(began) || d.FinishedAt != nil {
			t.Errorf("replayed: %+v", d)
		}
		time.Sleep(48 * time.Hour)
		all := r.all()
		if len(all) != 12 || !all[6].at.Equal(began) {
			t.Fatalf("%d attempts, the seventh after %v", len(all), all[6].at.Sub(began))
		}
		for i, a := range all {
			if a.event != all[0].event || a.body != all[0].body || a.attempt != i+1 {
				t.Errorf("attempt %d: %+v", i+1, a)
			}
			if i <= 6 {
				continue
			}
			plan := DefaultSchedule[i-7]
			if wait := a.at.Sub(all[i-1].at); wait < plan-plan/10 || wait > plan+plan/10+time.Millisecond {
				t.Errorf("attempt %d after %v, want %v ± 10 %%", i+1, wait, plan)
			}
		}
		if got := lines(t, s.DB, `SELECT status, attempt_count, schedule_base FROM webhook_deliveries`); got[0] != "dead_letter 12 6" {
			t.Errorf("in the end: %q", got)
		}
	})
}

// Every state can be replayed, and what was pending when its subscription was
// disabled, written down or not. What is pending keeps its schedule.
func TestReplayOfEveryState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		f := newTestFinisher(s, nil)
		for i, c := range []struct {
			name    string
			results []Result
			then    func(sub SubscribeAnswer)
			want    string // attempts and the schedule's base
		}{
			{"success", []Result{ok(200)}, nil, "1 1"},
			{"dead letter", slices.Repeat([]Result{failed(500)}, 6), nil, "6 6"},
			{"failed", []Result{failed(500)}, func(sub SubscribeAnswer) {
				onOff(t, s, sub)
				if _, err := sweepStep(t.Context(), s.DB); err != nil {
					t.Fatal(err)
				}
			}, "1 1"},
			{"failed, as reads derive it", []Result{failed(500)}, func(sub SubscribeAnswer) { onOff(t, s, sub) }, "1 1"},
			{"pending", []Result{failed(500), failed(500)}, nil, "2 0"},
			{"pending, and due", nil, nil, "0 0"},
		} {
			id := customer(t, s, fmt.Sprintf("cus_%d", i))
			sub := subscribe(t, s, SubscribeRequest{CustomerID: id})
			publish(t, s, updated("UNI-1", nil))
			fanOut(t, s)
			for _, r := range c.results {
				if err := f.commit([]finished{{claimAll(t, s, sub.SubscriptionID)[0], r}}); err != nil {
					t.Fatal(err)
				}
				<-f.committed
				time.Sleep(24 * time.Hour)
			}
			if c.then != nil {
				c.then(sub)
			}
			delivery := deliveryIDs(t, s, sub.SubscriptionID)[0]
			if d := replay(t, s, delivery); d.Status != StatusPending || d.NextAttemptAt.After(time.Now()) || d.Reason != nil {
				t.Errorf("%s: %+v", c.name, d)
			}
			if got := lines(t, s.DB, `SELECT attempt_count, schedule_base FROM webhook_deliveries WHERE delivery_id = $1`, delivery); got[0] != c.want {
				t.Errorf("%s: %q, want %q", c.name, got, c.want)
			}
			if _, err := sweepStep(t.Context(), s.DB); err != nil {
				t.Fatal(err)
			}
			if due := claimAll(t, s, sub.SubscriptionID); len(due) != 1 || due[0].deliveryID != delivery {
				t.Errorf("%s: %d are due", c.name, len(due))
			}
		}
	})
}

// A delivery that is replayed while the request of its generation before is still
// under way: that attempt is written down, and the replay's schedule begins after
// it, unless it has arrived.
func TestReplayDuringItsRequest(t *testing.T) {
	for _, swept := range []bool{false, true} {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		publish(t, s, updated("1", nil), updated("2", nil), updated("3", nil))
		fanOut(t, s)
		works := claimAll(t, s, sub.SubscriptionID)
		onOff(t, s, sub)
		if swept {
			if _, err := sweepStep(t.Context(), s.DB); err != nil {
				t.Fatal(err)
			}
		}
		for _, w := range works {
			replay(t, s, w.deliveryID)
		}
		refused := *works[2]
		refused.refused = reasonOptedOut
		if err := newTestFinisher(s, nil).commit([]finished{{works[0], ok(200)}, {works[1], failed(500)}, {&refused, Result{}}}); err != nil {
			t.Fatal(err)
		}
		got := lines(t, s.DB, `SELECT status, attempt_count, schedule_base, next_attempt_at_ms IS NOT NULL, generation FROM webhook_deliveries ORDER BY delivery_seq`)
		if want := []string{"success 1 0 0 2", "pending 1 1 1 2", "pending 0 0 1 2"}; !slices.Equal(got, want) {
			t.Errorf("swept %v: got %q, want %q", swept, got, want)
		}
	}
}

// While its request is under way, a replay of what is pending is that attempt.
func TestReplayOfWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := always(200, 5*time.Second)
		w, _ := start(t, s, r)
		s.Changed = w.Forget
		publish(t, s, updated("UNI-1", nil))
		time.Sleep(time.Second)
		replay(t, s, deliveryIDs(t, s, sub.SubscriptionID)[0])
		time.Sleep(time.Hour)
		if n := len(r.all()); n != 1 {
			t.Errorf("%d requests", n)
		}
	})
}

// While the switch is on, a replay is queued; when it ends, it goes out.
func TestReplayAndKillSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := always(200, 0)
		w, _ := start(t, s, r)
		s.Changed = w.Forget
		publish(t, s, updated("UNI-1", nil))
		synctest.Wait()
		w.SetKillSwitch(true)
		write(t, s.DB, func(tx *store.Tx) error { return store.SetKillSwitch(tx, true) })
		id := deliveryIDs(t, s, sub.SubscriptionID)[0]
		replay(t, s, id)
		time.Sleep(10 * time.Hour)
		d, err := s.Delivery(t.Context(), DeliveryRequest{"cus_a", id})
		if n := len(r.all()); err != nil || n != 1 || d.Status != StatusPending || d.Blocked == nil || *d.Blocked != "the operator has stopped all webhooks" {
			t.Errorf("%d requests, %+v, %v", n, d, err)
		}
		w.SetKillSwitch(false)
		if n := len(r.all()); n != 2 {
			t.Errorf("%d requests", n)
		}
	})
}

func TestReplayRefuses(t *testing.T) {
	s := newService(t)
	s.Cap = NewDailyCap(s.DB, 1)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	publish(t, s, updated("UNI-1", nil))
	fanOut(t, s)
	id := deliveryIDs(t, s, sub.SubscriptionID)[0]
	for _, r := range []DeliveryRequest{{"cus_b", id}, {"cus_a", "dlv_none"}, {"", ""}} {
		_, err := s.Replay(t.Context(), r)
		wantCode(t, err, store.CodeNotFound, "delivery "+r.DeliveryID+" not found")
	}
	own := DeliveryRequest{"cus_a", id}
	for _, c := range []struct {
		tier store.Tier
		code store.Code
		text string
	}{{store.TierFree, store.CodeConflict, "the subscription is disabled (tier): enable it first"}, {store.TierPaid, "", ""}} {
		write(t, s.DB, func(tx *store.Tx) error { return SetTier(tx, "cus_a", c.tier) })
		if _, err := s.Replay(t.Context(), own); c.code == "" && err != nil {
			t.Error(err)
		} else if c.code != "" {
			wantCode(t, err, c.code, c.text)
		}
	}
	if _, ok, err := s.Cap.take(t.Context(), "cus_a", time.Now()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	_, err := s.Replay(t.Context(), own)
	wantCode(t, err, store.CodeRateLimited, "the daily cap of 1 delivery attempts is used up")
}

func TestTheCapSaysWhen(t *testing.T) {
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t)
	s.DB.Location = tokyo
	for clock, want := range map[string]time.Duration{
		"2026-05-14T00:00:00+09:00": 24 * time.Hour, "2026-05-14T23:59:59+09:00": time.Second, "2026-05-14T15:30:00Z": 23*time.Hour + 30*time.Minute,
	} {
		now, err := time.Parse(time.RFC3339, clock)
		if err != nil {
			t.Fatal(err)
		}
		e, ok := NewDailyCap(s.DB, 1).exhausted(store.CodeRateLimited, now).(*store.Error)
		if !ok || e.RetryAfter != want {
			t.Errorf("%s: %v, want %v", clock, e.RetryAfter, want)
		}
	}
}
