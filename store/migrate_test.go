package store_test

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/migrations"
	"jpintel/store"
	"jpintel/store/storetest"
)

func allMigrations(t *testing.T) []migrations.Migration {
	t.Helper()
	all, err := migrations.All()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// raw opens the file at path behind the store's back.
func raw(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func execRaw(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// oldFile makes the file that a program with these migrations would have left.
func oldFile(t *testing.T, path string, ran []migrations.Migration) {
	t.Helper()
	db := raw(t, path)
	execRaw(t, db, `CREATE TABLE schema_migrations (
		version INTEGER PRIMARY KEY, name TEXT NOT NULL, sha256 TEXT NOT NULL, applied_at_ms INTEGER NOT NULL) STRICT`)
	for _, m := range ran {
		execRaw(t, db, m.SQL)
		if m.Version == 1 {
			execRaw(t, db, `INSERT INTO control (id, version, epoch, created_at_ms) VALUES (1, 1, '0123456789ab', 0)`)
		}
		execRaw(t, db, `INSERT INTO schema_migrations VALUES ($1, $2, $3, 0)`, m.Version, m.Name, m.Hash)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func applied(t *testing.T, db *sql.DB) (names []string) {
	t.Helper()
	done, err := store.Migrations(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range done {
		names = append(names, m.Name)
	}
	return names
}

func TestMigrationsRunInOrderAndOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "jpintel.db")
		shut(t, open(t, path, store.Options{}))
		db := storetest.Open(t, path)
		got, err := db.Migrations(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all := allMigrations(t)
		if len(got) != len(all) {
			t.Fatalf("ran %d, want %d", len(got), len(all))
		}
		for i, m := range got {
			if m.Version != all[i].Version || m.Name != all[i].Name || m.Hash != all[i].Hash {
				t.Errorf("ran %+v, want %s", m, all[i].Name)
			}
			if at := m.At.Format("2006-01-02 15:04:05 MST"); at != "2000-01-01 00:00:00 UTC" {
				t.Errorf("%s ran at %s", m.Name, at)
			}
		}
	})
}

func TestEveryOlderFileIsBroughtUpToDate(t *testing.T) {
	all := allMigrations(t)
	schema := func(db store.Querier) (text string) {
		if err := db.QueryRow(`SELECT group_concat(sql, ';' ORDER BY name) FROM sqlite_schema WHERE name <> 'schema_migrations'`).Scan(&text); err != nil {
			t.Error(err)
		}
		return text
	}
	want := schema(storetest.New(t).Reader(t.Context()))
	for n := range len(all) {
		path := filepath.Join(t.TempDir(), "jpintel.db")
		oldFile(t, path, all[:n])
		db := storetest.Open(t, path)
		if got, err := db.Migrations(t.Context()); err != nil || len(got) != len(all) {
			t.Errorf("from %d: %d ran, want %d (%v)", n, len(got), len(all), err)
		}
		if got := schema(db.Reader(t.Context())); got != want {
			t.Errorf("from %d: schema\n%s\nwant\n%s", n, got, want)
		}
		if c, err := store.ReadControl(db.Reader(t.Context())); err != nil || n > 0 && c.Epoch != "0123456789ab" {
			t.Errorf("from %d: control row %+v, %v", n, c, err)
		}
	}
}

func TestForeignHistoryIsRefused(t *testing.T) {
	for _, test := range []struct{ name, change, want string }{
		{"edited", `UPDATE schema_migrations SET sha256 = 'f00d' || sha256 WHERE version = 2`,
			"migration 2 ran on this file as 002_outbox.sql (f00d"},
		{"renamed", `UPDATE schema_migrations SET name = '002_other.sql' WHERE version = 2`,
			"migration 2 ran on this file as 002_other.sql"},
		{"with a gap", `DELETE FROM schema_migrations WHERE version = 2`,
			"migration 3 ran on this file as 003_subscriptions.sql"},
		{"newer", `INSERT INTO schema_migrations VALUES (999, '999_future.sql', '', 0)`,
			"(999_future.sql), this program knows"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "jpintel.db")
			shut(t, open(t, path, store.Options{}))
			file := raw(t, path)
			execRaw(t, file, test.change)
			before := applied(t, file)
			for _, server := range []bool{true, false} {
				db, err := store.Open(t.Context(), path, store.Options{Server: server})
				if err == nil {
					shut(t, db)
				}
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("server %v: %v, want an error with %q", server, err, test.want)
				}
			}
			if after := applied(t, file); !slices.Equal(after, before) {
				t.Errorf("history changed from %v to %v", before, after)
			}
		})
	}
}

// The status of a file of any age is told without a change to it.
func TestMigrationStatusChangesNothing(t *testing.T) {
	all := allMigrations(t)
	for n := range len(all) + 1 {
		path := filepath.Join(t.TempDir(), "jpintel.db")
		if n == 0 {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		} else {
			oldFile(t, path, all[:n])
		}
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found, err := store.MigrationStatus(t.Context(), path)
		if err != nil || len(found) != len(all) {
			t.Fatalf("%d ran: %d in the list, %v", n, len(found), err)
		}
		for i, m := range found {
			if m.Name != all[i].Name || m.At.IsZero() != (i >= n) {
				t.Errorf("%d ran: %s is listed with %s", n, m.Name, m.At)
			}
		}
		after, err := os.ReadFile(path)
		if entries, _ := os.ReadDir(filepath.Dir(path)); err != nil || !bytes.Equal(before, after) || len(entries) != 1 {
			t.Errorf("%d ran: the file was changed, or there are others: %v, %v", n, entries, err)
		}
	}
	if _, err := store.MigrationStatus(t.Context(), filepath.Join(t.TempDir(), "none.db")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// What is wrong with a file's history is told beside the list.
func TestMigrationStatusOfAForeignFile(t *testing.T) {
	all := allMigrations(t)
	path := filepath.Join(t.TempDir(), "jpintel.db")
	oldFile(t, path, append(slices.Clone(all), migrations.Migration{Version: len(all) + 1, Name: "later.sql", SQL: `SELECT 1`, Hash: "x"}))
	if found, err := store.MigrationStatus(t.Context(), path); err == nil || !strings.Contains(err.Error(), "use the newer program") || len(found) != len(all)+1 {
		t.Errorf("%d in the list, %v", len(found), err)
	}
}

func TestFailedMigrationLeavesNothingOfItself(t *testing.T) {
	all := allMigrations(t)
	path := filepath.Join(t.TempDir(), "jpintel.db")
	oldFile(t, path, all[:2])
	file := raw(t, path)
	// The second table of 004 is there already.
	execRaw(t, file, `CREATE TABLE webhook_attempts (mine)`)
	db, err := store.Open(t.Context(), path, store.Options{Server: true})
	if err == nil {
		shut(t, db)
	}
	if err == nil || !strings.HasPrefix(err.Error(), "migration 004_deliveries.sql: ") {
		t.Errorf("opened: %v, want an error that names the migration", err)
	}
	want := []string{all[0].Name, all[1].Name, all[2].Name}
	if got := applied(t, file); !slices.Equal(got, want) {
		t.Errorf("ran %v, want %v", got, want)
	}
	var tables int
	if err := file.QueryRow(`SELECT count(*) FROM sqlite_schema WHERE name IN ('webhook_subscriptions', 'webhook_deliveries')`).Scan(&tables); err != nil || tables != 1 {
		t.Errorf("tables of 003 and 004: %d, %v, want only that of 003", tables, err)
	}
	execRaw(t, file, `DROP TABLE webhook_attempts`)
	storetest.Open(t, path)
}

// A command that finds another one migrating waits for it, however long it takes:
// the schema comes forward.
func TestCommandWaitsForOneThatMigrates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := allMigrations(t)
		path := filepath.Join(t.TempDir(), "jpintel.db")
		oldFile(t, path, all[:2])
		other := lockFile(t, path)
		go func() {
			for _, m := range all[2:] {
				time.Sleep(1200 * time.Millisecond) // more than one look
				file := raw(t, path)
				execRaw(t, file, m.SQL)
				execRaw(t, file, `INSERT INTO schema_migrations VALUES ($1, $2, $3, 0)`, m.Version, m.Name, m.Hash)
			}
			other.Close()
		}()
		db := open(t, path, store.Options{})
		if got := applied(t, raw(t, path)); len(got) != len(all) {
			t.Errorf("ran %v", got)
		}
		shut(t, db)
	})
}

func TestCommandDoesNotMigrateUnderAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := allMigrations(t)
		path := filepath.Join(t.TempDir(), "jpintel.db")
		oldFile(t, path, all[:2])
		server := lockFile(t, path) // that of an older program
		db, err := store.Open(t.Context(), path, store.Options{})
		if err == nil {
			shut(t, db)
		}
		if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), "schema is at 2, this program knows") ||
			!strings.Contains(err.Error(), "restart the server with this version first") {
			t.Errorf("opened: %v", err)
		}
		if got := applied(t, raw(t, path)); len(got) != 2 {
			t.Errorf("ran %v", got)
		}
		server.Close()
		shut(t, open(t, path, store.Options{}))
		if got := applied(t, raw(t, path)); len(got) != len(all) {
			t.Errorf("ran %v once the server was gone", got)
		}
	})
}

func TestCommandWaitsForAnotherThatMigrates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := allMigrations(t)
		path := filepath.Join(t.TempDir(), "jpintel.db")
		oldFile(t, path, all[:1])
		other := lockFile(t, path)
		opened := make(chan error)
		go func() {
			db, err := store.Open(t.Context(), path, store.Options{})
			if err == nil {
				err = db.Close()
			}
			opened <- err
		}()
		synctest.Wait() // it has read the history and waits for the lock
		file := raw(t, path)
		for _, m := range all[1:] {
			execRaw(t, file, m.SQL)
			execRaw(t, file, `INSERT INTO schema_migrations VALUES ($1, $2, $3, 0)`, m.Version, m.Name, m.Hash)
		}
		other.Close()
		if err := <-opened; err != nil {
			t.Errorf("opened: %v", err)
		}
	})
}
