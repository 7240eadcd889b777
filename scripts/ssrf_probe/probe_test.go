package main

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const root = "../.." // the module's

var buildFolder string // "": nothing was built

// buildServer builds the server once for all tests that need one.
var buildServer = sync.OnceValues(func() (string, error) {
	var err error
	if buildFolder, err = os.MkdirTemp("", "ssrf-probe-"); err != nil {
		return "", err
	}
	path := filepath.Join(buildFolder, "jpintel")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, ".")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0") // as the image is built
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if buildFolder != "" {
		_ = os.RemoveAll(buildFolder)
	}
	os.Exit(code)
}

// server is a running one, and what the probe needs to attack it.
type server struct {
	base, token, key string
	dns              string
	canary           int
	cert, certKey    string
}

const (
	adminToken = "an-admin-token-of-the-ssrf-probe-test"
	ownHost    = "self.service.test-own"
)

// startServer starts the real server. The environment comes on top of one that
// is as in production, but for its DNS server and the canary's port.
func startServer(t *testing.T, environment ...string) *server {
	t.Helper()
	binary, err := buildServer()
	if err != nil {
		t.Fatal(err)
	}
	s := &server{token: adminToken, dns: freeUDP(t), canary: freeTCP(t)}
	s.makeCertificate(t)
	cmd := exec.Command(binary, "serve")
	proxy := "http://127.0.0.1:" + strconv.Itoa(s.canary) // a proxy from the environment must have no effect
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "SSL_CERT_FILE=" + s.cert, "HTTPS_PROXY=" + proxy, "HTTP_PROXY=" + proxy, "ALL_PROXY=" + proxy,
		"JPINTEL_DB=" + filepath.Join(t.TempDir(), "jpintel.db"), "JPINTEL_ADDR=127.0.0.1:0", "JPINTEL_ADMIN_TOKEN=" + s.token,
		"JPINTEL_PUBLIC_URL=https://" + ownHost, "JPINTEL_WEBHOOK_RESOLVER=" + s.dns,
		"JPINTEL_WEBHOOK_PORTS=443,8443," + strconv.Itoa(s.canary),
	}, environment...)
	var words bytes.Buffer
	cmd.Stderr = &words
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening, done := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var line struct{ Msg, Addr string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
				listening <- line.Addr
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-done
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server: %v\n%s", err, words.String())
		}
	})
	select {
	case addr := <-listening:
		s.base = "http://" + addr
	case <-done:
		t.Fatalf("the server did not start: %s", words.String())
	}
	s.signUp(t)
	return s
}

func (s *server) signUp(t *testing.T) {
	t.Helper()
	c := &client{base: s.base, token: s.token}
	a, err := c.admin(t.Context(), "POST", "/v1/admin/customers", map[string]string{"customer_id": "cus_probe", "tier": "paid"})
	if err != nil || a.status != 201 {
		t.Fatal(a.detail(), err)
	}
	a, err = c.admin(t.Context(), "POST", "/v1/admin/customers/cus_probe/keys", nil)
	var key struct {
		APIKey string `json:"api_key"`
	}
	if err != nil || a.status != 201 || json.Unmarshal(a.body, &key) != nil {
		t.Fatal(a.detail(), err)
	}
	s.key = key.APIKey
}

// makeCertificate writes a certificate that is its own authority.
func (s *server) makeCertificate(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ssrf_probe"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"*.probe.example"},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s.cert, s.certKey = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{s.cert: {Type: "CERTIFICATE", Bytes: cert}, s.certKey: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// freeUDP and freeTCP find a port that is free now, on all of the canary's
// addresses.
func freeUDP(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.LocalAddr().String()
}

func freeTCP(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// outcome is a run of the probe.
type outcome struct {
	Data []result
	counts
	code   int
	stderr string
}

// attack runs the probe with everything that it can do, and the flags on top.
func (s *server) attack(t *testing.T, flags ...string) outcome {
	t.Helper()
	args := append([]string{
		"--url", s.base, "--cases", root + "/testdata/ssrf/cases.tsv", "--dns", s.dns, "--canary", strconv.Itoa(s.canary), "--own-host", ownHost, "--json",
	}, flags...)
	var stdout, stderr bytes.Buffer
	getenv := func(name string) string { return map[string]string{"JPINTEL_PROBE_KEY": s.key}[name] }
	o := outcome{code: run(t.Context(), args, getenv, &stdout, &stderr), stderr: stderr.String()}
	if stdout.Len() > 0 {
		if err := json.Unmarshal(stdout.Bytes(), &o); err != nil {
			t.Fatalf("%v\n%s", err, stdout.String())
		}
	}
	return o
}

func (s *server) withReceiver(allow string) []string {
	return []string{"--admin-token", s.token, "--receiver-cert", s.cert, "--receiver-key", s.certKey, "--allow-cidrs", allow}
}

// surprises lists what the probe was surprised by.
func (o outcome) surprises() string {
	var all []string
	for _, r := range o.Data {
		if r.Surprise {
			all = append(all, r.ID+": expected "+r.Expected+", got "+r.Got+": "+r.Detail)
		}
	}
	return strings.Join(all, "\n") + o.stderr
}

// ran counts the cases of a group that were not skipped, by each means of the
// server's that there is.
func (o outcome) ran(group string) map[string]int {
	n := map[string]int{}
	for _, r := range o.Data {
		if strings.HasPrefix(r.Group, group) && r.Got != skipped {
			_, by, _ := strings.Cut(r.ID, "/")
			n[by]++
		}
	}
	return n
}

// wantRan checks that deliveries were tried, n of a group by each means.
func (o outcome) wantRan(t *testing.T, group string, n int) {
	t.Helper()
	want := map[string]int{}
	if n > 0 {
		want = map[string]int{"event": n, "ping": n, "change": n}
	}
	if ran := o.ran(group); !maps.Equal(ran, want) {
		t.Errorf("group %s: ran %v, want %d each", group, ran, n)
	}
}

// wantSkipped checks that these cases were skipped, and no others, and that
// there is a result for each case there is.
func (o outcome) wantSkipped(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	seen := map[string]bool{}
	for _, r := range o.Data {
		seen[r.ID] = true
		if r.Got == skipped {
			got = append(got, r.ID)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("skipped: %q, want %q", got, want)
	}
	cases, err := readCases(root + "/testdata/ssrf/cases.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		if !seen[c.id] {
			t.Errorf("case %s: no result", c.id)
		}
	}
}

// wantChanges checks that URLs of every group of the cases were tried as a
// subscription's new one.
func (o outcome) wantChanges(t *testing.T) {
	t.Helper()
	groups, tried := map[string]string{}, map[string]int{} // by case, by group
	for _, r := range o.Data {
		if id, isChange := strings.CutSuffix(r.ID, "/change"); isChange && r.Group == groupChange {
			tried[groups[id]]++
		} else if r.Expected == refused && r.Got != skipped {
			groups[r.ID] = r.Group
		}
	}
	for _, group := range groups {
		if n := tried[group]; n == 0 || n > perGroup {
			t.Errorf("%d changes to URLs of %q", n, group)
		}
	}
}

// As in production: nothing is opened, and calls are limited.
func TestAServerAsInProduction(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	o := s.attack(t, "--admin-token", s.token)
	if o.code != exitDone || o.Visits != 0 {
		t.Fatalf("exit status %d, %d connections to the canary\n%s", o.code, o.Visits, o.surprises())
	}
	if o.Attacks < 180 || o.Allowed < 30 {
		t.Errorf("%+v", o.counts)
	}
	o.wantSkipped(t, "s1") // there is no receiver that may be called
	o.wantChanges(t)
	o.wantRan(t, "R.", 7)
	o.wantRan(t, "S.", 0)
}

// One address is opened, for a receiver that turns on the server.
func TestAServerWithOneAddressOpened(t *testing.T) {
	t.Parallel()
	s := startServer(t, "JPINTEL_WEBHOOK_ALLOW_CIDRS=127.0.0.1/32", "JPINTEL_API_RATE=0")
	o := s.attack(t, s.withReceiver("127.0.0.1/32")...)
	if o.code != exitDone || o.Visits != 0 {
		t.Fatalf("exit status %d, %d connections to the canary\n%s", o.code, o.Visits, o.surprises())
	}
	if o.Attacks < 140 || o.Allowed < 30 {
		t.Errorf("%+v", o.counts)
	}
	o.wantRan(t, "R.", 9)
	o.wantRan(t, "S.", 7)
}

// A server without a call that attacks go by is not one that withstood them.
func TestTheProbeNoticesAMissingCall(t *testing.T) {
	t.Parallel()
	s := startServer(t, "JPINTEL_API_RATE=0")
	there, err := url.Parse(s.base)
	if err != nil {
		t.Fatal(err)
	}
	for name, missing := range map[string]func(*http.Request) bool{
		"PATCH":    func(r *http.Request) bool { return r.Method == http.MethodPatch },
		"the test": func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/v1/webhooks/test/") },
	} {
		proxy := httputil.NewSingleHostReverseProxy(there)
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if missing(r) {
				http.Error(w, `{"detail":"no such call"}`, http.StatusNotFound)
				return
			}
			proxy.ServeHTTP(w, r)
		}))
		defer front.Close()
		reached := *s
		reached.base = front.URL
		if o := reached.attack(t); o.code != exitSurprise || o.Surprises < 7 || o.Visits != 0 {
			t.Errorf("without %s: exit status %d, %+v", name, o.code, o.counts)
		}
	}
}

// The probe has to notice a guard that lets everything through. Nothing is
// published: nothing is sent.
func TestTheProbeNoticesAnOpenGuard(t *testing.T) {
	t.Parallel()
	s := startServer(t, "JPINTEL_WEBHOOK_ALLOW_CIDRS=0.0.0.0/0,::/0", "JPINTEL_WEBHOOK_ALLOW_HTTP=1", "JPINTEL_API_RATE=0")
	o := s.attack(t, "--subscribe-only")
	if o.code != exitSurprise || o.Surprises < 40 || o.Visits != 0 {
		t.Errorf("exit status %d, %+v", o.code, o.counts)
	}
}

// It has to notice what only shows at delivery, too: here the names move to
// loopback addresses, which this server lets out to.
func TestTheProbeNoticesADeliveryToTheCanary(t *testing.T) {
	t.Parallel()
	s := startServer(t, "JPINTEL_WEBHOOK_ALLOW_CIDRS=127.0.0.0/8,::1/128", "JPINTEL_API_RATE=0")
	o := s.attack(t, "--admin-token", s.token)
	if o.code != exitSurprise || o.Visits == 0 {
		t.Fatalf("exit status %d, %+v %s", o.code, o.counts, o.stderr)
	}
	for _, r := range o.Data {
		if r.ID == "canary" && !r.Surprise || r.Group == groupRebind && r.Got != skipped && !r.Surprise && !strings.Contains(r.Detail, "0.0.0.0") {
			t.Errorf("%s: no surprise: got %s: %s", r.ID, r.Got, r.Detail)
		}
	}
}

// The probe must not take a server for safe that it has not reached.
func TestTheProbeRefusesToGuess(t *testing.T) {
	t.Parallel()
	s := startServer(t, "JPINTEL_API_RATE=0")
	elsewhere := freeUDP(t)
	if o := s.attack(t, "--dns", elsewhere); o.code != exitSurprise || !strings.Contains(o.stderr, "JPINTEL_WEBHOOK_RESOLVER="+elsewhere) {
		t.Errorf("another DNS server: exit status %d, %s", o.code, o.stderr)
	}
	if o := s.attack(t, "--canary", strconv.Itoa(freeTCP(t))); o.code != exitSurprise || !strings.Contains(o.stderr, "--canary") {
		t.Errorf("a port that is not allowed: exit status %d, %s", o.code, o.stderr)
	}
	if o := s.attack(t, "--key", "jpk_wrong"); o.code != exitSurprise || !strings.Contains(o.stderr, "does not take the key") {
		t.Errorf("a wrong key: exit status %d, %s", o.code, o.stderr)
	}
	few := filepath.Join(t.TempDir(), "cases.tsv")
	if err := os.WriteFile(few, []byte("id\tgroup\tverdict\tlayer\turl_json\twhy\nnonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if o := s.attack(t, "--cases", few, "--zone", root+"/testdata/ssrf/zone.json"); o.code != exitSurprise || !strings.Contains(o.stderr, "want 6 columns") {
		t.Errorf("a broken case file: exit status %d, %s", o.code, o.stderr)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--help"}, exitDone, "--url URL"},
		{nil, exitUsage, "--url"},
		{[]string{"--url", "127.0.0.1:8080", "--key", "k"}, exitUsage, "--url"},
		{[]string{"--url", "http://127.0.0.1:8080"}, exitUsage, "JPINTEL_PROBE_KEY"},
		{[]string{"--url", "http://127.0.0.1:8080", "--key", "k", "more"}, exitUsage, "more"},
		{[]string{"--url", "http://127.0.0.1:8080", "--key", "k", "--allow-cidrs", "127.0.0.1"}, exitUsage, "--allow-cidrs"},
		{[]string{"--url", "http://127.0.0.1:8080", "--key", "k", "--receiver-cert", "c"}, exitUsage, "--receiver-key"},
		{[]string{"--url", "http://127.0.0.1:8080", "--key", "k", "--canary", "0"}, exitUsage, "--canary"},
		{[]string{"--url", "http://127.0.0.1:8080", "--key", "k", "--nonsense"}, exitUsage, "nonsense"},
		{[]string{"--url", "http://127.0.0.1:8080", "--key", "k", "--cases", "nowhere.tsv"}, exitSurprise, "nowhere.tsv"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), test.args, func(string) string { return "" }, &stdout, &stderr)
		if code != test.code || !strings.Contains(stderr.String(), test.says) || stdout.Len() > 0 {
			t.Errorf("%q: exit status %d, want %d\n%s", test.args, code, test.code, stderr.String())
		}
	}
}

// The table must stay a table, whatever a server says.
func TestTheTableIsClean(t *testing.T) {
	r := report{results: []result{
		{ID: "1", Group: "g", Expected: refused, Got: accepted, Detail: "forged\n2  g  refused  refused\x1b[2J\t" + strings.Repeat("あ", 500), Surprise: true, attack: true},
	}}
	var out bytes.Buffer
	if err := r.print(&out, false); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	if len(lines) != 4 || strings.ContainsAny(out.String(), "\x1b\t") || !strings.Contains(lines[1], "accepted !!") || r.good() {
		t.Errorf("%q", lines)
	}
	if want := "1 attacks and 0 must-allow cases tried, 0 skipped, 1 surprises, 0 connections to the canary"; lines[3] != want {
		t.Errorf("last line %q, want %q", lines[3], want)
	}
}
