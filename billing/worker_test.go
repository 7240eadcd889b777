package billing

import (
	"context"
	"fmt"
	"testing"
	"time"

	"jpintel/billing/modelgatetest"
	"jpintel/store"
)

// run starts a worker and returns what stops it.
func (s *scene) run(opt WorkerOptions) (stop func()) {
	s.t.Helper()
	w := NewWorker(s.engine, opt)
	s.Wake = w.Wake
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	}
}

func TestTheWorkerDoesWhatIsAccepted(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		stop := s.run(WorkerOptions{})
		for i := range 10 {
			s.signUp(fmt.Sprint("cus_", i))
		}
		time.Sleep(10 * time.Second)
		stop()
		for i := range 10 {
			s.ready(fmt.Sprint("cus_", i), "100.00")
		}
	})
}

// S78: with the switch on nothing leaves; what was accepted is done afterwards.
func TestS78TheKillSwitch(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		stop := s.run(WorkerOptions{KillSwitch: true})
		s.signUp("cus_a")
		time.Sleep(time.Hour)
		stop()
		if n := s.up.State().Requests; n != 0 {
			t.Errorf("%d requests", n)
		}
		s.wantStatus("cus_a", Provisioning)
		stop = s.run(WorkerOptions{})
		time.Sleep(10 * time.Second)
		stop()
		s.ready("cus_a", "100.00")
	})
}

// S25 and S26: what holds operations is tried once a minute, and they go on.
func TestS25S26TheProbeEndsHolds(t *testing.T) {
	for hold, code := range map[string]string{holdAuth: "status:401", holdWallet: "status:402"} {
		t.Run(hold, func(t *testing.T) {
			scenario(t, modelgatetest.Options{WalletBalance: "0.00"}, func(t *testing.T, s *scene) {
				s.rules(fault("POST", groupsPath, modelgatetest.AtBeforeExecute, code, 1))
				stop := s.run(WorkerOptions{})
				s.signUp("cus_a")
				time.Sleep(30 * time.Second)
				if o := s.want("cus_a", CreateGroup, FailedRetryable); deref(o.Hold) != hold {
					t.Errorf("hold %s", deref(o.Hold))
				}
				time.Sleep(time.Minute)
				stop()
				s.ready("cus_a", "100.00")
			})
		})
	}
}

// The wallet frees what it is large enough for, by value and not as text.
func TestTheWalletFreesWhatItCanPay(t *testing.T) {
	scenario(t, modelgatetest.Options{WalletBalance: "10.00"}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.signUp("cus_b")
		s.step()
		s.limit("cus_a", "9.50")
		s.limit("cus_b", "100.00")
		s.exec(`UPDATE partner_operations SET hold_reason = 'partner_wallet_low' WHERE action = 'set_limit'`)
		s.probe()
		if a, c := s.operation("cus_a", SetLimit), s.operation("cus_b", SetLimit); a.Hold != nil || c.Hold == nil {
			t.Errorf("%s, %s", deref(a.Hold), deref(c.Hold))
		}
	})
}

// The server frees what its earlier boots have left, and no command's.
func TestLeasesOfEarlierBootsAreReleased(t *testing.T) {
	s := stillScene(t)
	s.signUp("cus_a")
	until := time.Now().Add(time.Hour).UnixMilli()
	for owner, want := range map[string]int64{"boot_1/1": 1, "boot_1" + commandOwner: 0, s.DB.BootID + "/3": 0} {
		s.exec(`UPDATE partner_operations SET locked_by = $1, locked_until_ms = $2 WHERE action = 'create_group'`, owner, until)
		var n int64
		if err := s.DB.Write(context.Background(), func(tx *store.Tx) (err error) {
			n, err = releaseLeases(tx, s.DB.BootID)
			return err
		}); err != nil || n != want {
			t.Errorf("%s: %d (%v)", owner, n, err)
		}
	}
}
