package store

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// Tx is one caller's part of a transaction: a savepoint of its own. It is good
// for the one goroutine that runs the function it was given to, and until that
// function returns.
type Tx struct {
	// Now is the transaction's time: fixed when it began, UTC, whole
	// milliseconds. Everything that a transaction writes bears this time.
	Now time.Time

	door   *door
	lost   bool // the transaction was rolled back under us
	over   bool
	commit []func()
}

var (
	errTxLost = errors.New("store: the transaction was rolled back")
	errTxOver = errors.New("store: transaction used after its function returned")
)

// NowMS is Now as it is stored: milliseconds since 1970.
func (tx *Tx) NowMS() int64 { return tx.Now.UnixMilli() }

// Local is Now in the configured time zone: what days are counted in and what
// customers are shown.
func (tx *Tx) Local() time.Time { return tx.Now.In(tx.door.db.Location) }

// NewID returns prefix + "_" + a ULID of the transaction's time.
func (tx *Tx) NewID(prefix string) string { return tx.door.db.ids.next(prefix, tx.Now) }

// Keys returns the file's keyring.
func (tx *Tx) Keys() *Keyring { return tx.door.db.Keys }

// AfterCommit runs fn once the transaction is on disk, before Write returns.
// It runs in the door, so it may only wake others: no waiting, no Write. It is
// not run when the function fails or the commit does.
func (tx *Tx) AfterCommit(fn func()) { tx.commit = append(tx.commit, fn) }

// Exec runs a statement. Placeholders are $1, $2 …
func (tx *Tx) Exec(query string, args ...any) (sql.Result, error) {
	stmt, err := tx.prepared(query)
	if err != nil {
		return nil, err
	}
	res, err := stmt.Exec(args...)
	return res, tx.check(err)
}

// Update runs a statement and returns how many rows it changed: 0 is how a
// guarded transition says that the state was not the expected one.
func (tx *Tx) Update(query string, args ...any) (int64, error) {
	res, err := tx.Exec(query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// Query runs a query inside the transaction.
func (tx *Tx) Query(query string, args ...any) (*sql.Rows, error) {
	stmt, err := tx.prepared(query)
	if err != nil {
		return nil, err
	}
	rows, err := stmt.Query(args...)
	return rows, tx.check(err)
}

// QueryRow runs a query for one row inside the transaction.
func (tx *Tx) QueryRow(query string, args ...any) *sql.Row {
	stmt, err := tx.prepared(query)
	if err != nil {
		return tx.door.conn.QueryRowContext(canceled, query) // carries an error to Scan
	}
	row := stmt.QueryRow(args...)
	_ = tx.check(row.Err()) // the row hands it to the caller
	return row
}

// canceled keeps a statement of a transaction that is over away from the file.
var canceled = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errTxLost)
	return ctx
}()

func (tx *Tx) prepared(query string) (*sql.Stmt, error) {
	switch {
	case tx.over:
		return nil, errTxOver
	case tx.lost:
		return nil, errTxLost
	}
	stmt, err := tx.door.prepared(query)
	return stmt, tx.check(err)
}

// check finds out, when a statement failed, whether SQLite took the whole
// transaction with it (a full disk and an interrupt do that). What came next
// would then commit on its own.
func (tx *Tx) check(err error) error {
	if err != nil && !tx.lost && !tx.door.inTransaction() {
		tx.lost = true
	}
	return err
}
