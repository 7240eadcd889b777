package webhook

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"jpintel/store"
	"jpintel/store/storetest"
)

// publicURL has a public address in place of a name. Nothing connects to it:
// where a test sends, the sender's transport is another one.
const publicURL = "https://93.184.215.14/hook"

// reduced reports whether long tests should take fewer rounds.
func reduced() bool { return testing.Short() || raceEnabled }

func newService(t testing.TB) *Service {
	t.Helper()
	return serviceOn(storetest.New(t))
}

func serviceOn(db *store.DB) *Service {
	s := &Service{DB: db, Outbox: NewOutbox(), Guard: NewGuard(GuardOptions{Ports: []uint16{443, 8443}}), EndpointConcurrency: 4}
	for _, d := range DefaultSchedule {
		s.Schedule = append(s.Schedule, Duration(d))
	}
	return s
}

// write is DB.Write for what has to succeed.
func write(t testing.TB, db *store.DB, fn func(*store.Tx) error) {
	t.Helper()
	if err := db.Write(context.Background(), fn); err != nil {
		t.Fatal(err)
	}
}

func exec(t testing.TB, db *store.DB, query string, args ...any) {
	t.Helper()
	write(t, db, func(tx *store.Tx) error { _, err := tx.Exec(query, args...); return err })
}

// lines reads rows as text: columns separated by blanks, NULL as -.
func lines(t testing.TB, db *store.DB, query string, args ...any) []string {
	t.Helper()
	rows, err := db.Reader(context.Background()).Query(query, args...)
	if err != nil {
		t.Fatal(err)
	}
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	all, err := store.Collect(rows, func(rows *sql.Rows) (string, error) {
		values, places := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range values {
			places[i] = &values[i]
		}
		err := rows.Scan(places...)
		texts := make([]string, len(columns))
		for i, v := range values {
			if texts[i] = "-"; v.Valid {
				texts[i] = v.String
			}
		}
		return strings.Join(texts, " "), err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func number(t testing.TB, db *store.DB, query string, args ...any) (n int64) {
	t.Helper()
	if err := db.Reader(context.Background()).QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// customer adds a customer of the paid tier.
func customer(t testing.TB, s *Service, id string) string {
	t.Helper()
	storetest.Customer(t, s.DB, id, store.TierPaid)
	return id
}

// subscribe registers a receiver for program.updated, or what r says.
func subscribe(t testing.TB, s *Service, r SubscribeRequest) SubscribeAnswer {
	t.Helper()
	if r.URL == "" {
		r.URL = publicURL
	}
	if r.Events == nil {
		r.Events = []Type{TypeProgramUpdated}
	}
	answer, err := s.Subscribe(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func subSeq(t testing.TB, s *Service, subscriptionID string) int64 {
	t.Helper()
	return number(t, s.DB, `SELECT sub_seq FROM webhook_subscriptions WHERE subscription_id = $1`, subscriptionID)
}

// updated is an event for all, of a program with these attributes.
func updated(program string, a Attributes) ProgramUpdated {
	return ProgramUpdated{Attributes: a, UnifiedID: program, ChangedFields: []string{"primary_name"}, PreviousChecksum: "a", CurrentChecksum: "b"}
}

// warning is an event for one customer.
func warning(customer string) TierQuotaWarning {
	return TierQuotaWarning{CustomerID: customer, Tier: "paid", UsageToday: 80, Limit: 100, ResetsAt: "2026-05-15T00:00:00+09:00"}
}

// publish commits events, all in one transaction, and returns their ids.
func publish(t testing.TB, s *Service, payloads ...Payload) (ids []string) {
	t.Helper()
	write(t, s.DB, func(tx *store.Tx) error {
		for _, p := range payloads {
			id, err := s.Outbox.Publish(context.Background(), tx, p)
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return nil
	})
	return ids
}

// fanOut runs the fan-out to its end.
func fanOut(t testing.TB, s *Service) {
	t.Helper()
	f := newFanout(s.DB)
	for {
		done, err := f.step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if !done.more {
			return
		}
	}
}

// deliveriesOf reads a subscription's deliveries in the order of their events:
// event id and state.
func deliveriesOf(t testing.TB, s *Service, subscriptionID string) []string {
	t.Helper()
	return lines(t, s.DB, `
		SELECT e.event_id, d.status FROM webhook_deliveries d JOIN outbox_events e ON e.seq = d.event_seq
		WHERE d.sub_seq = $1 ORDER BY e.seq`, subSeq(t, s, subscriptionID))
}

// wantCode fails the test unless err is a public error with this code and with
// this in its text.
func wantCode(t testing.TB, err error, code store.Code, text string) {
	t.Helper()
	if err == nil || store.CodeOf(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v (%s), want %q (%s)", err, store.CodeOf(err), text, code)
	}
}

// testdata reads a file of the project's testdata folder.
func testdata(t testing.TB, name ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "testdata", filepath.Join(name...)))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
