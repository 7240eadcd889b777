package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

// crashScale says how much a run does. All programs are created first, then
// some are updated: the import of a record is harmless as often as it is
// repeated, but not after a later one of the same program.
type crashScale struct{ programs, updates, kills int }

// TestStateAndEventCommitTogether kills the server, an import, or both, with
// SIGKILL, again and again in the middle of their work, resumes, and holds the
// file and the receiver against what the programs' own data say.
func TestStateAndEventCommitTogether(t *testing.T) {
	scale := crashScale{programs: 50_000, updates: 3_000, kills: 30}
	if testing.Short() || procRace {
		scale = crashScale{programs: 4_000, updates: 400, kills: 4}
	}
	c := newCrash(t, scale)
	began := time.Now()
	for i, lines := range c.rounds(scale) {
		c.round(i, lines)
	}
	t.Logf("imported in %s", time.Since(began).Round(time.Millisecond))
	c.drained()
	c.reimported()
	c.settled(c.everything, c.tokyo)
	c.stop()
	c.check()
	t.Logf("done in %s", time.Since(began).Round(time.Millisecond))
}

// crashProgram is a program of the test: as it is created, and as it is later
// updated, where it is.
type crashProgram struct {
	id, name string
	areas    []string
	amount   int

	updated  bool
	newName  string
	newAreas []string
}

var crashAreas = [][]string{{"東京都"}, {"大阪府"}, {"奈良県"}, {"全国"}, {"大阪府", "京都府"}, {"東京都", "神奈川県"}, nil}

// crashWanted are the prefectures that the filtered subscription asks for.
var crashWanted = []string{"東京都", "奈良県"}

func crashPrograms(scale crashScale) []crashProgram {
	all := make([]crashProgram, scale.programs)
	every := scale.programs / scale.updates
	for i := range all {
		p := crashProgram{id: fmt.Sprintf("UNI-crash-%06d", i), name: fmt.Sprintf("試験用補助金 <第%d回> & 他", i), areas: crashAreas[i%len(crashAreas)], amount: i}
		if i%every == 0 && i/every < scale.updates {
			p.updated, p.newName, p.newAreas = true, p.name+"（改）", p.areas
			if i%2 == 0 { // moves, maybe into the filter or out of it
				p.newAreas = crashAreas[(i+3)%len(crashAreas)]
			}
		}
		all[i] = p
	}
	return all
}

// line is the program's record, as it is created or as it is in the end.
func (p crashProgram) line(final bool) []byte {
	name, areas := p.name, p.areas
	if final && p.updated {
		name, areas = p.newName, p.newAreas
	}
	record := map[string]any{"unified_id": p.id, "primary_name": name, "prefectures": areas, "amount_max_man_yen": p.amount,
		"source_url": "https://example.jp/programs/" + strconv.Itoa(p.amount)}
	if areas == nil {
		record["prefectures"] = []string{}
	}
	text, err := json.Marshal(record)
	if err != nil {
		panic(err) // texts and numbers
	}
	return append(text, '\n')
}

// events are the events that the program must have in the end, each with
// whether the filtered subscription may have it.
func (p crashProgram) events() map[string]bool {
	wanted := func(areas []string) bool {
		return slices.ContainsFunc(areas, func(a string) bool { return slices.Contains(crashWanted, a) })
	}
	all := map[string]bool{"program.created": wanted(p.areas)}
	if p.updated {
		all["program.updated"] = wanted(p.newAreas)
	}
	return all
}

// crash is a run: the processes, the receiver, and what was told so far.
type crash struct {
	*procServer
	dir, db  string
	random   *rand.Rand
	programs []crashProgram
	receiver *crashReceiver

	everything, tokyo procSubscription
	kills             int
	serverKills       int
}

// seeded is a generator whose seed is printed, or was given.
func seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("JPINTEL_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("JPINTEL_TEST_SEED: %v", err)
		}
	}
	t.Logf("to kill at these points again: JPINTEL_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func newCrash(t *testing.T, scale crashScale) *crash {
	c := &crash{
		dir: t.TempDir(), random: seeded(t),
		programs: crashPrograms(scale), receiver: newCrashReceiver(t),
	}
	c.db = c.dir + "/jpintel.db"
	c.procServer = procServe(t, c.db, crashEnv...)
	c.customer("cus_crash")
	c.everything = c.subscribe(c.receiver.url+"/everything", nil)
	c.tokyo = c.subscribe(c.receiver.url+"/tokyo", map[string]any{"filter": map[string]any{"prefecture": crashWanted}, "envelope": "v2"})
	return c
}

const (
	// crashConcurrency is how many requests the server has in flight at most.
	crashConcurrency = 64
	// crashUnwritten is how many may have arrived and not be written down when
	// it is killed: those in flight, and those whose answers wait for their
	// transaction; all together at most eight times as many.
	crashUnwritten = 8 * crashConcurrency
)

var crashEnv = []string{"JPINTEL_WEBHOOK_ENDPOINT_CONCURRENCY=32", "JPINTEL_WEBHOOK_DISPATCH_CONCURRENCY=" + strconv.Itoa(crashConcurrency)}

// rounds deals out the records: as many parts as there are kills, four fifths
// of them to create the programs, the others to update some.
func (c *crash) rounds(scale crashScale) [][][]byte {
	var created, updated [][]byte
	for _, p := range c.programs {
		created = append(created, p.line(false))
		if p.updated {
			updated = append(updated, p.line(true))
		}
	}
	updates := max(1, scale.kills/5)
	return append(crashDeal(created, scale.kills-updates), crashDeal(updated, updates)...)
}

func crashDeal(lines [][]byte, parts int) [][][]byte {
	var all [][][]byte
	for i := range parts {
		all = append(all, lines[i*len(lines)/parts:(i+1)*len(lines)/parts])
	}
	return all
}

// crashVictim is who is killed.
type crashVictim int

const (
	crashServer crashVictim = iota
	crashImporter
	crashBoth
)

// round imports some records with one kill in the middle, resumes what was
// killed, and does not end before all of them are reported.
func (c *crash) round(i int, lines [][]byte) {
	victim := crashVictim(i % 3)
	c.kills++
	if i%4 == 3 {
		c.roundByAPI(lines, victim)
	} else {
		c.roundByCommand(i, lines, victim)
	}
}

// roundByCommand imports by the command, as a process beside the server, from
// three files and from its standard input, which stays open so that the kill
// comes before the end.
func (c *crash) roundByCommand(round int, lines [][]byte, victim crashVictim) {
	parts := crashDeal(lines, 4)
	var files []string
	for i, part := range parts {
		files = append(files, procWrite(c.t, c.dir, fmt.Sprintf("%d-%d.ndjson", round, i), bytes.Join(part, nil)))
	}
	importer, stdin := c.startImport(append(slices.Clone(files[:3]), "-")...)
	before := c.receiver.count()
	if victim == crashServer {
		// Everything is on its way but the end of the stream.
		crashFeed(stdin, parts[3])
		c.receiver.until(c.t, before+c.random.IntN(len(lines)/2))
		c.killServer()
		_ = stdin.Close() // the importer's status tells
		importer.want(0)
		crashReports(importer, parts)
		return
	}
	acknowledged := c.random.IntN(4)
	procUntil(c.t, "the importer has reported its files", func() bool { return len(crashCounts(importer)) >= acknowledged })
	if acknowledged == 3 {
		crashFeed(stdin, parts[3][:c.random.IntN(len(parts[3]))])
	}
	c.pause()
	importer.signal(syscall.SIGKILL)
	if victim == crashBoth {
		c.killServer()
	}
	<-importer.exited
	acknowledged = len(crashCounts(importer))

	again, _ := c.startImport(files...)
	again.want(0)
	for i, counts := range crashReports(again, parts) {
		if i < acknowledged && counts.Unchanged != counts.Read {
			c.t.Errorf("%s was reported before the kill, and importing it again: %s", files[i], procSum(counts))
		}
	}
}

// pause moves a kill away from the beginning of a batch.
func (c *crash) pause() { time.Sleep(time.Duration(c.random.IntN(20_000)) * time.Microsecond) }

func (c *crash) startImport(files ...string) (*proc, io.WriteCloser) {
	cmd := procCommand(append([]string{"programs", "import", "--json"}, files...), procEnv(c.db)...)
	stdin, err := cmd.StdinPipe()
	c.must(err)
	return procStart(c.t, cmd, nil), stdin
}

// crashFeed writes lines to an importer. One that has died says so itself.
func crashFeed(w io.Writer, lines [][]byte) { _, _ = w.Write(bytes.Join(lines, nil)) }

var crashCount = regexp.MustCompile(`(?m): (\d+) read, (\d+) created, (\d+) updated, (\d+) unchanged, (\d+) rejected$`)

// crashCounts reads what an importer has reported file by file.
func crashCounts(importer *proc) (all []importReport) {
	for _, m := range crashCount.FindAllStringSubmatch(importer.err.String(), -1) {
		n := make([]int, 6)
		for i := range n[1:] {
			n[i+1], _ = strconv.Atoi(m[i+1]) // digits
		}
		all = append(all, importReport{Read: n[1], Created: n[2], Updated: n[3], Unchanged: n[4], Rejected: n[5]})
	}
	return all
}

// crashReports checks that an importer has taken every record of its files,
// and that its reports add up to what it says in the end.
func crashReports(importer *proc, parts [][][]byte) []importReport {
	importer.t.Helper()
	var sum, total importReport
	importer.json(&total)
	counts := crashCounts(importer)
	if len(counts) != len(parts) {
		importer.t.Fatalf("%d files, %d reports:\n%s", len(parts), len(counts), importer.err)
	}
	for i, part := range parts {
		crashComplete(importer.t, counts[i], len(part))
		sum.Read, sum.Created = sum.Read+counts[i].Read, sum.Created+counts[i].Created
		sum.Updated, sum.Unchanged = sum.Updated+counts[i].Updated, sum.Unchanged+counts[i].Unchanged
	}
	if sum != total {
		importer.t.Errorf("the reports add up to %s, the total is %s", procSum(sum), procSum(total))
	}
	return counts
}

func crashComplete(t testing.TB, r importReport, records int) {
	t.Helper()
	if r.Read != records || r.Created+r.Updated+r.Unchanged != records || r.Rejected != 0 {
		t.Errorf("%d records were imported as %s", records, procSum(r))
	}
}

// roundByAPI imports by the API. The stream stays open so that the kill comes
// before its end; to kill the importer is to break off the connection.
func (c *crash) roundByAPI(lines [][]byte, victim crashVictim) {
	ctx, hangUp := context.WithCancel(c.t.Context())
	defer hangUp()
	body, stream := io.Pipe()
	broken := make(chan error, 1)
	go func() {
		_, err := c.post(ctx, body)
		broken <- err
	}()
	before := c.receiver.count()
	if victim == crashServer {
		crashFeed(stream, lines)
		c.receiver.until(c.t, before+c.random.IntN(len(lines)/4))
	} else {
		crashFeed(stream, lines[:c.random.IntN(len(lines))])
	}
	c.pause()
	if victim != crashServer {
		hangUp()
	}
	if victim != crashImporter {
		c.killServer()
	}
	_ = stream.CloseWithError(errors.New("broken off")) // the client waits for it
	if err := <-broken; err == nil {
		c.t.Error("an import was answered before its stream had ended")
	}
	report, err := c.post(c.t.Context(), bytes.NewReader(bytes.Join(lines, nil)))
	c.must(err)
	crashComplete(c.t, report, len(lines))
}

func (c *crash) post(ctx context.Context, lines io.Reader) (report importReport, err error) {
	req, err := http.NewRequestWithContext(ctx, "POST", c.client.base+"/v1/admin/programs", lines)
	if err != nil {
		return report, err
	}
	req.Header.Set("Authorization", "Bearer "+procToken)
	req.Header.Set("Content-Type", "application/x-ndjson")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return report, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body) // for the message
		return report, fmt.Errorf("%s: %s", resp.Status, text)
	}
	return report, json.NewDecoder(resp.Body).Decode(&report)
}

// killServer kills the server and starts it again.
func (c *crash) killServer() {
	c.kill()
	c.serverKills++
	c.procServer = procServeAs(c.t, c.client, c.db, crashEnv...)
}

// drained waits until every event has arrived where it has to.
func (c *crash) drained() {
	want := 0
	for _, p := range c.programs {
		for _, filtered := range p.events() {
			if want++; filtered {
				want++
			}
		}
	}
	for { // as long as something arrives
		got := c.receiver.distinct()
		if got >= want {
			return
		}
		procUntil(c.t, fmt.Sprintf("more than %d of %d deliveries have arrived", got, want), func() bool { return c.receiver.distinct() > got })
	}
}

// reimported imports the programs as they are in the end: nothing is new, so
// nothing that was reported is missing.
func (c *crash) reimported() {
	var all []byte
	for _, p := range c.programs {
		all = append(all, p.line(true)...)
	}
	importer, _ := c.startImport(procWrite(c.t, c.dir, "all.ndjson", all))
	importer.want(0)
	var report importReport
	importer.json(&report)
	if report != (importReport{Read: len(c.programs), Unchanged: len(c.programs)}) {
		c.t.Errorf("imported again, all should be unchanged: %s", procSum(report))
	}
}

// crashEvent is an event in the file.
type crashEvent struct {
	typ, program          string
	createdAt, occurredAt string
	data                  []byte
}

// check opens the file and holds it, and what arrived, against the programs.
func (c *crash) check() {
	db := storetest.Open(c.t, c.db) // the test's end checks the file's invariants
	c.checkPrograms(db)
	events := c.checkEvents(db)
	c.checkDeliveries(db, events)
	c.checkArrivals(db, events)
}

// crashRows reads rows of a query.
func crashRows(t testing.TB, db *store.DB, query string, row func(scan func(...any) error) error) {
	t.Helper()
	rows, err := db.Reader(t.Context()).Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			t.Fatal(err)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

// checkPrograms checks that every program is there as it has to be in the end.
func (c *crash) checkPrograms(db *store.DB) {
	stored := map[string]map[string]any{}
	crashRows(c.t, db, `SELECT unified_id, source FROM programs`, func(scan func(...any) error) error {
		var id, source string
		if err := scan(&id, &source); err != nil {
			return err
		}
		var fields map[string]any
		err := json.Unmarshal([]byte(source), &fields)
		stored[id] = fields
		return err
	})
	if len(stored) != len(c.programs) {
		c.t.Errorf("%d programs in the file, want %d", len(stored), len(c.programs))
	}
	for _, p := range c.programs {
		name, areas := p.name, p.areas
		if p.updated {
			name, areas = p.newName, p.newAreas
		}
		got := stored[p.id]
		if got["primary_name"] != name || got["amount_max_man_yen"] != float64(p.amount) || fmt.Sprint(got["prefectures"]) != fmt.Sprint(areas) {
			c.t.Errorf("%s is stored as %v", p.id, got)
		}
	}
}

// checkEvents checks that every change of a program has exactly its event, and
// returns the events by their ids.
func (c *crash) checkEvents(db *store.DB) map[string]crashEvent {
	events := map[string]crashEvent{}
	count := map[[2]string]int{}
	crashRows(c.t, db, `
		SELECT event_id, event_type, subject_id, created_at, strftime('%Y-%m-%dT%H:%M:%SZ', occurred_at_ms / 1000, 'unixepoch'), data
		FROM outbox_events`, func(scan func(...any) error) error {
		var id string
		var e crashEvent
		err := scan(&id, &e.typ, &e.program, &e.createdAt, &e.occurredAt, &e.data)
		events[id] = e
		count[[2]string{e.program, e.typ}]++
		return err
	})
	total := 0
	for _, p := range c.programs {
		for typ := range p.events() {
			total++
			if n := count[[2]string{p.id, typ}]; n != 1 {
				c.t.Errorf("%s has %d events %s, want 1", p.id, n, typ)
			}
		}
	}
	if len(events) != total {
		c.t.Errorf("%d events, want %d", len(events), total)
	}
	crashRows(c.t, db, `
		SELECT p.unified_id FROM programs p JOIN outbox_events e ON e.subject_id = p.unified_id
		WHERE e.event_type = 'program.updated' AND json_extract(CAST(e.data AS TEXT), '$.current_checksum') <> p.checksum`,
		func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			c.t.Errorf("the event of %s's update does not report its state", id)
			return err
		})
	return events
}

// crashPair is an event on its way to a subscription.
type crashPair struct{ path, event string }

// checkDeliveries checks that every event has exactly one delivery to each
// subscription that its program's data match, and that it ended well.
func (c *crash) checkDeliveries(db *store.DB, events map[string]crashEvent) {
	paths := map[string]string{c.everything.ID: "/everything", c.tokyo.ID: "/tokyo"}
	count := map[crashPair]int{}
	crashRows(c.t, db, `
		SELECT s.subscription_id, e.event_id, d.status
		FROM webhook_deliveries d JOIN outbox_events e ON e.seq = d.event_seq JOIN webhook_subscriptions s ON s.sub_seq = d.sub_seq`,
		func(scan func(...any) error) error {
			var sub, event, status string
			err := scan(&sub, &event, &status)
			if status != "success" {
				c.t.Errorf("the delivery of %s to %s is %s", event, paths[sub], status)
			}
			count[crashPair{paths[sub], event}]++
			return err
		})
	want := c.pairs(events)
	for pair := range want {
		if count[pair] != 1 {
			c.t.Errorf("%d deliveries of %s to %s, want 1", count[pair], pair.event, pair.path)
		}
	}
	if len(count) != len(want) {
		c.t.Errorf("%d deliveries, want %d", len(count), len(want))
	}
}

// pairs are what the programs' data say must be delivered.
func (c *crash) pairs(events map[string]crashEvent) map[crashPair]bool {
	programs := map[string]crashProgram{}
	for _, p := range c.programs {
		programs[p.id] = p
	}
	pairs := map[crashPair]bool{}
	for id, e := range events {
		pairs[crashPair{"/everything", id}] = true
		if programs[e.program].events()[e.typ] {
			pairs[crashPair{"/tokyo", id}] = true
		}
	}
	return pairs
}

// checkArrivals checks that everything has arrived, with the bytes that follow
// from the event, and that not more was sent than was written down and was in
// flight at the kills.
func (c *crash) checkArrivals(db *store.DB, events map[string]crashEvent) {
	r := c.receiver
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, problem := range r.problems {
		c.t.Error(problem)
	}
	want := c.pairs(events)
	repeated := 0
	for pair := range want {
		body := events[pair.event].body(pair, c.everything.ID, c.tokyo.ID)
		switch got := r.arrived[pair]; {
		case got.times == 0:
			c.t.Errorf("%s has not arrived at %s", pair.event, pair.path)
		case got.body != sha256.Sum256([]byte(body)):
			c.t.Errorf("%s arrived at %s with other bytes than %s", pair.event, pair.path, body)
		default:
			repeated += got.times - 1
		}
	}
	if len(r.arrived) != len(want) {
		c.t.Errorf("%d events have arrived, want %d", len(r.arrived), len(want))
	}
	var attempts int
	crashRows(c.t, db, `SELECT SUM(attempt_count) FROM webhook_deliveries`, func(scan func(...any) error) error { return scan(&attempts) })
	if lost := r.requests - attempts; lost < 0 || lost > c.serverKills*crashUnwritten {
		c.t.Errorf("%d requests have arrived, %d are written down: after %d kills, each with at most %d on their way", r.requests, attempts, c.serverKills, crashUnwritten)
	}
	c.t.Logf("%d kills, %d of them of the server; %d programs, %d events, %d deliveries, %d requests, %d repeated",
		c.kills, c.serverKills, len(c.programs), len(events), len(want), r.requests, repeated)
}

// body is what has to be sent of an event.
func (e crashEvent) body(pair crashPair, everything, tokyo string) string {
	if pair.path == "/everything" {
		return fmt.Sprintf(`{"version":"v1","event_id":"%s","event_type":"%s","created_at":"%s","subscription_id":"%s","data":%s}`,
			pair.event, e.typ, e.createdAt, everything, e.data)
	}
	return fmt.Sprintf(`{"version":"v2","event_id":"%s","type":"%s","occurred_at":"%s","partner_id":null,"subject":{"type":"program","id":"%s"},`+
		`"schema_version":"1","correlation_id":null,"subscription_id":"%s","data":%s}`,
		pair.event, e.typ, e.occurredAt, e.program, tokyo, e.data)
}

// crashReceiver accepts everything and remembers of each event how often and
// with which bytes it came.
type crashReceiver struct {
	url string

	mu       sync.Mutex
	arrived  map[crashPair]crashArrival
	requests int
	problems []string
}

type crashArrival struct {
	body  [sha256.Size]byte
	times int
}

func newCrashReceiver(t *testing.T) *crashReceiver {
	r := &crashReceiver{arrived: map[crashPair]crashArrival{}}
	r.url = procHandle(t, r)
	return r
}

// ServeHTTP implements http.Handler.
func (r *crashReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // its sender was killed: it has said nothing
	}
	sum := sha256.Sum256(body)
	pair := crashPair{req.URL.Path, strings.Clone(req.Header.Get("webhook-id"))}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	before := r.arrived[pair]
	if before.times > 0 && before.body != sum {
		r.problems = append(r.problems, fmt.Sprintf("%s came again with other bytes: %s", pair.event, body))
	}
	r.arrived[pair] = crashArrival{sum, before.times + 1}
	w.WriteHeader(http.StatusNoContent)
}

func (r *crashReceiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests
}

func (r *crashReceiver) distinct() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.arrived)
}

// until waits for a number of requests.
func (r *crashReceiver) until(t testing.TB, requests int) {
	t.Helper()
	procUntil(t, fmt.Sprintf("%d requests have come", requests), func() bool { return r.count() >= requests })
}
