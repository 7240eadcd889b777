package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"jpintel/store"
)

// Filter narrows a subscription or a saved filter: attribute → values, any of
// which an event's subject must have; every attribute must match. It is
// evaluated against the subject's attributes, not the payload. An attribute
// that the subject does not have does not match.
type Filter map[string][]string

const (
	maxFilterValues = 100
	maxFilterValue  = 256 // bytes
)

// UnmarshalJSON takes a flat object of attribute to a string or a list of
// strings.
func (f *Filter) UnmarshalJSON(text []byte) error {
	values, err := parseValues("filter", text)
	*f = values
	return err
}

// parseValues reads an object of attribute to a string or a list of strings;
// null is none.
func parseValues(field string, text []byte) (map[string][]string, error) {
	if bytes.Equal(text, []byte("null")) {
		return nil, nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, store.Errorf(store.CodeInvalid, "%s: want an object of attribute to a string or a list of strings", field)
	}
	parsed := map[string][]string{}
	for attribute, value := range raw {
		var one string
		var many []string
		switch {
		case json.Unmarshal(value, &one) == nil && !bytes.Equal(value, []byte("null")):
			many = []string{one}
		case json.Unmarshal(value, &many) == nil && many != nil:
		default:
			return nil, store.Errorf(store.CodeInvalid, "%s.%s: want a string or a list of strings", field, attribute)
		}
		parsed[attribute] = many
	}
	return parsed, nil
}

// MarshalJSON writes a list of one as its string, as it is usually given.
func (f Filter) MarshalJSON() ([]byte, error) {
	out := map[string]any{}
	for attribute, values := range f {
		if out[attribute] = values; len(values) == 1 {
			out[attribute] = values[0]
		}
	}
	return marshal(out)
}

// validate checks the filter against what the given types can be filtered by,
// and sorts and folds the values.
func (f Filter) validate(types []Type) error {
	known := map[string]bool{}
	for _, t := range types {
		for _, a := range catalogue[t].Attributes {
			known[a] = true
		}
	}
	return checkValues("filter", f, known)
}

// checkValues checks attributes and their values against those that are known,
// and sorts and folds the values.
func checkValues(field string, given map[string][]string, known map[string]bool) error {
	for _, attribute := range slices.Sorted(maps.Keys(given)) {
		values := given[attribute]
		if !known[attribute] {
			return store.Errorf(store.CodeInvalid, "%s: unknown attribute %q; these types can be filtered by %s", field, attribute, listWords(slices.Sorted(maps.Keys(known))))
		}
		if len(values) == 0 || len(values) > maxFilterValues {
			return store.Errorf(store.CodeInvalid, "%s.%s: want 1 to %d values", field, attribute, maxFilterValues)
		}
		for _, v := range values {
			if v == "" || len(v) > maxFilterValue {
				return store.Errorf(store.CodeInvalid, "%s.%s: want values of 1 to %d bytes", field, attribute, maxFilterValue)
			}
		}
		slices.Sort(values)
		given[attribute] = slices.Compact(values)
	}
	return nil
}

// ValidateProgramFilter checks a saved filter: the attributes of programs.
func ValidateProgramFilter(f Filter) error {
	if len(f) == 0 {
		return store.Errorf(store.CodeInvalid, "filter: want at least one attribute")
	}
	return f.validate([]Type{TypeProgramCreated})
}

// Matches reports whether a subject with these attributes passes.
func (f Filter) Matches(a Attributes) bool {
	for attribute, any := range f {
		if !slices.ContainsFunc(a[attribute], func(v string) bool { return slices.Contains(any, v) }) {
			return false
		}
	}
	return true
}

func listWords(words []string) string {
	if len(words) == 0 {
		return "nothing"
	}
	text := words[0]
	for _, w := range words[1:] {
		text += ", " + w
	}
	return text
}

// marshal encodes as the wire wants it: UTF-8 as itself, no HTML escaping.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encoding JSON: %w", err)
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
