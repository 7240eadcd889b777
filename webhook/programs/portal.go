package programs

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// portalReader walks through the portal's JSON record by record, so that a big
// answer is never in memory as a whole.
type portalReader struct {
	im    *importer
	in    *input
	dec   *json.Decoder
	index int // of the last record
}

// readPortal takes one answer of the portal after the other. Where the JSON is
// broken nothing behind that place can be read: that is one rejected record.
func (im *importer) readPortal(r *bufio.Reader, in *input) error {
	p := &portalReader{im: im, in: in, dec: json.NewDecoder(r)}
	err := p.answers()
	switch {
	case err == io.EOF:
		return nil
	case im.failed != nil:
		return im.failed
	case in.err != nil:
		return in.err
	}
	if err == io.ErrUnexpectedEOF || err == errEnd {
		err = errors.New("the JSON ends in the middle")
	}
	err = fmt.Errorf("%w (byte %d; what came before it is in)", err, p.dec.InputOffset())
	return im.add(entry{err: err, index: p.index + 1})
}

// errEnd is the end of the stream where it must not end.
var errEnd = errors.New("unexpected end")

// answers returns io.EOF when it has read all.
func (p *portalReader) answers() error {
	for {
		t, err := p.token()
		if err != nil {
			return err // io.EOF too: between answers is the place for it
		}
		switch t {
		case json.Delim('['):
			err = p.records()
		case json.Delim('{'):
			err = p.members()
		default:
			err = errors.New("want the portal's JSON: a list, or an object with a list result")
		}
		if err == io.EOF {
			return errEnd
		}
		if err != nil {
			return err
		}
	}
}

// members reads an answer behind its brace.
func (p *portalReader) members() error {
	for p.dec.More() {
		name, err := p.token()
		if err != nil {
			return err
		}
		if name != "result" {
			if _, err := p.value(); err != nil {
				return err
			}
			continue
		}
		t, err := p.token()
		if err != nil {
			return err
		}
		if t != json.Delim('[') {
			return errors.New("result: want a list")
		}
		if err := p.records(); err != nil {
			return err
		}
	}
	_, err := p.token() // the closing brace
	return err
}

// records reads a list of records behind its bracket.
func (p *portalReader) records() error {
	for p.dec.More() {
		text, err := p.value()
		if err != nil {
			return err
		}
		p.index++
		if err := p.im.add(parsePortal(text, p.index)); err != nil {
			return err
		}
	}
	_, err := p.token() // the closing bracket
	return err
}

func (p *portalReader) token() (json.Token, error) {
	p.in.left = maxPortalRecord
	return p.dec.Token()
}

func (p *portalReader) value() (text json.RawMessage, err error) {
	p.in.left = maxPortalRecord
	return text, p.dec.Decode(&text)
}
