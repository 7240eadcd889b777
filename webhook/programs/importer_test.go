package programs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"jpintel/store"
)

func line(id, rest string) string {
	return `{"unified_id":"` + id + `","primary_name":"a"` + rest + "}\n"
}

// wantReport compares everything but the errors' texts, of which it wants parts.
func wantReport(t testing.TB, got, want Report) {
	t.Helper()
	short := got
	short.Errors = nil
	for _, e := range got.Errors {
		for _, w := range want.Errors {
			if e.Line == w.Line && e.ID == w.ID && strings.Contains(e.Error, w.Error) {
				e.Error = w.Error
				break
			}
		}
		short.Errors = append(short.Errors, e)
	}
	if got.Errors == nil || !reflect.DeepEqual(short, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestImportLines(t *testing.T) {
	s := newService(t)
	text := "\xef\xbb\xbf" + line("UNI-1", "") + "\r\n" + line("UNI-2", `,"x":1`) + "  \t" + line("UNI-1", "")
	wantReport(t, load(t, s, text), Report{Read: 3, Created: 2, Unchanged: 1})
	wantReport(t, load(t, s, text), Report{Read: 3, Unchanged: 3})
	wantReport(t, load(t, s, `{"unified_id":"UNI-2","x":2}`), Report{Read: 1, Updated: 1})
	if got := storedSource(t, s, "UNI-2"); got != `{"primary_name":"a","x":2}` {
		t.Errorf("stored %s", got)
	}
	wantReport(t, load(t, s, " \n\n"), Report{})
	wantReport(t, load(t, s, ""), Report{})
}

func TestImportNamesWhatItRejects(t *testing.T) {
	s := newService(t)
	text := line("UNI-1", "") +
		"nonsense\n" +
		line("UNI-2", `,"amount_max_man_yen":-1`) +
		"\n" +
		`{"unified_id":"UNI-3"}` + "\n" +
		`{"primary_name":"a"}` + "\n" +
		line("UNI-4", `,"x":"`+strings.Repeat("x", maxLine)+`"`) +
		line("UNI-5", `,"x":"`+strings.Repeat("x", maxSource)+`"`) +
		line("UNI-6", ",\"x\":\"\xff\"") +
		line("a b", "") +
		`{"unified_id":"UNI-1","primary_name":null}` + "\n" +
		line("UNI-7", "")[:10] + "\n" +
		line("UNI-8", "")
	wantReport(t, load(t, s, text), Report{Read: 12, Created: 2, Rejected: 10, Errors: []ImportError{
		{2, "", "not JSON"},
		{3, "UNI-2", "amount_max_man_yen"},
		{5, "UNI-3", "primary_name"},
		{6, "", "unified_id"},
		{7, "", "longer than"},
		{8, "UNI-5", "bytes"},
		{9, "", "UTF-8"},
		{10, "a b", "unified_id"},
		{11, "UNI-1", "primary_name"},
		{12, "", "not JSON"},
	}})
	if got := count(t, s, "programs"); got != 2 {
		t.Errorf("%d programs", got)
	}
}

func TestImportPortal(t *testing.T) {
	s := newService(t)
	const records = `[{"id":"d1","title":"a","target_area_search":"奈良県"},{"id":"d2","title":"b","subsidy_max_limit":-1},{"unified_id":"UNI-3","primary_name":"c"},7]`
	rejected := []ImportError{{0, "UNI-d2", "record 2: subsidy_max_limit"}, {0, "", "record 4: want a JSON object"}}
	for name, text := range map[string]string{
		"an answer":            `{"metadata":{"resultset":{"count":3}},"result":` + records + `}`,
		"without metadata":     `{"result":` + records + `}`,
		"metadata behind":      `{"result":` + records + `,"metadata":{"unified_id":1,"result":[]}}`,
		"on several lines":     "\xef\xbb\xbf {\n \"metadata\": {},\n \"result\":\n" + strings.ReplaceAll(records, ",", ",\n") + "\n}\n",
		"a list":               records,
		"answers in a row":     `{"result":[]}` + "\n" + `{"result":` + records + `} []`,
		"a unified_id further": `{"result":` + records + `,"unified_id":"x"` + "\n}",
	} {
		t.Run(name, func(t *testing.T) {
			exec(t, s, `DELETE FROM programs`)
			wantReport(t, load(t, s, text), Report{Read: 4, Created: 2, Rejected: 2, Errors: rejected})
			wantReport(t, load(t, s, text), Report{Read: 4, Unchanged: 2, Rejected: 2, Errors: rejected})
			if got := storedSource(t, s, "UNI-d1"); got != `{"authority_level":"prefecture","prefectures":["奈良県"],"primary_name":"a"}` {
				t.Errorf("stored %s", got)
			}
		})
	}
}

func TestImportTellsLinesFromThePortal(t *testing.T) {
	for text, portal := range map[string]bool{
		`[`:                                   true,
		"\n [1]":                              true,
		`{"result":[`:                         true,
		`{"metadata":{"a":[1]},"result":[`:    true,
		`{"result":{}}`:                       false,
		`{"unified_id":"a","result":[1]}`:     false,
		`{"result":[1],"unified_id":"a"}`:     false,
		`{"unified_id":"a","x`:                false,
		`{"x":1}` + "\n" + `{"result":[1]}`:   false,
		`{"x":` + "\n" + `{"result":[1]}`:     false,
		`nonsense` + "\n" + `{"result":[1]}`:  false,
		``:                                    false,
		`{`:                                   false,
		`{"a":1,` + "\n" + `"unified_id":"a"`: false,
	} {
		if got := isPortal([]byte(text)); got != portal {
			t.Errorf("isPortal(%q) = %v", text, got)
		}
	}
}

func TestImportOfABrokenAnswer(t *testing.T) {
	s := newService(t)
	const two = `{"id":"d1","title":"a"},{"id":"d2","title":"b"}`
	for name, c := range map[string]struct{ text, part string }{
		"cut in a record":         {`{"result":[` + two + `,{"id":"d3","ti`, "record 3: the JSON ends in the middle"},
		"cut in a text":           {`{"result":[` + two + `,{"id":"d3`, "record 3: the JSON ends in the middle"},
		"cut behind a record":     {`{"result":[` + two, "record 3: the JSON ends in the middle"},
		"cut behind a comma":      {`{"result":[` + two + `,`, "record 3: the JSON ends in the middle"},
		"cut behind the list":     {`{"result":[` + two + `]`, "record 3: the JSON ends in the middle"},
		"cut in what follows":     {`{"result":[` + two + `],"metadata":{"a`, "record 3: the JSON ends in the middle"},
		"a bare list cut":         {`[` + two, "record 3: the JSON ends in the middle"},
		"no JSON in between":      {`[` + two + `,nonsense,{"id":"d3","title":"c"}]`, "record 3: invalid character"},
		"the wrong bracket":       {`[` + two + `}`, "record 3: invalid character"},
		"something behind":        {`[` + two + `] nonsense`, "record 3: invalid character"},
		"another value behind":    {`[` + two + `] 7`, "record 3: want the portal's JSON"},
		"a result that's no list": {`[` + two + `] {"result":7}`, "record 3: result: want a list"},
	} {
		t.Run(name, func(t *testing.T) {
			exec(t, s, `DELETE FROM programs`)
			wantReport(t, load(t, s, c.text), Report{Read: 3, Created: 2, Rejected: 1, Errors: []ImportError{{0, "", c.part}}})
		})
	}
}

// blank is as many spaces as anybody wants to read.
type blank struct{ read int }

func (b *blank) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	b.read += len(p)
	return len(p), nil
}

func TestImportBoundsARecordOfThePortal(t *testing.T) {
	s := newService(t)
	endless := &blank{}
	got, err := s.Import(t.Context(), io.MultiReader(strings.NewReader(`[{"id":"d1","title":"a"},{"id":"`), endless), ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantReport(t, got, Report{Read: 2, Created: 1, Rejected: 1, Errors: []ImportError{{0, "", "record 2: longer than"}}})
	if endless.read > sniff+maxPortalRecord {
		t.Errorf("read %d bytes", endless.read)
	}
}

func TestImportBoundsALine(t *testing.T) {
	s := newService(t)
	exact := line("UNI-1", "")
	exact = strings.Repeat(" ", maxLine-len(exact)+1) + exact // the line break does not count
	wantReport(t, load(t, s, line("UNI-0", "")+exact+" "+exact), Report{Read: 3, Created: 2, Rejected: 1, Errors: []ImportError{{3, "", "longer than"}}})
}

func TestImportStopsWhereReadingFails(t *testing.T) {
	gone := errors.New("connection reset")
	long := strings.Repeat(" ", sniff) // so that it is not the look ahead that fails
	for name, text := range map[string]string{
		"lines":  long + strings.Repeat(line("UNI-1", ""), 3) + line("UNI-2", "")[:20],
		"portal": `{"result":[` + long + `{"id":"d1","title":"a"},{"id":"d1","title":"a"},{"id":"d1","title":"a"},{"id":`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			got, err := s.Import(t.Context(), io.MultiReader(strings.NewReader(text), iotest.ErrReader(gone)), ImportOptions{})
			if !errors.Is(err, gone) {
				t.Errorf("error %v", err)
			}
			wantReport(t, got, Report{Read: 3, Created: 1, Unchanged: 2})
		})
	}
	if _, err := newService(t).Import(t.Context(), iotest.ErrReader(gone), ImportOptions{}); !errors.Is(err, gone) {
		t.Errorf("at the beginning: %v", err)
	}
}

func TestImportWorksOnAnyReader(t *testing.T) {
	s := newService(t)
	text := []byte(line("UNI-1", "") + line("UNI-2", ""))
	for i, r := range []io.Reader{
		iotest.OneByteReader(bytes.NewReader(text)), iotest.HalfReader(bytes.NewReader(text)), iotest.DataErrReader(bytes.NewReader(text)),
		iotest.OneByteReader(strings.NewReader(`{"result":[{"unified_id":"UNI-1"},{"unified_id":"UNI-2"}]}`)),
	} {
		got, err := s.Import(t.Context(), r, ImportOptions{})
		if err != nil || got.Read != 2 || got.Rejected != 0 {
			t.Errorf("reader %d: %+v, %v", i, got, err)
		}
	}
}

func manyLines(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(line(fmt.Sprintf("UNI-%04d", i), ""))
	}
	return b.String()
}

func TestImportCountsWhatIsOnDisk(t *testing.T) {
	s := newService(t)
	var steps []int
	got, err := s.Import(t.Context(), strings.NewReader(manyLines(2*maxBatch+1)), ImportOptions{Progress: func(r Report) {
		if stored := count(t, s, "programs"); stored != r.Created {
			t.Errorf("counted %d, stored %d", r.Created, stored)
		}
		steps = append(steps, r.Read)
	}})
	if err != nil || got.Created != 2*maxBatch+1 {
		t.Errorf("%+v, %v", got, err)
	}
	if want := []int{maxBatch, 2 * maxBatch, 2*maxBatch + 1}; !reflect.DeepEqual(steps, want) {
		t.Errorf("progress %v, want %v", steps, want)
	}
}

func TestImportStopsWhereTheStoreFails(t *testing.T) {
	s := newService(t)
	mend := failPublish(t, s, fmt.Sprintf("NEW.subject_id = 'UNI-%04d'", maxBatch+5))
	text := "nonsense\n" + manyLines(3*maxBatch)
	got, err := s.Import(t.Context(), strings.NewReader(text), ImportOptions{})
	if err == nil || store.CodeOf(err) != "" {
		t.Errorf("error %v, want an internal one", err)
	}
	wantReport(t, got, Report{Read: maxBatch, Created: maxBatch - 1, Rejected: 1, Errors: []ImportError{{1, "", "not JSON"}}})
	if programs, published := count(t, s, "programs"), count(t, s, "outbox_events"); programs != maxBatch-1 || published != maxBatch-1 {
		t.Errorf("%d programs, %d events", programs, published)
	}
	mend()
	wantReport(t, load(t, s, text), Report{Read: 3*maxBatch + 1, Created: 2*maxBatch + 1, Unchanged: maxBatch - 1, Rejected: 1, Errors: []ImportError{{1, "", "not JSON"}}})
}

func TestImportEndsWithItsContext(t *testing.T) {
	s := newService(t)
	ctx, cancel := context.WithCancel(t.Context())
	got, err := s.Import(ctx, strings.NewReader(manyLines(3*maxBatch)), ImportOptions{Progress: func(Report) { cancel() }})
	if !errors.Is(err, context.Canceled) || got.Created != maxBatch || count(t, s, "programs") != maxBatch {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestReportNamesTheFirstHundred(t *testing.T) {
	s := newService(t)
	got := load(t, s, strings.Repeat("x\n", 250))
	if got.Rejected != 250 || got.Read != 250 || len(got.Errors) != maxReported || got.Errors[99].Line != 100 {
		t.Errorf("%d of %d, %d named", got.Rejected, got.Read, len(got.Errors))
	}
	var sum Report
	sum.Add(Report{Read: 4, Created: 1, Updated: 1, Unchanged: 2})
	sum.Add(got)
	sum.Add(got)
	if sum.Read != 504 || sum.Rejected != 500 || sum.Created != 1 || sum.Updated != 1 || sum.Unchanged != 2 || len(sum.Errors) != maxReported {
		t.Errorf("sum %+v", sum)
	}
}

func TestReportRepeatsLittleOfAnID(t *testing.T) {
	got := load(t, newService(t), line(strings.Repeat("奈", 1000), ""))
	if id := got.Errors[0].ID; len(id) == 0 || len(id) > maxEcho || !strings.HasPrefix(strings.Repeat("奈", 1000), id) {
		t.Errorf("named %q", id)
	}
}

func TestImportsBesideEachOther(t *testing.T) {
	s := newService(t)
	const n = 3*maxBatch + 7
	var reports [3]Report
	var all sync.WaitGroup
	for i := range reports {
		all.Go(func() {
			var err error
			if reports[i], err = s.Import(t.Context(), strings.NewReader(manyLines(n)), ImportOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	var sum Report
	for _, r := range reports {
		sum.Add(r)
	}
	if sum.Created != n || sum.Unchanged != 2*n || count(t, s, "outbox_events") != n {
		t.Errorf("%+v, %d events", sum, count(t, s, "outbox_events"))
	}
}
