package programs

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"jpintel/store"
	"jpintel/webhook"
)

// maxFilters is how many saved filters a customer may have: every new program
// is matched against all of them.
const maxFilters = 100

// SavedFilter is a filter of a customer; new programs are matched against it.
type SavedFilter struct {
	FilterID  string         `json:"filter_id"`
	Filter    webhook.Filter `json:"filter"`
	CreatedAt time.Time      `json:"created_at"`

	seq      int64
	customer string
}

// CreateSavedFilterRequest saves a filter.
type CreateSavedFilterRequest struct {
	CustomerID string         `bind:"customer" json:"-"`
	Filter     webhook.Filter `json:"filter"`
}

// CreatedSavedFilter is the answer to a new filter.
type CreatedSavedFilter struct{ SavedFilter }

// HTTPStatus is 201.
func (CreatedSavedFilter) HTTPStatus() int { return http.StatusCreated }

// CreateSavedFilter saves a filter: programs that are new from now on are
// matched against it. CodeInvalid where the filter is none for programs,
// CodeConflict where the customer has 100 already.
func (s *Service) CreateSavedFilter(ctx context.Context, r CreateSavedFilterRequest) (CreatedSavedFilter, error) {
	f := SavedFilter{Filter: r.Filter, customer: r.CustomerID}
	if err := webhook.ValidateProgramFilter(f.Filter); err != nil {
		return CreatedSavedFilter{}, err
	}
	err := s.DB.Write(ctx, func(tx *store.Tx) error { return f.insert(tx) })
	return CreatedSavedFilter{f}, err
}

func (f *SavedFilter) insert(tx *store.Tx) error {
	var count int
	if err := tx.QueryRow(`SELECT COUNT(*) FROM saved_filters WHERE customer_id = $1`, f.customer).Scan(&count); err != nil {
		return fmt.Errorf("counting saved filters: %w", err)
	}
	if count >= maxFilters {
		return store.Errorf(store.CodeConflict, "saved filter limit %d reached", maxFilters)
	}
	f.FilterID, f.CreatedAt = tx.NewID("flt"), tx.Local()
	_, err := tx.Exec(`
		INSERT INTO saved_filters (filter_id, customer_id, filter, created_at_ms)
		VALUES ($1, $2, $3, $4)`, f.FilterID, f.customer, string(encode(f.Filter)), tx.NowMS())
	if err != nil {
		return fmt.Errorf("saving filter: %w", err)
	}
	return nil
}

// ListSavedFiltersRequest asks for a page of a customer's saved filters.
type ListSavedFiltersRequest struct {
	CustomerID string `bind:"customer" json:"-"`
	store.PageRequest
}

// ListSavedFilters returns a page of a customer's saved filters, newest first.
func (s *Service) ListSavedFilters(ctx context.Context, r ListSavedFiltersRequest) (store.Page[SavedFilter], error) {
	after, limit, err := r.Position()
	if err != nil {
		return store.Page[SavedFilter]{}, err
	}
	rows, err := s.DB.Reader(ctx).Query(`
		SELECT `+filterColumns+`
		FROM saved_filters
		WHERE customer_id = $1 AND ($2 = 0 OR filter_seq < $2)
		ORDER BY filter_seq DESC
		LIMIT $3`, r.CustomerID, after, limit)
	if err != nil {
		return store.Page[SavedFilter]{}, fmt.Errorf("listing saved filters: %w", err)
	}
	found, err := store.Collect(rows, scanFilter)
	for i := range found {
		found[i].CreatedAt = found[i].CreatedAt.In(s.DB.Location)
	}
	return store.NewPage(found, limit, func(f SavedFilter) int64 { return f.seq }), err
}

// DeleteSavedFilterRequest names a saved filter of the caller.
type DeleteSavedFilterRequest struct {
	CustomerID string `bind:"customer" json:"-"`
	FilterID   string `path:"id" json:"-"`
}

// DeleteSavedFilter deletes a saved filter. CodeNotFound where it is missing or
// another customer's.
func (s *Service) DeleteSavedFilter(ctx context.Context, r DeleteSavedFilterRequest) (webhook.NoContent, error) {
	return webhook.NoContent{}, s.DB.Write(ctx, func(tx *store.Tx) error {
		n, err := tx.Update(`DELETE FROM saved_filters WHERE filter_id = $1 AND customer_id = $2`, r.FilterID, r.CustomerID)
		if err != nil {
			return fmt.Errorf("deleting saved filter: %w", err)
		}
		if n == 0 {
			return store.Errorf(store.CodeNotFound, "saved filter %s not found", r.FilterID)
		}
		return nil
	})
}

const filterColumns = `filter_seq, filter_id, customer_id, filter, created_at_ms`

func scanFilter(rows *sql.Rows) (SavedFilter, error) {
	var f SavedFilter
	var text string
	var created int64
	if err := rows.Scan(&f.seq, &f.FilterID, &f.customer, &text, &created); err != nil {
		return f, err
	}
	f.CreatedAt = store.FromMS(created)
	if err := json.Unmarshal([]byte(text), &f.Filter); err != nil {
		return f, fmt.Errorf("reading saved filter %s: %w", f.FilterID, err)
	}
	return f, nil
}
