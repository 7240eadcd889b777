package programs

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"jpintel/store"
	"jpintel/webhook"
)

const nara = `{"primary_name":"省エネ設備更新補助金","prefectures":["奈良県"],"amount_max_man_yen":300,
	"source_url":"https://example.jp/1","target_types":["sme","npo"],
	"application_window":{"start":"2026-04-01","end":"2026-06-30"}}`

func TestPutProgram(t *testing.T) {
	s := newService(t)
	first := put(t, s, "UNI-1", nara)
	if first.Result != Created || first.HTTPStatus() != http.StatusCreated || first.EventID == nil || first.UnifiedID != "UNI-1" {
		t.Errorf("first: %+v", first)
	}
	again := put(t, s, "UNI-1", nara)
	if again.Result != Unchanged || again.HTTPStatus() != http.StatusOK || again.EventID != nil || again.Checksum != first.Checksum {
		t.Errorf("again: %+v", again)
	}
	changed := put(t, s, "UNI-1", strings.Replace(nara, "300", "500", 1))
	if changed.Result != Updated || changed.HTTPStatus() != http.StatusOK || changed.EventID == nil || changed.Checksum == first.Checksum {
		t.Errorf("changed: %+v", changed)
	}

	all := events(t, s, 0)
	if len(all) != 2 {
		t.Fatalf("%d events", len(all))
	}
	created, updated := all[0], all[1]
	if created.id != *first.EventID || created.kind != "program.created" || created.customer != "" || created.subject != "UNI-1" {
		t.Errorf("created: %+v", created)
	}
	const want = `{"unified_id":"UNI-1","primary_name":"省エネ設備更新補助金","authority_level":"prefecture","prefecture":"奈良県",` +
		`"amount_max_man_yen":300,"source_url":"https://example.jp/1"}`
	if created.text != want {
		t.Errorf("created: got %s\nwant %s", created.text, want)
	}
	wantUpdated := fmt.Sprintf(`{"unified_id":"UNI-1","changed_fields":["amount_max_man_yen"],"previous_checksum":"%s","current_checksum":"%s"}`, first.Checksum, changed.Checksum)
	if updated.id != *changed.EventID || updated.kind != "program.updated" || updated.text != wantUpdated {
		t.Errorf("updated: %+v", updated)
	}
	attributes := webhook.Attributes{"unified_id": {"UNI-1"}, "prefecture": {"奈良県"}, "authority_level": {"prefecture"}, "target_type": {"sme", "npo"}}
	if !reflect.DeepEqual(created.attributes, attributes) || !reflect.DeepEqual(updated.attributes, attributes) {
		t.Errorf("attributes %v and %v, want %v", created.attributes, updated.attributes, attributes)
	}
}

func TestPutProgramAnswer(t *testing.T) {
	s := newService(t)
	first := put(t, s, "UNI-1", `{"primary_name":"a"}`)
	for _, c := range []struct {
		answer PutProgramResponse
		want   string
	}{
		{first, fmt.Sprintf(`{"unified_id":"UNI-1","result":"created","checksum":"%s","event_id":"%s"}`, first.Checksum, *first.EventID)},
		{put(t, s, "UNI-1", `{"primary_name":"a"}`), fmt.Sprintf(`{"unified_id":"UNI-1","result":"unchanged","checksum":"%s","event_id":null}`, first.Checksum)},
	} {
		if got, err := json.Marshal(c.answer); err != nil || string(got) != c.want {
			t.Errorf("got %s, %v; want %s", got, err, c.want)
		}
	}
}

func TestCreatedShowsWhatIsKnown(t *testing.T) {
	s := newService(t)
	for i, c := range []struct{ body, data, attributes string }{
		{`{"primary_name":"a"}`, `"authority_level":null,"prefecture":null,"amount_max_man_yen":null,"source_url":""`, `{"unified_id":["UNI-%d"]}`},
		{`{"primary_name":"a","prefectures":["全国"],"amount_max_man_yen":0}`, `"authority_level":"national","prefecture":null,"amount_max_man_yen":0,"source_url":""`,
			`{"authority_level":["national"],"prefecture":["全国"],"unified_id":["UNI-%d"]}`},
		{`{"primary_name":"a","prefectures":["大阪府","京都府"]}`, `"authority_level":null,"prefecture":null,"amount_max_man_yen":null,"source_url":""`,
			`{"prefecture":["大阪府","京都府"],"unified_id":["UNI-%d"]}`},
		{`{"primary_name":"a","prefectures":["近畿地方"]}`, `"authority_level":null,"prefecture":null,"amount_max_man_yen":null,"source_url":""`,
			`{"prefecture":["近畿地方"],"unified_id":["UNI-%d"]}`},
		{`{"primary_name":"a","prefectures":["奈良県"],"authority_level":"municipality","target_types":[]}`, `"authority_level":"municipality","prefecture":"奈良県","amount_max_man_yen":null,"source_url":""`,
			`{"authority_level":["municipality"],"prefecture":["奈良県"],"unified_id":["UNI-%d"]}`},
	} {
		put(t, s, fmt.Sprintf("UNI-%d", i), c.body)
		e := events(t, s, i)[0]
		if want := fmt.Sprintf(`{"unified_id":"UNI-%d","primary_name":"a",%s}`, i, c.data); e.text != want {
			t.Errorf("%s: got %s, want %s", c.body, e.text, want)
		}
		if got, _ := json.Marshal(e.attributes); string(got) != fmt.Sprintf(c.attributes, i) {
			t.Errorf("%s: attributes %s", c.body, got)
		}
	}
}

func TestPutProgramRefuses(t *testing.T) {
	s := newService(t)
	put(t, s, "UNI-1", nara)
	for _, c := range []struct {
		id, body, part string
		code           store.Code
	}{
		{"UNI 1", nara, "unified_id", store.CodeInvalid},
		{"UNI-1", `{`, "not JSON", store.CodeInvalid},
		{"UNI-1", ``, "not JSON", store.CodeInvalid},
		{"UNI-1", `{"unified_id":"UNI-2","primary_name":"a"}`, "unified_id", store.CodeInvalid},
		{"UNI-1", `{"prefectures":["奈良県"]}`, "primary_name", store.CodeInvalid},
		{"UNI-1", `{"primary_name":null}`, "primary_name", store.CodeInvalid},
		{"UNI-1", `{"primary_name":"a","amount_max_man_yen":0.5}`, "amount_max_man_yen", store.CodeInvalid},
		{"UNI-1", `{"primary_name":"a","b":"` + strings.Repeat("b", maxSource) + `"}`, "bytes", store.CodeTooLarge},
	} {
		_, err := s.PutProgram(t.Context(), PutProgramRequest{UnifiedID: c.id, Body: json.RawMessage(c.body)})
		wantCode(t, err, c.code, c.part)
	}
	if got := put(t, s, "UNI-1", `{"unified_id":"UNI-1",`+nara[1:]); got.Result != Unchanged {
		t.Errorf("the path's own id in the body: %+v", got)
	}
}

// change is a second record for a program, and what it changes.
type change struct {
	name, before, record string
	importChanges        string // comma-separated; "": unchanged
	putChanges           string
}

func TestWhatIsAChange(t *testing.T) {
	const base = `"primary_name":"a"`
	s := newService(t)
	for i, c := range []change{
		{"the same", `"x":1`, `"x":1`, "", ""},
		{"another order and white space", `"x":{"a":1,"b":2}`, `"x" : { "b":2, "a":1 }`, "", ""},
		{"another escape", `"x":"<&奈良"`, `"x":"\u003c\u0026\u5948\u826f"`, "", ""},
		{"a field that is not there", `"x":1`, `"y":null`, "", "x"},
		{"null clears", `"x":1`, `"x":null`, "x", "x"},
		{"null is absent", `"x":null`, ``, "", ""},
		{"null for what is not stored", ``, `"x":null,"prefectures":null,"application_window":null`, "", ""},
		{"a new field", ``, `"x":false`, "x", "x"},
		{"another value", `"x":1,"y":1`, `"x":2,"y":1`, "x", "x"},
		{"an empty list is a value", ``, `"prefectures":[]`, "prefectures", "prefectures"},
		{"a list's order", `"target_types":["a","b"]`, `"target_types":["b","a"]`, "target_types", "target_types"},
		{"a date and an instant", `"project_end_deadline":"2027-03-31"`, `"project_end_deadline":"2027-03-31T14:45Z"`, "", ""},
		{"an instant and a date", `"project_end_deadline":"2027-03-31T14:45Z"`, `"project_end_deadline":"2027-03-31"`, "", ""},
		{"another date", `"project_end_deadline":"2027-03-31"`, `"project_end_deadline":"2027-03-31T15:00+09:00"`, "", ""},
		{"really another date", `"project_end_deadline":"2027-03-31"`, `"project_end_deadline":"2027-04-01T00:00Z"`, "project_end_deadline", "project_end_deadline"},
		{"an amount", `"amount_max_man_yen":300`, `"amount_max_man_yen":0`, "amount_max_man_yen", "amount_max_man_yen"},
		{"minus zero", `"amount_max_man_yen":0`, `"amount_max_man_yen":-0`, "", ""},
		{"below enriched_json", `"enriched_json":{"a":{"b":1}}`, `"enriched_json":{"a":{"b":2}}`, "enriched_json", "enriched_json"},

		{"a window as stored", `"application_window":{"start":"2026-04-01","end":"2026-06-30"}`, `"application_window":{"start":"2026-04-01T00:00Z","end":"2026-06-30T08:00:00Z"}`, "", ""},
		{"half a window", `"application_window":{"start":"2026-04-01","end":"2026-06-30"}`, `"application_window":{"end":"2026-06-30"}`, "", "application_window"},
		{"half a window that differs", `"application_window":{"start":"2026-04-01"}`, `"application_window":{"end":"2026-06-30"}`, "application_window", "application_window"},
		{"an empty window", `"application_window":{"start":"2026-04-01"}`, `"application_window":{}`, "", "application_window"},
		{"a null in a window", `"application_window":{"start":"2026-04-01"}`, `"application_window":{"start":"2026-04-01","end":null}`, "", ""},
		{"a window of nulls", ``, `"application_window":{"start":null,"end":null}`, "", ""},
		{"a null that empties a window", `"application_window":{"start":"2026-04-01"}`, `"application_window":{"start":null}`, "application_window", "application_window"},
		{"a null window", `"application_window":{"start":"2026-04-01"}`, `"application_window":null`, "application_window", "application_window"},

		{"a derived level follows", `"prefectures":["奈良県"]`, `"prefectures":["奈良県","京都府"]`, "authority_level,prefectures", "authority_level,prefectures"},
		{"a derived level comes up", `"prefectures":["奈良県","京都府"]`, `"prefectures":["全国"]`, "authority_level,prefectures", "authority_level,prefectures"},
		{"a level that is told stays", `"prefectures":["奈良県"],"authority_level":"prefecture"`, `"prefectures":["全国"]`, "prefectures", "authority_level,prefectures"},
		{"a level that is told as derived", `"prefectures":["奈良県"]`, `"prefectures":["奈良県"],"authority_level":"prefecture"`, "", ""},
		{"null gives the derived level", `"prefectures":["奈良県"],"authority_level":"municipality"`, `"prefectures":["奈良県"],"authority_level":null`, "authority_level", "authority_level"},
	} {
		t.Run(c.name, func(t *testing.T) {
			members := func(m string) string {
				if m == "" {
					return base
				}
				return base + "," + m
			}
			for _, how := range []struct {
				id, want string
				send     func(id string) bool
			}{
				{fmt.Sprintf("UNI-%d-import", i), c.importChanges, func(id string) bool {
					return load(t, s, `{"unified_id":"`+id+`",`+members(c.record)+`}`).Updated == 1
				}},
				{fmt.Sprintf("UNI-%d-put", i), c.putChanges, func(id string) bool { return put(t, s, id, `{`+members(c.record)+`}`).Result == Updated }},
			} {
				put(t, s, how.id, `{`+members(c.before)+`}`)
				before, n := storedSource(t, s, how.id), count(t, s, "outbox_events")
				updated := how.send(how.id)
				published := events(t, s, n)
				if updated != (how.want != "") || len(published) > 1 || updated != (len(published) == 1) {
					t.Fatalf("%s: updated %v, %d events; want changes %q; stored %s", how.id, updated, len(published), how.want, storedSource(t, s, how.id))
				}
				if !updated {
					if after := storedSource(t, s, how.id); after != before {
						t.Errorf("%s: unchanged, but stored %s, before %s", how.id, after, before)
					}
				} else if got := strings.Join(published[0].texts("changed_fields"), ","); got != how.want {
					t.Errorf("%s: changed %s, want %s", how.id, got, how.want)
				}
				if how.send(how.id) {
					t.Errorf("%s: changed again", how.id)
				}
			}
		})
	}
}

// A level that a source has told once, as it was derived before, is told from then on.
func TestALevelThatIsToldStays(t *testing.T) {
	s := newService(t)
	load(t, s, `{"unified_id":"UNI-1","primary_name":"a","prefectures":["奈良県"]}
		{"unified_id":"UNI-1","authority_level":"prefecture"}
		{"unified_id":"UNI-1","prefectures":["全国"]}`)
	if got := storedSource(t, s, "UNI-1"); !strings.Contains(got, `"authority_level":"prefecture"`) {
		t.Errorf("stored %s", got)
	}
}

func TestStateAndEventAreOne(t *testing.T) {
	s := newService(t)
	put(t, s, "UNI-1", nara)
	before := storedSource(t, s, "UNI-1")
	customer(t, s, "cus_a")
	saveFilter(t, s, "cus_a", `{"prefecture":"奈良県"}`)
	mend := failPublish(t, s, "1")
	for _, r := range []PutProgramRequest{
		{UnifiedID: "UNI-1", Body: json.RawMessage(`{"primary_name":"b"}`)},
		{UnifiedID: "UNI-2", Body: json.RawMessage(nara)},
	} {
		if _, err := s.PutProgram(t.Context(), r); err == nil || store.CodeOf(err) != "" {
			t.Errorf("%s: %v, want an internal error", r.UnifiedID, err)
		}
	}
	if got := storedSource(t, s, "UNI-1"); got != before {
		t.Errorf("stored %s without its event", got)
	}
	if got := storedSource(t, s, "UNI-2"); got != "" || count(t, s, "program_jobs") != 0 {
		t.Errorf("stored %s without its event, %d jobs", got, count(t, s, "program_jobs"))
	}
	mend()
	if got := put(t, s, "UNI-2", nara); got.Result != Created {
		t.Errorf("after that: %+v", got)
	}
	finish(t, s)
}

func TestEnrichedJSONEntersNoPayload(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	saveFilter(t, s, "cus_a", `{"unified_id":"UNI-1"}`)
	put(t, s, "UNI-1", `{"primary_name":"a","enriched_json":{"needle":1,"prefectures":["needle"]}}`)
	put(t, s, "UNI-1", `{"primary_name":"a","enriched_json":{"needle":2}}`)
	finish(t, s)
	for _, e := range events(t, s, 0) {
		if attributes, _ := json.Marshal(e.attributes); strings.Contains(e.text+string(attributes), "needle") {
			t.Errorf("%s: %s %s", e.kind, e.text, attributes)
		}
	}
	if got := events(t, s, 1)[0].texts("changed_fields"); !slices.Equal(got, []string{"enriched_json"}) {
		t.Errorf("changed %q", got)
	}
}
