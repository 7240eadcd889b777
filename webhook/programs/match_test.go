package programs

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"jpintel/webhook"
)

// matches returns filter id → programs that it was told of.
func matches(t testing.TB, s *Service) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, e := range events(t, s, 0) {
		if e.kind == "program.matching_filter" {
			id := e.data["filter_id"].(string)
			all[id] = append(all[id], e.subject)
		}
	}
	return all
}

func TestNewProgramsAreMatched(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	hit := saveFilter(t, s, "cus_a", `{"target_type":["npo","city"],"prefecture":["大阪府","奈良県"]}`)
	other := saveFilter(t, s, "cus_b", `{"unified_id":"UNI-1"}`)
	saveFilter(t, s, "cus_b", `{"prefecture":"全国"}`)
	saveFilter(t, s, "cus_b", `{"prefecture":"奈良県","target_type":"city"}`)
	put(t, s, "UNI-1", nara)
	put(t, s, "UNI-1", `{"primary_name":"b","prefectures":["全国"]}`) // the step comes later and still sees what was new
	load(t, s, line("UNI-2", `,"prefectures":["大阪府"],"target_types":["city"]`))
	finish(t, s)

	want := map[string][]string{hit.FilterID: {"UNI-1", "UNI-2"}, other.FilterID: {"UNI-1"}}
	if got := matches(t, s); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	e := events(t, s, 3)[0]
	if want := fmt.Sprintf(`{"unified_id":"UNI-1","filter_id":"%s","matched_fields":["prefecture","target_type"]}`, hit.FilterID); e.text != want || e.customer != "cus_a" {
		t.Errorf("got %s for %s, want %s", e.text, e.customer, want)
	}
	if want := (webhook.Attributes{"unified_id": {"UNI-1"}, "prefecture": {"奈良県"}, "authority_level": {"prefecture"}, "target_type": {"sme", "npo"}}); !reflect.DeepEqual(e.attributes, want) {
		t.Errorf("attributes %v, want %v", e.attributes, want)
	}
}

func TestOnlyFiltersThatExistedMatch(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	put(t, s, "UNI-1", nara)
	if count(t, s, "program_jobs") != 0 {
		t.Error("a job without a filter")
	}
	before := saveFilter(t, s, "cus_a", `{"prefecture":"奈良県"}`)
	gone := saveFilter(t, s, "cus_a", `{"prefecture":"奈良県"}`)
	put(t, s, "UNI-2", nara)
	saveFilter(t, s, "cus_a", `{"prefecture":"奈良県"}`)
	if _, err := s.DeleteSavedFilter(t.Context(), DeleteSavedFilterRequest{"cus_a", gone.FilterID}); err != nil {
		t.Fatal(err)
	}
	finish(t, s)
	if got, want := matches(t, s), (map[string][]string{before.FilterID: {"UNI-2"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMatchingIsResumed(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	want := map[string][]string{}
	for range 10 {
		want[saveFilter(t, s, "cus_a", `{"prefecture":"奈良県"}`).FilterID] = []string{"UNI-1", "UNI-2"}
	}
	put(t, s, "UNI-1", nara)
	put(t, s, "UNI-2", nara)
	steps := 0
	for more := true; more; steps++ {
		s = &Service{DB: s.DB, Outbox: webhook.NewOutbox(), stepRows: 3} // as after a restart
		before := count(t, s, "filter_matches")
		mend := failPublish(t, s, "1")
		if _, err := s.Step(t.Context()); (err == nil) != (before == 20) || count(t, s, "filter_matches") != before {
			t.Errorf("after %d matches a step without its events: %v", before, err)
		}
		mend()
		var err error
		if more, err = s.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := count(t, s, "filter_matches") - before; n > 3 {
			t.Errorf("a step of %d matches", n)
		}
		if steps > 20 {
			t.Fatal("no end")
		}
	}
	if got := matches(t, s); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	finish(t, s)
}

// A job that is done twice, which no code does, tells nobody twice.
func TestAMatchIsUnique(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	f := saveFilter(t, s, "cus_a", `{"prefecture":"奈良県"}`)
	event := put(t, s, "UNI-1", nara).EventID
	finish(t, s)
	exec(t, s, `INSERT INTO program_jobs (kind, subject, last) VALUES ('match_filters', '`+*event+`', 1)`)
	finish(t, s)
	if got := matches(t, s)[f.FilterID]; !slices.Equal(got, []string{"UNI-1"}) {
		t.Errorf("told of %q", got)
	}
}

func TestAJobOfAnEventThatIsGone(t *testing.T) {
	s := newService(t)
	exec(t, s, `INSERT INTO program_jobs (kind, subject, last) VALUES ('match_filters', 'evt_gone', 1)`)
	finish(t, s)
}

func TestStepsWakeTheOutbox(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	saveFilter(t, s, "cus_a", `{"prefecture":"奈良県"}`)
	put(t, s, "UNI-1", nara)
	<-s.Outbox.Committed()
	finish(t, s)
	<-s.Outbox.Committed()
}

func TestSmallJobsShareAStep(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	saveFilter(t, s, "cus_a", `{"prefecture":"奈良県"}`)
	load(t, s, manyLines(90))
	if more, err := s.Step(t.Context()); more || err != nil || count(t, s, "program_jobs") != 0 {
		t.Errorf("more %v, %v, %d jobs left", more, err, count(t, s, "program_jobs"))
	}
}
