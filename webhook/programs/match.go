package programs

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"jpintel/store"
	"jpintel/webhook"
)

// addMatchJob notes down that a new program is to be matched against the saved
// filters that there are now. Where there are none, an import stays cheap.
func (s *Service) addMatchJob(tx *store.Tx, eventID string) error {
	var last int64
	if err := tx.QueryRow(`SELECT COALESCE(MAX(filter_seq), 0) FROM saved_filters`).Scan(&last); err != nil {
		return fmt.Errorf("counting saved filters: %w", err)
	}
	return s.addJob(tx, jobMatch, eventID, last)
}

// matchFilters matches a new program against the next rows of saved filters.
// It looks at the attributes that the program's event was committed with.
func (s *Service) matchFilters(ctx context.Context, tx *store.Tx, j job, rows int) (seen int, err error) {
	id, attributes, ok, err := newProgram(tx, j.subject)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, j.save(tx, true) // older than events are kept
	}
	filters, err := nextFilters(tx, j, rows)
	if err != nil {
		return 0, err
	}
	for _, f := range filters {
		if f.Filter.Matches(attributes) {
			if err := s.match(ctx, tx, f, id, attributes); err != nil {
				return 0, err
			}
		}
		j.cursor = f.seq
	}
	return len(filters), j.save(tx, len(filters) < rows)
}

// newProgram reads which program an event created, and its attributes.
func newProgram(q store.Querier, eventID string) (id string, attributes webhook.Attributes, ok bool, err error) {
	var text string
	err = q.QueryRow(`
		SELECT subject_id, attributes
		FROM outbox_events
		WHERE event_id = $1`, eventID).Scan(&id, &text)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil, false, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &attributes)
	}
	if err != nil {
		return "", nil, false, fmt.Errorf("reading event %s: %w", eventID, err)
	}
	return id, attributes, true, nil
}

func nextFilters(tx *store.Tx, j job, limit int) ([]SavedFilter, error) {
	rows, err := tx.Query(`
		SELECT `+filterColumns+`
		FROM saved_filters
		WHERE filter_seq > $1 AND filter_seq <= $2
		ORDER BY filter_seq
		LIMIT $3`, j.cursor, j.last, limit)
	if err != nil {
		return nil, fmt.Errorf("reading saved filters: %w", err)
	}
	return store.Collect(rows, scanFilter)
}

// match notes down that a filter matched a program and tells its customer,
// unless that was done before.
func (s *Service) match(ctx context.Context, tx *store.Tx, f SavedFilter, id string, attributes webhook.Attributes) error {
	n, err := tx.Update(`
		INSERT INTO filter_matches (filter_id, unified_id)
		VALUES ($1, $2) ON CONFLICT DO NOTHING`, f.FilterID, id)
	if err != nil {
		return fmt.Errorf("noting down a match: %w", err)
	}
	if n == 0 {
		return nil
	}
	_, err = s.Outbox.Publish(ctx, tx, webhook.ProgramMatchingFilter{
		Attributes: attributes, CustomerID: f.customer, UnifiedID: id,
		FilterID: f.FilterID, MatchedFields: slices.Sorted(maps.Keys(f.Filter)),
	})
	return err
}
