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
	// callers, with what they have given to Follow, in their order. Where it
	// fails, nothing of it is kept, nobody else's work is undone, and the failure
	// is logged.
	Run func(tx *Tx, given []any) error
}

// following is one call of Follow.
type following struct {
	*Follower
	given any
}

// Follow has f run at the end of this transaction, and gives it something to
// work with, unless the caller's function fails. However many ask, it runs once.
func (tx *Tx) Follow(f *Follower, given any) { tx.follow = append(tx.follow, following{f, given}) }

// followers are those of one transaction, each once, with all that is for it.
type followers []*follower

type follower struct {
	*Follower
	given []any
}

func (f *followers) add(more []following) {
	for _, one := range more {
		i := slices.IndexFunc(*f, func(known *follower) bool { return known.Follower == one.Follower })
		if i < 0 {
			i = len(*f)
			*f = append(*f, &follower{Follower: one.Follower})
		}
		(*f)[i].given = append((*f)[i].given, one.given)
	}
}

// follow runs the followers of a transaction, and returns what they want to be
// woken, or why the transaction is lost.
func (d *door) follow(now time.Time, all followers) (wakes []func(), err error) {
	for _, f := range all {
		tx, c := &Tx{Now: now, door: d}, &call{fn: func(tx *Tx) error { return f.Run(tx, f.given) }}
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
