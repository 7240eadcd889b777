package webhook

import (
	"context"
	"time"

	"jpintel/store"
)

// claimFor claims as a lane does that has not aimed yet.
func claimFor(ctx context.Context, db *store.DB, sub int64, now time.Time, limit, maxBytes int) (claimed, error) {
	t, err := readTarget(db.Reader(ctx), db.Keys, sub, now)
	if err != nil {
		return claimed{}, err
	}
	found, err := claim(db.Reader(ctx), t, now, limit, maxBytes)
	for i := range found.due {
		found.due[i].address(t)
	}
	return found, err
}
