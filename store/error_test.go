package store

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// sqliteError makes an error with a result code, which the driver keeps to
// itself.
func sqliteError(t *testing.T, code int) error {
	t.Helper()
	made := &struct {
		msg  string
		code int
	}{"made up", code}
	err := (*sqlite.Error)(unsafe.Pointer(made))
	if err.Code() != code || err.Error() != "made up" {
		t.Fatalf("sqlite.Error is laid out in another way: %d, %q", err.Code(), err)
	}
	return err
}

func TestCommitUnknown(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want bool
	}{
		{"I/O error", sqliteError(t, sqlite3.SQLITE_IOERR), true},
		{"failed write", sqliteError(t, sqlite3.SQLITE_IOERR_WRITE), true},
		{"failed sync", sqliteError(t, sqlite3.SQLITE_IOERR_FSYNC), true},
		{"failed sync, wrapped", fmt.Errorf("committing: %w", sqliteError(t, sqlite3.SQLITE_IOERR_FSYNC)), true},
		{"not of SQLite", driver.ErrBadConn, true},
		{"full disk", sqliteError(t, sqlite3.SQLITE_FULL), false},
		{"busy", sqliteError(t, sqlite3.SQLITE_BUSY), false},
		{"busy snapshot", sqliteError(t, sqlite3.SQLITE_BUSY_SNAPSHOT), false},
		{"no transaction", sqliteError(t, sqlite3.SQLITE_ERROR), false},
		{"foreign key", sqliteError(t, sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY), false},
		{"no memory", sqliteError(t, sqlite3.SQLITE_NOMEM), false},
	} {
		if got := commitUnknown(test.err); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestCodes(t *testing.T) {
	secret := errors.New("internal")
	for _, test := range []struct {
		err   error
		code  Code
		shown string
	}{
		{nil, "", ""},
		{secret, "", ""},
		{Errorf(CodeNotFound, "%s not found", "it"), CodeNotFound, "it not found"},
		{fmt.Errorf("looking: %w", Errorf(CodeConflict, "no")), CodeConflict, "no"},
		{unavailable(secret), CodeUnavailable, "the store is unavailable, try again"},
		{unavailable(Errorf(CodeConflict, "no")), CodeUnavailable, "the store is unavailable, try again"},
	} {
		if got := CodeOf(test.err); got != test.code {
			t.Errorf("%v has code %q, want %q", test.err, got, test.code)
		}
		if e, ok := errors.AsType[*Error](test.err); ok && e.Message != test.shown {
			t.Errorf("%v shows %q, want %q", test.err, e.Message, test.shown)
		}
	}
	if err := unavailable(secret); !errors.Is(err, secret) || err.Error() != "the store is unavailable, try again: internal" {
		t.Errorf("what is logged of it: %v", err)
	}
}

func TestIsUnique(t *testing.T) {
	for code, want := range map[int]bool{
		sqlite3.SQLITE_CONSTRAINT_UNIQUE:     true,
		sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: true,
		sqlite3.SQLITE_CONSTRAINT_CHECK:      false,
		sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: false,
		sqlite3.SQLITE_FULL:                  false,
	} {
		if got := IsUnique(fmt.Errorf("adding: %w", sqliteError(t, code))); got != want {
			t.Errorf("code %d: %v, want %v", code, got, want)
		}
	}
	if IsUnique(nil) || IsUnique(errors.New("UNIQUE")) {
		t.Error("what is not of SQLite is unique")
	}
}
