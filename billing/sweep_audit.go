package billing

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/store"
)

// This file has the audit sweep: every change at the upstream is an operation's
// or on the operator's list.

// auditClass is what an audit event is to us. The migration tells what each
// means.
type auditClass string

const (
	auditOurs      auditClass = "ours"
	auditForeign   auditClass = "foreign"
	auditUnmatched auditClass = "unmatched"
	auditUndecided auditClass = "undecided"
)

const (
	// auditBatch is how many events are judged in one transaction.
	auditBatch = 100
	// shortestSlice is the shortest time that is asked about: the upstream's
	// filters are written in whole seconds.
	shortestSlice = time.Second
)

// audit reads the audit events since the last round, and judges them.
func (r *round) audit(ctx context.Context) error {
	from, err := r.auditFrom(ctx)
	if err != nil {
		return err
	}
	to := time.Now().Add(auditMargin).Truncate(time.Second) // the upstream's clock may be ahead
	for size := max(to.Sub(from), shortestSlice); from.Before(to); {
		end := minTime(from.Add(size), to)
		found, err := r.auditSlice(ctx, from, end)
		if e, ok := errors.AsType[*modelgate.ReadError](err); ok && e.Code == modelgate.CodeTooMany && size > shortestSlice {
			size = max((size / 2).Truncate(time.Second), shortestSlice)
			continue
		}
		if err != nil {
			return err
		}
		if err := r.keepAudit(ctx, found, end); err != nil {
			return err
		}
		from = end
	}
	if err := r.judgeAgain(ctx); err != nil {
		return err
	}
	return r.write(ctx, noteFailedButDone)
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// auditFrom is where a round begins: before the end of the last one, because
// events come late and clocks differ; the first time, at the first operation.
func (r *round) auditFrom(ctx context.Context) (time.Time, error) {
	from := r.doneUntil
	if from.IsZero() {
		var first sql.NullInt64
		if err := r.DB.Reader(ctx).QueryRow(`SELECT MIN(created_at_ms) FROM partner_operations`).Scan(&first); err != nil {
			return from, fmt.Errorf("looking for the first operation: %w", err)
		}
		if from = r.started.Add(-r.every()); first.Valid {
			from = store.FromMS(first.Int64)
		}
	}
	return minTime(from, r.started).Add(-auditMargin).Truncate(time.Second), nil
}

func (r *round) auditSlice(ctx context.Context, from, to time.Time) (modelgate.Found[modelgate.AuditEvent], error) {
	ctx, cancel := context.WithTimeout(ctx, sweepStep)
	defer cancel()
	return r.Client.Audit(ctx, modelgate.AuditQuery{From: from, To: to})
}

// keepAudit writes a slice of events, each once, and then that it was read: up
// to its end, and not beyond the present by the upstream's clock.
func (r *round) keepAudit(ctx context.Context, found modelgate.Found[modelgate.AuditEvent], end time.Time) error {
	r.checked += len(found.Items)
	present := found.Date
	if present.IsZero() { // it has not said
		present = time.Now()
	}
	end = minTime(end, present)
	for rest := found.Items; ; {
		batch := rest[:min(len(rest), auditBatch)]
		rest = rest[len(batch):]
		err := r.write(ctx, func(tx *store.Tx) error {
			for _, e := range batch {
				if err := keepAuditEvent(tx, e); err != nil {
					return err
				}
			}
			if len(rest) > 0 {
				return nil
			}
			return r.done(tx, end)
		})
		if err != nil || len(rest) == 0 {
			return err
		}
	}
}

// keepAuditEvent notes an event that is new, with what it is to us.
func keepAuditEvent(tx *store.Tx, e modelgate.AuditEvent) error {
	var seen int
	if err := tx.QueryRow(`SELECT COUNT(*) FROM upstream_audit_seen WHERE audit_id = $1`, e.ID).Scan(&seen); err != nil {
		return fmt.Errorf("looking for audit event %s: %w", e.ID, err)
	}
	if seen > 0 {
		return nil
	}
	j, err := judgeAudit(tx, e)
	if err != nil {
		return err
	}
	metadata, err := json.Marshal(e.Metadata)
	if err != nil {
		return fmt.Errorf("audit event %s: %w", e.ID, err) // unreachable: a map of texts
	}
	if e.Metadata == nil {
		metadata = []byte("{}")
	}
	_, err = tx.Exec(`
		INSERT INTO upstream_audit_seen (audit_id, request_id, action, target_type, target_id, external_ref, source_ip, metadata, occurred_at_ms, seen_at_ms,
		  classified, operation_id, customer_id)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
		e.ID, store.Nullable(e.RequestID), e.Action, e.TargetType, e.TargetID, e.ExternalRef, e.SourceIP, string(metadata), e.OccurredAt.UnixMilli(), tx.NowMS(),
		string(j.class), store.Nullable(j.operationID), store.Nullable(j.customerID))
	if err != nil {
		return fmt.Errorf("noting audit event %s: %w", e.ID, err)
	}
	return j.list(tx, e)
}

// judged is what an audit event is to us, and whose.
type judged struct {
	class                   auditClass
	operationID, customerID string // "": none
}

// auditDetail is the detail of a change that is not ours: who, when, what.
type auditDetail struct {
	AuditID    string            `json:"audit_id"`
	RequestID  string            `json:"request_id"`
	Action     string            `json:"action"`
	TargetType string            `json:"target_type"`
	TargetID   string            `json:"target_id"`
	SourceIP   string            `json:"source_ip"`
	OccurredAt time.Time         `json:"occurred_at"`
	Metadata   map[string]string `json:"metadata"`
}

// list puts what is not ours on the operator's list, and what an operation of
// ours has done beside what it was to do.
func (j judged) list(tx *store.Tx, e modelgate.AuditEvent) error {
	if j.class == auditOurs {
		return j.listTwice(tx)
	}
	kind := map[auditClass]FindingKind{auditForeign: ForeignChange, auditUnmatched: UnmatchedChange}[j.class]
	if kind == "" {
		return nil
	}
	return observe(tx, kind, e.ID, j.customerID, auditDetail{e.ID, e.RequestID, e.Action, e.TargetType, e.TargetID, e.SourceIP, e.OccurredAt, e.Metadata})
}

// twiceDetail is the detail of a done_twice.
type twiceDetail struct {
	AuditIDs []string `json:"audit_ids"`
}

// listTwice notes that an operation has more than one event.
func (j judged) listTwice(tx *store.Tx) error {
	rows, err := tx.Query(`SELECT audit_id FROM upstream_audit_seen WHERE operation_id = $1 ORDER BY audit_seq LIMIT $2`, j.operationID, maxListed)
	if err != nil {
		return fmt.Errorf("reading audit events: %w", err)
	}
	ids, err := store.Collect(rows, func(r *sql.Rows) (id string, err error) { return id, r.Scan(&id) })
	if err != nil {
		return fmt.Errorf("reading audit events: %w", err)
	}
	if len(ids) < 2 {
		return nil
	}
	return observe(tx, DoneTwice, j.operationID, j.customerID, twiceDetail{ids})
}

// judgeAudit tells what an event is to us: by the request that it names, by the
// object that it has made, or, where an answer of ours was lost, by the request
// that we may have sent without knowing of its end.
func judgeAudit(q store.Querier, e modelgate.AuditEvent) (judged, error) {
	j, err := asked(q, e)
	if err != nil || j.class != "" {
		return j, err
	}
	j, err = mayHaveAsked(q, e)
	if err != nil || j.class != "" {
		return j, err
	}
	customer, err := touched(q, e)
	if err != nil || customer == "" {
		return judged{class: auditUnmatched}, err
	}
	return judged{class: auditForeign, customerID: customer}, nil
}

// made are the operations of which each makes one object.
const made = `action IN ('create_group', 'create_key', 'top_up_credit', 'debit_credit') AND target_public_id IS NOT NULL`

// madeBy are the upstream's names for what they do.
var madeBy = map[string]Action{"group.create": CreateGroup, "key.create": CreateKey, "credit.top_up": "top_up_credit", "credit.adjust": "debit_credit"}

// asked finds the operation that is known to have asked for a change.
func asked(q store.Querier, e modelgate.AuditEvent) (j judged, err error) {
	err = q.QueryRow(`
		SELECT operation_id, customer_id FROM partner_operations WHERE operation_id = (
		  SELECT operation_id FROM operation_attempts WHERE request_id = $1
		  UNION ALL SELECT operation_id FROM operation_attempts WHERE original_request_id = $1
		  UNION ALL SELECT operation_id FROM partner_operations WHERE action = $2 AND target_public_id = $3 AND `+made+`
		  LIMIT 1)`, e.RequestID, string(madeBy[e.Action]), e.TargetID).Scan(&j.operationID, &j.customerID)
	if errors.Is(err, sql.ErrNoRows) {
		return j, nil
	}
	if err != nil {
		return j, fmt.Errorf("matching audit event %s: %w", e.ID, err)
	}
	j.class = auditOurs
	return j, nil
}

// silent are operations that may have asked for a change without our knowing the
// request's id: of a send that was about so many milliseconds around $1, the end
// is not known, and no event is known to be theirs.
const silent = `o.send_state <> 'not_sent' AND o.first_sent_at_ms <= $1 + $2
	AND NOT EXISTS (SELECT 1 FROM upstream_audit_seen s WHERE s.operation_id = o.operation_id)
	AND NOT EXISTS (SELECT 1 FROM operation_attempts a WHERE a.operation_id = o.operation_id AND a.outcome = 'succeeded'
	  AND (a.original_request_id IS NOT NULL OR a.request_id IS NOT NULL AND a.idempotent_replayed = 0))
	AND EXISTS (SELECT 1 FROM operation_attempts a WHERE a.operation_id = o.operation_id AND a.started_at_ms - $2 <= $1 AND COALESCE(a.finished_at_ms, a.started_at_ms) + $2 >= $1
	  AND (a.request_id IS NULL OR a.idempotent_replayed = 1 AND a.original_request_id IS NULL)
	  AND COALESCE(a.outcome, 'unknown') IN ('unknown', 'malformed', 'upstream_redirect', 'replayed_5xx', 'interrupted', 'succeeded'))`

// mayHaveAsked finds the operation that may have asked for a change. While it is
// open, nobody can tell; when it has ended, the change is its own.
func mayHaveAsked(q store.Querier, e modelgate.AuditEvent) (j judged, err error) {
	method, path := e.Asked()
	policy := ""
	if e.Action == "limit.update" {
		policy = e.Metadata["policy_version"]
	}
	var open bool
	err = q.QueryRow(`
		SELECT operation_id, customer_id, finished_at_ms IS NULL FROM partner_operations o
		WHERE o.request_method = $3 AND o.request_path = $4 AND ($5 = '' OR o.external_ref IS NULL OR o.external_ref = $5)
		  AND ($6 = '' OR CAST(o.intent_version AS TEXT) = $6) AND NOT (o.`+made+`) AND `+silent+`
		ORDER BY finished_at_ms IS NOT NULL, operation_seq LIMIT 1`,
		e.OccurredAt.UnixMilli(), auditMargin.Milliseconds(), method, path, e.ExternalRef, policy).Scan(&j.operationID, &j.customerID, &open)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return j, nil
	case err != nil:
		return j, fmt.Errorf("matching audit event %s: %w", e.ID, err)
	case open:
		return judged{class: auditUndecided, customerID: j.customerID}, nil
	}
	j.class = auditOurs
	return j, nil
}

// touched is the customer to whom what was changed belongs, by the object, its
// group or the reference that it carries; "": nobody here.
func touched(q store.Querier, e modelgate.AuditEvent) (customer string, err error) {
	owner, _, _ := strings.Cut(e.ExternalRef, ":")
	if owner, err = url.PathUnescape(owner); err != nil {
		owner = "" // a reference that is not ours
	}
	err = q.QueryRow(`
		SELECT customer_id FROM billing_accounts WHERE group_id IN ($1, $2)
		UNION ALL SELECT customer_id FROM model_keys WHERE key_id = $1
		UNION ALL SELECT customer_id FROM partner_operations WHERE action = 'create_group' AND target_public_id IN ($1, $2) AND `+made+`
		UNION ALL SELECT customer_id FROM partner_operations WHERE action IN ('create_key', 'top_up_credit', 'debit_credit') AND target_public_id = $1 AND `+made+`
		UNION ALL SELECT customer_id FROM customers WHERE customer_id = $3 LIMIT 1`, e.TargetID, e.GroupID, owner).Scan(&customer)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("matching audit event %s: %w", e.ID, err)
	}
	return customer, nil
}

// judgeAgain judges the events anew that an open operation may have asked for.
func (r *round) judgeAgain(ctx context.Context) error {
	for last, more := int64(0), true; more; {
		err := r.write(ctx, func(tx *store.Tx) error {
			waiting, err := undecided(tx, last)
			if err != nil {
				return err
			}
			more = len(waiting) == auditBatch
			for _, w := range waiting {
				if err := w.judge(tx); err != nil {
					return err
				}
				last = w.seq
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// waitingEvent is an event that is not decided yet.
type waitingEvent struct {
	seq int64
	modelgate.AuditEvent
}

func undecided(tx *store.Tx, after int64) ([]waitingEvent, error) {
	rows, err := tx.Query(`
		SELECT audit_seq, audit_id, COALESCE(request_id, ''), action, target_type, target_id, external_ref, source_ip, metadata, occurred_at_ms
		FROM upstream_audit_seen WHERE classified = 'undecided' AND audit_seq > $1 ORDER BY audit_seq LIMIT $2`, after, auditBatch)
	if err != nil {
		return nil, fmt.Errorf("reading audit events: %w", err)
	}
	return store.Collect(rows, func(r *sql.Rows) (w waitingEvent, err error) {
		var metadata string
		var at int64
		err = r.Scan(&w.seq, &w.ID, &w.RequestID, &w.Action, &w.TargetType, &w.TargetID, &w.ExternalRef, &w.SourceIP, &metadata, &at)
		if err != nil {
			return w, err
		}
		w.OccurredAt = store.FromMS(at)
		err = json.Unmarshal([]byte(metadata), &w.Metadata)
		w.GroupID = w.Metadata["group_id"]
		return w, err
	})
}

func (w waitingEvent) judge(tx *store.Tx) error {
	j, err := judgeAudit(tx, w.AuditEvent)
	if err != nil {
		return err
	}
	_, err = tx.Exec(`UPDATE upstream_audit_seen SET classified = $1, operation_id = $2, customer_id = $3 WHERE audit_seq = $4`,
		string(j.class), store.Nullable(j.operationID), store.Nullable(j.customerID), w.seq)
	if err != nil {
		return fmt.Errorf("judging audit event %s: %w", w.ID, err)
	}
	return j.list(tx, w.AuditEvent)
}

// failedDetail is the detail of a failed_but_done.
type failedDetail struct {
	AuditID    string    `json:"audit_id"`
	Action     string    `json:"action"`
	TargetID   string    `json:"target_id"`
	OccurredAt time.Time `json:"occurred_at"`
	ErrorCode  string    `json:"error_code"` // of the operation
}

// noteFailedButDone lists the operations that have failed here although the
// upstream has done what they asked for. A limit that a newer one has overtaken
// may have been in force before.
func noteFailedButDone(tx *store.Tx) error {
	rows, err := tx.Query(`
		SELECT o.operation_id, o.customer_id, s.audit_id, s.action, s.target_id, s.occurred_at_ms, COALESCE(o.last_error_code, '')
		FROM partner_operations o JOIN upstream_audit_seen s ON s.operation_id = o.operation_id
		WHERE o.status = 'failed_final' AND o.last_error_code IS NOT 'superseded'
		  AND NOT EXISTS (SELECT 1 FROM sweep_findings f WHERE f.kind = 'failed_but_done' AND f.subject = o.operation_id)
		ORDER BY o.operation_seq LIMIT $1`, auditBatch)
	if err != nil {
		return fmt.Errorf("looking for failed operations: %w", err)
	}
	type failed struct {
		operation, customer string
		failedDetail
	}
	all, err := store.Collect(rows, func(r *sql.Rows) (f failed, err error) {
		var at int64
		err = r.Scan(&f.operation, &f.customer, &f.AuditID, &f.Action, &f.TargetID, &at, &f.ErrorCode)
		f.OccurredAt = store.FromMS(at)
		return f, err
	})
	if err != nil {
		return fmt.Errorf("looking for failed operations: %w", err)
	}
	for _, f := range all {
		if err := observe(tx, FailedButDone, f.operation, f.customer, f.failedDetail); err != nil {
			return err
		}
	}
	return nil
}
