package billing

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/store"
)

// This file has when sweeps run and what came of them; what each of them does is
// in a file of its own. A sweep asks the outside world outside of transactions,
// and writes what it has read in small ones, each with how far it has come: a
// restart goes on from there. What it writes again is the same.

// SweepName is one of the sweeps. The migration tells what each does.
type SweepName string

// The sweeps.
const (
	SweepAudit    SweepName = "audit"
	SweepAccounts SweepName = "accounts"
	SweepEvents   SweepName = "events"
)

const (
	// DefaultSweepEvery is how often each sweep runs.
	DefaultSweepEvery = 24 * time.Hour
	// firstSweep is how long after a file's first start the first ones run.
	firstSweep = time.Hour
	// A failed sweep is tried again after a growing wait, and alarms after so
	// long without a success.
	firstSweepRetry   = time.Minute
	longestSweepRetry = time.Hour
	sweepPatience     = 24 * time.Hour
	// sweepStep is the most that is asked between two writes, and sweepLease how
	// long after a write nobody else takes the sweep up.
	sweepStep  = 5 * time.Minute
	sweepLease = 10 * time.Minute
)

// Sweeper runs the sweeps. What it cannot ask, it leaves out.
type Sweeper struct {
	DB     *store.DB
	Log    *slog.Logger
	Client *modelgate.Client // nil: no audit and no accounts
	Events eventLister       // nil: no events
	// Known reports whether a payment event has arrived before, and Ingest takes
	// one in, as if it had arrived. Both are there with Events.
	Known  func(ctx context.Context, id string) (bool, error)
	Ingest func(ctx context.Context, body []byte) (Ingested, error)
	Every  time.Duration // default DefaultSweepEvery
}

func (s *Sweeper) every() time.Duration { return cmp.Or(s.Every, DefaultSweepEvery) }

// does returns what a sweep does; nil: it cannot be done here.
func (s *Sweeper) does(name SweepName) func(*round, context.Context) error {
	switch {
	case name == SweepAudit && s.Client != nil:
		return (*round).audit
	case name == SweepAccounts && s.Client != nil:
		return (*round).accounts
	case name == SweepEvents && s.Events != nil:
		return (*round).events
	}
	return nil
}

// sweepNames are all of them, in the order in which they run.
var sweepNames = []SweepName{SweepAudit, SweepAccounts, SweepEvents}

// Able are the sweeps that have somebody to ask.
func (s *Sweeper) Able() (names []SweepName) {
	for _, name := range sweepNames {
		if s.does(name) != nil {
			names = append(names, name)
		}
	}
	return names
}

// Run sweeps whenever it is time to, until ctx ends. tick is how often it looks.
func (s *Sweeper) Run(ctx context.Context, tick time.Duration) {
	if err := s.plan(ctx); err != nil {
		s.Log.Error("sweeps_not_planned", "error", err)
	}
	regularly(ctx, tick, func() {
		if err := s.Step(ctx); err != nil && ctx.Err() == nil {
			s.Log.Error("sweep_step_failed", "error", err)
		}
	})
}

// plan sets the first time of what can be done here and has never been planned.
func (s *Sweeper) plan(ctx context.Context) error {
	return s.DB.Write(ctx, func(tx *store.Tx) error {
		for _, name := range s.Able() {
			_, err := tx.Exec(`UPDATE sweeps SET next_at_ms = $1 WHERE sweep = $2 AND next_at_ms IS NULL`, tx.Now.Add(min(firstSweep, s.every())).UnixMilli(), string(name))
			if err != nil {
				return fmt.Errorf("planning a sweep: %w", err)
			}
		}
		return nil
	})
}

// Step runs the sweeps that are due now, one after the other.
func (s *Sweeper) Step(ctx context.Context) error {
	rows, err := s.DB.Reader(ctx).Query(`
		SELECT sweep FROM sweeps WHERE next_at_ms <= $1 AND (locked_until_ms IS NULL OR locked_until_ms <= $1)`, time.Now().UnixMilli())
	if err != nil {
		return fmt.Errorf("looking for sweeps: %w", err)
	}
	due, err := store.Collect(rows, func(r *sql.Rows) (name SweepName, err error) { return name, r.Scan(&name) })
	if err != nil {
		return fmt.Errorf("looking for sweeps: %w", err)
	}
	for _, name := range s.Able() {
		if !slices.Contains(due, name) {
			continue
		}
		if _, err := s.sweep(ctx, name, false); err != nil {
			return err
		}
	}
	return nil
}

// Sweep runs one sweep now, beside a server that may be running. The error is
// that of the sweep.
func (s *Sweeper) Sweep(ctx context.Context, name SweepName) error {
	if s.does(name) == nil {
		return store.Errorf(store.CodeConflict, "the sweep %s has nobody to ask: see jpintel config", name)
	}
	failed, err := s.sweep(ctx, name, true)
	return errors.Join(err, failed)
}

// sweep runs one sweep and writes down what came of it. failed is why it did not
// come to its end, err why that could not be written.
func (s *Sweeper) sweep(ctx context.Context, name SweepName, now bool) (failed, err error) {
	r, err := s.claim(ctx, name, now)
	if err != nil || r == nil {
		if err == nil && now {
			err = store.Errorf(store.CodeConflict, "the sweep %s is running", name)
		}
		return nil, err
	}
	failed = s.does(name)(r, ctx)
	if errors.Is(failed, errSweepLost) {
		s.Log.Warn("sweep_lost", "sweep", string(name))
		return failed, nil
	}
	if ctx.Err() == nil { // also of a try that has failed: what it has found is there
		failed = errors.Join(failed, r.alarm(ctx))
	}
	ctx, stopping := context.WithoutCancel(ctx), ctx.Err() != nil
	if failed != nil && !stopping {
		s.Log.Warn("sweep_failed", "sweep", string(name), "code", sweepErrorCode(failed), "failures", r.failures+1, "error", failed)
	}
	return failed, r.write(ctx, func(tx *store.Tx) error {
		switch {
		case failed == nil:
			return r.succeed(tx)
		case stopping: // nothing is known about the outside world
			return r.release(tx)
		}
		return r.fail(tx, failed)
	})
}

// round is one claimed try of a sweep.
type round struct {
	*Sweeper
	name      SweepName
	token     int64
	started   time.Time
	doneUntil time.Time // zero: nothing yet
	position  string
	checked   int
	unread    int // groups in a row whose answers were not what they should be

	failures     int // of the tries before this one
	failingSince time.Time
	wrote        time.Time // the last time
}

// errSweepLost says that another process has taken the sweep up.
var errSweepLost = errors.New("the claim on the sweep is lost")

// claim takes a sweep that is due, or any; nil: somebody else has it.
func (s *Sweeper) claim(ctx context.Context, name SweepName, now bool) (*round, error) {
	r := round{Sweeper: s, name: name}
	err := s.DB.Write(ctx, func(tx *store.Tx) error {
		var done, since sql.NullInt64
		r.started, r.wrote = tx.Now, tx.Now
		err := tx.QueryRow(`
			UPDATE sweeps SET lock_token = lock_token + 1, locked_until_ms = $1, started_at_ms = $2
			WHERE sweep = $3 AND (locked_until_ms IS NULL OR locked_until_ms <= $2) AND ($4 OR next_at_ms <= $2)
			RETURNING lock_token, done_until_ms, COALESCE(position, ''), failures, failing_since_ms`,
			tx.Now.Add(sweepLease).UnixMilli(), tx.NowMS(), string(name), store.Bit(now)).Scan(&r.token, &done, &r.position, &r.failures, &since)
		r.doneUntil, r.failingSince = orZero(done), orZero(since)
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("taking a sweep up: %w", err)
	}
	return &r, nil
}

// write writes a part of what was read, under the claim.
func (r *round) write(ctx context.Context, fn func(*store.Tx) error) error {
	return r.DB.WriteBackground(ctx, func(tx *store.Tx) error {
		r.wrote = tx.Now
		if err := r.change(tx, `locked_until_ms = $1`, tx.Now.Add(sweepLease).UnixMilli()); err != nil {
			return err
		}
		return fn(tx)
	})
}

// change is one update of the sweep's row under the claim. The last two
// placeholders are its own.
func (r *round) change(tx *store.Tx, assignments string, args ...any) error {
	n := len(args)
	changed, err := tx.Update(fmt.Sprintf(`UPDATE sweeps SET checked = $%d, %s WHERE sweep = $%d AND lock_token = $%d`, n+1, assignments, n+2, n+3),
		append(args, r.checked, string(r.name), r.token)...)
	if err != nil {
		return fmt.Errorf("sweep %s: %w", r.name, err)
	}
	if changed == 0 {
		return errSweepLost
	}
	return nil
}

// done notes that everything was read up to a time.
func (r *round) done(tx *store.Tx, until time.Time) error {
	return r.change(tx, `done_until_ms = MAX(COALESCE(done_until_ms, 0), $1)`, until.UnixMilli())
}

func (r *round) succeed(tx *store.Tx) error {
	if err := over(tx, SweepFailing, string(r.name)); err != nil {
		return err
	}
	return r.change(tx, `position = NULL, succeeded_at_ms = $1, next_at_ms = $2, failures = 0, failing_since_ms = NULL, last_error = NULL, locked_until_ms = NULL`,
		tx.NowMS(), r.started.Add(r.every()).UnixMilli())
}

// release has the sweep go on where it is, as soon as somebody can.
func (r *round) release(tx *store.Tx) error {
	return r.change(tx, `next_at_ms = MIN(COALESCE(next_at_ms, $1), $1), locked_until_ms = NULL`, tx.NowMS())
}

// fail plans the next try. Without a success for a day it is a finding.
func (r *round) fail(tx *store.Tx, failed error) error {
	code := sweepErrorCode(failed)
	first := tx.Now
	if !r.failingSince.IsZero() {
		first = r.failingSince
	}
	if tx.Now.Sub(first) >= sweepPatience {
		r.Log.Error("sweep_failing", "sweep", string(r.name), "code", code, "since", first)
		if err := observe(tx, SweepFailing, string(r.name), "", failingDetail{code, first}); err != nil {
			return err
		}
	}
	return r.change(tx, `failures = failures + 1, failing_since_ms = $1, last_error = $2, next_at_ms = $3, locked_until_ms = NULL`,
		first.UnixMilli(), code, tx.Now.Add(doubled(firstSweepRetry, r.failures, longestSweepRetry)).UnixMilli())
}

// failingDetail is the detail of a sweep_failing.
type failingDetail struct {
	Code  string    `json:"code"`
	Since time.Time `json:"since"`
}

// sweepErrorCode is the word for a failure that may be stored and shown.
func sweepErrorCode(err error) string {
	if e, ok := errors.AsType[*modelgate.ReadError](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[interface {
		error
		SweepCode() string
	}](err); ok {
		return e.SweepCode()
	}
	if code := store.CodeOf(err); code != "" {
		return string(code)
	}
	return "internal"
}

// alarm is the one line of the log about what a round has found, by kind; what
// was counted once is not counted again. It is written before it is noted, so
// that a crash repeats it and never drops it.
func (r *round) alarm(ctx context.Context) error {
	q := r.DB.Reader(ctx)
	var last int64
	if err := q.QueryRow(`SELECT COALESCE(MAX(finding_seq), 0) FROM sweep_findings`).Scan(&last); err != nil {
		return fmt.Errorf("counting findings: %w", err)
	}
	rows, err := q.Query(`
		SELECT kind, COUNT(*) FROM sweep_findings WHERE alarmed_at_ms IS NULL AND resolved_at_ms IS NULL AND finding_seq <= $1 GROUP BY kind ORDER BY kind`, last)
	if err != nil {
		return fmt.Errorf("counting findings: %w", err)
	}
	args, err := store.Collect(rows, func(r *sql.Rows) (count slog.Attr, err error) {
		var kind string
		var n int
		err = r.Scan(&kind, &n)
		return slog.Int(kind, n), err
	})
	if err != nil || len(args) == 0 {
		return err
	}
	r.Log.LogAttrs(ctx, slog.LevelError, "sweep_found", append([]slog.Attr{slog.String("sweep", string(r.name))}, args...)...)
	return r.write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(`UPDATE sweep_findings SET alarmed_at_ms = $1 WHERE alarmed_at_ms IS NULL AND finding_seq <= $2`, tx.NowMS(), last); err != nil {
			return fmt.Errorf("noting an alarm: %w", err)
		}
		return nil
	})
}

// Sweep is one sweep as it stands.
type Sweep struct {
	Name        SweepName  `json:"sweep"`
	DoneUntil   *time.Time `json:"done_until"` // everything up to here was read; null: nothing yet, or it reads all each time
	StartedAt   *time.Time `json:"started_at"`
	SucceededAt *time.Time `json:"succeeded_at"`
	NextAt      *time.Time `json:"next_at"` // null: not planned
	Running     bool       `json:"running"`
	Checked     int        `json:"checked"` // what the last try has looked at
	Failures    int        `json:"failures"`
	LastError   *string    `json:"last_error"` // a code
}

func readSweeps(q store.Querier, now time.Time) (page store.Page[Sweep], err error) {
	rows, err := q.Query(`
		SELECT sweep, done_until_ms, started_at_ms, succeeded_at_ms, next_at_ms, COALESCE(locked_until_ms > $1, 0), checked, failures, last_error FROM sweeps ORDER BY sweep`, now.UnixMilli())
	if err != nil {
		return page, fmt.Errorf("reading sweeps: %w", err)
	}
	page.Data, err = store.Collect(rows, func(r *sql.Rows) (s Sweep, err error) {
		var done, started, succeeded, next sql.NullInt64
		err = r.Scan(&s.Name, &done, &started, &succeeded, &next, &s.Running, &s.Checked, &s.Failures, &s.LastError)
		s.DoneUntil, s.StartedAt, s.SucceededAt, s.NextAt = instant(done), instant(started), instant(succeeded), instant(next)
		return s, err
	})
	return page, err
}

// SweepsRequest asks for all sweeps.
type SweepsRequest struct{}

// Sweeps lists the sweeps as they stand.
func (s *Service) Sweeps(ctx context.Context, _ SweepsRequest) (store.Page[Sweep], error) {
	return readSweeps(s.DB.Reader(ctx), time.Now())
}

// SweepNowRequest has a sweep run.
type SweepNowRequest struct {
	Name SweepName `json:"sweep"` // "": all of them
}

// SweepsPlanned are the sweeps after a change of their times.
type SweepsPlanned struct{ store.Page[Sweep] }

// HTTPStatus is 202: the server runs them.
func (SweepsPlanned) HTTPStatus() int { return 202 }

// SweepNow has the server run a sweep as soon as it can.
func (s *Service) SweepNow(ctx context.Context, r SweepNowRequest) (planned SweepsPlanned, err error) {
	if r.Name != "" && !slices.Contains(sweepNames, r.Name) {
		return planned, store.Errorf(store.CodeInvalid, "sweep: want audit, accounts, events, or nothing for all of them")
	}
	err = s.DB.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(`UPDATE sweeps SET next_at_ms = $1 WHERE sweep = $2 OR $2 = ''`, tx.NowMS(), string(r.Name)); err != nil {
			return fmt.Errorf("planning a sweep: %w", err)
		}
		planned.Page, err = readSweeps(tx, tx.Now)
		return err
	})
	return planned, err
}
