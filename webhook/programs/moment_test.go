package programs

import (
	"testing"

	"pgregory.net/rapid"
)

func TestSettle(t *testing.T) {
	const day, portal, late = `"2026-06-30"`, `"2026-06-30T23:45Z"`, `"2026-06-30T15:00:00.000Z"`
	for _, c := range []struct {
		name, stored, incoming string
		same                   bool
	}{
		{"a date and an instant on it", day, portal, true},
		{"an instant and its date", portal, day, true},
		{"an instant with seconds", day, late, true},
		{"the UTC date counts, not the local one", day, `"2026-07-01T08:45:00+09:00"`, true},
		{"the local date does not", `"2026-07-01"`, `"2026-07-01T08:45:00+09:00"`, false},
		{"two instants of a date", portal, late, false},
		{"one instant, written twice", portal, `"2026-07-01T08:45+09:00"`, true},
		{"two dates", day, `"2026-07-01"`, false},
		{"an instant on another date", day, `"2026-07-01T00:00Z"`, false},
		{"no real date", `"2026-02-30"`, `"2026-02-30T00:00Z"`, false},
		{"a date in a text", `"until 2026-06-30"`, `"until 2026-06-30T23:45Z"`, false},
		{"texts", `"a"`, `"b"`, false},
		{"numbers as written", `1.0`, `1`, false},
		{"kinds", `"1"`, `1`, false},
		{"in a list", `["2026-06-30",1]`, `["2026-06-30T23:45Z",1]`, true},
		{"lists of another length", `["2026-06-30"]`, `["2026-06-30T23:45Z",1]`, false},
		{"in an object", `{"a":{"b":"2026-06-30"}}`, `{"a":{"b":"2026-06-30T23:45Z"}}`, true},
		{"an object with a member more", `{"a":"2026-06-30"}`, `{"a":"2026-06-30T23:45Z","b":1}`, false},
	} {
		got := settle([]byte(c.stored), []byte(c.incoming))
		if same := string(got) == c.stored; same != c.same {
			t.Errorf("%s: settle(%s, %s) = %s, the same: %v", c.name, c.stored, c.incoming, got, same)
		}
	}
	if got := settle([]byte(`["2026-06-30",1]`), []byte(`["2026-06-30T23:45Z",2]`)); string(got) != `["2026-06-30",2]` {
		t.Errorf("a date beside a change is kept as stored, got %s", got)
	}
	if got := settle(nil, []byte(portal)); string(got) != portal {
		t.Errorf("nothing stored: got %s", got)
	}
}

func TestSettleTakesTheSameAsUnchanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stored := encode(anyValue(3).Draw(t, "stored"))
		incoming := encode(anyValue(3).Draw(t, "incoming"))
		once := settle(stored, incoming)
		if again := settle(once, incoming); string(again) != string(once) {
			t.Fatalf("%s after %s gives %s, and then %s", incoming, stored, once, again)
		}
		if got := settle(stored, stored); string(got) != string(stored) {
			t.Fatalf("settle(%s) with itself = %s", stored, got)
		}
	})
}
