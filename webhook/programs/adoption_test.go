package programs

import (
	"encoding/json"
	"net/http"
	"reflect"
	"testing"

	"jpintel/store"
	"jpintel/webhook"
)

func adoption(t testing.TB, text string) (a Adoption) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

const adp = `{"adoption_id":"ADP-1","program_id":"UNI-1","year":2026,"count_added":42,"evidence_url":"https://example.jp/a"}`

func TestAdoptions(t *testing.T) {
	s := newService(t)
	put(t, s, "UNI-1", nara)
	got, err := s.AddAdoption(t.Context(), adoption(t, adp))
	if err != nil || got.HTTPStatus() != http.StatusCreated || len(got.EventIDs) != 1 {
		t.Fatal(got, err)
	}
	e := events(t, s, 1)[0]
	if e.id != got.EventIDs[0] || e.kind != "adoption.published" || e.customer != "" || e.subject != "ADP-1" || e.text != adp {
		t.Errorf("%+v", e)
	}
	want := webhook.Attributes{"program_id": {"UNI-1"}, "unified_id": {"UNI-1"}, "year": {"2026"}, "prefecture": {"奈良県"}, "authority_level": {"prefecture"}, "target_type": {"sme", "npo"}}
	if !reflect.DeepEqual(e.attributes, want) {
		t.Errorf("attributes %v, want %v", e.attributes, want)
	}

	again, err := s.AddAdoption(t.Context(), adoption(t, adp))
	if text, _ := json.Marshal(again); err != nil || again.HTTPStatus() != http.StatusOK || string(text) != `{"event_ids":[]}` {
		t.Errorf("again: %s, %v", text, err)
	}
	for _, member := range []string{`"program_id":"UNI-2"`, `"year":2025`, `"count_added":41`, `"evidence_url":""`} {
		_, err := s.AddAdoption(t.Context(), adoption(t, adp[:len(adp)-1]+","+member+"}"))
		wantCode(t, err, store.CodeConflict, "ADP-1")
	}
	if n := count(t, s, "outbox_events"); n != 2 {
		t.Errorf("%d events", n)
	}
}

func TestAdoptionOfAnUnknownProgram(t *testing.T) {
	s := newService(t)
	if _, err := s.AddAdoption(t.Context(), adoption(t, `{"adoption_id":"ADP-1","program_id":"UNI-9","year":2026,"count_added":0}`)); err != nil {
		t.Fatal(err)
	}
	want := webhook.Attributes{"program_id": {"UNI-9"}, "unified_id": {"UNI-9"}, "year": {"2026"}}
	if e := events(t, s, 0)[0]; !reflect.DeepEqual(e.attributes, want) {
		t.Errorf("attributes %v, want %v", e.attributes, want)
	}
}

func TestAdoptionsAreChecked(t *testing.T) {
	s := newService(t)
	for _, c := range []struct{ text, field string }{
		{`{"program_id":"UNI-1","year":2026,"count_added":1}`, "adoption_id"},
		{`{"adoption_id":"ADP-1","year":2026,"count_added":1}`, "program_id"},
		{`{"adoption_id":"ADP-1","program_id":"UNI-1","count_added":1}`, "year"},
		{`{"adoption_id":"ADP-1","program_id":"UNI-1","year":26,"count_added":1}`, "year"},
		{`{"adoption_id":"ADP-1","program_id":"UNI-1","year":2026}`, "count_added"},
		{`{"adoption_id":"ADP-1","program_id":"UNI-1","year":2026,"count_added":-1}`, "count_added"},
		{`{"adoption_id":"ADP-1","program_id":"UNI-1","year":2026,"count_added":1,"evidence_url":"x"}`, "evidence_url"},
	} {
		_, err := s.AddAdoption(t.Context(), adoption(t, c.text))
		wantCode(t, err, store.CodeInvalid, c.field)
	}
	mend := failPublish(t, s, "1")
	if _, err := s.AddAdoption(t.Context(), adoption(t, adp)); err == nil || count(t, s, "adoptions") != 0 {
		t.Errorf("stored without its event: %v", err)
	}
	mend()
}
