package store_test

import (
	"path/filepath"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

func control(t *testing.T, db *store.DB) store.Control {
	t.Helper()
	c, err := store.ReadControl(db.Reader(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestControlVersionTellsTheServerToLookAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newNumbers(t)
		command := open(t, server.Path(), store.Options{})
		defer shut(t, command)
		last := control(t, server).Version
		rose := func() int64 {
			before := last
			last = control(t, server).Version
			return last - before
		}

		write(t, server, insert(1))
		if got := rose(); got != 0 {
			t.Errorf("a write of the server: version rose by %d", got)
		}
		write(t, command, insert(2))
		if got := rose(); got != 1 {
			t.Errorf("a write of a command: version rose by %d, want 1", got)
		}
		if err := command.WriteBackground(t.Context(), insert(3)); err != nil || rose() != 1 {
			t.Errorf("a background step of a command: %v, or version did not rise by 1", err)
		}
		batch(command, insert(4), failing(insert(5)), insert(6))
		if got := rose(); got != 2 { // one for the write that held the door
			t.Errorf("a transaction for three: version rose by %d, want 1 for all", got-1)
		}
		batch(command, failing(insert(7)), func(tx *store.Tx) error { panic(insert(8)(tx)) })
		if got := rose(); got != 1 {
			t.Errorf("a transaction of failures: version rose by %d, want 0", got-1)
		}
		batch(command, insert(9), func(tx *store.Tx) error { _, err := tx.Exec(`ROLLBACK`); return err })
		if got := rose(); got != 1 {
			t.Errorf("a lost transaction: version rose by %d, want 0", got-1)
		}
	})
}

func TestEpochNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jpintel.db")
	db := open(t, path, store.Options{Server: true})
	first := control(t, db)
	shut(t, db)
	if first.Version != 1 || !regexp.MustCompile(`^[0-9a-f]{12}$`).MatchString(first.Epoch) {
		t.Errorf("control row of a new file: %+v", first)
	}
	if again := control(t, storetest.Open(t, path)); again != first {
		t.Errorf("the file opened again says %+v, and said %+v", again, first)
	}
	if other := control(t, storetest.New(t)); other.Epoch == first.Epoch {
		t.Errorf("two files have the epoch %s", other.Epoch)
	}
}

func TestControlRowIsMissing(t *testing.T) {
	db := storetest.New(t)
	write(t, db, func(tx *store.Tx) error { _, err := tx.Exec(`DELETE FROM control`); return err })
	if c, err := store.ReadControl(db.Reader(t.Context())); err == nil {
		t.Errorf("read %+v", c)
	}
}

func TestRecovered(t *testing.T) {
	db := storetest.New(t)
	if at := control(t, db).BillingRecovered; !at.IsZero() {
		t.Errorf("a new file was restored at %s", at)
	}
	var now time.Time
	write(t, db, func(tx *store.Tx) error { now = tx.Now; return store.SetBillingRecovered(tx) })
	if at := control(t, db).BillingRecovered; at.UnixMilli() != now.UnixMilli() {
		t.Errorf("restored at %s, want %s", at, now)
	}
}

func TestKillSwitch(t *testing.T) {
	server := storetest.New(t)
	command := open(t, server.Path(), store.Options{})
	defer shut(t, command)
	if control(t, server).KillSwitch {
		t.Error("it is on in a new file")
	}
	for _, on := range []bool{true, true, false} {
		before := control(t, server)
		write(t, command, func(tx *store.Tx) error { return store.SetKillSwitch(tx, on) })
		if got := control(t, server); got.KillSwitch != on || got.Version != before.Version+1 {
			t.Errorf("set to %v: the server sees %+v after %+v", on, got, before)
		}
	}
}
