package programs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A plain model of the rules: values are Go values, and which moments are the
// same is written beside them.

// moment is a date or an instant with what it means: its UTC date, and a number
// for each instant of it.
type moment struct {
	text, day string
	instant   int // 0: the whole date
}

var moments = []moment{
	{"2026-06-30", "0630", 0}, {"2026-06-30T08:00Z", "0630", 1}, {"2026-06-30T17:00:00+09:00", "0630", 1},
	{"2026-06-30T23:45Z", "0630", 2}, {"2026-07-01T08:45:00.000+09:00", "0630", 2},
	{"2026-07-01", "0701", 0}, {"2026-07-01T00:00:00Z", "0701", 3},
}

func momentOf(text any) (moment, bool) {
	i := slices.IndexFunc(moments, func(m moment) bool { return m.text == text })
	if i < 0 {
		return moment{}, false
	}
	return moments[i], true
}

// kept returns the stored value where the incoming one means the same.
func kept(stored, incoming any) any {
	a, ok := momentOf(stored)
	b, also := momentOf(incoming)
	if ok && also && a.day == b.day && (a.instant == b.instant || a.instant == 0 || b.instant == 0) {
		return stored
	}
	return incoming
}

type modelProgram struct {
	fields map[string]any
	told   bool   // the level came with a record
	chain  string // the checksum of the last event
}

// take does what the rules say, and returns the result and the changed fields.
func (p *modelProgram) take(record map[string]any, replace bool) (result string, changed []string) {
	next := map[string]any{}
	if !replace {
		maps.Copy(next, p.fields)
	}
	for name, value := range record {
		if name == "application_window" {
			value = p.window(value, replace)
		}
		if value == nil {
			delete(next, name)
		} else {
			next[name] = kept(p.fields[name], value)
		}
	}
	if next["primary_name"] == nil {
		return "rejected", nil
	}
	told := p.told && !replace
	if value, given := record["authority_level"]; given {
		told = value != nil
	}
	if !told {
		p.derive(next)
	}
	for _, name := range slices.Sorted(maps.Keys(union(p.fields, next))) {
		if modelJSON(p.fields[name]) != modelJSON(next[name]) {
			changed = append(changed, name)
		}
	}
	isNew := p.fields == nil
	p.fields, p.told = next, told
	switch {
	case isNew:
		return "created", nil
	case len(changed) > 0:
		return "updated", changed
	}
	return "unchanged", nil
}

func (p *modelProgram) window(value any, replace bool) any {
	incoming, ok := value.(map[string]any)
	if !ok {
		return nil
	}
	stored, _ := p.fields["application_window"].(map[string]any)
	merged := map[string]any{}
	for _, end := range []string{"start", "end"} {
		v, given := incoming[end]
		if !given && !replace {
			v = stored[end]
		}
		if v != nil {
			merged[end] = kept(stored[end], v)
		}
	}
	if len(merged) == 0 {
		return nil
	}
	return merged
}

func (p *modelProgram) derive(fields map[string]any) {
	delete(fields, "authority_level")
	switch modelJSON(fields["prefectures"]) {
	case `["全国"]`, `["全国","宮崎県"]`:
		fields["authority_level"] = "national"
	case `["奈良県"]`:
		fields["authority_level"] = "prefecture"
	}
}

func union(a, b map[string]any) map[string]any {
	all := maps.Clone(b)
	maps.Copy(all, a)
	return all
}

func modelJSON(value any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	must(enc.Encode(value))
	return strings.TrimSuffix(b.String(), "\n")
}

func (p *modelProgram) checksum() string {
	sum := sha256.Sum256([]byte(modelJSON(p.fields)))
	return hex.EncodeToString(sum[:])
}

func anyMoment() *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		if rapid.IntRange(0, 5).Draw(t, "none") == 0 {
			return nil
		}
		return rapid.SampledFrom(moments).Draw(t, "moment").text
	})
}

// anyRecord draws the source fields of a record; each may be missing.
func anyRecord() *rapid.Generator[map[string]any] {
	fields := map[string]*rapid.Generator[any]{
		"primary_name":       rapid.SampledFrom([]any{"a", "b", "a", "<b>&", nil}),
		"authority_level":    rapid.SampledFrom([]any{"national", "prefecture", "municipality", nil}),
		"prefectures":        rapid.SampledFrom([]any{nil, []string{}, []string{"奈良県"}, []string{"全国"}, []string{"全国", "宮崎県"}, []string{"大阪府", "京都府"}, []string{"近畿地方"}}),
		"amount_max_man_yen": rapid.SampledFrom([]any{nil, 0, 1, 300}),
		"target_types":       rapid.SampledFrom([]any{nil, []string{"sme"}, []string{"npo", "sme"}}),
		"deadline":           anyMoment(),
		"enriched_json":      rapid.SampledFrom([]any{nil, map[string]any{"b": 1, "a": []any{nil, 2}}, map[string]any{}}),
		"application_window": rapid.Custom(func(t *rapid.T) any {
			window := map[string]any{}
			for _, end := range []string{"start", "end"} {
				if rapid.Bool().Draw(t, "has "+end) {
					window[end] = anyMoment().Draw(t, end)
				}
			}
			if rapid.IntRange(0, 5).Draw(t, "null window") == 0 {
				return nil
			}
			return window
		}),
	}
	return rapid.Custom(func(t *rapid.T) map[string]any {
		record := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if name == "primary_name" && rapid.IntRange(0, 4).Draw(t, "named") > 0 || rapid.IntRange(0, 2).Draw(t, "has "+name) == 0 {
				record[name] = fields[name].Draw(t, name)
			}
		}
		return record
	})
}

// TestProgramsFollowTheModel sends random records, by import and by PUT, and
// compares results, changed fields, what is stored and the chain of checksums.
func TestProgramsFollowTheModel(t *testing.T) {
	s := newService(t)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		m := modelRun{t: t, s: s, run: run, programs: map[string]*modelProgram{}}
		before := count(t, s, "outbox_events")
		for range rapid.IntRange(1, 12).Draw(rt, "batches") {
			if rapid.IntRange(0, 3).Draw(rt, "put") == 0 {
				m.put(rt)
			} else {
				m.load(rt)
			}
		}
		m.compare(rt, before)
	})
}

type modelRun struct {
	t        *testing.T
	s        *Service
	run      int
	programs map[string]*modelProgram
	want     []string // events
}

// draw draws a record for one of two programs and gives it to the model.
func (m *modelRun) draw(rt *rapid.T, replace bool) (id string, record map[string]any, result string) {
	id = fmt.Sprintf("UNI-%d-%s", m.run, rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "program"))
	record = anyRecord().Draw(rt, "record")
	p := m.programs[id]
	if p == nil {
		p = &modelProgram{}
		m.programs[id] = p
	}
	result, changed := p.take(record, replace)
	if result == "rejected" {
		return id, record, result
	}
	previous := p.chain
	p.chain = p.checksum()
	switch result {
	case "created":
		m.want = append(m.want, "program.created "+id)
	case "updated":
		m.want = append(m.want, fmt.Sprint("program.updated ", id, changed, previous, p.chain))
	}
	return id, record, result
}

func (m *modelRun) put(rt *rapid.T) {
	id, record, want := m.draw(rt, true)
	answer, err := m.s.PutProgram(m.t.Context(), PutProgramRequest{UnifiedID: id, Body: []byte(modelJSON(record))})
	if (err != nil) != (want == "rejected") {
		rt.Fatalf("%v, want %s", err, want)
	}
	if err == nil && (string(answer.Result) != want || answer.Checksum != m.programs[id].chain) {
		rt.Fatalf("answer %+v, want %s, %s", answer, want, m.programs[id].chain)
	}
}

func (m *modelRun) load(rt *rapid.T) {
	var lines strings.Builder
	want := map[string]int{}
	for range rapid.IntRange(1, 4).Draw(rt, "records") {
		id, record, result := m.draw(rt, false)
		want[result]++
		record[fieldID] = id
		lines.WriteString(modelJSON(record) + "\n")
	}
	got := load(m.t, m.s, lines.String())
	if got.Created != want["created"] || got.Updated != want["updated"] || got.Unchanged != want["unchanged"] || got.Rejected != want["rejected"] {
		rt.Fatalf("got %+v, want %v", got, want)
	}
}

func (m *modelRun) compare(rt *rapid.T, before int) {
	var published []string
	for _, e := range events(m.t, m.s, before) {
		text := e.kind + " " + e.subject
		if e.kind == "program.updated" {
			text = fmt.Sprint(text, e.texts("changed_fields"), e.data["previous_checksum"], e.data["current_checksum"])
		}
		published = append(published, text)
	}
	if !slices.Equal(published, m.want) {
		rt.Fatalf("published\n%s\nwant\n%s", strings.Join(published, "\n"), strings.Join(m.want, "\n"))
	}
	for id, p := range m.programs {
		text := ""
		if p.fields != nil {
			text = modelJSON(p.fields)
		}
		if got := storedSource(m.t, m.s, id); got != text {
			rt.Fatalf("%s: stored %s, want %s", id, got, text)
		}
	}
}
