package store

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// Tx is one caller's part of a transaction, which is undone alone. It is good
// for the one goroutine that runs the function it was given to, and until that
// function returns.
type Tx struct {
	// Now is the transaction's time: fixed when it began, UTC, whole
	// milliseconds. Everything that a transaction writes bears this time.
	Now time.Time

	door    *door
	lost    error // why the transaction was rolled back under us; nil: it was not
	over    bool
	changes bool                 // it has run something that may have changed the file
	open    map[string]*sql.Rows // by query: what the function reads from
	commit  []func()
	follow  []following
}

var (
	errTxLost = errors.New("store: the transaction was rolled back")
	errTxOver = errors.New("store: transaction used after its function returned")
	errTxRows = errors.New("store: a query is run again while its rows are being read")
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

// Insert runs an INSERT and returns the number of the new row (its INTEGER
// PRIMARY KEY), or 0 where ON CONFLICT DO NOTHING left nothing to do.
func (tx *Tx) Insert(query string, args ...any) (int64, error) {
	res, err := tx.Exec(query, args...)
	if err != nil {
		return 0, err
	}
	if n, err := res.RowsAffected(); n == 0 || err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

// Query runs a query inside the transaction. Statements are shared by their
// text: the same query can run again when its rows have been read or closed.
func (tx *Tx) Query(query string, args ...any) (*sql.Rows, error) {
	stmt, err := tx.prepared(query)
	if err != nil {
		return nil, err
	}
	rows, err := stmt.Query(args...)
	if err != nil {
		return nil, tx.check(err)
	}
	if tx.open == nil {
		tx.open = map[string]*sql.Rows{}
	}
	tx.open[query] = rows
	return rows, nil
}

// QueryRow runs a query for one row inside the transaction.
func (tx *Tx) QueryRow(query string, args ...any) *sql.Row {
	stmt, err := tx.prepared(query)
	if err != nil {
		return tx.door.conn.QueryRowContext(refused{canceled, err}, query)
	}
	row := stmt.QueryRow(args...)
	_ = tx.check(row.Err()) // the row hands it to the caller
	return row
}

// refused is a context that has always been over: it keeps a statement away
// from the file and carries the reason to Scan.
type refused struct {
	context.Context
	why error
}

func (r refused) Err() error { return r.why }

var canceled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (tx *Tx) prepared(query string) (statement, error) {
	switch {
	case tx.over:
		return statement{}, errTxOver
	case tx.lost != nil:
		return statement{}, errTxLost
	}
	if rows, ok := tx.open[query]; ok {
		if _, err := rows.Columns(); err == nil { // not closed
			return statement{}, errTxRows
		}
	}
	stmt, err := tx.door.prepared(query)
	tx.changes = tx.changes || !stmt.reads
	return stmt, tx.check(err)
}

// end closes what the function left open: the next caller's statements would
// go on from there.
func (tx *Tx) end() {
	tx.over = true
	for _, rows := range tx.open {
		rows.Close()
	}
}

// check finds out, when a statement failed, whether SQLite took the whole
// transaction with it (a full disk and an interrupt do that). What came next
// would then commit on its own.
func (tx *Tx) check(err error) error {
	if err != nil && tx.lost == nil && !tx.door.inTransaction() {
		tx.lost = err
	}
	return err
}
