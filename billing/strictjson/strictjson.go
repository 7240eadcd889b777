// Package strictjson reads JSON that leaves no doubt about what it says: money
// hangs on it.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDepth is how deep an object may be nested.
const maxDepth = 32

// Object is a JSON object as it was sent: no name twice, none that differs from
// another in case alone (encoding/json would let "Amount" override "amount"),
// and numbers as their text, json.Number. What is in it is a string, a json.Number, a
// bool, nil, []any or an Object.
type Object map[string]any

// Parse reads one object and nothing after it. free are names of members, at any
// depth, whose objects have names that strangers choose: there, names may differ
// in case alone. Errors never quote what was sent.
func Parse(body []byte, free ...string) (Object, error) {
	if !utf8.Valid(body) {
		return nil, errors.New("not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	p := parser{dec, free}
	value, err := p.value(0, false)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("something follows the JSON value")
	}
	o, ok := value.(Object)
	if !ok {
		return nil, errors.New("not a JSON object")
	}
	return o, nil
}

type parser struct {
	*json.Decoder
	free []string
}

// value reads a value; open says that names in it may differ in case alone.
func (p parser) value(depth int, open bool) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("nested too deep")
	}
	token, err := p.Token()
	if err != nil {
		return nil, errors.New("not JSON, or cut off") // its own words may quote what was sent
	}
	switch token {
	case json.Delim('{'):
		return p.members(depth, open)
	case json.Delim('['):
		return p.elements(depth, open)
	}
	return token, nil
}

func (p parser) members(depth int, open bool) (any, error) {
	o, seen := Object{}, map[string]bool{}
	for p.More() {
		token, err := p.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return nil, errors.New("not JSON, or cut off")
		}
		spelling := name
		if !open {
			spelling = fold(name)
		}
		if seen[spelling] {
			return nil, errors.New("a name is there twice, or in two spellings")
		}
		seen[spelling] = true
		if o[name], err = p.value(depth+1, open || slices.Contains(p.free, name)); err != nil {
			return nil, err
		}
	}
	return o, p.end()
}

func (p parser) elements(depth int, open bool) (any, error) {
	all := []any{}
	for p.More() {
		value, err := p.value(depth+1, open)
		if err != nil {
			return nil, err
		}
		all = append(all, value)
	}
	return all, p.end()
}

func (p parser) end() error {
	if _, err := p.Token(); err != nil {
		return errors.New("not JSON, or cut off")
	}
	return nil
}

// fold is one spelling for all that encoding/json takes for the same name.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			least = min(least, next)
		}
		return least
	}, name)
}
