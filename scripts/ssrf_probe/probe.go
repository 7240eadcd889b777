package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// probe is one run.
type probe struct {
	options
	api      *client
	cases    []testCase
	zone     *zone
	canary   *canary
	receiver *receiver // nil: the server may not call one
	mark     string    // of this run, in filters and ids
	report   report
}

func newProbe(o options, stderr io.Writer) (_ *probe, err error) {
	p := &probe{options: o, api: &client{base: o.url, key: o.key, token: o.token}, mark: "ssrf-probe-" + strings.ToLower(rand.Text())}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.cases, err = readCases(o.cases); err != nil {
		return nil, err
	}
	if p.zone, err = readZone(o.zone); err != nil {
		return nil, err
	}
	if o.dns != "" {
		if err := p.zone.serve(o.dns); err != nil {
			return nil, err
		}
	}
	if p.canary, err = newCanary(o.canary); err != nil {
		return nil, err
	}
	for _, address := range p.canary.missing {
		fmt.Fprintf(stderr, "The canary cannot listen on %s.\n", address)
	}
	cert, err := loadCertificate(o)
	if err == nil && cert != nil {
		p.receiver, err = newReceiver(*cert, o.canary)
	}
	return p, err
}

func (p *probe) close() {
	if p.zone != nil {
		p.zone.close()
	}
	if p.canary != nil {
		p.canary.close()
	}
	if p.receiver != nil {
		p.receiver.close()
	}
}

// opened reports whether the server was opened for anything.
func (p *probe) opened() bool { return len(p.allow) > 0 }

func (p *probe) run(ctx context.Context) error {
	if err := p.ready(ctx); err != nil {
		return err
	}
	for _, c := range p.cases {
		r := result{ID: c.id, Group: c.group, Expected: refused, Detail: clean(c.text()), attack: !c.allow}
		if c.allow {
			r.Expected = accepted
		}
		p.try(ctx, c, &r)
		p.report.add(r)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := p.change(ctx); err != nil {
		return err
	}
	if err := p.deliver(ctx); err != nil {
		return err
	}
	visits := p.canary.visits()
	p.report.visits = len(visits)
	r := result{ID: "canary", Group: "canary", Expected: noConnection, Got: noConnection, attack: true}
	if len(visits) > 0 {
		r.Got, r.Surprise, r.Detail = "connection", true, strings.Join(visits, "; ")
	}
	p.report.add(r)
	return nil
}

// ready checks that what follows will mean something: the key is one, and the
// server asks our DNS server.
func (p *probe) ready(ctx context.Context) error {
	a, err := p.api.customer(ctx, "GET", "/v1/webhooks/subscriptions", nil)
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		return fmt.Errorf("the server does not take the key: %s", a.detail())
	}
	if p.dns == "" {
		return nil
	}
	name := p.mark + ".probe.example"
	p.zone.set(name, records{A: []netip.Addr{public}})
	a, sub, err := p.subscribe(ctx, js(`"`+p.canaryURL(name)+`"`))
	if err != nil {
		return err
	}
	if a.status != http.StatusCreated && strings.HasPrefix(a.detail(), "url: port ") {
		err = fmt.Errorf("the canary's port has to be one that the server allows (--canary): %s", a.detail())
	} else if p.zone.asked(name) == 0 {
		err = fmt.Errorf("the server did not ask the DNS server at %s: start it with JPINTEL_WEBHOOK_RESOLVER=%s", p.dns, p.dns)
	} else if a.status != http.StatusCreated {
		err = fmt.Errorf("the server does not accept a public name: %s", a.detail())
	}
	if a.status == http.StatusCreated {
		err = errors.Join(err, p.api.unsubscribe(ctx, sub.ID))
	}
	return err
}

// canaryURL leads to the canary, if name does.
func (p *probe) canaryURL(name string) string {
	return "https://" + net.JoinHostPort(name, strconv.Itoa(p.options.canary)) + "/"
}

// public is an address that names have while they are accepted. Nothing is ever
// sent there.
var public = netip.MustParseAddr("93.184.215.14")

// subscribe registers a URL that no event will match.
func (p *probe) subscribe(ctx context.Context, url []byte) (answer, subscription, error) {
	return p.api.subscribe(ctx, url, "program.updated", "unified_id", p.mark)
}

// try makes one subscription and judges what the server did with it.
func (p *probe) try(ctx context.Context, c testCase, r *result) {
	if why := p.skip(&c); why != "" {
		r.Got, r.Detail = skipped, why
		return
	}
	name := strings.TrimSuffix(c.host(), ".")
	before := p.zone.asked(name)
	a, sub, err := p.subscribe(ctx, c.url)
	if err != nil {
		r.Got, r.Surprise, r.Detail = failed, true, err.Error()
		return
	}
	r.Got, r.Detail = verdict(a), r.Detail+" ("+c.why+"): "+a.detail()
	if a.status == http.StatusCreated {
		r.Detail = clean(c.text()) + " (" + c.why + "): stored as " + sub.URL
		if err := p.api.unsubscribe(ctx, sub.ID); err != nil {
			r.Surprise, r.Detail = true, err.Error()
		}
	}
	if problem := p.judge(c, a, sub, p.zone.asked(name) > before); problem != "" {
		r.Surprise, r.Detail = true, problem+": "+r.Detail
	}
	r.Surprise = r.Surprise || r.Got != r.Expected
}

// skip says why a case would mean nothing here, or "".
func (p *probe) skip(c *testCase) string {
	if c.host() == ownHostOfCases {
		if p.ownHost == "" {
			return "what the server's own host is called is not known (--own-host)"
		}
		c.url = js(`"https://` + p.ownHost + `/"`)
	}
	if p.dns == "" && c.needsDNS(p.opened()) {
		return "the zone is not served (--dns)"
	}
	if c.leadsOnlyTo(p.allow, p.zone) {
		return "the server is opened for where this leads (--allow-cidrs)"
	}
	return ""
}

// ownHostOfCases stands for the server's own name in the case file.
const ownHostOfCases = "self.service.test-own"

// verdict is what the server did: a refusal is one only if it is about the URL.
func verdict(a answer) string {
	switch {
	case a.status == http.StatusCreated || a.status == http.StatusOK:
		return accepted
	case a.status == http.StatusBadRequest && (a.detail() == "https required" || strings.HasPrefix(a.detail(), "url: ")):
		return refused
	}
	return failed
}

// judge looks for what is wrong beside the verdict.
func (p *probe) judge(c testCase, a answer, sub subscription, asked bool) string {
	name := strings.TrimSuffix(c.host(), ".")
	switch {
	case c.allow && a.status == http.StatusCreated && !canonical(sub.URL):
		return "not stored in canonical form"
	case !c.allow && (c.layer == "connect" || c.layer == "dns") && !asked:
		return "refused without a look-up"
	}
	if c.allow {
		return ""
	}
	for _, addr := range p.zone.addresses(name) {
		if strings.Contains(a.detail(), addr.String()) {
			return "the refusal tells an address"
		}
	}
	return ""
}

// canonical reports whether a URL is in the one form in which it may be stored.
func canonical(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return false
	}
	ascii := !strings.ContainsFunc(u.Host, func(r rune) bool { return r >= 0x80 || r >= 'A' && r <= 'Z' })
	return u.Scheme == "https" && ascii && !strings.HasSuffix(u.Hostname(), ".") && u.Port() != "443" && strings.HasPrefix(u.Path, "/")
}
