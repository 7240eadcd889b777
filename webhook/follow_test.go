package webhook

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// What is published is fanned out in the publisher's own transaction, and is
// sent although nothing comes round to look for it.
func TestPublishingFansOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := always(200, time.Second)
		start(t, s, r)
		ids := publish(t, s, updated("UNI-1", nil))
		if got := deliveriesOf(t, s, sub.SubscriptionID); !slices.Equal(got, []string{ids[0] + " pending"}) {
			t.Errorf("when the commit is acknowledged: %q", got)
		}
		if got := r.events(); !slices.Equal(got, ids) {
			t.Errorf("sent %q", got)
		}
	})
}

// Where the fan-out fails, the state and its event are committed all the same,
// and the tick makes up for it.
func TestPublishingSurvivesAFailedFanOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := always(200, 0)
		start(t, s, r, tick(time.Minute))
		synctest.Wait()
		exec(t, s.DB, `CREATE TRIGGER broken BEFORE UPDATE OF deliveries ON webhook_totals BEGIN SELECT RAISE(ABORT, 'boom'); END`)
		ids := publish(t, s, updated("UNI-1", nil))
		if got := deliveriesOf(t, s, sub.SubscriptionID); len(got) != 0 {
			t.Errorf("half a fan-out: %q", got)
		}
		exec(t, s.DB, `DROP TRIGGER broken`)
		if got := r.events(); len(got) != 0 {
			t.Errorf("sent %q", got)
		}
		time.Sleep(time.Minute)
		if got := r.events(); !slices.Equal(got, ids) {
			t.Errorf("after a tick, sent %q", got)
		}
	})
}

// freshOf fans out and returns what is new, by subscription.
func freshOf(t *testing.T, s *Service) map[int64]*work {
	t.Helper()
	done, err := newFanout(s.DB).step(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[int64]*work{}
	for i := range done.works {
		all[done.works[i].subSeq] = &done.works[i]
	}
	return all
}

// A new delivery is given out from memory: that its row is read again would
// show, here, in that there is none.
func TestNewDeliveriesAreNotReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, q := newLanes(t, queueOptions{slots: 100, perLane: 4}, 0, 0)
		publish(t, s, updated("UNI-1", nil))
		all := freshOf(t, s)
		exec(t, s.DB, `DELETE FROM webhook_deliveries`)
		exec(t, s.DB, `UPDATE webhook_totals SET deliveries = 0`)
		q.add(all[1], time.Now())
		q.add(all[2], time.Now())
		got := take(t, q, 10)
		if !slices.Equal(subsOf(got), []int64{1, 2}) || got[0].deliveryID != all[1].deliveryID || got[0].target.url != publicURL {
			t.Errorf("took of %d", subsOf(got))
		}
		checkQueue(t, q)
	})
}

// A claim may find a new delivery before the queue is told of it: it is given
// out once, also when it is finished by then.
func TestNewDeliveriesAreGivenOutOnce(t *testing.T) {
	for what, finish := range map[string]bool{"in flight": false, "finished": true} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, q := newLanes(t, queueOptions{slots: 100, perLane: 4}, 0)
				publish(t, s, updated("UNI-1", nil))
				late := freshOf(t, s)[1]
				scan(t, q, 1)
				got := take(t, q, 10)
				if len(got) != 1 || got[0].seq != late.seq {
					t.Fatalf("took of %d", subsOf(got))
				}
				if finish {
					give(t, s, q, got[0], ok(200))
				}
				q.add(late, time.Now())
				if again := take(t, q, 10); len(again) != 0 {
					t.Error("took it again")
				}
				checkQueue(t, q)
			})
		})
	}
}

// A subscription that was disabled since, and enabled again, gets nothing of
// before: the sweep has it.
func TestNewDeliveriesOfAnOlderGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, q := newLanes(t, queueOptions{slots: 100, perLane: 4}, 0)
		publish(t, s, updated("UNI-1", nil))
		q.add(freshOf(t, s)[1], time.Now())
		exec(t, s.DB, `UPDATE webhook_subscriptions SET generation = generation + 1, sweep = 1`)
		if got := take(t, q, 10); len(got) != 0 || q.held != 0 {
			t.Errorf("took %d, %d bytes are held", len(got), q.held)
		}
	})
}

// What the dispatcher is told has a bound in memory: beyond it, it is told where
// to look, and nothing is forgotten.
func TestNewsAreBounded(t *testing.T) {
	s := newService(t)
	w := NewWorker(s.DB, s.Outbox, nil, nil, WorkerOptions{Concurrency: 1, EndpointConcurrency: 1})
	const each = 1 << 20
	for i := range 20 {
		w.dispatcher.hand([]work{{seq: int64(i) + 1, subSeq: int64(i) + 1, event: storedEvent{data: make([]byte, each)}}})
	}
	if n := &w.dispatcher.news; len(n.works) != heldBytes/each || len(n.works)+len(n.woken) != 20 {
		t.Errorf("%d in memory, %d to look for", len(n.works), len(n.woken))
	}
	w.dispatcher.receive(context.Background())
	if len(w.dispatcher.queue.lanes) != 20 || w.dispatcher.queue.held > heldBytes+each || w.dispatcher.news.bytes != 0 {
		t.Errorf("%d lanes with %d bytes", len(w.dispatcher.queue.lanes), w.dispatcher.queue.held)
	}
}

// Where a step is not enough, because there are many subscriptions, those who
// publish are spared the next ones for a while.
func TestPublishingToACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		addSubscriptions(t, s.DB, stepDeliveries+20)
		w := NewWorker(s.DB, s.Outbox, newSender(t, s.Guard), nil, WorkerOptions{Concurrency: 1, EndpointConcurrency: 1}) // it does not run
		if err := w.fanout.load(t.Context()); err != nil {
			t.Fatal(err)
		}
		deliveries := func() int64 {
			publish(t, s, updated("UNI-1", nil))
			return number(t, s.DB, `SELECT COUNT(*) FROM webhook_deliveries`)
		}
		if first, second := deliveries(), deliveries(); first != stepDeliveries || second != first {
			t.Errorf("the first publication made %d deliveries, and the second %d more", first, second-first)
		}
		select {
		case <-s.Outbox.Committed():
		default:
			t.Error("the publisher was not woken for the rest")
		}
		time.Sleep(crowdedPause)
		if third := deliveries(); third <= stepDeliveries {
			t.Errorf("later, still %d", third)
		}
		fanOut(t, s)
		wantAllPairs(t, s, stepDeliveries+20, 3)
	})
}
