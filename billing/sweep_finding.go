package billing

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"jpintel/store"
)

// FindingKind says in what the outside world and this file disagree.
type FindingKind string

// The kinds. The first four have happened and are never over by themselves;
// missed and refused events are over when the next round has none.
const (
	ForeignChange   FindingKind = "foreign_change"   // something of a customer's was changed, and not by us
	UnmatchedChange FindingKind = "unmatched_change" // something was changed that we know nothing of
	FailedButDone   FindingKind = "failed_but_done"  // an operation that has failed here took effect there
	DoneTwice       FindingKind = "done_twice"       // an operation has changed more than one thing there
	MoneyDiffers    FindingKind = "money_differs"
	LimitDiffers    FindingKind = "limit_differs"
	StateDiffers    FindingKind = "state_differs" // frozen or not
	KeysDiffer      FindingKind = "keys_differ"
	Unreadable      FindingKind = "unreadable"     // the upstream's answers about a group are not what they should be
	MissedEvents    FindingKind = "missed_events"  // payment events that never arrived, and were fetched
	RefusedEvents   FindingKind = "refused_events" // payment events that were fetched and mean nothing here
	SweepFailing    FindingKind = "sweep_failing"  // a day without a success
)

// findingKinds are all of them.
var findingKinds = []FindingKind{ForeignChange, UnmatchedChange, FailedButDone, DoneTwice, MoneyDiffers, LimitDiffers, StateDiffers, KeysDiffer, Unreadable,
	MissedEvents, RefusedEvents, SweepFailing}

// The states of a finding.
const (
	findingOpen         = "open"
	findingAcknowledged = "acknowledged" // somebody knows of it; it may go on
	findingResolved     = "resolved"     // it was not there any more
)

// Finding is one disagreement, as it stands.
type Finding struct {
	FindingID      string          `json:"finding_id"`
	Kind           FindingKind     `json:"kind"`
	Subject        string          `json:"subject"`
	CustomerID     *string         `json:"customer_id"`
	State          string          `json:"state"`
	Detail         json.RawMessage `json:"detail"` // an object, by the kind
	FirstSeenAt    time.Time       `json:"first_seen_at"`
	LastSeenAt     time.Time       `json:"last_seen_at"`
	ResolvedAt     *time.Time      `json:"resolved_at"`
	AcknowledgedAt *time.Time      `json:"acknowledged_at"`
	AcknowledgedBy *string         `json:"acknowledged_by"`
	Note           *string         `json:"note"`

	seq int64
}

const findingColumns = `finding_seq, finding_id, kind, subject, customer_id, detail, first_seen_at_ms, last_seen_at_ms, resolved_at_ms, acknowledged_at_ms, acknowledged_by, note`

func scanFinding(row interface{ Scan(...any) error }) (f Finding, err error) {
	var first, last int64
	var resolved, acknowledged sql.NullInt64
	var detail string
	err = row.Scan(&f.seq, &f.FindingID, &f.Kind, &f.Subject, &f.CustomerID, &detail, &first, &last, &resolved, &acknowledged, &f.AcknowledgedBy, &f.Note)
	f.Detail = json.RawMessage(detail)
	f.FirstSeenAt, f.LastSeenAt, f.ResolvedAt, f.AcknowledgedAt = store.FromMS(first), store.FromMS(last), instant(resolved), instant(acknowledged)
	switch {
	case f.ResolvedAt != nil:
		f.State = findingResolved
	case f.AcknowledgedAt != nil:
		f.State = findingAcknowledged
	default:
		f.State = findingOpen
	}
	return f, err
}

// observe notes that something disagrees. What was found before, and goes on, is
// the same row. Where somebody has acknowledged it and it is another
// disagreement by now, that one is over and a new one begins.
func observe(tx *store.Tx, kind FindingKind, subject, customer string, detail any) error {
	text, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("the detail of a %s: %w", kind, err) // unreachable: they are structs of texts
	}
	if _, err := tx.Exec(`
		UPDATE sweep_findings SET resolved_at_ms = $1
		WHERE kind = $2 AND subject = $3 AND resolved_at_ms IS NULL AND acknowledged_at_ms IS NOT NULL AND detail <> $4`,
		tx.NowMS(), string(kind), subject, string(text)); err != nil {
		return fmt.Errorf("closing a finding: %w", err)
	}
	_, err = tx.Exec(`
		INSERT INTO sweep_findings (finding_id, kind, subject, customer_id, detail, first_seen_at_ms, last_seen_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6, $6)
		ON CONFLICT (kind, subject) WHERE resolved_at_ms IS NULL DO UPDATE SET detail = excluded.detail, last_seen_at_ms = excluded.last_seen_at_ms`,
		tx.NewID("fnd"), string(kind), subject, store.Nullable(customer), string(text), tx.NowMS())
	if err != nil {
		return fmt.Errorf("noting a finding: %w", err)
	}
	return nil
}

// over notes that something does not disagree, or not any more.
func over(tx *store.Tx, kind FindingKind, subject string) error {
	if _, err := tx.Exec(`UPDATE sweep_findings SET resolved_at_ms = $1 WHERE kind = $2 AND subject = $3 AND resolved_at_ms IS NULL`,
		tx.NowMS(), string(kind), subject); err != nil {
		return fmt.Errorf("closing a finding: %w", err)
	}
	return nil
}

// FindingsRequest asks for findings.
type FindingsRequest struct {
	store.PageRequest
	Kind       FindingKind `query:"kind" json:"-"`
	State      string      `query:"state" json:"-"` // default open; all: whatever it is
	CustomerID string      `query:"customer" json:"-"`
}

// findingStates are the conditions of the states.
var findingStates = map[string]string{
	"":                  `resolved_at_ms IS NULL AND acknowledged_at_ms IS NULL`,
	findingOpen:         `resolved_at_ms IS NULL AND acknowledged_at_ms IS NULL`,
	findingAcknowledged: `resolved_at_ms IS NULL AND acknowledged_at_ms IS NOT NULL`,
	findingResolved:     `resolved_at_ms IS NOT NULL`,
	"all":               `1`,
}

// Findings lists findings, the newest first.
func (s *Service) Findings(ctx context.Context, r FindingsRequest) (page store.Page[Finding], err error) {
	after, rows, err := r.Position()
	if err != nil {
		return page, err
	}
	state, known := findingStates[r.State]
	if !known {
		return page, store.Errorf(store.CodeInvalid, "state: want open, acknowledged, resolved or all")
	}
	if r.Kind != "" && !slices.Contains(findingKinds, r.Kind) {
		return page, store.Errorf(store.CodeInvalid, "kind: want %s", kindsInWords())
	}
	found, err := s.DB.Reader(ctx).Query(`
		SELECT `+findingColumns+` FROM sweep_findings
		WHERE `+state+` AND ($1 = 0 OR finding_seq < $1) AND ($2 = '' OR kind = $2) AND ($3 = '' OR customer_id = $3) ORDER BY finding_seq DESC LIMIT $4`,
		after, string(r.Kind), r.CustomerID, rows)
	if err != nil {
		return page, fmt.Errorf("listing findings: %w", err)
	}
	all, err := store.Collect(found, func(r *sql.Rows) (Finding, error) { return scanFinding(r) })
	if err != nil {
		return page, fmt.Errorf("listing findings: %w", err)
	}
	return store.NewPage(all, rows, func(f Finding) int64 { return f.seq }), nil
}

func kindsInWords() string {
	var words []string
	for _, k := range findingKinds {
		words = append(words, string(k))
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// AcknowledgeRequest says that somebody knows of a finding.
type AcknowledgeRequest struct {
	FindingID string `path:"id" json:"-"`
	Who       string `json:"who"`
	Note      string `json:"note"`
}

// Acknowledge takes a finding off the list of what is open. What goes on in the
// same way stays off it; what changes is a new finding.
func (s *Service) Acknowledge(ctx context.Context, r AcknowledgeRequest) (f Finding, err error) {
	if err := (Decision{Who: r.Who, Note: r.Note}).check(); err != nil {
		return f, err
	}
	err = s.DB.Write(ctx, func(tx *store.Tx) error {
		n, err := tx.Update(`
			UPDATE sweep_findings SET acknowledged_at_ms = $1, acknowledged_by = $2, note = $3
			WHERE finding_id = $4 AND resolved_at_ms IS NULL AND acknowledged_at_ms IS NULL`, tx.NowMS(), r.Who, r.Note, r.FindingID)
		if err != nil {
			return fmt.Errorf("acknowledging a finding: %w", err)
		}
		f, err = scanFinding(tx.QueryRow(`SELECT `+findingColumns+` FROM sweep_findings WHERE finding_id = $1`, r.FindingID))
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return store.Errorf(store.CodeNotFound, "finding %s not found", r.FindingID)
		case err != nil:
			return fmt.Errorf("reading a finding: %w", err)
		case n == 0:
			return store.Errorf(store.CodeConflict, "the finding is %s already", f.State)
		}
		return nil
	})
	return f, err
}
