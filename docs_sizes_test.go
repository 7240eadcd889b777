package main

import (
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// sizeConn counts what arrives over a connection.
type sizeConn struct {
	net.Conn
	read *atomic.Int64
}

// Read implements net.Conn.
func (c sizeConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

// sizeListener counts what arrives, over all its connections.
type sizeListener struct {
	net.Listener
	read atomic.Int64
}

// Accept implements net.Listener.
func (l *sizeListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return sizeConn{conn, &l.read}, nil
}

// size is what a request had on the wire.
type size struct{ body, all int }

// sizeReceiver is an endpoint that weighs requests, one at a time, by their
// event type. Each has a connection of its own.
func sizeReceiver(t *testing.T) (url string, sizes func() map[string]size) {
	var mu sync.Mutex
	seen := map[string]size{}
	counted := &sizeListener{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		seen[r.Header.Get("X-Jpintel-Event")] = size{len(body), int(counted.read.Swap(0))}
		w.WriteHeader(http.StatusNoContent)
	}))
	counted.Listener = server.Listener
	server.Listener = counted
	server.Config.SetKeepAlivesEnabled(false)
	server.Start()
	t.Cleanup(server.Close)
	return server.URL + "/webhooks/jpintel", func() map[string]size {
		mu.Lock()
		defer mu.Unlock()
		copied := map[string]size{}
		for name, s := range seen {
			copied[name] = s
		}
		return copied
	}
}

// TestDocsSizes weighs what a running server sends against the table in
// docs/volumes.md: it claims no less, and not much more.
func TestDocsSizes(t *testing.T) {
	url, sizes := sizeReceiver(t)
	s := newServer(t)
	c := s.customer("cus_sizes", "paid")
	c.subscribeWith(map[string]any{"url": url, "events": []string{"program.created", "program.updated", "adoption.published"}})
	arrive := func(eventType string) {
		eventually(t, func() bool { _, ok := sizes()[eventType]; return ok })
	}
	const program = `{"primary_name":"省エネ設備更新補助金","prefectures":["奈良県"],"amount_max_man_yen":AMOUNT,"source_url":"https://www.jgrants-portal.go.jp/subsidy/7f3c21"}`
	s.admin.call("PUT", "/v1/admin/programs/UNI-7f3c21", strings.Replace(program, "AMOUNT", "300", 1), 201)
	arrive("program.created")
	s.admin.call("PUT", "/v1/admin/programs/UNI-7f3c21", strings.Replace(program, "AMOUNT", "400", 1), 200)
	arrive("program.updated")
	s.admin.call("POST", "/v1/admin/adoptions", `{"adoption_id":"ADP-2026-0042","program_id":"UNI-7f3c21","year":2026,"count_added":42,"evidence_url":"https://info.gbiz.go.jp/example"}`, 201)
	arrive("adoption.published")

	text := docsFiles(t)["docs/volumes.md"]
	for name, got := range sizes() {
		row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(name) + "` \\| ([\\d,]+) \\| ([\\d,]+) \\| ([\\d,]+) \\|$").FindStringSubmatch(text)
		if row == nil {
			t.Errorf("docs/volumes.md does not tell the size of %s: %+v", name, got)
			continue
		}
		for i, measured := range []int{got.all - got.body, got.body, got.all} {
			claimed, err := strconv.Atoi(strings.ReplaceAll(row[i+1], ",", ""))
			if err != nil || measured > claimed || measured < claimed*8/10 {
				t.Errorf("%s: %s, measured %d (headers, body, all: number %d)", name, row[i+1], measured, i+1)
			}
		}
	}
	if len(sizes()) != 3 || !strings.Contains(text, "TestDocsSizes") {
		t.Errorf("weighed %v", sizes())
	}
}

// The worked example in docs/volumes.md follows from the tables above it.
func TestDocsVolumes(t *testing.T) {
	text := docsFiles(t)["docs/volumes.md"]
	most := func(row string) (sum, largest float64) {
		for _, found := range regexp.MustCompile(row).FindAllStringSubmatch(text, -1) {
			n, err := strconv.ParseFloat(strings.ReplaceAll(found[1], ",", ""), 64)
			if err != nil {
				t.Fatal(err)
			}
			sum, largest = sum+n, max(largest, n)
		}
		return sum, largest
	}
	events, _ := most("(?m)^\\| `[a-z_.]+` \\| \\d+–([\\d,]+) \\|$")
	_, bytes := most("(?m)^\\| `[a-z_.]+` \\| [\\d,]+ \\| [\\d,]+ \\| ([\\d,]+) \\|$")
	limit, err := strconv.ParseFloat(docsDefault(t, "JPINTEL_WEBHOOK_DAILY_CAP"), 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{
		fmt.Sprintf("about %s a month", docsWords(strconv.Itoa(int(events)))),
		fmt.Sprintf("%.0f bytes a\nrequest", bytes),
		fmt.Sprintf("%.0f × %s × 100 × 1.1 = %.0f MB a month", bytes, docsWords(strconv.Itoa(int(events))), bytes*events*100*1.1/1e6),
		fmt.Sprintf("attempts × %.0f bytes =\n%.1f MB a day", bytes, bytes*limit/1e6),
		fmt.Sprintf("about %.0f MB a day", math.Floor((64<<10+bytes)*limit/1e7)*10),
	} {
		if !strings.Contains(text, words) {
			t.Errorf("docs/volumes.md does not say %q", words)
		}
	}
}
