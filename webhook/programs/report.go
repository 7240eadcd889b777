package programs

import (
	"strings"

	"jpintel/webhook"
)

const (
	// maxReported bounds the errors that a report names; all are counted.
	maxReported = 100
	// maxEcho bounds what a report repeats of an id that was refused.
	maxEcho = 128
)

// Report says what became of the records of an import. Read is the sum of the
// four other counts.
type Report struct {
	Read      int           `json:"read"`
	Created   int           `json:"created"`
	Updated   int           `json:"updated"`
	Unchanged int           `json:"unchanged"`
	Rejected  int           `json:"rejected"`
	Errors    []ImportError `json:"errors"` // of the rejected ones, the first 100
}

// ImportError names a rejected record.
type ImportError struct {
	Line  int    `json:"line"`  // in NDJSON, from 1; else 0, and the error begins with the record's number
	ID    string `json:"id"`    // unified_id; "" where that is not known
	Error string `json:"error"` // what is wrong with it
}

// Add counts another report, of another file.
func (r *Report) Add(o Report) {
	r.Read += o.Read
	r.Created += o.Created
	r.Updated += o.Updated
	r.Unchanged += o.Unchanged
	r.Rejected += o.Rejected
	for _, e := range o.Errors {
		r.note(e)
	}
}

func (r *Report) count(result Result) {
	r.Read++
	switch result {
	case Created:
		r.Created++
	case Updated:
		r.Updated++
	case Unchanged:
		r.Unchanged++
	}
}

func (r *Report) reject(e ImportError) {
	r.Read++
	r.Rejected++
	r.note(e)
}

func (r *Report) note(e ImportError) {
	if r.Errors == nil {
		r.Errors = []ImportError{} // [] and not null in JSON
	}
	if len(r.Errors) < maxReported {
		// A key in the wrong place is not repeated.
		e.ID, e.Error = webhook.Mask(e.ID), webhook.Mask(e.Error)
		e.ID = strings.ToValidUTF8(e.ID[:min(len(e.ID), maxEcho)], "")
		r.Errors = append(r.Errors, e)
	}
}
