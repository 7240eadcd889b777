package webhook

import "testing"

// A result that was under way while its subscription was disabled and enabled
// again says nothing of the subscription as it is now.
func TestResultsOfAnOlderGenerationDoNotCount(t *testing.T) {
	for name, late := range map[string]func(*work) Result{
		"gone":    func(*work) Result { return failed(410) },
		"refused": func(*work) Result { return failed(404) },
		"capped":  func(w *work) Result { w.capped = true; return Result{} },
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			customer(t, s, "cus_a")
			which := SubscriptionRequest{"cus_a", subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID}
			w := attempted(t, s, which.SubscriptionID, 0)
			for _, change := range []func() (Subscription, error){
				func() (Subscription, error) { return s.Disable(t.Context(), which) },
				func() (Subscription, error) { return s.Enable(t.Context(), which) },
			} {
				if _, err := change(); err != nil {
					t.Fatal(err)
				}
			}
			if err := newTestFinisher(s, nil).commit([]finished{{w, late(w)}}); err != nil {
				t.Fatal(err)
			}
			if got := lines(t, s.DB, `SELECT failures_streak, dead_letters, disabled_reason FROM webhook_subscriptions`); got[0] != "0 0 -" {
				t.Errorf("streak, dead letters and reason are %q, want those of a subscription that was just enabled", got[0])
			}
		})
	}
}

// A delivery whose subscription was disabled while its last request was under way
// is failed, as its owner was told at once: it is no dead letter afterwards.
func TestTheLastAttemptOfAnOlderGeneration(t *testing.T) {
	for name, sweptBefore := range map[string]bool{"swept before": true, "swept after": false} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			customer(t, s, "cus_a")
			which := SubscriptionRequest{"cus_a", subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID}
			w := attempted(t, s, which.SubscriptionID, len(DefaultSchedule))
			if _, err := s.Disable(t.Context(), which); err != nil {
				t.Fatal(err)
			}
			status := func() Status {
				page, err := s.Deliveries(t.Context(), DeliveriesRequest{CustomerID: "cus_a", SubscriptionID: which.SubscriptionID})
				if err != nil {
					t.Fatal(err)
				}
				return page.Data[0].Status
			}
			sweepAll := func() {
				for more := true; more; {
					var err error
					if more, err = sweepStep(t.Context(), s.DB); err != nil {
						t.Fatal(err)
					}
				}
			}
			if sweptBefore {
				sweepAll()
			}
			before := status()
			if err := newTestFinisher(s, nil).commit([]finished{{w, failed(500)}}); err != nil {
				t.Fatal(err)
			}
			after := status()
			sweepAll()
			if got := []Status{before, after, status()}; got[0] != StatusFailed || got[1] != StatusFailed || got[2] != StatusFailed {
				t.Errorf("it is %q, one after the other, want failed all the time", got)
			}
		})
	}
}
