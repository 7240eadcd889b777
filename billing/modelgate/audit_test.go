package modelgate

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// What is kept of an audit event is bounded and free of secrets.
func TestAuditEventsAreFitToBeStored(t *testing.T) {
	var many []string
	for i := range 50 {
		many = append(many, fmt.Sprintf(`"name_%02d":"%s"`, i, strings.Repeat("x", 1000)))
	}
	c := upstream(t, answer(200, `{"data":[{"id":"aud_1","request_id":"req 1\n","action":"limit.update","target":{"type":"group","id":"grp_1"},"source_ip":"192.0.2.1",
		"metadata":{"external_ref":"cus_a:signup:1","group_id":"grp_1","a_number":1,"a_key":"`+testKey+`",`+strings.Join(many, ",")+`},"occurred_at":"2026-05-14T00:00:00.5Z"}],"next_cursor":null}`))
	found, err := c.Audit(context.Background(), AuditQuery{})
	if err != nil || len(found.Items) != 1 {
		t.Fatalf("%+v (%v)", found, err)
	}
	e := found.Items[0]
	if e.RequestID != "" || e.GroupID != "grp_1" || e.ExternalRef != "cus_a:signup:1" || e.OccurredAt.UnixMilli()%1000 != 500 || len(e.Metadata) != maxMetadata || e.Metadata["a_key"] != "[masked]" ||
		len(e.Metadata["name_00"]) != maxAuditText || e.Metadata["a_number"] != "" {
		t.Errorf("%+v", e)
	}
}

// The request that an event follows from is one that this package renders.
func TestAuditEventsNameTheirRequest(t *testing.T) {
	for _, c := range []struct {
		event AuditEvent
		want  Request
	}{
		{AuditEvent{Action: "group.create", TargetType: "group", TargetID: "grp_1"}, group},
		{AuditEvent{Action: "key.create", TargetType: "key", TargetID: "key_1", GroupID: "grp_1"}, key},
		{AuditEvent{Action: "key.revoke", TargetType: "key", TargetID: "key_1", GroupID: "grp_1"}, revoke},
		{AuditEvent{Action: "limit.update", TargetType: "group", TargetID: "grp_1"}, limits(t)},
		{AuditEvent{Action: "group.update", TargetType: "group", TargetID: "grp_1"}, freeze},
		{AuditEvent{Action: "credit.top_up", TargetType: "transaction", TargetID: "txn_1", GroupID: "grp_1"}, topUp(t)},
		{AuditEvent{Action: "key.create", TargetType: "key", TargetID: "key_1"}, Request{}},
		{AuditEvent{Action: "group.update", TargetType: "group", TargetID: "a/../b"}, Request{}},
		{AuditEvent{Action: "something.new", TargetType: "group", TargetID: "grp_1"}, Request{}},
	} {
		if method, path := c.event.Asked(); method != c.want.Method || path != c.want.Path {
			t.Errorf("%+v follows from %s %s, want %s %s", c.event, method, path, c.want.Method, c.want.Path)
		}
	}
}

// A replay says which request it was first given to.
func TestAReplayNamesTheFirstRequest(t *testing.T) {
	c := upstream(t, answer(201, groupAnswer, [2]string{"Idempotent-Replayed", "true"}, [2]string{"Original-Request-ID", "req_0"}))
	if o := send(t, c, group); o.RequestID != "req_1" || o.OriginalID != "req_0" || !o.Replayed {
		t.Errorf("%+v", o)
	}
}

// Whole lists are read further than what is evidence, and not without end.
func TestWholeLists(t *testing.T) {
	requests := 0
	row := func(n int) string {
		return fmt.Sprintf(`{"id":"txn_%d","type":"top_up","group_id":"grp_1","amount":"1.00","currency":"USD","external_ref":"led_%d","status":"posted","created_at":"2026-05-14T00:00:00Z"}`, n, n)
	}
	most := 25
	c := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/transactions" || r.URL.Query().Get("group_id") != "grp_1" {
			t.Errorf("%s", r.URL)
		}
		var rows []string
		for i := range 100 {
			rows = append(rows, row(requests*100+i))
		}
		next := "null"
		if requests++; requests < most {
			next = fmt.Sprintf(`"c%d"`, requests)
		}
		answer(200, `{"data":[`+strings.Join(rows, ",")+`],"next_cursor":`+next+`}`)(w, r)
	})
	found, err := c.GroupTransactions(context.Background(), "grp_1")
	if err != nil || len(found.Items) != 2500 || found.Items[0].CreatedAt != time.Date(2026, 5, 14, 0, 0, 0, 0, time.UTC) {
		t.Errorf("%d transactions (%v)", len(found.Items), err)
	}
	requests, most = 0, 1000
	if _, err := c.GroupTransactions(context.Background(), "grp_1"); err == nil || !strings.HasSuffix(err.Error(), CodeTooMany) || requests != maxWhole/pageRows+1 {
		t.Errorf("%v after %d requests", err, requests)
	}
	c = upstream(t, answer(200, `{"data":[{"id":"key_1","group_id":"grp_1","purpose":"default","status":"revoked"},{"id":"key_2","group_id":"grp_2","purpose":"default","status":"active"}],"next_cursor":null}`))
	keys, err := c.GroupKeys(context.Background(), "grp_1")
	if err != nil || len(keys.Items) != 1 || keys.Items[0].Status != KeyRevoked || keys.Query != "/groups/grp_1/keys?limit=100" {
		t.Errorf("%+v (%v)", keys, err)
	}
}
