package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// oracleLibraries are the npm packages that judge.
var oracleLibraries = []string{"standardwebhooks", "stripe", "svix"}

// TestOfficialLibraries lets the official libraries, unmodified, verify what a
// running server has sent, with the one secret that the customer was shown.
func TestOfficialLibraries(t *testing.T) {
	oracle := oracleStart(t, "verify.mjs")
	receiver := procReceive(t, nil)
	server := procServe(t, t.TempDir()+"/jpintel.db")
	server.customer("cus_oracle")
	secrets := map[string]string{} // by path
	for path, envelope := range map[string]string{"/one": "v1", "/two": "v2"} {
		secrets[path] = server.subscribe(receiver.url+path, map[string]any{"envelope": envelope}).Secret
	}
	names := []string{"plain", "電波遮へい対策事業（トンネル）", `<b>"quoted" & \escaped\</b>`, "𠮷野家 𝛀 \u2028 é", strings.Repeat("長い名前", 300)}
	for i, name := range names {
		server.put("UNI-oracle-"+string(rune('a'+i)), map[string]any{"primary_name": name, "prefectures": []string{"京都府"}})
	}
	procUntil(t, "everything has arrived", func() bool { return len(receiver.got()) >= len(names)*len(secrets) })
	server.stop()

	for _, got := range receiver.got() {
		secret := secrets[got.Path]
		for name, tc := range map[string]struct {
			secret string
			header http.Header
			body   []byte
			accept bool
		}{
			"as it came":          {secret, got.Header, got.Body, true},
			"a flipped bit":       {secret, got.Header, oracleFlip(got.Body), false},
			"a byte more":         {secret, got.Header, append(bytes.Clone(got.Body), ' '), false},
			"another secret":      {secrets[oracleOther(got.Path)], got.Header, got.Body, false},
			"another time":        {secret, oracleLater(got.Header), got.Body, false},
			"without a signature": {secret, oracleUnsigned(got.Header), got.Body, false},
		} {
			verdict := oracle.judge(tc.secret, tc.header, tc.body)
			for _, library := range oracleLibraries {
				if verdict[library] != tc.accept {
					t.Errorf("%s, %s: %s says %v\n%s", got.Path, name, library, verdict[library], got.Body)
				}
			}
		}
	}
}

func oracleFlip(body []byte) []byte {
	flipped := bytes.Clone(body)
	flipped[len(flipped)/2] ^= 1
	return flipped
}

func oracleOther(path string) string { return map[string]string{"/one": "/two", "/two": "/one"}[path] }

// oracleLater moves the time by which both families were signed, by a second.
func oracleLater(h http.Header) http.Header {
	later := h.Clone()
	at := later.Get("webhook-timestamp")
	next := at[:len(at)-1] + string('0'+(at[len(at)-1]-'0'+1)%10)
	later.Set("webhook-timestamp", next)
	later.Set("X-Jpintel-Signature", strings.Replace(later.Get("X-Jpintel-Signature"), "t="+at, "t="+next, 1))
	return later
}

func oracleUnsigned(h http.Header) http.Header {
	unsigned := h.Clone()
	unsigned.Del("webhook-signature")
	unsigned.Del("X-Jpintel-Signature")
	return unsigned
}

// procOracle is a program of testdata/oracle, running: a line in, a line out.
type procOracle struct {
	t      *testing.T
	script string
	in     *json.Encoder
	out    *bufio.Reader
}

// oracleMissing skips a test whose judge is not there, but not in CI: there,
// nobody would notice.
func oracleMissing(t *testing.T, what, missing string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("not verified by %s: %s", what, missing)
	}
	t.Skipf("not verified by %s: %s", what, missing)
}

// oracleStart starts one of the judges.
func oracleStart(t *testing.T, script string) *procOracle {
	t.Helper()
	missing := ""
	if _, err := exec.LookPath("node"); err != nil {
		missing = "node is not in PATH"
	} else if _, err := os.Stat("testdata/oracle/node_modules"); err != nil {
		missing = "the libraries are not there: (cd testdata/oracle && npm ci)"
	}
	if missing != "" {
		oracleMissing(t, "the official libraries", missing)
	}
	cmd := exec.Command("node", script)
	cmd.Dir, cmd.Stderr = "testdata/oracle", os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // it has ended already, then Wait tells
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", script, err)
		}
	})
	return &procOracle{t, script, json.NewEncoder(in), bufio.NewReader(out)}
}

// ask puts a question, and reads the answer.
func (o *procOracle) ask(question map[string]any, answer any) {
	o.t.Helper()
	if err := o.in.Encode(question); err != nil {
		o.t.Fatal(err)
	}
	line, err := o.out.ReadBytes('\n')
	if err != nil {
		o.t.Fatalf("%s: %v", o.script, err)
	}
	if err := json.Unmarshal(line, answer); err != nil {
		o.t.Fatalf("%v in %s", err, line)
	}
}

// judge returns which libraries accept a request. One that refuses has to say
// why.
func (o *procOracle) judge(secret string, header http.Header, body []byte) map[string]bool {
	o.t.Helper()
	headers := map[string]string{}
	for name := range header {
		headers[strings.ToLower(name)] = header.Get(name)
	}
	var verdict struct {
		Stripe, StandardWebhooks, Svix bool
		Errors                         map[string]string
	}
	o.ask(map[string]any{"secret": secret, "headers": headers, "body_base64": body}, &verdict)
	accepted := map[string]bool{"stripe": verdict.Stripe, "standardwebhooks": verdict.StandardWebhooks, "svix": verdict.Svix}
	for _, library := range slices.Sorted(maps.Keys(accepted)) {
		if accepted[library] == (verdict.Errors[library] != "") {
			o.t.Errorf("%s: accepted %v, and says %q", library, accepted[library], verdict.Errors[library])
		}
	}
	return accepted
}
