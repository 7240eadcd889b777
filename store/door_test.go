package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

var errBoom = errors.New("boom")

func failing(fn func(*store.Tx) error) func(*store.Tx) error {
	return func(tx *store.Tx) error { return errors.Join(fn(tx), errBoom) }
}

func TestWaitingCallersShareATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newNumbers(t)
		const callers = 20
		var fns []func(*store.Tx) error
		var times []time.Time
		for i := range callers {
			fns = append(fns, func(tx *store.Tx) error {
				times = append(times, tx.Now)
				time.Sleep(time.Second) // a transaction of its own would bear another time
				return insert(i)(tx)
			})
		}
		for i, a := range batch(db, fns...) {
			if a.err != nil || a.panics != nil {
				t.Errorf("caller %d: %+v", i, a)
			}
		}
		if got := slices.Compact(times); len(got) != 1 {
			t.Errorf("times of the transaction: %v, want one", got)
		}
		if got := numbers(t, db); len(got) != callers {
			t.Errorf("rows %v, want %d", got, callers)
		}
	})
}

func TestFailureUndoesOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newNumbers(t)
		answers := batch(db,
			insert(1),
			failing(insert(2)),
			insert(3),
			func(tx *store.Tx) error { panic(insert(4)(tx)) }, // of nil: a *runtime.PanicNilError
			insert(5),
			func(tx *store.Tx) error { insert(6)(tx); panic(errBoom) },
			insert(1), // there already
		)
		for i, a := range answers {
			switch i {
			case 1:
				if !errors.Is(a.err, errBoom) {
					t.Errorf("caller %d: %+v, want its own error", i, a)
				}
			case 3:
				if a.panics == nil {
					t.Errorf("caller %d: %+v, want its own panic", i, a)
				}
			case 5:
				if a.panics != errBoom {
					t.Errorf("caller %d: %+v, want its own panic", i, a)
				}
			case 6:
				if !store.IsUnique(a.err) {
					t.Errorf("caller %d: %+v, want the violated key", i, a)
				}
			default:
				if a.err != nil || a.panics != nil {
					t.Errorf("caller %d: %+v, want success", i, a)
				}
			}
		}
		write(t, db, insert(7)) // the door lives on
		if got, want := numbers(t, db), []int{1, 3, 5, 7}; !slices.Equal(got, want) {
			t.Errorf("rows %v, want %v", got, want)
		}
	})
}

func TestLaterCallersOfABatchSeeEarlierOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newNumbers(t)
		var seen int
		batch(db, insert(1), failing(insert(2)), func(tx *store.Tx) error {
			return tx.QueryRow(`SELECT group_concat(n) FROM numbers`).Scan(&seen)
		})
		if seen != 1 {
			t.Errorf("saw %d, want the row of the first caller and not of the second", seen)
		}
	})
}

func TestQueuedCallIsWithdrawn(t *testing.T) {
	// queued is how many wait already: in a full queue there is not even a
	// place to wait.
	for _, queued := range []int{0, 512} {
		t.Run(fmt.Sprint(queued), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := newNumbers(t)
				release := hold(db)
				var others sync.WaitGroup
				for range queued {
					others.Go(func() { db.Write(context.Background(), func(*store.Tx) error { return nil }) })
				}
				synctest.Wait()
				ctx, cancel := context.WithCancelCause(context.Background())
				answer := make(chan error, 1)
				go func() { answer <- db.Write(ctx, insert(1)) }()
				synctest.Wait()
				cancel(errBoom)
				if err := <-answer; !errors.Is(err, errBoom) { // while the door is held
					t.Errorf("got %v, want the context's cause", err)
				}
				release()
				others.Wait()
				write(t, db, insert(2))
				if got := numbers(t, db); !slices.Equal(got, []int{2}) {
					t.Errorf("rows %v: the withdrawn function ran", got)
				}
			})
		})
	}
}

func TestRunningCallIsNotWithdrawn(t *testing.T) {
	for _, want := range []error{nil, errBoom} {
		t.Run(fmt.Sprint(want), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := newNumbers(t)
				ctx, cancel := context.WithCancel(context.Background())
				goOn, answer := make(chan struct{}), make(chan error, 1)
				go func() {
					answer <- db.Write(ctx, func(tx *store.Tx) error {
						<-goOn
						return errors.Join(insert(1)(tx), want)
					})
				}()
				synctest.Wait()
				cancel()
				synctest.Wait()
				select {
				case err := <-answer:
					t.Fatalf("answered %v while its function runs", err)
				default:
				}
				close(goOn)
				if err := <-answer; !errors.Is(err, want) {
					t.Errorf("got %v, want what the function returned: %v", err, want)
				}
				if committed := len(numbers(t, db)) == 1; committed != (want == nil) {
					t.Errorf("committed: %v, answer: %v", committed, want)
				}
			})
		})
	}
}

func TestBusyFile(t *testing.T) {
	for _, test := range []struct {
		name     string
		heldFor  time.Duration
		wantCode store.Code
		wantRows []int
	}{
		{"waited for", 4 * time.Second, "", []int{1, 2}},
		{"for too long", time.Hour, store.CodeUnavailable, []int{2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "jpintel.db")
				// Where a context could end the opening, SQLite's driver waits in
				// Go's time, which this bubble fakes.
				db, err := store.Open(t.Context(), path, store.Options{Server: true})
				if err != nil {
					t.Fatal(err)
				}
				defer shut(t, db)
				addNumbers(t, db)
				other, err := sql.Open("sqlite", path)
				if err != nil {
					t.Fatal(err)
				}
				defer other.Close()
				other.SetMaxOpenConns(1)
				if _, err := other.Exec("BEGIN IMMEDIATE"); err != nil {
					t.Fatal(err)
				}
				released := make(chan struct{})
				time.AfterFunc(test.heldFor, func() { other.Exec("ROLLBACK"); close(released) })
				ran := false
				err = db.Write(context.Background(), func(tx *store.Tx) error { ran = true; return insert(1)(tx) })
				if code := store.CodeOf(err); code != test.wantCode || ran != (err == nil) {
					t.Errorf("got %v, want code %q; the function ran: %v", err, test.wantCode, ran)
				}
				<-released
				write(t, db, insert(2))
				if got := numbers(t, db); !slices.Equal(got, test.wantRows) {
					t.Errorf("rows %v, want %v", got, test.wantRows)
				}
			})
		})
	}
}

func TestAfterCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newNumbers(t)
		seen := map[string][]int{}
		wakes := func(name string, fn func(*store.Tx) error) func(*store.Tx) error {
			return func(tx *store.Tx) error {
				tx.AfterCommit(func() { seen[name] = numbers(t, db) })
				return fn(tx)
			}
		}
		write(t, db, wakes("alone", insert(1)))
		if got := seen["alone"]; !slices.Equal(got, []int{1}) {
			t.Errorf("when Write had returned, the callback had seen %v", got)
		}
		batch(db,
			wakes("first", insert(2)),
			wakes("failing", failing(insert(3))),
			wakes("panicking", func(*store.Tx) error { panic(errBoom) }),
			wakes("last", insert(4)),
		)
		if len(seen) != 3 || !slices.Equal(seen["first"], []int{1, 2, 4}) || !slices.Equal(seen["last"], []int{1, 2, 4}) {
			t.Errorf("callbacks saw %v, want those of the two that succeeded to see 1, 2 and 4", seen)
		}
	})
}

func TestTxIsOverWhenItsFunctionReturns(t *testing.T) {
	db := newNumbers(t)
	var kept *store.Tx
	write(t, db, func(tx *store.Tx) error { kept = tx; return nil })
	const query = `INSERT INTO numbers (n) VALUES (1) RETURNING n`
	for name, use := range map[string]func() error{
		"Exec":     func() error { _, err := kept.Exec(query); return err },
		"Update":   func() error { _, err := kept.Update(query); return err },
		"Query":    func() error { _, err := kept.Query(query); return err },
		"QueryRow": func() error { return kept.QueryRow(query).Scan(new(int)) },
	} {
		if err := use(); err == nil || err.Error() != "store: transaction used after its function returned" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := numbers(t, db); len(got) != 0 {
		t.Errorf("rows %v", got)
	}
}

func TestWrongStatement(t *testing.T) {
	db := newNumbers(t)
	const query = `SELECT n FROM nowhere`
	for name, use := range map[string]func(*store.Tx) error{
		"Exec":     func(tx *store.Tx) error { _, err := tx.Exec(query); return err },
		"Query":    func(tx *store.Tx) error { _, err := tx.Query(query); return err },
		"QueryRow": func(tx *store.Tx) error { return tx.QueryRow(query).Scan(new(int)) },
	} {
		err := db.Write(t.Context(), func(tx *store.Tx) error { insert(1)(tx); return use(tx) })
		if err == nil || store.CodeOf(err) != "" || !strings.Contains(err.Error(), "no such table: nowhere") {
			t.Errorf("%s: %v, want what is wrong with it", name, err)
		}
	}
	if got := numbers(t, db); len(got) != 0 {
		t.Errorf("rows %v", got)
	}
}

func TestManyStatementTexts(t *testing.T) {
	db := newNumbers(t)
	for i := range 5 {
		write(t, db, insert(i))
	}
	var got []int
	write(t, db, func(tx *store.Tx) error {
		rows, err := tx.Query(`SELECT n FROM numbers ORDER BY n`)
		if err != nil {
			return err
		}
		all, err := store.Collect(rows, func(r *sql.Rows) (n int, err error) {
			for i := range 300 { // more, in all, than the door keeps
				var same int
				if err := r.Scan(&n); err != nil {
					return n, err
				}
				if err := tx.QueryRow(fmt.Sprintf(`SELECT %d`, n*1000+i)).Scan(&same); err != nil {
					return n, err
				}
			}
			return n, nil
		})
		got = all
		return err
	})
	if !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
		t.Errorf("rows %v", got)
	}
	write(t, db, insert(5)) // prepares again what the door has dropped
	if got := numbers(t, db); len(got) != 6 {
		t.Errorf("rows %v", got)
	}
}

func TestBackgroundRunsWhenTheForegroundIsEmpty(t *testing.T) {
	db := newNumbers(t)
	for i := range 10 {
		if err := db.WriteBackground(t.Context(), insert(i)); err != nil {
			t.Fatal(err)
		}
	}
	if got := numbers(t, db); len(got) != 10 {
		t.Errorf("rows %v", got)
	}
}

func TestBackgroundKeepsUpWithASteadyForeground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newNumbers(t)
		release := hold(db)
		var steps int
		for range 5 {
			go db.WriteBackground(context.Background(), func(*store.Tx) error { steps++; return nil })
		}
		for transactions := 1; transactions <= 20; transactions++ {
			goOn := make(chan struct{})
			go db.Write(context.Background(), func(*store.Tx) error { <-goOn; return nil })
			synctest.Wait()
			release() // the next caller waits already: the foreground is never empty
			synctest.Wait()
			if want := transactions / 4; steps < want-1 || steps > want+1 {
				t.Errorf("after %d transactions: %d steps of long work, want one in four", transactions, steps)
			}
			release = func() { close(goOn) }
		}
		release()
		synctest.Wait()
		if steps != 5 {
			t.Errorf("%d steps, want 5", steps)
		}
	})
}

func TestRowsLeftOpenDisturbNobody(t *testing.T) {
	const query = `SELECT n FROM numbers ORDER BY n`
	readOne := func(tx *store.Tx) error {
		rows, err := tx.Query(query)
		if err != nil {
			return err
		}
		rows.Next()
		return rows.Err()
	}
	synctest.Test(t, func(t *testing.T) {
		db := newNumbers(t)
		for i := range 3 {
			write(t, db, insert(i))
		}
		var got []int
		answers := batch(db,
			readOne,
			failing(readOne),
			func(tx *store.Tx) error { readOne(tx); panic(errBoom) },
			func(tx *store.Tx) error { got = ints(t, tx, query); return nil },
			func(tx *store.Tx) error {
				if err := readOne(tx); err != nil {
					return err
				}
				return tx.QueryRow(query).Scan(new(int))
			})
		if answers[0].err != nil || !errors.Is(answers[1].err, errBoom) || answers[2].panics != errBoom || answers[3].err != nil {
			t.Errorf("answers %+v", answers)
		}
		if !slices.Equal(got, []int{0, 1, 2}) {
			t.Errorf("read %v after those who did not read to the end", got)
		}
		if err := answers[4].err; err == nil || !strings.Contains(err.Error(), "while its rows are being read") {
			t.Errorf("the same query inside its own loop: %v", err)
		}
	})
}
