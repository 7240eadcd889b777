package programs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"jpintel/store"
)

const (
	// maxBatch is how many records share a transaction: many enough that its
	// commit costs each of them little, few enough for others to have their turn.
	maxBatch = 100
	// maxLine is the longest line of NDJSON.
	maxLine = 1 << 20
	// maxPortalRecord is the longest record of a portal's answer. Its details
	// carry documents, which are not stored but have to be passed over.
	maxPortalRecord = 32 << 20
	// sniff is how much of a stream is looked at to tell what it is.
	sniff = 64 << 10
)

// ImportOptions are the options of an import.
type ImportOptions struct {
	// Progress is told the counts after every batch that is on disk.
	Progress func(Report)
}

// Import stores the programs of a stream. The stream is NDJSON, one program
// with its unified_id a line, or what the Jグランツ portal answers: {"result":
// […]}, of its list or its details, several of them too, or the bare list. In
// such a list a record with a unified_id is a program as in NDJSON.
//
// A field that a record does not have leaves the stored one alone; null clears
// it. A program that is not in the stream is left alone.
//
// A record that cannot be stored is rejected by name, and the rest goes in; so
// does what came before a place where the portal's JSON is broken. An error
// says that reading or the store failed: the report then counts what is on disk.
func (s *Service) Import(ctx context.Context, r io.Reader, opt ImportOptions) (Report, error) {
	in := &input{r: r, left: sniff}
	im := &importer{service: s, ctx: ctx, progress: opt.Progress, report: Report{Errors: []ImportError{}}}
	buffered := bufio.NewReaderSize(in, sniff)
	err := im.read(buffered, in)
	if im.failed == nil {
		err = errors.Join(err, im.flush())
	}
	return im.report, err
}

// importer collects records into batches.
type importer struct {
	service  *Service
	ctx      context.Context
	progress func(Report)
	report   Report
	batch    []entry
	failed   error // a batch was not stored
}

// entry is one record of a stream, or why there is none.
type entry struct {
	record record
	err    error
	at     ImportError
	index  int // in a portal's answer, from 1; else 0
}

func (im *importer) read(buffered *bufio.Reader, in *input) error {
	head, err := buffered.Peek(sniff)
	if err != nil && err != io.EOF {
		return fmt.Errorf("reading programs: %w", err)
	}
	if bytes.HasPrefix(head, byteOrderMark) {
		_, _ = buffered.Discard(len(byteOrderMark)) // it was peeked at
		head = head[len(byteOrderMark):]
	}
	if isPortal(head) {
		return im.readPortal(buffered, in)
	}
	return im.readLines(buffered, in)
}

// add takes the next record; with the last one of a batch it stores the batch.
func (im *importer) add(e entry) error {
	im.batch = append(im.batch, e)
	if len(im.batch) < maxBatch {
		return nil
	}
	return im.flush()
}

// flush stores the batch in one transaction and then counts it.
func (im *importer) flush() error {
	if len(im.batch) == 0 {
		return nil
	}
	results := make([]Result, len(im.batch))
	if im.failed = im.store(results); im.failed != nil {
		return im.failed
	}
	for i, e := range im.batch {
		if e.err == nil {
			im.report.count(results[i])
			continue
		}
		e.at.Error = e.err.Error()
		if e.index > 0 {
			e.at.Error = fmt.Sprintf("record %d: %s", e.index, e.at.Error)
		}
		im.report.reject(e.at)
	}
	im.batch = im.batch[:0]
	if im.progress != nil {
		im.progress(im.report)
	}
	return nil
}

// store writes those of the batch that are records. What it refuses is entered
// as the entry's error, and does nothing in the transaction.
func (im *importer) store(results []Result) error {
	if err := context.Cause(im.ctx); err != nil {
		return err
	}
	if !im.hasRecords() {
		return nil
	}
	return im.service.DB.Write(im.ctx, func(tx *store.Tx) error {
		for i := range im.batch {
			e := &im.batch[i]
			if e.err != nil {
				continue
			}
			out, err := im.service.apply(im.ctx, tx, e.record)
			if err != nil {
				return err
			}
			results[i], e.err = out.result, out.refused
		}
		return nil
	})
}

func (im *importer) hasRecords() bool {
	for _, e := range im.batch {
		if e.err == nil {
			return true
		}
	}
	return false
}

// parse makes an entry of a program's text.
func parse(text []byte, at ImportError) entry {
	members, err := readObject(text)
	if err != nil {
		return entry{err: err, at: at}
	}
	r, err := newRecord(members)
	at.ID = r.id
	return entry{record: r, err: err, at: at}
}

// parsePortal makes an entry of a record of a portal's answer.
func parsePortal(text []byte, index int) entry {
	members, err := readObject(text)
	if err != nil {
		return entry{err: err, index: index}
	}
	if _, ours := members[fieldID]; !ours {
		members, err = fromJGrants(members)
	}
	r, fault := newRecord(members)
	if err == nil {
		err = fault
	}
	return entry{record: r, err: err, at: ImportError{ID: r.id}, index: index}
}

// input is the stream: it remembers why it ended, which the JSON decoder does
// not tell apart from broken JSON, and it bounds what the decoder takes in for
// one record.
type input struct {
	r    io.Reader
	left int
	err  error
}

var errTooLong = fmt.Errorf("longer than %d bytes", maxPortalRecord)

func (in *input) Read(p []byte) (int, error) {
	if in.left <= 0 {
		return 0, errTooLong
	}
	n, err := in.r.Read(p[:min(len(p), in.left)])
	in.left -= n
	if err != nil && err != io.EOF {
		in.err = fmt.Errorf("reading programs: %w", err)
	}
	return n, err
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// isPortal tells the portal's JSON from NDJSON by the beginning of a stream:
// a list, or an object that has a list "result" and not, before that or in the
// same line, a unified_id.
func isPortal(head []byte) bool {
	head = bytes.TrimLeft(head, " \t\r\n")
	if bytes.HasPrefix(head, []byte("[")) {
		return true
	}
	line, _, _ := bytes.Cut(head, []byte("\n"))
	var program struct {
		ID json.RawMessage `json:"unified_id"`
	}
	if json.Unmarshal(line, &program) == nil && program.ID != nil {
		return false
	}
	dec := json.NewDecoder(bytes.NewReader(head))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return false
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil || name == fieldID {
			return false
		}
		if name == "result" {
			t, err := dec.Token()
			return err == nil && t == json.Delim('[')
		}
		if dec.Decode(new(json.RawMessage)) != nil {
			return false
		}
	}
	return false
}
