package billing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// run starts a worker and returns what stops it.
func (b *bench) run(opt WorkerOptions) (stop func()) {
	b.t.Helper()
	w := NewWorker(b.engine, opt)
	b.Wake = w.Wake
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	}
}

func TestTheWorkerDoesWhatIsAccepted(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		stop := b.run(WorkerOptions{})
		for i := range 10 {
			b.signUp(fmt.Sprint("cus_", i))
		}
		time.Sleep(10 * time.Second)
		for i := range 10 {
			b.wantStatus(fmt.Sprint("cus_", i), Ready)
		}
		stop()
		b.once()
	})
}

// S78: with the switch on nothing leaves; what was accepted is done afterwards.
func TestS78TheKillSwitch(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		stop := b.run(WorkerOptions{KillSwitch: true})
		b.signUp("cus_a")
		time.Sleep(time.Hour)
		stop()
		if len(b.partner.sent) != 0 {
			t.Errorf("%d requests", len(b.partner.sent))
		}
		b.wantStatus("cus_a", Provisioning)
		stop = b.run(WorkerOptions{})
		time.Sleep(10 * time.Second)
		stop()
		b.wantStatus("cus_a", Ready)
	})
}

// S25 and S26: what holds operations is tried once a minute, and they go on.
func TestS25TheProbeEndsHolds(t *testing.T) {
	for name, code := range map[string]int{holdAuth: 401, holdWallet: 402} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, b *bench) {
				b.partner.before = on(1, func(w http.ResponseWriter) bool { return status(w, code, "x") })
				b.partner.wallet = "0.00"
				stop := b.run(WorkerOptions{})
				b.signUp("cus_a")
				time.Sleep(30 * time.Second)
				if o := b.want("cus_a", CreateGroup, FailedRetryable); deref(o.Hold) != name {
					t.Errorf("hold %s", deref(o.Hold))
				}
				time.Sleep(time.Minute)
				b.wantStatus("cus_a", Ready)
				stop()
			})
		})
	}
}

// The wallet frees what it is large enough for, by value and not as text.
func TestTheWalletFreesWhatItCanPay(t *testing.T) {
	simulated(t, func(t *testing.T, b *bench) {
		b.signUp("cus_a")
		b.signUp("cus_b")
		b.step()
		b.limit("cus_a", "9.50")
		b.limit("cus_b", "100.00")
		b.exec(`UPDATE partner_operations SET hold_reason = 'partner_wallet_low' WHERE action = 'set_limit'`)
		b.partner.wallet = "10.00"
		if err := b.engine.Probe(context.Background()); err != nil {
			t.Fatal(err)
		}
		if a, c := b.operation("cus_a", SetLimit), b.operation("cus_b", SetLimit); a.Hold != nil || c.Hold == nil {
			t.Errorf("%s, %s", deref(a.Hold), deref(c.Hold))
		}
	})
}

// S40: sixteen owners on one file, some of them commands, and several operations
// of each customer at once: each operation has one owner at a time, and each
// customer one operation.
func TestS40OneOwnerAtATime(t *testing.T) {
	b := newBench(t)
	const customers = 8
	ctx := context.Background()
	for i := range customers {
		b.signUp(fmt.Sprint("cus_", i))
	}
	b.step()
	for i := range customers {
		customer := fmt.Sprint("cus_", i)
		b.limit(customer, "250.00")
		b.limit(customer, "300.00")
		for _, purpose := range []string{"a", "b", "c"} {
			if _, err := b.ChangeKey(ctx, KeyRequest{Key: purpose + customer, CustomerID: customer, Action: "create", Purpose: purpose}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Freeze(ctx, SpendRequest{Key: customer, CustomerID: customer, CauseRef: "dp_1"}); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	running, overlaps := map[string]int{}, 0
	b.partner.before = func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		group := strings.Split(r.URL.Path, "/")[2]
		mu.Lock()
		running[group]++
		overlaps += running[group] - 1
		mu.Unlock()
		runtime.Gosched() // others may come in between
		return false
	}
	b.partner.after = func(_ int, _ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		running[strings.Split(r.URL.Path, "/")[2]]--
		mu.Unlock()
		return false
	}
	var all sync.WaitGroup
	for i := range 16 {
		owner := fmt.Sprintf("%s/%d", b.DB.BootID, i)
		if i > 11 {
			owner = fmt.Sprintf("boot_command%d%s", i, commandOwner)
		}
		all.Go(func() {
			for quiet := 0; quiet < 20; quiet++ {
				worked, err := b.engine.Step(ctx, owner)
				if err != nil {
					t.Error(err)
					return
				}
				if worked {
					quiet = 0
				}
			}
		})
	}
	all.Wait()
	b.step()
	for i := range customers {
		b.wantStatus(fmt.Sprint("cus_", i), Frozen)
	}
	if overlaps > 0 || len(b.partner.groups) != customers || len(b.partner.keys) != 4*customers || len(b.partner.sent) != 9*customers {
		t.Errorf("%d overlaps, %d groups, %d keys, %d requests", overlaps, len(b.partner.groups), len(b.partner.keys), len(b.partner.sent))
	}
	b.once()
}

// The server frees what its earlier boots have left, and no command's.
func TestLeasesOfEarlierBootsAreReleased(t *testing.T) {
	b := newBench(t)
	b.signUp("cus_a")
	until := time.Now().Add(time.Hour).UnixMilli()
	for owner, want := range map[string]int64{"boot_1/1": 1, "boot_1" + commandOwner: 0, b.DB.BootID + "/3": 0} {
		b.exec(`UPDATE partner_operations SET locked_by = $1, locked_until_ms = $2 WHERE action = 'create_group'`, owner, until)
		var n int64
		if err := b.DB.Write(context.Background(), func(tx *store.Tx) (err error) {
			n, err = releaseLeases(tx, b.DB.BootID)
			return err
		}); err != nil || n != want {
			t.Errorf("%s: %d (%v)", owner, n, err)
		}
	}
}

// S37: a clock that is set back leaves leases that seem to last for days.
func TestS37LeasesAreReclaimable(t *testing.T) {
	b := newBench(t)
	b.signUp("cus_a")
	if longestLease != number(leaseTime.Milliseconds()) {
		t.Fatalf("longestLease is %s", longestLease)
	}
	b.exec(`UPDATE partner_operations SET locked_by = 'boot_1/cli', locked_until_ms = $1 WHERE action = 'create_group'`, time.Now().Add(2*24*time.Hour).UnixMilli())
	b.step()
	b.wantStatus("cus_a", Ready)
}

// S79 in small: whatever goes wrong where, it ends in one of each, or with
// somebody to look at it; and never in two of anything.
func TestS79RandomFaults(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for seed := range rounds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomFaults(t, newPipeBench(t), rand.New(rand.NewPCG(uint64(seed), 1))) })
		})
	}
}

func randomFaults(t *testing.T, b *bench, random *rand.Rand) {
	var mu sync.Mutex
	calm := false
	fault := func(w http.ResponseWriter, after bool) bool {
		mu.Lock()
		kind := random.IntN(14)
		quiet := calm
		mu.Unlock()
		switch {
		case quiet:
			return false
		case kind < 2:
			return cut()
		case kind == 2:
			return status(w, 500, "internal")
		case kind == 3:
			w.WriteHeader(502)
			return true
		case kind == 4 && !after: // after it was done, the upstream would not say so
			w.Header().Set("Retry-After", "5")
			return status(w, 429, "rate")
		case kind == 5 && after:
			_, _ = w.Write([]byte(`{"id":`))
			return true
		}
		return false
	}
	b.partner.before = func(_ int, w http.ResponseWriter, _ *http.Request) bool { return fault(w, false) }
	b.partner.after = func(_ int, w http.ResponseWriter, _ *http.Request) bool { return fault(w, true) }
	const customers = 4
	for i := range customers {
		b.signUp(fmt.Sprint("cus_", i))
	}
	for range 200 {
		switch random.IntN(6) {
		case 0: // a crash in the middle of a claim, before or after the attempt's record
			crash(b, random.IntN(2) == 0)
		case 1:
			time.Sleep(time.Duration(random.IntN(600)) * time.Second)
		default:
			b.stepOnce()
		}
	}
	mu.Lock()
	calm = true
	mu.Unlock()
	b.work(72 * time.Hour)
	for i := range customers {
		customer := fmt.Sprint("cus_", i)
		got, err := customerStatus(b.DB.Reader(context.Background()), customer)
		if err != nil || got != Ready && got != NeedsAttention {
			t.Errorf("%s is %s (%v)", customer, got, err)
		}
		parent := b.operation(customer, ProvisionCustomer)
		if got == NeedsAttention && (parent.Status != ReconciliationNeeded || *parent.Phase != PhaseSecretLost) {
			t.Errorf("%s: %s %s", customer, parent.Status, *parent.Phase)
		}
	}
	if len(b.partner.groups) != customers || len(b.partner.keys) > customers {
		t.Errorf("%d groups, %d keys", len(b.partner.groups), len(b.partner.keys))
	}
	b.once()
}

// crash claims an operation for a server that dies, with or without an attempt.
func crash(b *bench, begun bool) {
	b.t.Helper()
	if err := b.DB.Write(context.Background(), func(tx *store.Tx) error {
		o, err := claim(tx, "boot_before/1", "")
		if err == nil && o != nil && begun {
			_, err = o.begin(tx)
		}
		return err
	}); err != nil {
		b.t.Fatal(err)
	}
}
