package webhook

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"time"

	"golang.org/x/time/rate"

	"jpintel/store"
)

// noneDue says that a subscription has nothing pending.
const noneDue = math.MaxInt64

const (
	// claimRows is how many deliveries one claim reads at most. A lane begins
	// with a few and reads twice as many each time that it has used them up.
	claimRows = 128
	// claimBytes bounds the bodies that one claim reads, and heldBytes those
	// that all of them hold: memory is bounded in bytes, not in rows.
	claimBytes = 256 << 10
	heldBytes  = 8 << 20
	// staleAfter is how long a claim and a target are trusted: both are read
	// again after that.
	staleAfter = 2 * time.Second
	// ahead times as many deliveries as can be sent at once may be given out and
	// not be committed: the answers that are in wait for their transaction, and
	// the slots do not.
	ahead = 8
	// probationShare of the slots are for the lanes on probation, all together.
	probationShare = 4
)

// queue is the due work of all subscriptions, in memory, for one at a time.
// Each subscription has a lane. Lanes that have something due stand in a ring
// and give one delivery in their turn, so a subscription with a long backlog
// takes no more than its share; the others wait in a heap for their time: that
// of their next due delivery, or of the next request that their URL's rate
// allows. It is rebuilt from the file by scan.
//
// A subscription that is new, or whose last outcome was a timeout or no
// connection, is on probation: one request at a time, and all of those together
// have a quarter of the slots. So a few dead endpoints, ten seconds a request,
// cannot take the slots of those that answer.
type queue struct {
	db  *store.DB
	opt queueOptions

	lanes   map[int64]*lane
	ring    []*lane
	parked  []*lane // on probation, due, waiting for one of probation's slots
	waits   waiting
	probing int                      // probation's slots in use
	given   int                      // deliveries in flight, in all lanes
	held    int                      // bytes of bodies that lanes hold
	rates   map[string]*rate.Limiter // by customer and URL
}

// queueOptions are the limits of a queue.
type queueOptions struct {
	slots   int // requests in flight, in all
	perLane int // to one subscription
	rate    int // a second, and as a burst, to one URL of a customer; 0: no limit
	cap     *DailyCap
	// betaOnly: what customers without the beta flag would be sent waits.
	betaOnly bool
}

// lane is one subscription's work.
type lane struct {
	sub       int64
	held      []work // claimed, not given out yet
	rows      int    // how many the next claim reads
	seen      int64  // the last delivery that was claimed or added
	claimed   time.Time
	target    *target // as it was read at aimed
	aimed     time.Time
	inflight  map[int64]*work // by delivery_seq: given out, result not yet committed
	sending   int             // of these, those whose request is under way
	next      int64           // when the first delivery that is not held may be due, ms; noneDue
	ready     int64           // not before this time, ms: the URL's rate
	probation bool            // as the last claim or result says
	placed    placement
	index     int // in waits; -1: not there
}

// placement is where a lane stands.
type placement int

const (
	nowhere placement = iota
	inRing
	inParked
	inWaits
)

func newQueue(db *store.DB, opt queueOptions) *queue {
	return &queue{db: db, opt: opt, lanes: map[int64]*lane{}, rates: map[string]*rate.Limiter{}}
}

// wake says that a subscription has, or will have, a delivery due at that time.
func (q *queue) wake(sub, at int64) {
	l := q.lane(sub, true)
	l.next = min(l.next, at)
	q.place(l)
}

// lane is a subscription's lane. A new one is on probation until its target is
// read, or as the caller knows.
func (q *queue) lane(sub int64, probation bool) *lane {
	l := q.lanes[sub]
	if l == nil {
		l = &lane{sub: sub, next: noneDue, index: -1, inflight: map[int64]*work{}, probation: probation}
		q.lanes[sub] = l
	}
	return l
}

// add takes a delivery that was just committed, so that it need not be read. A
// lane that has others waiting in the file, or enough in memory, finds it there.
func (q *queue) add(w *work, now time.Time) {
	l := q.lane(w.subSeq, false) // a new one's target says more before anything is sent
	switch {
	case w.seq <= l.seen, // a claim may have found it before it was told of
		l.next <= now.UnixMilli(), l.placed == inParked,
		len(l.held) >= claimRows, q.held > heldBytes, l.probation && len(l.held) > 0:
		l.next = min(l.next, w.dueMS)
	default:
		if len(l.held) == 0 {
			l.claimed = now
		}
		q.hold(l, *w)
	}
	q.place(l)
}

func (q *queue) hold(l *lane, w work) {
	l.held = append(l.held, w)
	l.seen = max(l.seen, w.seq)
	q.held += len(w.event.data)
}

// busy reports whether the lane may give nothing more for now. On probation its
// last result has to be in the file, since that is what decides.
func (q *queue) busy(l *lane) bool {
	if l.probation {
		return len(l.inflight) >= 1
	}
	return l.sending >= q.opt.perLane || len(l.inflight) >= ahead*q.opt.perLane
}

// full reports whether as much is given out as may be without being committed.
func (q *queue) full() bool { return q.given >= ahead*q.opt.slots }

// probationSlots is how many requests all lanes on probation may have.
func (q *queue) probationSlots() int { return max(1, q.opt.slots/probationShare) }

// due is when the lane may give something next.
func (l *lane) due() int64 {
	if len(l.held) > 0 {
		return l.ready
	}
	return max(l.next, l.ready)
}

// place puts a lane where it belongs: into the heap when it waits for a time,
// nowhere when it is busy or empty. The ring and the parking place keep theirs.
func (q *queue) place(l *lane) {
	if l.placed == inRing || l.placed == inParked {
		return
	}
	if len(l.held) == 0 && l.next == noneDue || q.busy(l) {
		q.unplace(l) // wake, sent or done brings it back
		return
	}
	if l.placed == inWaits {
		heap.Fix(&q.waits, l.index)
		return
	}
	l.placed = inWaits
	heap.Push(&q.waits, l)
}

func (q *queue) unplace(l *lane) {
	if l.placed == inWaits {
		heap.Remove(&q.waits, l.index)
	}
	l.placed = nowhere
}

func (q *queue) enring(l *lane) {
	q.unplace(l)
	l.placed = inRing
	q.ring = append(q.ring, l)
}

// due moves the lanes whose time has come to the ring, and returns when the
// next one's does.
func (q *queue) due(now time.Time) (next int64) {
	for len(q.waits) > 0 {
		if l := q.waits[0]; l.due() > now.UnixMilli() {
			return l.due()
		}
		q.enring(q.waits[0])
	}
	return noneDue
}

// ready reports whether a lane's turn has come.
func (q *queue) ready() bool { return len(q.ring) > 0 }

// take gives out one delivery that may be sent now, of the subscription whose
// turn it is, or nil. The delivery stays in flight until done.
func (q *queue) take(ctx context.Context, now time.Time) (*work, error) {
	q.due(now)
	for l := q.turn(); l != nil; l = q.turn() {
		w, err := q.takeFrom(ctx, l, now)
		if err != nil {
			l.ready = now.Add(time.Second).UnixMilli() // a lane that cannot be read must not spin
			l.next = min(l.next, l.ready)
		}
		q.place(l)
		if w != nil || err != nil {
			return w, err
		}
	}
	return nil, nil
}

// turn is the lane whose turn it is: first those that have waited for a slot
// of probation, if there is one, then the ring.
func (q *queue) turn() (l *lane) {
	switch {
	case len(q.parked) > 0 && q.probing < q.probationSlots():
		l, q.parked = q.parked[0], q.parked[1:]
	case len(q.ring) > 0:
		l, q.ring = q.ring[0], q.ring[1:]
	default:
		return nil
	}
	l.placed = nowhere
	return l
}

func (q *queue) takeFrom(ctx context.Context, l *lane, now time.Time) (*work, error) {
	if len(l.held) > 0 && now.Sub(l.claimed) > staleAfter {
		q.drop(l)
	}
	if l.probation && q.park(l) { // before reading what could not be sent
		return nil, nil
	}
	if err := q.aim(ctx, l, now); err != nil {
		return nil, fmt.Errorf("subscription %d: %w", l.sub, err)
	}
	if len(l.held) == 0 {
		if err := q.claim(ctx, l, now); err != nil || len(l.held) == 0 {
			return nil, err
		}
	}
	if q.busy(l) {
		return nil, nil
	}
	if l.probation && q.park(l) {
		return nil, nil
	}
	l.held[0].address(l.target)
	if l.ready = q.readyAt(&l.held[0], now); l.ready > now.UnixMilli() {
		if q.held > heldBytes {
			q.drop(l)
		}
		return nil, nil
	}
	return q.give(ctx, l, now)
}

// park sets a lane aside until one of probation's slots is free, if none is. A
// lane that is set aside holds nothing: there may be thousands.
func (q *queue) park(l *lane) bool {
	if q.probing < q.probationSlots() {
		return false
	}
	q.drop(l)
	l.placed = inParked
	q.parked = append(q.parked, l)
	return true
}

func (q *queue) give(ctx context.Context, l *lane, now time.Time) (*work, error) {
	w := l.held[0]
	if w.refused == "" {
		day, ok, err := q.opt.cap.take(ctx, w.target.customerID, now)
		if err != nil {
			return nil, err
		}
		w.day, w.capped = day, !ok
	}
	l.held = l.held[1:]
	q.held -= len(w.event.data)
	l.inflight[w.seq] = &w
	l.sending++
	q.given++
	if w.probing = l.probation; w.probing {
		q.probing++
	}
	return &w, nil
}

// readyAt takes one request of the URL's rate, or says when there will be one.
// The rate is the customer's: all its subscriptions with that URL share it.
func (q *queue) readyAt(w *work, now time.Time) int64 {
	if q.opt.rate == 0 || w.refused != "" {
		return 0
	}
	key := w.target.customerID + " " + w.target.url
	limiter := q.rates[key]
	if limiter == nil {
		q.forgetIdleRates(now)
		limiter = rate.NewLimiter(rate.Limit(q.opt.rate), q.opt.rate)
		q.rates[key] = limiter
	}
	r := limiter.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait <= 0 {
		return 0
	}
	r.CancelAt(now)
	return now.Add(wait).UnixMilli() + 1 // whole milliseconds, never early
}

// maxRates is how many URLs' rates are remembered before those that are full
// again, and so say nothing, are forgotten.
const maxRates = 4096

func (q *queue) forgetIdleRates(now time.Time) {
	if len(q.rates) < maxRates {
		return
	}
	for key, limiter := range q.rates {
		if limiter.TokensAt(now) >= float64(q.opt.rate) {
			delete(q.rates, key)
		}
	}
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
	rows, bytes := l.claimSize(q.opt.perLane), claimBytes
	if q.held > heldBytes { // memory is full: one at a time
		rows, bytes = 1, maxData
	}
	read := rows + len(l.inflight)
	found, err := claim(q.db.Reader(ctx), l.target, now, read, bytes+len(l.inflight)*maxData)
	if err != nil {
		return fmt.Errorf("subscription %d: %w", l.sub, err)
	}
	l.claimed, l.next = now, found.next
	for _, w := range found.due {
		if l.inflight[w.seq] == nil {
			q.hold(l, w)
		}
	}
	l.rows = 0
	if len(l.held) >= rows && !l.probation {
		l.rows = min(2*rows, claimRows)
	}
	return nil
}

// aim reads where the lane's deliveries go, and with what right, unless it has
// done so a moment ago. What the lane holds for a subscription that was disabled
// since is for the sweep.
func (q *queue) aim(ctx context.Context, l *lane, now time.Time) error {
	if l.target != nil && now.Sub(l.aimed) <= staleAfter && now.UnixMilli() < l.target.until {
		return nil
	}
	t, err := readTarget(q.db.Reader(ctx), q.db.Keys, l.sub, now)
	if err != nil {
		return err
	}
	t.waits = q.opt.betaOnly && !t.beta
	l.target, l.aimed, l.probation = t, now, t.probation
	if len(l.held) > 0 && (t.disabled || t.waits || l.held[0].generation != t.generation) {
		q.drop(l)
	}
	return nil
}

// claimSize is how many deliveries the next claim reads: as many as can be sent
// at once, and more where the last claim was used up.
func (l *lane) claimSize(perLane int) int { return max(perLane, l.rows) }

// sent takes note that a delivery's request is over. Its result is not in the
// file yet, so the delivery stays in flight.
func (q *queue) sent(w *work) {
	l := q.lanes[w.subSeq]
	l.sending--
	w.sent = true
	q.place(l)
}

// done takes back a delivery whose result is committed.
func (q *queue) done(s settled) {
	l := q.lanes[s.work.subSeq]
	w := l.inflight[s.work.seq]
	if !w.sent {
		l.sending--
	}
	if w.probing {
		q.probing--
	}
	q.given--
	delete(l.inflight, w.seq)
	l.next = min(l.next, s.next)
	l.probation = s.probation
	if s.disabled != "" {
		l.target = nil
		q.drop(l)
	}
	q.place(l)
}

// forget drops what lanes hold, so that it is read again: something that it
// depends on has changed. No subscription is named: all of them.
func (q *queue) forget(subs ...int64) {
	if len(subs) == 0 {
		for _, l := range q.lanes {
			q.forgetLane(l)
		}
	}
	for _, sub := range subs {
		if l := q.lanes[sub]; l != nil {
			q.forgetLane(l)
		}
	}
}

func (q *queue) forgetLane(l *lane) {
	l.target = nil
	if len(l.held) > 0 {
		q.drop(l)
		q.place(l)
	}
}

const scanQuery = `
	WITH RECURSIVE sub(seq) AS (
	  SELECT MIN(sub_seq) FROM webhook_deliveries WHERE status = 'pending'
	  UNION ALL
	  SELECT (SELECT MIN(sub_seq) FROM webhook_deliveries WHERE status = 'pending' AND sub_seq > sub.seq) FROM sub WHERE sub.seq IS NOT NULL
	)
	SELECT seq, (SELECT MIN(next_attempt_at_ms) FROM webhook_deliveries WHERE status = 'pending' AND sub_seq = seq),
	  (SELECT probation FROM webhook_subscriptions WHERE sub_seq = seq)
	FROM sub WHERE seq IS NOT NULL`

// scan finds every subscription with pending deliveries and its first due
// time, by stepping through the index from one subscription to the next: the
// cost is that of the subscriptions, not of the deliveries.
func (q *queue) scan(ctx context.Context) (subscriptions int, err error) {
	q.forgetIdle(time.Now())
	rows, err := q.db.Reader(ctx).Query(scanQuery)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var sub, next int64
		var probation bool
		if err := rows.Scan(&sub, &next, &probation); err != nil {
			return subscriptions, err
		}
		subscriptions++
		if l := q.lane(sub, probation); len(l.held) == 0 && len(l.inflight) == 0 {
			q.wake(sub, next)
		}
	}
	return subscriptions, rows.Err()
}

// forgetIdle forgets the lanes that have nothing to do and whose target would
// have to be read again anyway.
func (q *queue) forgetIdle(now time.Time) {
	for sub, l := range q.lanes {
		if l.placed == nowhere && len(l.held)+len(l.inflight) == 0 && l.next == noneDue && now.Sub(l.aimed) > staleAfter {
			delete(q.lanes, sub)
		}
	}
}

// waiting is a heap of lanes by the time that they wait for.
type waiting []*lane

func (h waiting) Len() int           { return len(h) }
func (h waiting) Less(i, j int) bool { return h[i].due() < h[j].due() }
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
