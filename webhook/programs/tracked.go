package programs

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"jpintel/store"
	"jpintel/webhook"
)

// maxTracked is how many programs a customer may track: more than there are,
// and a bound on what one customer can make the file hold.
const maxTracked = 10_000

// TrackedProgram is a program that a customer wants to hear exclusion rules of.
type TrackedProgram struct {
	UnifiedID string    `json:"unified_id"`
	CreatedAt time.Time `json:"created_at"`

	seq int64
}

// TrackProgramRequest names a program, which need not be known yet.
type TrackProgramRequest struct {
	CustomerID string `bind:"customer" json:"-"`
	UnifiedID  string `path:"unified_id" json:"-"`
}

// TrackProgram tracks a program; again does nothing. CodeInvalid where the id
// has not the form of one, CodeConflict where the customer tracks 10,000.
func (s *Service) TrackProgram(ctx context.Context, r TrackProgramRequest) (webhook.NoContent, error) {
	if err := checkID(fieldID, r.UnifiedID); err != nil {
		return webhook.NoContent{}, err
	}
	return webhook.NoContent{}, s.DB.Write(ctx, func(tx *store.Tx) error {
		added, err := tx.Update(`
			INSERT INTO tracked_programs (customer_id, unified_id, created_at_ms)
			VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`, r.CustomerID, r.UnifiedID, tx.NowMS())
		if err != nil {
			return fmt.Errorf("tracking program: %w", err)
		}
		if added == 0 {
			return nil
		}
		return checkTracked(tx, r.CustomerID)
	})
}

func checkTracked(q store.Querier, customer string) error {
	var count int
	if err := q.QueryRow(`SELECT COUNT(*) FROM tracked_programs WHERE customer_id = $1`, customer).Scan(&count); err != nil {
		return fmt.Errorf("counting tracked programs: %w", err)
	}
	if count > maxTracked {
		return store.Errorf(store.CodeConflict, "tracked program limit %d reached", maxTracked)
	}
	return nil
}

// UntrackProgram ends tracking; it is no error where there was none.
func (s *Service) UntrackProgram(ctx context.Context, r TrackProgramRequest) (webhook.NoContent, error) {
	return webhook.NoContent{}, s.DB.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(`DELETE FROM tracked_programs WHERE customer_id = $1 AND unified_id = $2`, r.CustomerID, r.UnifiedID); err != nil {
			return fmt.Errorf("ending tracking: %w", err)
		}
		return nil
	})
}

// ListTrackedProgramsRequest asks for a page of what a customer tracks.
type ListTrackedProgramsRequest struct {
	CustomerID string `bind:"customer" json:"-"`
	store.PageRequest
}

// ListTrackedPrograms returns a page of what a customer tracks, newest first.
func (s *Service) ListTrackedPrograms(ctx context.Context, r ListTrackedProgramsRequest) (store.Page[TrackedProgram], error) {
	after, limit, err := r.Position()
	if err != nil {
		return store.Page[TrackedProgram]{}, err
	}
	rows, err := s.DB.Reader(ctx).Query(`
		SELECT track_seq, unified_id, created_at_ms
		FROM tracked_programs
		WHERE customer_id = $1 AND ($2 = 0 OR track_seq < $2)
		ORDER BY track_seq DESC
		LIMIT $3`, r.CustomerID, after, limit)
	if err != nil {
		return store.Page[TrackedProgram]{}, fmt.Errorf("listing tracked programs: %w", err)
	}
	found, err := store.Collect(rows, scanTracked)
	for i := range found {
		found[i].CreatedAt = found[i].CreatedAt.In(s.DB.Location)
	}
	return store.NewPage(found, limit, func(t TrackedProgram) int64 { return t.seq }), err
}

func scanTracked(rows *sql.Rows) (TrackedProgram, error) {
	var t TrackedProgram
	var created int64
	err := rows.Scan(&t.seq, &t.UnifiedID, &created)
	t.CreatedAt = store.FromMS(created)
	return t, err
}
