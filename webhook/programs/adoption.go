package programs

import (
	"context"
	"fmt"
	"strconv"

	"jpintel/store"
	"jpintel/webhook"
)

// Adoption says that adoption records were added for a program and a year.
type Adoption struct {
	AdoptionID  string `json:"adoption_id"`
	ProgramID   string `json:"program_id"` // a unified_id; it need not be known here
	Year        int    `json:"year"`
	CountAdded  *int64 `json:"count_added"`
	EvidenceURL string `json:"evidence_url"` // optional
}

func (a Adoption) check() error {
	if err := checkID("adoption_id", a.AdoptionID); err != nil {
		return err
	}
	if err := checkID("program_id", a.ProgramID); err != nil {
		return err
	}
	if a.Year < 1900 || a.Year > 9999 {
		return store.Errorf(store.CodeInvalid, "year: want a year of four digits")
	}
	if a.CountAdded == nil || *a.CountAdded < 0 {
		return store.Errorf(store.CodeInvalid, "count_added: want the number of records, 0 or more")
	}
	if a.EvidenceURL != "" {
		return checkURL("evidence_url", a.EvidenceURL)
	}
	return nil
}

// AddAdoption stores adoption records and publishes adoption.published. The
// same record again does nothing; the same id with other values is a
// CodeConflict.
func (s *Service) AddAdoption(ctx context.Context, a Adoption) (Published, error) {
	answer := Published{EventIDs: []string{}}
	if err := a.check(); err != nil {
		return answer, err
	}
	err := s.DB.Write(ctx, func(tx *store.Tx) error {
		added, err := a.insert(tx)
		if err != nil || !added {
			return err
		}
		id, err := s.publishAdoption(ctx, tx, a)
		answer = Published{EventIDs: []string{id}, created: true}
		return err
	})
	return answer, err
}

func (a Adoption) insert(tx *store.Tx) (added bool, err error) {
	n, err := tx.Update(`
		INSERT INTO adoptions (adoption_id, program_id, year, count_added, evidence_url, created_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`,
		a.AdoptionID, a.ProgramID, a.Year, *a.CountAdded, a.EvidenceURL, tx.NowMS())
	if err != nil {
		return false, fmt.Errorf("storing adoption: %w", err)
	}
	if n == 1 {
		return true, nil
	}
	var same bool
	err = tx.QueryRow(`
		SELECT program_id = $2 AND year = $3 AND count_added = $4 AND evidence_url = $5
		FROM adoptions
		WHERE adoption_id = $1`, a.AdoptionID, a.ProgramID, a.Year, *a.CountAdded, a.EvidenceURL).Scan(&same)
	if err != nil {
		return false, fmt.Errorf("reading adoption: %w", err)
	}
	if !same {
		return false, store.Errorf(store.CodeConflict, "adoption %s exists with other values", a.AdoptionID)
	}
	return false, nil
}

// publishAdoption lets the event be filtered by what its program has too, where
// that is known.
func (s *Service) publishAdoption(ctx context.Context, tx *store.Tx, a Adoption) (string, error) {
	p, err := readProgram(tx, a.ProgramID)
	if err != nil {
		return "", err
	}
	attributes := p.attributes()
	attributes["program_id"] = []string{a.ProgramID}
	attributes["year"] = []string{strconv.Itoa(a.Year)}
	return s.Outbox.Publish(ctx, tx, webhook.AdoptionPublished{
		Attributes: attributes, AdoptionID: a.AdoptionID, ProgramID: a.ProgramID,
		Year: a.Year, CountAdded: *a.CountAdded, EvidenceURL: a.EvidenceURL,
	})
}
