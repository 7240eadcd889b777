package webhook

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"jpintel/store"
)

const (
	// replayRows is how many deliveries or events one step of a job looks at.
	replayRows = 500
	// replayAhead is how many deliveries of a subscription may be pending while a
	// job adds more: new events wait behind no more than these.
	replayAhead = 1000
	// replayReserve is the part of a day's attempts that jobs leave to new events:
	// with nothing left, the next one would have its subscription disabled.
	replayReserve = 10
	// replayPause is how long jobs that cannot go on are left alone.
	replayPause = time.Second
)

// replayer runs the replay jobs in steps, each a transaction, in turn: its
// deliveries and how far the job has come. A crash resumes where it was, and
// nothing is queued twice.
//
// A job does not use up a customer's day: it adds a delivery only while there is
// room for all attempts that its schedule may take, for all of those that wait
// already, and for some of new events. The rest is for the next day.
type replayer struct {
	db       *store.DB
	cap      *DailyCap
	attempts int // of one schedule, at most
	wake     func(subs []int64)

	after  int64     // the job that had the last turn
	moved  bool      // a job has moved on since the first one's turn
	paused time.Time // until when nothing is tried
}

// replayJob is a job that is running.
type replayJob struct {
	seq          int64
	sub          int64
	customer     string
	status       Status
	since, until int64 // ms
	cursor       int64

	// What a step adds.
	matched, queued int
	done            bool
}

const replayJobColumns = `
	SELECT r.replay_seq, r.sub_seq, s.customer_id, r.status, r.since_ms, r.until_ms, r.cursor
	FROM webhook_replays r JOIN webhook_subscriptions s ON s.sub_seq = r.sub_seq `

func readReplayJob(q store.Querier, where string, arg any) (j replayJob, ok bool, err error) {
	err = q.QueryRow(replayJobColumns+where, arg).Scan(&j.seq, &j.sub, &j.customer, &j.status, &j.since, &j.until, &j.cursor)
	if errors.Is(err, sql.ErrNoRows) {
		return j, false, nil
	}
	if err != nil {
		return j, false, fmt.Errorf("reading replays: %w", err)
	}
	return j, true, nil
}

// step runs one step of the job whose turn it is. It is the worker's alone, and
// takes turns with the fan-out.
func (r *replayer) step(ctx context.Context) (more bool, err error) {
	if time.Now().Before(r.paused) {
		return false, nil
	}
	j, ok, err := readReplayJob(r.db.Reader(ctx), `WHERE r.state = 'running' AND r.replay_seq > $1 ORDER BY r.replay_seq LIMIT 1`, r.after)
	if err != nil {
		return false, err
	}
	if !ok {
		return r.round(), nil
	}
	r.after = j.seq
	room, err := r.room(ctx, &j, time.Now())
	if err != nil || room <= 0 {
		return err == nil, err
	}
	err = r.db.WriteBackground(ctx, func(tx *store.Tx) error { return r.advance(tx, &j, room) })
	if err != nil {
		return true, err
	}
	r.moved = true
	if j.queued > 0 {
		r.wake([]int64{j.sub})
	}
	return true, nil
}

// round begins with the first job again: at once where one of them has moved on,
// else after a pause.
func (r *replayer) round() (more bool) {
	if r.after > 0 && !r.moved {
		r.paused = time.Now().Add(replayPause)
	}
	more = r.moved
	r.after, r.moved = 0, false
	return more
}

// room is how many deliveries the job may add now.
func (r *replayer) room(ctx context.Context, j *replayJob, now time.Time) (int, error) {
	q := r.db.Reader(ctx)
	pending, err := countUpTo(q, `webhook_deliveries WHERE sub_seq = $1 AND status = 'pending'`, replayAhead, j.sub)
	if err != nil {
		return 0, err
	}
	room := replayAhead - pending
	if r.cap.max() == 0 {
		return room, nil
	}
	left, err := r.cap.left(ctx, j.customer, now)
	if err != nil {
		return 0, err
	}
	left = (left - r.cap.max()/replayReserve) / min(r.attempts, r.cap.max())
	if left <= 0 {
		return 0, nil
	}
	due, err := countUpTo(q, `
		webhook_subscriptions s JOIN webhook_deliveries d ON d.sub_seq = s.sub_seq
		WHERE s.customer_id = $1 AND s.disabled_at_ms IS NULL AND d.status = 'pending' AND d.next_attempt_at_ms < $2`,
		left, j.customer, nextDay(now, r.db.Location).UnixMilli())
	return min(room, left-due), err
}

// countUpTo counts rows, and stops at a limit.
func countUpTo(q store.Querier, from string, limit int, args ...any) (n int, err error) {
	query := fmt.Sprintf(`SELECT COUNT(*) FROM (SELECT 1 FROM %s LIMIT $%d)`, from, len(args)+1)
	if err := q.QueryRow(query, append(args, limit)...).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting deliveries: %w", err)
	}
	return n, nil
}

// advance takes a job on, unless it was stopped meanwhile, and adds no more than
// room.
func (r *replayer) advance(tx *store.Tx, j *replayJob, room int) error {
	now, ok, err := readReplayJob(tx, `WHERE r.state = 'running' AND r.replay_seq = $1`, j.seq)
	if *j = now; err != nil || !ok {
		return err
	}
	if j.status == statusMissed {
		err = r.recover(tx, j, room)
	} else {
		err = j.replay(tx, room)
	}
	if err != nil {
		return err
	}
	return j.write(tx)
}

func (j *replayJob) write(tx *store.Tx) error {
	state, finished := ReplayRunning, any(nil)
	if j.done {
		state, finished = ReplayDone, tx.NowMS()
	}
	if _, err := tx.Exec(`
		UPDATE webhook_replays SET cursor = $1, matched = matched + $2, queued = queued + $3, skipped = skipped + $4, state = $5, finished_at_ms = $6
		WHERE replay_seq = $7`, j.cursor, j.matched, j.queued, j.matched-j.queued, string(state), finished, j.seq); err != nil {
		return fmt.Errorf("advancing replay: %w", err)
	}
	return nil
}

// concerns reports whether something that was made at this time is for the job.
func (j *replayJob) concerns(createdMS int64) bool {
	return j.since <= createdMS && createdMS < j.until
}

const replayQuery = `
	SELECT ` + replayableColumns + `
	FROM webhook_deliveries d JOIN outbox_events e ON e.seq = d.event_seq
	WHERE d.sub_seq = $1 AND d.delivery_seq > $2 ORDER BY d.delivery_seq LIMIT $3`

// replay walks over the next deliveries and replays those that are in the job's
// state, as reads show it.
func (j *replayJob) replay(tx *store.Tx, room int) error {
	sub, err := readReplaySubscription(tx, j.sub)
	if err != nil {
		return err // unreachable: disabling stops the job
	}
	rows, err := tx.Query(replayQuery, j.sub, j.cursor, replayRows)
	if err != nil {
		return fmt.Errorf("reading deliveries: %w", err)
	}
	found, err := store.Collect(rows, func(rows *sql.Rows) (replayable, error) { return scanReplayable(rows) })
	if err != nil {
		return fmt.Errorf("reading deliveries: %w", err)
	}
	moved := totals{}
	for i := range found {
		if j.queued == room {
			return moved.write(tx)
		}
		d := &found[i]
		j.cursor = d.seq
		if d.derived(sub.generation) != j.status || !j.concerns(d.createdMS) {
			continue
		}
		j.matched++
		if !slices.Contains(sub.events, d.eventType) {
			continue
		}
		j.queued++
		if err := d.replay(tx, moved, sub.generation); err != nil {
			return err
		}
	}
	j.done = len(found) < replayRows
	return moved.write(tx)
}

// recover makes deliveries of the next events that the subscription has missed,
// and takes what it has looked at out of what is missed. Events of before the
// job's time, and of after, stay missed.
func (r *replayer) recover(tx *store.Tx, j *replayJob, room int) error {
	missed, ok, err := nextMissed(tx, j.sub, j.cursor)
	if err != nil || !ok {
		j.done = err == nil
		return err
	}
	begin := max(missed.from, j.cursor)
	found, err := readMissed(tx, j.customer, begin, missed.to)
	if err != nil {
		return err
	}
	whole := len(found) < replayRows // of the range
	skipped := 0
	for skipped < len(found) && !j.concerns(found[skipped].createdAtMS) {
		begin = found[skipped].seq
		skipped++
	}
	found = found[skipped:]
	n, err := r.deliver(tx, j, found, room)
	if err != nil {
		return err
	}
	j.cursor = begin
	if n > 0 {
		j.cursor = found[n-1].seq
	}
	if whole && n == len(found) {
		j.cursor = missed.to
	}
	if n == 0 && skipped > 0 {
		return nil
	}
	return missed.cut(tx, begin, j.cursor)
}

// deliver makes deliveries of the first events, as far as they are for the job
// and there is room, and returns how many it has looked at.
func (r *replayer) deliver(tx *store.Tx, j *replayJob, events []unpublished, room int) (n int, err error) {
	c, err := readCandidate(tx, j.sub)
	if err != nil {
		return 0, err
	}
	for n < len(events) && j.concerns(events[n].createdAtMS) && j.queued < room {
		e := &events[n]
		n++
		if !c.passes(e) {
			continue
		}
		j.matched++
		var made fanned
		if err := deliver(tx, e, &c, &made); err != nil {
			return n, err
		}
		j.queued += len(made.works)
	}
	added := totals{}
	added.move(int64(j.queued), "", StatusPending)
	return n, added.write(tx)
}

// readCandidate reads a subscription as the fan-out does; all of the events that it
// has missed may be for it.
func readCandidate(tx *store.Tx, subSeq int64) (candidate, error) {
	c := candidate{seq: subSeq}
	var events, filter string
	err := tx.QueryRow(`SELECT generation, envelope, events, filter FROM webhook_subscriptions WHERE sub_seq = $1`, subSeq).
		Scan(&c.generation, &c.envelope, &events, &filter)
	if err != nil {
		return c, fmt.Errorf("reading subscription: %w", err)
	}
	c.matcher, err = parseMatcher(subSeq, events, filter)
	return c, err
}

// readMissed reads of the next events what matching them needs; their data stays
// in the file.
func readMissed(tx *store.Tx, customer string, after, last int64) ([]unpublished, error) {
	f := feedWalk{customer: customer, after: after, last: last, limit: replayRows}
	rows, err := tx.Query(f.query(`seq, event_type, COALESCE(customer_id, ''), attributes, created_at_ms`), f.args()...)
	if err != nil {
		return nil, fmt.Errorf("reading the feed: %w", err)
	}
	return store.Collect(rows, func(rows *sql.Rows) (unpublished, error) {
		var e unpublished
		var attributes string
		if err := rows.Scan(&e.seq, &e.typ, &e.customer, &attributes, &e.createdAtMS); err != nil {
			return e, fmt.Errorf("reading the feed: %w", err)
		}
		if err := json.Unmarshal([]byte(attributes), &e.attributes); err != nil {
			return e, fmt.Errorf("event %d: attributes: %w", e.seq, err)
		}
		return e, nil
	})
}
