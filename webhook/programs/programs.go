// Package programs is the state whose changes become program events: programs,
// adoptions, exclusion rules, saved filters, tracked programs, and the import
// of what the Jグランツ portal publishes.
//
// What is stored: of a program its source fields as one canonical JSON object
// and that object's checksum; adoptions and exclusion rules as they were
// posted; a customer's saved filters and tracked programs; and program_jobs,
// the work that a change leaves behind.
//
// What is atomic: a change of the state, the event that reports it, and the job
// that follows from it are written in one transaction.
//
//	PUT, import ──▶ programs ─┬▶ program.created | program.updated
//	                          └▶ job match_filters ──Step──▶ filter_matches ─▶ program.matching_filter
//	POST ──▶ adoptions ────────▶ adoption.published
//	POST ──▶ exclusion_rules ──▶ job exclusion_rule ──Step──▶ exclusion_rule_events ─▶ exclusion_rule.added
//
// An import commits a hundred records at a time and counts them afterwards: what
// it has counted is on disk. A record that cannot be taken is named and left
// out; it takes none of the others with it.
//
// What a crash leaves: whole batches of an import, and jobs with the cursor of
// their last step. Running the import again finds the first part unchanged; the
// worker takes the jobs up where they were. A (filter, program) pair and a
// (rule, customer) pair are rows with a unique key, so no step tells anyone twice.
package programs

import (
	"net/http"
	"net/url"
	"regexp"

	"jpintel/store"
	"jpintel/webhook"
)

// Service takes in programs and what customers want to hear about them. Its
// methods may be called from any goroutine.
type Service struct {
	DB     *store.DB
	Outbox *webhook.Outbox

	stepRows int // how many rows a step of a job looks at; 0: maxStepRows
}

// Published is the answer to a record that events report.
type Published struct {
	EventIDs []string `json:"event_ids"` // empty where the record was known

	created bool
}

// HTTPStatus is 201 for a new record, 200 for one that was known.
func (p Published) HTTPStatus() int { return createdStatus(p.created) }

func createdStatus(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// maxURL is the longest URL that is taken, in bytes: what browsers take too.
const maxURL = 2048

var (
	idForm   = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,128}$`)
	wordForm = regexp.MustCompile(`^[^\p{Cc}]{1,64}$`)
)

// checkID checks an id that the operator gives.
func checkID(field, id string) error {
	if !idForm.MatchString(id) {
		return store.Errorf(store.CodeInvalid, "%s: want 1 to 128 letters, digits or _ . : -", field)
	}
	return nil
}

// checkWord checks a short free text.
func checkWord(field, word string) error {
	if !wordForm.MatchString(word) {
		return store.Errorf(store.CodeInvalid, "%s: want 1 to 64 characters", field)
	}
	return nil
}

// checkURL checks a link that events carry. It is shown, never fetched.
func checkURL(field, text string) error {
	u, err := url.Parse(text)
	if err != nil || len(text) > maxURL || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return store.Errorf(store.CodeInvalid, "%s: want an http or https URL of at most %d bytes", field, maxURL)
	}
	return nil
}
