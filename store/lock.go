package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// lock is the advisory lock that makes one process the file's server. It is a
// file beside the database (PATH.lock), since closing any descriptor of the
// database file itself would drop SQLite's own POSIX locks. The kernel frees
// it with the process, however that ends.
type lock struct{ file *os.File }

type lockOwner struct {
	BootID string `json:"boot_id"`
	PID    int    `json:"pid"`
}

// ErrLocked says that another process serves the file.
var ErrLocked = errors.New("another process serves this file")

func acquireLock(path, bootID string) (*lock, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening lock file: %w", err)
	}
	// A CLI command holds the lock while it migrates a file that nobody
	// serves: that is over in a moment, so a few tries tell it from a server.
	for range 10 {
		if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != syscall.EWOULDBLOCK {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		defer file.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		var owner lockOwner
		_ = json.NewDecoder(file).Decode(&owner) // for the message only
		return nil, fmt.Errorf("%w: process %d (boot %s) holds %s", ErrLocked, owner.PID, owner.BootID, path)
	}
	text, err := json.Marshal(lockOwner{BootID: bootID, PID: os.Getpid()})
	if err == nil {
		err = file.Truncate(0)
	}
	if err == nil {
		_, err = file.WriteAt(append(text, '\n'), 0)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("writing lock file: %w", err)
	}
	return &lock{file}, nil
}

// release frees the lock. The file stays: removing it would let a second
// process lock a name that a third one no longer sees.
func (l *lock) release() error { return l.file.Close() }
