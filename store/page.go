package store

import (
	"encoding/base64"
	"strconv"
)

// The sizes of a page of a list.
const (
	DefaultLimit = 50
	MaxLimit     = 100
)

// Page is one page of a list.
type Page[T any] struct {
	Data       []T     `json:"data"`
	NextCursor *string `json:"next_cursor"` // null at the end
}

// PageRequest asks for a page; it is embedded in the requests of lists.
type PageRequest struct {
	Limit  int    `query:"limit" json:"-"`  // 1 to MaxLimit; 0: DefaultLimit
	Cursor string `query:"cursor" json:"-"` // next_cursor of the page before; "": from the start
}

// Position returns what a page query needs: the position after which it begins
// (0 at the start) and how many rows to read, one more than the page has, so
// that NewPage can tell whether another follows.
func (r PageRequest) Position() (after int64, rows int, err error) {
	if r.Limit < 0 || r.Limit > MaxLimit {
		return 0, 0, Errorf(CodeInvalid, "limit: want 1 to %d", MaxLimit)
	}
	if r.Limit == 0 {
		r.Limit = DefaultLimit
	}
	if r.Cursor == "" {
		return 0, r.Limit + 1, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(r.Cursor)
	if err == nil {
		after, err = strconv.ParseInt(string(text), 10, 64)
	}
	if err != nil || after < 1 {
		return 0, 0, Errorf(CodeInvalid, "cursor: not one that this list has given out")
	}
	return after, r.Limit + 1, nil
}

// NewPage makes a page of what the query of Position found; position tells
// where in the list an element stands.
func NewPage[T any](found []T, rows int, position func(T) int64) Page[T] {
	if len(found) < rows {
		return Page[T]{Data: found}
	}
	found = found[:rows-1]
	return Page[T]{Data: found, NextCursor: Cursor(position(found[len(found)-1]))}
}

// Cursor is the next cursor of a page that ends at a position. NewPage sets it;
// a list that looks at a bounded number of rows sets it where it stopped.
func Cursor(position int64) *string {
	cursor := base64.RawURLEncoding.EncodeToString(strconv.AppendInt(nil, position, 10))
	return &cursor
}
