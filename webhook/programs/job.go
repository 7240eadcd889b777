package programs

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"jpintel/store"
)

// maxStepRows bounds a step of the background work: it holds the writer for a
// few milliseconds.
const maxStepRows = 200

// job is work that a change of the state left to do.
type job struct {
	seq     int64
	kind    string
	subject string
	cursor  int64 // done up to here
	last    int64 // the last that existed when the state was committed
}

// The kinds of jobs. A job is inserted in the transaction that causes it,
// advances with each step and is deleted in its last one.
const (
	jobMatch = "match_filters"  // a new program against saved filters; subject: its program.created event
	jobRule  = "exclusion_rule" // a new rule to those who track its programs; subject: the rule
)

// addJob inserts a job, unless there is nobody to do it for.
func (s *Service) addJob(tx *store.Tx, kind, subject string, last int64) error {
	if last == 0 {
		return nil
	}
	if _, err := tx.Exec(`INSERT INTO program_jobs (kind, subject, last) VALUES ($1, $2, $3)`, kind, subject, last); err != nil {
		return fmt.Errorf("adding a %s job: %w", kind, err)
	}
	tx.AfterCommit(s.Outbox.Wake)
	return nil
}

const jobColumns = `job_seq, kind, subject, cursor, last`

// nextJob returns the oldest job.
func nextJob(q store.Querier) (job, bool, error) {
	return scanJob(q.QueryRow(`SELECT ` + jobColumns + ` FROM program_jobs ORDER BY job_seq LIMIT 1`))
}

// readJob returns the job of a subject.
func readJob(q store.Querier, kind, subject string) (job, bool, error) {
	return scanJob(q.QueryRow(`SELECT `+jobColumns+` FROM program_jobs WHERE kind = $1 AND subject = $2`, kind, subject))
}

func scanJob(row *sql.Row) (j job, ok bool, err error) {
	err = row.Scan(&j.seq, &j.kind, &j.subject, &j.cursor, &j.last)
	if errors.Is(err, sql.ErrNoRows) {
		return j, false, nil
	}
	if err != nil {
		return j, false, fmt.Errorf("reading a job: %w", err)
	}
	return j, true, nil
}

// save stores how far a job is, or deletes it.
func (j job) save(tx *store.Tx, done bool) (err error) {
	if done {
		_, err = tx.Exec(`DELETE FROM program_jobs WHERE job_seq = $1`, j.seq)
	} else {
		_, err = tx.Exec(`UPDATE program_jobs SET cursor = $1 WHERE job_seq = $2`, j.cursor, j.seq)
	}
	if err != nil {
		return fmt.Errorf("saving a job: %w", err)
	}
	return nil
}

// rows is how many rows a step looks at.
func (s *Service) rows() int {
	if s.stepRows > 0 {
		return s.stepRows
	}
	return maxStepRows
}

// Step runs one bounded step of the work that is left, the oldest jobs first,
// and reports whether there may be more. Whoever calls it again until there is
// not has all of it done; it may be called from several goroutines.
func (s *Service) Step(ctx context.Context) (more bool, err error) {
	if _, ok, err := nextJob(s.DB.Reader(ctx)); err != nil || !ok {
		return false, err // spares the writer an empty transaction
	}
	err = s.DB.WriteBackground(ctx, func(tx *store.Tx) error {
		for left := s.rows(); left > 0; {
			j, ok, err := nextJob(tx)
			if err != nil || !ok {
				return err
			}
			seen, err := s.work(ctx, tx, j, left)
			if err != nil {
				return err
			}
			left -= seen + 1 // the job itself is a row too
		}
		more = true
		return nil
	})
	return more && err == nil, err
}

// work does a part of a job and returns how many rows it looked at.
func (s *Service) work(ctx context.Context, tx *store.Tx, j job, rows int) (seen int, err error) {
	if j.kind == jobRule {
		return s.tellTrackers(ctx, tx, j, rows)
	}
	return s.matchFilters(ctx, tx, j, rows)
}
