package webhook

import (
	"bytes"
	"encoding/json"
	"iter"
)

// Members walks the members of a JSON object in the order in which they are
// written, also those that are there twice: each name, and its value as it
// stands in the object. The text must be valid JSON (json.Valid says so) and an
// object: it is cut and not checked again. Values are not copied.
func Members(object []byte) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		rest := trimSpace(trimSpace(object)[1:])
		for rest[0] != '}' {
			name, after := cutValue(rest)
			value, after := cutValue(trimSpace(trimSpace(after)[1:])) // behind the colon
			text, plain := plainString(name)
			if !plain && json.Unmarshal(name, &text) != nil {
				return // unreachable: it is valid
			}
			if !yield(text, value) {
				return
			}
			if rest = trimSpace(after); rest[0] == ',' {
				rest = trimSpace(rest[1:])
			}
		}
	}
}

// trimSpace drops what JSON allows between tokens.
func trimSpace(text []byte) []byte {
	for i, c := range text {
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return text[i:]
		}
	}
	return nil
}

// cutValue splits text behind the value that it begins with.
func cutValue(text []byte) (value, rest []byte) {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			if i = endOfString(text, i); depth == 0 {
				return text[:i+1], text[i+1:]
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth < 0 { // the end of what a scalar was in
				return text[:i], text[i:]
			}
			if depth == 0 {
				return text[:i+1], text[i+1:]
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return text[:i], text[i:]
			}
		}
	}
	return text, nil
}

// endOfString is where the string that begins at i has its last quotation mark.
func endOfString(text []byte, i int) int {
	for {
		i += 1 + bytes.IndexByte(text[i+1:], '"')
		back := i
		for text[back-1] == '\\' {
			back--
		}
		if (i-back)%2 == 0 {
			return i
		}
	}
}

// plainString is what a JSON string says, where nothing in it is escaped.
func plainString(value []byte) (text string, plain bool) {
	if value[0] != '"' || bytes.IndexByte(value, '\\') >= 0 {
		return "", false
	}
	return string(value[1 : len(value)-1]), true
}

// anyValue is what a valid JSON value says, numbers as they are written.
func anyValue(value json.RawMessage) (any, error) {
	switch text, plain := plainString(value); {
	case plain:
		return text, nil
	case value[0] == 'n':
		return nil, nil
	case value[0] == '-' || value[0] >= '0' && value[0] <= '9':
		return json.Number(value), nil
	}
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	return v, err
}
