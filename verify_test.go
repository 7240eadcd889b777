package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"jpintel/webhook"
)

// verifyCase is one received request as the examples in docs/verify read it:
// the form of testdata/verify-vectors.json.
type verifyCase struct {
	Name    string            `json:"name"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
	Secret  string            `json:"secret"`
	Now     int64             `json:"now"`
	Accept  bool              `json:"accept"`
}

// verdict is the line that every example prints for a case.
func (c verifyCase) verdict() string {
	if c.Accept {
		return "accepted " + c.Name
	}
	return "rejected " + c.Name
}

// verifyExamples are the examples, by the program that runs each.
var verifyExamples = []struct{ program, file string }{
	{"python3", "docs/verify/verify.py"},
	{"node", "docs/verify/verify.mjs"},
	{"go", "docs/verify/go/verify.go"},
	{"ruby", "docs/verify/verify.rb"},
	{"php", "docs/verify/verify.php"},
}

// verifyEach runs a subtest with the command of each example.
func verifyEach(t *testing.T, test func(t *testing.T, command []string)) {
	for _, example := range verifyExamples {
		t.Run(example.program, func(t *testing.T) {
			program, err := exec.LookPath(example.program)
			if err != nil {
				oracleMissing(t, example.file, example.program+" is not in PATH")
			}
			command := []string{program, example.file}
			if example.program == "go" {
				command = []string{filepath.Join(t.TempDir(), "verify")}
				build := exec.Command(program, "build", "-o", command[0], "./"+filepath.Dir(example.file))
				build.Env = append(os.Environ(), "CGO_ENABLED=0")
				if out, err := build.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			test(t, command)
		})
	}
}

// verifyRun gives an example its cases and holds its verdicts against what they
// should be.
func verifyRun(t *testing.T, command []string, input string, cases []verifyCase) {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin = strings.NewReader(input)
	var words bytes.Buffer
	cmd.Stderr = &words
	out, err := cmd.Output()
	if err != nil || words.Len() > 0 {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, &words)
	}
	got := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(got) != len(cases) {
		t.Fatalf("%d verdicts on %d cases", len(got), len(cases))
	}
	for i, c := range cases {
		if got[i] != c.verdict() {
			t.Errorf("%q, want %q", got[i], c.verdict())
		}
	}
}

// refused is the case with a change that makes it one to refuse.
func (c verifyCase) refused(why, body string, now int64) verifyCase {
	c.Name, c.Body, c.Now, c.Accept = c.Name+", "+why, body, now, false
	return c
}

func verifyEncode(t *testing.T, cases any) string {
	t.Helper()
	text, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestVerifyExamples holds the examples against the vectors, from a file and
// one by one from standard input.
func TestVerifyExamples(t *testing.T) {
	const file = "testdata/verify-vectors.json"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cases []verifyCase
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(cases, func(c verifyCase) bool { return c.Accept }) || len(cases) < 50 {
		t.Fatalf("%d cases", len(cases))
	}
	verifyEach(t, func(t *testing.T, command []string) {
		verifyRun(t, append(command, file), "", cases)
		for _, i := range []int{0, slices.IndexFunc(cases, func(c verifyCase) bool { return !c.Accept })} {
			verifyRun(t, command, verifyEncode(t, cases[i]), cases[i:i+1])
		}
	})
}

// TestVerifyExamplesOnDeliveries holds the examples against what a running
// server has sent: before a rotation, and in it, with both secrets.
func TestVerifyExamplesOnDeliveries(t *testing.T) {
	receiver := procReceive(t, nil)
	server := procServe(t, t.TempDir()+"/jpintel.db")
	server.customer("cus_verify")
	sub := server.subscribe(receiver.url, nil)
	deliver := func(id string) procRequest {
		before := len(receiver.got())
		server.put(id, map[string]any{"primary_name": "省エネ <設備> & 更新 𠮷", "prefectures": []string{"奈良県"}})
		procUntil(t, id+" has arrived", func() bool { return len(receiver.got()) > before })
		return receiver.got()[before]
	}
	first := deliver("UNI-verify-1")
	var rotated webhook.RotateAnswer
	server.must(server.client.customer(t.Context(), "POST", "/v1/webhooks/subscriptions/"+sub.ID+"/rotate-secret", nil, &rotated))
	second := deliver("UNI-verify-2")
	server.must(server.client.customer(t.Context(), "POST", "/v1/webhooks/subscriptions/"+sub.ID+"/rotate-secret/finish", nil, nil))
	third := deliver("UNI-verify-3")
	server.stop()

	newest, oldest := rotated.SigningSecret, sub.Secret
	var cases []verifyCase
	for _, c := range []struct {
		name    string
		request procRequest
		secret  string
		accept  bool
	}{
		{"before the rotation, its secret", first, oldest, true},
		{"before the rotation, the later secret", first, newest, false},
		{"in the rotation, the new secret", second, newest, true},
		{"in the rotation, the old secret", second, oldest, true},
		{"in the rotation, another secret", second, "whsec_" + strings.Repeat("0", 64), false},
		{"after the rotation, the new secret", third, newest, true},
		{"after the rotation, the old secret", third, oldest, false},
	} {
		headers := map[string]string{}
		for name := range c.request.Header {
			headers[name] = c.request.Header.Get(name)
		}
		as := verifyCase{c.name, headers, string(c.request.Body), c.secret, c.request.At.Unix(), c.accept}
		cases = append(cases, as)
		if c.accept {
			cases = append(cases, as.refused("a byte more", as.Body+" ", as.Now), as.refused("ten minutes later", as.Body, as.Now+600))
		}
	}
	verifyEach(t, func(t *testing.T, command []string) {
		verifyRun(t, command, verifyEncode(t, cases), cases)
	})
}
