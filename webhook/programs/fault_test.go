package programs

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"jpintel/store"
	"jpintel/store/storetest"
	"jpintel/webhook"
)

// calls are all calls of the service, on data that makes each do its work.
func calls(t *testing.T, s *Service) map[string]func() error {
	one := int64(1)
	return map[string]func() error{
		"PutProgram created": func() error {
			_, err := s.PutProgram(t.Context(), PutProgramRequest{UnifiedID: store.NewID("UNI"), Body: json.RawMessage(nara)})
			return err
		},
		"PutProgram updated": func() error {
			_, err := s.PutProgram(t.Context(), PutProgramRequest{UnifiedID: "UNI-1", Body: json.RawMessage(`{"primary_name":"` + store.NewID("x") + `"}`)})
			return err
		},
		"PutProgram unchanged": func() error {
			_, err := s.PutProgram(t.Context(), PutProgramRequest{UnifiedID: "UNI-2", Body: json.RawMessage(nara)})
			return err
		},
		"Import": func() error {
			_, err := s.Import(t.Context(), strings.NewReader(line(store.NewID("UNI"), "")), ImportOptions{})
			return err
		},
		"AddAdoption": func() error {
			_, err := s.AddAdoption(t.Context(), Adoption{AdoptionID: store.NewID("ADP"), ProgramID: "UNI-1", Year: 2026, CountAdded: &one})
			return err
		},
		"AddExclusionRule": func() error {
			_, err := s.AddExclusionRule(t.Context(), ExclusionRule{RuleID: store.NewID("ER"), ProgramA: "UNI-A", ProgramB: "UNI-B", Kind: "mutex", Severity: "block"})
			return err
		},
		"CreateSavedFilter": func() error {
			_, err := s.CreateSavedFilter(t.Context(), CreateSavedFilterRequest{CustomerID: "cus_a", Filter: webhook.Filter{"prefecture": {"奈良県"}}})
			return err
		},
		"ListSavedFilters": func() error {
			_, err := s.ListSavedFilters(t.Context(), ListSavedFiltersRequest{CustomerID: "cus_a"})
			return err
		},
		"DeleteSavedFilter": func() error {
			_, err := s.DeleteSavedFilter(t.Context(), DeleteSavedFilterRequest{"cus_a", "flt_x"})
			if store.CodeOf(err) == store.CodeNotFound {
				return nil
			}
			return err
		},
		"TrackProgram": func() error {
			_, err := s.TrackProgram(t.Context(), TrackProgramRequest{"cus_a", store.NewID("UNI")})
			return err
		},
		"UntrackProgram": func() error {
			_, err := s.UntrackProgram(t.Context(), TrackProgramRequest{"cus_a", "UNI-A"})
			return err
		},
		"ListTrackedPrograms": func() error {
			_, err := s.ListTrackedPrograms(t.Context(), ListTrackedProgramsRequest{CustomerID: "cus_a"})
			return err
		},
		"Step match": func() error {
			exec(t, s, `DELETE FROM program_jobs`)
			exec(t, s, `INSERT INTO program_jobs (kind, subject, last) SELECT 'match_filters', event_id, 9 FROM outbox_events WHERE subject_id = 'UNI-2'`)
			exec(t, s, `DELETE FROM filter_matches`)
			_, err := s.Step(t.Context())
			return err
		},
		"Step rule": func() error {
			exec(t, s, `DELETE FROM program_jobs`)
			exec(t, s, `INSERT INTO program_jobs (kind, subject, last) VALUES ('exclusion_rule', 'ER-1', 9)`)
			exec(t, s, `DELETE FROM exclusion_rule_events`)
			_, err := s.Step(t.Context())
			return err
		},
	}
}

// Each call fails, with an internal error, when a table that it needs does;
// and it works again when the table does.
func TestNoErrorOfTheStoreIsLost(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	saveFilter(t, s, "cus_a", `{"prefecture":"奈良県"}`)
	put(t, s, "UNI-1", nara)
	put(t, s, "UNI-2", nara)
	track(t, s, "cus_a", "UNI-B")
	if _, err := s.AddExclusionRule(t.Context(), mutex); err != nil {
		t.Fatal(err)
	}
	all := calls(t, s)
	for name, call := range all {
		if err := call(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		track(t, s, "cus_a", "UNI-A")
	}
	for name, needs := range map[string]string{
		"PutProgram created":   "program_jobs saved_filters outbox_events INSERT:programs INSERT:program_jobs",
		"PutProgram updated":   "programs outbox_events UPDATE:programs",
		"PutProgram unchanged": "programs",
		"Import":               "programs outbox_events",
		"AddAdoption":          "adoptions programs outbox_events",
		"AddExclusionRule":     "exclusion_rules tracked_programs program_jobs exclusion_rule_events outbox_events INSERT:exclusion_rule_events DELETE:program_jobs",
		"CreateSavedFilter":    "saved_filters INSERT:saved_filters",
		"ListSavedFilters":     "saved_filters",
		"DeleteSavedFilter":    "saved_filters",
		"TrackProgram":         "tracked_programs INSERT:tracked_programs",
		"UntrackProgram":       "tracked_programs",
		"ListTrackedPrograms":  "tracked_programs",
		"Step match":           "saved_filters INSERT:filter_matches INSERT:outbox_events",
		"Step rule":            "exclusion_rules tracked_programs INSERT:exclusion_rule_events INSERT:outbox_events",
	} {
		for i, what := range strings.Fields(needs) {
			if i > 0 && (testing.Short() || raceEnabled) {
				break
			}
			mend := breakTable(t, s, what)
			if err := all[name](); err == nil || store.CodeOf(err) != "" {
				t.Errorf("%s without %s: %v, want an internal error", name, what, err)
			}
			mend()
			if err := all[name](); err != nil {
				t.Errorf("%s with %s again: %v", name, what, err)
			}
		}
	}
}

// breakTable takes a table away, or makes one kind of statement on it fail.
func breakTable(t *testing.T, s *Service, what string) (mend func()) {
	verb, table, ok := strings.Cut(what, ":")
	if !ok {
		exec(t, s, `ALTER TABLE `+what+` RENAME TO gone`)
		return func() { exec(t, s, `ALTER TABLE gone RENAME TO `+what) }
	}
	exec(t, s, `CREATE TRIGGER fail BEFORE `+verb+` ON `+table+` BEGIN SELECT RAISE(ABORT, 'injected'); END`)
	return func() { exec(t, s, `DROP TRIGGER fail`) }
}

func TestAfterTheStoreIsClosed(t *testing.T) {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "jpintel.db"), store.Options{Keys: storetest.Keys(t)})
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{DB: db, Outbox: webhook.NewOutbox()}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for name, call := range calls(t, s) {
		if strings.HasPrefix(name, "Step") {
			call = func() error { _, err := s.Step(t.Context()); return err }
		}
		if err := call(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
