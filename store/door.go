package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxBatch bounds the callers of one transaction: enough to share one sync
	// among all that wait, few enough that the first of them waits milliseconds.
	maxBatch = 512
	// yields is how often those who can run are let before a transaction begins:
	// where the processors are busy, more callers share it.
	yields = 2
	// backgroundShare: a background step joins at least every fourth
	// transaction, so that fan-out keeps up with those who publish.
	backgroundShare = 4
	// maxStatements bounds the prepared statements; query texts are constants,
	// so a door that meets more of them is misused and merely gets slower.
	maxStatements = 512
)

// door is the one goroutine that writes.
type door struct {
	db         *DB
	conn       *sql.Conn
	stmts      map[string]statement
	foreground chan *call
	background chan *call
	batches    int // since the last background step
	bump       bool
	fatal      func(error)
	log        *slog.Logger

	closing sync.RWMutex // held for reading while a call is being queued
	closed  bool
	quit    chan struct{}
	done    chan struct{}
}

// statement is a prepared one.
type statement struct {
	*sql.Stmt
	reads bool // it is known to change nothing
}

// call is one caller's function on its way through the door.
type call struct {
	fn     func(*Tx) error
	early  bool // it fails, if at all, before it changes anything
	state  atomic.Int32
	answer chan struct{} // closed when the rest is final
	err    error
	panics any
}

const (
	callQueued int32 = iota
	callRunning
	callWithdrawn
)

var errLate = errors.New("store: a function that was to fail early has failed late")

var errClosed = &Error{Code: CodeUnavailable, Message: "the store is closing, try again"}

func openDoor(db *DB, opt Options) (*door, error) {
	// No context of a caller ever reaches this connection: one that ended in
	// the middle of a statement would roll back everybody's work.
	conn, err := db.writer.Conn(context.Background())
	if err != nil {
		return nil, fmt.Errorf("opening the writer: %w", err)
	}
	d := &door{
		db: db, conn: conn, stmts: map[string]statement{}, bump: !opt.Server, fatal: opt.Fatal, log: opt.Logger,
		foreground: make(chan *call, maxBatch), background: make(chan *call, 16),
		quit: make(chan struct{}), done: make(chan struct{}),
	}
	go d.run()
	return d, nil
}

func (d *door) do(ctx context.Context, queue chan<- *call, c *call) error {
	c.answer = make(chan struct{})
	if err := d.enqueue(ctx, queue, c); err != nil {
		return err
	}
	select {
	case <-c.answer:
	case <-ctx.Done():
		if c.state.CompareAndSwap(callQueued, callWithdrawn) {
			return context.Cause(ctx)
		}
		<-c.answer
	}
	if c.panics != nil {
		panic(c.panics)
	}
	return c.err
}

func (d *door) enqueue(ctx context.Context, queue chan<- *call, c *call) error {
	d.closing.RLock()
	defer d.closing.RUnlock()
	if d.closed {
		return errClosed
	}
	select {
	case queue <- c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *door) close() error {
	d.closing.Lock()
	d.closed = true
	d.closing.Unlock()
	close(d.quit)
	<-d.done
	var errs []error
	for _, stmt := range d.stmts {
		errs = append(errs, stmt.Close())
	}
	_, err := d.conn.ExecContext(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)")
	return errors.Join(append(errs, err, d.conn.Close())...)
}

func (d *door) run() {
	defer close(d.done)
	for {
		batch := d.next()
		if batch == nil {
			return
		}
		d.transact(batch)
	}
}

// next waits for work and takes all of it that is there, and all that is about to
// come: it lets others run as long as there are others, and does not wait. It
// returns nil when the door is closed and both queues are empty.
func (d *door) next() []*call {
	var batch []*call
	select {
	case c := <-d.foreground:
		batch = append(batch, c)
	default:
		select {
		case c := <-d.foreground:
			batch = append(batch, c)
		case c := <-d.background:
			d.batches = 0
			return []*call{c}
		case <-d.quit:
			return d.rest()
		}
	}
	for turns := 0; len(batch) < maxBatch; {
		select {
		case c := <-d.foreground:
			batch = append(batch, c)
			continue
		default:
		}
		if turns++; turns > yields {
			break
		}
		runtime.Gosched() // comes back at once where nobody else wants to run
	}
	if d.batches++; d.batches >= backgroundShare {
		select {
		case c := <-d.background:
			d.batches = 0
			batch = append(batch, c)
		default:
		}
	}
	return batch
}

// rest takes what was queued before the door closed.
func (d *door) rest() []*call {
	select {
	case c := <-d.foreground:
		return []*call{c}
	case c := <-d.background:
		return []*call{c}
	default:
		return nil
	}
}

// transact runs a batch in one transaction and answers everyone in it.
func (d *door) transact(batch []*call) {
	running := batch[:0]
	for _, c := range batch {
		if c.state.CompareAndSwap(callQueued, callRunning) {
			running = append(running, c)
		}
	}
	if len(running) == 0 {
		return
	}
	wakes, err := d.commit(running)
	if err != nil {
		d.log.Error("store_batch_failed", "error", err, "calls", len(running))
	}
	for _, wake := range wakes {
		wake()
	}
	for _, c := range running {
		if err != nil && c.panics == nil {
			c.err = unavailable(err) // its own error too hangs on what never was
		}
		close(c.answer)
	}
}

// commit returns what is to be woken, or why nothing of the batch happened.
func (d *door) commit(batch []*call) (wakes []func(), err error) {
	d.trim()
	if _, err := d.exec("BEGIN IMMEDIATE"); err != nil {
		return nil, fmt.Errorf("beginning: %w", err)
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	changed := false
	var followers followers
	for _, c := range batch {
		tx := &Tx{Now: now, door: d}
		c.err = d.part(tx, c, !changed)
		if tx.lost != nil {
			_, _ = d.exec("ROLLBACK") // fails where SQLite has done it
			return nil, fmt.Errorf("%w: %w", errTxLost, tx.lost)
		}
		if c.err == nil && c.panics == nil {
			changed = true
			wakes = append(wakes, tx.commit...)
			followers.add(tx.follow)
		}
	}
	more, err := d.follow(now, followers)
	if err != nil {
		_, _ = d.exec("ROLLBACK") // fails where SQLite has done it
		return nil, err
	}
	wakes = append(wakes, more...)
	if changed && d.bump {
		if _, err := d.exec("UPDATE control SET version = version + 1"); err != nil {
			_, _ = d.exec("ROLLBACK")
			return nil, fmt.Errorf("bumping the control row: %w", err)
		}
	}
	if _, err := d.exec("COMMIT"); err != nil {
		if commitUnknown(err) {
			d.fatal(fmt.Errorf("committing: %w", err))
		}
		_, _ = d.exec("ROLLBACK")
		return nil, fmt.Errorf("committing: %w", err)
	}
	return wakes, nil
}

// part runs one caller's function and undoes it if it fails. It sets tx.lost
// when the transaction is over for everybody. A savepoint has SQLite keep a copy
// of every page that is changed, so it is for those who need one: not the first
// in a transaction, which can begin again, nor who fails early.
func (d *door) part(tx *Tx, c *call, first bool) error {
	if !first && !c.early {
		return d.savepoint(tx, c)
	}
	err := d.call(tx, c)
	tx.end()
	if tx.lost != nil || err == nil && c.panics == nil {
		return err
	}
	switch {
	case !tx.changes: // there is nothing to undo
	case first:
		tx.lost = d.restart()
	case err == nil: // it has panicked
		tx.lost = errLate
	default:
		tx.lost = fmt.Errorf("%w: %w", errLate, err)
	}
	if isFull(err) {
		return unavailable(err)
	}
	return err
}

// restart undoes all of the transaction and begins another: nobody but the caller
// that failed has done anything in it.
func (d *door) restart() error {
	if _, err := d.exec("ROLLBACK"); err != nil {
		return err
	}
	_, err := d.exec("BEGIN IMMEDIATE")
	return err
}

// savepoint is part with a savepoint.
func (d *door) savepoint(tx *Tx, c *call) error {
	if _, err := d.exec("SAVEPOINT caller"); err != nil {
		tx.lost = err
		return err
	}
	err := d.call(tx, c)
	tx.end()
	if tx.lost != nil {
		return err
	}
	if err != nil || c.panics != nil {
		if _, err := d.exec("ROLLBACK TO caller"); err != nil {
			tx.lost = err
			return err
		}
	}
	if _, releaseErr := d.exec("RELEASE caller"); releaseErr != nil {
		tx.lost = releaseErr
		return releaseErr
	}
	if isFull(err) {
		return unavailable(err)
	}
	return err
}

func (d *door) call(tx *Tx, c *call) error {
	defer func() { c.panics = recover() }()
	return c.fn(tx)
}

func (d *door) exec(query string) (sql.Result, error) {
	stmt, err := d.prepared(query)
	if err != nil {
		return nil, err
	}
	return stmt.Exec()
}

func (d *door) prepared(query string) (statement, error) {
	if stmt, ok := d.stmts[query]; ok {
		return stmt, nil
	}
	stmt, err := d.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return statement{}, err
	}
	s := statement{stmt, strings.HasPrefix(strings.TrimSpace(query), "SELECT")}
	d.stmts[query] = s
	return s, nil
}

// trim drops the prepared statements when they are too many. It runs between
// transactions: rows that are still being read would lose their statement.
func (d *door) trim() {
	if len(d.stmts) <= maxStatements {
		return
	}
	for _, stmt := range d.stmts {
		stmt.Close()
	}
	clear(d.stmts)
}

// inTransaction asks SQLite: BEGIN inside a transaction is refused.
func (d *door) inTransaction() bool {
	if _, err := d.exec("BEGIN"); err != nil {
		return true
	}
	_, _ = d.exec("ROLLBACK")
	return false
}
