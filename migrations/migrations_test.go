package migrations

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

func TestAll(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("no migrations")
	}
	name := regexp.MustCompile(`^[0-9]{3}_[a-z][a-z0-9_]*\.sql$`)
	// Clocks of SQLite are not those of the transaction, nor of a test.
	clock := regexp.MustCompile(`(?i)current_timestamp|current_time|current_date|datetime\(|strftime\(|unixepoch\(|julianday\(|'now'`)
	table := regexp.MustCompile(`(?s)CREATE (?:TABLE|VIRTUAL TABLE) (\w+).*?\n\)([^;]*);`)
	for i, m := range all {
		if m.Version != i+1 || !name.MatchString(m.Name) {
			t.Errorf("migration %d is %d, %s", i+1, m.Version, m.Name)
		}
		if sum := sha256.Sum256([]byte(m.SQL)); m.Hash != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: hash %s", m.Name, m.Hash)
		}
		if found := clock.FindString(m.SQL); found != "" {
			t.Errorf("%s: time is a parameter, not %s", m.Name, found)
		}
		if strings.Count(m.SQL, "CREATE TABLE") != len(table.FindAllString(m.SQL, -1)) {
			t.Errorf("%s: a table that does not end in a line of its own", m.Name)
		}
		for _, found := range table.FindAllStringSubmatch(m.SQL, -1) {
			if !strings.Contains(found[2], "STRICT") {
				t.Errorf("%s: table %s is not STRICT", m.Name, found[1])
			}
		}
	}
}

func TestLoad(t *testing.T) {
	for _, test := range []struct {
		name  string
		files []string
		want  string // of the error
	}{
		{"none", nil, ""},
		{"in order", []string{"002_b.sql", "001_a.sql", "003_c.sql", "embed.go"}, ""},
		{"a gap", []string{"001_a.sql", "003_c.sql"}, "migration 003_c.sql: want a name like 002_topic.sql"},
		{"a number twice", []string{"001_a.sql", "001_b.sql"}, "migration 001_b.sql: want a name like 002_topic.sql"},
		{"from zero", []string{"000_a.sql"}, "migration 000_a.sql: want a name like 001_topic.sql"},
		{"no number", []string{"a_topic.sql"}, "migration a_topic.sql: want a name like 001_topic.sql"},
		{"no topic", []string{"001.sql"}, "migration 001.sql: want a name like 001_topic.sql"},
	} {
		fsys := fstest.MapFS{}
		for _, name := range test.files {
			fsys[name] = &fstest.MapFile{Data: []byte("-- " + name)}
		}
		all, err := load(fsys)
		if test.want != "" {
			if err == nil || err.Error() != test.want {
				t.Errorf("%s: %v, want %s", test.name, err, test.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		for i, m := range all {
			if m.Version != i+1 || m.SQL != "-- "+m.Name {
				t.Errorf("%s: migration %d is %+v", test.name, i+1, m)
			}
		}
	}
}
