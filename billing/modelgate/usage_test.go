package modelgate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"
)

func usedJSON(id, at string) string {
	return fmt.Sprintf(`{"id":%q,"group_id":"grp_1","key_id":"key_1","model":"m1","cost":"0.000412500000","currency":"USD","finalized":true,"created_at":%q}`, id, at)
}

var usageFrom = time.Date(2026, 5, 14, 0, 0, 0, 123_456_789, time.UTC)

func TestUsageIsReadPageByPage(t *testing.T) {
	c := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/requests" || r.URL.Query().Get("group_id") != "grp_1" || r.URL.Query().Get("from") != "2026-05-14T00:00:00.123Z" || r.URL.Query().Get("to") != "2026-05-15T00:00:00.123Z" {
			t.Errorf("%s", r.URL)
		}
		switch r.URL.Query().Get("cursor") {
		case "":
			answer(200, `{"data":[`+usedJSON("mrq_1", "2026-05-14T00:00:00.123Z")+`,`+usedJSON("mrq_2", "2026-05-14T00:00:01Z")+`],"next_cursor":"c1"}`)(w, r)
		case "c1": // one of them again
			answer(200, `{"data":[`+usedJSON("mrq_2", "2026-05-14T00:00:01Z")+`,`+usedJSON("mrq_3", "2026-05-14T00:00:01Z")+`],"next_cursor":null}`)(w, r)
		}
	})
	u := c.Usage("grp_1", usageFrom, usageFrom.Add(24*time.Hour))
	first, err := u.Next(context.Background())
	if err != nil || len(first.Items) != 2 || u.Over() || first.Items[0].Cost.String() != "0.0004125" || !first.Items[0].Finalized || first.Items[0].Currency != "USD" {
		t.Errorf("%+v (%v)", first, err)
	}
	second, err := u.Next(context.Background())
	if err != nil || len(second.Items) != 1 || second.Items[0].ID != "mrq_3" || !u.Over() {
		t.Errorf("%+v (%v)", second, err)
	}
}

// What was not asked for is refused, and so is a list without an end.
func TestUsageThatWasNotAskedFor(t *testing.T) {
	const at = "2026-05-14T00:00:01Z"
	for _, c := range []struct{ code, data, next string }{
		{"cursor_loop", usedJSON("mrq_1", at), `"again"`},
		{"other_time", usedJSON("mrq_1", "2026-05-14T00:00:00Z"), "null"},
		{"other_time", usedJSON("mrq_1", "2026-05-15T00:00:00.123Z"), "null"},
		{"not_in_order", usedJSON("mrq_1", "2026-05-14T00:00:02Z") + "," + usedJSON("mrq_2", at), "null"},
		{"other_group", `{"id":"mrq_1","group_id":"grp_2","cost":"1","currency":"USD","finalized":true,"created_at":"` + at + `"}`, "null"},
		{CodeMalformed, `{"id":"mrq_1","cost":"-1","currency":"USD","finalized":true,"created_at":"` + at + `"}`, "null"},
		{CodeMalformed, `{"id":"mrq_1","cost":"1e3","currency":"USD","finalized":true,"created_at":"` + at + `"}`, "null"},
		{CodeMalformed, `{"id":"mrq_1","cost":null,"currency":"USD","finalized":true,"created_at":"` + at + `"}`, "null"},
		{CodeMalformed, `{"id":"mrq_1","cost":"1","Cost":"2","currency":"USD","finalized":true,"created_at":"` + at + `"}`, "null"},
		{CodeMalformed, `{"id":"mrq_1","cost":"1","currency":"USD","created_at":"` + at + `"}`, "null"},
	} {
		u := upstream(t, answer(200, `{"data":[`+c.data+`],"next_cursor":`+c.next+`}`)).Usage("grp_1", usageFrom, usageFrom.Add(24*time.Hour))
		var err error
		var items int
		for pages := 0; err == nil && !u.Over() && pages < 5; pages++ {
			var found Found[Used]
			found, err = u.Next(context.Background())
			items += len(found.Items)
		}
		if e, ok := errors.AsType[*ReadError](err); !ok || e.Code != c.code || c.code != "cursor_loop" && items != 0 {
			t.Errorf("want %s, got %v, with %d", c.code, err, items)
		}
	}
}
