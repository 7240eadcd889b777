package programs

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"testing"

	"jpintel/store"
	"jpintel/webhook"
)

var mutex = ExclusionRule{RuleID: "ER-1", ProgramA: "UNI-A", ProgramB: "UNI-B", Kind: "mutex", Severity: "block"}

// told returns who was told of rules, in order.
func told(t testing.TB, s *Service) (customers []string) {
	t.Helper()
	for _, e := range events(t, s, 0) {
		if e.kind == "exclusion_rule.added" {
			customers = append(customers, e.customer)
		}
	}
	return customers
}

func TestExclusionRules(t *testing.T) {
	s := newService(t)
	for _, id := range []string{"cus_a", "cus_b", "cus_ab", "cus_none", "cus_gone", "cus_late"} {
		customer(t, s, id)
	}
	track(t, s, "cus_b", "UNI-B")
	track(t, s, "cus_ab", "UNI-A")
	track(t, s, "cus_a", "UNI-A")
	track(t, s, "cus_ab", "UNI-B")
	track(t, s, "cus_none", "UNI-C")
	track(t, s, "cus_gone", "UNI-A")
	if _, err := s.UntrackProgram(t.Context(), TrackProgramRequest{"cus_gone", "UNI-A"}); err != nil {
		t.Fatal(err)
	}
	got, err := s.AddExclusionRule(t.Context(), mutex)
	if err != nil || got.HTTPStatus() != http.StatusCreated {
		t.Fatal(got, err)
	}
	track(t, s, "cus_late", "UNI-A")
	finish(t, s)

	if got, want := told(t, s), []string{"cus_b", "cus_ab", "cus_a"}; !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
	var ids []string
	for _, e := range events(t, s, 0) {
		ids = append(ids, e.id)
	}
	if !slices.Equal(got.EventIDs, ids) {
		t.Errorf("answered %v, want %v", got.EventIDs, ids)
	}
	e := events(t, s, 0)[0]
	if want := `{"rule_id":"ER-1","program_a":"UNI-A","program_b":"UNI-B","kind":"mutex","severity":"block"}`; e.text != want || e.subject != "ER-1" {
		t.Errorf("got %s", e.text)
	}
	if want := (webhook.Attributes{"kind": {"mutex"}, "severity": {"block"}}); !reflect.DeepEqual(e.attributes, want) {
		t.Errorf("attributes %v", e.attributes)
	}

	again, err := s.AddExclusionRule(t.Context(), mutex)
	if text, _ := json.Marshal(again); err != nil || again.HTTPStatus() != http.StatusOK || string(text) != `{"event_ids":[]}` {
		t.Errorf("again: %s, %v", text, err)
	}
	other := mutex
	other.Severity = "warn"
	_, err = s.AddExclusionRule(t.Context(), other)
	wantCode(t, err, store.CodeConflict, "ER-1")
	if n := len(told(t, s)); n != 3 {
		t.Errorf("%d events", n)
	}
}

func TestAnExclusionRuleThatNobodyTracks(t *testing.T) {
	s := newService(t)
	got, err := s.AddExclusionRule(t.Context(), mutex)
	if text, _ := json.Marshal(got); err != nil || got.HTTPStatus() != http.StatusCreated || string(text) != `{"event_ids":[]}` {
		t.Errorf("%s, %v", text, err)
	}
	if n := count(t, s, "program_jobs"); n != 0 {
		t.Errorf("%d jobs", n)
	}
}

func trackers(t testing.TB, s *Service, n int) (customers []string) {
	t.Helper()
	for i := range n {
		id := fmt.Sprintf("cus_%02d", i)
		customer(t, s, id)
		track(t, s, id, "UNI-A")
		track(t, s, id, "UNI-B")
		customers = append(customers, id)
	}
	return customers
}

func TestAnExclusionRuleTellsAllBeforeItAnswers(t *testing.T) {
	s := newService(t)
	s.stepRows = 3
	want := trackers(t, s, 8)
	got, err := s.AddExclusionRule(t.Context(), mutex)
	if err != nil || len(got.EventIDs) != len(want) || !slices.Equal(told(t, s), want) || count(t, s, "program_jobs") != 0 {
		t.Errorf("%d ids, told %v, %v", len(got.EventIDs), told(t, s), err)
	}
}

func TestAnExclusionRuleIsResumed(t *testing.T) {
	s := newService(t)
	s.stepRows = 3
	want := trackers(t, s, 8)
	mend := failPublish(t, s, "NEW.customer_id = 'cus_05'")
	if _, err := s.AddExclusionRule(t.Context(), mutex); err == nil {
		t.Fatal("no error")
	}
	if got := told(t, s); len(got) == 0 || len(got) > 5 || count(t, s, "exclusion_rules") != 1 {
		t.Fatalf("told %v: want some of them to be left", got)
	}
	mend()
	customer(t, s, "cus_late")
	track(t, s, "cus_late", "UNI-A") // after the rule, before its last step
	s = &Service{DB: s.DB, Outbox: webhook.NewOutbox(), stepRows: 2}
	if again, err := s.AddExclusionRule(t.Context(), mutex); err != nil || again.HTTPStatus() != http.StatusOK || len(again.EventIDs) != 0 {
		t.Errorf("again: %+v, %v", again, err)
	}
	finish(t, s)
	if got := told(t, s); !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
}

func TestARuleAndItsFirstEventsAreOne(t *testing.T) {
	s := newService(t)
	trackers(t, s, 2)
	mend := failPublish(t, s, "1")
	if _, err := s.AddExclusionRule(t.Context(), mutex); err == nil || count(t, s, "exclusion_rules") != 0 || count(t, s, "program_jobs") != 0 {
		t.Errorf("stored without its events: %v", err)
	}
	mend()
	if got, err := s.AddExclusionRule(t.Context(), mutex); err != nil || len(got.EventIDs) != 2 {
		t.Errorf("after that: %+v, %v", got, err)
	}
}

func TestExclusionRulesAreChecked(t *testing.T) {
	s := newService(t)
	for field, change := range map[string]func(*ExclusionRule){
		"rule_id":   func(r *ExclusionRule) { r.RuleID = "" },
		"program_a": func(r *ExclusionRule) { r.ProgramA = "a b" },
		"program_b": func(r *ExclusionRule) { r.ProgramB = r.ProgramA },
		"kind":      func(r *ExclusionRule) { r.Kind = "" },
		"severity":  func(r *ExclusionRule) { r.Severity = "a\nb" },
	} {
		r := mutex
		change(&r)
		_, err := s.AddExclusionRule(t.Context(), r)
		wantCode(t, err, store.CodeInvalid, field)
	}
}

// The worker may take a rule's job up while the call that caused it is at it.
func TestAnExclusionRuleBesideTheWorker(t *testing.T) {
	s := newService(t)
	s.stepRows = 1
	want := trackers(t, s, 12)
	done := make(chan struct{})
	var worker sync.WaitGroup
	worker.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if _, err := s.Step(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	got, err := s.AddExclusionRule(t.Context(), mutex)
	close(done)
	worker.Wait()
	if err != nil || len(got.EventIDs) != len(want) || !slices.Equal(told(t, s), want) {
		t.Errorf("%d ids, told %v, %v", len(got.EventIDs), told(t, s), err)
	}
}
