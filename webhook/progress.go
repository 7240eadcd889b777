package webhook

import (
	"fmt"
	"time"

	"jpintel/store"
)

// maxStreak answers in a row that retrying will not mend disable a
// subscription.
const maxStreak = 10

// rateBucket is the grain of success rates; rateWindow is what "the last hour"
// sums up; rateKept is how far back they go.
const (
	rateBucket = 5 * time.Minute
	rateWindow = time.Hour
	rateKept   = 25 * time.Hour
)

// progress is what a batch's results mean for one subscription.
type progress struct {
	sub         int64
	generation  int64 // results of an older one say nothing of this one
	streak      int
	probation   bool
	lastDNS     bool // the last outcome was a failed look-up: the next one counts
	ok, failed  int
	last        Result
	lastSuccess time.Time
	deadLetters int // since it was last enabled
	failing     failing
}

func readProgress(tx *store.Tx, sub int64) (*progress, error) {
	p := &progress{sub: sub}
	err := tx.QueryRow(`SELECT generation, failures_streak, probation, last_dns, dead_letters, COALESCE(failing_since_ms, 0) FROM webhook_subscriptions WHERE sub_seq = $1`, sub).
		Scan(&p.generation, &p.streak, &p.probation, &p.lastDNS, &p.deadLetters, &p.failing.inFile)
	p.failing.sinceMS = p.failing.inFile
	if err != nil {
		return nil, fmt.Errorf("reading subscription: %w", err)
	}
	return p, nil
}

// concerns reports whether a delivery belongs to the subscription as it is: a
// result that was under way while it was disabled and enabled again does not.
func (p *progress) concerns(w *work) bool { return w.target.generation == p.generation }

// add counts one result, in the order in which they came, and says whether the
// subscription must be disabled for it. limit is of nothing but failures, 0 for
// none.
func (p *progress) add(tx *store.Tx, r Result, limit time.Duration) Reason {
	if r.Category == CategoryInternal {
		return "" // our fault: it says nothing of the receiver
	}
	p.last = r
	if r.OK() {
		p.ok++
		p.failing.end()
		p.streak, p.probation, p.lastDNS, p.lastSuccess = 0, false, false, r.StartedAt.Add(r.Duration)
		return ""
	}
	p.failed++
	p.failing.begin(tx)
	p.probation = p.probation || unreachable(r.Category)
	if countsInStreak(r, p.lastDNS) {
		p.streak++
	}
	p.lastDNS = r.Category == CategoryDNS
	switch {
	case r.Status == 410:
		return ReasonGone
	case p.streak >= maxStreak:
		return ReasonStreak
	case p.failing.over(limit, tx.Now):
		return ReasonFailing
	}
	return ""
}

// bury counts a dead letter and reports whether there are more than limit now;
// a limit of 0 is none.
func (p *progress) bury(limit int) bool {
	p.deadLetters++
	return limit > 0 && p.deadLetters > limit
}

// countsInStreak reports whether a failure is one that retrying will not mend:
// the receiver is there and refuses, its address is not allowed, or its name
// keeps failing. A server error or a network error leaves the streak as it is.
func countsInStreak(r Result, afterDNS bool) bool {
	switch r.Category {
	case Category4xx:
		return r.Status != 408 && r.Status != 425
	case CategoryRedirect, CategoryBlocked:
		return true
	case CategoryDNS:
		return afterDNS
	}
	return false
}

// unreachable reports outcomes that hold a slot for long.
func unreachable(c Category) bool {
	switch c {
	case CategoryDNS, CategoryConnectRefused, CategoryConnectTimeout, CategoryTLS, CategoryTimeout, CategoryReset:
		return true
	}
	return false
}

func (p *progress) write(tx *store.Tx) error {
	if p.ok+p.failed == 0 {
		return nil
	}
	var success any
	if !p.lastSuccess.IsZero() {
		success = p.lastSuccess.UnixMilli()
	}
	_, err := tx.Exec(`
		UPDATE webhook_subscriptions SET failures_streak = $1, probation = $2, last_dns = $3, last_delivery_at_ms = $4,
		  last_success_at_ms = COALESCE($5, last_success_at_ms), last_status = $6, dead_letters = $7 WHERE sub_seq = $8`,
		p.streak, store.Bit(p.probation), store.Bit(p.lastDNS), p.last.StartedAt.Add(p.last.Duration).UnixMilli(), success, store.Nullable(p.last.Status), p.deadLetters, p.sub)
	if err != nil {
		return fmt.Errorf("updating subscription: %w", err)
	}
	if err := p.failing.write(tx, p.sub); err != nil {
		return err
	}
	return p.writeRate(tx)
}

// writeRate counts the outcomes of these five minutes. The first of them
// forgets those that no page shows any more.
func (p *progress) writeRate(tx *store.Tx) error {
	bucket := tx.Now.Truncate(rateBucket).UnixMilli()
	n, err := tx.Update(`UPDATE webhook_rates SET ok = ok + $1, failed = failed + $2 WHERE sub_seq = $3 AND bucket_ms = $4`, p.ok, p.failed, p.sub, bucket)
	if err != nil {
		return fmt.Errorf("counting outcomes: %w", err)
	}
	if n > 0 {
		return nil
	}
	if _, err := tx.Exec(`INSERT INTO webhook_rates (sub_seq, bucket_ms, ok, failed) VALUES ($1, $2, $3, $4)`, p.sub, bucket, p.ok, p.failed); err != nil {
		return fmt.Errorf("counting outcomes: %w", err)
	}
	if _, err := tx.Exec(`DELETE FROM webhook_rates WHERE sub_seq = $1 AND bucket_ms < $2`, p.sub, tx.Now.Add(-rateKept).UnixMilli()); err != nil {
		return fmt.Errorf("forgetting outcomes: %w", err)
	}
	return nil
}
