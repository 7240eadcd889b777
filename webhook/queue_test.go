package webhook

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// newLanes makes subscriptions with so many deliveries due each, none of them
// on probation, and a queue that knows them.
func newLanes(t *testing.T, o queueOptions, due ...int) (*Service, *queue) {
	t.Helper()
	s := newService(t)
	addSubscriptions(t, s.DB, len(due))
	exec(t, s.DB, `UPDATE webhook_subscriptions SET probation = 0`)
	for i, n := range due {
		addDeliveries(t, s.DB, int64(i)+1, n, StatusPending)
	}
	q := newQueue(s.DB, o)
	scan(t, q, len(slices.DeleteFunc(slices.Clone(due), func(n int) bool { return n == 0 })))
	return s, q
}

func scan(t *testing.T, q *queue, want int) {
	t.Helper()
	if n, err := q.scan(context.Background()); n != want || err != nil {
		t.Fatalf("found %d, %v; want %d", n, err, want)
	}
}

// take takes up to n deliveries, now.
func take(t *testing.T, q *queue, n int) (all []*work) {
	t.Helper()
	for len(all) < n {
		w, err := q.take(context.Background(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if w == nil {
			return all
		}
		all = append(all, w)
	}
	return all
}

func subsOf(works []*work) (subs []int64) {
	for _, w := range works {
		subs = append(subs, w.subSeq)
	}
	return subs
}

// give writes a result down and gives its delivery back.
func give(t *testing.T, s *Service, q *queue, w *work, r Result) {
	t.Helper()
	f := newTestFinisher(s, nil)
	if err := f.commit([]finished{{w, r}}); err != nil {
		t.Fatal(err)
	}
	for _, b := range <-f.committed {
		q.done(b)
	}
}

// A subscription with a long backlog takes no more than its share.
func TestTakeIsFair(t *testing.T) {
	backlog := 1000
	if reduced() {
		backlog = 200
	}
	_, q := newLanes(t, queueOptions{slots: 1 << 20, perLane: 1 << 20}, backlog, 10, 10, 10, 10, 10, 10, 10, 10, 10)
	for round := range 10 {
		subs := subsOf(take(t, q, 10))
		slices.Sort(subs)
		if want := []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}; !slices.Equal(subs, want) {
			t.Fatalf("round %d: of subscriptions %d", round, subs)
		}
	}
	if rest := take(t, q, backlog); len(rest) != backlog-10 || slices.Max(subsOf(rest)) != 1 {
		t.Errorf("%d are left for the first", len(rest))
	}
}

func TestALaneHasItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, q := newLanes(t, queueOptions{slots: 100, perLane: 4}, 10, 1)
		taken := take(t, q, 100)
		if got := subsOf(taken); !slices.Equal(got, []int64{1, 2, 1, 1, 1}) {
			t.Fatalf("took of %d", got)
		}
		// What is in flight is not waited for: only done brings the lane back.
		if next := q.due(time.Now()); next != noneDue || len(q.ring)+len(q.waits)+len(q.parked) != 0 {
			t.Errorf("a busy lane: due %d, ring %d, heap %d", next, len(q.ring), len(q.waits))
		}
		q.wake(1, 0)
		if got := take(t, q, 100); len(got) != 0 || q.due(time.Now()) != noneDue {
			t.Errorf("woken, a busy lane gave %d", len(got))
		}
		give(t, s, q, taken[0], ok(200))
		if got := subsOf(take(t, q, 100)); !slices.Equal(got, []int64{1}) {
			t.Errorf("after one was done, took of %d", got)
		}
		give(t, s, q, taken[1], ok(200))
		time.Sleep(staleAfter + time.Second)
		scan(t, q, 1)
		if q.lanes[2] != nil || q.lanes[1] == nil {
			t.Error("an empty lane is kept, or one with deliveries is not")
		}
	})
}

// All of a lane's rows are in flight: they are still pending in the file, and
// are not given out again.
func TestNothingIsTakenTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, q := newLanes(t, queueOptions{slots: 100, perLane: 100}, 5)
		taken := take(t, q, 100)
		q.forget()
		scan(t, q, 1)
		for range 3 {
			q.wake(1, 0)
			if again := take(t, q, 100); len(taken) != 5 || len(again) != 0 || q.due(time.Now()) != noneDue {
				t.Fatalf("took %d, and again %d; due %d", len(taken), len(again), q.due(time.Now()))
			}
			time.Sleep(staleAfter + time.Second)
		}
		addDeliveries(t, s.DB, 1, 2, StatusPending)
		q.wake(1, time.Now().UnixMilli())
		if more := take(t, q, 100); len(more) != 2 {
			t.Errorf("took %d of 2 new ones", len(more))
		}
	})
}

func TestLanesWaitForTheirTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, q := newLanes(t, queueOptions{slots: 100, perLane: 4}, 1, 1, 1, 2)
		start := time.Now()
		at := func(d time.Duration) int64 { return start.Add(d).UnixMilli() }
		for delivery, d := range map[int]time.Duration{1: 3 * time.Hour, 2: time.Hour, 3: 2 * time.Hour, 4: 0, 5: 4 * time.Hour} {
			exec(t, s.DB, `UPDATE webhook_deliveries SET next_attempt_at_ms = $1 WHERE delivery_seq = $2`, at(d), delivery)
		}
		q = newQueue(s.DB, q.opt)
		scan(t, q, 4)
		first := take(t, q, 100)
		if got := subsOf(first); !slices.Equal(got, []int64{4}) {
			t.Fatalf("at once: %d", got)
		}
		give(t, s, q, first[0], failed(500)) // again in a minute
		for i, want := range []struct {
			at  time.Duration
			sub int64
		}{{time.Minute, 4}, {time.Hour, 2}, {2 * time.Hour, 3}, {3 * time.Hour, 1}, {4 * time.Hour, 4}} {
			if next := q.due(time.Now()); next != at(want.at) {
				t.Errorf("step %d: due in %v, want %v", i, time.UnixMilli(next).Sub(start), want.at)
			}
			time.Sleep(time.Until(start.Add(want.at)) - time.Millisecond)
			if early := take(t, q, 100); len(early) != 0 {
				t.Errorf("step %d: took %d too early", i, len(early))
			}
			time.Sleep(time.Millisecond)
			got := take(t, q, 100)
			if !slices.Equal(subsOf(got), []int64{want.sub}) {
				t.Fatalf("step %d: took of %d, want %d", i, subsOf(got), want.sub)
			}
			if again := i == 0; again != (got[0].attempts == 1) {
				t.Errorf("step %d: after %d attempts", i, got[0].attempts)
			}
			give(t, s, q, got[0], ok(200))
		}
		time.Sleep(staleAfter + time.Second)
		scan(t, q, 0)
		if len(q.lanes) != 0 || q.held != 0 {
			t.Errorf("%d lanes, %d bytes are left", len(q.lanes), q.held)
		}
	})
}

// What a lane holds is trusted for a moment, and then read again.
func TestClaimsGetStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, q := newLanes(t, queueOptions{slots: 100, perLane: 100}, 6, 6)
		const other = "https://8.8.8.8/moved"
		one := func() string {
			t.Helper()
			got := take(t, q, 2) // one of each, in their turns
			if len(got) != 2 || got[0].subSeq != 1 {
				t.Fatalf("took of %d", subsOf(got))
			}
			return got[0].target.url
		}
		if got := one(); got != publicURL {
			t.Errorf("at first to %s", got)
		}
		exec(t, s.DB, `UPDATE webhook_subscriptions SET url = $1`, other)
		time.Sleep(staleAfter)
		if got := one(); got != publicURL {
			t.Errorf("within the time to %s: it was read again too early", got)
		}
		time.Sleep(time.Millisecond)
		if got := one(); got != other {
			t.Errorf("after the time to %s", got)
		}
		exec(t, s.DB, `UPDATE webhook_subscriptions SET url = $1`, publicURL)
		q.forget(1, 99)
		if got := one(); got != publicURL || q.lanes[2].target.url != other {
			t.Errorf("forgotten, to %s; the other one to %s", got, q.lanes[2].target.url)
		}
		exec(t, s.DB, `UPDATE webhook_subscriptions SET disabled_at_ms = 1, disabled_reason = 'user' WHERE sub_seq = 1`)
		q.forget()
		if got := subsOf(take(t, q, 100)); !slices.Equal(got, []int64{2, 2}) {
			t.Errorf("after everything was forgotten, of %d", got)
		}
	})
}

// A result that disables its subscription takes with it what was read ahead.
func TestDisabledLanesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, q := newLanes(t, queueOptions{slots: 100, perLane: 4}, 10)
		taken := take(t, q, 2)
		give(t, s, q, taken[0], failed(410))
		if more := take(t, q, 100); len(more) != 0 || q.held != 0 {
			t.Errorf("took %d more, %d bytes are held", len(more), q.held)
		}
		give(t, s, q, taken[1], failed(500))
		if next := q.due(time.Now()); next == noneDue {
			return // nothing is left
		}
		time.Sleep(time.Hour)
		if more := take(t, q, 100); len(more) != 0 {
			t.Errorf("took %d after an hour", len(more))
		}
	})
}

// New and unreachable subscriptions get one request at a time, and a quarter of
// the slots all together, in their turns; an answer brings one back.
func TestProbation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, q := newLanes(t, queueOptions{slots: 8, perLane: 4}, 9, 9, 9, 9)
		exec(t, s.DB, `UPDATE webhook_subscriptions SET probation = 1 WHERE sub_seq <> 4`)
		var new, old []*work // of subscriptions on probation and off it
		for _, w := range take(t, q, 100) {
			if w.subSeq == 4 {
				old = append(old, w)
			} else {
				new = append(new, w)
			}
		}
		if len(old) != 4 || len(new) != 2 || new[0].subSeq == new[1].subSeq {
			t.Fatalf("took of %d and %d", subsOf(old), subsOf(new))
		}
		first, second := new[0].subSeq, new[1].subSeq
		third := 6 - first - second
		give(t, s, q, new[0], noAnswer(CategoryTimeout))
		if got := subsOf(take(t, q, 100)); !slices.Equal(got, []int64{third}) {
			t.Fatalf("then of %d: the third one, %d, has waited for its turn", got, third)
		}
		give(t, s, q, new[1], ok(204))
		got, want := subsOf(take(t, q, 100)), []int64{first, second, second, second, second}
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("then of %d, want %d: the second one is back, the first has its turn", got, want)
		}
		give(t, s, q, old[0], noAnswer(CategoryConnectTimeout)) // and the fourth one joins them
		if got := take(t, q, 100); len(got) != 0 {
			t.Errorf("on probation with three in flight, took of %d", subsOf(got))
		}
		if q.probing != 2 {
			t.Errorf("%d of probation's slots are in use", q.probing)
		}
	})
}

// The rate is the customer's for a URL: its subscriptions share it.
func TestRateOfAURL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, q := newLanes(t, queueOptions{slots: 100, perLane: 100, rate: 2}, 5, 5, 5, 5)
		customer(t, s, "cus_other")
		exec(t, s.DB, `UPDATE webhook_subscriptions SET url = 'https://8.8.8.8/' WHERE sub_seq = 3`)
		exec(t, s.DB, `UPDATE webhook_subscriptions SET customer_id = 'cus_other' WHERE sub_seq = 4`)
		perSub := func() (n [5]int) {
			for _, sub := range subsOf(take(t, q, 100)) {
				n[sub]++
			}
			return n
		}
		if got := perSub(); got[1]+got[2] != 2 || got[1] != 1 || got[3] != 2 || got[4] != 2 {
			t.Errorf("at once: %v", got)
		}
		start := time.Now()
		for range 4 { // half a second later there is one more for each of the three
			next := time.UnixMilli(q.due(time.Now()))
			if wait := next.Sub(start); wait < 500*time.Millisecond || wait > 502*time.Millisecond {
				t.Errorf("the next one in %v", wait)
			}
			time.Sleep(time.Until(next))
			if got := perSub(); got[1]+got[2] > 1 || got[3] > 1 || got[4] > 1 {
				t.Errorf("after half a second: %v", got)
			}
			time.Sleep(2 * time.Millisecond) // the three may differ by one
			perSub()
			start = start.Add(500 * time.Millisecond)
		}
	})
}

// Rates that say nothing any more are forgotten: customers have many URLs.
func TestIdleRatesAreForgotten(t *testing.T) {
	q := newQueue(nil, queueOptions{rate: 1})
	now := time.Now()
	use := func(url int, at time.Time) int {
		q.readyAt(&work{target: &target{customerID: "cus_a", url: strconv.Itoa(url)}}, at)
		return len(q.rates)
	}
	for i := range maxRates {
		use(i, now)
	}
	if n := use(maxRates, now.Add(time.Second/2)); n != maxRates+1 {
		t.Errorf("%d are remembered while they are in use", n)
	}
	if n := use(-1, now.Add(time.Second)); n != 2 { // the last one is not full again
		t.Errorf("%d are remembered later", n)
	}
}

func TestALaneThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, q := newLanes(t, queueOptions{slots: 100, perLane: 4}, 1, 1)
		write(t, s.DB, func(tx *store.Tx) error {
			return addSecret(tx, &Subscription{SubscriptionID: "another", seq: 1}, 1, newSecret()) // it does not open here
		})
		if w, err := q.take(t.Context(), time.Now()); w != nil || err == nil || !strings.Contains(err.Error(), "subscription 1") {
			t.Errorf("took %v, %v", w, err)
		}
		if got := subsOf(take(t, q, 100)); !slices.Equal(got, []int64{2}) {
			t.Errorf("then of %d: the other one does not wait for it", got)
		}
		if next := q.due(time.Now()); next != time.Now().Add(time.Second).UnixMilli() {
			t.Errorf("it is tried again at %d", next)
		}
		exec(t, s.DB, `DELETE FROM webhook_secrets`)
		time.Sleep(time.Second)
		if got := subsOf(take(t, q, 100)); !slices.Equal(got, []int64{1}) {
			t.Errorf("mended, took of %d", got)
		}
	})
}

// Memory is bounded in bytes: whatever the bodies' size, and however many
// subscriptions have something due.
func TestMemoryIsBounded(t *testing.T) {
	for _, probation := range []int{0, 1} {
		t.Run(fmt.Sprintf("probation %d", probation), func(t *testing.T) {
			const lanes, each = 80, 4
			s := newService(t)
			addSubscriptions(t, s.DB, lanes)
			exec(t, s.DB, `UPDATE webhook_subscriptions SET probation = $1`, probation)
			long := updated("UNI-1", nil)
			long.CurrentChecksum = strings.Repeat("x", 60<<10)
			publish(t, s, long, long, long, long)
			fanOut(t, s)
			q := newQueue(s.DB, queueOptions{slots: 16, perLane: each})
			scan(t, q, lanes)
			most, taken := 0, 0
			for {
				batch := take(t, q, 16)
				most = max(most, q.held)
				if len(batch) == 0 {
					break
				}
				taken += len(batch)
				moved := totals{}
				write(t, s.DB, func(tx *store.Tx) error {
					for _, w := range batch {
						if err := fail(tx, moved, w, "x"); err != nil {
							return err
						}
					}
					return moved.write(tx)
				})
				for _, w := range batch {
					q.done(settled{work: w, next: noneDue, probation: probation == 1})
				}
			}
			if limit := heldBytes + claimBytes; most > limit || taken != lanes*each || q.held != 0 {
				t.Errorf("held %d KiB at most, want %d; took %d; %d are left", most>>10, limit>>10, taken, q.held)
			}
		})
	}
}

// Whatever happens in whatever order: no limit is exceeded, nothing is in
// flight twice, and in the end everything is delivered.
func TestQueueWalk(t *testing.T) {
	steps := 300
	if reduced() {
		steps = 80
	}
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { walk(t, rand.New(rand.NewPCG(seed, 0)), steps) })
		})
	}
}

func walk(t *testing.T, r *rand.Rand, steps int) {
	s := newService(t)
	addSubscriptions(t, s.DB, 7)
	q := newQueue(s.DB, queueOptions{slots: 6, perLane: 3})
	var inflight []*work
	takeOne := func() bool {
		if len(inflight) >= q.opt.slots {
			return false
		}
		works := take(t, q, 1)
		for _, w := range works {
			if slices.ContainsFunc(inflight, func(other *work) bool { return other.seq == w.seq }) {
				t.Fatalf("delivery %d is in flight twice", w.seq)
			}
		}
		inflight = append(inflight, works...)
		checkQueue(t, q)
		return len(works) > 0
	}
	giveOne := func(failing bool) {
		if len(inflight) == 0 {
			return
		}
		result := ok(200)
		if failing {
			result = []Result{failed(500), failed(429), noAnswer(CategoryTimeout), {Interrupted: true}}[r.IntN(4)]
		}
		i := r.IntN(len(inflight))
		give(t, s, q, inflight[i], result)
		inflight = slices.Delete(inflight, i, i+1)
		checkQueue(t, q)
	}
	var untold []work
	for range steps {
		switch r.IntN(10) {
		case 0:
			publish(t, s, updated("UNI-1", nil))
			done, err := newFanout(s.DB).step(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			untold = append(untold, done.works...)
		case 8, 9: // late or not: what is committed may have been claimed before
			for i := range untold {
				q.add(&untold[i], time.Now())
			}
			untold = nil
		case 1, 2, 3:
			takeOne()
		case 4:
			giveOne(true)
		case 5:
			giveOne(false)
		case 6:
			time.Sleep(time.Duration(r.IntN(90_000)) * time.Millisecond)
		case 7:
			q.forget()
			if _, err := q.scan(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 10_000 {
		for takeOne() {
		}
		if len(inflight) > 0 {
			giveOne(false)
			continue
		}
		next := q.due(time.Now())
		if next == noneDue {
			break
		}
		time.Sleep(time.Until(time.UnixMilli(next)))
	}
	if got := lines(t, s.DB, `SELECT status, COUNT(*) > 0 FROM webhook_deliveries WHERE status <> 'dead_letter' GROUP BY status`); !slices.Equal(got, []string{"success 1"}) {
		t.Errorf("in the end: %q", got)
	}
	time.Sleep(staleAfter + time.Second)
	scan(t, q, 0)
	if len(q.lanes) != 0 || q.held != 0 || q.probing != 0 || len(q.ring)+len(q.parked)+len(q.waits) != 0 {
		t.Errorf("left: %d lanes, %d bytes, %d probing", len(q.lanes), q.held, q.probing)
	}
}

// checkQueue checks what must hold at any time.
func checkQueue(t *testing.T, q *queue) {
	t.Helper()
	held, probing := 0, 0
	for _, l := range q.lanes {
		if len(l.inflight) > q.opt.perLane {
			t.Fatalf("subscription %d has %d in flight", l.sub, len(l.inflight))
		}
		for _, w := range l.held {
			held += len(w.event.data)
		}
		for _, w := range l.inflight {
			if w.probing {
				probing++
			}
		}
		if l.placed == inWaits && q.waits[l.index] != l {
			t.Fatalf("subscription %d is not where it should be in the heap", l.sub)
		}
	}
	if held != q.held || probing != q.probing || probing > q.probationSlots() {
		t.Fatalf("held %d, counted %d; probing %d, counted %d", held, q.held, probing, q.probing)
	}
	for i := 1; i < len(q.waits); i++ {
		if parent := q.waits[(i-1)/2]; parent.due() > q.waits[i].due() {
			t.Fatalf("the heap is out of order at %d", i)
		}
	}
}
