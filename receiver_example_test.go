package main

import (
	"bytes"
	"database/sql"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
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
	db, err := sql.Open("sqlite", database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var events, done, programs int
	if err := db.QueryRow(`SELECT COUNT(*), SUM(done), (SELECT COUNT(*) FROM programs WHERE unified_id = 'UNI-example') FROM inbox`).Scan(&events, &done, &programs); err != nil {
		t.Fatal(err)
	}
	if events != 1 || done != 1 || programs != 1 {
		t.Errorf("%d events, %d done, %d programs; want one of each", events, done, programs)
	}
}
