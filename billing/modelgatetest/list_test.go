package modelgatetest_test

import (
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"jpintel/billing/modelgatetest"
)

// ids reads a list to its end, and returns its ids.
func (p *partner) ids(path string) []string {
	p.t.Helper()
	return p.idsFrom(path, "")
}

// idsFrom is ids from a cursor on.
func (p *partner) idsFrom(path, cursor string) (ids []string) {
	p.t.Helper()
	for {
		at := path
		if cursor != "" {
			at += "&cursor=" + url.QueryEscape(cursor)
		}
		page := p.must(200, "GET", at, nil)
		rows, _ := page.get("data").([]any)
		for i := range rows {
			ids = append(ids, page.str("data", i, "id"))
		}
		if cursor = page.str("next_cursor"); cursor == "" {
			return ids
		}
	}
}

// Pages follow each other without gaps, in the order in which things were made.
func TestPages(t *testing.T) {
	p := start(t, modelgatetest.Options{})
	var made []string
	for i := range 7 {
		made = append(made, p.group(fmt.Sprintf("cus_%d:signup:1", i)))
	}
	for _, limit := range []int{1, 2, 3, 7, 100} {
		if got := p.ids(fmt.Sprintf("/groups?limit=%d", limit)); !slices.Equal(got, made) {
			t.Errorf("limit %d: %q, want %q", limit, got, made)
		}
	}
	// What is made while somebody reads comes at the end; what is deleted is gone.
	first := p.must(200, "GET", "/groups?limit=3", nil)
	made = append(made, p.group("cus_7:signup:1"))
	p.must(200, "DELETE", "/groups/"+made[4], nil)
	if got := p.idsFrom("/groups?limit=3", first.str("next_cursor")); !slices.Equal(got, slices.Concat(made[3:4], made[5:])) {
		t.Errorf("the rest is %q of %q", got, made)
	}
}

// Transactions and audit events appear late; a cursor that was given out then
// leads to what came later. Everything else is never late.
func TestLag(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := start(t, modelgatetest.Options{ListLag: time.Minute, AuditLag: 30 * time.Second, Now: func() time.Time { return now }})
	group := p.group("cus_a:signup:1")
	topUp := func() string { return p.must(201, "POST", "/groups/"+group+"/top-ups", usd("1.00")).str("id") }
	var made []string
	for range 3 {
		made = append(made, topUp())
	}
	late := topUp
	if got := p.ids("/transactions?limit=2"); got != nil {
		t.Errorf("at once: %q", got)
	}
	if got := p.ids("/audit-events?limit=2"); got != nil {
		t.Errorf("audit at once: %q", got)
	}
	p.must(200, "GET", "/transactions/"+made[0], nil)
	expected{"balance": "3.00"}.check(t, p.must(200, "GET", "/groups/"+group+"/balance", nil))
	if got := p.ids("/groups?limit=2"); !slices.Equal(got, []string{group}) {
		t.Errorf("groups: %q", got)
	}

	p.u.Advance(30 * time.Second)
	if got := p.ids("/audit-events?limit=2"); len(got) != 4 {
		t.Errorf("audit after 30 s: %q", got)
	}
	made = append(made, late(), late())
	p.u.Advance(30 * time.Second)
	page := p.must(200, "GET", "/transactions?limit=2", nil)
	next := page.str("next_cursor")
	if got := p.idsFrom("/transactions?limit=2", next); !slices.Equal(got, made[2:3]) {
		t.Errorf("after the first page: %q, want %q", got, made[2:3])
	}
	p.u.Advance(30 * time.Second)
	if got := p.idsFrom("/transactions?limit=2", next); !slices.Equal(got, made[2:]) {
		t.Errorf("later: %q, want %q", got, made[2:])
	}
}

// Times are from inclusive to exclusive.
func TestTimeFilters(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := start(t, modelgatetest.Options{Now: func() time.Time { return now }})
	group := p.group("cus_a:signup:1")
	var made []string
	for range 3 {
		made = append(made, p.must(201, "POST", "/groups/"+group+"/top-ups", usd("1.00")).str("id"))
		p.u.Advance(time.Minute)
	}
	for query, want := range map[string][]string{
		"created_from=2026-03-01T12:01:00Z":                                 made[1:],
		"created_to=2026-03-01T12:01:00Z":                                   made[:1],
		"created_from=2026-03-01T12:01:00Z&created_to=2026-03-01T12:02:00Z": made[1:2],
		"created_from=2026-03-01T12:01:00.001Z":                             made[2:],
		"created_from=2026-03-01T12:00:00Z&group_id=grp_x":                  nil,
	} {
		if got := p.ids("/transactions?" + query); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	if got := p.ids("/audit-events?from=2026-03-01T12:01:00Z&action=credit.top_up"); len(got) != 2 {
		t.Errorf("audit: %q", got)
	}
}

// What faults do to lists.
func TestListFaults(t *testing.T) {
	p := start(t, modelgatetest.Options{})
	var made []string
	for i := range 3 {
		made = append(made, p.group(fmt.Sprintf("cus_%d:signup:1", i)))
	}
	lists := func(do, query string) answer {
		p.u.ClearFaults()
		p.faults(modelgatetest.Rule{At: modelgatetest.AtOnResponse, Do: do})
		return p.must(200, "GET", "/groups"+query, nil)
	}
	expected{"data.0.id": made[0], "data.1.id": made[2], "data.2": "null"}.check(t, lists("list_omit:"+made[1], ""))
	expected{"data.0.id": made[0], "data.1.id": made[0], "data.2.id": made[1]}.check(t, lists("list_dup", ""))

	page := lists("cursor_loop", "?limit=2")
	loop := page.str("next_cursor")
	again := lists("cursor_loop", "?limit=2&cursor="+url.QueryEscape(loop))
	if loop == "" || again.str("next_cursor") != loop || again.text != page.text {
		t.Errorf("%s, then %s", page.text, again.text)
	}
}

// A stale read shows what was, and one that never happened yet is not there.
func TestStaleRead(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := start(t, modelgatetest.Options{Now: func() time.Time { return now }})
	group := p.group("cus_a:signup:1")
	p.u.Advance(time.Minute)
	p.must(200, "PATCH", "/groups/"+group+"/limits", limit("100.00", "1"))
	p.must(201, "POST", "/groups/"+group+"/top-ups", usd("5.00"))
	second := p.group("cus_b:signup:1")
	for _, at := range []modelgatetest.At{modelgatetest.AtBeforeExecute, modelgatetest.AtOnResponse} {
		p.u.ClearFaults()
		p.faults(modelgatetest.Rule{Match: modelgatetest.Match{Method: "GET"}, At: at, Do: "stale_read:45s"})
		expected{"spend_limit": "0.00", "policy_version": "0"}.check(t, p.must(200, "GET", "/groups/"+group+"/limits", nil))
		expected{"balance": "0.00"}.check(t, p.must(200, "GET", "/groups/"+group+"/balance", nil))
		expected{"balance": "1000000.00"}.check(t, p.must(200, "GET", "/balance", nil))
		expected{"data.0": "null"}.check(t, p.must(200, "GET", "/groups?external_ref=cus_b:signup:1", nil))
		p.must(404, "GET", "/groups/"+second, nil)
	}
	p.u.ClearFaults()
	p.faults(modelgatetest.Rule{At: modelgatetest.AtBeforeExecute, Do: "stale_read:45s"})
	p.must(200, "PATCH", "/groups/"+group, object{"name": "A change is made to what is"})
	p.u.ClearFaults()
	expected{"balance": "5.00"}.check(t, p.must(200, "GET", "/groups/"+group+"/balance", nil))
	p.faults(modelgatetest.Rule{At: modelgatetest.AtBeforeExecute, Do: "stale_read:45s"})
	p.u.Advance(45 * time.Second)
	expected{"data.0.id": second}.check(t, p.must(200, "GET", "/groups?external_ref=cus_b:signup:1", nil))
	expected{"balance": "5.00"}.check(t, p.must(200, "GET", "/groups/"+group+"/balance", nil))
}
