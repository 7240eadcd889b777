package webhook

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"jpintel/store"
)

func TestFilterUnmarshal(t *testing.T) {
	for _, c := range []struct {
		text string
		want Filter
		err  string
	}{
		{`null`, nil, ""},
		{`{}`, Filter{}, ""},
		{`{"prefecture":"奈良県"}`, Filter{"prefecture": {"奈良県"}}, ""},
		{`{"prefecture":["奈良県","大阪府"],"kind":[]}`, Filter{"prefecture": {"奈良県", "大阪府"}, "kind": {}}, ""},
		{` { "kind" : "\u0061" } `, Filter{"kind": {"a"}}, ""},
		{`{"kind":["a",null]}`, Filter{"kind": {"a", ""}}, ""}, // an empty value, which validate refuses
		{`[]`, nil, "filter: want an object"},
		{`"prefecture"`, nil, "filter: want an object"},
		{`{"prefecture":null}`, nil, "filter.prefecture: want a string or a list of strings"},
		{`{"year":2026}`, nil, "filter.year: want"},
		{`{"year":[2026]}`, nil, "filter.year: want"},
		{`{"kind":true}`, nil, "filter.kind: want"},
		{`{"kind":{"not":"mutex"}}`, nil, "filter.kind: want"},
		{`{"kind":[["mutex"]]}`, nil, "filter.kind: want"},
	} {
		f := Filter{"left": {"over"}}
		err := json.Unmarshal([]byte(c.text), &f)
		if c.err != "" {
			t.Run(c.text, func(t *testing.T) { wantCode(t, err, store.CodeInvalid, c.err) })
			continue
		}
		if err != nil || !reflect.DeepEqual(f, c.want) {
			t.Errorf("%s: got %v, %v; want %v", c.text, f, err, c.want)
		}
	}
}

func TestFilterMarshal(t *testing.T) {
	for _, c := range []struct {
		filter Filter
		want   string
	}{
		{nil, `{}`},
		{Filter{}, `{}`},
		{Filter{"kind": {"<mutex>"}, "severity": {"a", "b"}}, `{"kind":"<mutex>","severity":["a","b"]}`},
	} {
		if got, err := marshal(c.filter); err != nil || string(got) != c.want {
			t.Errorf("%v: got %s, %v; want %s", c.filter, got, err, c.want)
		}
	}
}

func filters() *rapid.Generator[map[string][]string] {
	word := rapid.SampledFrom([]string{"a", "b", "<&>", "奈良県", ""})
	return rapid.MapOf(word, rapid.SliceOfN(word, 0, 3))
}

func TestFilterRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Filter(filters().Draw(t, "filter"))
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var back Filter
		if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(back, f) {
			t.Fatalf("%v became %v, %v by %s", f, back, err, text)
		}
	})
}

func TestFilterMatches(t *testing.T) {
	nara := Attributes{"prefecture": {"奈良県", "大阪府"}, "authority_level": {"prefecture"}}
	for _, c := range []struct {
		name       string
		filter     Filter
		attributes Attributes
		want       bool
	}{
		{"no filter", nil, nil, true},
		{"an empty filter", Filter{}, nara, true},
		{"one value", Filter{"prefecture": {"奈良県"}}, nara, true},
		{"another of the subject's values", Filter{"prefecture": {"大阪府"}}, nara, true},
		{"any of the filter's values", Filter{"prefecture": {"東京都", "大阪府"}}, nara, true},
		{"none of the values", Filter{"prefecture": {"東京都", "全国"}}, nara, false},
		{"all attributes", Filter{"prefecture": {"奈良県"}, "authority_level": {"prefecture"}}, nara, true},
		{"one attribute of two", Filter{"prefecture": {"奈良県"}, "authority_level": {"national"}}, nara, false},
		{"an attribute that the subject has not", Filter{"target_type": {"sme"}}, nara, false},
		{"a subject without attributes", Filter{"prefecture": {"奈良県"}}, nil, false},
		{"an attribute without values", Filter{"prefecture": {}}, nara, false},
		{"a part of a value", Filter{"prefecture": {"奈良"}}, nara, false},
		{"another case", Filter{"authority_level": {"Prefecture"}}, nara, false},
		{"nationwide is a value of its own", Filter{"prefecture": {"奈良県"}}, Attributes{"prefecture": {"全国"}}, false},
	} {
		if got := c.filter.Matches(c.attributes); got != c.want {
			t.Errorf("%s: got %t", c.name, got)
		}
	}
}

func TestFilterValidate(t *testing.T) {
	many := make([]string, maxFilterValues+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	programs := []Type{TypeProgramCreated, TypeProgramUpdated}
	for _, c := range []struct {
		name   string
		types  []Type
		filter Filter
		err    string
	}{
		{"empty", programs, Filter{}, ""},
		{"a program's", programs, Filter{"unified_id": {"UNI-1"}, "prefecture": {"奈良県"}, "authority_level": {"national"}, "target_type": {"sme"}}, ""},
		{"an adoption's", []Type{TypeAdoptionPublished}, Filter{"year": {"2026"}, "program_id": {"UNI-1"}, "prefecture": {"奈良県"}}, ""},
		{"one type knows it", []Type{TypeProgramCreated, TypeExclusionRuleAdded}, Filter{"kind": {"mutex"}}, ""},
		{"as many values as are allowed", programs, Filter{"unified_id": many[1:]}, ""},
		{"as long as is allowed", programs, Filter{"unified_id": {strings.Repeat("x", maxFilterValue)}}, ""},
		{"another type's", programs, Filter{"kind": {"mutex"}}, `filter: unknown attribute "kind"; these types can be filtered by authority_level, prefecture, target_type, unified_id`},
		{"a type that has none", []Type{TypeTierQuotaWarning}, Filter{"tier": {"paid"}}, `filter: unknown attribute "tier"; these types can be filtered by nothing`},
		{"the first unknown one is named", programs, Filter{"z": {"1"}, "y": {"1"}}, `unknown attribute "y"`},
		{"no values", programs, Filter{"prefecture": {}}, "filter.prefecture: want 1 to 100 values"},
		{"too many values", programs, Filter{"unified_id": many}, "filter.unified_id: want 1 to 100 values"},
		{"an empty value", programs, Filter{"prefecture": {"奈良県", ""}}, "filter.prefecture: want values of 1 to 256 bytes"},
		{"too long a value", programs, Filter{"prefecture": {strings.Repeat("x", maxFilterValue+1)}}, "filter.prefecture: want values of 1 to 256 bytes"},
	} {
		err := c.filter.validate(c.types)
		if c.err != "" {
			t.Run(c.name, func(t *testing.T) { wantCode(t, err, store.CodeInvalid, c.err) })
		} else if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	f := Filter{"prefecture": {"b", "a", "b", "a"}}
	if err := f.validate(programs); err != nil || !slices.Equal(f["prefecture"], []string{"a", "b"}) {
		t.Errorf("values %q, %v; want each once, in order", f["prefecture"], err)
	}
}

func TestValidateProgramFilter(t *testing.T) {
	if err := ValidateProgramFilter(Filter{"target_type": {"sme"}}); err != nil {
		t.Error(err)
	}
	wantCode(t, ValidateProgramFilter(nil), store.CodeInvalid, "at least one attribute")
	wantCode(t, ValidateProgramFilter(Filter{"year": {"2026"}}), store.CodeInvalid, `"year"`)
}
