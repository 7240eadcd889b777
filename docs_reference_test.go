package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

const referenceHead = `# API reference

<!-- Made from docs/openapi.yaml and the server's routes. Do not edit: go test . -run TestDocsReference -update -->

Every call, in words and with curl. The same for programs is
[openapi.yaml](openapi.yaml). The event types are in the [event
catalogue](event-catalogue.md), what deliveries promise in the [delivery
contract](delivery-contract.md), how to build a receiver in the [integration
guide](integration-guide.md).

In the examples ` + "`$BASE` is the host that you were given, `$KEY` your API key and\n`$TOKEN` the operator's token." + `
`

// webhookTags are the document's tags of what belongs to webhooks.
var webhookTags = []string{"Subscriptions", "Deliveries", "Events"}

// reference makes docs/api-reference.md.
type reference struct {
	strings.Builder
	doc     *apiDocument
	objects map[string]bool // the names that were linked to
	routes  []route
}

// TestDocsReference makes docs/api-reference.md from the document, in the order
// of the routes.
func TestDocsReference(t *testing.T) {
	r := &reference{doc: document(t), objects: map[string]bool{}, routes: (&api{}).routes()}
	r.WriteString(referenceHead)
	_, after, _ := strings.Cut(r.doc.Info.Description, "## Conventions")
	r.WriteString("\n## Conventions\n\n" + strings.TrimSpace(after) + "\n")
	fmt.Fprintf(r, "\n## Webhooks\n\n%s", r.doc.Tags.Get("Webhooks").Description)
	for _, tag := range r.doc.Tags {
		r.tag(t, tag)
	}
	r.allObjects()
	docsGenerated(t, "docs/api-reference.md", r.String())
}

// The reference has every route and no other, also where what makes it goes
// wrong.
func TestDocsReferenceHasEveryRoute(t *testing.T) {
	var written, served []string
	for _, heading := range regexp.MustCompile("(?m)^### `([A-Z]+ /\\S*)`$").FindAllStringSubmatch(docsFiles(t)["docs/api-reference.md"], -1) {
		written = append(written, heading[1])
	}
	for _, route := range (&api{}).routes() {
		served = append(served, route.method+" "+route.documented())
	}
	slices.Sort(written)
	if slices.Sort(served); !slices.Equal(written, served) {
		t.Errorf("docs/api-reference.md has\n%s\nthe server has\n%s", strings.Join(written, "\n"), strings.Join(served, "\n"))
	}
}

// tag writes the calls of one tag of the document.
func (r *reference) tag(t *testing.T, tag *openapi3.Tag) {
	began := false
	for _, route := range r.routes {
		op := r.doc.Paths.Value(route.documented()).GetOperation(route.method)
		if op.Tags[0] != tag.Name {
			continue
		}
		if !began && slices.Contains(webhookTags, tag.Name) {
			fmt.Fprintf(r, "\n**%s.** %s\n", tag.Name, tag.Description)
		} else if !began {
			fmt.Fprintf(r, "\n## %s\n\n%s\n", tag.Name, tag.Description)
		}
		began = true
		r.call(t, route, op)
	}
}

var referenceCallers = map[access]string{
	open:     "anybody",
	customer: "customers (`X-API-Key`)",
	paid:     "paid customers (`X-API-Key`)",
	admin:    "the operator (`Authorization: Bearer <token>`)",
}

func (r *reference) call(t *testing.T, route route, op *openapi3.Operation) {
	fmt.Fprintf(r, "\n### `%s %s`\n\n**%s.** For %s.\n", route.method, route.documented(), strings.TrimRight(op.Summary, ".?"), referenceCallers[route.who])
	if op.Description != "" {
		fmt.Fprintf(r, "\n%s\n", strings.TrimRight(op.Description, "\n"))
	}
	r.parameters(op)
	if op.RequestBody != nil {
		for _, media := range []string{"application/json", "application/x-ndjson"} {
			if content := op.RequestBody.Value.Content[media]; content != nil {
				r.body(media, content)
			}
		}
	}
	r.answers(op)
	fmt.Fprintf(r, "\n```sh\n%s\n```\n", referenceCurl(t, route, op))
}

func (r *reference) parameters(op *openapi3.Operation) {
	if len(op.Parameters) == 0 {
		return
	}
	r.WriteString("\n| parameter | in | type | what it is |\n|---|---|---|---|\n")
	for _, p := range op.Parameters {
		fmt.Fprintf(r, "| `%s` | %s | %s | %s |\n", p.Value.Name, p.Value.In, r.kind(p.Value.Schema), referenceCell(p.Value.Description))
	}
}

func (r *reference) body(media string, content *openapi3.MediaType) {
	if len(content.Schema.Value.Properties) == 0 {
		fmt.Fprintf(r, "\nBody: `%s`, %s\n", media, referenceCell(content.Schema.Value.Description))
		return
	}
	if d := content.Schema.Value.Description; d != "" {
		fmt.Fprintf(r, "\n%s\n", strings.TrimRight(d, "\n"))
	}
	r.fields("field of the body", content.Schema.Value)
}

// fields writes the members of an object.
func (r *reference) fields(head string, schema *openapi3.Schema) {
	fmt.Fprintf(r, "\n| %s | type | what it is |\n|---|---|---|\n", head)
	r.members("", schema)
	for _, part := range schema.AllOf {
		r.members("", part.Value)
	}
}

// members writes the rows of an object's members, and below each that is an
// object without a name those of its own.
func (r *reference) members(prefix string, schema *openapi3.Schema) {
	for _, name := range referenceOrder(schema) {
		field := schema.Properties[name]
		text := field.Value.Description
		if named := r.named(field); named != nil && named.Description == text {
			text = "" // it is told there
		}
		if !slices.Contains(schema.Required, name) {
			text = "Optional. " + text
		}
		fmt.Fprintf(r, "| `%s` | %s | %s |\n", prefix+name, r.kind(field), referenceCell(text))
		if below := field.Value; r.named(field) == nil {
			r.members(prefix+name+".", below)
			if below.Items != nil && r.named(below.Items) == nil {
				r.members(prefix+name+"[].", below.Items.Value)
			}
		}
	}
}

// answers writes what a call answers: the good ones with what is in them, and
// the errors.
func (r *reference) answers(op *openapi3.Operation) {
	r.WriteString("\n| answer | |\n|---|---|\n")
	for _, status := range slices.Sorted(maps.Keys(op.Responses.Map())) {
		response := op.Responses.Value(status).Value
		text := referenceCell(*response.Description)
		if content := response.Content["application/json"]; content != nil && status < "300" {
			text += " " + r.kind(content.Schema)
		}
		fmt.Fprintf(r, "| `%s` | %s |\n", status, text)
	}
}

// kind says in a table what a value looks like. What has a name is linked, and
// told at the end.
func (r *reference) kind(ref *openapi3.SchemaRef) string {
	if r.named(ref) != nil {
		name := referenceName(ref)
		r.objects[name] = true
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	}
	return referenceType(ref, r.kind)
}

// named returns what the document has under a reference's name; nil: it has none.
func (r *reference) named(ref *openapi3.SchemaRef) *openapi3.Schema {
	if found := r.doc.Components.Schemas[referenceName(ref)]; found != nil {
		return found.Value
	}
	return nil
}

// allObjects writes all that was linked to, and what that links to.
func (r *reference) allObjects() {
	texts := map[string]string{}
	for before := -1; before < len(texts); {
		before = len(texts)
		for _, name := range slices.Collect(maps.Keys(r.objects)) {
			one := &reference{doc: r.doc, objects: r.objects}
			one.object(name, r.doc.Components.Schemas[name].Value)
			texts[name] = one.String()
		}
	}
	r.WriteString("\n## Objects\n\nWhat the calls take and answer, by name.\n")
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		r.WriteString(texts[name])
	}
}

func (r *reference) object(name string, schema *openapi3.Schema) {
	fmt.Fprintf(r, "\n### %s\n", name)
	if schema.Description != "" {
		fmt.Fprintf(r, "\n%s\n", strings.TrimRight(schema.Description, "\n"))
	}
	if len(schema.Properties) > 0 || len(schema.AllOf) > 0 {
		r.fields("field", schema)
		return
	}
	fmt.Fprintf(r, "\nType: %s.\n", referenceType(&openapi3.SchemaRef{Value: schema}, r.kind))
}

// referenceName is the name under which the document has a schema, or "".
func referenceName(ref *openapi3.SchemaRef) string {
	name, _ := strings.CutPrefix(ref.Ref, "#/components/schemas/")
	return name
}

// referenceOrder is the order in which an object's members are told: those that
// are always there as the document has them, then the others.
func referenceOrder(schema *openapi3.Schema) []string {
	names := slices.Clone(schema.Required)
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// referenceType says in a table what a value without a name looks like; kind does
// so for what is below it.
func referenceType(ref *openapi3.SchemaRef, kind func(*openapi3.SchemaRef) string) string {
	s := ref.Value
	if len(s.OneOf) > 0 {
		var parts []string
		for _, part := range s.OneOf {
			parts = append(parts, kind(part))
		}
		return strings.Join(parts, " or ")
	}
	if s.Const != nil {
		return fmt.Sprintf("`%v`", s.Const)
	}
	kinds := strings.Join(s.Type.Slice(), " or ")
	if s.Items != nil {
		kinds = strings.Replace(kinds, "array", "list of "+kind(s.Items), 1)
	}
	if s.Format != "" {
		kinds += " (" + s.Format + ")"
	}
	if s.Min != nil && s.Max != nil {
		kinds += fmt.Sprintf(", %v to %v", *s.Min, *s.Max)
	}
	if s.Default != nil {
		kinds += fmt.Sprintf(", default `%v`", s.Default)
	}
	if s.Pattern != "" && len(s.Enum) == 0 {
		kinds += ", `" + strings.ReplaceAll(s.Pattern, "|", `\|`) + "`"
	}
	var values []string
	for _, value := range s.Enum {
		if text, ok := value.(string); ok {
			values = append(values, fmt.Sprintf("`%q`", text))
		}
	}
	if len(values) > 0 {
		kinds += ": " + strings.Join(values, ", ")
	}
	return kinds
}

// referenceCell writes a text into a cell of a table.
func referenceCell(text string) string {
	text = strings.ReplaceAll(strings.TrimSpace(text), "|", `\|`)
	text = strings.ReplaceAll(text, "\n- ", "<br>")
	return strings.Join(strings.Fields(text), " ")
}

// referenceCurl is a call as one types it.
func referenceCurl(t *testing.T, route route, op *openapi3.Operation) string {
	line := "curl"
	if route.method != "GET" {
		line += " -X " + route.method
	}
	switch route.who {
	case customer, paid:
		line += ` -H "X-API-Key: $KEY"`
	case admin:
		line += ` -H "Authorization: Bearer $TOKEN"`
	}
	path, query := route.documented(), ""
	for _, p := range op.Parameters {
		if p.Value.In == "header" && p.Value.Required {
			line += fmt.Sprintf(` -H "%s: $%s"`, p.Value.Name, strings.ToUpper(strings.ReplaceAll(p.Value.Name, "-", "_")))
		}
		if p.Value.In == "path" {
			path = strings.ReplaceAll(path, "{"+p.Value.Name+"}", referenceValue(p.Value))
		}
		if p.Value.In == "query" && p.Value.Required {
			query = "?" + p.Value.Name + "=" + referenceValue(p.Value)
		}
	}
	if op.RequestBody != nil {
		line += referenceData(t, op)
	}
	return line + ` "$BASE` + path + query + `"`
}

// referenceValue stands for a parameter of the path or the query.
func referenceValue(p *openapi3.Parameter) string {
	if text, ok := p.Example.(string); ok {
		return text
	}
	return "$" + strings.ToUpper(p.Name)
}

func referenceData(t *testing.T, op *openapi3.Operation) string {
	content := op.RequestBody.Value.Content
	if content["application/x-ndjson"] != nil {
		return " -H 'Content-Type: application/x-ndjson' --data-binary @programs.ndjson"
	}
	media := content["application/json"]
	value := media.Example
	if value == nil {
		value = media.Schema.Value.Example
	}
	if value == nil {
		for _, name := range slices.Sorted(maps.Keys(media.Examples)) {
			value = media.Examples[name].Value.Value
			break
		}
	}
	members, ok := value.(map[string]any)
	if !ok {
		t.Fatalf("%s: its body needs an example in docs/openapi.yaml", op.OperationID)
	}
	var parts []string
	for _, name := range referenceOrder(media.Schema.Value) {
		if member, ok := members[name]; ok {
			parts = append(parts, referenceJSON(t, name)+":"+referenceJSON(t, member))
		}
	}
	text := "{" + strings.Join(parts, ",") + "}"
	if len(parts) != len(members) || strings.Contains(text, "'") {
		t.Fatalf("the example %s cannot be written", text)
	}
	return " -H 'Content-Type: application/json' \\\n  -d '" + text + "' \\\n "
}

func referenceJSON(t *testing.T, value any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(b.String())
}
