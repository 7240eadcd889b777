package main

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"jpintel/webhook"
)

// TestOpenAPIIsValid also validates every example in the document.
func TestOpenAPIIsValid(t *testing.T) {
	doc := document(t)
	if doc.OpenAPIMajorMinor() != "3.1" {
		t.Errorf("openapi: %s, want 3.1", doc.OpenAPI)
	}
	if err := doc.Validate(context.Background(), openapi3.EnableExamplesValidation(), openapi3.EnableSchemaPatternValidation()); err != nil {
		t.Error(err)
	}
}

var pathParameter = regexp.MustCompile(`:(\w+)`)

// documented returns a route's path as the document writes it.
func (r route) documented() string { return pathParameter.ReplaceAllString(r.path, "{$1}") }

// TestOpenAPIHasEveryRoute finds a route without its document, and a document
// without its route.
func TestOpenAPIHasEveryRoute(t *testing.T) {
	served := map[string]route{}
	for _, r := range (&api{}).routes() {
		served[r.method+" "+r.documented()] = r
	}
	for path, item := range document(t).Paths.Map() {
		for method, op := range item.Operations() {
			r, ok := served[method+" "+path]
			if !ok {
				t.Errorf("the document has %s %s, the server has not", method, path)
				continue
			}
			delete(served, method+" "+path)
			checkOperation(t, r, op)
		}
	}
	for name := range served {
		t.Errorf("the server has %s, the document has not", name)
	}
}

// checkOperation holds who may call a route against what is written.
func checkOperation(t *testing.T, r route, op *openapi3.Operation) {
	security := "apiKey" // the document's default
	if op.Security != nil {
		security = ""
		for _, s := range *op.Security {
			security += strings.Join(slices.Collect(maps.Keys(s)), ",")
		}
	}
	want := map[access]string{open: "", customer: "apiKey", paid: "apiKey", hooks: "apiKey", admin: "admin"}[r.who]
	if security != want {
		t.Errorf("%s %s: security %q, want %q", r.method, r.path, security, want)
	}
	for status, wanted := range map[int]bool{401: r.who != open, 403: r.who == paid || r.who == hooks, 429: r.who != open, 500: true} {
		if (op.Responses.Status(status) != nil) != wanted {
			t.Errorf("%s %s: the answer %d is documented: %v, want %v", r.method, r.path, status, !wanted, wanted)
		}
	}
	if op.Summary == "" || op.OperationID == "" {
		t.Errorf("%s %s has no summary or no operationId", r.method, r.path)
	}
}

// dataSchema returns the schema of an event type's data: the one with its name
// as the title.
func dataSchema(t *testing.T, eventType webhook.Type) *openapi3.Schema {
	t.Helper()
	for _, ref := range document(t).Components.Schemas {
		if ref.Value.Title == string(eventType) {
			return ref.Value
		}
	}
	t.Fatalf("the document has no schema for the data of %s", eventType)
	return nil
}

// TestOpenAPIHasTheCatalogue holds the document's event types against those
// that the program publishes: their names, data, subjects, examples.
func TestOpenAPIHasTheCatalogue(t *testing.T) {
	var names []string
	for _, e := range webhook.EventTypes() {
		names = append(names, string(e.Type))
		t.Run(string(e.Type), func(t *testing.T) { checkEventType(t, e) })
	}
	var listed []string
	for _, name := range document(t).Components.Schemas["EventTypeName"].Value.Enum {
		listed = append(listed, name.(string))
	}
	if !slices.Equal(listed, names) {
		t.Errorf("EventTypeName: %v, want %v", listed, names)
	}
	names = append(names, string(webhook.TypeTest)) // sent, and in no catalogue
	if sent := slices.Sorted(maps.Keys(document(t).Webhooks)); !slices.Equal(sent, slices.Sorted(slices.Values(names))) {
		t.Errorf("webhooks: %v, want %v", sent, names)
	}
}

func checkEventType(t *testing.T, e webhook.EventType) {
	schema := dataSchema(t, e.Type)
	written, err := schema.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	got, want := decode[map[string]any](t, testAnswer{body: string(written)}), decode[map[string]any](t, testAnswer{body: string(e.Schema)})
	delete(want, "$schema") // the document is in that dialect as a whole
	if !reflect.DeepEqual(got, want) {
		t.Errorf("schema of data:\n %s\nwant\n %s", written, e.Schema)
	}

	sent := document(t).Webhooks[string(e.Type)]
	if sent == nil {
		t.Fatal("it is not among the webhooks")
	}
	body := sent.Post.RequestBody.Value.Content["application/json"].Schema
	for name, text := range map[string]string{
		"v1": `{"version":"v1","event_id":"evt_01HX9Z2K7V3B4C5D6E7F8G9H0J","event_type":"TYPE","created_at":"2026-05-14T09:00:00+09:00","subscription_id":"sub_01HX9Z2K7V3B4C5D6E7F8G9H0K","data":DATA}`,
		"v2": `{"version":"v2","event_id":"evt_01HX9Z2K7V3B4C5D6E7F8G9H0J","type":"TYPE","occurred_at":"2026-05-14T00:00:00Z","partner_id":null,"subject":{"type":"SUBJECT","id":"x"},"schema_version":"1","correlation_id":null,"subscription_id":"sub_01HX9Z2K7V3B4C5D6E7F8G9H0K","data":DATA}`,
	} {
		check := func(eventType webhook.Type, data string) error {
			return document(t).check(body, strings.NewReplacer("TYPE", string(eventType), "SUBJECT", e.Subject, "DATA", data).Replace(text))
		}
		if err := check(e.Type, string(e.Example)); err != nil {
			t.Errorf("envelope %s with the catalogue's example: %v", name, err)
		}
		if check(e.Type, `{}`) == nil {
			t.Errorf("envelope %s takes data without its fields", name)
		}
		if check("no.such", string(e.Example)) == nil {
			t.Errorf("envelope %s takes another event type", name)
		}
	}
}

// TestOpenAPIRequiresEveryField: what an answer always has is required, so that
// its absence is found. Closed schemas are requests'.
func TestOpenAPIRequiresEveryField(t *testing.T) {
	optional := map[string][]string{ // left out of answers where there is nothing to say
		"Account":   {"email"},
		"Customer":  {"beta", "daily_limit", "email", "opted_out_at"},
		"EventType": {"crossing_rule"},
	}
	for name, ref := range document(t).Components.Schemas {
		schema := ref.Value
		if closed := schema.AdditionalProperties.Has; closed != nil && !*closed || name == "Program" { // Program is an open request
			continue
		}
		var missing []string
		for field := range schema.Properties {
			if !slices.Contains(schema.Required, field) {
				missing = append(missing, field)
			}
		}
		if slices.Sort(missing); !slices.Equal(missing, optional[name]) {
			t.Errorf("%s: not required: %v, want %v", name, missing, optional[name])
		}
	}
}

// TestOpenAPIFindsWhatIsMissing makes sure that holding an answer against the
// document means something: without any of its fields, or with null in the place
// of one that is never null, it is not as the document says.
func TestOpenAPIFindsWhatIsMissing(t *testing.T) {
	const text = `{"subscription_id":"sub_01HX9Z2K7V3B4C5D6E7F8G9H0K","url":"https://hooks.example.com/","events":["program.created"],"filter":{"prefecture":"東京都"},
		"envelope":"v1","description":"","state":"active","disabled_at":null,"disabled_reason":null,"failures_streak":0,"failing_since":null,"last_delivery_at":null,"last_success_at":null,
		"last_status":null,"success_rate_hour":null,"created_at":"2026-05-14T09:00:00+09:00"}`
	req := httptest.NewRequest("GET", "/v1/webhooks/subscriptions", nil)
	valid := func(object map[string]any) bool {
		page, err := json.Marshal(map[string]any{"data": []any{object}, "next_cursor": nil})
		if err != nil {
			t.Fatal(err)
		}
		return checkAnswer(req, testAnswer{200, http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"x"}}, string(page)}) == nil
	}
	whole := decode[map[string]any](t, testAnswer{body: text})
	if !valid(whole) {
		t.Fatal("the whole object does not pass")
	}
	for name, value := range whole {
		without := maps.Clone(whole)
		delete(without, name)
		if valid(without) {
			t.Errorf("it passes without %s", name)
		}
		if without[name] = nil; value != nil && valid(without) {
			t.Errorf("it passes with %s null", name)
		}
	}
	whole["new_field"] = 1
	if valid(whole) {
		t.Error("it passes with a field that is not documented")
	}
}
