// Package migrations holds the schema of the one file as numbered SQL texts,
// NNN_topic.sql, one topic each.
//
// Each text runs once, in its own transaction, in the order of its number; the
// store records number, name and SHA-256 of what ran and refuses a file whose
// history differs from this list. A text that has been released is never
// edited: what must change is a new number.
package migrations

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

//go:embed *.sql
var files embed.FS

// Migration is one schema step.
type Migration struct {
	Version int    // 1, 2, 3 … without gaps
	Name    string // the file's name, NNN_topic.sql
	SQL     string
	Hash    string // hex SHA-256 of SQL
}

// All returns every migration in the order in which they run.
func All() ([]Migration, error) { return load(files) }

func load(fsys fs.FS) ([]Migration, error) {
	names, err := fs.Glob(fsys, "*.sql") // sorted
	if err != nil {
		return nil, fmt.Errorf("listing migrations: %w", err)
	}
	var all []Migration
	for i, name := range names {
		number, _, ok := strings.Cut(name, "_")
		version, err := strconv.Atoi(number)
		if !ok || err != nil || version != i+1 {
			return nil, fmt.Errorf("migration %s: want a name like %03d_topic.sql", name, i+1)
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("reading migration %s: %w", name, err)
		}
		sum := sha256.Sum256(text)
		all = append(all, Migration{Version: version, Name: name, SQL: string(text), Hash: hex.EncodeToString(sum[:])})
	}
	return all, nil
}
