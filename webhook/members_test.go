package webhook

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// pair is one name with its value.
type pair struct {
	name  string
	value any
}

// slowMembers reads a valid object as encoding/json does, token by token.
func slowMembers(t interface{ Fatal(...any) }, text []byte) (all []pair) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if _, err := dec.Token(); err != nil {
		t.Fatal(err)
	}
	for dec.More() {
		name, err := dec.Token()
		var value any
		if err == nil {
			err = dec.Decode(&value)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pair{name.(string), value})
	}
	return all
}

func fastMembers(t interface{ Fatal(...any) }, text []byte) (all []pair) {
	for name, raw := range Members(text) {
		value, err := anyValue(raw)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pair{name, value})
	}
	return all
}

// jsonTexts are JSON values, written in all the ways that JSON allows.
func jsonTexts(depth int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		space := rapid.SampledFrom([]string{"", "", " ", "\n\t", "\r "})
		text := rapid.SampledFrom([]string{`""`, `"a"`, `"奈良県"`, `"\""`, `"\\"`, `"\\\""`, `"\u0041\n"`, `"\ud800"`, `"{,}"`, `"]: ["`, `"x\\\\"`})
		scalar := rapid.SampledFrom([]string{`0`, `-1.5e+3`, `12345678901234567890`, `true`, `false`, `null`, `[]`, `{ }`})
		if depth == 0 {
			return rapid.OneOf(text, scalar).Draw(t, "value")
		}
		b := "["
		object := rapid.Bool().Draw(t, "object")
		if object {
			b = "{"
		}
		for i := range rapid.IntRange(0, 4).Draw(t, "members") {
			if i > 0 {
				b += ","
			}
			b += space.Draw(t, "space")
			if object {
				b += text.Draw(t, "name") + space.Draw(t, "space") + ":" + space.Draw(t, "space")
			}
			b += rapid.OneOf(text, scalar, jsonTexts(depth-1)).Draw(t, "value") + space.Draw(t, "space")
		}
		if object {
			return b + "}"
		}
		return b + "]"
	})
}

func TestMembersAreThoseOfTheLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(rapid.SampledFrom([]string{"", " ", "\r\n"}).Draw(t, "before") +
			jsonTexts(3).Filter(func(s string) bool { return s[0] == '{' }).Draw(t, "object"))
		if !json.Valid(text) {
			t.Fatalf("%s is not valid", text)
		}
		if fast, slow := fastMembers(t, text), slowMembers(t, text); !reflect.DeepEqual(fast, slow) {
			t.Fatalf("%s:\n%q\nwant\n%q", text, fast, slow)
		}
	})
}

// FuzzMembers holds every valid object against the standard library.
func FuzzMembers(f *testing.F) {
	f.Add([]byte(`{"a": [1, {"b": "\\\""}], "a" :null}`))
	f.Add([]byte(" {}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if rest := trimSpace(text); len(rest) == 0 || rest[0] != '{' || !json.Valid(text) || !bytes.Equal(text, bytes.ToValidUTF8(text, nil)) {
			t.Skip()
		}
		if fast, slow := fastMembers(t, text), slowMembers(t, text); !reflect.DeepEqual(fast, slow) {
			t.Fatalf("%q, want %q", fast, slow)
		}
	})
}

func TestMembersStop(t *testing.T) {
	for name := range Members([]byte(`{"a":1,"b":2}`)) {
		if name != "a" {
			t.Fatal(name)
		}
		break
	}
}
