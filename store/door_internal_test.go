package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
)

func TestDoorKeepsSomeStatements(t *testing.T) {
	db, err := Open(t.Context(), filepath.Join(t.TempDir(), "jpintel.db"), Options{Server: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i := range 3 * maxStatements {
		if err := db.Write(t.Context(), func(tx *Tx) error {
			var got int
			err := tx.QueryRow(fmt.Sprintf(`SELECT %d`, i)).Scan(&got)
			if got != i {
				err = errors.Join(err, fmt.Errorf("SELECT %d gave %d", i, got))
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if n := len(db.door.stmts); n > maxStatements+10 { // trimmed before each transaction, which needs a few
			t.Fatalf("%d statements are kept", n)
		}
	}
}
