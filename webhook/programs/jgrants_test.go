package programs

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestFromJGrants(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"a record of the list",
			`{"id":"demo1","title":"省エネ","target_area_search":"奈良県","subsidy_max_limit":3000000,
			  "acceptance_start_datetime":"2026-04-01","acceptance_end_datetime":"2026-06-30",
			  "target_number_of_employees":"20名以下","front_subsidy_detail_page_url":"https://example.jp/demo1"}`,
			`{"amount_max_man_yen":300,"application_window":{"end":"2026-06-30","start":"2026-04-01"},"prefectures":["奈良県"],
			  "primary_name":"省エネ","source_url":"https://example.jp/demo1","target_number_of_employees":"20名以下","unified_id":"UNI-demo1"}`},
		{"other fields as they come", `{"id":"d","name":"S-1","industry":"a / b","is_enable_multiple_request":true,"project_end_deadline":null}`,
			`{"industry":"a / b","is_enable_multiple_request":true,"name":"S-1","project_end_deadline":null,"unified_id":"UNI-d"}`},
		{"several areas", `{"id":"d","target_area_search":"大阪府 / 京都府/大阪府"}`, `{"prefectures":["大阪府","京都府"],"unified_id":"UNI-d"}`},
		{"no area", `{"id":"d","target_area_search":" / "}`, `{"prefectures":null,"unified_id":"UNI-d"}`},
		{"a null area", `{"id":"d","target_area_search":null}`, `{"prefectures":null,"unified_id":"UNI-d"}`},
		{"no limit", `{"id":"d","subsidy_max_limit":0}`, `{"amount_max_man_yen":null,"unified_id":"UNI-d"}`},
		{"a null limit", `{"id":"d","subsidy_max_limit":null}`, `{"amount_max_man_yen":null,"unified_id":"UNI-d"}`},
		{"a limit is rounded down", `{"id":"d","subsidy_max_limit":443200}`, `{"amount_max_man_yen":44,"unified_id":"UNI-d"}`},
		{"a small limit", `{"id":"d","subsidy_max_limit":9999}`, `{"amount_max_man_yen":0,"unified_id":"UNI-d"}`},
		{"a large limit", `{"id":"d","subsidy_max_limit":50000000000}`, `{"amount_max_man_yen":5000000,"unified_id":"UNI-d"}`},
		{"half a window", `{"id":"d","acceptance_end_datetime":"2026-06-30T23:45Z"}`, `{"application_window":{"end":"2026-06-30T23:45Z"},"unified_id":"UNI-d"}`},
		{"a null in a window", `{"id":"d","acceptance_start_datetime":null,"acceptance_end_datetime":""}`, `{"application_window":{"end":null,"start":null},"unified_id":"UNI-d"}`},
		{"empty texts", `{"id":"d","title":"","front_subsidy_detail_page_url":""}`, `{"primary_name":null,"source_url":null,"unified_id":"UNI-d"}`},
		{"attachments", `{"id":"d","application_form":[{"name":"a.pdf","data":"JVBERi0="}],"outline_of_grant":[],"application_guidelines":null}`,
			`{"application_form":[{"data_sha256":"` + checksum([]byte(`"JVBERi0="`)) + `","name":"a.pdf"}],"application_guidelines":null,"outline_of_grant":[],"unified_id":"UNI-d"}`},
	} {
		var in map[string]json.RawMessage
		must(json.Unmarshal([]byte(c.in), &in))
		got, err := fromJGrants(in)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		out, err := canonical(encode(got))
		if err != nil {
			t.Fatal(err)
		}
		want, err := canonical([]byte(c.want))
		if err != nil {
			t.Fatal(err)
		}
		if string(out) != string(want) {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, out, want)
		}
	}
}

func TestPortalRecordsThatAreRefused(t *testing.T) {
	for _, c := range []struct{ text, part string }{
		{`{"title":"x"}`, "id"},
		{`{"id":7}`, "id"},
		{`{"id":""}`, "id"},
		{`{"id":"a b"}`, "unified_id"},
		{`{"id":"d","target_area_search":["奈良県"]}`, "target_area_search"},
		{`{"id":"d","subsidy_max_limit":"3000000"}`, "subsidy_max_limit"},
		{`{"id":"d","subsidy_max_limit":-1}`, "subsidy_max_limit"},
		{`{"id":"d","acceptance_end_datetime":"soon"}`, "application_window: end"},
		{`{"id":"d","front_subsidy_detail_page_url":"mailto:a@example.jp"}`, "source_url"},
		{`[]`, "object"},
	} {
		e := parsePortal([]byte(c.text), 1)
		if e.err == nil || !strings.Contains(e.err.Error(), c.part) {
			t.Errorf("%s: %v, want it to name %s", c.text, e.err, c.part)
		}
		if strings.HasPrefix(c.text, `{"id":"d"`) && e.at.ID != "UNI-d" {
			t.Errorf("%s: named %q", c.text, e.at.ID)
		}
	}
}
