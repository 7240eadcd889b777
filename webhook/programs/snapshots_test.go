package programs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// samples are the invented snapshots of the repository; portal holds real ones
// on the machines that have them.
const (
	samples = "../../testdata/jgrants"
	portal  = "../../../shared/data/jgrants"
)

func importFile(t testing.TB, s *Service, path string) Report {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Skipf("the snapshot is not here: %v", err)
	}
	defer file.Close()
	got, err := s.Import(t.Context(), file, ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// The counts are those of the samples' README.
func TestSampleSnapshots(t *testing.T) {
	s := newService(t)
	for _, c := range []struct {
		name    string
		want    Report
		changes map[string]string // of some programs
	}{
		{"list-2026-11-02.json", Report{Read: 50, Created: 50}, nil},
		{"list-2026-11-03.json", Report{Read: 53, Created: 6, Updated: 6, Unchanged: 41}, map[string]string{
			"05": fieldName, "26": fieldName, "11": fieldAmount, "02": fieldWindow, "37": fieldWindow, "47": fieldAmount + " " + fieldWindow,
		}},
		{"detail-2026-11-04.json", Report{Read: 24, Created: 4, Updated: 20}, map[string]string{
			"13": fieldWindow, "50": fieldWindow, "21": fieldAmount,
		}},
	} {
		before := count(t, s, "outbox_events")
		wantReport(t, importFile(t, s, filepath.Join(samples, c.name)), c.want)
		for _, e := range events(t, s, before) {
			var known []string
			for _, name := range e.texts("changed_fields") {
				if slices.Contains([]string{fieldName, fieldAmount, fieldWindow, fieldPrefectures, fieldLevel, fieldURL}, name) {
					known = append(known, name)
				}
			}
			if want := c.changes[e.subject[len(e.subject)-2:]]; e.kind == "program.updated" && strings.Join(known, " ") != want {
				t.Errorf("%s: %s changed %q, want %q", c.name, e.subject, known, want)
			}
		}
		wantReport(t, importFile(t, s, filepath.Join(samples, c.name)), Report{Read: c.want.Read, Unchanged: c.want.Read})
	}
	if n := count(t, s, "programs"); n != 60 {
		t.Errorf("%d programs, want 60", n)
	}
}

// snapshot compares the portal's records as they are, with nothing of the
// package's own: what it finds is what the import has to find.
type snapshot map[string]map[string]any

// compare takes a record in and returns whether it is new and which fields of
// a program differ.
func (s snapshot) compare(raw map[string]any) (isNew bool, changed []string) {
	id := raw["id"].(string)
	stored, known := s[id]
	if !known {
		stored = map[string]any{}
		s[id] = stored
	}
	names := map[string]bool{}
	for name, value := range raw {
		field := name
		switch name {
		case "id":
			continue
		case "title":
			field = "primary_name"
		case "front_subsidy_detail_page_url":
			field = "source_url"
		case "acceptance_start_datetime", "acceptance_end_datetime":
			field = "application_window"
		case "subsidy_max_limit":
			field, value = "amount_max_man_yen", manYen(value)
		case "target_area_search":
			field, value = "prefectures", strings.ReplaceAll(value.(string), " ", "")
			if whose := level(value.(string)); whose != stored["level"] {
				names["authority_level"] = true
				stored["level"] = whose
			}
		}
		if sameValue(stored[name], value) {
			continue
		}
		names[field] = true
		stored[name] = value
	}
	for name := range names {
		changed = append(changed, name)
	}
	slices.Sort(changed)
	return !known, changed
}

func manYen(yen any) any {
	if yen == nil || yen.(float64) == 0 {
		return nil
	}
	return int64(yen.(float64)) / 10000
}

// level knows the four endings of prefectures; regions end in 地方.
func level(area string) any {
	switch last := []rune(area); {
	case strings.Contains(area, "全国"):
		return "national"
	case !strings.Contains(area, "/") && strings.ContainsRune("都道府県", last[len(last)-1]):
		return "prefecture"
	}
	return nil
}

// sameValue knows the two forms of the portal's dates: 2026-06-30 in lists,
// 2026-06-30T23:45Z in details.
func sameValue(a, b any) bool {
	short, isText := a.(string)
	long, both := b.(string)
	if isText && both && len(short) > len(long) {
		short, long = long, short
	}
	if isText && both && len(short) == 10 && short[4] == '-' && strings.HasSuffix(long, "Z") {
		return strings.HasPrefix(long, short+"T")
	}
	return a == b
}

func TestRealSnapshots(t *testing.T) {
	s, model := newService(t), snapshot{}
	for _, name := range []string{
		"list-2026-07-13.json", "list-2026-07-14.json", "list-2026-07-15.json", "list-2026-07-16.json",
		"detail-2026-07-31.json", "detail-2026-08-07.json",
	} {
		path := filepath.Join(portal, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Skipf("the portal's real snapshots are not on this machine: %v", err)
		}
		var answer struct{ Result []map[string]any }
		if err := json.Unmarshal(text, &answer); err != nil {
			t.Fatal(err)
		}
		want, changes := Report{Read: len(answer.Result)}, map[string][]string{}
		for _, raw := range answer.Result {
			isNew, changed := model.compare(raw)
			switch {
			case isNew:
				want.Created++
			case len(changed) > 0:
				want.Updated++
				changes["UNI-"+raw["id"].(string)] = changed
			default:
				want.Unchanged++
			}
		}
		before := count(t, s, "outbox_events")
		wantReport(t, importFile(t, s, path), want)
		got, created := map[string][]string{}, 0
		for _, e := range events(t, s, before) {
			if e.kind == "program.created" {
				created++
				continue
			}
			got[e.subject] = e.texts("changed_fields")
		}
		if created != want.Created || !reflect.DeepEqual(got, changes) {
			t.Errorf("%s: %d created, want %d; changed fields %v, want %v", name, created, want.Created, got, changes)
		}
		t.Logf("%s: read %d, created %d, updated %d, unchanged %d", name, want.Read, want.Created, want.Updated, want.Unchanged)
		wantReport(t, importFile(t, s, path), Report{Read: want.Read, Unchanged: want.Read})
	}
}
