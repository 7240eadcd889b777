package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"jpintel/store"
)

// fillDisk fills a small file system of its own and empties it again. A full
// disk shows at COMMIT: until then the pages are in the cache.
func fillDisk(path string) error {
	dir := filepath.Dir(path)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		fmt.Println("mount refused:", err)
		return nil
	}
	ctx := context.Background()
	db, err := store.Open(ctx, path, store.Options{Server: true})
	if err != nil {
		return err
	}
	count := func() (n int) {
		if err := db.Reader(ctx).QueryRow(`SELECT count(*) FROM numbers`).Scan(&n); err != nil {
			fmt.Println("counting:", err)
		}
		return n
	}
	err = db.Write(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(`CREATE TABLE numbers (n INTEGER PRIMARY KEY, body BLOB) STRICT`)
		return errors.Join(err, insert(1)(tx))
	})
	if err != nil {
		return err
	}
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 8<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("filling the disk: %v", err)
	}
	fmt.Println("full:", store.CodeOf(db.Write(ctx, insertBody)), db.Write(ctx, insertBody), "rows:", count())
	if err := os.Remove(filler); err != nil {
		return err
	}
	fmt.Println("emptied:", db.Write(ctx, insertBody), "rows:", count())
	return db.Close()
}

func TestFullDiskAtCommit(t *testing.T) {
	p := command(t, "fill the disk", filepath.Join(t.TempDir(), "jpintel.db"))
	p.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, // to mount without being root
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := p.Start(); err != nil {
		t.Skipf("this machine has no file systems for tests: %v", err)
	}
	lines, err := p.rest()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("%v: %s", exit, strings.Join(lines, "\n"))
	}
	if strings.HasPrefix(lines[0], "mount refused") {
		t.Skip("this machine has no file systems for tests:", lines[0])
	}
	want := []string{
		"full: unavailable the store is unavailable, try again: committing: database or disk is full (13) rows: 1",
		"emptied: <nil> rows: 2",
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}
