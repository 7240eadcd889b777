package store

import (
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// FromMS reads a stored instant.
func FromMS(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func fromNullMS(ms sql.NullInt64) *time.Time {
	if !ms.Valid {
		return nil
	}
	t := FromMS(ms.Int64)
	return &t
}

// Collect reads all rows and closes them. The result is never nil, so that an
// empty list is [] and not null in JSON.
func Collect[T any](rows *sql.Rows, scan func(*sql.Rows) (T, error)) ([]T, error) {
	defer rows.Close()
	all := []T{}
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// Nullable stores the zero value as NULL.
func Nullable[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// Bit is a truth as it is stored: SQL has no booleans that every database reads.
func Bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// LastNumber is the number of the last row that was ever added to a table with
// an AUTOINCREMENT key, whether that row is still there or not; 0: none was.
func LastNumber(q Querier, table string) (n int64, err error) {
	err = q.QueryRow(`SELECT seq FROM sqlite_sequence WHERE name = $1`, table).Scan(&n)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("reading the last number of %s: %w", table, err)
	}
	return n, nil
}
