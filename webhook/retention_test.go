package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

const day = 24 * time.Hour

// retainAll runs steps until a pass is over.
func retainAll(t *testing.T, r *retention) {
	t.Helper()
	for more := true; more; {
		var err error
		if more, err = r.step(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// addDeliveries adds an event each and its delivery in the given state,
// finished now.
func addDeliveries(t *testing.T, db *store.DB, sub int64, n int, status Status) {
	t.Helper()
	outbox := NewOutbox()
	if err := db.Write(context.Background(), func(tx *store.Tx) error {
		moved := totals{}
		for range n {
			if err := addDelivery(tx, outbox, sub, status); err != nil {
				return err
			}
			moved.move(1, "", status)
		}
		return moved.write(tx)
	}); err != nil {
		t.Fatal(err)
	}
}

func addDelivery(tx *store.Tx, outbox *Outbox, sub int64, status Status) error {
	id, err := outbox.Publish(context.Background(), tx, ProgramUpdated{UnifiedID: "UNI-1", ChangedFields: []string{"a"}, PreviousChecksum: "1", CurrentChecksum: "2"})
	if err != nil {
		return err
	}
	if _, err := tx.Exec(`UPDATE outbox_events SET published_at_ms = $1 WHERE event_id = $2`, tx.NowMS(), id); err != nil {
		return err
	}
	var next, finished, reason any
	attempts := 1
	switch status {
	case StatusPending:
		next, attempts = tx.NowMS(), 0
	case StatusFailed:
		finished, reason, attempts = tx.NowMS(), reasonDisabled, 0
	default:
		finished = tx.NowMS()
	}
	var seq int64
	if err := tx.QueryRow(`
		INSERT INTO webhook_deliveries (delivery_id, event_seq, sub_seq, generation, envelope, status, reason, attempt_count, next_attempt_at_ms, created_at_ms, finished_at_ms)
		SELECT $1, seq, $2, 1, 'v1', $3, $4, $5, $6, $7, $8 FROM outbox_events WHERE event_id = $9 RETURNING delivery_seq`,
		tx.NewID("dlv"), sub, string(status), reason, attempts, next, tx.NowMS(), finished, id).Scan(&seq); err != nil {
		return err
	}
	if attempts == 0 {
		return nil
	}
	_, err = tx.Exec(`INSERT INTO webhook_attempts (delivery_seq, attempt, started_at_ms, duration_ms, status) VALUES ($1, 1, $2, 5, 200)`, seq, tx.NowMS())
	return err
}

func addSubscription(t *testing.T, db *store.DB, customer string) int64 {
	t.Helper()
	service := &Service{DB: db, Guard: NewGuard(GuardOptions{Ports: []uint16{443}})}
	sub := &Subscription{customerID: customer, URL: "https://hooks.example.com/", Events: []Type{TypeProgramUpdated}, Filter: Filter{}, Envelope: EnvelopeV1}
	if err := db.Write(context.Background(), func(tx *store.Tx) error { return service.insert(tx, sub, newSecret()) }); err != nil {
		t.Fatal(err)
	}
	return sub.seq
}

func countRows(t *testing.T, db *store.DB, query string) (n int) {
	t.Helper()
	if err := db.Reader(context.Background()).QueryRow(query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// What has expired goes, what has not stays, and what is pending stays for ever.
func TestRetentionDeletesWhatHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.New(t)
		customer, _ := storetest.Customer(t, db, "cus_a", store.TierPaid)
		sub := addSubscription(t, db, customer)
		const each = retainRows + 7 // more than a step takes
		for _, status := range statuses {
			addDeliveries(t, db, sub, each, status)
		}
		r := &retention{db: db, log: slog.New(slog.DiscardHandler), deliveries: 30 * day, events: 90 * day}
		for _, c := range []struct {
			after              time.Duration
			deliveries, events int
		}{
			{29 * day, 4 * each, 4 * each},
			{2 * day, each, 4 * each}, // day 31: finished deliveries are gone, pending ones and all events stay
			{60 * day, each, each},    // day 91: events without a delivery are gone
			{400 * day, each, each},   // whatever its age, nothing pending goes, nor its event
		} {
			time.Sleep(c.after)
			retainAll(t, r)
			deliveries, events := countRows(t, db, `SELECT COUNT(*) FROM webhook_deliveries`), countRows(t, db, `SELECT COUNT(*) FROM outbox_events`)
			if deliveries != c.deliveries || events != c.events {
				t.Errorf("after %s more: %d deliveries and %d events, want %d and %d", c.after, deliveries, events, c.deliveries, c.events)
			}
		}
		if free := countRows(t, db, `SELECT freelist_count FROM pragma_freelist_count`); free != 0 {
			t.Errorf("%d free pages were not given back", free)
		}
	})
}

// What is not fanned out stays, however old it is: nobody has been told of it.
func TestRetentionKeepsWhatIsUnpublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		ids := publish(t, s, updated("UNI-1", nil), updated("UNI-2", nil), updated("UNI-3", nil))
		exec(t, s.DB, `UPDATE outbox_events SET published_at_ms = created_at_ms WHERE event_id <> $1`, ids[1])
		time.Sleep(400 * day)
		retainAll(t, &retention{db: s.DB, log: slog.New(slog.DiscardHandler), deliveries: 30 * day, events: 90 * day})
		if left := lines(t, s.DB, `SELECT event_id FROM outbox_events`); !slices.Equal(left, ids[1:2]) {
			t.Errorf("%q are left, want %q", left, ids[1:2])
		}
	})
}

// The file gets smaller: what a pass has freed goes back to the file system.
func TestRetentionGivesSpaceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, most := filepath.Join(t.TempDir(), "jpintel.db"), 0 // pages that may be left
		t.Cleanup(func() {                                        // the file is closed, and its log is in it
			if info, err := os.Stat(path); err != nil || info.Size() > int64(most)*8192 {
				t.Errorf("the file: %v, %v, want %d pages of 8 KiB at most", info, err, most)
			}
		})
		db := storetest.Open(t, path)
		customer, _ := storetest.Customer(t, db, "cus_a", store.TierPaid)
		pages := func() int { return countRows(t, db, `SELECT page_count FROM pragma_page_count`) }
		empty := pages()
		addDeliveries(t, db, addSubscription(t, db, customer), 2000, StatusDeadLetter)
		before := pages()
		most = empty + (before-empty)/3
		time.Sleep(91 * day)
		retainAll(t, &retention{db: db, log: slog.New(slog.DiscardHandler), deliveries: 30 * day, events: 90 * day})
		if after := pages(); after > most {
			t.Errorf("%d pages of 8 KiB, %d before, and %d in an empty file", after, before, empty)
		}
	})
}

// Before its time, a pass looks at nothing; and a retention of 0 keeps all.
func TestRetentionWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.New(t)
		for _, r := range []*retention{
			{db: db, log: slog.New(slog.DiscardHandler), deliveries: day, events: day, next: time.Now().Add(time.Second)},
			{db: db, log: slog.New(slog.DiscardHandler)},
		} {
			if more, err := r.step(context.Background()); more || err != nil || r.phase != retainIdle {
				t.Errorf("a step that is not due: more %v, %v, phase %d", more, err, r.phase)
			}
		}
	})
}

// A step holds the door for a bounded number of rows, however much has expired.
func TestRetentionStepsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.New(t)
		customer, _ := storetest.Customer(t, db, "cus_a", store.TierPaid)
		addDeliveries(t, db, addSubscription(t, db, customer), 3*retainRows, StatusSuccess)
		time.Sleep(31 * day)
		r := &retention{db: db, log: slog.New(slog.DiscardHandler), deliveries: 30 * day, events: 90 * day}
		left := 3 * retainRows
		for range 3 {
			if _, err := r.step(context.Background()); err != nil {
				t.Fatal(err)
			}
			left -= retainRows
			if got := countRows(t, db, `SELECT COUNT(*) FROM webhook_deliveries`); got != left {
				t.Fatal(fmt.Errorf("after a step %d deliveries are left, want %d", got, left))
			}
		}
		retainAll(t, r)
	})
}
