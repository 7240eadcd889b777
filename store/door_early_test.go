package store_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"jpintel/store"
)

// refusing reads, and then refuses.
func refusing(tx *store.Tx) error {
	var n int
	return errors.Join(tx.QueryRow(`SELECT COUNT(*) FROM numbers`).Scan(&n), errBoom)
}

func panicking(tx *store.Tx) error {
	_ = insert(9)(tx)
	panic(errBoom)
}

// Who fails early disturbs nobody; nor does the first in a transaction, whenever
// it fails, since nothing of others is undone with it.
func TestEarlyFailures(t *testing.T) {
	for what, c := range map[string]struct {
		fns  []func(*store.Tx) error
		want []int
	}{
		"early":                  {[]func(*store.Tx) error{refusing, insert(1), refusing, insert(2)}, []int{1, 2}},
		"late, the first":        {[]func(*store.Tx) error{failing(insert(1)), insert(2)}, []int{2}},
		"late, those before too": {[]func(*store.Tx) error{refusing, failing(insert(1)), failing(insert(2)), insert(3)}, []int{3}},
		"with a panic":           {[]func(*store.Tx) error{panicking, insert(2)}, []int{2}},
		"all":                    {[]func(*store.Tx) error{failing(insert(1)), refusing}, nil},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := newNumbers(t)
				for i, got := range batchOf(db, db.WriteEarly, c.fns...) {
					if got.err != nil && !errors.Is(got.err, errBoom) {
						t.Errorf("caller %d got %v", i, got.err)
					}
				}
				if got := numbers(t, db); !slices.Equal(got, c.want) {
					t.Errorf("wrote %d, want %d", got, c.want)
				}
				write(t, db, insert(7)) // the door lives on
			})
		})
	}
}

// Who was to fail early and fails late takes everybody with it: they are told,
// and nothing is half written.
func TestLateFailure(t *testing.T) {
	for what, late := range map[string]func(*store.Tx) error{"error": failing(insert(2)), "panic": panicking} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := newNumbers(t)
				answers := batchOf(db, db.WriteEarly, insert(1), late, insert(3))
				for i, got := range answers {
					if store.CodeOf(got.err) != store.CodeUnavailable && got.panics == nil {
						t.Errorf("caller %d got %v", i, got.err)
					}
				}
				if (answers[1].panics != nil) != (what == "panic") || answers[0].panics != nil {
					t.Errorf("panics: %v", answers)
				}
				if got := numbers(t, db); len(got) != 0 {
					t.Errorf("wrote %d", got)
				}
				write(t, db, insert(7)) // the door lives on
			})
		})
	}
}
