package billing

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"jpintel/store"
)

// Attempt is one request of an operation.
type Attempt struct {
	Attempt    int        `json:"attempt"`
	Kind       string     `json:"kind"` // send, replay, or reconcile: a replay that is to tell what has happened
	StartedAt  time.Time  `json:"started_at"`
	FinishedAt *time.Time `json:"finished_at"` // null: under way
	Outcome    *string    `json:"outcome"`
	Status     *int       `json:"status"` // HTTP; null: no answer
	ErrorCode  *string    `json:"error_code"`
	RequestID  *string    `json:"upstream_request_id"`
	Replayed   bool       `json:"replayed"` // the answer was the stored one
	RetryAfter *string    `json:"retry_after"`
	ServerDate *time.Time `json:"server_date"`
	Excerpt    *string    `json:"response_excerpt"`
}

// Evidence is one look at the upstream.
type Evidence struct {
	At      time.Time `json:"at"`
	Surface string    `json:"surface"`
	Query   string    `json:"query"`
	Status  *int      `json:"status"`
	Matched int       `json:"matched"`
	IDs     string    `json:"match_ids"` // comma
	Verdict string    `json:"verdict"`
	SHA256  string    `json:"sha256"`
}

// Record is an operation with everything that is known of it.
type Record struct {
	*Operation
	Request  *Request   `json:"request"` // null: a parent
	Attempts []Attempt  `json:"attempts"`
	Evidence []Evidence `json:"evidence"`
	Notes    []Note     `json:"notes"`
	Children []string   `json:"child_operation_ids"`
}

// Request is what an operation sends.
type Request struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Body   string `json:"body"` // as it is sent; "": none
}

// RecordRequest names an operation.
type RecordRequest struct {
	OperationID string `path:"id" json:"-"`
}

// Record reads everything that is known of an operation.
func (s *Service) Record(ctx context.Context, r RecordRequest) (record Record, err error) {
	err = s.DB.View(ctx, func(q store.Querier) error {
		record, err = readRecord(q, r.OperationID)
		return err
	})
	return record, err
}

func readRecord(q store.Querier, id string) (r Record, err error) {
	if r.Operation, err = GetOperation(q, id); err != nil {
		return r, err
	}
	if r.request.Method != "" {
		r.Request = &Request{r.request.Method, r.request.Path, string(r.request.Body)}
	}
	if r.Attempts, err = readAttempts(q, id); err != nil {
		return r, err
	}
	if r.Evidence, err = readEvidence(q, id); err != nil {
		return r, err
	}
	if r.Notes, err = readNotes(q, id); err != nil {
		return r, err
	}
	rows, err := q.Query(`SELECT operation_id FROM partner_operations WHERE parent_operation_id = $1 ORDER BY operation_seq`, id)
	if err != nil {
		return r, fmt.Errorf("reading an operation's children: %w", err)
	}
	r.Children, err = store.Collect(rows, func(rows *sql.Rows) (child string, err error) { return child, rows.Scan(&child) })
	return r, err
}

func readAttempts(q store.Querier, id string) ([]Attempt, error) {
	rows, err := q.Query(`
		SELECT attempt_no, kind, started_at_ms, finished_at_ms, outcome, http_status, error_code, request_id, COALESCE(idempotent_replayed, 0),
		  retry_after_raw, server_date_ms, response_excerpt
		FROM operation_attempts WHERE operation_id = $1 ORDER BY attempt_no`, id)
	if err != nil {
		return nil, fmt.Errorf("reading attempts: %w", err)
	}
	return store.Collect(rows, func(r *sql.Rows) (a Attempt, err error) {
		var started int64
		var finished, date sql.NullInt64
		err = r.Scan(&a.Attempt, &a.Kind, &started, &finished, &a.Outcome, &a.Status, &a.ErrorCode, &a.RequestID, &a.Replayed, &a.RetryAfter, &date, &a.Excerpt)
		a.StartedAt, a.FinishedAt, a.ServerDate = store.FromMS(started), instant(finished), instant(date)
		return a, err
	})
}

func readEvidence(q store.Querier, id string) ([]Evidence, error) {
	rows, err := q.Query(`
		SELECT at_ms, surface, query, http_status, matched, match_ids, verdict, sha256 FROM reconcile_evidence WHERE operation_id = $1 ORDER BY evidence_seq`, id)
	if err != nil {
		return nil, fmt.Errorf("reading evidence: %w", err)
	}
	return store.Collect(rows, func(r *sql.Rows) (e Evidence, err error) {
		var at int64
		err = r.Scan(&at, &e.Surface, &e.Query, &e.Status, &e.Matched, &e.IDs, &e.Verdict, &e.SHA256)
		e.At = store.FromMS(at)
		return e, err
	})
}

// OperationsRequest asks for operations.
type OperationsRequest struct {
	store.PageRequest
	CustomerID string `query:"customer" json:"-"`
	Status     Status `query:"status" json:"-"`
}

// Operations lists operations, the newest first.
func (s *Service) Operations(ctx context.Context, r OperationsRequest) (page store.Page[*Operation], err error) {
	if r.Status != "" && !r.Status.Valid() {
		return page, store.Errorf(store.CodeInvalid, "status: want pending, succeeded, failed_retryable, failed_final, reconciling or reconciliation_needed")
	}
	after, rows, err := r.Position()
	if err != nil {
		return page, err
	}
	found, err := s.DB.Reader(ctx).Query(`
		SELECT `+operationColumns+` FROM partner_operations
		WHERE ($1 = 0 OR operation_seq < $1) AND ($2 = '' OR customer_id = $2) AND ($3 = '' OR status = $3) ORDER BY operation_seq DESC LIMIT $4`,
		after, r.CustomerID, string(r.Status), rows)
	if err != nil {
		return page, fmt.Errorf("listing operations: %w", err)
	}
	all, err := store.Collect(found, func(r *sql.Rows) (*Operation, error) { return scanOperation(r) })
	if err != nil {
		return page, fmt.Errorf("listing operations: %w", err)
	}
	return store.NewPage(all, rows, func(o *Operation) int64 { return o.seq }), nil
}
