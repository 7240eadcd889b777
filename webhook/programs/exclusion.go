package programs

import (
	"context"
	"database/sql"
	"fmt"

	"jpintel/store"
	"jpintel/webhook"
)

// ExclusionRule says that two programs exclude each other.
type ExclusionRule struct {
	RuleID   string `json:"rule_id"`
	ProgramA string `json:"program_a"` // unified_ids; they need not be known here
	ProgramB string `json:"program_b"`
	Kind     string `json:"kind"`     // such as mutex
	Severity string `json:"severity"` // such as block
}

func (r ExclusionRule) check() error {
	for _, id := range []struct{ field, id string }{{"rule_id", r.RuleID}, {"program_a", r.ProgramA}, {"program_b", r.ProgramB}} {
		if err := checkID(id.field, id.id); err != nil {
			return err
		}
	}
	if r.ProgramA == r.ProgramB {
		return store.Errorf(store.CodeInvalid, "program_b: want another program than program_a")
	}
	if err := checkWord("kind", r.Kind); err != nil {
		return err
	}
	return checkWord("severity", r.Severity)
}

// AddExclusionRule stores a rule and tells those who track either of its
// programs, each once: exclusion_rule.added. It returns when all are told; what
// a crash leaves undone, [Service.Step] does. The same rule again does nothing;
// the same id with other values is a CodeConflict.
func (s *Service) AddExclusionRule(ctx context.Context, r ExclusionRule) (Published, error) {
	answer := Published{EventIDs: []string{}}
	if err := r.check(); err != nil {
		return answer, err
	}
	more := false
	err := s.DB.Write(ctx, func(tx *store.Tx) (err error) {
		if answer.created, err = r.insert(tx); err != nil || !answer.created {
			return err
		}
		if err := s.addRuleJob(tx, r); err != nil {
			return err
		}
		more, err = s.stepRule(ctx, tx, r.RuleID)
		return err
	})
	for err == nil && more {
		err = s.DB.Write(ctx, func(tx *store.Tx) (err error) {
			more, err = s.stepRule(ctx, tx, r.RuleID)
			return err
		})
	}
	if err == nil && answer.created {
		answer.EventIDs, err = ruleEvents(s.DB.Reader(ctx), r.RuleID)
	}
	return answer, err
}

func (r ExclusionRule) insert(tx *store.Tx) (added bool, err error) {
	n, err := tx.Update(`
		INSERT INTO exclusion_rules (rule_id, program_a, program_b, kind, severity, created_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`,
		r.RuleID, r.ProgramA, r.ProgramB, r.Kind, r.Severity, tx.NowMS())
	if err != nil {
		return false, fmt.Errorf("storing exclusion rule: %w", err)
	}
	if n == 1 {
		return true, nil
	}
	stored, err := readRule(tx, r.RuleID)
	if err == nil && stored != r {
		err = store.Errorf(store.CodeConflict, "exclusion rule %s exists with other values", r.RuleID)
	}
	return false, err
}

func readRule(q store.Querier, id string) (ExclusionRule, error) {
	r := ExclusionRule{RuleID: id}
	err := q.QueryRow(`
		SELECT program_a, program_b, kind, severity
		FROM exclusion_rules
		WHERE rule_id = $1`, id).Scan(&r.ProgramA, &r.ProgramB, &r.Kind, &r.Severity)
	if err != nil {
		return r, fmt.Errorf("reading exclusion rule: %w", err)
	}
	return r, nil
}

// ruleEvents returns the events of a rule in the order of their publication.
func ruleEvents(q store.Querier, id string) ([]string, error) {
	rows, err := q.Query(`SELECT event_id FROM exclusion_rule_events WHERE rule_id = $1 ORDER BY event_id`, id)
	if err != nil {
		return nil, fmt.Errorf("reading the events of an exclusion rule: %w", err)
	}
	return store.Collect(rows, func(rows *sql.Rows) (string, error) {
		var id string
		err := rows.Scan(&id)
		return id, err
	})
}

// addRuleJob notes down who is to be told: those who track now.
func (s *Service) addRuleJob(tx *store.Tx, r ExclusionRule) error {
	var last int64
	err := tx.QueryRow(`
		SELECT COALESCE(MAX(track_seq), 0)
		FROM tracked_programs
		WHERE unified_id IN ($1, $2)`, r.ProgramA, r.ProgramB).Scan(&last)
	if err != nil {
		return fmt.Errorf("counting who tracks: %w", err)
	}
	return s.addJob(tx, jobRule, r.RuleID, last)
}

// stepRule does one step of a rule's job, if it is still there.
func (s *Service) stepRule(ctx context.Context, tx *store.Tx, ruleID string) (more bool, err error) {
	j, ok, err := readJob(tx, jobRule, ruleID)
	if err != nil || !ok {
		return false, err
	}
	seen, err := s.tellTrackers(ctx, tx, j, s.rows())
	return err == nil && seen == s.rows(), err
}

// tellTrackers tells the next rows of those who track one of a rule's programs,
// and returns how many rows it looked at.
func (s *Service) tellTrackers(ctx context.Context, tx *store.Tx, j job, rows int) (seen int, err error) {
	rule, err := readRule(tx, j.subject)
	if err != nil {
		return 0, err
	}
	trackers, err := nextTrackers(tx, rule, j, rows)
	if err != nil {
		return 0, err
	}
	for _, t := range trackers {
		if err := s.tell(ctx, tx, rule, t.customer); err != nil {
			return 0, err
		}
		j.cursor = t.seq
	}
	return len(trackers), j.save(tx, len(trackers) < rows)
}

type tracker struct {
	seq      int64
	customer string
}

func nextTrackers(tx *store.Tx, r ExclusionRule, j job, limit int) ([]tracker, error) {
	rows, err := tx.Query(`
		SELECT track_seq, customer_id
		FROM tracked_programs
		WHERE unified_id IN ($1, $2) AND track_seq > $3 AND track_seq <= $4
		ORDER BY track_seq
		LIMIT $5`, r.ProgramA, r.ProgramB, j.cursor, j.last, limit)
	if err != nil {
		return nil, fmt.Errorf("reading who tracks: %w", err)
	}
	return store.Collect(rows, func(rows *sql.Rows) (tracker, error) {
		var t tracker
		err := rows.Scan(&t.seq, &t.customer)
		return t, err
	})
}

// tell publishes a rule to a customer, unless that was done for its other side.
func (s *Service) tell(ctx context.Context, tx *store.Tx, r ExclusionRule, customer string) error {
	var told bool
	err := tx.QueryRow(`
		SELECT EXISTS (SELECT 1 FROM exclusion_rule_events WHERE rule_id = $1 AND customer_id = $2)`,
		r.RuleID, customer).Scan(&told)
	if err != nil || told {
		return err
	}
	id, err := s.Outbox.Publish(ctx, tx, webhook.ExclusionRuleAdded{
		Attributes: webhook.Attributes{"kind": {r.Kind}, "severity": {r.Severity}},
		CustomerID: customer, RuleID: r.RuleID, ProgramA: r.ProgramA, ProgramB: r.ProgramB, Kind: r.Kind, Severity: r.Severity,
	})
	if err != nil {
		return err
	}
	_, err = tx.Exec(`INSERT INTO exclusion_rule_events (rule_id, customer_id, event_id) VALUES ($1, $2, $3)`, r.RuleID, customer, id)
	if err != nil {
		return fmt.Errorf("noting down who was told: %w", err)
	}
	return nil
}
