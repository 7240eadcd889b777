package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// procMain makes the test binary the program: its processes are started from
// it, so no test has to build one.
const procMain = "JPINTEL_TEST_MAIN"

// procBin is a folder with one file, jpintel: the test binary by the program's
// name, under which it is the program too. Transcripts find it in PATH, and
// the demo, which starts itself again with an environment of its own, keeps it.
var procBin string

// TestMain runs the tests, or the program.
func TestMain(m *testing.M) {
	if os.Getenv(procMain) == "1" || filepath.Base(os.Args[0]) == "jpintel" {
		main()
	}
	code, err := procTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func procTests(m *testing.M) (code int, err error) {
	if procBin, err = os.MkdirTemp("", "jpintel-bin-"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(procBin)
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	name := filepath.Join(procBin, "jpintel")
	if err := os.Link(self, name); err != nil { // another file system, or one without links
		err = procCopy(self, name)
		if err != nil {
			return 0, err
		}
	}
	return m.Run(), nil
}

func procCopy(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
