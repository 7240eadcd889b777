// Package store is the one SQLite file and the tenants in it.
//
// What is stored here: the control row, customers and their API keys. The
// domains above keep their own tables in the same file, and their SQL beside
// their types; they get from here the write door, time, ids and sealed values.
// The store knows no event and no money.
//
// What is atomic: everything inside one function given to [DB.Write]. All
// writes of a process go through one goroutine, the door, which runs the
// functions that are waiting, each undone alone, inside one transaction, and
// commits once for all of them. A caller whose Write returned nil has its rows
// on disk (synchronous=FULL): they survive power loss.
//
//	callers ──Write──▶ foreground ┐
//	                              ├─▶ door: BEGIN IMMEDIATE · fn · fn · fn · COMMIT ─▶ AfterCommit ─▶ answers
//	steps ──WriteBackground─▶ background ┘
//	readers ─────────▶ pool of query-only connections
//
// What a crash leaves: whole transactions. A write that was never answered may
// have happened or not; whoever needs to know asks the file.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"modernc.org/sqlite"
)

// readers is the size of the read pool: more connections cost memory outside
// Go's heap and win nothing on a small machine.
const readers = 4

// How long a write waits while another process writes, in milliseconds. Behind
// a server's write stands a caller who wants to know; a command competes with
// a server that may be writing nearly all the time, and SQLite keeps no queue.
const (
	serverWait  = 5_000
	commandWait = 60_000
)

// Options says how to open a file. The zero value is for tests and tools.
type Options struct {
	// Server makes this process the file's only server: it takes the lock file,
	// or fails with ErrLocked. Without it (a CLI command beside the server),
	// every committed change also bumps the control row's version, so that the
	// server looks again.
	Server bool
	// Keys seals and hashes. Required by what needs secrets, nil otherwise.
	Keys *Keyring
	// Location is the time zone of days and of the times that customers see.
	// Default UTC.
	Location *time.Location
	// Logger gets what has no caller to go to. Default: discard.
	Logger *slog.Logger
	// Fatal is called when a commit's outcome cannot be known; it must not
	// return. Default: log and exit with status 1, for the platform to restart.
	Fatal func(error)
}

// DB is an open file. All methods may be called from any goroutine.
type DB struct {
	Keys     *Keyring
	Location *time.Location
	BootID   string // names this opening of the file, in logs and leases

	path   string
	writer *sql.DB
	reader *sql.DB
	door   *door
	lock   *lock
	ids    *ids
	stmts  sync.Map // query text → *sql.Stmt on the reader pool
	noted  sync.Map // API key id → when its use was last noted, ms

	closing  sync.Once
	closeErr error
}

func init() {
	// Same durability as fsync, without the wait for the timestamps.
	_, _ = sqlite.Fdatasync(true) // fails only where the platform has none
}

// Open opens the file at path, creates it with mode 0600 where there is none,
// and brings its schema up to date.
func Open(ctx context.Context, path string, opt Options) (*DB, error) {
	db := &DB{Keys: opt.Keys, Location: opt.Location, BootID: NewID("boot"), path: path, ids: newIDs()}
	if db.Location == nil {
		db.Location = time.UTC
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if opt.Fatal == nil {
		opt.Fatal = func(err error) {
			opt.Logger.Error("store_commit_unknown", "error", err)
			os.Exit(1)
		}
	}
	if opt.Server {
		var err error
		if db.lock, err = acquireLock(path+".lock", db.BootID); err != nil {
			return nil, err
		}
	}
	if err := db.open(ctx, opt); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func (db *DB) open(ctx context.Context, opt Options) error {
	if err := db.create(ctx); err != nil {
		return err
	}
	wait := commandWait
	if opt.Server {
		wait = serverWait
	}
	var err error
	if db.writer, err = sql.Open("sqlite", dsn(db.path, wait, "_txlock=immediate")); err != nil {
		return fmt.Errorf("opening %s: %w", db.path, err)
	}
	db.writer.SetMaxOpenConns(1)
	if err := db.migrate(ctx, opt.Server); err != nil {
		return err
	}
	if err := db.checkKeys(ctx); err != nil {
		return err
	}
	if db.reader, err = sql.Open("sqlite", dsn(db.path, serverWait, "_pragma=query_only(1)")); err != nil {
		return fmt.Errorf("opening %s: %w", db.path, err)
	}
	db.reader.SetMaxOpenConns(readers)
	db.reader.SetMaxIdleConns(readers)
	db.door, err = openDoor(db, opt)
	return err
}

// dsn carries every pragma, since one set by Exec reaches one connection only.
func dsn(path string, wait int, extra string) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?_pragma=busy_timeout(" + strconv.Itoa(wait) + ")&_pragma=journal_mode(wal)" +
		"&_pragma=synchronous(full)&_pragma=foreign_keys(1)&_pragma=temp_store(2)" +
		"&_pragma=journal_size_limit(67108864)&" + extra
}

// create makes an empty database where there is no file. It is laid under a
// name of this process alone and gets its own when it is complete: another
// process finds a whole file or none.
func (db *DB) create(ctx context.Context) error {
	info, err := os.Stat(db.path)
	switch {
	case err != nil: // most likely there is none
	case !info.Mode().IsRegular():
		return fmt.Errorf("opening %s: not a file", db.path)
	case info.Size() == 0:
		return errors.Join(tighten(db.path), layPragmas(ctx, db.path))
	default:
		return tighten(db.path)
	}
	name := db.path + "." + db.BootID
	defer os.Remove(name)
	// The mode comes before the content; SQLite gives its side files the mode
	// of the main one.
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("creating %s: %w", db.path, err)
	}
	file.Close()
	if err := layPragmas(ctx, name); err != nil {
		return err
	}
	if err := os.Link(name, db.path); err != nil {
		if _, missing := os.Stat(db.path); missing != nil { // else another process was first
			return fmt.Errorf("creating %s: %w", db.path, err)
		}
	}
	return nil
}

// tighten takes a file that is there from everyone else, and with it the side
// files that a crash left.
func tighten(path string) error {
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		info, err := os.Stat(name)
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			err = os.Chmod(name, 0o600)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("closing %s to others: %w", name, err)
		}
	}
	return nil
}

// layPragmas sets what only holds for a file without tables.
func layPragmas(ctx context.Context, path string) error {
	raw, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath())
	if err != nil {
		return fmt.Errorf("creating %s: %w", path, err)
	}
	raw.SetMaxOpenConns(1)
	for _, p := range []struct{ set, get, want string }{
		{"PRAGMA page_size=8192", "PRAGMA page_size", "8192"},
		{"PRAGMA auto_vacuum=2", "PRAGMA auto_vacuum", "2"},
		{"PRAGMA journal_mode=WAL", "PRAGMA journal_mode", "wal"},
	} {
		var got string
		_, err := raw.ExecContext(ctx, p.set)
		if err == nil {
			err = raw.QueryRowContext(ctx, p.get).Scan(&got)
		}
		if err == nil && got != p.want {
			err = fmt.Errorf("gave %q", got)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("creating %s: %s: %w", path, p.set, err), raw.Close())
		}
	}
	return raw.Close()
}

// Path returns the file's absolute path, or the path as given where there is
// no working directory to tell.
func (db *DB) Path() string {
	if abs, err := filepath.Abs(db.path); err == nil {
		return abs
	}
	return db.path
}

// Write runs fn in the next transaction and returns when it is on disk. An
// error of fn undoes what fn did, and only that, and is returned as it is.
// While the call waits for its turn ctx can withdraw it; once fn runs, it runs
// to its end. fn must not block: no network, no files, no unbounded loop, and
// it must not call Write. A panic in fn is raised again in the caller.
//
// The error has CodeUnavailable when nothing was done and a later try may
// succeed (the file is busy or the disk is full).
func (db *DB) Write(ctx context.Context, fn func(*Tx) error) error {
	return db.door.do(ctx, db.door.foreground, &call{fn: fn})
}

// WriteEarly is Write for a function that fails, if at all, before it changes
// anything: what it must refuse it finds out by reading. It costs less, since
// nothing of it alone can be undone: where it fails later all the same, as on a
// full disk, everybody in its transaction is answered CodeUnavailable.
func (db *DB) WriteEarly(ctx context.Context, fn func(*Tx) error) error {
	return db.door.do(ctx, db.door.foreground, &call{fn: fn, early: true})
}

// WriteBackground is Write for the steps of long work: they run when nobody
// waits in the foreground, or in every fourth transaction at the latest. A
// step should touch a few hundred rows at most.
func (db *DB) WriteBackground(ctx context.Context, fn func(*Tx) error) error {
	return db.door.do(ctx, db.door.background, &call{fn: fn})
}

// Querier reads: the pool, or an open write transaction.
type Querier interface {
	Query(query string, args ...any) (*sql.Rows, error)
	QueryRow(query string, args ...any) *sql.Row
}

// Reader returns a Querier on the read pool. Each query sees what was
// committed when it began.
func (db *DB) Reader(ctx context.Context) Querier { return reader{ctx, db} }

// View runs fn on one state of the file: all its queries see the same. It holds
// a connection of the read pool: keep it short.
func (db *DB) View(ctx context.Context, fn func(Querier) error) error {
	tx, err := db.reader.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("reading: %w", err)
	}
	defer tx.Rollback() // nothing to keep
	return fn(view{ctx, tx})
}

type view struct {
	ctx context.Context
	tx  *sql.Tx
}

func (v view) Query(query string, args ...any) (*sql.Rows, error) {
	return v.tx.QueryContext(v.ctx, query, args...)
}

func (v view) QueryRow(query string, args ...any) *sql.Row {
	return v.tx.QueryRowContext(v.ctx, query, args...)
}

type reader struct {
	ctx context.Context
	db  *DB
}

func (r reader) Query(query string, args ...any) (*sql.Rows, error) {
	stmt, err := r.db.prepared(r.ctx, query)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(r.ctx, args...)
}

func (r reader) QueryRow(query string, args ...any) *sql.Row {
	stmt, err := r.db.prepared(r.ctx, query)
	if err != nil {
		return r.db.reader.QueryRowContext(r.ctx, query, args...) // reports the same error at Scan
	}
	return stmt.QueryRowContext(r.ctx, args...)
}

func (db *DB) prepared(ctx context.Context, query string) (*sql.Stmt, error) {
	if stmt, ok := db.stmts.Load(query); ok {
		return stmt.(*sql.Stmt), nil
	}
	stmt, err := db.reader.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	if first, loaded := db.stmts.LoadOrStore(query, stmt); loaded {
		stmt.Close()
		return first.(*sql.Stmt), nil
	}
	return stmt, nil
}

// Close waits for the writes that were accepted, moves the write-ahead log
// into the file, closes it and frees the lock. Writes that come later fail
// with CodeUnavailable. Closing again changes nothing.
func (db *DB) Close() error {
	db.closing.Do(func() { db.closeErr = db.close() })
	return db.closeErr
}

func (db *DB) close() error {
	var errs []error
	if db.door != nil {
		errs = append(errs, db.door.close())
	}
	db.stmts.Range(func(_, stmt any) bool { stmt.(*sql.Stmt).Close(); return true })
	if db.reader != nil {
		errs = append(errs, db.reader.Close())
	}
	if db.writer != nil {
		errs = append(errs, db.writer.Close())
	}
	if db.lock != nil {
		errs = append(errs, db.lock.release())
	}
	return errors.Join(errs...)
}
