package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
)

// attack is a subscription that is fine when it is made, and turns on the
// server when an event is due.
type attack struct {
	id, group, why string
	url            string
	name           string    // in the zone; "": the URL has an address
	answers        []records // the first at subscribe, the others afterwards
	everyA         bool      // afterwards, each look-up gets the next answer
	events         int       // to publish, one after the other
	expected       string    // what each attempt ends in
	receiver       bool      // needs one
}

const (
	groupRebind   = "R. Names that change after subscribe"
	groupRedirect = "S. Receivers that lead elsewhere"
)

// means is a way to make the server send.
type means string

const (
	byPing   means = "ping"   // the customer's own test call
	byChange means = "change" // the same, of a subscription that was made with another URL and then changed
	byEvent  means = "event"  // published by the operator
)

// deliver makes the attacks that need a delivery, by every means there is.
func (p *probe) deliver(ctx context.Context) error {
	all, err := p.means(ctx)
	if err != nil {
		return err
	}
	defer func() { _, _ = p.api.customer(context.WithoutCancel(ctx), "DELETE", p.tracked(), nil) }()
	for _, one := range p.attacks() {
		r := result{ID: one.id, Group: one.group, Expected: one.expected, Detail: one.why, attack: true}
		why := p.cannotDeliver(one)
		if len(all) == 0 {
			why = "nothing may be sent (--subscribe-only)"
		}
		if why != "" {
			r.Got, r.Detail = skipped, one.why+": "+why
			p.report.add(r)
			continue
		}
		for _, by := range all {
			r := r
			r.ID += "/" + string(by)
			if err := p.attack(ctx, one, by, &r); err != nil {
				r.Got, r.Surprise, r.Detail = failed, true, one.why+": "+err.Error()
			}
			p.report.add(r)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// means are how the server is made to send.
func (p *probe) means(ctx context.Context) (all []means, err error) {
	if p.subscribeOnly {
		return nil, nil
	}
	all = []means{byPing, byChange}
	if p.token == "" {
		return all, nil
	}
	a, err := p.api.customer(ctx, "PUT", p.tracked(), nil)
	if err == nil && a.status != http.StatusNoContent {
		err = fmt.Errorf("tracking a program: %s", a.detail())
	}
	return append(all, byEvent), err
}

func (p *probe) tracked() string { return "/v1/tracked-programs/" + p.mark }

func (p *probe) attacks() []attack {
	all := p.rebindings()
	if p.receiver == nil {
		return append(all, attack{id: "s1", group: groupRedirect, why: "redirects", expected: notFollowed, receiver: true})
	}
	return append(all, p.receiverAttacks()...)
}

// rebindings accept nothing: the names lead to a public address, which the
// canary's port is allowed for, until they are turned.
func (p *probe) rebindings() (all []attack) {
	for i, to := range []struct {
		record records
		why    string
	}{
		{a("127.0.0.1"), "127.0.0.1"},
		{a("127.0.0.2"), "127.0.0.2"},
		{a("0.0.0.0"), "0.0.0.0, which connects to this machine"},
		{aaaa("::1"), "::1"},
		{aaaa("::ffff:127.0.0.2"), "::ffff:127.0.0.2"},
		{a("127.0.0.2", "127.0.0.3"), "several loopback addresses"},
		{records{CNAME: "rebound.localhost"}, "an alias for a name on 127.0.0.2"},
	} {
		name := fmt.Sprintf("rebind-%d.probe.example", i+1)
		all = append(all, attack{
			id: fmt.Sprintf("r%d", i+1), group: groupRebind, why: "the name moves to " + to.why, expected: blocked, events: 1,
			url: p.canaryURL(name), name: name,
			answers: []records{{A: []netip.Addr{public}}, to.record},
		})
	}
	return all
}

func a(addrs ...string) (r records) {
	for _, text := range addrs {
		r.A = append(r.A, netip.MustParseAddr(text))
	}
	return r
}

func aaaa(addr string) records { return records{AAAA: []netip.Addr{netip.MustParseAddr(addr)}} }

// receiverAttacks need a receiver that the server may call.
func (p *probe) receiverAttacks() []attack {
	here, both := a("127.0.0.1"), a("127.0.0.1")
	both.AAAA = aaaa("::1").AAAA
	all := []attack{{
		id: "r8", group: groupRebind, why: "each look-up gets another answer: one that is judged and another that is dialled", expected: delivered,
		name: "twice.probe.example", answers: []records{here, here, a("127.0.0.2")}, everyA: true, events: 1,
	}, {
		id: "r9", group: groupRebind, why: "the name gets a forbidden address beside the allowed one", expected: blocked,
		name: "both.probe.example", answers: []records{here, both}, events: 1,
	}, {
		id: "r10", group: groupRebind, why: "the name moves away from the receiver", expected: blocked,
		name: "away.probe.example", answers: []records{here, a("127.0.0.2")}, events: 1,
	}, {
		id: "s1", group: groupRedirect, why: "accepted, with Alt-Svc, Refresh, Link and Location to the canary; then a second event", expected: delivered, events: 2,
	}}
	for i := range all {
		all[i].receiver, all[i].url = true, p.receiver.url(orElse(all[i].name, "127.0.0.1"), "/204")
	}
	for i, status := range []int{301, 302, 303, 305, 307, 308} {
		all = append(all, attack{
			id: fmt.Sprintf("s%d", i+2), group: groupRedirect, why: fmt.Sprintf("%d to the canary", status), expected: notFollowed, events: 1,
			receiver: true, url: p.receiver.url("127.0.0.1", "/"+strconv.Itoa(status)),
		})
	}
	return all
}

// cannotDeliver says why an attack cannot be made here, or "".
func (p *probe) cannotDeliver(one attack) string {
	within := func(addr netip.Addr) bool {
		return slices.ContainsFunc(p.allow, func(n netip.Prefix) bool { return n.Contains(addr.Unmap()) })
	}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	switch {
	case one.name != "" && p.dns == "":
		return "the zone is not served (--dns)"
	case one.receiver && (p.receiver == nil || !within(loopback)):
		return "the server may not call a receiver here (--receiver-cert, and 127.0.0.1/32 in --allow-cidrs)"
	case !one.receiver && one.answers[1].CNAME == "" && slices.ContainsFunc(append(slices.Clone(one.answers[1].A), one.answers[1].AAAA...), within):
		return "the server is opened for where this leads (--allow-cidrs)"
	}
	return ""
}

// attack subscribes, turns the name, has the server send and judges the
// attempts.
func (p *probe) attack(ctx context.Context, one attack, by means, r *result) error {
	p.zone.set("rebound.localhost", a("127.0.0.2"))
	if one.name != "" {
		p.zone.set(one.name, one.answers...)
	}
	kind := p.mark + "-" + one.id
	sub, err := p.register(ctx, one.url, by, kind)
	if err != nil {
		return err
	}
	if one.name != "" {
		p.zone.turn(one.name, one.everyA)
	}
	for n := range one.events {
		var outcome attempt
		if outcome, err = p.send(ctx, by, sub.ID, kind, n); err != nil {
			break
		}
		judgeAttempt(outcome, r)
	}
	return errors.Join(err, p.api.unsubscribe(ctx, sub.ID))
}

// register makes a subscription with a URL that is fine by now.
func (p *probe) register(ctx context.Context, url string, by means, kind string) (subscription, error) {
	first := url
	if by == byChange {
		first = "https://" + public.String() + "/"
	}
	text, err := json.Marshal(first)
	if err != nil {
		return subscription{}, err
	}
	got, sub, err := p.api.subscribe(ctx, text, "exclusion_rule.added", "kind", kind)
	if err == nil && got.status != http.StatusCreated {
		err = fmt.Errorf("not accepted at subscribe: %s", got.detail())
	}
	if err != nil || by != byChange {
		return sub, err
	}
	got, err = p.api.customer(ctx, "PATCH", "/v1/webhooks/subscriptions/"+sub.ID, map[string]string{"url": url})
	if err == nil && got.status != http.StatusOK {
		err = fmt.Errorf("not accepted as a change: %s", got.detail())
	}
	if err != nil {
		err = errors.Join(err, p.api.unsubscribe(ctx, sub.ID))
	}
	return sub, err
}

// send makes the server send to a subscription for the nth time.
func (p *probe) send(ctx context.Context, by means, subscription, kind string, n int) (attempt, error) {
	if by != byEvent {
		var pinged attempt
		got, err := p.api.customer(ctx, "POST", "/v1/webhooks/test/"+subscription, nil)
		if err == nil && got.status != http.StatusOK {
			err = fmt.Errorf("test call: %s", got.detail())
		}
		if err == nil {
			err = json.Unmarshal(got.body, &pinged)
		}
		return pinged, err
	}
	if err := p.publish(ctx, kind, n); err != nil {
		return attempt{}, err
	}
	found, err := p.api.attempted(ctx, subscription, n+1)
	if err != nil {
		return attempt{}, err
	}
	return found[n], nil
}

// publish tells the probe's customer, and nobody else, of a rule about a
// program that does not exist.
func (p *probe) publish(ctx context.Context, kind string, n int) error {
	got, err := p.api.admin(ctx, "POST", "/v1/admin/exclusion-rules", map[string]string{
		"rule_id": fmt.Sprintf("%s-%d", kind, n), "program_a": p.mark, "program_b": p.mark + "-other", "kind": kind, "severity": "none",
	})
	if err == nil && got.status != http.StatusCreated {
		err = fmt.Errorf("publishing: %s", got.detail())
	}
	return err
}

func judgeAttempt(outcome attempt, r *result) {
	got := orElse(outcome.Category, delivered)
	r.Detail += fmt.Sprintf("; attempt: %s %s", got, outcome.RemoteAddr)
	if r.Got == "" || got != r.Expected {
		r.Got = got
	}
	if r.Expected == blocked && (outcome.RemoteAddr != "" || outcome.Status != nil) {
		r.Detail += " (connected)"
		r.Surprise = true
	}
	r.Surprise = r.Surprise || got != r.Expected
}
