package store_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

// refused opens a second server of the file. The bubble takes the time out of
// its tries.
func refused(t *testing.T, path string, pid int, bootID string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db, err := store.Open(t.Context(), path, store.Options{Server: true})
		if err == nil {
			shut(t, db)
		}
		if !errors.Is(err, store.ErrLocked) {
			t.Fatalf("a second server: %v, want ErrLocked", err)
		}
		want := fmt.Sprintf("another process serves this file: process %d (boot %s) holds %s.lock", pid, bootID, path)
		if err.Error() != want {
			t.Errorf("said %q, want %q", err, want)
		}
	})
}

func TestSecondServerInThisProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	first := open(t, path, store.Options{Server: true})
	refused(t, path, os.Getpid(), first.BootID)
	refused(t, path, os.Getpid(), first.BootID) // the one that was refused has not freed it
	write(t, first, func(*store.Tx) error { return nil })
	shut(t, first)
	storetest.Open(t, path)
}

func TestSecondServerInAnotherProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	server := start(t, "serve", path)
	if !server.out.Scan() {
		t.Fatal("the server did not start")
	}
	refused(t, path, server.Process.Pid, server.out.Text())
	shut(t, open(t, path, store.Options{})) // a command goes beside it

	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	server.rest()
	storetest.Open(t, path) // freed by the kernel
}

func TestServerWaitsForACommandThatMigrates(t *testing.T) {
	for _, test := range []struct {
		held time.Duration
		want error
	}{
		{300 * time.Millisecond, nil},
		{time.Minute, store.ErrLocked},
	} {
		t.Run(test.held.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "jpintel.db")
				command := lockFile(t, path)
				time.AfterFunc(test.held, func() { command.Close() })
				db, err := store.Open(t.Context(), path, store.Options{Server: true})
				if !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				if err == nil {
					shut(t, db)
				}
			})
		})
	}
}

func TestLockFileCannotBeMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	if err := os.Mkdir(path+".lock", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, server := range []bool{true, false} {
		db, err := store.Open(t.Context(), path, store.Options{Server: server})
		if err == nil {
			shut(t, db)
		}
		if err == nil || !strings.Contains(err.Error(), "opening lock file") {
			t.Errorf("server %v: %v", server, err)
		}
	}
}

// lockFile takes the lock of the file at path; closing the result frees it.
func lockFile(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return file
}
