package programs

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"jpintel/store"
)

// readLines takes NDJSON. Each line stands for itself: one that is no program
// rejects only itself.
func (im *importer) readLines(r *bufio.Reader, in *input) error {
	for n := 1; ; n++ {
		in.left = maxPortalRecord // lines have their own limit
		line, long, err := readLine(r)
		if in.err != nil {
			return in.err // the line may have been cut short
		}
		if long {
			err = errors.Join(err, im.add(entry{at: ImportError{Line: n}, err: store.Errorf(store.CodeTooLarge, "the line is longer than %d bytes", maxLine)}))
		} else if line = bytes.TrimSpace(line); len(line) > 0 {
			err = errors.Join(err, im.add(parse(line, ImportError{Line: n})))
		}
		if im.failed != nil || errors.Is(err, io.EOF) {
			return im.failed
		}
		if err != nil {
			return err
		}
	}
}

// readLine returns the next line, which it owns, or that it is too long: that
// is passed over. The last one comes with io.EOF.
func readLine(r *bufio.Reader) (line []byte, long bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if !long {
			line = append(line, part...)
		}
		if len(bytes.TrimRight(line, "\r\n")) > maxLine {
			line, long = nil, true
		}
		if err != bufio.ErrBufferFull {
			return line, long, err
		}
	}
}
