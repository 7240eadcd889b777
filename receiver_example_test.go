package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// exampleStart starts docs/verify/receiver.py with these secrets on a file, and
// returns its address.
func exampleStart(t *testing.T, database string, secrets ...string) (*proc, string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		oracleMissing(t, "docs/verify/receiver.py", "python3 is not in PATH")
	}
	cmd := exec.Command(python, "docs/verify/receiver.py", "--port", "0", "--db", database)
	cmd.Env = append(os.Environ(), "JPINTEL_WEBHOOK_SECRETS="+strings.Join(secrets, ","), "PYTHONDONTWRITEBYTECODE=1")
	address := make(chan string, 1)
	p := procStart(t, cmd, func(line []byte) {
		if at, ok := bytes.CutPrefix(line, []byte("listening on ")); ok {
			address <- string(at)
		}
	})
	select {
	case at := <-address:
		return p, at
	case <-p.exited:
		t.Fatalf("receiver.py did not start: %s", p.err)
	}
	return nil, ""
}

// exampleSend gives the example what arrived, as it came, and returns its status.
func exampleSend(t *testing.T, url string, r procRequest, body []byte) int {
	req, err := http.NewRequest("POST", url, bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Header = r.Header
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestReceiverExample has a delivery come to docs/verify/receiver.py three
// times: the first attempt twice, the second because its answer was lost. The
// event is applied once.
func TestReceiverExample(t *testing.T) {
	var mu sync.Mutex
	var url string // of the example, which needs the secret first
	seen, statuses := map[string]bool{}, map[int]int{}
	between := procReceive(t, func(r procRequest) int {
		mu.Lock()
		defer mu.Unlock()
		first := exampleSend(t, url, r, r.Body)
		statuses[first]++
		if seen[r.Header.Get("webhook-id")] {
			return first
		}
		seen[r.Header.Get("webhook-id")] = true
		statuses[exampleSend(t, url, r, r.Body)]++
		statuses[exampleSend(t, url, r, append(bytes.Clone(r.Body), ' '))]++
		return http.StatusInternalServerError // the answer is lost
	})
	server := procServe(t, t.TempDir()+"/jpintel.db")
	server.customer("cus_example")
	sub := server.subscribe(between.url, map[string]any{"envelope": "v2"})
	database := filepath.Join(t.TempDir(), "inbox.db")
	mu.Lock()
	example, at := exampleStart(t, database, "whsec_"+strings.Repeat("0", 64), sub.Secret)
	url = at
	mu.Unlock()
	server.put("UNI-example", map[string]any{"primary_name": "省エネ設備更新補助金"})
	procUntil(t, "the second attempt has come", func() bool { return len(between.got()) == 2 })
	procUntil(t, "the event is applied", func() bool { return example.out.contains("applied evt_") })
	server.settled(sub)
	server.stop()
	mu.Lock()
	defer mu.Unlock()
	if statuses[204] != 3 || statuses[401] != 1 || len(statuses) != 2 {
		t.Errorf("answered %v, want 204 three times and 401 once", statuses)
	}
	if n := strings.Count(example.out.String(), "applied evt_"); n != 1 {
		t.Errorf("applied %d times: %s", n, example.out)
	}
	example.kill()
	if example.err.String() != "" {
		t.Errorf("on standard error: %s", example.err)
	}
	exampleWant(t, database, `SELECT COUNT(*) || ' ' || SUM(done) || ' ' || (SELECT group_concat(unified_id) FROM to_read) FROM inbox`, "1 1 UNI-example")
}

// exampleWant asks the example's file.
func exampleWant(t *testing.T, database, query, want string) {
	t.Helper()
	db, err := sql.Open("sqlite", database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var got string
	if err := db.QueryRow(query).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("%s: %q, want %q", query, got, want)
	}
}

// TestReceiverExampleInAnyOrder gives docs/verify/receiver.py events that come in
// another order than they happened, and two that report the same booking.
func TestReceiverExampleInAnyOrder(t *testing.T) {
	secret := "whsec_" + strings.Repeat("0f", 32)
	database := filepath.Join(t.TempDir(), "inbox.db")
	example, url := exampleStart(t, database, secret)
	bodies := []string{
		`{"event_id":"evt_3","event_type":"key.status_changed","data":{"key_id":"key_1","current_status":"active","version":3}}`,
		`{"event_id":"evt_2","event_type":"key.status_changed","data":{"key_id":"key_1","current_status":"frozen","version":2}}`,
		`{"event_id":"evt_4","type":"credit.adjustment_posted","data":{"source_id":"pi_1","amount":"25.00","currency":"USD"}}`,
		`{"event_id":"evt_5","type":"credit.adjustment_posted","data":{"source_id":"pi_1","amount":"25.00","currency":"USD"}}`,
		`{"event_id":"evt_6","event_type":"of.tomorrow","data":{}}`,
	}
	for _, body := range bodies {
		now := strconv.FormatInt(time.Now().Unix(), 10)
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(now + "." + body))
		header := http.Header{"X-Jpintel-Signature": {"t=" + now + ",v1=" + hex.EncodeToString(mac.Sum(nil))}}
		if status := exampleSend(t, url, procRequest{Header: header}, []byte(body)); status != http.StatusNoContent {
			t.Errorf("%s: %d", body, status)
		}
	}
	procUntil(t, "all are applied", func() bool { return strings.Count(example.out.String(), "applied evt_") == len(bodies) })
	exampleWant(t, database, `SELECT group_concat(key_id || status || version) FROM model_keys`, "key_1active3")
	exampleWant(t, database, `SELECT group_concat(source_id || ' ' || amount) FROM bookings`, "pi_1 25.00")
}
