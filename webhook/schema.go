package webhook

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// field is one member of an event's data, always present.
type field struct {
	name        string
	schema      map[string]any
	description string
}

type fields []field

// The kinds of values in data.
var (
	text     = map[string]any{"type": "string", "minLength": 1}
	anyText  = map[string]any{"type": "string"}
	texts    = map[string]any{"type": "array", "items": map[string]any{"type": "string"}}
	count    = map[string]any{"type": "integer", "minimum": 0}
	currency = map[string]any{"type": "string", "pattern": "^[A-Z]{3}$"}
	// money is a decimal string: plain digits, no exponent (docs/money.md).
	money = map[string]any{"type": "string", "pattern": `^-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,12})?$`}
)

func oneOf(values ...string) map[string]any {
	return map[string]any{"type": "string", "enum": values}
}

// nullable allows null beside s.
func nullable(s map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range s {
		out[k] = v
	}
	out["type"] = []any{s["type"], "null"}
	if values, ok := s["enum"].([]string); ok {
		withNull := []any{nil}
		for _, v := range values {
			withNull = append(withNull, v)
		}
		out["enum"] = withNull
	}
	return out
}

// schema is the JSON Schema of data. Members that it does not know are
// allowed: new optional ones may be added.
func (fs fields) schema(t Type) json.RawMessage {
	properties, required := map[string]any{}, []string{}
	for _, f := range fs {
		described := map[string]any{"description": f.description}
		for k, v := range f.schema {
			described[k] = v
		}
		properties[f.name] = described
		required = append(required, f.name)
	}
	out, err := marshal(map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": string(t),
		"type": "object", "properties": properties, "required": required,
	})
	if err != nil {
		panic(err) // unreachable: maps of strings
	}
	return out
}

func compileSchema(name string, schema []byte) (*jsonschema.Schema, error) {
	var doc any
	if err := json.Unmarshal(schema, &doc); err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name+".json", doc); err != nil {
		return nil, err
	}
	return c.Compile(name + ".json")
}

// maxFault bounds what is said about a fault: it may repeat a value.
const maxFault = 300

// firstFault says, as "data.year: got string, want integer", what is wrong with
// data: the first fault in the order of the fields' names.
func firstFault(failed *jsonschema.ValidationError) string {
	var all []string
	var walk func(e *jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		for _, cause := range e.Causes {
			walk(cause)
		}
		if len(e.Causes) == 0 {
			all = append(all, fault(e))
		}
	}
	walk(failed)
	first := slices.Min(all)
	return strings.ToValidUTF8(first[:min(len(first), maxFault)], "")
}

func fault(e *jsonschema.ValidationError) string {
	place := strings.Join(append([]string{"data"}, e.InstanceLocation...), ".")
	if missing, ok := e.ErrorKind.(*kind.Required); ok {
		return place + "." + slices.Min(missing.Missing) + ": required"
	}
	_, words, _ := strings.Cut(e.Error(), "': ") // what stands before is the place, in another form
	return place + ": " + words
}
