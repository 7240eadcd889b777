package webhook

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

func TestRolloutAdmits(t *testing.T) {
	free, paid := store.Customer{Tier: store.TierFree}, store.Customer{Tier: store.TierPaid}
	freeBeta, paidBeta := store.Customer{Tier: store.TierFree, Beta: true}, store.Customer{Tier: store.TierPaid, Beta: true}
	for _, c := range []struct {
		rollout  Rollout
		customer store.Customer
		want     error
	}{
		{RolloutOff, paidBeta, ErrRolloutOff}, {RolloutOff, free, ErrRolloutOff},
		{RolloutBeta, paidBeta, nil}, {RolloutBeta, paid, errNotInBeta}, {RolloutBeta, free, ErrFreeTier}, {RolloutBeta, freeBeta, ErrFreeTier},
		{RolloutGA, paidBeta, nil}, {RolloutGA, paid, nil}, {RolloutGA, free, ErrFreeTier}, {"", paid, nil}, {"", freeBeta, ErrFreeTier},
	} {
		if got := c.rollout.Admit(c.customer); got != c.want {
			t.Errorf("%q, %+v: %v, want %v", c.rollout, c.customer, got, c.want)
		}
	}
}

// Shutting is for good, and no state of the switch.
func TestShutIsNotTheSwitch(t *testing.T) {
	k := NewKillSwitch(false)
	k.Shut()
	for _, on := range []bool{true, false} {
		k.Set(on)
		if k.State().On != on || !k.stopped() {
			t.Errorf("switch %v: state %+v, stopped %v", on, k.State(), k.stopped())
		}
	}
}

// While the rollout is off nothing is sent and nothing is used up, for however
// long; events are fanned out all the same.
func TestRolloutOffSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := always(200, 0)
		w, stop := start(t, s, r)
		w.sender.Kill.Shut()
		w.SetKillSwitch(true)
		w.SetKillSwitch(false)
		publish(t, s, updated("UNI-1", nil))
		time.Sleep(48 * time.Hour)
		pending := []string{"pending 0"}
		if got := lines(t, s.DB, `SELECT status, attempt_count FROM webhook_deliveries`); !slices.Equal(got, pending) || len(r.all()) != 0 {
			t.Errorf("%q, %d requests", got, len(r.all()))
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		_, _ = start(t, s, r) // open
		if got := r.all(); len(got) != 1 {
			t.Errorf("%d requests afterwards", len(got))
		}
	})
}

// In the beta, what a customer without the flag would be sent waits, and goes
// out when it gets the flag. Nobody else waits for it.
func TestRolloutBetaSendsToBetaOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		for _, id := range []string{"cus_in", "cus_out"} {
			customer(t, s, id)
			subscribe(t, s, SubscribeRequest{CustomerID: id, URL: publicURL + "/" + id})
		}
		flag := func(id string, beta bool) {
			write(t, s.DB, func(tx *store.Tx) error { _, err := store.SetBeta(tx, id, beta); return err })
		}
		flag("cus_in", true)
		r := always(200, 0)
		w, _ := start(t, s, r, func(o *WorkerOptions) { o.BetaOnly = true })
		urls := func() (all []string) {
			for _, one := range r.all() {
				all = append(all, one.url[len(publicURL)+1:])
			}
			return all
		}
		publish(t, s, updated("UNI-1", nil))
		time.Sleep(24 * time.Hour)
		if got := urls(); !slices.Equal(got, []string{"cus_in"}) {
			t.Errorf("sent to %q", got)
		}
		if got := lines(t, s.DB, `SELECT status, attempt_count FROM webhook_deliveries ORDER BY sub_seq`); !slices.Equal(got, []string{"success 1", "pending 0"}) {
			t.Errorf("deliveries: %q", got)
		}
		flag("cus_out", true)
		flag("cus_in", false)
		w.Reload()
		publish(t, s, updated("UNI-2", nil))
		if got := urls(); !slices.Equal(got, []string{"cus_in", "cus_out", "cus_out"}) {
			t.Errorf("sent to %q", got)
		}
	})
}

// What was read ahead for a customer whose flag is taken is not sent any more.
func TestRolloutBetaTakesBackWhatWasReadAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		write(t, s.DB, func(tx *store.Tx) error { _, err := store.SetBeta(tx, "cus_a", true); return err })
		for range 20 {
			publish(t, s, updated("UNI-1", nil))
		}
		r := always(200, time.Second)
		w, _ := start(t, s, r, func(o *WorkerOptions) { o.BetaOnly = true })
		_ = r.all() // the first are on their way
		write(t, s.DB, func(tx *store.Tx) error { _, err := store.SetBeta(tx, "cus_a", false); return err })
		w.Reload()
		before := len(r.all())
		time.Sleep(time.Hour)
		if after := len(r.all()); before == 0 || before == 20 || after != before {
			t.Errorf("%d requests before, %d after", before, after)
		}
	})
}
