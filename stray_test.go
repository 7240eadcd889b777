package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// strayNames can begin a connection or a look-up, or make what can, by package.
// "*" is all of a package.
var strayNames = map[string][]string{
	"net": {"Dial", "DialTimeout", "DialTCP", "DialUDP", "DialIP", "DialUnix", "Dialer", "Resolver", "DefaultResolver",
		"LookupHost", "LookupIP", "LookupAddr", "LookupCNAME", "LookupMX", "LookupNS", "LookupPort", "LookupSRV", "LookupTXT",
		"ResolveTCPAddr", "ResolveUDPAddr", "ResolveIPAddr"},
	"net/http":                   {"Client", "DefaultClient", "Get", "Head", "Post", "PostForm", "Transport", "DefaultTransport", "NewFileTransport"},
	"crypto/tls":                 {"Client", "Dial", "DialWithDialer", "Dialer"},
	"net/http/httputil":          {"ReverseProxy", "NewSingleHostReverseProxy", "ClientConn", "NewClientConn", "NewProxyClientConn"},
	"net/rpc":                    {"*"},
	"net/rpc/jsonrpc":            {"*"},
	"net/smtp":                   {"*"},
	"golang.org/x/net/http2":     {"Transport", "ClientConn", "ConfigureTransport", "ConfigureTransports"},
	"golang.org/x/net/proxy":     {"*"},
	"syscall":                    {"Connect", "Socket"},
	"golang.org/x/sys/unix":      {"Connect", "Socket"},
	"net/http/cgi":               {"*"},
	"golang.org/x/net/websocket": {"*"},
}

// strayUser is a file, or a folder with all of its files where it ends in /.
type strayUser struct {
	file, why string
	uses      []string // nil: whatever it likes
}

func (u strayUser) is(path string) bool {
	return path == u.file || strings.HasSuffix(u.file, "/") && strings.HasPrefix(path, u.file)
}

// strayAllowed are those that may, with what they use, and why. Nothing else in
// the program makes a request of its own.
var strayAllowed = []strayUser{
	{"webhook/send.go", "the guarded sender: the one that calls customers' URLs", []string{"http.Transport", "tls.Client"}},
	{"webhook/guard.go", "the guard: it dials and looks up for the sender, and judges what it finds", []string{"net.DefaultResolver", "net.Dialer", "net.Resolver"}},
	{"webhook/mail/smtp.go", "owner mails: it calls the SMTP server that the operator has configured", []string{"net.Dialer", "tls.Client"}},
	{"billing/modelgate/client.go", "the partner API: it calls the address that the operator has configured", []string{"http.Transport", "net.Dialer"}},
	{"billing/stripe/list.go", "Stripe's API: it calls Stripe's own address, and in tests one of this machine's", []string{"http.Transport", "net.Dialer"}},
	{"demo_client.go", "jpintel demo calls the server that it has started itself", []string{"http.DefaultClient"}},
	{"scripts/", "tools beside the program: they call the servers that they are pointed at", nil},
}

// strayUses finds the uses in one file, as package.Name.
func strayUses(file *ast.File) map[string]bool {
	packages, found := map[string]string{}, map[string]bool{} // by the name that they have here
	for _, spec := range file.Imports {
		path, _ := strconv.Unquote(spec.Path.Value) // the parser has read it
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if _, watched := strayNames[path]; !watched {
			continue
		}
		packages[name] = path
		if name == "." || name == "_" || strayNames[path][0] == "*" {
			found[path+" as a whole"] = true
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		name, ok := selector.X.(*ast.Ident)
		if !ok {
			return true
		}
		if path, imported := packages[name.Name]; imported && slices.Contains(strayNames[path], selector.Sel.Name) {
			found[path[strings.LastIndex(path, "/")+1:]+"."+selector.Sel.Name] = true
		}
		return true
	})
	return found
}

// Nothing in the program makes requests but the guarded sender and what is
// listed above. What is listed is so: a line that is not needed fails too.
func TestNothingElseMakesRequests(t *testing.T) {
	needed, files := map[string]map[string]bool{}, 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != "." && strings.HasPrefix(entry.Name(), ".") {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files++
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for use := range strayUses(file) {
			i := slices.IndexFunc(strayAllowed, func(u strayUser) bool { return u.is(path) })
			if i < 0 || strayAllowed[i].uses != nil && !slices.Contains(strayAllowed[i].uses, use) {
				t.Errorf("%s uses %s: requests are the guarded sender's to make (webhook.Sender); if this one goes to an address of the operator's, add it to strayAllowed with the reason", path, use)
				continue
			}
			if needed[strayAllowed[i].file] == nil {
				needed[strayAllowed[i].file] = map[string]bool{}
			}
			needed[strayAllowed[i].file][use] = true
		}
		return nil
	})
	if err != nil || files < 60 {
		t.Fatalf("%d files, %v", files, err)
	}
	for _, a := range strayAllowed {
		if got := slices.Sorted(maps.Keys(needed[a.file])); len(got) == 0 || a.uses != nil && !slices.Equal(got, a.uses) || a.why == "" {
			t.Errorf("%s uses %q, and may use %q", a.file, got, a.uses)
		}
	}
}

// The search has to find what it is for, however it is written.
func TestStrayUsesAreFound(t *testing.T) {
	for source, want := range map[string][]string{
		`import "net/http"; var _ = http.DefaultClient`:                             {"http.DefaultClient"},
		`import web "net/http"; func f() { _, _ = web.Get("x") }`:                   {"http.Get"},
		`import . "net/http"; var _ Client`:                                         {"net/http as a whole"},
		`import "net/http"; type c struct{ http.Client }`:                           {"http.Client"},
		`import "net"; func f() { (&net.Dialer{}).Dial("tcp", "x") }`:               {"net.Dialer"},
		`import "net/smtp"; var _ = smtp.SendMail`:                                  {"net/smtp as a whole"},
		`import "net/http"; var _ http.Handler; var _ = http.StatusOK`:              nil,
		`import "net/http"; func f(r *http.Request) { r.Header.Get("x") }`:          nil,
		`import "crypto/tls"; func f(c *tls.Config) { tls.Client(nil, c) }`:         {"tls.Client"},
		`import "net"; func f() { _, _ = net.Listen("tcp", ""); net.ParseIP("x") }`: nil,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x; "+source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(maps.Keys(strayUses(file))); !slices.Equal(got, want) {
			t.Errorf("%s: found %q, want %q", source, got, want)
		}
	}
}
