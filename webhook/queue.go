package webhook

import (
	"container/heap"
	"context"
	"math"
	"time"

	"jpintel/store"
)

// noneDue says that a subscription has nothing pending.
const noneDue = math.MaxInt64

const (
	// claimRows is how many deliveries one subscription's claim reads ahead.
	claimRows = 128
	// claimBytes bounds the bodies that one claim reads, and heldBytes those
	// that all of them hold: memory is bounded in bytes, not in rows.
	claimBytes = 256 << 10
	heldBytes  = 8 << 20
	// staleAfter is how long a claim is trusted: what it was allowed to send
	// to is read again after that.
	staleAfter = 2 * time.Second
)

// queue is the due work of all subscriptions, in memory, for one goroutine.
// Each subscription has a lane. Lanes that have something due stand in a ring
// and give one delivery in their turn, so a subscription with a long backlog
// takes no more than its share; the others wait in a heap for their next due
// time. It is rebuilt from the file by scan.
type queue struct {
	db      *store.DB
	perLane int // requests at a time to one subscription

	lanes map[int64]*lane
	ring  []*lane
	waits waiting
	held  int // bytes of bodies that lanes hold
}

// lane is one subscription's work.
type lane struct {
	sub      int64
	held     []work // claimed, not given out yet
	claimed  time.Time
	inflight map[int64]bool // delivery_seq: given out, result not yet committed
	next     int64          // when the first delivery that is not held may be due, ms; noneDue
	ringed   bool
	index    int // in waits; -1: not there
}

func newQueue(db *store.DB, perLane int) *queue {
	return &queue{db: db, perLane: perLane, lanes: map[int64]*lane{}}
}

// wake says that a subscription has, or will have, a delivery due at that time.
func (q *queue) wake(sub, at int64) {
	l := q.lanes[sub]
	if l == nil {
		l = &lane{sub: sub, next: noneDue, index: -1, inflight: map[int64]bool{}}
		q.lanes[sub] = l
	}
	if at < l.next {
		l.next = at
	}
	q.place(l)
}

// place puts a lane where it belongs: in the ring when it may give something,
// in the heap when it waits for a time, nowhere when it is busy or empty.
func (q *queue) place(l *lane) {
	if l.ringed || len(l.inflight) >= q.perLane {
		return
	}
	switch {
	case len(l.held) > 0:
		q.pushRing(l)
	case l.next == noneDue:
		if l.index >= 0 {
			heap.Remove(&q.waits, l.index)
		}
		if len(l.inflight) == 0 {
			delete(q.lanes, l.sub)
		}
	case l.index >= 0:
		heap.Fix(&q.waits, l.index)
	default:
		heap.Push(&q.waits, l)
	}
}

func (q *queue) pushRing(l *lane) {
	if l.index >= 0 {
		heap.Remove(&q.waits, l.index)
	}
	l.ringed = true
	q.ring = append(q.ring, l)
}

// due moves the lanes whose time has come to the ring, and returns when the
// next one's does.
func (q *queue) due(now time.Time) (next int64) {
	for len(q.waits) > 0 {
		if l := q.waits[0]; l.next > now.UnixMilli() {
			return l.next
		}
		q.pushRing(q.waits[0])
	}
	return noneDue
}

// take gives out one delivery that is due now, of the subscription whose turn
// it is, or nil. The delivery stays in flight until done.
func (q *queue) take(ctx context.Context, now time.Time) (*work, error) {
	q.due(now)
	for len(q.ring) > 0 {
		l := q.ring[0]
		q.ring = q.ring[1:]
		l.ringed = false
		w, err := q.takeFrom(ctx, l, now)
		if err != nil {
			l.next = now.Add(time.Second).UnixMilli() // a lane that cannot be read must not spin
			q.place(l)
			return nil, err
		}
		q.place(l)
		if w != nil {
			return w, nil
		}
	}
	return nil, nil
}

func (q *queue) takeFrom(ctx context.Context, l *lane, now time.Time) (*work, error) {
	if len(l.held) > 0 && now.Sub(l.claimed) > staleAfter {
		q.drop(l)
	}
	if len(l.held) == 0 {
		if err := q.claim(ctx, l, now); err != nil || len(l.held) == 0 {
			return nil, err
		}
	}
	w := l.held[0]
	l.held = l.held[1:]
	q.held -= len(w.event.data)
	l.inflight[w.seq] = true
	return &w, nil
}

// drop forgets what a lane holds; the file still has it.
func (q *queue) drop(l *lane) {
	for _, w := range l.held {
		q.held -= len(w.event.data)
	}
	l.held, l.next = nil, 0
}

// claim reads ahead. What is in flight is still pending in the file and is
// left out.
func (q *queue) claim(ctx context.Context, l *lane, now time.Time) error {
	rows, bytes := claimRows, claimBytes
	if q.held > heldBytes { // memory is full: one at a time
		rows, bytes = 1, maxData
	}
	rows += len(l.inflight)
	found, next, err := claim(ctx, q.db, l.sub, now, rows, bytes+len(l.inflight)*maxData)
	if err != nil {
		return err
	}
	l.claimed, l.next = now, next
	for _, w := range found {
		if !l.inflight[w.seq] {
			l.held = append(l.held, w)
			q.held += len(w.event.data)
		}
	}
	return nil
}

// done takes back a delivery whose result is committed; next is when it is due
// again, or noneDue.
func (q *queue) done(w *work, next int64) {
	l := q.lanes[w.subSeq]
	delete(l.inflight, w.seq)
	if next < l.next {
		l.next = next
	}
	q.place(l)
}

// forget drops what every lane holds, so that it is read again: something that
// it depends on may have changed.
func (q *queue) forget() {
	for _, l := range q.lanes {
		if len(l.held) > 0 {
			q.drop(l)
			q.place(l)
		}
	}
}

// scan finds every subscription with pending deliveries and its first due
// time, by stepping through the index from one subscription to the next: the
// cost is that of the subscriptions, not of the deliveries.
func (q *queue) scan(ctx context.Context) (subscriptions int, err error) {
	reader := q.db.Reader(ctx)
	rows, err := reader.Query(`
		WITH RECURSIVE sub(seq) AS (
		  SELECT MIN(sub_seq) FROM webhook_deliveries WHERE status = 'pending'
		  UNION ALL
		  SELECT (SELECT MIN(sub_seq) FROM webhook_deliveries WHERE status = 'pending' AND sub_seq > sub.seq) FROM sub WHERE sub.seq IS NOT NULL
		)
		SELECT seq, (SELECT MIN(next_attempt_at_ms) FROM webhook_deliveries WHERE status = 'pending' AND sub_seq = seq)
		FROM sub WHERE seq IS NOT NULL`)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var sub, next int64
		if err := rows.Scan(&sub, &next); err != nil {
			return subscriptions, err
		}
		subscriptions++
		if l := q.lanes[sub]; l == nil || len(l.held) == 0 && len(l.inflight) == 0 {
			q.wake(sub, next)
		}
	}
	return subscriptions, rows.Err()
}

// waiting is a heap of lanes by their next due time.
type waiting []*lane

func (h waiting) Len() int           { return len(h) }
func (h waiting) Less(i, j int) bool { return h[i].next < h[j].next }
func (h waiting) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *waiting) Push(x any) {
	l := x.(*lane)
	l.index = len(*h)
	*h = append(*h, l)
}

// Pop implements heap.Interface.
func (h *waiting) Pop() any {
	old := *h
	l := old[len(old)-1]
	l.index = -1
	*h = old[:len(old)-1]
	return l
}
