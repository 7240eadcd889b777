package programs

import (
	"bytes"
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

func TestCanonical(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`null`, `null`},
		{`true`, `true`},
		{`1.50`, `1.50`},
		{`1e400`, `1e400`},
		{`-0`, `-0`},
		{`9007199254740993`, `9007199254740993`},
		{`"奈良県"`, `"奈良県"`},
		{`"\u5948\u826f"`, `"奈良"`},
		{`"<a>&\u003c"`, `"<a>&<"`},
		{`"a\/b"`, `"a/b"`},
		{"\"\u2028\"", `"\u2028"`},
		{`[ 1, "a" ,[ ] ]`, `[1,"a",[]]`},
		{`["{", 1]`, `["{",1]`},
		{`{"b": 1, "a": {"d": null, "c": [ {"z":1, "y":2} ]}}`, `{"a":{"c":[{"y":2,"z":1}],"d":null},"b":1}`},
	} {
		got, err := canonical([]byte(c.in))
		if err != nil || string(got) != c.want {
			t.Errorf("canonical(%s) = %s, %v; want %s", c.in, got, err, c.want)
		}
	}
}

// The short way for plain values gives what the long way would.
func TestCanonicalIsEncodeOfDecode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, err := json.Marshal(anyValue(3).Draw(t, "value"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := canonical(text)
		if err != nil {
			t.Fatal(err)
		}
		value, err := decode(text)
		if err != nil {
			t.Fatal(err)
		}
		if want := encode(value); !bytes.Equal(got, want) {
			t.Fatalf("canonical(%s) = %s, want %s", text, got, want)
		}
		if again, err := canonical(got); err != nil || !bytes.Equal(again, got) {
			t.Fatalf("canonical(%s) = %s, %v: it is canonical already", got, again, err)
		}
	})
}

func anyValue(depth int) *rapid.Generator[any] {
	leaves := rapid.OneOf(
		rapid.String().AsAny(), rapid.Int64().AsAny(), rapid.Float64Range(-1e9, 1e9).AsAny(), rapid.Bool().AsAny(),
		rapid.SampledFrom([]any{nil, "2026-06-30", "2026-06-30T23:45Z", "<>&\u2028\\\"{"}),
	)
	if depth == 0 {
		return leaves
	}
	inner := anyValue(depth - 1)
	return rapid.OneOf(leaves, rapid.SliceOfN(inner, 0, 4).AsAny(), rapid.MapOfN(rapid.String(), inner, 0, 4).AsAny())
}

func TestObjectEncodeIsSorted(t *testing.T) {
	o := object{"b": json.RawMessage(`1`), `a"`: json.RawMessage(`"x"`), "ー": json.RawMessage(`[]`)}
	if got, want := string(o.encode()), `{"a\"":"x","b":1,"ー":[]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := string((object{}).encode()); got != `{}` {
		t.Errorf("empty: %s", got)
	}
}

func TestChangedNames(t *testing.T) {
	before := object{"a": json.RawMessage(`1`), "b": json.RawMessage(`2`), "c": json.RawMessage(`3`)}
	after := object{"a": json.RawMessage(`1`), "b": json.RawMessage(`4`), "d": json.RawMessage(`5`)}
	if got := changedNames(before, after); len(got) != 3 || got[0] != "b" || got[1] != "c" || got[2] != "d" {
		t.Errorf("got %q, want b, c and d", got)
	}
}
