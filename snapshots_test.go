package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"jpintel/store/storetest"
	"jpintel/webhook"
)

// The main job: day by day, a snapshot of the portal is imported beside a
// running server, and what changed arrives, signed, where it is wanted.

// TestSampleDays takes the invented snapshots of the repository. The counts are
// those of their README.
func TestSampleDays(t *testing.T) {
	days := snapshotDays("testdata/jgrants", "list-2026-11-02", "list-2026-11-03", "detail-2026-11-04")
	snapshotRun(t, days, []importReport{
		{Read: 50, Created: 50},
		{Read: 53, Created: 6, Updated: 6, Unchanged: 41},
		{Read: 24, Created: 4, Updated: 20},
	})
}

// TestPortalDays takes real snapshots, on the machines that have them.
func TestPortalDays(t *testing.T) {
	if procRace {
		t.Skip("the sample's days are enough where everything takes ten times longer")
	}
	days := snapshotDays("../shared/data/jgrants",
		"list-2026-07-13", "list-2026-07-14", "list-2026-07-15", "list-2026-07-16", "detail-2026-07-31", "detail-2026-08-07")
	if _, err := os.Stat(days[0]); err != nil {
		t.Skipf("the portal's real snapshots are not here: %v", err)
	}
	snapshotRun(t, days, nil)
}

func snapshotDays(dir string, names ...string) (days []string) {
	for _, name := range names {
		days = append(days, filepath.Join(dir, name+".json"))
	}
	return days
}

// snapshotRun imports the days. Each report has to be the wanted one, where
// that is known, and always what comparing the portal's records tells.
func snapshotRun(t *testing.T, days []string, want []importReport) {
	db := t.TempDir() + "/jpintel.db"
	receiver := procReceive(t, nil)
	server := procServe(t, db)
	server.customer("cus_snapshots")
	r := &snapshotRunner{procServer: server, db: db, receiver: receiver, model: snapshotModel{}, checksums: map[string]string{}}
	r.everything = server.subscribe(receiver.url+"/everything", nil)
	r.tokyo = server.subscribe(receiver.url+"/tokyo", map[string]any{
		"filter": map[string]any{"prefecture": "東京都", "authority_level": "prefecture"}, "envelope": "v2",
	})
	for i, day := range days {
		report := r.day(day)
		if want != nil && report != want[i] {
			t.Errorf("%s: %s, want %s", day, procSum(report), procSum(want[i]))
		}
	}
	server.settled(r.everything, r.tokyo)
	server.stop()
	if more := len(receiver.got()) - r.seen; more != 0 {
		t.Errorf("%d requests more than the days had", more)
	}
	storetest.Open(t, db) // the test's end checks the file's invariants
}

type snapshotRunner struct {
	*procServer
	db                string
	receiver          *procReceiver
	everything, tokyo procSubscription

	model     snapshotModel
	checksums map[string]string // by program, the last one that was told
	seen      int               // requests that belong to the days before
}

// day imports one snapshot, twice, and checks what is reported and what
// arrives.
func (r *snapshotRunner) day(file string) importReport {
	r.t.Helper()
	records := snapshotRecords(r.t, file)
	changes := map[string]snapshotChange{}
	expected := importReport{Read: len(records)}
	tokyo := 0
	for _, record := range records {
		id, change := r.model.take(record)
		switch {
		case change.created:
			expected.Created++
		case len(change.fields) > 0:
			expected.Updated++
		default:
			expected.Unchanged++
			continue
		}
		changes[id] = change
		if r.model[id].inTokyo() {
			tokyo++
		}
	}
	report := r.importFile(file)
	if report != expected {
		r.t.Errorf("%s: %s; comparing the records: %s", file, procSum(report), procSum(expected))
	}
	if again := r.importFile(file); again != (importReport{Read: len(records), Unchanged: len(records)}) {
		r.t.Errorf("%s again: %s, want all unchanged", file, procSum(again))
	}
	procUntil(r.t, "the day has arrived", func() bool { return len(r.receiver.got())-r.seen >= len(changes)+tokyo })
	r.checkArrivals(file, changes, tokyo)
	r.t.Logf("%s: %s; %d for Tokyo", filepath.Base(file), procSum(report), tokyo)
	return report
}

func (r *snapshotRunner) importFile(file string) (report importReport) {
	r.t.Helper()
	p := procRun(r.t, []string{"programs", "import", file, "--json"}, procEnv(r.db)...)
	p.want(0)
	p.json(&report)
	return report
}

// checkArrivals checks that the day's changes arrived at both subscriptions,
// once each, signed and right.
func (r *snapshotRunner) checkArrivals(file string, changes map[string]snapshotChange, tokyo int) {
	r.t.Helper()
	requests := r.receiver.got()[r.seen:]
	r.seen += len(requests)
	arrived := map[string]map[string]bool{"/everything": {}, "/tokyo": {}}
	for _, got := range requests {
		e := r.read(got)
		id := e.Data.UnifiedID
		if arrived[got.Path][id] {
			r.t.Errorf("%s: %s arrived twice at %s", file, id, got.Path)
		}
		arrived[got.Path][id] = true
		if got.Path == "/tokyo" && !r.model[id].inTokyo() {
			r.t.Errorf("%s: %s arrived at %s", file, id, got.Path)
		}
		change, ok := changes[id]
		if !ok {
			r.t.Errorf("%s: %s did not change, and %s arrived", file, id, e.typ())
			continue
		}
		r.checkEvent(file, e, change)
	}
	for id := range changes {
		if e := r.model[id]; !arrived["/everything"][id] || e.inTokyo() != arrived["/tokyo"][id] {
			r.t.Errorf("%s: of %s not all has arrived", file, id)
		}
	}
	if len(arrived["/tokyo"]) != tokyo {
		r.t.Errorf("%s: %d programs arrived at /tokyo, want %d", file, len(arrived["/tokyo"]), tokyo)
	}
}

// snapshotEvent is what a receiver reads, of either envelope.
type snapshotEvent struct {
	Version   string `json:"version"`
	EventID   string `json:"event_id"`
	EventType string `json:"event_type"` // v1
	Type      string `json:"type"`       // v2
	Data      struct {
		UnifiedID        string   `json:"unified_id"`
		PrimaryName      any      `json:"primary_name"`
		AuthorityLevel   any      `json:"authority_level"`
		Prefecture       any      `json:"prefecture"`
		AmountMaxManYen  any      `json:"amount_max_man_yen"`
		SourceURL        any      `json:"source_url"`
		ChangedFields    []string `json:"changed_fields"`
		PreviousChecksum string   `json:"previous_checksum"`
		CurrentChecksum  string   `json:"current_checksum"`
	} `json:"data"`
}

func (e snapshotEvent) typ() string { return e.EventType + e.Type }

// read verifies a request as a customer would, and reads it.
func (r *snapshotRunner) read(got procRequest) (e snapshotEvent) {
	r.t.Helper()
	sub, version := r.everything, "v1"
	if got.Path == "/tokyo" {
		sub, version = r.tokyo, "v2"
	}
	if err := webhook.Verify(sub.Secret, "Jpintel", got.Header, got.Body, got.At); err != nil {
		r.t.Errorf("%s: %v", got.Body, err)
	}
	if err := json.Unmarshal(got.Body, &e); err != nil {
		r.t.Errorf("%s: %v", got.Body, err)
	}
	if e.Version != version || e.EventID != got.Header.Get("webhook-id") || e.typ() != got.Header.Get("X-Jpintel-Event") {
		r.t.Errorf("the body does not say what the headers say: %s", got.Body)
	}
	return e
}

func (r *snapshotRunner) checkEvent(file string, e snapshotEvent, change snapshotChange) {
	r.t.Helper()
	id, d := e.Data.UnifiedID, e.Data
	if !change.created {
		if e.typ() != "program.updated" || !slices.Equal(d.ChangedFields, change.fields) {
			r.t.Errorf("%s: %s arrived as %s of %q, want an update of %q", file, id, e.typ(), d.ChangedFields, change.fields)
		}
		if known := r.checksums[id]; known != "" && known != d.PreviousChecksum && known != d.CurrentChecksum {
			r.t.Errorf("%s: %s goes on from %s, the last one told was %s", file, id, d.PreviousChecksum, known)
		}
		r.checksums[id] = d.CurrentChecksum
		return
	}
	p := r.model[id]
	got := []any{e.typ(), d.PrimaryName, d.AuthorityLevel, d.Prefecture, d.AmountMaxManYen, d.SourceURL}
	want := []any{"program.created", p["primary_name"], p["authority_level"], nil, p["amount_max_man_yen"], p["source_url"]}
	if areas, _ := p["prefectures"].([]string); p["authority_level"] == "prefecture" {
		want[3] = areas[0]
	}
	if !reflect.DeepEqual(got, want) {
		r.t.Errorf("%s: %s arrived as %v, want %v", file, id, got, want)
	}
}

func snapshotRecords(t testing.TB, file string) []map[string]any {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Result []map[string]any }
	if err := json.Unmarshal(text, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Result
}

// snapshotModel is the programs as the portal's records make them, compared
// field by field with nothing of the program's own. The two ends of the
// application window are fields here.
type snapshotModel map[string]snapshotProgram

type snapshotProgram map[string]any

// snapshotChange is what a record means for its program.
type snapshotChange struct {
	created bool
	fields  []string // that differ, sorted
}

// snapshotNames are the fields that have a name of their own in a program.
var snapshotNames = map[string]string{
	"title": "primary_name", "target_area_search": "prefectures", "subsidy_max_limit": "amount_max_man_yen",
	"acceptance_start_datetime": "application_window.start", "acceptance_end_datetime": "application_window.end",
	"front_subsidy_detail_page_url": "source_url",
}

// take takes a record in. A field that it does not have leaves the stored one.
func (m snapshotModel) take(record map[string]any) (string, snapshotChange) {
	id := fmt.Sprintf("UNI-%v", record["id"])
	stored, known := m[id]
	if !known {
		stored = snapshotProgram{}
		m[id] = stored
	}
	changed := map[string]bool{}
	set := func(name string, value any) {
		old, there := stored[name]
		switch {
		case value == nil && !there, there && snapshotSame(old, value):
			return
		case value == nil:
			delete(stored, name)
		default:
			stored[name] = value
		}
		field, _, _ := strings.Cut(name, ".")
		changed[field] = true
	}
	for name, value := range record {
		switch name {
		case "id":
			continue
		case "target_area_search":
			areas := snapshotAreas(value.(string))
			set("prefectures", areas)
			set("authority_level", snapshotLevel(areas))
			continue
		case "subsidy_max_limit":
			if yen := value.(float64); yen == 0 { // the portal's way to say that none is stated
				value = nil
			} else {
				value = float64(int64(yen) / 10_000)
			}
		}
		if ours := snapshotNames[name]; ours != "" {
			name = ours
		}
		set(name, value)
	}
	return id, snapshotChange{!known, slices.Sorted(maps.Keys(changed))}
}

func snapshotAreas(text string) []string {
	var areas []string
	for _, area := range strings.Split(text, "/") {
		areas = append(areas, strings.TrimSpace(area))
	}
	return areas
}

// snapshotLevel is national for the whole country, prefecture for one of the
// 47, whose names end in one of four words; regions (近畿地方) are neither.
func snapshotLevel(areas []string) any {
	switch {
	case slices.Contains(areas, "全国"):
		return "national"
	case len(areas) == 1 && strings.ContainsAny(areas[0][len(areas[0])-len("県"):], "都道府県"):
		return "prefecture"
	}
	return nil
}

// snapshotSame compares two values. A date is the same as an instant on that
// UTC date.
func snapshotSame(a, b any) bool {
	if reflect.DeepEqual(a, b) {
		return true
	}
	x, xDate, xOK := snapshotMoment(a)
	y, yDate, yOK := snapshotMoment(b)
	if xOK && yOK && xDate != yDate {
		return x.Format(time.DateOnly) == y.Format(time.DateOnly)
	}
	return xOK && yOK && x.Equal(y)
}

func snapshotMoment(v any) (at time.Time, date, ok bool) {
	text, _ := v.(string)
	if at, err := time.Parse(time.DateOnly, text); err == nil {
		return at, true, true
	}
	at, err := time.Parse("2006-01-02T15:04Z", text)
	return at, false, err == nil
}

func (p snapshotProgram) inTokyo() bool {
	return reflect.DeepEqual(p["prefectures"], []string{"東京都"}) && p["authority_level"] == "prefecture"
}
