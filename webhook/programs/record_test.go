package programs

import (
	"fmt"
	"strings"
	"testing"

	"jpintel/store"
)

func TestRecordsThatAreRefused(t *testing.T) {
	long := strings.Repeat("x", maxSource)
	for _, c := range []struct{ text, part string }{
		{`nonsense`, "not JSON"},
		{`{"unified_id":"UNI-1"`, "not JSON"},
		{`{"unified_id":"UNI-1"} {}`, "not JSON"},
		{`[]`, "want a JSON object"},
		{`null`, "want a JSON object"},
		{"{\"unified_id\":\"UNI-1\",\"a\":\"\xff\"}", "UTF-8"},
		{`{}`, "unified_id"},
		{`{"unified_id":7}`, "unified_id"},
		{`{"unified_id":null}`, "unified_id"},
		{`{"unified_id":""}`, "unified_id"},
		{`{"unified_id":"UNI 1"}`, "unified_id"},
		{`{"unified_id":"奈良"}`, "unified_id"},
		{`{"unified_id":"` + strings.Repeat("a", 129) + `"}`, "unified_id"},
		{`{"unified_id":"UNI-1","":1}`, "names"},
		{`{"unified_id":"UNI-1","a\u0001":1}`, "names"},
		{`{"unified_id":"UNI-1","primary_name":""}`, "primary_name"},
		{`{"unified_id":"UNI-1","primary_name":" "}`, "primary_name"},
		{`{"unified_id":"UNI-1","primary_name":1}`, "primary_name"},
		{`{"unified_id":"UNI-1","primary_name":"` + strings.Repeat("x", maxName+1) + `"}`, "primary_name"},
		{`{"unified_id":"UNI-1","authority_level":"country"}`, "authority_level"},
		{`{"unified_id":"UNI-1","prefectures":"奈良県"}`, "prefectures"},
		{`{"unified_id":"UNI-1","prefectures":["奈良県",null]}`, "prefectures"},
		{`{"unified_id":"UNI-1","prefectures":[""]}`, "prefectures"},
		{`{"unified_id":"UNI-1","target_types":[1]}`, "target_types"},
		{`{"unified_id":"UNI-1","amount_max_man_yen":1.5}`, "amount_max_man_yen"},
		{`{"unified_id":"UNI-1","amount_max_man_yen":-1}`, "amount_max_man_yen"},
		{`{"unified_id":"UNI-1","amount_max_man_yen":"300"}`, "amount_max_man_yen"},
		{`{"unified_id":"UNI-1","amount_max_man_yen":99999999999999999999}`, "amount_max_man_yen"},
		{`{"unified_id":"UNI-1","source_url":"ftp://example.jp/"}`, "source_url"},
		{`{"unified_id":"UNI-1","source_url":"/a"}`, "source_url"},
		{`{"unified_id":"UNI-1","source_url":""}`, "source_url"},
		{`{"unified_id":"UNI-1","application_window":"2026-06-30"}`, "application_window"},
		{`{"unified_id":"UNI-1","application_window":["2026-06-30"]}`, "application_window"},
		{`{"unified_id":"UNI-1","application_window":{"start":"soon"}}`, "application_window: start"},
		{`{"unified_id":"UNI-1","application_window":{"end":"2026-13-01"}}`, "application_window: end"},
		{`{"unified_id":"UNI-1","application_window":{"end":7}}`, "application_window: end"},
		{`{"unified_id":"UNI-1","a":"` + long + `"}`, "bytes"},
		{`{"unified_id":"UNI-1","` + long[:maxNames+1] + `":1}`, "names"},
		{`{"unified_id":"UNI-1","b_wrong":1,"prefectures":1,"amount_max_man_yen":-1}`, "amount_max_man_yen"},
	} {
		e := parse([]byte(c.text), ImportError{})
		code := store.CodeInvalid
		if strings.Contains(c.text, long[:maxNames+1]) && c.part != "primary_name" {
			code = store.CodeTooLarge
		}
		if e.err == nil {
			t.Errorf("%.100s is taken", c.text)
			continue
		}
		wantCode(t, e.err, code, c.part)
	}
}

func TestRecordsThatAreTaken(t *testing.T) {
	for _, text := range []string{
		`{"unified_id":"a"}`,
		`{"unified_id":"UNI_1.a:b-c"}`,
		`{"unified_id":"` + strings.Repeat("a", 128) + `"}`,
		`{"unified_id":"UNI-1","primary_name":null,"authority_level":null,"prefectures":null,"amount_max_man_yen":null,"source_url":null,"application_window":null,"target_types":null}`,
		`{"unified_id":"UNI-1","prefectures":[],"target_types":[]}`,
		`{"unified_id":"UNI-1","application_window":{}}`,
		`{"unified_id":"UNI-1","application_window":{"start":null,"end":"2026-06-30T23:45:10.5+09:00","cycle":"yearly"}}`,
		`{"unified_id":"UNI-1","a":{"b":[null,{"":1}]},"ひらがな":"x"}`,
	} {
		if e := parse([]byte(text), ImportError{}); e.err != nil {
			t.Errorf("%s: %v", text, e.err)
		}
	}
}

// Whatever passes can be published: the worst changed_fields and the longest
// name stay below the limit of an event's data.
func TestTheLargestProgramsCanBePublished(t *testing.T) {
	s := newService(t)
	names := func(from rune) string {
		var b strings.Builder
		for used, c := 0, from; used < maxNames-200; c++ {
			name := fmt.Sprintf(`\"%c`, c)
			used += len(name) - 1
			fmt.Fprintf(&b, `,"%s":1`, name)
		}
		return b.String()
	}
	name := strings.Repeat(`\u0001`, maxName-1) + "x"
	first := put(t, s, "UNI-1", `{"primary_name":"`+name+`","source_url":"https://example.jp/`+strings.Repeat("a", 2000)+`"`+names('一')+`}`)
	second := put(t, s, "UNI-1", `{"primary_name":"`+name+`"`+names('丁')+`}`)
	if first.Result != Created || second.Result != Updated {
		t.Errorf("%s, %s", first.Result, second.Result)
	}
}
