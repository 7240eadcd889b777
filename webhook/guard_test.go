package webhook

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// zone is what a DNS server answers: name → answers, one after the other, the
// last one for ever.
type zone map[string][]answer

type answer struct {
	A, AAAA []netip.Addr
	CNAME   string
	Fail    bool // SERVFAIL
}

// serveDNS answers on a loopback address from the zone of testdata and more.
func serveDNS(t testing.TB, more zone) (address string) {
	t.Helper()
	z := zone{}
	if err := json.Unmarshal(testdata(t, "ssrf", "zone.json"), &z); err != nil {
		t.Fatal(err)
	}
	maps.Copy(z, more)
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var server sync.WaitGroup
	t.Cleanup(func() { conn.Close(); server.Wait() })
	server.Go(func() {
		asked := map[dnsmessage.Question]int{}
		packet := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(packet)
			if err != nil {
				return // closed
			}
			var m dnsmessage.Message
			if m.Unpack(packet[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			reply := z.reply(m.ID, m.Questions[0], asked[m.Questions[0]])
			asked[m.Questions[0]]++
			if out, err := reply.Pack(); err == nil {
				_, _ = conn.WriteTo(out, from)
			}
		}
	})
	return conn.LocalAddr().String()
}

func (z zone) reply(id uint16, q dnsmessage.Question, asked int) *dnsmessage.Message {
	m := &dnsmessage.Message{Header: dnsmessage.Header{ID: id, Response: true, RecursionAvailable: true}, Questions: []dnsmessage.Question{q}}
	name := q.Name
	answers, ok := z[strings.TrimSuffix(strings.ToLower(name.String()), ".")]
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
		return m
	}
	a := answers[min(asked, len(answers)-1)]
	add := func(body dnsmessage.ResourceBody) {
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name, Class: q.Class}, Body: body})
	}
	if a.CNAME != "" {
		target := dnsmessage.MustNewName(a.CNAME + ".")
		add(&dnsmessage.CNAMEResource{CNAME: target})
		name, a = target, z[a.CNAME][0]
	}
	if a.Fail {
		m.RCode = dnsmessage.RCodeServerFailure
	}
	if q.Type == dnsmessage.TypeA {
		for _, addr := range a.A {
			add(&dnsmessage.AResource{A: addr.As4()})
		}
	}
	if q.Type == dnsmessage.TypeAAAA {
		for _, addr := range a.AAAA {
			add(&dnsmessage.AAAAResource{AAAA: addr.As16()})
		}
	}
	return m
}

// strict is a guard as in production, with a DNS server of our own.
func strict(t testing.TB, more zone) *Guard {
	t.Helper()
	return NewGuard(GuardOptions{Ports: []uint16{443, 8443}, OwnHosts: []string{"Self.Service.Test-Own"}, Resolver: serveDNS(t, more)})
}

// lenient is a guard as for development: loopback and plain http are let through.
func lenient(t testing.TB, more zone) *Guard {
	t.Helper()
	return NewGuard(GuardOptions{
		Ports: []uint16{443}, AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, AllowHTTP: true, Resolver: serveDNS(t, more),
	})
}

func reasonOf(err error) string {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return string(r.Reason)
	}
	return ""
}

type ssrfCase struct{ id, group, verdict, layer, url, why string }

func ssrfCases(t testing.TB) (cases []ssrfCase) {
	t.Helper()
	scanner := bufio.NewScanner(bytes.NewReader(testdata(t, "ssrf", "cases.tsv")))
	for scanner.Scan() {
		f := strings.Split(scanner.Text(), "\t")
		if len(f) != 6 {
			t.Fatalf("%d columns in %q", len(f), scanner.Text())
		}
		if f[0] == "id" {
			continue
		}
		c := ssrfCase{id: f[0], group: f[1], verdict: f[2], layer: f[3], why: f[5]}
		if err := json.Unmarshal([]byte(f[4]), &c.url); err != nil {
			t.Fatalf("case %s: %v", c.id, err)
		}
		cases = append(cases, c)
	}
	if len(cases) < 100 || scanner.Err() != nil {
		t.Fatalf("%d cases, %v", len(cases), scanner.Err())
	}
	return cases
}

// Every case, at every layer that it names: the URL's text, the addresses of
// its name, and the address that is dialled.
func TestSSRFCases(t *testing.T) {
	g := strict(t, nil)
	for _, c := range ssrfCases(t) {
		t.Run(c.id, func(t *testing.T) {
			canonical, err := g.CheckURL(c.url)
			switch layer := c.verdict + " " + c.layer; layer {
			case "ALLOW -":
				if err != nil {
					t.Fatalf("%q was refused: %v", c.url, err)
				}
				if _, err := resolveURL(t, g, canonical); err != nil {
					t.Errorf("%q was refused by its addresses: %v", c.url, err)
				}
				if again, err := g.CheckURL(canonical); err != nil || again != canonical {
					t.Errorf("%q became %q, %v", canonical, again, err)
				}
			case "BLOCK parse", "BLOCK parse+connect":
				if reasonOf(err) == "" || canonical != "" {
					t.Errorf("%q: got %q, %v (%s)", c.url, canonical, err, c.why)
				}
				if c.layer == "parse+connect" {
					refusesToConnect(t, g, c.url)
				}
			case "BLOCK connect":
				if err != nil {
					t.Fatalf("%q was refused by its text: %v", c.url, err)
				}
				if _, err := resolveURL(t, g, canonical); reasonOf(err) == "" {
					t.Errorf("%q: resolved, %v (%s)", c.url, err, c.why)
				}
				u, _ := url.Parse(canonical)
				if conn, err := g.DialContext(t.Context(), "tcp", net.JoinHostPort(u.Hostname(), "443")); reasonOf(err) == "" {
					t.Errorf("%q: dialled %v, %v (%s)", c.url, conn, err, c.why)
				}
			case "BLOCK dns":
				if err != nil {
					t.Fatalf("%q was refused by its text: %v", c.url, err)
				}
				_, err := resolveURL(t, g, canonical)
				if dns, ok := errors.AsType[*net.DNSError](err); !ok || !dns.IsNotFound || reasonOf(err) != "" {
					t.Errorf("%q: got %v, want that the name does not exist", c.url, err)
				}
			default:
				t.Fatalf("unknown kind %q", layer)
			}
		})
	}
}

func resolveURL(t *testing.T, g *Guard, canonical string) ([]netip.AddrPort, error) {
	t.Helper()
	u, err := url.Parse(canonical)
	if err != nil {
		t.Fatal(err)
	}
	port, err := portOf(u)
	if err != nil {
		t.Fatal(err)
	}
	return g.Resolve(t.Context(), u.Hostname(), port)
}

// refusesToConnect checks that a URL that the text's check has refused would
// come no further either: its name leads to no address that may be dialled.
func refusesToConnect(t *testing.T, g *Guard, raw string) {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		to := netip.AddrPortFrom(addr, 443).String()
		if err := g.control(t.Context(), "tcp6", to, nil); reasonOf(err) == "" {
			t.Errorf("%q: the wall lets %s through: %v", raw, to, err)
		}
		return
	}
	port, err := portOf(u)
	if err != nil {
		t.Fatal(err)
	}
	to, err := g.Resolve(t.Context(), u.Hostname(), port)
	if _, dns := errors.AsType[*net.DNSError](err); reasonOf(err) == "" && !dns {
		t.Errorf("%q: resolved to %v, %v", raw, to, err)
	}
}

func TestCanonicalURL(t *testing.T) {
	g := strict(t, nil)
	for raw, want := range map[string]string{
		"https://public.example":                            "https://public.example/",
		"https://public.example?x=1":                        "https://public.example/?x=1",
		"https://public.example/Hook?a=b&c=%20#":            "",
		"HTTPS://PUBLIC.example./Hook":                      "https://public.example/Hook",
		"https://public.example:443/":                       "https://public.example/",
		"https://public.example:/":                          "https://public.example/",
		"https://public.example:8443/":                      "https://public.example:8443/",
		"https://public.example:0443/":                      "https://public.example/",
		"https://public.example:08443/":                     "https://public.example:8443/",
		"https://bücher.example/日本":                         "https://xn--bcher-kva.example/%E6%97%A5%E6%9C%AC",
		"https://ＰＵＢＬＩＣ．example/":                           "https://public.example/",
		"https://public.example/%0d%0aX:1":                  "https://public.example/%0d%0aX:1",
		"https://public.example//a/../b;c?d":                "https://public.example//a/../b;c?d",
		"https://[2A09:8280:1::2D:678B]:8443/":              "https://[2a09:8280:1::2d:678b]:8443/",
		"https://[2606:4700:4700:0:0:0:0:1111]":             "https://[2606:4700:4700::1111]/",
		"https://8.8.8.8:443":                               "https://8.8.8.8/",
		"https://a.example/" + strings.Repeat("x", 2048-18): "https://a.example/" + strings.Repeat("x", 2048-18),
		"https://a.example/" + strings.Repeat("x", 2048-17): "",
		"https://a.example/" + strings.Repeat("あ", 300):     "", // within the limit, but not when it is escaped
	} {
		got, err := g.CheckURL(raw)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%.80q: got %.80q, %v; want %.80q", raw, got, err, want)
		}
	}
}

// The reason is one word that log, metric, API and attempt share.
func TestRefusalReasons(t *testing.T) {
	g := strict(t, nil)
	for raw, want := range map[string]string{
		"https://a.example/" + strings.Repeat("あ", 300): "url_too_long",
		"https://a.example/\u00a0 x":                    "url_characters",
		"https://a.example/%zz":                         "url_syntax",
		"http://a.example/":                             "https_required",
		"https://u@a.example/":                          "userinfo",
		"https://a.example/#":                           "fragment",
		"https://:8443/":                                "no_host",
		"https://a.example:80/":                         "port",
		"https://a.example:65979/":                      "port", // 443, were it cut to 16 bits
		"https://a.example:99999999999/":                "port",
		"https://1.1/":                                  "ip_syntax",
		"https://a.0x/":                                 "ip_syntax",
		"https://a.0xff/":                               "ip_syntax",
		"https://a.local/":                              "private_name",
		"https://a/":                                    "single_label",
		"https://self.service.test-own./":               "own_host",
		"https://a..example/":                           "host_name",
		"https://a.ex*mple/":                            "host_name",
		"https://[::ffff:8.8.8.8]/":                     "mapped_address",
		"https://[fe80::1%25eth0]/":                     "ip_syntax",
		"https://0.0.0.0/":                              "unspecified_address",
		"https://[::1]/":                                "loopback_address",
		"https://10.0.0.1/":                             "private_address",
		"https://[fdaa::3]/":                            "private_address",
		"https://169.254.169.254/":                      "link_local_address",
		"https://224.0.0.1/":                            "multicast_address",
		"https://168.63.129.16/":                        "special_address",
		"https://[4000::1]/":                            "special_address",
	} {
		_, err := g.CheckURL(raw)
		if got := reasonOf(err); got != want || err.Error() == "" {
			t.Errorf("%.60q: got %q (%v), want %q", raw, got, err, want)
		}
	}
}

// notPublic is written down from the registries, not taken from the guard.
var notPublic = func() (all []netip.Prefix) {
	for _, p := range strings.Fields(`
		0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
		192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 168.63.129.16/32 224.0.0.0/4
		240.0.0.0/4 255.255.255.255/32
		::/128 ::1/128 ::/8 ::ffff:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 5f00::/16 fc00::/7
		fdaa::/16 fe80::/10 ff00::/8 ::/3 4000::/2 8000::/1
		2001::/23 2001::/32 2001:db8::/32 2002::/16 3fff::/20 2620:4f:8000::/48`) {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}()

func isPublic(addr netip.Addr) bool {
	for _, p := range notPublic {
		if p.Contains(addr) {
			return false
		}
	}
	return !addr.Is4In6() && addr.Zone() == ""
}

func lastOf(p netip.Prefix) netip.Addr {
	n := new(big.Int).SetBytes(p.Addr().AsSlice())
	size := new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
	b := make([]byte, p.Addr().BitLen()/8)
	n.Add(n, size).Sub(n, big.NewInt(1)).FillBytes(b)
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// The first and the last address of each range, and the neighbours of both.
func TestRangesEndWhereTheyShould(t *testing.T) {
	g := strict(t, nil)
	public := 0
	for _, p := range notPublic {
		first, last := p.Addr(), lastOf(p)
		if isPublic(first) || isPublic(last) {
			t.Fatalf("%s: %s to %s", p, first, last)
		}
		for _, addr := range []netip.Addr{first.Prev(), first, first.Next(), last.Prev(), last, last.Next()} {
			if !addr.IsValid() {
				continue // there is none before 0.0.0.0
			}
			host := addr.String()
			if addr.Is6() {
				host = "[" + host + "]"
			}
			_, err := g.CheckURL("https://" + host + "/")
			dial := g.control(t.Context(), networkOf(addr), host+":443", nil)
			if want := isPublic(addr); (err == nil) != want || (dial == nil) != want {
				t.Errorf("%s, at %s: by its text %v, at the wall %v; public: %t", addr, p, err, dial, want)
			} else if want {
				public++
			}
		}
	}
	if public < 30 {
		t.Errorf("%d neighbours are public: the walk is not one along boundaries", public)
	}
}

func TestTheWall(t *testing.T) {
	g := strict(t, nil)
	for _, c := range []struct{ network, address, want string }{
		{"tcp4", "8.8.8.8:443", ""},
		{"tcp6", "[2606:4700:4700::1111]:8443", ""},
		{"tcp4", "8.8.8.8:22", "port"},
		{"tcp4", "8.8.8.8:0", "port"},
		{"tcp4", "127.0.0.1:443", "loopback_address"},
		{"tcp4", "169.254.169.254:443", "link_local_address"},
		{"tcp6", "[fdaa::3]:443", "private_address"},
		{"tcp6", "[::ffff:8.8.8.8]:443", "mapped_address"},
		{"tcp6", "[fe80::1%eth0]:443", "zone"},
		{"tcp6", "[2606:4700:4700::1111%eth0]:443", "zone"},
		{"udp4", "8.8.8.8:443", "network"},
		{"tcp", "8.8.8.8:443", "network"},
		{"unix", "/.fly/api", "ip_syntax"},
		{"tcp4", "public.example:443", "ip_syntax"},
		{"tcp4", "", "ip_syntax"},
	} {
		err := g.control(t.Context(), c.network, c.address, nil)
		if got := reasonOf(err); got != c.want || (err == nil) != (c.want == "") {
			t.Errorf("%s %s: got %v, want %q", c.network, c.address, err, c.want)
		}
	}
}

func TestNamesAreResolvedAndJudgedWhole(t *testing.T) {
	g := strict(t, zone{"broken.example": {{Fail: true}}, "mapped-public.example": {{AAAA: []netip.Addr{netip.MustParseAddr("::ffff:93.184.215.14")}}}})
	for _, c := range []struct{ host, want, reason string }{
		{"public.example", "[93.184.215.14:443 [2606:2800:21f:cb07:6820:80da:af6b:8b2c]:443]", ""}, // IPv4 first
		{"v6only.example", "[[2606:4700:4700::1111]:443]", ""},
		{"mapped-public.example", "[93.184.215.14:443]", ""}, // what would be dialled
		{"mixed-a.example", "[]", "private_address"},
		{"mixed-aaaa.example", "[]", "private_address"},
		{"metadata.google.internal", "[]", "link_local_address"},
		{"broken.example", "[]", ""},
		{"nowhere.example", "[]", ""},
	} {
		to, err := g.Resolve(t.Context(), c.host, 443)
		if fmt.Sprint(to) != c.want || reasonOf(err) != c.reason || (err == nil) != (len(to) > 0) {
			t.Errorf("%s: got %v, %v; want %s, %q", c.host, to, err, c.want, c.reason)
		}
	}
	if _, err := g.Resolve(t.Context(), "public.example", 22); reasonOf(err) != "port" {
		t.Errorf("port 22: %v", err)
	}
}

// A name that was public when it was looked at is not trusted at the next look.
func TestRebinding(t *testing.T) {
	g := strict(t, nil)
	if to, err := g.Resolve(t.Context(), "rebind.example", 443); err != nil || to[0].String() != "93.184.215.14:443" {
		t.Fatalf("first: %v, %v", to, err)
	}
	if conn, err := g.DialContext(t.Context(), "tcp", "rebind.example:443"); reasonOf(err) != "loopback_address" {
		t.Errorf("dialled %v, %v", conn, err)
	}
}

// listen accepts connections on 127.0.0.1 and closes them.
func listen(t testing.TB) *net.TCPAddr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr)
}

func TestAllowedAddresses(t *testing.T) {
	here := netip.MustParseAddr("127.0.0.1")
	g := lenient(t, zone{
		"receiver.example": {{A: []netip.Addr{here}}},
		"second.example":   {{A: []netip.Addr{netip.MustParseAddr("127.255.0.9"), here}}}, // nothing listens on the first
		"mixed.example":    {{A: []netip.Addr{here, netip.MustParseAddr("10.0.0.5")}}},
	})
	port := listen(t).Port
	for _, host := range []string{"127.0.0.1", "localhost", "receiver.example", "second.example"} {
		address := fmt.Sprintf("%s:%d", host, port)
		if canonical, err := g.CheckURL("http://" + address + "/hook"); err != nil || canonical != "http://"+address+"/hook" {
			t.Errorf("%s: %q, %v", host, canonical, err)
		}
		conn, err := g.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Errorf("%s: %v", host, err)
			continue
		}
		if got := conn.RemoteAddr().String(); got != fmt.Sprintf("127.0.0.1:%d", port) {
			t.Errorf("%s: connected to %s", host, got)
		}
		conn.Close()
	}
	for address, want := range map[string]string{
		"10.0.0.5:443": "private_address", "[::1]:443": "loopback_address", "mixed.example:443": "private_address", "public.example:22": "port", "8.8.8.8:8443": "port",
	} {
		if conn, err := g.DialContext(t.Context(), "tcp", address); reasonOf(err) != want {
			t.Errorf("%s: dialled %v, %v; want %s", address, conn, err, want)
		}
	}
	for raw, want := range map[string]string{
		"http://127.0.0.1:80/": "http://127.0.0.1/", "https://127.0.0.1:9/": "https://127.0.0.1:9/", "https://localhost./": "https://localhost/",
		"http://10.0.0.1/": "", "https://foo.localhost/": "", "https://8.8.8.8:8443/": "", "https://a.example:65536/": "", "ftp://127.0.0.1/": "",
	} {
		if got, err := g.CheckURL(raw); got != want || (reasonOf(err) == "") != (want != "") {
			t.Errorf("%s: got %q, %v; want %q", raw, got, err, want)
		}
	}
}

// Which loopback addresses localhost has does not hang on the machine's hosts file.
func TestLocalhost(t *testing.T) {
	for allow, want := range map[string]string{"127.0.0.0/8": "[127.0.0.1:9]", "::1/128": "[[::1]:9]", "127.0.0.0/8 ::1/128": "[127.0.0.1:9 [::1]:9]", "10.0.0.0/8": "[]", "": "[]"} {
		o := GuardOptions{Ports: []uint16{443}}
		for _, cidr := range strings.Fields(allow) {
			o.AllowCIDRs = append(o.AllowCIDRs, netip.MustParsePrefix(cidr))
		}
		to, err := NewGuard(o).Resolve(t.Context(), "localhost", 9)
		if fmt.Sprint(to) != want || (reasonOf(err) == "loopback_address") != (want == "[]") {
			t.Errorf("%q: got %v, %v; want %s", allow, to, err, want)
		}
	}
}

// late is a context that changes something between the judgement of the
// addresses and the dial: there the time is asked for.
type late struct {
	context.Context
	change func()
}

func (l late) Deadline() (time.Time, bool) {
	l.change()
	return l.Context.Deadline()
}

// The wall judges again what is really dialled.
func TestTheWallIsInTheDialer(t *testing.T) {
	g := lenient(t, nil)
	address := listen(t).String()
	if conn, err := g.DialContext(t.Context(), "tcp", address); err != nil {
		t.Fatal(err)
	} else {
		conn.Close()
	}
	ctx := late{t.Context(), func() { g.allow = nil }}
	if conn, err := g.DialContext(ctx, "tcp", address); reasonOf(err) != "loopback_address" {
		t.Errorf("dialled %v, %v", conn, err)
	}
}

func TestDialingNowhere(t *testing.T) {
	g := lenient(t, nil)
	for _, address := range []string{"127.0.0.1", "127.0.0.1:https", "127.0.0.1:65536", "127.0.0.1:-1", "nxdomain.example:443", ":443", "[::1:443"} {
		if conn, err := g.DialContext(t.Context(), "tcp", address); err == nil {
			t.Errorf("%q: dialled %v", address, conn.RemoteAddr())
		}
	}
}

// One that does not answer leaves time for those after it.
func TestAddressesShareTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		for left, want := range map[int]time.Duration{3: time.Second, 1: 3 * time.Second} {
			share, cancel := shareOf(ctx, left)
			if at, ok := share.Deadline(); !ok || at.Sub(start) != want {
				t.Errorf("%d addresses: until %v", left, at.Sub(start))
			}
			cancel()
		}
		share, cancel := shareOf(t.Context(), 3)
		defer cancel()
		if _, ok := share.Deadline(); ok {
			t.Error("a deadline where there was none")
		}
	})
}

// Whatever the text is, CheckURL returns; what it accepts is no address that
// is not public, and its canonical form stays as it is.
func FuzzCheckURL(f *testing.F) {
	for _, c := range ssrfCases(f) {
		f.Add(c.url)
	}
	for _, more := range []string{
		"https://127.0.0.1\u3002/", "https://%E2%93%AA/", "https://a.example:00443/?日本=\xff", "https://a.example/[x]%2f%2F?%", "https://ⅷ.example/",
		"https://xn--.example/", "https://0.00\x82/", "https://0.00%82/", "https://a\u00ad.example/", "https://[2606:4700:4700::1111]", "https://a.example/a:b@c", "https://a.example?//",
	} {
		f.Add(more)
	}
	g := NewGuard(GuardOptions{Ports: []uint16{443, 8443}, OwnHosts: []string{"self.service.test-own"}})
	f.Fuzz(func(t *testing.T, raw string) {
		canonical, err := g.CheckURL(raw)
		if err != nil {
			if canonical != "" || reasonOf(err) == "" {
				t.Errorf("%q: got %q, %v", raw, canonical, err)
			}
			return
		}
		u, err := url.Parse(canonical)
		if err != nil {
			t.Fatalf("%q became %q: %v", raw, canonical, err)
		}
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil && !isPublic(addr) {
			t.Errorf("%q leads to %s", raw, addr)
		}
		if u.Scheme != "https" || u.User != nil || u.Port() != "" && u.Port() != "8443" || len(canonical) > maxURL {
			t.Errorf("%q became %q", raw, canonical)
		}
		if again, err := g.CheckURL(canonical); err != nil || again != canonical {
			t.Errorf("%q became %q, and that %q, %v", raw, canonical, again, err)
		}
	})
}
