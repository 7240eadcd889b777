package webhook

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

const programData = `{"unified_id":"UNI-7f3c21","primary_name":"省エネ <&> 補助金"}`

func TestRender(t *testing.T) {
	plain := storedEvent{
		id: "evt_1", typ: TypeProgramCreated, subjectType: "program", subjectID: "UNI-7f3c21", occurredAtMS: 946684801234,
		createdAt: "2000-01-01T09:00:01+09:00", schemaVersion: "1", data: []byte(programData),
	}
	full := plain
	full.customer, full.correlationID = "cus_a", "op_1"
	strange := plain
	strange.subjectID, strange.data = "a\"b\\c\n\x00\x7f奈良<&>\u2028\xff", []byte(` { "b":1.0, "a" : 1e3 } `)
	for _, c := range []struct {
		name     string
		event    storedEvent
		envelope Envelope
		want     string
	}{
		{"v1", plain, EnvelopeV1, `{"version":"v1","event_id":"evt_1","event_type":"program.created","created_at":"2000-01-01T09:00:01+09:00","subscription_id":"sub_1","data":` + programData + `}`},
		{"v1 knows no customer", full, EnvelopeV1, `{"version":"v1","event_id":"evt_1","event_type":"program.created","created_at":"2000-01-01T09:00:01+09:00","subscription_id":"sub_1","data":` + programData + `}`},
		{"v2", full, EnvelopeV2, `{"version":"v2","event_id":"evt_1","type":"program.created","occurred_at":"2000-01-01T00:00:01Z","partner_id":"cus_a",` +
			`"subject":{"type":"program","id":"UNI-7f3c21"},"schema_version":"1","correlation_id":"op_1","subscription_id":"sub_1","data":` + programData + `}`},
		{"v2 with nulls", plain, EnvelopeV2, `{"version":"v2","event_id":"evt_1","type":"program.created","occurred_at":"2000-01-01T00:00:01Z","partner_id":null,` +
			`"subject":{"type":"program","id":"UNI-7f3c21"},"schema_version":"1","correlation_id":null,"subscription_id":"sub_1","data":` + programData + `}`},
		{"strange characters", strange, EnvelopeV2, `{"version":"v2","event_id":"evt_1","type":"program.created","occurred_at":"2000-01-01T00:00:01Z","partner_id":null,` +
			`"subject":{"type":"program","id":"a\"b\\c\n\u0000` + "\x7f" + `奈良<&>\u2028\ufffd"},"schema_version":"1","correlation_id":null,"subscription_id":"sub_1","data": { "b":1.0, "a" : 1e3 } }`},
	} {
		if got := c.event.render(c.envelope, "sub_1"); string(got) != c.want {
			t.Errorf("%s: got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// Whatever an event holds, its body is valid JSON, the same each time, and
// ends with the data as it is stored.
func TestRenderAlways(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
	data := rapid.SampledFrom([]string{`{}`, programData, `{ "a" : [1.0, 1e3, "\u0061"] }`, "{\n\t\"<&>\": null}"})
	rapid.Check(t, func(t *rapid.T) {
		e := storedEvent{
			id: text.Draw(t, "id"), typ: TypeProgramCreated, customer: text.Draw(t, "customer"), subjectType: "program",
			subjectID: text.Draw(t, "subject"), occurredAtMS: rapid.Int64Range(0, 4e12).Draw(t, "ms"), createdAt: "2000-01-01T09:00:01+09:00",
			schemaVersion: "1", correlationID: text.Draw(t, "correlation"), data: []byte(data.Draw(t, "data")),
		}
		for _, envelope := range []Envelope{EnvelopeV1, EnvelopeV2} {
			body := e.render(envelope, "sub_1")
			if !json.Valid(body) || !utf8.Valid(body) {
				t.Fatalf("%s: not JSON in UTF-8: %q", envelope, body)
			}
			if !bytes.HasSuffix(body, append([]byte(`"subscription_id":"sub_1","data":`), append(e.data, '}')...)) {
				t.Fatalf("%s: the data is not as it was: %q", envelope, body)
			}
			if again := e.render(envelope, "sub_1"); !bytes.Equal(body, again) {
				t.Fatalf("%s: rendered again: %q\nthan before: %q", envelope, again, body)
			}
		}
		var v2 struct {
			EventID       string  `json:"event_id"`
			PartnerID     *string `json:"partner_id"`
			Subject       Subject `json:"subject"`
			CorrelationID *string `json:"correlation_id"`
		}
		if err := json.Unmarshal(e.render(EnvelopeV2, "sub_1"), &v2); err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct{ got, want string }{
			"event_id": {v2.EventID, e.id}, "subject.id": {v2.Subject.ID, e.subjectID},
			"partner_id": {orEmpty(v2.PartnerID), e.customer}, "correlation_id": {orEmpty(v2.CorrelationID), e.correlationID},
		} {
			if want := string([]rune(c.want)); c.got != want { // each invalid byte becomes U+FFFD
				t.Fatalf("%s: read %q, want %q", name, c.got, want)
			}
		}
	})
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
