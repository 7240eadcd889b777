package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"jpintel/store"
	"jpintel/store/storetest"
)

var body = bytes.Repeat([]byte("x"), 100_000) // takes pages of its own

// setMaxPages makes the disk full for this connection when n pages are used.
func setMaxPages(tx *store.Tx, n int) error {
	_, err := tx.Exec(fmt.Sprintf(`PRAGMA max_page_count = %d`, n))
	return err
}

func fill(tx *store.Tx) error { return setMaxPages(tx, 1) } // SQLite takes the present size

// insertBody is a single statement that the disk has no room for: SQLite rolls
// the whole transaction back.
func insertBody(tx *store.Tx) error {
	_, err := tx.Exec(`INSERT INTO numbers (n, body) VALUES (100, $1)`, body)
	return err
}

func TestLostTransaction(t *testing.T) {
	for name, fn := range map[string]func(*store.Tx) error{
		"full disk": func(tx *store.Tx) error {
			return errors.Join(fill(tx), insertBody(tx))
		},
		"full disk, answered with an error of the function's own": func(tx *store.Tx) error {
			return errors.Join(fill(tx), insertBody(tx), store.Errorf(store.CodeConflict, "no"))
		},
		"full disk, ignored": func(tx *store.Tx) error {
			fill(tx)
			insertBody(tx)
			insert(101)(tx) // has room, and would commit on its own
			insert(102)(tx)
			return nil
		},
		"full disk, then a panic": func(tx *store.Tx) error {
			fill(tx)
			insertBody(tx)
			panic(errBoom)
		},
		"rolled back by hand": func(tx *store.Tx) error {
			_, err := tx.Exec(`ROLLBACK`)
			return err
		},
		"rolled back by hand, begun again": func(tx *store.Tx) error {
			tx.Exec(`ROLLBACK`)
			tx.Exec(`BEGIN`)
			return insert(101)(tx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := newNumbers(t)
				write(t, db, insert(0))
				woken, ran := false, false
				answers := batch(db,
					func(tx *store.Tx) error { tx.AfterCommit(func() { woken = true }); return insert(1)(tx) },
					// What this one was told hangs on a row that never was.
					func(tx *store.Tx) error { return store.Errorf(store.CodeConflict, "%v", insert(1)(tx)) },
					fn,
					func(tx *store.Tx) error { ran = true; return insert(2)(tx) },
				)
				for i, a := range answers {
					switch {
					case a.panics != nil && a.panics != errBoom:
						t.Errorf("caller %d: panic %v", i, a.panics)
					case a.panics == nil && store.CodeOf(a.err) != store.CodeUnavailable:
						t.Errorf("caller %d: %v, want code unavailable", i, a.err)
					case a.panics == nil && strings.Contains(a.err.Error(), "%!"):
						t.Errorf("caller %d: %v", i, a.err)
					}
				}
				if woken || ran {
					t.Errorf("woken: %v, a function after the loss ran: %v", woken, ran)
				}
				if got := numbers(t, db); !slices.Equal(got, []int{0}) {
					t.Errorf("rows %v, want none of the batch", got)
				}
				write(t, db, func(tx *store.Tx) error { return errors.Join(setMaxPages(tx, 1_000_000), insert(3)(tx)) })
				if got := numbers(t, db); !slices.Equal(got, []int{0, 3}) {
					t.Errorf("rows %v after the disk had room again", got)
				}
			})
		})
	}
}

// A statement with a journal of its own fails alone: SQLite keeps the
// transaction, and the others go on.
func TestStatementWithoutRoom(t *testing.T) {
	const rows = `INSERT INTO numbers (n, body) SELECT value, $1 FROM json_each('[100, 101]')`
	const returning = `INSERT INTO numbers (n, body) VALUES (100, $1) RETURNING n`
	for name, insertMore := range map[string]func(*store.Tx) error{
		"Exec":     func(tx *store.Tx) error { _, err := tx.Exec(rows, body); return err },
		"Query":    func(tx *store.Tx) error { _, err := tx.Query(returning, body); return err },
		"QueryRow": func(tx *store.Tx) error { return tx.QueryRow(returning, body).Scan(new(int)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := newNumbers(t)
				answers := batch(db,
					insert(1),
					func(tx *store.Tx) error { return errors.Join(fill(tx), insertMore(tx)) },
					insert(2))
				if answers[0].err != nil || answers[2].err != nil {
					t.Errorf("callers with room: %v, %v", answers[0].err, answers[2].err)
				}
				if err := answers[1].err; store.CodeOf(err) != store.CodeUnavailable {
					t.Errorf("caller without room: %v, want code unavailable", err)
				}
				if got := numbers(t, db); !slices.Equal(got, []int{1, 2}) {
					t.Errorf("rows %v", got)
				}
			})
		})
	}
}

// outgrowLimit makes COMMIT fail with an I/O error: the write-ahead log may
// not grow beyond what it is.
func outgrowLimit(path string) error {
	db, err := store.Open(context.Background(), path, store.Options{Server: true, Logger: slog.New(slog.NewTextHandler(os.Stdout, nil))})
	if err != nil {
		return err
	}
	if err := db.Write(context.Background(), insert(2)); err != nil {
		return err
	}
	info, err := os.Stat(path + "-wal")
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: uint64(info.Size()), Max: uint64(info.Size())}); err != nil {
		return err
	}
	return fmt.Errorf("the process lived on: %v", db.Write(context.Background(), insert(3)))
}

func TestUnknownCommitEndsTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	db := open(t, path, store.Options{Server: true})
	addNumbers(t, db)
	write(t, db, insert(1))
	shut(t, db)

	lines, err := start(t, "outgrow the limit", path).rest()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		t.Errorf("the process ended with %v, want exit status 1", err)
	}
	if out := strings.Join(lines, "\n"); !strings.Contains(out, "store_commit_unknown") || !strings.Contains(out, "committing: disk I/O error") {
		t.Errorf("the process said:\n%s", out)
	}
	// The limit cut the third row's pages: here the outcome was no.
	if got := numbers(t, storetest.Open(t, path)); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("rows %v", got)
	}
}
