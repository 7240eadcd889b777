package store

import (
	"fmt"
	"slices"
	"time"
)

// Follower is work that joins the transaction of those who ask for it with
// Tx.Follow: it sees what they have written, and is committed with it. It is
// bounded work, since everybody waits for it.
type Follower struct {
	// Run is called once in a transaction, after the functions of all its
	// callers. Where it fails, nothing of it is kept, nobody else's work is
	// undone, and the failure is logged.
	Run func(*Tx) error
}

// Follow has f run at the end of this transaction, unless the caller's function
// fails. However many ask, it runs once.
func (tx *Tx) Follow(f *Follower) { tx.follow = append(tx.follow, f) }

// followers are those of one transaction, each once.
type followers []*Follower

func (f *followers) add(more []*Follower) {
	for _, one := range more {
		if !slices.Contains(*f, one) {
			*f = append(*f, one)
		}
	}
}

// follow runs the followers of a transaction, and returns what they want to be
// woken, or why the transaction is lost.
func (d *door) follow(now time.Time, all followers) (wakes []func(), err error) {
	for _, f := range all {
		tx, c := &Tx{Now: now, door: d}, &call{fn: f.Run}
		err := d.savepoint(tx, c)
		if tx.lost != nil {
			return nil, fmt.Errorf("%w: %w", errTxLost, tx.lost)
		}
		if c.panics != nil {
			err = fmt.Errorf("panic: %v", c.panics)
		}
		if err != nil {
			d.log.Error("store_follower_failed", "error", err)
			continue
		}
		wakes = append(wakes, tx.commit...)
	}
	return wakes, nil
}
