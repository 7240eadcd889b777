package store

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// ids makes prefixed ULIDs that rise strictly within the process: two ids of
// the same millisecond differ by a random step, and a clock that is set back
// does not take the ids back with it.
type ids struct {
	mu      sync.Mutex
	last    uint64 // ms
	entropy *ulid.MonotonicEntropy
}

func newIDs() *ids { return &ids{entropy: ulid.Monotonic(rand.Reader, 0)} }

func (g *ids) next(prefix string, now time.Time) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = max(g.last, ulid.Timestamp(now))
	id, err := ulid.New(g.last, g.entropy)
	if err != nil { // the 80 random bits of this millisecond are used up
		g.last++
		id = ulid.MustNew(g.last, g.entropy)
	}
	return prefix + "_" + id.String()
}

var processIDs = newIDs()

// NewID returns prefix + "_" + a ULID of the present time. Ids that belong to a
// row come from [Tx.NewID] instead, so that row and id share one time.
func NewID(prefix string) string { return processIDs.next(prefix, time.Now()) }
