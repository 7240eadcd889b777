package store

import (
	"errors"
	"fmt"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Code classifies an error for its caller. One table at the edge maps codes to
// HTTP statuses; what has no code is internal and its text stays inside.
type Code string

// The codes.
const (
	CodeInvalid      Code = "invalid"      // the input is wrong; the message names the field
	CodeUnauthorized Code = "unauthorized" // no key, or an unknown one
	CodeForbidden    Code = "forbidden"    // known, but not allowed
	CodeNotFound     Code = "not_found"    // missing, or another customer's
	CodeConflict     Code = "conflict"     // the state does not allow it
	CodeGone         Code = "gone"         // it was there, and will not come back
	CodeTooLarge     Code = "too_large"
	CodeUnsupported  Code = "unsupported" // a media type that the call does not take
	CodeRateLimited  Code = "rate_limited"
	CodeUnavailable  Code = "unavailable" // nothing was done; trying again is right
)

// Error is an error with a message that may be shown to whoever called.
type Error struct {
	Code       Code
	Message    string        // public
	Err        error         // what lies under it; logged, never shown
	RetryAfter time.Duration // when trying again makes sense; 0: nothing is known
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error. Its text is public: no secrets, no internals.
func Errorf(code Code, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf returns the code of err, or "" for an internal error.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

func unavailable(err error) error {
	return &Error{Code: CodeUnavailable, Message: "the store is unavailable, try again", Err: err}
}

// IsUnique reports whether err is a violated UNIQUE or PRIMARY KEY constraint.
func IsUnique(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
}

// isFull reports whether the disk had no room for a statement.
func isFull(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == sqlite3.SQLITE_FULL
}

// commitUnknown reports whether a failed COMMIT may have reached the disk all
// the same: after an I/O error nobody can tell, and the only honest way on is
// to start again from what the file says. Every other failure is a "no".
func commitUnknown(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return !ok || e.Code()&0xff == sqlite3.SQLITE_IOERR
}
