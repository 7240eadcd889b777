package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"jpintel/webhook"
)

const catalogueHead = `# Event catalogue

<!-- Made from the catalogue in webhook/catalogue.go. Do not edit: go test . -run TestDocsCatalogue -update -->

Everything that a subscription can ask for. The service answers the same at
` + "`GET /v1/event-types`" + `, with a JSON Schema (2020-12) of each type's ` + "`data`" + `.

New optional fields may be added to ` + "`data`" + `: ignore what you do not know.
Anything incompatible is a new type or a new envelope, never a silent change. A
type can be here before a version publishes it: the [changelog](../CHANGELOG.md)
says what does. How events are wrapped and sent is in the [delivery
contract](delivery-contract.md), how money is written in [money.md](money.md).

`

// TestDocsCatalogue makes docs/event-catalogue.md from the catalogue.
func TestDocsCatalogue(t *testing.T) {
	test, err := webhook.GetEventType(webhook.TypeTest)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString(catalogueHead + "| type | for | when |\n|---|---|---|\n")
	types := append(webhook.EventTypes(), test)
	for _, e := range types {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s | %s |\n", e.Type, strings.ReplaceAll(string(e.Type), ".", ""), catalogueScope[e.Scope], e.Description)
	}
	for _, e := range types {
		catalogueEntry(t, &b, e)
	}
	docsGenerated(t, "docs/event-catalogue.md", b.String())
}

var catalogueScope = map[webhook.Scope]string{
	webhook.ScopeAll:      "every customer",
	webhook.ScopeCustomer: "the one customer that it is about",
	webhook.ScopeNone:     "whoever calls `POST /v1/webhooks/test/{id}`",
}

func catalogueEntry(t *testing.T, b *strings.Builder, e webhook.EventType) {
	t.Helper()
	attributes := "none"
	if len(e.Attributes) > 0 {
		attributes = "`" + strings.Join(e.Attributes, "`, `") + "`"
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n", e.Type, e.Description)
	fmt.Fprintf(b, "- scope: `%s`: %s\n- subject: `%s`\n- filter attributes: %s\n- sensitivity: %s\n", e.Scope, catalogueScope[e.Scope], e.Subject, attributes, e.Sensitivity)
	if e.Crossing != "" {
		fmt.Fprintf(b, "- crossing rule: %s\n", e.Crossing)
	}
	fields := dataSchema(t, e.Type) // the document's, which is held against the catalogue's
	var plain func(*openapi3.SchemaRef) string
	plain = func(ref *openapi3.SchemaRef) string { return referenceType(ref, plain) }
	if len(fields.Required) == 0 {
		b.WriteString("\n`data` is `{}`.\n")
		return
	}
	b.WriteString("\n| field of `data` | type | what it is |\n|---|---|---|\n")
	for _, name := range fields.Required {
		field := fields.Properties[name]
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, plain(field), referenceCell(field.Value.Description))
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, e.Example, "", "  "); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(b, "\n```json\n%s\n```\n", indented.String())
}
