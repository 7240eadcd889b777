package programs

import (
	"fmt"
	"net/http"
	"testing"

	"jpintel/store"
)

func track(t testing.TB, s *Service, customer, id string) {
	t.Helper()
	got, err := s.TrackProgram(t.Context(), TrackProgramRequest{customer, id})
	if err != nil || got.HTTPStatus() != http.StatusNoContent {
		t.Fatal(got, err)
	}
}

func tracked(t testing.TB, s *Service, customer string) (ids []string) {
	t.Helper()
	for cursor := ""; ; {
		page, err := s.ListTrackedPrograms(t.Context(), ListTrackedProgramsRequest{customer, store.PageRequest{Limit: 2, Cursor: cursor}})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range page.Data {
			if p.CreatedAt.IsZero() {
				t.Errorf("%s: no time", p.UnifiedID)
			}
			ids = append(ids, p.UnifiedID)
		}
		if page.NextCursor == nil {
			return ids
		}
		cursor = *page.NextCursor
	}
}

func TestTrackedPrograms(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	for _, id := range []string{"UNI-1", "UNI-2", "UNI-3", "UNI-1", "UNI-4", "UNI-5"} {
		track(t, s, "cus_a", id)
	}
	track(t, s, "cus_b", "UNI-1")
	for _, r := range []TrackProgramRequest{{"cus_a", "UNI-3"}, {"cus_a", "UNI-3"}, {"cus_a", "UNI-9"}, {"cus_b", "UNI-2"}} {
		if _, err := s.UntrackProgram(t.Context(), r); err != nil {
			t.Error(err)
		}
	}
	if got, want := fmt.Sprint(tracked(t, s, "cus_a")), "[UNI-5 UNI-4 UNI-2 UNI-1]"; got != want {
		t.Errorf("cus_a tracks %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(tracked(t, s, "cus_b")), "[UNI-1]"; got != want {
		t.Errorf("cus_b tracks %s, want %s", got, want)
	}
	_, err := s.TrackProgram(t.Context(), TrackProgramRequest{"cus_a", "UNI 1"})
	wantCode(t, err, store.CodeInvalid, "unified_id")
}

func TestTrackedProgramsAreBounded(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("ten thousand rows: not in short tests, not under the race detector")
	}
	s := newService(t)
	customer(t, s, "cus_a")
	exec(t, s, fmt.Sprintf(`
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
		INSERT INTO tracked_programs (customer_id, unified_id, created_at_ms) SELECT 'cus_a', 'UNI-' || i, 0 FROM n`, maxTracked))
	_, err := s.TrackProgram(t.Context(), TrackProgramRequest{"cus_a", "UNI-0"})
	wantCode(t, err, store.CodeConflict, "10000")
	track(t, s, "cus_a", "UNI-1") // it is tracked already
	if n := count(t, s, "tracked_programs"); n != maxTracked {
		t.Errorf("%d tracked", n)
	}
}
