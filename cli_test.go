package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"jpintel/store/storetest"
)

// TestCommands plays the transcripts of testdata/cli, each in a folder and with
// an environment of its own. The program is jpintel; beyond testscript's own
// commands there are
//
//	exits STATUS COMMAND…   run a command, which must end with this status
//	isjson                  the last standard output is one line of JSON
//	capture NAME REGEXP     set a variable to what its group finds in the last standard output
//	serving                 start a server on JPINTEL_DB until the script ends
//	delivered               put a customer, a subscription and a delivered event into JPINTEL_DB; sets SUB, EVENT, DELIVERY
//	upstream ARGS…          start jpintel dev-upstream until the script ends; sets UPSTREAM and TOKEN
//	call STATUS METHOD URL [BODY]  call it with TOKEN and KEY, write what it answers to the file answer
//	until REGEXP COMMAND…   run a command again and again until it prints this
//	mode FILE BITS          FILE has these permissions, in octal
func TestCommands(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/cli", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", procBin+":"+os.Getenv("PATH"))
			e.Vars = append(e.Vars, procGORACE)
			samples, err := filepath.Abs("testdata/jgrants")
			e.Setenv("SAMPLES", samples)
			e.Values[cliTest{}] = e.T().(testing.TB)
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": cliExits, "isjson": cliIsJSON, "capture": cliCapture,
			"serving": cliServing, "delivered": cliDelivered, "mode": cliMode,
			"upstream": cliUpstream, "call": cliCall, "until": cliUntil,
		},
	})
}

// cliTest is the key of a script's test.
type cliTest struct{}

func cliExits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		got = failed.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

func cliIsJSON(ts *testscript.TestScript, _ bool, _ []string) {
	if out := ts.ReadFile("stdout"); !json.Valid([]byte(out)) || strings.Count(out, "\n") != 1 {
		ts.Fatalf("not one line of JSON: %s", out)
	}
}

func cliCapture(ts *testscript.TestScript, _ bool, args []string) {
	m := regexp.MustCompile(args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if len(m) != 2 {
		ts.Fatalf("no match for %s in %s", args[1], ts.ReadFile("stdout"))
	}
	ts.Setenv(args[0], m[1])
}

func cliServing(ts *testscript.TestScript, _ bool, _ []string) { cliServe(ts) }

func cliServe(ts *testscript.TestScript) *procServer {
	var environment []string
	for _, f := range configFields() {
		if v := ts.Getenv(f.name); v != "" && f.name != "JPINTEL_DB" {
			environment = append(environment, f.name+"="+v)
		}
	}
	return procServe(ts.Value(cliTest{}).(testing.TB), ts.MkAbs(ts.Getenv("JPINTEL_DB")), environment...)
}

func cliDelivered(ts *testscript.TestScript, _ bool, _ []string) {
	t := ts.Value(cliTest{}).(testing.TB)
	receiver := procReceive(t, nil)
	s := cliServe(ts)
	s.customer("cus_a")
	sub := s.subscribe(receiver.url+"/hook", map[string]any{"description": "for the transcript"})
	s.put("UNI-1", map[string]any{"primary_name": "補助金"})
	procUntil(t, "the event has arrived", func() bool { return len(receiver.got()) == 1 })
	s.settled(sub)
	s.stop()
	got := receiver.got()[0]
	ts.Setenv("SUB", sub.ID)
	ts.Setenv("EVENT", got.Header.Get("webhook-id"))
	ts.Setenv("DELIVERY", got.Header.Get("X-Jpintel-Delivery"))
	ts.Setenv("SECRET", sub.Secret)
}

func cliUpstream(ts *testscript.TestScript, _ bool, args []string) {
	t := ts.Value(cliTest{}).(testing.TB)
	lines := make(chan string, 2)
	p := procStart(t, procCommand(append([]string{"dev-upstream", "--addr", "127.0.0.1:0", "--json"}, args...)), func(line []byte) { lines <- string(line) })
	var line upstreamLine
	select {
	case text := <-lines:
		ts.Check(json.Unmarshal([]byte(text), &line))
	case <-p.exited:
		ts.Fatalf("it did not start: %s", p.err)
	case <-time.After(procPatience):
		ts.Fatalf("it does not serve")
	}
	ts.Setenv("UPSTREAM", line.BaseURL)
	ts.Setenv("CONTROL", strings.TrimSuffix(line.BaseURL, "/v1"))
	ts.Setenv("TOKEN", line.Token)
	ts.Defer(func() {
		p.signal(syscall.SIGTERM)
		p.want(exitDone)
		if got := strings.Count(p.out.String(), "\n"); got != 1 || p.err.String() != "" {
			t.Errorf("it has printed %d lines: %s%s", got, p.out, p.err)
		}
	})
}

func cliCall(ts *testscript.TestScript, _ bool, args []string) {
	body := ""
	if len(args) > 3 {
		body = args[3]
	}
	req, err := http.NewRequest(args[1], args[2], strings.NewReader(body))
	ts.Check(err)
	req.Header.Set("Authorization", "Bearer "+ts.Getenv("TOKEN"))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", ts.Getenv("KEY"))
	answer, err := http.DefaultClient.Do(req)
	ts.Check(err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	ts.Check(err)
	if strconv.Itoa(answer.StatusCode) != args[0] {
		ts.Fatalf("%s: status %d, want %s: %s", args[2], answer.StatusCode, args[0], text)
	}
	ts.Check(os.WriteFile(ts.MkAbs("answer"), text, 0o600))
}

func cliUntil(ts *testscript.TestScript, _ bool, args []string) {
	wanted := regexp.MustCompile(args[0])
	procUntil(ts.Value(cliTest{}).(testing.TB), strings.Join(args[1:], " ")+" prints "+args[0], func() bool {
		ts.Check(ts.Exec(args[1], args[2:]...))
		return wanted.MatchString(ts.ReadFile("stdout"))
	})
}

func cliMode(ts *testscript.TestScript, _ bool, args []string) {
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := strconv.FormatUint(uint64(info.Mode().Perm()), 8); got != args[1] {
		ts.Fatalf("%s has mode %s, want %s", args[0], got, args[1])
	}
}

// TestFirstCommandsAtOnce starts several commands in an empty folder: all of
// them work, on one file and with one set of keys.
func TestFirstCommandsAtOnce(t *testing.T) {
	rounds := 5
	if testing.Short() || procRace {
		rounds = 1
	}
	for range rounds {
		dir := t.TempDir()
		var all []*proc
		for i := range 4 {
			cmd := procCommand([]string{"customers", "add", "--id", "cus_" + strconv.Itoa(i)})
			cmd.Dir = dir
			all = append(all, procStart(t, cmd, nil))
		}
		for _, p := range all {
			p.want(exitDone)
		}
		list := procCommand([]string{"customers", "list", "--json"})
		list.Dir = dir
		p := procStart(t, list, nil)
		p.want(exitDone)
		if n := strings.Count(p.out.String(), `"customer_id"`); n != len(all) {
			t.Errorf("%d customers, want %d", n, len(all))
		}
		left, err := filepath.Glob(dir + "/*")
		if err != nil || len(left) != 3 {
			t.Errorf("the folder holds %q (%v), want the file, its keys and its lock", left, err)
		}
	}
}

// cliRun runs the program inside this process.
func cliRun(environment map[string]string, args ...string) (status int, stdout, stderr string) {
	var out, words strings.Builder
	err := run(context.Background(), args, func(name string) string { return environment[name] }, strings.NewReader(""), &out, &words)
	status = exitCode(err, &words)
	return status, out.String(), words.String()
}

// cliWrong has, for every variable, values that must stop the start. Those with
// none take anything.
var cliWrong = map[string][]string{
	"JPINTEL_DB":                           nil,
	"JPINTEL_ADDR":                         {"8080", "localhost", "127.0.0.1:"},
	"JPINTEL_ADMIN_TOKEN":                  {"short", strings.Repeat("x", 31)},
	"JPINTEL_MASTER_KEY":                   {"key", "k1:abc", "k1:" + strings.Repeat("0", 63), "k1:" + strings.Repeat("0", 64) + ",", "k1:" + strings.Repeat("0", 64) + ",k1:" + strings.Repeat("1", 64)},
	"JPINTEL_API_KEY_SALT":                 {"short", strings.Repeat("x", 15)},
	"JPINTEL_PUBLIC_URL":                   {"hooks.example.jp", "ftp://hooks.example.jp", "https://"},
	"JPINTEL_TIMEZONE":                     {"Asia/Edo", "JST+9"},
	"JPINTEL_WEBHOOK_GLOBAL_KILL_SWITCH":   {"on", "2"},
	"JPINTEL_WEBHOOK_ROLLOUT":              {"on", "GA", "alpha"},
	"JPINTEL_WEBHOOK_DISPATCH_CONCURRENCY": {"0", "-1", "many", "1.5"},
	"JPINTEL_WEBHOOK_ENDPOINT_CONCURRENCY": {"0", "-1", "many"},
	"JPINTEL_WEBHOOK_RATE":                 {"-1", "30/s"},
	"JPINTEL_LISTEN_SECRET":                {"secret", "jpk_0123"},
	"JPINTEL_WEBHOOK_DAILY_CAP":            {"-1", "10,000"},
	"JPINTEL_WEBHOOK_DEAD_LETTER_LIMIT":    {"-1", "few"},
	"JPINTEL_WEBHOOK_DISABLE_AFTER":        {"never", "7", "-1h"},
	"JPINTEL_WEBHOOK_WARN_AFTER":           {"never", "24", "-24h"},
	"JPINTEL_SMTP_URL":                     {"mail.example.jp", "http://mail.example.jp", "smtp://", "smtp://mail.example.jp:0", "smtp://mail.example.jp:65536", "smtp://mail.example.jp/inbox", "smtp://user@mail.example.jp", "smtp://user:pass word@mail.example.jp:%"},
	"JPINTEL_MAIL_FROM":                    {"hooks", "Jpintel hooks@example.jp", "hooks@example.jp\r\nBcc: all@example.jp"},
	"JPINTEL_WEBHOOK_ROTATION_GRACE":       {"1", "-1h", "later"},
	"JPINTEL_WEBHOOK_RETRY_SCHEDULE":       {"soon", "1m,soon", "1m,-5m", "1m;5m"},
	"JPINTEL_WEBHOOK_TICK":                 {"0s", "1", "-1s"},
	"JPINTEL_WEBHOOK_RETENTION":            {"30", "a month", "-1d"},
	"JPINTEL_EVENT_RETENTION":              {"90", "29d", "1h"},
	"JPINTEL_WEBHOOK_BRAND":                {"Jp intel", "1st", "Jpintel\r\nX-Evil: 1", strings.Repeat("J", 33)},
	"JPINTEL_WEBHOOK_PORTS":                {"https", "443,https", "65536", "-1"},
	"JPINTEL_WEBHOOK_ALLOW_CIDRS":          {"localhost", "127.0.0.1", "127.0.0.0/33"},
	"JPINTEL_WEBHOOK_ALLOW_HTTP":           {"yes", "2"},
	"JPINTEL_WEBHOOK_RESOLVER":             {"dns.example.jp", "127.0.0.1"},
	"MODELGATE_BASE_URL":                   {"partner.example", "http://partner.example/v1", "https://user:pass@partner.example", "https://partner.example/?x=1"},
	"MODELGATE_API_KEY":                    {"mgp_0123456789abcdef", "mgp with spaces"},
	"MODELGATE_MODELS":                     nil,
	"MODELGATE_TIMEOUT":                    {"0s", "soon", "21s"},
	"JPINTEL_BILLING_RETRY_BASE":           {"0s", "2", "-2s"},
	"JPINTEL_BILLING_SETTLE":               {"0s", "soon", "-1m"},
	"JPINTEL_BILLING_WORKERS":              {"0", "65", "-1", "many"},
	"JPINTEL_BILLING_KILL_SWITCH":          {"on", "2"},
	"JPINTEL_STRIPE_WEBHOOK_SECRETS":       {"secret", "whsec_short", "sk_live_0123456789abcdef0123", "whsec_0123456789abcdef,", "whsec_0123456789abcdef, whsec_0123456789abcdef"},
	"JPINTEL_STRIPE_LIVEMODE":              {"live", "2"},
	"JPINTEL_USAGE_POLL":                   {"0s", "1", "-1m", "often"},
	"JPINTEL_USAGE_SETTLE":                 {"0s", "1", "-1h"},
	"JPINTEL_WEBHOOK_ATTEMPT_PRICE":        {"-1", "+1", ".5", "5.", "1e3", "0,5", "half", "1.0000000000001", "00.5"},
	"JPINTEL_BILLING_SWEEP_EVERY":          {"59s", "1", "daily", "-24h"},
	"JPINTEL_STRIPE_API_KEY":               {"pk_live_0123456789abcdef", "sk_", "sk_live with spaces"},
	"JPINTEL_STRIPE_BASE_URL":              {"https://stripe.example", "http://api.stripe.com", "api.stripe.com", "https://api.stripe.com/v1"},
	"JPINTEL_API_RATE":                     {"-1", "20/s"},
	"JPINTEL_LOG_LEVEL":                    {"loud", "INFO"},
	"JPINTEL_LOG_FORMAT":                   {"xml"},
	"FLY_APP_NAME":                         nil,
}

// TestWrongConfiguration gives every variable values that mean nothing: the
// message names the variable, the form that is wanted and the default, and of a
// secret it does not show the value.
func TestWrongConfiguration(t *testing.T) {
	for _, f := range configFields() {
		values, known := cliWrong[f.name]
		if !known {
			t.Errorf("%s: add values to cliWrong that must stop the start", f.name)
		}
		for _, value := range values {
			status, _, words := cliRun(map[string]string{f.name: value}, "config")
			byDefault := "(default: " + f.byDefault + ")"
			if f.byDefault == "" {
				byDefault = "(default: unset)"
			}
			if status != exitFailed || !strings.HasPrefix(words, "jpintel: "+f.name+" ") || !strings.Contains(words, "want "+f.form) || !strings.Contains(words, byDefault) {
				t.Errorf("%s=%q: status %d, and it says: %s", f.name, value, status, words)
			}
			if isSecret := slices.Contains(cliSecrets, f.name); isSecret == strings.Contains(words, strconv.Quote(value)) {
				t.Errorf("%s=%q: secret: %v, and it says: %s", f.name, value, isSecret, words)
			}
		}
	}
	for name := range cliWrong {
		if !slices.ContainsFunc(configFields(), func(f configField) bool { return f.name == name }) {
			t.Errorf("cliWrong has %s, which is no variable", name)
		}
	}
}

// cliSecrets are the variables whose values are never printed.
var cliSecrets = []string{"JPINTEL_ADMIN_TOKEN", "JPINTEL_MASTER_KEY", "JPINTEL_API_KEY_SALT", "JPINTEL_LISTEN_SECRET", "JPINTEL_SMTP_URL", "MODELGATE_API_KEY", "JPINTEL_STRIPE_WEBHOOK_SECRETS", "JPINTEL_STRIPE_API_KEY"}

// TestConfigPrintsEverything holds what config prints against the variables.
func TestConfigPrintsEverything(t *testing.T) {
	environment := map[string]string{
		"JPINTEL_ADMIN_TOKEN": procToken, "JPINTEL_MASTER_KEY": storetest.MasterKeys, "JPINTEL_API_KEY_SALT": storetest.Salt,
		"JPINTEL_LISTEN_SECRET": "whsec_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		"JPINTEL_SMTP_URL":      "smtps://user:the%20password@mail.example.jp", "JPINTEL_MAIL_FROM": "Jpintel <hooks@example.jp>",
		"MODELGATE_BASE_URL": "https://partner.example/v1", "MODELGATE_API_KEY": "mgp_0123456789abcdef", "MODELGATE_MODELS": "m1,m2",
		"JPINTEL_STRIPE_WEBHOOK_SECRETS": "whsec_0123456789abcdefghij,whsec_abcdefghij0123456789",
		"JPINTEL_STRIPE_API_KEY":         "rk_live_0123456789abcdef",
		"JPINTEL_WEBHOOK_RETRY_SCHEDULE": "30s,90m", "JPINTEL_WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8,::1/128", "JPINTEL_TIMEZONE": "Europe/Berlin",
	}
	status, table, words := cliRun(environment, "config")
	if status != exitDone || words != "" {
		t.Errorf("status %d, and it says: %s", status, words)
	}
	_, text, _ := cliRun(environment, "config", "--json")
	var page struct {
		Data []struct{ Name, Value, Default, Form, Meaning string }
	}
	if err := json.Unmarshal([]byte(text), &page); err != nil || len(page.Data) != len(configFields()) {
		t.Fatalf("%d variables, want %d (%v)", len(page.Data), len(configFields()), err)
	}
	for i, f := range configFields() {
		v := page.Data[i]
		if v.Name != f.name || v.Default != f.byDefault || v.Form == "" || v.Meaning == "" {
			t.Errorf("%s is printed as %+v", f.name, v)
		}
		want := environment[f.name]
		switch {
		case slices.Contains(cliSecrets, f.name):
			want = "(set)"
		case want == "":
			want = f.byDefault
		}
		if v.Value != want && !(v.Value == "false" && want == "0") && !(v.Value == "true" && want == "1") {
			t.Errorf("%s has the value %q, want %q", f.name, v.Value, want)
		}
		if !strings.Contains(table, f.name+" ") || !strings.Contains(table, v.Meaning) {
			t.Errorf("%s is missing in the table", f.name)
		}
	}
	for _, name := range cliSecrets {
		if strings.Contains(table+text, environment[name]) {
			t.Errorf("the value of %s is printed", name)
		}
	}
}
