package programs

import (
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"jpintel/store"
	"jpintel/store/storetest"
	"jpintel/webhook"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// A failing case is printed; no files beside the sources.
	must(flag.Set("rapid.nofailfile", "true"))
	if testing.Short() || raceEnabled {
		must(flag.Set("rapid.checks", "20"))
	}
	os.Exit(m.Run())
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func newService(t testing.TB) *Service {
	return &Service{DB: storetest.New(t), Outbox: webhook.NewOutbox()}
}

// event is a row of the outbox.
type event struct {
	id, kind, customer, subject string
	attributes                  webhook.Attributes
	data                        map[string]any
	text                        string // data as stored
}

func (e event) texts(member string) []string {
	var all []string
	list, _ := e.data[member].([]any)
	for _, v := range list {
		all = append(all, v.(string))
	}
	return all
}

// events returns what was published after the first n events.
func events(t testing.TB, s *Service, n int) []event {
	t.Helper()
	rows, err := s.DB.Reader(context.Background()).Query(`
		SELECT event_id, event_type, COALESCE(customer_id, ''), subject_id, attributes, data
		FROM outbox_events ORDER BY seq LIMIT -1 OFFSET $1`, n)
	if err != nil {
		t.Fatal(err)
	}
	all, err := store.Collect(rows, func(rows *sql.Rows) (e event, err error) {
		var attributes string
		if err := rows.Scan(&e.id, &e.kind, &e.customer, &e.subject, &attributes, &e.text); err != nil {
			return e, err
		}
		if err := json.Unmarshal([]byte(attributes), &e.attributes); err != nil {
			return e, err
		}
		return e, json.Unmarshal([]byte(e.text), &e.data)
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// count counts the rows of a table.
func count(t testing.TB, s *Service, table string) (n int) {
	t.Helper()
	if err := s.DB.Reader(context.Background()).QueryRow(`SELECT COUNT(*) FROM ` + table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// exec runs a statement that no code of this package runs, to break things.
func exec(t testing.TB, s *Service, statement string) {
	t.Helper()
	if err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
		_, err := tx.Exec(statement)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// failPublish makes publishing fail under a condition on the new row.
func failPublish(t testing.TB, s *Service, when string) (mend func()) {
	t.Helper()
	exec(t, s, `CREATE TRIGGER fail BEFORE INSERT ON outbox_events WHEN `+when+` BEGIN SELECT RAISE(ABORT, 'injected'); END`)
	return func() { exec(t, s, `DROP TRIGGER fail`) }
}

// put stores a program by PUT.
func put(t testing.TB, s *Service, id, body string) PutProgramResponse {
	t.Helper()
	got, err := s.PutProgram(t.Context(), PutProgramRequest{UnifiedID: id, Body: json.RawMessage(body)})
	if err != nil {
		t.Fatalf("PUT %s %s: %v", id, body, err)
	}
	return got
}

// load imports a text.
func load(t testing.TB, s *Service, text string) Report {
	t.Helper()
	got, err := s.Import(t.Context(), strings.NewReader(text), ImportOptions{})
	if err != nil {
		t.Fatalf("importing %.200s: %v", text, err)
	}
	return got
}

// finish runs all steps of the work that is left.
func finish(t testing.TB, s *Service) {
	t.Helper()
	for more := true; more; {
		var err error
		if more, err = s.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, s, "program_jobs"); n != 0 {
		t.Errorf("%d jobs are left", n)
	}
}

// source returns a program's stored source fields.
func storedSource(t testing.TB, s *Service, id string) string {
	t.Helper()
	p, err := readProgram(s.DB.Reader(t.Context()), id)
	if err != nil {
		t.Fatal(err)
	}
	if p.seq != 0 && p.checksum != checksum(p.text) {
		t.Errorf("%s: the checksum is not that of its source", id)
	}
	return string(p.text)
}

// wantCode checks an error's code and that it names what it should.
func wantCode(t testing.TB, err error, code store.Code, part string) {
	t.Helper()
	if store.CodeOf(err) != code || !strings.Contains(err.Error(), part) {
		t.Errorf("error %v, want %s with %q", err, code, part)
	}
}
