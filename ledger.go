package main

import (
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"jpintel/billing/ledger"
	"jpintel/store"
	"jpintel/webhook"
)

// exportTimeout is how long a client may take to read a whole journal.
const exportTimeout = 10 * time.Minute

// movements answers with a page of the caller's journal, or with all of it as CSV.
func (a *api) movements(c *call, r ledger.MovementsRequest) error {
	asCSV, err := wantsCSV(r.Format, c.r.Header.Values("Accept"))
	if err != nil {
		return err
	}
	if !asCSV {
		page, err := a.journal.Movements(c.r.Context(), r)
		if err != nil {
			return err
		}
		return writeJSON(c.w, http.StatusOK, page)
	}
	if r.PageRequest != (store.PageRequest{}) {
		return store.Errorf(store.CodeInvalid, "limit, cursor: CSV has no pages, it is the whole journal")
	}
	return a.stream(c, "text/csv; charset=utf-8; header=present", "ledger.csv", func(w io.Writer) error {
		return a.journal.WriteMovements(c.r.Context(), w, r.CustomerID)
	})
}

// wantsCSV decides about the form of an answer: the parameter, or else what comes
// first in Accept.
func wantsCSV(format string, accept []string) (bool, error) {
	switch format {
	case "csv":
		return true, nil
	case "json":
		return false, nil
	case "":
	default:
		return false, store.Errorf(store.CodeInvalid, "format: want json or csv")
	}
	for media := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		name, params, err := mime.ParseMediaType(media)
		if err != nil || params["q"] != "" && strings.Trim(params["q"], "0.") == "" { // q=0: not wanted
			continue
		}
		if name == "text/csv" || name == "application/json" {
			return name == "text/csv", nil
		}
	}
	return false, nil
}

// stream answers with what write writes. What fails before its first byte is an
// error like any other; later, the connection is cut, so that nobody takes a part
// for the whole.
func (a *api) stream(c *call, contentType, name string, write func(io.Writer) error) error {
	// Where the connection has no deadlines (in tests), there is none to move.
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(exportTimeout))
	w := &beginning{ResponseWriter: c.w, header: map[string]string{"Content-Type": contentType, "Content-Disposition": fmt.Sprintf("attachment; filename=%q", name)}}
	err := write(w)
	if err == nil || !w.begun {
		return err
	}
	if c.r.Context().Err() == nil {
		a.log.Error("request_failed", "request_id", store.RequestID(c.r.Context()), "method", c.r.Method, "path", logPath(c.r.URL.Path), "error", webhook.Mask(err.Error()))
	}
	panic(http.ErrAbortHandler)
}

// beginning sets headers when the first byte is written.
type beginning struct {
	http.ResponseWriter
	header map[string]string
	begun  bool
}

// Write implements io.Writer.
func (b *beginning) Write(p []byte) (int, error) {
	if !b.begun {
		b.begun = true
		for name, value := range b.header {
			b.ResponseWriter.Header().Set(name, value)
		}
	}
	return b.ResponseWriter.Write(p)
}
