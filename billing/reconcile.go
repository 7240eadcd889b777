package billing

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"jpintel/billing/modelgate"
	"jpintel/billing/money"
	"jpintel/store"
)

const (
	// DefaultSettle is a request's time, the longest that the upstream may take
	// for one (5 min), the lag of its lists (60 s), and a little.
	DefaultSettle = 6*time.Minute + 30*time.Second
	// readsApart is how far apart two looks have to be that both find nothing.
	readsApart = time.Minute
	// Looks that come to nothing are repeated with a growing distance, for so
	// long and no fewer times, so that a program that was off is no day of looking;
	// then a person has to look.
	firstLook   = 30 * time.Second
	longestLook = time.Hour
	lookFor     = 24 * time.Hour
	fewestLooks = 20
	// mostAbsences is how often looks may end with the same bytes being sent again,
	// and nothing there afterwards, two looks each time.
	mostAbsences = 3
	// auditMargin is how far around the sends audit events are looked for; what
	// the two clocks differ by comes on top.
	auditMargin = 15 * time.Minute
)

func (e *Engine) settleTime() time.Duration { return cmp.Or(e.Settle, DefaultSettle) }

// verdict is what a look at the upstream has come to.
type verdict string

const (
	verdictSucceeded  verdict = "succeeded"
	verdictMismatch   verdict = "mismatch"             // there, but not as it was asked for
	verdictDuplicate  verdict = "duplicate_upstream"   // there more than once
	verdictOnlyAudit  verdict = "audit_without_object" // it was made, and is not there
	verdictSuperseded verdict = "superseded"
	verdictAbsent     verdict = "absent"
	verdictFailed     verdict = "read_failed"
	verdictNone       verdict = "inconclusive"
	verdictForeign    verdict = "not_a_duplicate" // a group that is not ours to delete
	verdictLow        verdict = "wallet_low"      // too small for the operation
	verdictFunded     verdict = "wallet_funded"
)

// finding is one look at one of the upstream's surfaces.
type finding struct {
	surface, query string
	status         int
	ids            []string
	sha256         string
	date           time.Time
	verdict        verdict
	answer         modelgate.Answer // of verdictSucceeded
	code           string           // of verdictFailed
}

// write keeps the look as evidence on an operation.
func (f finding) write(tx *store.Tx, operationID string) error {
	_, err := tx.Exec(`
		INSERT INTO reconcile_evidence (operation_id, at_ms, surface, query, http_status, matched, match_ids, verdict, sha256)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		operationID, tx.NowMS(), f.surface, f.query, store.Nullable(f.status), len(f.ids), strings.Join(f.ids, ","), string(f.verdict), f.sha256)
	if err != nil {
		return fmt.Errorf("keeping evidence: %w", err)
	}
	return nil
}

// writeNew is write, unless the last look of the same kind has found the same:
// days of waiting are not thousands of rows. The hash does not count, since answers
// have times and ids in them.
func (f finding) writeNew(tx *store.Tx, operationID string) error {
	var status int
	var ids, last string
	err := tx.QueryRow(`
		SELECT COALESCE(http_status, 0), match_ids, verdict FROM reconcile_evidence WHERE operation_id = $1 AND surface = $2 ORDER BY evidence_seq DESC LIMIT 1`,
		operationID, f.surface).Scan(&status, &ids, &last)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("reading evidence: %w", err)
	}
	if err == nil && status == f.status && ids == strings.Join(f.ids, ",") && last == string(f.verdict) {
		return nil
	}
	return f.write(tx, operationID)
}

// reconcile finds out what has become of an operation: by the same request under
// the same key, where that still protects us, and by looking, where it does not
// help.
func (e *Engine) reconcile(ctx context.Context, o *Operation) error {
	if replay, err := e.shouldReplay(ctx, o); err != nil {
		return err
	} else if replay {
		return e.send(ctx, o)
	}
	last, err := lastSent(e.DB.Reader(ctx), o)
	if err != nil {
		return err
	}
	if settled := last.Add(e.settleTime()); !last.IsZero() && time.Now().Before(settled) {
		return e.giveBack(ctx, o, settled)
	}
	found := e.look(ctx, o)
	findings := []finding{found}
	if found.verdict == verdictAbsent {
		audit := e.lookAtAudit(ctx, o, last, found.date)
		findings = append(findings, audit)
		found = audit
	}
	inWindow := false
	if found.verdict == verdictAbsent { // only then does it matter
		if inWindow, err = e.inWindow(ctx, o); err != nil {
			return err
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) { // this program is stopping: what it has read is no evidence
		return e.giveBack(ctx, o, time.Now())
	}
	if o.behind && time.Since(o.CreatedAt) >= replayWindow { // when it was first sent is not known
		inWindow = false
	}
	return e.write(ctx, func(tx *store.Tx) error { return e.judge(ctx, tx, o, findings, found, last, inWindow) })
}

// shouldReplay reports whether the original request is the better question: the
// last send left it open, and this has not been tried since.
func (e *Engine) shouldReplay(ctx context.Context, o *Operation) (bool, error) {
	if o.SendState == "not_sent" || o.behind {
		return false, nil
	}
	q := e.DB.Reader(ctx)
	var last string
	var since int
	err := q.QueryRow(`
		SELECT COALESCE((SELECT outcome FROM operation_attempts WHERE operation_id = $1 ORDER BY attempt_no DESC LIMIT 1), ''),
		  (SELECT COUNT(*) FROM operation_attempts WHERE operation_id = $1 AND kind = $2 AND started_at_ms >= $3 AND outcome NOT IN ('not_begun', 'not_sent', 'upstream_auth'))`,
		o.OperationID, kindReconcile, o.reconcilingSince.UnixMilli()).Scan(&last, &since)
	if err != nil {
		return false, fmt.Errorf("reading attempts: %w", err)
	}
	switch modelgate.Class(last) {
	case modelgate.Unknown, modelgate.Malformed, modelgate.Redirected, modelgate.NotBegun, modelgate.NotSent, modelgate.Auth, "interrupted":
	default:
		return false, nil
	}
	sends, err := sendsSince(q, o)
	if err != nil || since > 0 || sends >= maxSends {
		return false, err
	}
	return e.inWindow(ctx, o)
}

// lastSent is when the operation was last sent; zero: never.
func lastSent(q store.Querier, o *Operation) (time.Time, error) {
	var at sql.NullInt64
	if err := q.QueryRow(`SELECT MAX(started_at_ms) FROM operation_attempts WHERE operation_id = $1`, o.OperationID).Scan(&at); err != nil {
		return time.Time{}, fmt.Errorf("reading attempts: %w", err)
	}
	return orZero(at), nil
}

// judge is the verdict table. Evidence and verdict are one transaction.
func (e *Engine) judge(ctx context.Context, tx *store.Tx, o *Operation, findings []finding, f finding, last time.Time, inWindow bool) error {
	before, err := absentBefore(tx, o, last.Add(e.settleTime()))
	if err != nil {
		return err
	}
	for _, f := range findings {
		if err := f.write(tx, o.OperationID); err != nil {
			return err
		}
	}
	switch f.verdict {
	case verdictSucceeded:
		return o.adopt(ctx, tx, e.Rules.rules(), f.answer)
	case verdictMismatch, verdictDuplicate, verdictOnlyAudit:
		e.alarm(o, string(f.verdict))
		return o.escalate(tx, string(f.verdict), verdictWords[f.verdict])
	case verdictSuperseded:
		return o.superseded(tx)
	case verdictAbsent:
		switch apart := min(readsApart, e.settleTime()); {
		case before.IsZero() || tx.Now.Sub(before) < apart:
			return o.release(tx, tx.Now.Add(apart))
		case inWindow:
			return e.sendAgain(tx, o)
		}
		e.alarm(o, codeNotExecuted)
		return o.notExecuted(tx)
	}
	first, looks, err := failedLooks(tx, o)
	if err != nil {
		return err
	}
	if looks >= fewestLooks && tx.Now.Sub(first) >= lookFor {
		e.alarm(o, f.code)
		return o.escalate(tx, "inconclusive", "a day of looking has not settled it; the last look failed: "+f.code)
	}
	return o.release(tx, tx.Now.Add(doubled(min(firstLook, e.settleTime()), looks, longestLook)))
}

// sendAgain is T19 where the same key can still bring it about: not where the
// upstream has a failure in store for it, nor where it was of no use before.
func (e *Engine) sendAgain(tx *store.Tx, o *Operation) error {
	if o.replayed5xx > 1 {
		e.alarm(o, "stored_failure")
		return o.escalate(tx, "stored_failure", "the upstream has nothing of it, and answers this Idempotency-Key with the failure that it has stored")
	}
	var absences int
	err := tx.QueryRow(`
		SELECT COUNT(*) FROM reconcile_evidence WHERE operation_id = $1 AND surface = 'audit' AND verdict = $2
		AND at_ms > COALESCE((SELECT MAX(at_ms) FROM operator_notes WHERE operation_id = $1 AND who <> $3), 0)`, o.OperationID, string(verdictAbsent), system).Scan(&absences)
	if err != nil {
		return fmt.Errorf("reading evidence: %w", err)
	}
	if absences < 2*mostAbsences {
		return o.sendAgain(tx)
	}
	e.alarm(o, "absent_again")
	return o.escalate(tx, "absent_again", "sent again and again, the upstream has nothing of it")
}

// verdictWords tell the operator what a verdict means.
var verdictWords = map[verdict]string{
	verdictMismatch:  "the upstream has it, but not as it was asked for",
	verdictDuplicate: "the upstream has it more than once",
	verdictOnlyAudit: "the upstream's audit log says that it was done, but the object is not there: it may have been deleted",
}

// absentBefore is when the upstream was first seen without it, in this round and
// after it had come to rest; zero: not yet.
func absentBefore(q store.Querier, o *Operation, settled time.Time) (time.Time, error) {
	var at sql.NullInt64
	err := q.QueryRow(`SELECT MIN(at_ms) FROM reconcile_evidence WHERE operation_id = $1 AND surface = 'audit' AND verdict = $2 AND at_ms >= $3`,
		o.OperationID, string(verdictAbsent), max(o.reconcilingSince.UnixMilli(), settled.UnixMilli())).Scan(&at)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading evidence: %w", err)
	}
	return orZero(at), nil
}

// failedLooks is when a look of this round first came to nothing, and how many
// have.
func failedLooks(q store.Querier, o *Operation) (first time.Time, looks int, err error) {
	var at sql.NullInt64
	err = q.QueryRow(`SELECT MIN(at_ms), COUNT(*) FROM reconcile_evidence WHERE operation_id = $1 AND verdict = $2 AND at_ms >= $3`,
		o.OperationID, string(verdictFailed), o.reconcilingSince.UnixMilli()).Scan(&at, &looks)
	if err != nil {
		return first, 0, fmt.Errorf("reading evidence: %w", err)
	}
	return orZero(at), looks, nil
}

// look asks the upstream for what the operation was to make or change.
func (e *Engine) look(ctx context.Context, o *Operation) finding {
	switch o.Action {
	case CreateGroup:
		return e.lookForGroup(ctx, o)
	case CreateKey:
		return e.lookForKey(ctx, o)
	case SetLimit, SetInitialLimit:
		return e.lookAtLimits(ctx, o)
	case RevokeKey:
		return e.lookAtKey(ctx, o)
	case FreezeGroup, ThawGroup:
		return e.lookAtGroup(ctx, o)
	case DeleteGroup:
		return e.lookAtDeletion(ctx, o)
	case TopUpCredit, DebitCredit:
		return e.lookForTransaction(ctx, o)
	}
	return finding{surface: "none", verdict: verdictFailed, code: "no_surface"} // unreachable unless a newer version has made it
}

// seen begins a finding from an answer; a failed one is its verdict already.
func seen[T any](surface string, found modelgate.Found[T], err error, id func(T) string) finding {
	f := finding{surface: surface, query: found.Query, status: found.Status, sha256: found.SHA256, date: found.Date}
	if e, ok := errors.AsType[*modelgate.ReadError](err); ok {
		f.verdict, f.code = verdictFailed, e.Code
	} else if err != nil {
		f.verdict, f.code = verdictFailed, "read_failed"
	}
	for _, item := range found.Items {
		f.ids = append(f.ids, id(item))
	}
	return f
}

// among is the verdict on objects that have the operation's own reference: there
// should be one, as it was asked for.
func among[T any](f finding, items []T, fits func(T) bool, answer func(T) modelgate.Answer) finding {
	switch {
	case f.verdict != "":
	case len(items) == 0:
		f.verdict = verdictAbsent
	case len(items) > 1:
		f.verdict = verdictDuplicate
	case !fits(items[0]):
		f.verdict = verdictMismatch
	default:
		f.verdict, f.answer = verdictSucceeded, answer(items[0])
	}
	return f
}

func (e *Engine) lookForGroup(ctx context.Context, o *Operation) finding {
	found, err := e.Client.GroupsByRef(ctx, o.externalRef)
	f := seen("groups", found, err, func(g modelgate.Group) string { return g.ID })
	return among(f, found.Items, func(g modelgate.Group) bool { return g.Status == modelgate.GroupActive },
		func(g modelgate.Group) modelgate.Answer { return modelgate.Answer{TargetID: g.ID, Group: &g} })
}

func (e *Engine) lookForKey(ctx context.Context, o *Operation) finding {
	group, purpose, err := keySubject(o.Intent)
	if err != nil {
		return finding{surface: "keys", verdict: verdictFailed, code: "intent"} // unreachable: we have made it
	}
	found, err := e.Client.KeysByRef(ctx, group, o.externalRef)
	f := seen("keys", found, err, func(k modelgate.Key) string { return k.ID })
	return among(f, found.Items, func(k modelgate.Key) bool {
		return k.GroupID == group && k.Purpose == purpose && k.Status == modelgate.KeyActive
	},
		func(k modelgate.Key) modelgate.Answer {
			k.Secret, k.SecretAvailable = "", false // a list has none
			return modelgate.Answer{TargetID: k.ID, Key: &k}
		})
}

func (e *Engine) lookAtLimits(ctx context.Context, o *Operation) finding {
	found, err := e.Client.Limits(ctx, o.Intent)
	f := seen("limits", found, err, func(l modelgate.Limits) string { return l.PolicyVersion })
	if f.verdict == "" {
		f.verdict, f.answer = judgeLimits(o, found.Items)
	}
	return f
}

// judgeLimits compares by version first: only one of them is in force.
func judgeLimits(o *Operation, items []modelgate.Limits) (verdict, modelgate.Answer) {
	if len(items) == 0 {
		return verdictMismatch, modelgate.Answer{} // the group itself is gone
	}
	l := items[0]
	var inForce int64
	if l.PolicyVersion != "" {
		n, err := strconv.ParseInt(l.PolicyVersion, 10, 64)
		if err != nil {
			return verdictMismatch, modelgate.Answer{}
		}
		inForce = n
	}
	limit, currency, err := o.money()
	switch {
	case err != nil:
		return verdictMismatch, modelgate.Answer{}
	case inForce > o.IntentVersion:
		return verdictSuperseded, modelgate.Answer{}
	case inForce < o.IntentVersion:
		return verdictAbsent, modelgate.Answer{}
	case !sameLimit(l, limit, currency):
		return verdictMismatch, modelgate.Answer{}
	}
	return verdictSucceeded, modelgate.Answer{TargetID: l.GroupID, Limits: &l}
}

func sameLimit(l modelgate.Limits, limit money.Amount, c money.Currency) bool {
	return l.SpendLimit.Equal(limit) && l.Currency == c && l.Period == modelgate.Period
}

func (e *Engine) lookAtKey(ctx context.Context, o *Operation) finding {
	found, err := e.Client.Key(ctx, o.Intent)
	f := seen("keys", found, err, func(k modelgate.Key) string { return k.ID })
	switch {
	case f.verdict != "":
	case len(found.Items) == 0:
		f.verdict = verdictMismatch // a revoked key is still there
	case found.Items[0].Status == modelgate.KeyRevoked:
		f.verdict, f.answer = verdictSucceeded, modelgate.Answer{TargetID: found.Items[0].ID, Key: &found.Items[0]}
	default:
		f.verdict = verdictAbsent
	}
	return f
}

func (e *Engine) lookAtGroup(ctx context.Context, o *Operation) finding {
	group, wanted := groupOf(o), modelgate.GroupFrozen
	if o.Action == ThawGroup {
		wanted = modelgate.GroupActive
	}
	found, err := e.Client.Group(ctx, group)
	f := seen("groups", found, err, func(g modelgate.Group) string { return g.ID })
	switch {
	case f.verdict != "":
	case len(found.Items) == 0:
		f.verdict = verdictMismatch
	case found.Items[0].Status == wanted:
		f.verdict, f.answer = verdictSucceeded, modelgate.Answer{TargetID: group, Group: &found.Items[0]}
	case found.Items[0].Status == modelgate.GroupActive || found.Items[0].Status == modelgate.GroupFrozen:
		f.verdict = verdictAbsent
	default: // deleted
		f.verdict = verdictMismatch
	}
	return f
}

// lookForTransaction looks for the movement by its reference. That of a top-up is
// the same in every version, so that a later one finds what an earlier one has done.
func (e *Engine) lookForTransaction(ctx context.Context, o *Operation) finding {
	group, kind := creditGroup(o), modelgate.TypeTopUp
	if o.Action == DebitCredit {
		kind = modelgate.TypeAdjustment
	}
	amount, currency, err := o.money()
	if err != nil {
		return finding{surface: "transactions", verdict: verdictFailed, code: "amount"} // unreachable: we have made it
	}
	found, err := e.Client.TransactionsByRef(ctx, group, o.externalRef)
	f := seen("transactions", found, err, func(t modelgate.Transaction) string { return t.ID })
	return among(f, found.Items, func(t modelgate.Transaction) bool {
		return t.GroupID == group && t.Type == kind && t.Amount.Equal(amount) && t.Currency == currency && t.Status == modelgate.TransactionPosted
	},
		func(t modelgate.Transaction) modelgate.Answer {
			return modelgate.Answer{TargetID: t.ID, Transaction: &t}
		})
}

// auditActions are the upstream's names for what operations do.
var auditActions = map[Action]string{CreateGroup: "group.create", CreateKey: "key.create", SetLimit: "limit.update", SetInitialLimit: "limit.update",
	RevokeKey: "key.revoke", FreezeGroup: "group.update", ThawGroup: "group.update", DeleteGroup: "group.delete", TopUpCredit: "credit.top_up", DebitCredit: "credit.adjust"}

// auditTarget is the object that an operation changes; "": it makes one.
func auditTarget(o *Operation) string {
	switch o.Action {
	case SetLimit, SetInitialLimit, RevokeKey:
		return o.Intent
	case FreezeGroup, ThawGroup, DeleteGroup:
		return groupOf(o)
	}
	return ""
}

// lookAtAudit looks for a change that the upstream has noted although its object
// is not to be seen. An event counts as ours by the request id of one of our
// sends or by our reference, never by its time alone.
func (e *Engine) lookAtAudit(ctx context.Context, o *Operation, last, date time.Time) finding {
	margin := auditMargin
	if !date.IsZero() {
		margin += time.Since(date).Abs()
	}
	q := modelgate.AuditQuery{Action: auditActions[o.Action], TargetID: auditTarget(o), From: o.CreatedAt.Add(-margin), To: time.Now().Add(margin)}
	if !last.IsZero() {
		q.From, q.To = o.FirstSentAt.Add(-margin), last.Add(margin)
	}
	found, err := e.Client.Audit(ctx, q)
	ours, idErr := requestIDs(e.DB.Reader(ctx), o)
	if err == nil {
		err = idErr
	}
	var mine []modelgate.AuditEvent
	for _, event := range found.Items {
		if event.RequestID != "" && ours[event.RequestID] || o.externalRef != "" && event.ExternalRef == o.externalRef {
			mine = append(mine, event)
		}
	}
	found.Items = mine
	f := seen("audit", found, err, func(a modelgate.AuditEvent) string { return a.ID })
	switch {
	case f.verdict != "":
	case len(mine) > 0:
		f.verdict = verdictOnlyAudit
	default:
		f.verdict = verdictAbsent
	}
	return f
}

// requestIDs are the upstream's ids of what was sent.
func requestIDs(q store.Querier, o *Operation) (map[string]bool, error) {
	rows, err := q.Query(`SELECT request_id FROM operation_attempts WHERE operation_id = $1 AND request_id IS NOT NULL`, o.OperationID)
	if err != nil {
		return nil, fmt.Errorf("reading attempts: %w", err)
	}
	ids, err := store.Collect(rows, func(r *sql.Rows) (id string, err error) { return id, r.Scan(&id) })
	all := map[string]bool{}
	for _, id := range ids {
		all[id] = true
	}
	return all, err
}
