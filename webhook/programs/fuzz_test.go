package programs

import (
	"bytes"
	"testing"
)

// FuzzImport: no stream makes the import fail or panic, the counts add up, and
// the same stream again changes nothing.
func FuzzImport(f *testing.F) {
	for _, seed := range []string{
		``,
		nara,
		line("UNI-1", `,"prefectures":["奈良県"]`) + "nonsense\n" + line("UNI-1", `,"x":{"a":["2026-06-30"]}`),
		`{"metadata":{"resultset":{"count":1}},"result":[{"id":"d1","title":"a","target_area_search":"全国 / 奈良県","subsidy_max_limit":10000,` +
			`"acceptance_start_datetime":"2026-06-30","acceptance_end_datetime":"2026-06-30T23:45Z","application_form":[{"data":"x"}]}]}`,
		`[{"id":"d1"},{"unified_id":"UNI-1","primary_name":"a","application_window":{"start":null,"end":"2026-06-30"}},7`,
		`{"result":[[{"id":`,
		"\xef\xbb\xbf[{}]\xff",
	} {
		f.Add([]byte(seed))
	}
	s := newService(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		exec(t, s, `DELETE FROM programs`)
		got, err := s.Import(t.Context(), bytes.NewReader(text), ImportOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Read != got.Created+got.Updated+got.Unchanged+got.Rejected || len(got.Errors) != min(got.Rejected, maxReported) {
			t.Fatalf("the counts do not add up: %+v", got)
		}
		if n := count(t, s, "programs"); n != got.Created {
			t.Fatalf("%d created, %d stored", got.Created, n)
		}
		again, err := s.Import(t.Context(), bytes.NewReader(text), ImportOptions{})
		if err != nil || again.Read != got.Read || again.Created != 0 {
			t.Fatalf("first %+v, again %+v, %v", got, again, err)
		}
	})
}
