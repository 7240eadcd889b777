package ledger

import (
	"strings"

	"github.com/google/uuid"
)

// entries is the name space of entries' ids. It never changes.
var entries = uuid.MustParse("5f1d6f0e-6c5b-5a0e-9d0b-3f0c4a1b7e21")

// EntryID is the id of an entry that follows from what it is about (a UUID of
// version 5): the same after a restore, and on every machine.
func EntryID(parts ...string) string {
	return uuid.NewSHA1(entries, []byte(strings.Join(parts, "|"))).String()
}
