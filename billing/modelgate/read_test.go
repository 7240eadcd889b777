package modelgate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func groupJSON(id, ref string) string {
	return fmt.Sprintf(`{"id":%q,"external_ref":%q,"name":"n","status":"active","spend_limit":"0.00","period":"month"}`, id, ref)
}

func TestListsAreReadToTheirEnd(t *testing.T) {
	c := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "" || r.Method != "GET" || r.URL.Query().Get("external_ref") != "a b" || r.URL.Query().Get("limit") != "100" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		switch r.URL.Query().Get("cursor") {
		case "":
			answer(200, `{"data":[`+groupJSON("grp_1", "a b")+`,`+groupJSON("grp_9", "other")+`],"next_cursor":"c1"}`)(w, r)
		case "c1": // one of them again
			answer(200, `{"data":[`+groupJSON("grp_1", "a b")+`,`+groupJSON("grp_2", "a b")+`],"next_cursor":null}`)(w, r)
		}
	})
	found, err := c.GroupsByRef(context.Background(), "a b")
	if err != nil || len(found.Items) != 2 || found.Items[1].ID != "grp_2" || found.Query != "/groups?external_ref=a+b&limit=100" || len(found.SHA256) != 64 || found.Date.IsZero() {
		t.Errorf("%+v (%v)", found, err)
	}
}

// S74: reading has an end, whatever the upstream does.
func TestS74ReadsAreBounded(t *testing.T) {
	requests := 0
	c := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		requests++
		answer(200, `{"data":[],"next_cursor":"again"}`)(w, r)
	})
	_, err := c.GroupsByRef(context.Background(), "x")
	if e, ok := errors.AsType[*ReadError](err); !ok || e.Code != "cursor_loop" || requests != 2 {
		t.Errorf("%v after %d requests", err, requests)
	}
	requests = 0
	c = upstream(t, func(w http.ResponseWriter, r *http.Request) {
		requests++
		answer(200, fmt.Sprintf(`{"data":[],"next_cursor":"c%d"}`, requests))(w, r)
	})
	if _, err := c.GroupsByRef(context.Background(), "x"); err == nil || requests > 12 {
		t.Errorf("%v after %d requests", err, requests)
	}
	page := strings.TrimSuffix(strings.Repeat(groupJSON("grp_1", "x")+",", 400), ",")
	requests = 0
	c = upstream(t, func(w http.ResponseWriter, r *http.Request) {
		requests++
		answer(200, fmt.Sprintf(`{"data":[%s],"next_cursor":"c%d"}`, page, requests))(w, r)
	})
	if _, err := c.GroupsByRef(context.Background(), "x"); err == nil || requests != 3 {
		t.Errorf("%v after %d requests", err, requests)
	}
}

// An upstream without a filter for references shows everybody's: ours is found
// behind thousands, and there is an end to that too.
func TestAListOfEverybodys(t *testing.T) {
	for pages, found := range map[int]bool{60: true, 120: false} {
		served := 0
		c := upstream(t, func(w http.ResponseWriter, r *http.Request) {
			var rows []string
			for i := range pageRows {
				rows = append(rows, groupJSON(fmt.Sprintf("grp_%d_%d", served, i), "other"))
			}
			served++
			if served == pages {
				answer(200, `{"data":[`+groupJSON("grp_ours", "x")+`],"next_cursor":null}`)(w, r)
				return
			}
			answer(200, fmt.Sprintf(`{"data":[%s],"next_cursor":"c%d"}`, strings.Join(rows, ","), served))(w, r)
		})
		got, err := c.GroupsByRef(context.Background(), "x")
		if e, _ := errors.AsType[*ReadError](err); found != (err == nil) || found && (len(got.Items) != 1 || got.Items[0].ID != "grp_ours") || !found && e.Code != "too_many_rows" {
			t.Errorf("%d pages: %+v (%v)", pages, got.Items, err)
		}
	}
}

func TestReadsThatFailSaySo(t *testing.T) {
	for _, c := range []struct {
		handle http.HandlerFunc
		code   string // "": it is simply not there
	}{
		{answer(404, errorBody("group_not_found")), ""},
		{answer(404, "<html>", [2]string{"Content-Type", "text/html"}), "http_404"},
		{answer(500, errorBody("internal")), "internal"},
		{answer(401, errorBody("unauthorized")), "unauthorized"},
		{answer(200, "{"), CodeMalformed},
		{answer(200, `{"id":"grp_1"}`), CodeMalformed},
		{answer(302, "", [2]string{"Location", "/x"}), "http_302"},
	} {
		found, err := upstream(t, c.handle).Group(context.Background(), "grp_1")
		e, _ := errors.AsType[*ReadError](err)
		if (err == nil) != (c.code == "") || e != nil && e.Code != c.code || len(found.Items) != 0 {
			t.Errorf("want %q, got %v", c.code, err)
		}
	}
}

func TestAuditEvents(t *testing.T) {
	c := upstream(t, answer(200, `{"data":[{"id":"aud_1","request_id":"req_7","action":"group.create","target":{"type":"group","id":"grp_1"},"source_ip":"192.0.2.1","status":"succeeded","metadata":{"external_ref":"cus_a:signup:1"},"occurred_at":"2026-05-14T00:00:00Z"}],"next_cursor":null}`))
	found, err := c.Audit(context.Background(), AuditQuery{RequestID: "req_7"})
	if err != nil || len(found.Items) != 1 || found.Items[0].TargetID != "grp_1" || found.Items[0].ExternalRef != "cus_a:signup:1" || found.Query != "/audit-events?limit=100&request_id=req_7" {
		t.Errorf("%+v (%v)", found, err)
	}
}

func TestCanonicalBodies(t *testing.T) {
	for body, want := range map[string]string{
		`{"b":"<&>","a":["x",{"d":1,"c":true}],"memo":"words"}`: `{"a":["x",{"c":true,"d":1}],"b":"<&>"}`,
		` { "b" : "2" , "a" : "1" } `:                           `{"a":"1","b":"2"}`,
		``:                                                      ``,
		`{"a":1.5}`:                                             "error",
		`{"a":1e3}`:                                             "error",
		`{"a":null}`:                                            "error",
		`{"a":1,"a":2}`:                                         "error",
		`[]`:                                                    "error",
	} {
		got, err := Canonical([]byte(body))
		if err != nil {
			got = []byte("error")
		}
		if string(got) != want {
			t.Errorf("%s: %s, want %s (%v)", body, got, want, err)
		}
	}
	for _, r := range []Request{group, key, limits(t), freeze, topUp(t)} { // they are rendered canonical
		if got, err := Canonical(r.Body); err != nil || string(got) != string(r.Body) {
			t.Errorf("%s: %s became %s (%v)", r.Path, r.Body, got, err)
		}
	}
}
