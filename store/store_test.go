package store_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

// sides are the files of an open database, beside the one at its path.
var sides = []string{"", "-wal", "-shm", ".lock"}

func modes(t *testing.T, path string) map[string]fs.FileMode {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]fs.FileMode{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		got[strings.TrimPrefix(e.Name(), filepath.Base(path))] = info.Mode()
	}
	return got
}

func TestNewFileIsForItsOwnerOnly(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	db := newNumbers(t)
	got := modes(t, db.Path())
	for _, side := range sides {
		if mode, ok := got[side]; !ok || mode != 0o600 {
			t.Errorf("mode of the file's %q: %v (there: %v), want 0600", side, mode, ok)
		}
	}
	if len(got) != len(sides) {
		t.Errorf("files %v, want only %q", got, sides)
	}
}

func TestOpenFileIsTakenFromOthers(t *testing.T) {
	db := newNumbers(t)
	for _, side := range sides[:3] {
		if err := os.Chmod(db.Path()+side, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	shut(t, open(t, db.Path(), store.Options{}))
	for side, mode := range modes(t, db.Path()) {
		if mode != 0o600 {
			t.Errorf("mode of the file's %q: %v, want 0600", side, mode)
		}
	}
}

func TestEmptyFileBecomesADatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	db := storetest.Open(t, path)
	if got := ints(t, db.Reader(t.Context()), `PRAGMA page_size`); !slices.Equal(got, []int{8192}) {
		t.Errorf("page size %v", got)
	}
	if mode := modes(t, path)[""]; mode != 0o600 {
		t.Errorf("mode %v", mode)
	}
}

func TestPragmas(t *testing.T) {
	db := storetest.New(t)
	for _, test := range []struct{ name, writer, reader string }{
		{"page_size", "8192", "8192"},
		{"auto_vacuum", "2", "2"},
		{"journal_mode", "wal", "wal"},
		{"synchronous", "2", "2"}, // FULL
		{"foreign_keys", "1", "1"},
		{"busy_timeout", "5000", "5000"},
		{"temp_store", "2", "2"},
		{"journal_size_limit", "67108864", "67108864"},
		{"query_only", "0", "1"},
	} {
		var writer, reader string
		if err := db.Write(t.Context(), func(tx *store.Tx) error {
			return tx.QueryRow(`PRAGMA ` + test.name).Scan(&writer)
		}); err != nil {
			t.Error(err)
		}
		if err := db.Reader(t.Context()).QueryRow(`PRAGMA ` + test.name).Scan(&reader); err != nil {
			t.Error(err)
		}
		if writer != test.writer || reader != test.reader {
			t.Errorf("%s: %s for the writer, %s for readers, want %s and %s", test.name, writer, reader, test.writer, test.reader)
		}
	}
}

func TestReaderOnlyReads(t *testing.T) {
	db := newNumbers(t)
	rows, err := db.Reader(t.Context()).Query(`INSERT INTO numbers (n) VALUES (1) RETURNING n`)
	if err == nil {
		rows.Next()
		err = errors.Join(rows.Err(), rows.Close())
	}
	if err == nil || !strings.Contains(err.Error(), "readonly") {
		t.Errorf("writing through a reader: %v", err)
	}
	if got := numbers(t, db); len(got) != 0 {
		t.Errorf("rows %v", got)
	}
}

func TestReaderReportsItsErrors(t *testing.T) {
	db := storetest.New(t)
	q := db.Reader(t.Context())
	if _, err := q.Query(`SELECT n FROM nowhere`); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("Query: %v", err)
	}
	if err := q.QueryRow(`SELECT n FROM nowhere`).Scan(new(int)); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("QueryRow: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := db.Reader(ctx).QueryRow(`SELECT 1`).Scan(new(int)); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that is over: %v", err)
	}
}

func TestManyReaders(t *testing.T) {
	db := newNumbers(t)
	write(t, db, insert(1))
	var readers sync.WaitGroup
	for range 16 { // more than there are connections
		readers.Go(func() {
			for range 20 {
				var n int
				if err := db.Reader(context.Background()).QueryRow(`SELECT n FROM numbers`).Scan(&n); err != nil || n != 1 {
					t.Errorf("read %d, %v", n, err)
				}
			}
		})
	}
	readers.Wait()
}

func TestOddPaths(t *testing.T) {
	for _, dir := range []string{"with space", "what?", "a#b", "100%", "%41", "a&b=c;d", "a+b", "日本", "a:b", `back\slash`, "_pragma=synchronous(0)"} {
		t.Run(dir, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), dir, "jp?int el%20#.db")
			if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			db := storetest.Open(t, path)
			if db.Path() != path {
				t.Errorf("path %q, want %q", db.Path(), path)
			}
			if got := modes(t, path); len(got) != len(sides) {
				t.Errorf("files %v, want %q", got, sides)
			}
		})
	}
}

func TestRelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	db := storetest.Open(t, "jpintel.db")
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(wd, "jpintel.db"); db.Path() != want {
		t.Errorf("path %q, want %q", db.Path(), want)
	}
}

func TestOpenFails(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("this is no database\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"no directory":  filepath.Join(dir, "missing", "jpintel.db"),
		"is no file":    dir,
		"no database":   text,
		"file in a way": filepath.Join(text, "jpintel.db"),
	} {
		for _, server := range []bool{true, false} {
			db, err := store.Open(t.Context(), path, store.Options{Server: server})
			if err == nil {
				shut(t, db)
				t.Errorf("%s (server: %v): opened", name, server)
			} else if !strings.Contains(err.Error(), path) && name != "no database" {
				t.Errorf("%s (server: %v): %v, want an error that names the file", name, server, err)
			}
		}
	}
}

func TestFailedOpenFreesTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := store.Open(ctx, path, store.Options{Server: true}); !errors.Is(err, context.Canceled) {
		t.Fatalf("opened with a context that is over: %v", err)
	}
	storetest.Open(t, path)
}

func TestCommandBesideTheServer(t *testing.T) {
	server := newNumbers(t)
	command := open(t, server.Path(), store.Options{})
	defer shut(t, command)
	for i := range 10 {
		write(t, server, insert(2*i))
		write(t, command, insert(2*i+1))
	}
	for name, db := range map[string]*store.DB{"server": server, "command": command} {
		if got := numbers(t, db); len(got) != 20 {
			t.Errorf("the %s sees %v", name, got)
		}
	}
	if server.BootID == command.BootID || !strings.HasPrefix(server.BootID, "boot_") {
		t.Errorf("boot ids %q and %q", server.BootID, command.BootID)
	}
}

// Commands that find no file make one together, and each goes on with it.
func TestCommandsCreateOneFile(t *testing.T) {
	for range 5 {
		synctest.Test(t, func(t *testing.T) { // waiting for each other takes no time
			path := filepath.Join(t.TempDir(), "jpintel.db")
			var commands sync.WaitGroup
			for i := range 4 {
				commands.Go(func() {
					db, err := store.Open(t.Context(), path, store.Options{})
					if err != nil {
						t.Errorf("command %d: %v", i, err)
						return
					}
					if err := db.Write(t.Context(), func(tx *store.Tx) error {
						_, _, err := store.CreateCustomer(tx, store.Customer{CustomerID: fmt.Sprint("c", i), Tier: store.TierFree})
						return err
					}); err != nil {
						t.Errorf("command %d: %v", i, err)
					}
					shut(t, db)
				})
			}
			commands.Wait()
			db := storetest.Open(t, path)
			if all, err := store.ListCustomers(t.Context(), db, "", 10); err != nil || len(all) != 4 {
				t.Errorf("customers %v, %v", all, err)
			}
			if got := modes(t, path); len(got) != len(sides) {
				t.Errorf("files %v, want %q", got, sides)
			}
		})
	}
}

func TestTransactionTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokyo := time.FixedZone("JST", 9*60*60)
		db := open(t, filepath.Join(t.TempDir(), "jpintel.db"), store.Options{Server: true, Location: tokyo})
		defer shut(t, db)
		time.Sleep(36*time.Hour + 1234567*time.Nanosecond)
		began := time.Now()
		write(t, db, func(tx *store.Tx) error {
			time.Sleep(time.Minute)
			want := began.UTC().Truncate(time.Millisecond)
			if tx.Now != want {
				t.Errorf("Now is %v, want %v", tx.Now, want)
			}
			if tx.NowMS() != began.UnixMilli() || store.FromMS(tx.NowMS()) != want {
				t.Errorf("NowMS is %d, want %d", tx.NowMS(), began.UnixMilli())
			}
			if got := tx.Local().Format(time.RFC3339); got != "2000-01-02T21:00:00+09:00" {
				t.Errorf("Local is %s", got)
			}
			return nil
		})
	})
}

func TestRequestID(t *testing.T) {
	if got := store.RequestID(t.Context()); got != "" {
		t.Errorf("without one: %q", got)
	}
	if got := store.RequestID(store.WithRequestID(t.Context(), "req_1")); got != "req_1" {
		t.Errorf("got %q", got)
	}
}
