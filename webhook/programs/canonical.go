package programs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"
)

// object is a JSON object whose values are in canonical form: keys sorted at
// every level, no white space, no HTML escaping, numbers as they were written.
// Two values are the same exactly when their bytes are.
type object map[string]json.RawMessage

var null = json.RawMessage("null")

func isNull(value json.RawMessage) bool { return bytes.Equal(value, null) }

// canonical returns one valid JSON value in canonical form.
func canonical(text []byte) (json.RawMessage, error) {
	if plain(text) {
		var b bytes.Buffer
		err := json.Compact(&b, text)
		return b.Bytes(), err
	}
	value, err := decode(text)
	if err != nil {
		return nil, err
	}
	return encode(value), nil
}

// plain reports whether a value is canonical but for white space: most are
// numbers, texts without an escape, or lists of them, and decoding them is what
// an import would spend its time on. encode escapes U+2028 and U+2029, which a
// text may hold as they are.
func plain(text []byte) bool {
	return bytes.IndexByte(text, '{') < 0 && bytes.IndexByte(text, '\\') < 0 &&
		!bytes.Contains(text, []byte("\u2028")) && !bytes.Contains(text, []byte("\u2029"))
}

// decode reads one JSON value; numbers stay text.
func decode(text []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("not JSON: more than one value")
	}
	return value, nil
}

// encode writes what decode gave, or strings, lists and maps of them.
func encode(value any) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		panic(err) // unreachable: such values have a JSON form
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}

// encode writes the object in canonical form.
func (o object) encode() json.RawMessage {
	size := len("{}")
	for name, value := range o {
		size += len(name) + len(`"":,`) + len(value)
	}
	b := append(make([]byte, 0, size), '{')
	for i, name := range slices.Sorted(maps.Keys(o)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendText(b, name), ':')
		b = append(b, o[name]...)
	}
	return append(b, '}')
}

// appendText appends a text as JSON, in the form that encode gives it.
func appendText(b []byte, text string) []byte {
	if strings.ContainsAny(text, "\"\\\u2028\u2029") || strings.ContainsFunc(text, unicode.IsControl) {
		return append(b, encode(text)...)
	}
	b = append(b, '"')
	b = append(b, text...)
	return append(b, '"')
}

// parseObject reads what encode wrote.
func parseObject(text []byte) (object, error) {
	var o object
	if err := json.Unmarshal(text, &o); err != nil {
		return nil, fmt.Errorf("reading a stored object: %w", err)
	}
	return o, nil
}

// textOf reads a canonical value that is a text.
func textOf(value json.RawMessage) (text string, ok bool) {
	if len(value) < 2 || value[0] != '"' {
		return "", false
	}
	if bytes.IndexByte(value, '\\') < 0 {
		return string(value[1 : len(value)-1]), true
	}
	return text, json.Unmarshal(value, &text) == nil
}

// text returns a member that is a text, or "".
func (o object) text(name string) string {
	text, _ := textOf(o[name])
	return text
}

// texts returns a member that is a list of texts, or none.
func (o object) texts(name string) (all []string) {
	if value, ok := o[name]; ok {
		_ = json.Unmarshal(value, &all) // it was checked
	}
	return all
}

// checksum is the hex SHA-256 of a canonical text.
func checksum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// changedNames returns the sorted names of the members that differ.
func changedNames(before, after object) []string {
	var names []string
	for name, value := range after {
		if old, ok := before[name]; !ok || !bytes.Equal(old, value) {
			names = append(names, name)
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
