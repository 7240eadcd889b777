package modelgate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"jpintel/billing/money"
)

// maxDepth is how deep an answer may be nested.
const maxDepth = 16

// object is a JSON object as it was sent: no name twice, none that differs from
// another in case alone (encoding/json would let "Amount" override "amount"),
// and numbers as their text.
type object map[string]any

// parseObject reads one object and nothing after it.
func parseObject(body []byte) (object, error) {
	if !utf8.Valid(body) {
		return nil, errors.New("not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	value, err := parseValue(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("something follows the JSON value")
	}
	o, ok := value.(object)
	if !ok {
		return nil, errors.New("not a JSON object")
	}
	return o, nil
}

func parseValue(dec *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("nested too deep")
	}
	token, err := dec.Token()
	if err != nil {
		return nil, errors.New("not JSON, or cut off") // its own words may quote what was sent
	}
	switch token {
	case json.Delim('{'):
		return parseMembers(dec, depth)
	case json.Delim('['):
		return parseElements(dec, depth)
	}
	return token, nil
}

func parseMembers(dec *json.Decoder, depth int) (any, error) {
	o, seen := object{}, map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return nil, errors.New("not JSON, or cut off")
		}
		if seen[fold(name)] {
			return nil, errors.New("a name is there twice, or in two spellings")
		}
		seen[fold(name)] = true
		if o[name], err = parseValue(dec, depth+1); err != nil {
			return nil, err
		}
	}
	return o, end(dec)
}

func parseElements(dec *json.Decoder, depth int) (any, error) {
	all := []any{}
	for dec.More() {
		value, err := parseValue(dec, depth+1)
		if err != nil {
			return nil, err
		}
		all = append(all, value)
	}
	return all, end(dec)
}

func end(dec *json.Decoder) error {
	if _, err := dec.Token(); err != nil {
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

// reader takes members out of an object. The first that is not as the contract
// says is its error; the others are then zero.
type reader struct {
	object
	err        error
	violations []string // against the contract, but with one meaning
}

func (r *reader) fail(name, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: want %s", name, want)
	}
}

// text is a string that has to be there.
func (r *reader) text(name string) string {
	text, ok := r.object[name].(string)
	if !ok || text == "" {
		r.fail(name, "a string")
	}
	return text
}

// optional is a string, null or missing.
func (r *reader) optional(name string) string {
	text, ok := r.object[name].(string)
	if !ok && r.object[name] != nil {
		r.fail(name, "a string or null")
	}
	return text
}

// idForm leaves out what would need escaping in a path or a key.
var idForm = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}$`)

// ValidID reports whether a text can be an id of the upstream's.
func ValidID(id string) bool { return idForm.MatchString(id) }

// id is an id that goes into paths and keys later.
func (r *reader) id(name string) string {
	id := r.text(name)
	if r.err == nil && !idForm.MatchString(id) {
		r.fail(name, "an id of at most 100 letters, digits or _ . -")
	}
	return id
}

func (r *reader) truth(name string) bool {
	value, ok := r.object[name].(bool)
	if !ok {
		r.fail(name, "true or false")
	}
	return value
}

// money is an amount: a string. A number is read as it is written, digit by
// digit, and noted: the contract knows strings only.
func (r *reader) money(name string) (a money.Amount) {
	var err error
	switch value := r.object[name].(type) {
	case string:
		a, err = money.ParseSigned(value)
	case json.Number:
		a, err = money.ParseSigned(value.String())
		r.violations = append(r.violations, name+" is a number")
	default:
		err = errors.New("missing")
	}
	if err != nil {
		r.fail(name, "an amount as a string")
	}
	return a
}

func (r *reader) currency(name string) money.Currency {
	c, err := money.ParseCurrency(r.text(name))
	if err != nil {
		r.fail(name, err.Error())
	}
	return c
}

func (r *reader) time(name string) time.Time {
	at, err := time.Parse(time.RFC3339, r.text(name))
	if err != nil {
		r.fail(name, "a time")
	}
	return at.UTC()
}
