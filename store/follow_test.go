package store_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"jpintel/store"
	"jpintel/store/storetest"
)

// with asks for followers and does what fn does.
func with(fn func(*store.Tx) error, followers ...*store.Follower) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		for _, f := range followers {
			tx.Follow(f, nil)
		}
		return fn(tx)
	}
}

// A follower runs once, after all who share the transaction, sees what they
// have written and is committed with them. Nobody's follower does not run.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newNumbers(t)
		woken, ran := 0, 0
		f := &store.Follower{Run: func(tx *store.Tx, _ []any) error {
			ran++
			tx.AfterCommit(func() { woken++ })
			seen := 0
			if err := tx.QueryRow(`SELECT COUNT(*) FROM numbers`).Scan(&seen); err != nil {
				return err
			}
			return insert(100 + seen)(tx)
		}}
		batch(db, with(insert(1), f), insert(2), with(failing(insert(3)), f), with(insert(4), f, f))
		if got := numbers(t, db); !slices.Equal(got, []int{1, 2, 4, 103}) || ran != 1 || woken != 1 {
			t.Errorf("wrote %d; ran %d times, woke %d times", got, ran, woken)
		}
		batch(db, with(failing(insert(5)), f), insert(6))
		if got := numbers(t, db); !slices.Equal(got, []int{1, 2, 4, 6, 103}) || ran != 1 {
			t.Errorf("wrote %d; a follower of nobody ran", got)
		}
	})
}

// A follower that fails, in whatever way, undoes its own work and nobody else's.
func TestFollowerFails(t *testing.T) {
	errBoom := errors.New("boom")
	for what, fail := range map[string]func() error{
		"error": func() error { return errBoom },
		"panic": func() error { panic(errBoom) },
	} {
		t.Run(what, func(t *testing.T) {
			db := newNumbers(t)
			bad := &store.Follower{Run: func(tx *store.Tx, _ []any) error {
				tx.AfterCommit(func() { t.Error("it woke somebody") })
				return errors.Join(insert(2)(tx), fail())
			}}
			write(t, db, with(insert(1), bad, &store.Follower{Run: func(tx *store.Tx, _ []any) error { return insert(3)(tx) }}))
			if got := numbers(t, db); !slices.Equal(got, []int{1, 3}) {
				t.Errorf("wrote %d", got)
			}
		})
	}
}

// A follower under which the transaction is lost takes everybody with it: they
// are told, and nothing is half written.
func TestFollowerLosesTheTransaction(t *testing.T) {
	db := newNumbers(t)
	f := &store.Follower{Run: func(tx *store.Tx, _ []any) error {
		_, err := tx.Exec(`INSERT OR ROLLBACK INTO numbers (n) VALUES (1)`)
		return err
	}}
	if err := db.Write(t.Context(), with(insert(1), f)); store.CodeOf(err) != store.CodeUnavailable {
		t.Errorf("the caller got %v", err)
	}
	write(t, db, insert(2))
	if got := numbers(t, db); !slices.Equal(got, []int{2}) {
		t.Errorf("wrote %d", got)
	}
}

func TestInsert(t *testing.T) {
	db := storetest.New(t)
	addNumbers(t, db)
	write(t, db, func(tx *store.Tx) error {
		for i, want := range []int64{7, 0, 8} { // the second is there already
			got, err := tx.Insert(`INSERT INTO numbers (n) VALUES ($1) ON CONFLICT DO NOTHING`, 7+i/2)
			if err != nil || got != want {
				t.Errorf("insert %d: %d, %v; want %d", i, got, err, want)
			}
		}
		if _, err := tx.Insert(`INSERT INTO numbers (n) VALUES (7)`); err == nil {
			t.Error("no error for a row that is there")
		}
		return nil
	})
}
