package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"jpintel/webhook"
)

const eventsPath = "/v1/admin/events"

// publish publishes an event of another system under a key, and returns its id.
func (s *testServer) publish(key string, body any) string {
	s.t.Helper()
	return decode[webhook.PublishAnswer](s.t, s.admin.once(key).call("POST", eventsPath, body, 202)).EventID
}

const finalized = `"type":"usage.finalized","data":{"customer_id":"cus_a","usage_record_id":"usage_9182","period_start":"2026-10-15T00:00:00Z",
	"period_end":"2026-10-16T00:00:00Z","currency":"USD","final_cost":"1.274800"}`

// What is published arrives as it was written, in either envelope, at the one
// customer that it is for.
func TestPublishEvent(t *testing.T) {
	s := newServer(t)
	cus, other := s.customer("cus_a", "paid"), s.customer("cus_b", "paid")
	v1, v2, others := newReceiver(t, nil), newReceiver(t, nil), newReceiver(t, nil)
	types := []webhook.Type{"usage.finalized", "program.updated"}
	cus.subscribe(v1, types...)
	cus.subscribeWith(map[string]any{"url": v2.url, "events": types, "envelope": "v2"})
	other.subscribe(others, types...)

	id := s.publish("k1", `{"type":"usage.finalized","customer_id":"cus_a","subject":{"type":"usage_record","id":"usage_9182/1"},
		"occurred_at":"2026-10-16T09:00:04.5+09:00","correlation_id":"op_1","attributes":{},
		"data": { "usage_record_id" : "usage_9182", "customer_id":"cus_a", "period_start":"x", "period_end":"\u5186<&>円",
			"currency":"USD", "final_cost":"1.274800", "later":{"b":1.0,"a":[ null ]} }}`)
	const data = `{"usage_record_id":"usage_9182","customer_id":"cus_a","period_start":"x","period_end":"\u5186<&>円","currency":"USD","final_cost":"1.274800","later":{"b":1.0,"a":[null]}}`
	if got := v1.wait(1)[0].body; !strings.Contains(got, `"event_id":"`+id+`","event_type":"usage.finalized",`) || !strings.HasSuffix(got, `,"data":`+data+`}`) {
		t.Errorf("v1: %s", got)
	}
	head := `{"version":"v2","event_id":"` + id + `","type":"usage.finalized","occurred_at":"2026-10-16T00:00:04Z","partner_id":"cus_a",` +
		`"subject":{"type":"usage_record","id":"usage_9182/1"},"schema_version":"1","correlation_id":"op_1","subscription_id":`
	if got := v2.wait(1)[0].body; !strings.HasPrefix(got, head) || !strings.HasSuffix(got, `,"data":`+data+`}`) {
		t.Errorf("v2: %s", got)
	}

	all := s.publish("k2", `{"type":"program.updated","customer_id":null,"subject":null,"occurred_at":null,"correlation_id":null,"attributes":null,
		"data":{"unified_id":"UNI-1","changed_fields":[],"previous_checksum":"a","current_checksum":"b"}}`)
	if got := others.wait(1); len(got) != 1 || got[0].header.Get("webhook-id") != all {
		t.Errorf("the other customer got %v", got)
	}
	if got := eventIDs(other.feed()); len(got) != 1 || got[0] != all {
		t.Errorf("the other customer's feed: %v", got)
	}
	if got := eventIDs(cus.feed()); len(got) != 2 || got[0] != id || got[1] != all {
		t.Errorf("the feed: %v", got)
	}
	if e := cus.feed()[1]; e.Subject != (webhook.Subject{Type: "program", ID: "UNI-1"}) || e.CorrelationID != nil {
		t.Errorf("by default: %+v", e)
	}
}

func TestPublishEventOnce(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	id := s.publish("k", `{"customer_id":"cus_a",`+finalized+`}`)
	if again := s.publish("k", `{`+strings.ReplaceAll(finalized, `":`, "\" :\n")+`,"customer_id":"cus_a"}`); again != id {
		t.Errorf("again: %s, want %s", again, id)
	}
	s.admin.once("k").refused("POST", eventsPath, `{"customer_id":"cus_a","correlation_id":"x",`+finalized+`}`, 409, "Idempotency-Key: used before, for another request")
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			if a, err := s.admin.once("l").send("POST", eventsPath, `{"customer_id":"cus_a",`+finalized+`}`); err != nil || a.status != 202 {
				t.Errorf("%d %s: %v", a.status, a.body, err)
			}
		})
	}
	group.Wait()
	if got := cus.feed(); len(got) != 2 {
		t.Errorf("%d events, want 2", len(got))
	}
}

func TestPublishEventRefusals(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	s.customer("cus_b", "paid")
	const updated = `"type":"program.updated","data":{"unified_id":"UNI-1","changed_fields":[],"previous_checksum":"a","current_checksum":"b"}`
	s.admin.refused("POST", eventsPath, `{`+updated+`}`, 400, "Idempotency-Key: required")
	for i, c := range []struct {
		body   string
		status int
		detail string
	}{
		{`{}`, 400, "type: required"},
		{`{"type":"program.deleted","data":{}}`, 400, `type: unknown event type "program.deleted"; GET /v1/event-types lists them`},
		{`{"type":"webhook.test","data":{}}`, 400, `type: unknown event type "webhook.test"; GET /v1/event-types lists them`},
		{`{"type":"program.updated"}`, 400, "data: required"},
		{`{"type":"program.updated","data":null}`, 400, "data: want an object"},
		{`{"type":"program.updated","data":[]}`, 400, "data: want an object"},
		{`{"type":"program.updated","data":{}}`, 400, "data.changed_fields: required"},
		{`{"type":"program.updated","data":{"unified_id":1,"changed_fields":[],"previous_checksum":"a","current_checksum":"b"}}`, 400, "data.unified_id: got number, want string"},
		{`{"type":"program.updated","data":{"unified_id":"a","unified_id":"b","changed_fields":[],"previous_checksum":"a","current_checksum":"b"}}`, 400, "data.unified_id: there twice"},
		{`{"type":"program.updated","data":{"unified_id":"` + "\xff" + `","changed_fields":[],"previous_checksum":"a","current_checksum":"b"}}`, 400, "data: not valid UTF-8"},
		{`{"type":"program.updated","data":{"customer_id":"cus_a","unified_id":"a","changed_fields":[],"previous_checksum":"a","current_checksum":"b"}}`, 400, "data.customer_id: the data of program.updated names no customer"},
		{`{"customer_id":"cus_a",` + updated + `}`, 400, "customer_id: program.updated goes to every customer; leave it out"},
		{`{` + finalized + `}`, 400, "customer_id: required, since usage.finalized goes to one customer"},
		{`{"customer_id":"cus_b",` + finalized + `}`, 400, "data.customer_id: want that of customer_id"},
		{strings.ReplaceAll(`{"customer_id":"cus_c",`+finalized+`}`, "cus_a", "cus_c"), 404, "customer cus_c not found"},
		{`{"subject":{"type":"customer"},` + updated + `}`, 400, "subject.type: the subject of program.updated is a program"},
		{`{"subject":{"type":"program","id":1},` + updated + `}`, 400, "subject: want an object with type and id, both strings"},
		{`{"subject":{"kind":"program"},` + updated + `}`, 400, "subject: want an object with type and id, both strings"},
		{`{"subject":{"id":"` + strings.Repeat("x", 257) + `"},` + updated + `}`, 400, "subject.id: want at most 256 bytes without control characters"},
		{`{"correlation_id":"a\nb",` + updated + `}`, 400, "correlation_id: want at most 256 bytes without control characters"},
		{`{"correlation_id":1,` + updated + `}`, 400, "correlation_id: want a string"},
		{`{"occurred_at":"9999-01-01T00:00:00Z",` + updated + `}`, 400, "occurred_at: more than 5m in the future"},
		{`{"occurred_at":1700000000,` + updated + `}`, 400, "occurred_at: want a string"},
		{`{"attributes":{"city":"奈良市"},` + updated + `}`, 400, `attributes: unknown attribute "city"; these types can be filtered by authority_level, prefecture, target_type, unified_id`},
		{`{"attributes":{"prefecture":[]},` + updated + `}`, 400, "attributes.prefecture: want 1 to 100 values"},
		{`{"attributes":[],` + updated + `}`, 400, "attributes: want an object of attribute to a string or a list of strings"},
		{`{"event_id":"evt_1",` + updated + `}`, 400, "event_id: unknown field"},
	} {
		s.admin.once(fmt.Sprint("k", i)).refused("POST", eventsPath, c.body, c.status, c.detail)
	}
	if got := cus.feed(); len(got) != 0 {
		t.Errorf("published all the same: %+v", got)
	}
}

// 64 KiB of data fit, however they are spaced.
func TestPublishEventSize(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	const head, tail = `{"unified_id":"UNI-1","changed_fields":[],"previous_checksum":"a","current_checksum":"b","more":"`, `"}`
	body := func(size int, space string) string {
		return `{"type":"program.updated",` + space + `"data":` + strings.Replace(head, ":", ":"+space, 1) + strings.Repeat("x", size-len(head+tail)) + tail + `}`
	}
	s.publish("k1", body(64<<10, strings.Repeat(" ", 20<<10)))
	s.admin.once("k2").refused("POST", eventsPath, body(64<<10+1, ""), 413, "data: 65537 bytes, at most 65536")
	s.admin.once("k3").refused("POST", eventsPath, body(64<<10, strings.Repeat(" ", 40<<10)), 413, "the body has more than 131072 bytes")
	if got := cus.feed(); len(got) != 1 || len(got[0].Data) != 64<<10 {
		t.Errorf("%d events", len(got))
	}
}

func TestPublishEventFilter(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	hook := newReceiver(t, nil)
	cus.subscribeWith(map[string]any{"url": hook.url, "events": []string{"program.updated"}, "filter": map[string]string{"prefecture": "奈良県"}})
	event := func(id, attributes string) string {
		return `{"type":"program.updated","attributes":` + attributes + `,"data":{"unified_id":"` + id + `","changed_fields":["x"],"previous_checksum":"a","current_checksum":"b"}}`
	}
	s.publish("k1", event("UNI-1", `null`))
	s.publish("k2", event("UNI-2", `{"prefecture":"大阪府"}`))
	want := s.publish("k3", event("UNI-3", `{"prefecture":["大阪府","奈良県"]}`))
	if got := hook.wait(1); got[0].header.Get("webhook-id") != want {
		t.Errorf("got %s", got[0].body)
	}
}
