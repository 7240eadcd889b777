package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"jpintel/store"
	"jpintel/webhook"
)

const (
	// historyDays is how long ago the oldest finished delivery was made: less
	// than they are kept.
	historyDays = 7
	// historyEach is how many deliveries an event of the history has, where
	// there are as many subscriptions.
	historyEach = 10
	// prefillRows is how many deliveries a transaction writes.
	prefillRows = 5000
)

// file is the service's file while nobody serves it. What is written into it
// are rows as the service would have left them.
type file struct {
	db      *store.DB
	ok      []int64 // sub_seq of the subscriptions that answer, in the order of their URLs
	dead    []int64
	lastSub int64 // up to where a complete fan-out has come
	program int   // the number of the next one
}

// withFile opens the file while nobody serves it.
func withFile(ctx context.Context, path string, fn func(*file) error) error {
	db, err := store.Open(ctx, path, store.Options{})
	if err != nil {
		return err
	}
	defer db.Close()
	f := &file{db: db}
	if err := f.readSubscriptions(ctx); err != nil {
		return err
	}
	// No load puts as many as these.
	if err := db.Reader(ctx).QueryRow(`SELECT COALESCE(MAX(seq), 0) + 500000000 FROM outbox_events`).Scan(&f.program); err != nil {
		return err
	}
	return fn(f)
}

// readSubscriptions finds out which subscription is which: the last part of its
// URL's path is its number.
func (f *file) readSubscriptions(ctx context.Context) error {
	rows, err := f.db.Reader(ctx).Query(`SELECT sub_seq, url FROM webhook_subscriptions`)
	if err != nil {
		return err
	}
	type subscription struct {
		seq int64
		url string
	}
	all, err := store.Collect(rows, func(r *sql.Rows) (s subscription, err error) {
		err = r.Scan(&s.seq, &s.url)
		return s, err
	})
	if err != nil {
		return err
	}
	f.ok, f.dead = make([]int64, len(all)), make([]int64, len(all))
	healthy := 0
	for _, s := range all {
		f.lastSub = max(f.lastSub, s.seq)
		u, err := url.Parse(s.url)
		if err != nil {
			return err
		}
		i, err := strconv.Atoi(path.Base(u.Path))
		if err != nil {
			return err
		}
		if strings.HasPrefix(u.Path, pathDead) {
			f.dead[i] = s.seq
		} else {
			f.ok[i] = s.seq
			healthy++
		}
	}
	f.ok, f.dead = f.ok[:healthy], f.dead[:len(all)-healthy]
	return nil
}

// history writes finished deliveries with their attempts.
func (f *file) history(ctx context.Context, count int) error {
	subs := f.ok[:min(historyEach, len(f.ok))]
	events := (count + len(subs) - 1) / len(subs)
	step := historyDays * 24 * time.Hour / time.Duration(max(events, 1))
	began := time.Now().Add(-historyDays * 24 * time.Hour)
	return f.write(ctx, "success", events, len(subs), func(tx *store.Tx, i int) (int, error) {
		at := began.Add(time.Duration(i) * step)
		seq, err := f.addEvent(tx, at, elsewhere)
		if err != nil {
			return 0, err
		}
		left := min(len(subs), count-i*len(subs))
		return left, addFinished(tx, seq, subs[:left], at.UnixMilli())
	})
}

// backlog writes deliveries that are due now: count events, each to those
// subscriptions that to says.
func (f *file) backlog(ctx context.Context, count, each int, to func(i int) (area string, subs []int64)) error {
	return f.write(ctx, "pending", count, each, func(tx *store.Tx, i int) (int, error) {
		area, subs := to(i)
		seq, err := f.addEvent(tx, tx.Now, area)
		if err != nil {
			return 0, err
		}
		return len(subs), addPending(tx, seq, subs)
	})
}

// write adds events, each with about as many deliveries in a state, in
// transactions of a size at which the write-ahead log stays small.
func (f *file) write(ctx context.Context, status string, events, each int, add func(tx *store.Tx, i int) (int, error)) error {
	step := max(1, prefillRows/max(each, 1))
	for from := 0; from < events; from += step {
		if err := f.db.Write(ctx, func(tx *store.Tx) error {
			total := 0
			for i := from; i < min(from+step, events); i++ {
				n, err := add(tx, i)
				if err != nil {
					return err
				}
				total += n
			}
			_, err := tx.Exec(`UPDATE webhook_totals SET deliveries = deliveries + $1 WHERE status = $2`, total, status)
			return err
		}); err != nil {
			return fmt.Errorf("filling the file: %w", err)
		}
	}
	return context.Cause(ctx)
}

// addEvent writes an event whose fan-out is complete.
func (f *file) addEvent(tx *store.Tx, at time.Time, area string) (seq int64, err error) {
	p := program(f.program, at.UnixNano())
	f.program++
	attributes, err := json.Marshal(webhook.Attributes{"prefecture": {area}, "unified_id": {p.UnifiedID}})
	if err != nil {
		return 0, err
	}
	err = tx.QueryRow(`
		INSERT INTO outbox_events (event_id, event_type, subject_type, subject_id, occurred_at_ms, created_at, created_at_ms,
		  schema_version, attributes, data, fanout_cursor, published_at_ms)
		VALUES ($1, $2, 'program', $3, $4, $5, $4, '1', $6, $7, $8, $4) RETURNING seq`,
		tx.NewID("evt"), p.Type(), p.UnifiedID, at.UnixMilli(), at.Format("2006-01-02T15:04:05-07:00"), string(attributes), data(p), f.lastSub).Scan(&seq)
	return seq, err
}

func addFinished(tx *store.Tx, event int64, subs []int64, at int64) error {
	for _, sub := range subs {
		var delivery int64
		if err := tx.QueryRow(`
			INSERT INTO webhook_deliveries (delivery_id, event_seq, sub_seq, generation, envelope, status, attempt_count,
			  last_status, last_latency_ms, last_error_category, created_at_ms, finished_at_ms)
			SELECT $1, $2, sub_seq, generation, envelope, 'success', 1, 204, 1, '', $3, $3
			FROM webhook_subscriptions WHERE sub_seq = $4 RETURNING delivery_seq`,
			tx.NewID("dlv"), event, at, sub).Scan(&delivery); err != nil {
			return err
		}
		if _, err := tx.Exec(`
			INSERT INTO webhook_attempts (delivery_seq, attempt, started_at_ms, duration_ms, status, remote_addr)
			VALUES ($1, 1, $2, 1, 204, '127.0.1.100:40000')`, delivery, at); err != nil {
			return err
		}
	}
	return nil
}

func addPending(tx *store.Tx, event int64, subs []int64) error {
	for _, sub := range subs {
		if _, err := tx.Exec(`
			INSERT INTO webhook_deliveries (delivery_id, event_seq, sub_seq, generation, envelope, status, next_attempt_at_ms, created_at_ms)
			SELECT $1, $2, sub_seq, generation, envelope, 'pending', $3, $3
			FROM webhook_subscriptions WHERE sub_seq = $4`,
			tx.NewID("dlv"), event, tx.NowMS(), sub); err != nil {
			return err
		}
	}
	return nil
}

// reachable says that the dead subscriptions answered until now.
func (f *file) reachable(ctx context.Context) error {
	return f.db.Write(ctx, func(tx *store.Tx) error {
		for _, sub := range f.dead {
			if _, err := tx.Exec(`UPDATE webhook_subscriptions SET probation = 0 WHERE sub_seq = $1`, sub); err != nil {
				return err
			}
		}
		return nil
	})
}
