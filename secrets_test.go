package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"jpintel/store"
	"jpintel/webhook"
)

// secMain makes this test binary the program itself, as a process of its own:
// with main's umask, its own standard output and error, and its own memory.
const secMain = "JPINTEL_SEC_MAIN"

func init() {
	if os.Getenv(secMain) != "" {
		main()
	}
}

// secCommand is the program with an environment of its own.
func secCommand(environment []string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append([]string{secMain + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}, environment...)
	return cmd
}

// secOutput keeps what a process prints.
type secOutput struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *secOutput) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *secOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// secServer is the real server as a process.
type secServer struct {
	base, db, token string
	cmd             *exec.Cmd
	stdout, stderr  secOutput
	done            chan error
}

const secToken = "admin-token-0123456789-0123456789"

// secStart starts a server on the file in dir. The environment comes on top.
func secStart(t *testing.T, dir string, environment ...string) *secServer {
	t.Helper()
	s := &secServer{db: filepath.Join(dir, "jpintel.db"), token: secToken, done: make(chan error, 1)}
	s.cmd = secCommand(append([]string{
		"JPINTEL_DB=" + s.db, "JPINTEL_ADDR=127.0.0.1:0", "JPINTEL_ADMIN_TOKEN=" + s.token, "JPINTEL_LOG_LEVEL=debug",
		"JPINTEL_WEBHOOK_ALLOW_CIDRS=127.0.0.0/8", "JPINTEL_WEBHOOK_ALLOW_HTTP=1", "JPINTEL_API_RATE=0",
	}, environment...), "serve")
	s.cmd.Stdout, s.cmd.Stderr = &s.stdout, &s.stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.done <- s.cmd.Wait() }()
	t.Cleanup(func() { _ = s.cmd.Process.Kill() }) // where stop was not reached
	secUntil(t, "the server to listen", func() bool {
		for line := range strings.Lines(s.stdout.String()) {
			var entry struct{ Msg, Addr string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "listening" {
				s.base = "http://" + entry.Addr
			}
		}
		select {
		case err := <-s.done:
			t.Fatalf("the server did not start: %v\n%s%s", err, s.stdout.String(), s.stderr.String())
		default:
		}
		return s.base != ""
	})
	return s
}

// stop ends the server as a deploy would, and checks that it ends well, that
// its log was JSON throughout, and that nothing was said beside it.
func (s *secServer) stop(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.done:
		if err != nil {
			t.Errorf("the server ended with: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the server does not stop")
	}
	for line := range strings.Lines(s.stdout.String()) {
		var entry struct{ Time, Level, Msg string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Time == "" || entry.Level == "" || entry.Msg == "" {
			t.Errorf("not a line of the log: %.300q", line)
		}
	}
	if said := s.stderr.String(); said != "" {
		t.Errorf("on standard error: %.2000s", said)
	}
}

// secUntil waits for something that has to come, and fails where it does not.
func secUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// secAnswer is an answer of the API.
type secAnswer struct {
	status int
	header http.Header
	body   string
}

// call makes a call; headers are name, value, name, value.
func (s *secServer) call(t *testing.T, method, path, body string, headers ...string) secAnswer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return secAnswer{resp.StatusCode, resp.Header, string(text)}
}

// must is call for what has to succeed; the answer goes into v.
func (s *secServer) must(t *testing.T, v any, method, path string, body any, headers ...string) {
	t.Helper()
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	a := s.call(t, method, path, string(text), headers...)
	if a.status >= 300 {
		t.Fatalf("%s %s: %d %s", method, path, a.status, a.body)
	}
	if v == nil {
		return
	}
	if err := json.Unmarshal([]byte(a.body), v); err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, a.body)
	}
}

// operator is the header of the admin token.
func (s *secServer) operator() []string { return []string{"Authorization", "Bearer " + s.token} }

// customer makes a paid customer and returns its key.
func (s *secServer) customer(t *testing.T, id string) (key string) {
	t.Helper()
	s.must(t, nil, "POST", "/v1/admin/customers", map[string]string{"customer_id": id, "tier": "paid", "email": id + "@customer.example"}, s.operator()...)
	var made createKeyAnswer
	s.must(t, &made, "POST", "/v1/admin/customers/"+id+"/keys", nil, s.operator()...)
	return made.APIKey
}

// secSubscription is what a customer gets at subscribe.
type secSubscription struct {
	SubscriptionID string `json:"subscription_id"`
	SigningSecret  string `json:"signing_secret"`
}

func (s *secServer) subscribe(t *testing.T, key, url string, events ...string) (sub secSubscription) {
	t.Helper()
	s.must(t, &sub, "POST", "/v1/webhooks/subscribe", map[string]any{"url": url, "events": events}, "X-API-Key", key)
	return sub
}

// subscribeOnce is subscribe to program.created with an Idempotency-Key.
func (s *secServer) subscribeOnce(t *testing.T, key, idempotencyKey, url string) (sub secSubscription) {
	t.Helper()
	s.must(t, &sub, "POST", "/v1/webhooks/subscribe", map[string]any{"url": url, "events": []string{"program.created"}},
		"X-API-Key", key, "Idempotency-Key", idempotencyKey)
	return sub
}

// publish makes a program, of which every subscription to program.created hears.
func (s *secServer) publish(t *testing.T, id string) {
	t.Helper()
	s.must(t, nil, "PUT", "/v1/admin/programs/"+id, map[string]any{"primary_name": "試験用補助金", "source_url": "https://example.jp/" + id}, s.operator()...)
}

// secDelivery is a delivery as the API tells it, and that text itself.
type secDelivery struct {
	DeliveryID    string     `json:"delivery_id"`
	Status        string     `json:"status"`
	AttemptCount  int        `json:"attempt_count"`
	NextAttemptAt *time.Time `json:"next_attempt_at"`
	Attempts      []struct {
		Status          *int   `json:"status"`
		DurationMS      int64  `json:"duration_ms"`
		ErrorCategory   string `json:"error_category"`
		ErrorDetail     string `json:"error_detail"`
		ResponseExcerpt string `json:"response_excerpt"`
		RemoteAddr      string `json:"remote_addr"`
	} `json:"attempts"`
	text string
}

// delivery is the newest delivery of a subscription, once it has n attempts.
func (s *secServer) delivery(t *testing.T, key, subscription string, n int) (d secDelivery) {
	t.Helper()
	secUntil(t, fmt.Sprintf("attempt %d for %s", n, subscription), func() bool {
		var page struct{ Data []secDelivery }
		s.must(t, &page, "GET", "/v1/webhooks/subscriptions/"+subscription+"/deliveries?limit=1", nil, "X-API-Key", key)
		if len(page.Data) == 0 {
			return false
		}
		a := s.call(t, "GET", "/v1/webhooks/deliveries/"+page.Data[0].DeliveryID, "", "X-API-Key", key)
		d = secDelivery{}
		if err := json.Unmarshal([]byte(a.body), &d); err != nil {
			t.Fatalf("%v: %q", err, a.body)
		}
		if d.text = a.body; a.header.Get("Content-Type") != "application/json; charset=utf-8" || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("headers %v", a.header)
		}
		return d.AttemptCount >= n && len(d.Attempts) >= n // they are read one after the other
	})
	return d
}

// secNeedles are the forms in which a secret could be left somewhere.
func secNeedles(name, secret string) map[string]string {
	needles := map[string]string{name: secret}
	tail := secret[strings.LastIndexAny(secret, "_:")+1:]
	raw, err := hex.DecodeString(tail)
	if err != nil {
		raw = []byte(tail)
	} else {
		needles[name+", its digits"], needles[name+", its digits as capitals"], needles[name+", its bytes"] = tail, strings.ToUpper(tail), string(raw)
	}
	// As base64 the middle is the same wherever the bytes stand in what was
	// encoded, for each of three positions.
	for shift := range 3 {
		for form, encoding := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
			for what, bytes := range map[string][]byte{"": []byte(secret), ", its bytes": raw} {
				text := encoding.EncodeToString(append(make([]byte, shift), bytes...))
				needles[fmt.Sprintf("%s%s as %s, shifted by %d", name, what, form, shift)] = text[4 : len(text)-4]
			}
		}
	}
	return needles
}

// secSecrets collects every secret of a run.
type secSecrets struct {
	mu      sync.Mutex
	needles map[string]string
	n       int
}

func (s *secSecrets) add(name, secret string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	for form, needle := range secNeedles(fmt.Sprintf("%s %d", name, s.n), secret) {
		s.needles[form] = needle
	}
	return secret
}

// search looks for every secret in every text.
func (s *secSecrets) search(t *testing.T, texts map[string]string) {
	t.Helper()
	for place, text := range texts {
		for name, needle := range s.needles {
			if i := strings.Index(text, needle); i >= 0 {
				t.Errorf("%s is in %s: …%q…", name, place, text[max(0, i-80):min(len(text), i+len(needle)+20)])
			}
		}
	}
}

// secFiles reads what stands in a folder, and checks who may.
func secFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", e.Name(), info.Mode())
		}
		files[e.Name()] = string(text)
	}
	return files
}

// secEcho is a receiver that fails, and says all that it knows.
type secEcho struct {
	url     string
	mu      sync.Mutex
	secrets []string // to give away
	got     []http.Header
	bodies  []string
}

func newSecEcho(t *testing.T, form func(lines []string) string, status func(n int) int) *secEcho {
	e := &secEcho{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.got, e.bodies = append(e.got, r.Header), append(e.bodies, string(body))
		w.WriteHeader(status(len(e.got)))
		lines := append([]string{}, e.secrets...)
		for _, name := range []string{"X-Jpintel-Signature", "Webhook-Signature"} {
			lines = append(lines, name+": "+r.Header.Get(name))
		}
		_, _ = io.WriteString(w, form(lines))
	}))
	t.Cleanup(server.Close)
	e.url = server.URL
	return e
}

func (e *secEcho) give(secrets ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.secrets = append(e.secrets, secrets...)
}

func (e *secEcho) requests() ([]http.Header, []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.got), slices.Clone(e.bodies)
}

// No secret is anywhere but where it was handed out: not in the file, not
// beside it, not in a log, not in an error.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secrets := &secSecrets{needles: map[string]string{}}
	old, next := secrets.add("master key", "old:"+randomHex()), secrets.add("master key", "new:"+randomHex())
	salt := secrets.add("salt", randomHex())
	secrets.add("admin token", secToken)
	smtpURL := "smtp://jpintel:" + secrets.add("SMTP password", randomHex()) + "@127.0.0.1:1" // where nobody listens
	environment := func(keys string) []string {
		return []string{"JPINTEL_MASTER_KEY=" + keys, "JPINTEL_API_KEY_SALT=" + salt, "JPINTEL_WEBHOOK_RETRY_SCHEDULE=50ms,50ms",
			"JPINTEL_SMTP_URL=" + smtpURL, "JPINTEL_MAIL_FROM=hooks@example.jp", "JPINTEL_WEBHOOK_WARN_AFTER=1ms"}
	}
	s := secStart(t, dir, environment(old)...)
	texts := map[string]string{}
	command := func(keys string, args ...string) string {
		cmd := secCommand(append(environment(keys), "JPINTEL_DB="+s.db, "JPINTEL_ADMIN_TOKEN="+s.token), args...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v: %s", args, err, out)
		}
		return string(out)
	}

	customers := []string{"cus_secret_alpha", "cus_secret_beta"}
	var keys []string
	for _, id := range customers {
		s.must(t, nil, "POST", "/v1/admin/customers", map[string]string{"customer_id": id, "tier": "paid", "email": "ops@secret-customer.example"}, s.operator()...)
		var made createKeyAnswer
		_, line, _ := strings.Cut(command(old, "keys", "create", id, "--json"), "{") // words stand before it
		if err := json.Unmarshal([]byte("{"+line), &made); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, secrets.add("API key", made.APIKey))
	}
	failing := func(int) int { return http.StatusInternalServerError }
	echoes := []*secEcho{
		newSecEcho(t, func(lines []string) string { return strings.Join(lines, "\n") }, failing),
		newSecEcho(t, func(lines []string) string {
			text, _ := json.Marshal(map[string]string{"dump": "\n" + strings.Join(lines, "\n")})
			return string(text)
		}, failing),
		newSecEcho(t, func([]string) string { return "thanks" }, func(n int) int {
			if n == 1 {
				return http.StatusServiceUnavailable
			}
			return http.StatusNoContent
		}),
	}
	subs := make([]secSubscription, len(echoes))
	for i, e := range echoes {
		key := keys[i/2]
		subs[i] = s.subscribe(t, key, e.url, "program.created")
		if i == len(echoes)-1 { // an API key where it does not belong, too
			s.must(t, nil, "DELETE", "/v1/webhooks/subscriptions/"+subs[i].SubscriptionID, nil, "X-API-Key", key)
			subs[i] = s.subscribeOnce(t, key, key, e.url)
		}
		e.give(secrets.add("signing secret", subs[i].SigningSecret), key, "Authorization: Bearer "+s.token)
	}
	s.publish(t, "UNI-secret-1")
	for i := range echoes {
		d := s.delivery(t, keys[i/2], subs[i].SubscriptionID, map[bool]int{true: 3, false: 2}[i < 2])
		texts["delivery "+strconv.Itoa(i)] = d.text
		if n := strings.Count(d.Attempts[0].ResponseExcerpt, "[masked]"); i < 2 && n != 5 {
			t.Errorf("%d of 5 secrets are masked: %s", n, d.text)
		}
	}
	secUntil(t, "a mail that cannot be sent", func() bool { return strings.Contains(s.stdout.String(), `"msg":"mail_not_sent_yet"`) })
	turned := secLifeOfASubscription(t, s, secrets, keys[0], texts) // with an opt-out, after which nothing is failing
	maps.Copy(texts, secFiles(t, dir))                              // while the server has it open, and before a command checkpoints the WAL
	if texts["jpintel.db-wal"] == "" || texts["jpintel.db.lock"] == "" {
		t.Error("there is no WAL, or no lock file")
	}
	for i, a := range secMisuse(t, s, keys[0]) {
		texts["answer to misuse "+strconv.Itoa(i)] = a.body
	}
	for _, args := range [][]string{
		{"config"}, {"config", "--json"}, {"customers", "list"}, {"keys", "list", customers[0]}, {"subscriptions", "list"}, {"deliveries", "list", "--json"}, {"events", "list"},
	} {
		texts["command "+strings.Join(args, " ")] = command(old, args...)
	}
	s.stop(t)
	texts["the log"], texts["standard error"] = s.stdout.String(), s.stderr.String()

	// The master key is replaced, as docs/security.md says.
	if out, err := secCommand(append(environment(next), "JPINTEL_DB="+s.db), "migrate").CombinedOutput(); err == nil || !strings.Contains(string(out), `"old"`) {
		t.Errorf("opened without the old key: %s", out)
	}
	s2 := secStart(t, dir, environment(next+","+old)...)
	if out := command(next+","+old, "keys", "rekey", "--json"); !strings.Contains(out, `{"resealed":7}`) {
		t.Errorf("rekey: %s", out)
	}
	s2.stop(t)
	s3 := secStart(t, dir, environment(next)...)
	s3.publish(t, "UNI-secret-2")
	healthy := len(echoes) - 1
	if again := s3.subscribeOnce(t, keys[healthy/2], keys[healthy/2], echoes[healthy].url); again != subs[healthy] {
		t.Error("the same subscribe again, under the new master key, is not given the first answer")
	}
	secUntil(t, "the third request", func() bool { headers, _ := echoes[healthy].requests(); return len(headers) == 3 })
	s3.stop(t)
	headers, bodies := echoes[healthy].requests()
	for i := range headers {
		if err := webhook.Verify(subs[healthy].SigningSecret, "Jpintel", headers[i], []byte(bodies[i]), time.Now()); err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	for name, text := range secFiles(t, dir) {
		texts["the closed "+name] = text
	}
	if headers, _ := turned.requests(); len(headers) != 3 {
		t.Errorf("%d pings", len(headers))
	}
	texts["the second log"], texts["the third log"] = s2.stdout.String(), s3.stdout.String()
	for i, e := range append(echoes[:2:2], turned) {
		headers, _ := e.requests()
		for _, h := range headers {
			_, macs, _ := strings.Cut(h.Get("X-Jpintel-Signature"), "v1=")
			for mac := range strings.SplitSeq(macs, ",v1=") { // several, in a rotation
				for place, text := range texts {
					if mac == "" || strings.Contains(text, mac) {
						t.Errorf("the signature that receiver %d has echoed is in %s", i, place)
					}
				}
			}
		}
	}
	secrets.search(t, texts)
	for place, text := range texts {
		for _, id := range append(customers, "secret-customer.example") {
			if strings.HasSuffix(place, "log") && strings.Contains(text, id) {
				t.Errorf("%s carries the customer id or address %s", place, id)
			}
		}
	}
	if !strings.Contains(texts["the log"], `"customer_id_hash"`) {
		t.Error("the log has no customer_id_hash")
	}
}

// secLifeOfASubscription changes a subscription in every way that there is, and
// tests it each time; its receiver repeats every secret. What the API answers
// goes into texts, but for the answers that a new secret is handed out in.
func secLifeOfASubscription(t *testing.T, s *secServer, secrets *secSecrets, key string, texts map[string]string) *secEcho {
	t.Helper()
	echo := newSecEcho(t, func(lines []string) string { return strings.Join(lines, "\n") }, func(int) int { return http.StatusInternalServerError })
	sub := s.subscribe(t, key, echo.url, "usage.finalized")
	echo.give(secrets.add("signing secret", sub.SigningSecret), key, "Authorization: Bearer "+s.token)
	path := "/v1/webhooks/subscriptions/" + sub.SubscriptionID
	call := func(want int, method, path, body string) {
		t.Helper()
		a := s.call(t, method, path, body, "X-API-Key", key)
		texts[fmt.Sprintf("%s %s, %d", method, path, len(texts))] = a.body
		if a.status != want {
			t.Errorf("%s %s: %d %s, want %d", method, path, a.status, a.body, want)
		}
		if strings.Contains(path, "/test/") && !strings.Contains(a.body, "[masked]") {
			t.Errorf("the receiver has repeated nothing: %s", a.body)
		}
	}
	test := "/v1/webhooks/test/" + sub.SubscriptionID
	call(200, "POST", test, "")
	var turned secSubscription
	s.must(t, &turned, "POST", path+"/rotate-secret", nil, "X-API-Key", key)
	echo.give(secrets.add("new signing secret", turned.SigningSecret))
	call(200, "POST", test, "") // signed with both
	call(200, "PATCH", path, `{"url":"`+echo.url+`","envelope":"v2","description":"changed"}`)
	call(400, "PATCH", path, `{"url":"https://x:`+key+`@hooks.example.com/"}`)
	call(400, "PATCH", path, `{"events":["`+turned.SigningSecret+`"]}`)
	call(400, "PATCH", path, `{"`+turned.SigningSecret+`":"`+key+`"}`)
	call(400, "POST", path+"/rotate-secret?"+key+"=1", "")
	call(204, "POST", path+"/rotate-secret/finish", "")
	call(200, "POST", test, "") // signed with the new one
	call(200, "PUT", "/v1/webhooks/opt-out", "")
	call(200, "GET", path, "")
	call(200, "DELETE", "/v1/webhooks/opt-out", "")
	call(200, "POST", path+"/disable", "")
	call(200, "GET", "/v1/webhooks/subscriptions", "")
	return echo
}

// secMisuse calls the API in ways that bring a key where it does not belong.
func secMisuse(t *testing.T, s *secServer, key string) (answers []secAnswer) {
	t.Helper()
	call := func(want int, method, path, body string, headers ...string) {
		a := s.call(t, method, path, body, headers...)
		answers = append(answers, a)
		if a.status != want || !json.Valid([]byte(a.body)) {
			t.Errorf("%s %.40s: %d %s, want %d", method, path, a.status, a.body, want)
		}
	}
	good := []string{"X-API-Key", key}
	call(401, "GET", "/v1/webhooks/subscriptions", "", "X-API-Key", key+"0")
	call(401, "GET", "/v1/webhooks/subscriptions", "", "X-API-Key", strings.ToUpper(key))
	call(401, "GET", "/v1/webhooks/subscriptions", "", "Authorization", "Bearer "+key)
	call(401, "GET", "/v1/webhooks/subscriptions?api_key="+key, "")
	call(401, "GET", "/v1/webhooks/subscriptions", "", "X-API-Key", s.token)
	call(401, "POST", "/v1/admin/customers", `{"customer_id":"x"}`, "Authorization", "Bearer "+s.token+"0")
	call(401, "POST", "/v1/admin/customers", `{"customer_id":"x"}`, "Authorization", s.token)
	call(401, "POST", "/v1/admin/customers?token="+s.token, `{"customer_id":"x"}`)
	call(401, "POST", "/v1/admin/customers", `{"customer_id":"x"}`, "Authorization", "Bearer "+key)
	call(400, "POST", "/v1/webhooks/subscribe", `{"url":"https://93.184.215.14/","events":["`+key+`"]}`, good...)
	call(400, "POST", "/v1/webhooks/subscribe", `{"`+key+`":1}`, good...)
	call(400, "POST", "/v1/webhooks/subscribe", `{"url":"`+key, good...)
	call(400, "POST", "/v1/webhooks/subscribe", key, good...)
	call(400, "POST", "/v1/webhooks/subscribe", `{"url":"https://user:`+key+`@hooks.example.com/","events":["program.created"]}`, good...)
	call(400, "POST", "/v1/webhooks/subscribe", `{"url":"https://`+key+`.invalid/","events":["program.created"]}`, good...)
	call(400, "POST", "/v1/webhooks/subscribe", `{"url":"https://93.184.215.14/","events":["program.created"],"filter":{"`+key+`":"x"}}`, good...)
	call(400, "POST", "/v1/webhooks/subscribe", `{"url":"https://93.184.215.14/","events":["program.created"],"envelope":"`+key+`"}`, good...)
	call(415, "POST", "/v1/webhooks/subscribe", `{}`, append(good, "Content-Type", key)...)
	call(400, "GET", "/v1/webhooks/subscriptions?cursor="+key, "", good...)
	call(400, "GET", "/v1/webhooks/subscriptions?limit="+key, "", good...)
	call(404, "GET", "/v1/events/unknown", "", good...)
	call(400, "GET", "/v1/webhooks/subscriptions?"+key+"=1", "", good...)
	call(400, "POST", "/v1/saved-filters", `{"filter":{"`+key+`":["x"]}}`, good...)
	lines := `{"unified_id":"` + key + `","primary_name":1}` + "\n" + `{"unified_id":"x","` + key + "\n" + `{"` + key + `":"` + key + `"}` + "\n" + key + "\n"
	call(200, "POST", "/v1/admin/programs", lines, append(s.operator(), "Content-Type", "application/x-ndjson")...)
	call(400, "POST", "/v1/admin/customers", `{"customer_id":"`+key+` ","tier":"paid"}`, s.operator()...)
	call(400, "POST", "/v1/admin/customers", `{"customer_id":"x","tier":"`+key+`"}`, s.operator()...)
	call(400, "POST", "/v1/admin/customers", `{"customer_id":"x","email":"`+key+`"}`, s.operator()...)
	return answers
}

// What a panic or an inner error carries is not in the answer, and in the log it
// is masked.
func TestSecretsInFaults(t *testing.T) {
	secrets := &secSecrets{needles: map[string]string{}}
	key, secret := secrets.add("API key", "jpk_"+randomHex()), secrets.add("signing secret", "whsec_"+randomHex())
	var log bytes.Buffer
	a := &api{log: slog.New(slog.NewJSONHandler(&log, nil))}
	carries := "about " + key + " and\n" + secret + ", Authorization: Bearer " + secToken
	for i, fault := range []func(http.ResponseWriter, *http.Request){
		func(w http.ResponseWriter, r *http.Request) { a.panicked(w, r, carries) },
		func(w http.ResponseWriter, r *http.Request) { a.panicked(w, r, errors.New(carries)) },
		func(w http.ResponseWriter, r *http.Request) {
			writeError(&call{r: r, w: w}, a.log, errors.New(carries))
		},
		func(w http.ResponseWriter, r *http.Request) {
			writeError(&call{r: r, w: w}, a.log, &store.Error{Code: store.CodeUnavailable, Message: "not now", Err: errors.New(carries)})
		},
	} {
		answer := httptest.NewRecorder()
		fault(answer, httptest.NewRequest("POST", "/v1/webhooks/subscribe", nil))
		want := map[bool]int{true: 503, false: 500}[i == 3]
		if answer.Code != want || strings.Contains(answer.Body.String(), "about") {
			t.Errorf("fault %d: %d %s", i, answer.Code, answer.Body)
		}
	}
	secrets.search(t, map[string]string{"the log": log.String()})
	if strings.Contains(log.String(), secToken) || strings.Count(log.String(), "[masked]") != 12 || !strings.Contains(log.String(), "goroutine") {
		t.Errorf("the log: %s", &log)
	}
}

// The same for a key that stands in the path, which is where a customer's id
// stands in the operator's calls: the log has every path.
func TestSecretsInPaths(t *testing.T) {
	t.Parallel()
	s := secStart(t, t.TempDir())
	const id = "cus_secret_gamma"
	key := s.customer(t, id)
	texts := map[string]string{}
	for i, path := range []string{"/v1/webhooks/subscriptions/", "/v1/webhooks/deliveries/", "/v1/event-types/", "/v1/events/", "/nowhere/", "/v1/admin/customers/"} {
		texts["answer "+strconv.Itoa(i)] = s.call(t, "GET", path+key, "", "X-API-Key", key).body
	}
	s.stop(t)
	texts["the log"] = s.stdout.String()
	secrets := &secSecrets{needles: map[string]string{}}
	secrets.add("API key", key)
	secrets.search(t, texts)
	if strings.Contains(texts["the log"], id) {
		t.Error("the log carries a customer id")
	}
}

// Keys that nobody configured are made beside the file, for their owner only;
// nothing of them is in it.
func TestGeneratedKeysStayInTheirFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := secStart(t, dir)
	secrets := &secSecrets{needles: map[string]string{}}
	secrets.add("API key", s.customer(t, "cus_a"))
	files := secFiles(t, dir)
	for line := range strings.Lines(files["jpintel.db.keys"]) {
		_, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		secrets.add("generated key", value)
	}
	if secrets.n != 3 {
		t.Fatalf("jpintel.db.keys: %d values", secrets.n-1)
	}
	delete(files, "jpintel.db.keys")
	s.stop(t)
	files["the log"] = s.stdout.String()
	if !strings.Contains(files["the log"], `"level":"WARN","msg":"keys_beside_database"`) {
		t.Error("nobody is warned")
	}
	secrets.search(t, files)
}

// What must not be started is not, and says why without saying a secret.
func TestRefusedStarts(t *testing.T) {
	t.Parallel()
	key, salt := "k1:"+randomHex(), randomHex()
	fly := []string{"FLY_APP_NAME=jpintel-test", "JPINTEL_MASTER_KEY=" + key, "JPINTEL_API_KEY_SALT=" + salt}
	for _, test := range []struct {
		name        string
		environment []string
		says        []string
	}{
		{"on Fly without keys", fly[:1], []string{"JPINTEL_MASTER_KEY", "JPINTEL_API_KEY_SALT", "required on Fly"}},
		{"on Fly without a salt", fly[:2], []string{"required on Fly"}},
		{"on Fly without a master key", []string{fly[0], fly[2]}, []string{"required on Fly"}},
		{"on Fly, opened for loopback", append(fly, "JPINTEL_WEBHOOK_ALLOW_CIDRS=127.0.0.0/8"), []string{"JPINTEL_WEBHOOK_ALLOW_CIDRS", "not on Fly"}},
		{"on Fly, opened for http", append(fly, "JPINTEL_WEBHOOK_ALLOW_HTTP=1"), []string{"JPINTEL_WEBHOOK_ALLOW_HTTP", "not on Fly"}},
		{"on Fly, opened for http in words", append(fly, "JPINTEL_WEBHOOK_ALLOW_HTTP=true"), []string{"JPINTEL_WEBHOOK_ALLOW_HTTP", "not on Fly"}},
		{"a short admin token", []string{"JPINTEL_ADMIN_TOKEN=0123456789abcdef0123456789abcde"}, []string{"JPINTEL_ADMIN_TOKEN", "at least 32 characters"}},
		{"a short salt", []string{"JPINTEL_API_KEY_SALT=0123456789abcde"}, []string{"JPINTEL_API_KEY_SALT", "at least 16 characters"}},
		{"a short master key", []string{"JPINTEL_MASTER_KEY=k1:0123456789abcdef"}, []string{"JPINTEL_MASTER_KEY", "64 hex digits"}},
		{"a master key without id", []string{"JPINTEL_MASTER_KEY=" + key[3:]}, []string{"JPINTEL_MASTER_KEY", "64 hex digits"}},
		{"a master key as its own id", []string{"JPINTEL_MASTER_KEY=" + key[3:] + ":" + key[3:]}, []string{"JPINTEL_MASTER_KEY"}},
		{"one id twice", []string{"JPINTEL_MASTER_KEY=" + key + "," + key}, []string{"JPINTEL_MASTER_KEY"}},
		{"a mail server without a sender", []string{"JPINTEL_SMTP_URL=smtp://jpintel:0123456789abcdef@localhost"}, []string{"JPINTEL_MAIL_FROM", "required with JPINTEL_SMTP_URL"}},
		{"no mail server", []string{"JPINTEL_SMTP_URL=jpintel:0123456789abcdef@localhost", "JPINTEL_MAIL_FROM=a@example.jp"}, []string{"JPINTEL_SMTP_URL", "smtps://"}},
		{"no networks", []string{"JPINTEL_WEBHOOK_ALLOW_CIDRS=127.0.0.1"}, []string{"JPINTEL_WEBHOOK_ALLOW_CIDRS", "networks like"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			var stdout, stderr bytes.Buffer
			cmd := secCommand(append(test.environment, "JPINTEL_DB="+filepath.Join(dir, "jpintel.db"), "JPINTEL_ADDR=127.0.0.1:0"), "serve")
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			stop := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
			defer stop.Stop()
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitFailed {
				t.Errorf("ended with %v, want exit status %d\n%s", err, exitFailed, stdout.String())
			}
			for _, words := range test.says {
				if !strings.Contains(stderr.String(), words) {
					t.Errorf("says %q, without %q", stderr.String(), words)
				}
			}
			secrets := &secSecrets{needles: map[string]string{}}
			for _, e := range test.environment {
				if name, value, _ := strings.Cut(e, "="); strings.Contains(name, "KEY") || strings.Contains(name, "TOKEN") || strings.Contains(name, "SMTP") {
					secrets.add(name, value)
				}
			}
			secrets.search(t, map[string]string{"standard output": stdout.String(), "standard error": stderr.String()})
			if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 && strings.Contains(test.name, "Fly") {
				t.Errorf("left behind: %v, %v", entries, err)
			}
		})
	}
}

// secConstant finds a package's constant in its source, and returns its value
// as a document writes it.
func secConstant(t *testing.T, pkg, name string) string {
	t.Helper()
	pattern := pkg + "/*.go"
	if pkg == "main" {
		pattern = "*.go"
	}
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	declaration := regexp.MustCompile(`(?m)^(?:const)?\s*` + name + `\s+= ([^/\n]+)`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if match := declaration.FindStringSubmatch(string(source)); match != nil {
			found = match
		}
	}
	if found == nil {
		t.Fatalf("package %s has no constant %s", pkg, name)
	}
	value := strings.ReplaceAll(strings.TrimSpace(found[1]), "_", "")
	for from, to := range map[string]string{"time.Second": "s", "time.Minute": "min", "time.Hour": "h"} {
		number, unit, ok := strings.Cut(value, " * "+from)
		if ok && unit == "" {
			return number + " " + to
		}
		if value == from {
			return "1 " + to
		}
	}
	if number, ok := strings.CutSuffix(value, " << 10"); ok {
		return number + " KiB"
	}
	return value
}

// What docs/security.md says of files and numbers has to be so.
func TestSecurityDocument(t *testing.T) {
	text, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range regexp.MustCompile("`([a-z_/]+\\.(?:go|toml|md))`").FindAllStringSubmatch(string(text), -1) {
		if _, err := os.Stat(path[1]); err != nil {
			t.Error(err)
		}
	}
	defaults := map[string]string{}
	for _, f := range configFields() {
		defaults[f.name] = strings.ReplaceAll(f.byDefault, ",", " and ")
	}
	rows := regexp.MustCompile("(?m)^\\| ([^|]+) \\| ([^|]+) \\| `([a-zA-Z_/.]+)`(?: `(\\w+)`)? \\|$").FindAllStringSubmatch(string(text), -1)
	for _, row := range rows {
		want, known := defaults[row[3]]
		if row[4] != "" {
			want, known = secConstant(t, row[3], row[4]), true
		}
		if rest, ok := strings.CutPrefix(row[2], want); !known || want == "" || !ok || rest != "" && rest[0] != ' ' {
			t.Errorf("%s: %s, want %q (%s %s)", row[1], row[2], want, row[3], row[4])
		}
	}
	if len(rows) < 20 {
		t.Errorf("%d rows of limits", len(rows))
	}
	for _, name := range regexp.MustCompile(`JPINTEL_[A-Z_]+`).FindAllString(string(text), -1) {
		if _, known := defaults[name]; !known && name != "JPINTEL_PROBE_KEY" {
			t.Errorf("there is no variable %s", name)
		}
	}
}
