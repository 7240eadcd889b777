// Command ssrf_probe attacks a running server through its public API: it
// registers URLs that must be refused, and URLs that must not be. It plays the
// customer with a hostile URL, that customer's DNS server and its receiver; it
// starts nothing on the server's side and reads nothing of its file.
//
// What it judges, in this order:
//
//	subscribe    each URL of the case file and of extra.go: refused or accepted.
//	             What is accepted is deleted at once, and has a filter that no
//	             event passes, so nothing is ever sent to it.
//	change       some of them again, as the new URL of a subscription.
//	deliver      names that point elsewhere after they were accepted, and a
//	             receiver that redirects. The server is made to send by its test
//	             call, also of a subscription that was changed to that URL, and,
//	             given the admin token, by an event that only the probe's own
//	             customer hears of. A call that the server does not have is a
//	             surprise. The attempt must end without a
//	             connection to the canary.
//	canary       listeners on loopback addresses: one connection is a hole.
//
// Against a server as it is in production, from the module's root:
//
//	JPINTEL_PROBE_KEY=jpk_… go run ./scripts/ssrf_probe --subscribe-only --url https://your.host
//
// Everything, against a server of one's own on the same machine:
//
//	go run ./scripts/ssrf_probe --url http://127.0.0.1:8080 --dns 127.0.0.1:5300 --admin-token …
//
// with the server started under JPINTEL_WEBHOOK_RESOLVER=127.0.0.1:5300. The
// redirects need a receiver that the server may call as well: see --help.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// The exit codes.
const (
	exitDone     = 0
	exitSurprise = 1
	exitUsage    = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are what the command line says.
type options struct {
	url, key, token string
	cases, zone     string
	dns             string
	ownHost         string
	allow           []netip.Prefix // what the server was opened for
	canary          int            // port
	cert, certKey   string
	subscribeOnly   bool
	json            bool
}

const usage = `usage: ssrf_probe --url URL [--key KEY] [flags]

Attacks a running server through its public API. Exit status 0: every attack was
refused and everything else accepted; 1: a surprise; 2: wrong use.

`

func parse(args []string, getenv func(string) string, stderr io.Writer) (options, error) {
	var o options
	var allow string
	flags := flag.NewFlagSet("ssrf_probe", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.StringVar(&o.url, "url", "", "the server's `URL`")
	flags.StringVar(&o.key, "key", "", "API `key` of a paid customer that has no use for its subscriptions; default $JPINTEL_PROBE_KEY")
	flags.StringVar(&o.token, "admin-token", "", "the server's JPINTEL_ADMIN_TOKEN, to publish events that only the probe's own customer hears of; default $JPINTEL_PROBE_ADMIN_TOKEN; without it deliveries are tried by test calls only")
	flags.StringVar(&o.cases, "cases", "testdata/ssrf/cases.tsv", "the case `file`")
	flags.StringVar(&o.zone, "zone", "", "the zone `file`; default zone.json beside the cases")
	flags.StringVar(&o.dns, "dns", "", "serve the zone on this UDP `address`, the server's JPINTEL_WEBHOOK_RESOLVER; without it cases with names are skipped")
	flags.StringVar(&o.ownHost, "own-host", "", "the `host` in the server's JPINTEL_PUBLIC_URL; without it that case is skipped")
	flags.StringVar(&allow, "allow-cidrs", "", "the server's JPINTEL_WEBHOOK_ALLOW_CIDRS: attacks that only lead there are skipped")
	flags.IntVar(&o.canary, "canary", 8443, "`port` of the canary on the loopback addresses; one of the server's JPINTEL_WEBHOOK_PORTS")
	flags.StringVar(&o.cert, "receiver-cert", "", "certificate `file` for 127.0.0.1 and *.probe.example that the server trusts; with it, and 127.0.0.1/32 in --allow-cidrs, redirects are tried")
	flags.StringVar(&o.certKey, "receiver-key", "", "its key `file`")
	flags.BoolVar(&o.subscribeOnly, "subscribe-only", false, "have nothing sent: no test calls, no events")
	flags.BoolVar(&o.json, "json", false, "print JSON")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.key, o.token = orElse(o.key, getenv("JPINTEL_PROBE_KEY")), orElse(o.token, getenv("JPINTEL_PROBE_ADMIN_TOKEN"))
	o.zone = orElse(o.zone, filepath.Join(filepath.Dir(o.cases), "zone.json"))
	return o, errors.Join(o.parseAllow(allow), o.check(flags.Args()))
}

func orElse(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}

func (o *options) parseAllow(list string) error {
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("--allow-cidrs: %q is not a network", text)
		}
		o.allow = append(o.allow, prefix)
	}
	return nil
}

func (o *options) check(rest []string) error {
	base, err := url.Parse(o.url)
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case o.url == "" || err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https":
		return errors.New("--url: want the server's URL")
	case o.key == "":
		return errors.New("--key or JPINTEL_PROBE_KEY: want an API key")
	case (o.cert == "") != (o.certKey == ""):
		return errors.New("--receiver-cert and --receiver-key go together")
	case o.canary < 1 || o.canary > 65535:
		return errors.New("--canary: want a port")
	}
	o.url = strings.TrimSuffix(o.url, "/")
	return nil
}

// run is the whole program; tests start it as main does.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	o, err := parse(args, getenv, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitDone
	}
	if err != nil {
		fmt.Fprintf(stderr, "ssrf_probe: %v\n", err)
		return exitUsage
	}
	p, err := newProbe(o, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "ssrf_probe: %v\n", err)
		return exitSurprise
	}
	defer p.close()
	if err := p.run(ctx); err != nil {
		fmt.Fprintf(stderr, "ssrf_probe: %v\n", err)
		return exitSurprise
	}
	if err := p.report.print(stdout, o.json); err != nil {
		fmt.Fprintf(stderr, "ssrf_probe: %v\n", err)
		return exitSurprise
	}
	if !p.report.good() {
		return exitSurprise
	}
	return exitDone
}

func loadCertificate(o options) (*tls.Certificate, error) {
	if o.cert == "" {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(o.cert, o.certKey)
	if err != nil {
		return nil, fmt.Errorf("--receiver-cert: %w", err)
	}
	return &cert, nil
}
