package store_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"testing/synctest"

	"jpintel/store"
	"jpintel/store/storetest"
)

// processes are what the test binary does when it is started again as another
// process, to stand in the way or to be killed. Each gets the file's path.
var processes = map[string]func(path string) error{
	"serve":              serve,
	"write until killed": writeUntilKilled,
	"outgrow the limit":  outgrowLimit,
	"fill the disk":      fillDisk,
}

func TestMain(m *testing.M) {
	name := os.Getenv("STORE_TEST_PROCESS")
	if name == "" {
		os.Exit(m.Run())
	}
	if err := processes[name](os.Getenv("STORE_TEST_PATH")); err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
}

// process is the test binary once more.
type process struct {
	*exec.Cmd
	out   *bufio.Scanner // its lines
	stdin io.Closer      // closed: it should end
}

// command prepares one of processes; it is killed at the test's end at the latest.
func command(t *testing.T, name, path string) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "STORE_TEST_PROCESS="+name, "STORE_TEST_PATH="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	return &process{cmd, bufio.NewScanner(out), stdin}
}

func start(t *testing.T, name, path string) *process {
	t.Helper()
	p := command(t, name, path)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// rest returns what is still to come from the process, and waits for its end.
func (p *process) rest() (lines []string, err error) {
	for p.out.Scan() {
		lines = append(lines, p.out.Text())
	}
	return lines, p.Wait()
}

// serve is a server of the file until stdin ends; it says its boot id first.
func serve(path string) error {
	db, err := store.Open(context.Background(), path, store.Options{Server: true})
	if err != nil {
		return err
	}
	fmt.Println(db.BootID)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// open opens a file that the test closes itself.
func open(t testing.TB, path string, opt store.Options) *store.DB {
	t.Helper()
	db, err := store.Open(context.Background(), path, opt)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func shut(t testing.TB, db *store.DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// newNumbers is storetest.New with a table for rows that mean nothing.
func newNumbers(t testing.TB) *store.DB {
	t.Helper()
	db := storetest.New(t)
	addNumbers(t, db)
	return db
}

func addNumbers(t testing.TB, db *store.DB) {
	t.Helper()
	write(t, db, func(tx *store.Tx) error {
		_, err := tx.Exec(`CREATE TABLE numbers (n INTEGER PRIMARY KEY, body BLOB) STRICT`)
		return err
	})
}

// write is Write for what has to succeed.
func write(t testing.TB, db *store.DB, fn func(*store.Tx) error) {
	t.Helper()
	if err := db.Write(context.Background(), fn); err != nil {
		t.Fatal(err)
	}
}

func insert(n int) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		_, err := tx.Exec(`INSERT INTO numbers (n) VALUES ($1)`, n)
		return err
	}
}

// numbers reads what is committed.
func numbers(t testing.TB, db *store.DB) []int {
	t.Helper()
	return ints(t, db.Reader(context.Background()), `SELECT n FROM numbers ORDER BY n`)
}

func ints(t testing.TB, q store.Querier, query string, args ...any) (all []int) {
	t.Helper()
	rows, err := q.Query(query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// hold occupies the door of a DB in a synctest bubble until release is called:
// what comes in the meantime waits for one transaction.
func hold(db *store.DB) (release func()) {
	held := make(chan struct{})
	go db.Write(context.Background(), func(*store.Tx) error { <-held; return nil })
	synctest.Wait()
	return func() { close(held) }
}

// answer is how a Write ended.
type answer struct {
	err    error
	panics any
}

// batch runs fns in one transaction, each for a caller of its own, in this
// order. The DB is one in a synctest bubble.
func batch(db *store.DB, fns ...func(*store.Tx) error) []answer {
	return batchOf(db, db.Write, fns...)
}

// batchOf is batch with another way in.
func batchOf(db *store.DB, write func(context.Context, func(*store.Tx) error) error, fns ...func(*store.Tx) error) []answer {
	answers := make([]answer, len(fns))
	release := hold(db)
	var callers sync.WaitGroup
	for i, fn := range fns {
		callers.Go(func() {
			defer func() { answers[i].panics = recover() }()
			answers[i].err = write(context.Background(), fn)
		})
		synctest.Wait()
	}
	release()
	callers.Wait()
	return answers
}
