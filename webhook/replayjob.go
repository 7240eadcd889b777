package webhook

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"jpintel/store"
)

// ReplayState is how far a replay job is.
type ReplayState string

// The states. running goes on over restarts, and over days where the daily cap
// wants it; it ends as done, or as stopped when the subscription is disabled or
// deleted: a job does not begin again on its own.
const (
	ReplayRunning ReplayState = "running"
	ReplayDone    ReplayState = "done"
	ReplayStopped ReplayState = "stopped"
)

// statusMissed asks for what a subscription has missed while it was disabled. No
// delivery is in this state: a job makes them.
const statusMissed Status = "missed"

// ReplayJob replays many deliveries of one subscription, oldest first.
type ReplayJob struct {
	JobID          string      `json:"job_id"`
	SubscriptionID string      `json:"subscription_id"`
	Status         Status      `json:"status"` // what it replays: success, failed, dead_letter or missed
	Since          time.Time   `json:"since"`
	Until          time.Time   `json:"until"` // exclusive
	State          ReplayState `json:"state"`
	Matched        int         `json:"matched"` // so far: queued and skipped
	Queued         int         `json:"queued"`
	Skipped        int         `json:"skipped"` // its type is not subscribed to any more, or it was there already
	CreatedAt      time.Time   `json:"created_at"`
	FinishedAt     *time.Time  `json:"finished_at"`
}

// StartedReplay is a job that has begun.
type StartedReplay struct{ ReplayJob }

// HTTPStatus is 202 Accepted.
func (StartedReplay) HTTPStatus() int { return 202 }

// ReplayAllRequest asks for a replay of deliveries by their state, or of what
// was missed.
type ReplayAllRequest struct {
	CustomerID     string `bind:"customer" json:"-"` // "": any customer's, for the operator
	SubscriptionID string `path:"id" json:"-"`
	Since          string `json:"since"`  // RFC 3339, inclusive, of the delivery's creation, of missed ones the event's
	Until          string `json:"until"`  // exclusive; "": now, which is the latest
	Status         Status `json:"status"` // success, failed, dead_letter or missed
}

// maxForgotten is how many old jobs a new one clears away.
const maxForgotten = 100

// ReplayAll begins a job that replays deliveries, for the worker to go on with.
// What has expired is not there to be replayed, however early since is. There is
// one job at a time for a subscription and status; another is CodeConflict, and
// so is a subscription that is not to be sent to.
func (s *Service) ReplayAll(ctx context.Context, r ReplayAllRequest) (StartedReplay, error) {
	if r.Status != StatusSuccess && r.Status != StatusFailed && r.Status != StatusDeadLetter && r.Status != statusMissed {
		return StartedReplay{}, store.Errorf(store.CodeInvalid, "status: want dead_letter, failed, success or missed")
	}
	since, err := parseTime("since", r.Since)
	if err != nil {
		return StartedReplay{}, err
	}
	until := time.Time{}
	if r.Until != "" {
		if until, err = parseTime("until", r.Until); err != nil {
			return StartedReplay{}, err
		}
	}
	var started StartedReplay
	err = s.DB.Write(ctx, func(tx *store.Tx) error {
		id, err := s.startReplay(tx, r, since, until)
		if err != nil {
			return err
		}
		started.ReplayJob, err = s.readReplay(tx, ReplayJobRequest{r.CustomerID, id})
		return err
	})
	return started, err
}

func (s *Service) startReplay(tx *store.Tx, r ReplayAllRequest, since, until time.Time) (id string, err error) {
	sub, err := ownSubscription(tx, SubscriptionRequest{r.CustomerID, r.SubscriptionID})
	if err != nil {
		return "", err
	}
	if _, err := readReplaySubscription(tx, sub); err != nil {
		return "", err
	}
	// What is made from now on is not for this job; this very millisecond is.
	if now := tx.Now.Add(time.Millisecond); until.IsZero() || until.After(now) {
		until = now
	}
	if !since.Before(until) {
		return "", store.Errorf(store.CodeInvalid, "since: want a time before until, which is now at the latest")
	}
	err = tx.QueryRow(`SELECT job_id FROM webhook_replays WHERE sub_seq = $1 AND status = $2 AND state = 'running'`, sub, string(r.Status)).Scan(&id)
	if err == nil {
		return "", store.Errorf(store.CodeConflict, "%s is replaying this already: GET /v1/webhooks/replays/%s", id, id)
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("reading replays: %w", err)
	}
	if err := s.forgetReplays(tx, sub); err != nil {
		return "", err
	}
	id = tx.NewID("rpl")
	if _, err := tx.Exec(`
		INSERT INTO webhook_replays (job_id, sub_seq, status, since_ms, until_ms, created_at_ms) VALUES ($1, $2, $3, $4, $5, $6)`,
		id, sub, string(r.Status), since.UnixMilli(), until.UnixMilli(), tx.NowMS()); err != nil {
		return "", fmt.Errorf("adding replay: %w", err)
	}
	tx.AfterCommit(s.Outbox.Wake)
	return id, nil
}

// forgetReplays deletes a subscription's jobs that are as old as the deliveries
// that are gone.
func (s *Service) forgetReplays(tx *store.Tx, sub int64) error {
	if s.Retention == 0 {
		return nil
	}
	_, err := tx.Exec(`
		DELETE FROM webhook_replays WHERE replay_seq IN (
		  SELECT replay_seq FROM webhook_replays WHERE sub_seq = $1 AND finished_at_ms < $2 ORDER BY finished_at_ms LIMIT $3)`,
		sub, tx.Now.Add(-time.Duration(s.Retention)).UnixMilli(), maxForgotten)
	if err != nil {
		return fmt.Errorf("forgetting replays: %w", err)
	}
	return nil
}

// stopReplays ends a subscription's jobs where they are.
func stopReplays(tx *store.Tx, subSeq int64) error {
	_, err := tx.Exec(`
		UPDATE webhook_replays SET state = 'stopped', finished_at_ms = $1 WHERE sub_seq = $2 AND state = 'running'`, tx.NowMS(), subSeq)
	if err != nil {
		return fmt.Errorf("stopping replays: %w", err)
	}
	return nil
}

// ReplayJobRequest names one job.
type ReplayJobRequest struct {
	CustomerID string `bind:"customer" json:"-"` // "": any customer's, for the operator
	JobID      string `path:"id" json:"-"`
}

// ReplayProgress tells how far a job is.
func (s *Service) ReplayProgress(ctx context.Context, r ReplayJobRequest) (ReplayJob, error) {
	return s.readReplay(s.DB.Reader(ctx), r)
}

func (s *Service) readReplay(q store.Querier, r ReplayJobRequest) (ReplayJob, error) {
	job := ReplayJob{JobID: r.JobID}
	var since, until, created int64
	var finished sql.Null[int64]
	err := q.QueryRow(`
		SELECT s.subscription_id, r.status, r.since_ms, r.until_ms, r.state, r.matched, r.queued, r.skipped, r.created_at_ms, r.finished_at_ms
		FROM webhook_replays r JOIN webhook_subscriptions s ON s.sub_seq = r.sub_seq
		WHERE r.job_id = $1 AND `+ofCustomer("s.customer_id", r.CustomerID), r.JobID, r.CustomerID).
		Scan(&job.SubscriptionID, &job.Status, &since, &until, &job.State, &job.Matched, &job.Queued, &job.Skipped, &created, &finished)
	if errors.Is(err, sql.ErrNoRows) {
		return job, store.Errorf(store.CodeNotFound, "replay %s not found", r.JobID)
	}
	if err != nil {
		return job, fmt.Errorf("reading replay: %w", err)
	}
	job.Since, job.Until = store.FromMS(since).In(s.DB.Location), store.FromMS(until).In(s.DB.Location)
	job.CreatedAt, job.FinishedAt = store.FromMS(created).In(s.DB.Location), s.local(finished)
	return job, nil
}
