package modelgatetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"unicode/utf8"

	"github.com/shopspring/decimal"
)

// maxDepth is how deep a body may nest.
const maxDepth = 8

// parseObject reads exactly one JSON object in UTF-8, in which no name is there
// twice. Numbers stay text.
func parseObject(text []byte) (map[string]any, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("it is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	v, err := parseValue(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("it is not an object")
	}
	return object, nil
}

func parseValue(dec *json.Decoder, depth int) (any, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	delim, nested := token.(json.Delim)
	switch {
	case depth > maxDepth:
		return nil, errors.New("it is nested too deeply")
	case !nested:
		return token, nil
	case delim == '{':
		return parseMembers(dec, depth)
	}
	list := []any{}
	for dec.More() {
		v, err := parseValue(dec, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err = dec.Token() // the bracket
	return list, err
}

func parseMembers(dec *json.Decoder, depth int) (any, error) {
	object := map[string]any{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string) // the decoder takes nothing else here
		if _, twice := object[name]; twice {
			return nil, fmt.Errorf("%q is there twice", name)
		}
		if object[name], err = parseValue(dec, depth+1); err != nil {
			return nil, err
		}
	}
	_, err := dec.Token() // the brace
	return object, err
}

// canonical is an object's text for fingerprints: sorted names, no spaces.
func canonical(object map[string]any) []byte {
	if object == nil {
		return nil
	}
	return jsonReply(0, object).body
}

// fields reads a body's members. The first that is wrong is the error that done
// returns.
type fields struct {
	values map[string]any
	known  []string
	err    error
}

func (f *fields) fail(name, format string, args ...any) {
	if f.err == nil {
		f.err = invalidf(name, name+": "+format, args...)
	}
}

// take is a member, and whether it is there.
func (f *fields) take(name string) (any, bool) {
	f.known = append(f.known, name)
	v, there := f.values[name]
	return v, there
}

// done says what is wrong: a member, or one that nobody knows.
func (f *fields) done() error {
	for _, name := range slices.Sorted(maps.Keys(f.values)) {
		if !slices.Contains(f.known, name) {
			f.fail(name, "there is no such member")
		}
	}
	return f.err
}

// optional is a text of 1 to most bytes; "" where it is not there.
func (f *fields) optional(name string, most int) string {
	v, there := f.take(name)
	if !there {
		return ""
	}
	text, isText := v.(string)
	if !isText || text == "" || len(text) > most {
		f.fail(name, "want a string of 1 to %d bytes", most)
	}
	return text
}

// text is the same, and has to be there.
func (f *fields) text(name string, most int) string {
	if _, there := f.values[name]; !there {
		f.fail(name, "it is missing")
	}
	return f.optional(name, most)
}

// form is a text that has to look like something.
func (f *fields) form(name string, form *regexp.Regexp, like string) string {
	text := f.text(name, 255)
	if !form.MatchString(text) {
		f.fail(name, "want something like %s", like)
	}
	return text
}

// choice is one of several words.
func (f *fields) choice(name string, words ...string) string {
	text := f.text(name, 255)
	if !slices.Contains(words, text) {
		f.fail(name, "want one of %q", words)
	}
	return text
}

// money is an amount, which has to be there as a string.
func (f *fields) money(name string, signed bool) decimal.Decimal {
	v, there := f.take(name)
	text, isText := v.(string)
	amount, isMoney := parseMoney(text, signed)
	switch {
	case !there:
		f.fail(name, "it is missing")
	case !isText:
		f.fail(name, "want a decimal as a string, like \"25.00\"")
	case !isMoney:
		f.fail(name, "want a decimal like 25.00: no exponent, no plus, at most 15 digits before the point and 12 after it")
	}
	return amount
}

// texts is a list of strings; nil where it is not there.
func (f *fields) texts(name string) (texts []string) {
	v, there := f.take(name)
	list, isList := v.([]any)
	if there && !isList {
		f.fail(name, "want a list of strings")
	}
	for _, v := range list {
		text, isText := v.(string)
		if !isText {
			f.fail(name, "want a list of strings")
		}
		texts = append(texts, text)
	}
	return texts
}

// labels is an object whose values are strings; nil where it is not there.
func (f *fields) labels(name string) map[string]string {
	v, there := f.take(name)
	if !there {
		return nil
	}
	object, isObject := v.(map[string]any)
	if !isObject || len(object) > 50 {
		f.fail(name, "want an object of at most 50 strings")
	}
	labels := map[string]string{}
	for label, v := range object {
		text, isText := v.(string)
		if !isText {
			f.fail(name, "want an object of at most 50 strings")
		}
		labels[label] = text
	}
	return labels
}
