package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// records are what a name has at one moment.
type records struct {
	A, AAAA []netip.Addr
	CNAME   string
}

// entry is a name of the zone. It answers with answers[at]; turn moves on.
type entry struct {
	answers []records
	at      int
	everyA  bool // each A query is a turn of its own: the attack on who asks twice
}

func (e *entry) now() records { return e.answers[e.at] }

func (e *entry) turn() { e.at = min(e.at+1, len(e.answers)-1) }

// zone is the world's DNS as far as the server sees it.
type zone struct {
	mu     sync.Mutex
	names  map[string]*entry
	askedA map[string]int // A queries by name
	conn   net.PacketConn
}

func readZone(path string) (*zone, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var names map[string][]records
	if err := json.Unmarshal(text, &names); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	z := &zone{names: map[string]*entry{}, askedA: map[string]int{}}
	for name, answers := range names {
		if len(answers) == 0 {
			return nil, fmt.Errorf("%s: %s has no answers", path, name)
		}
		z.set(name, answers...)
	}
	return z, nil
}

// set gives a name its answers, of which the first holds until turn.
func (z *zone) set(name string, answers ...records) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.names[name] = &entry{answers: answers}
}

// turn moves a name to its next answer. With everyA each look-up does so from
// then on.
func (z *zone) turn(name string, everyA bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	e := z.names[name]
	e.turn()
	e.everyA = everyA
}

// asked is how often a name was looked up.
func (z *zone) asked(name string) int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.askedA[name]
}

// addresses are what a name leads to now, through aliases.
func (z *zone) addresses(name string) []netip.Addr {
	z.mu.Lock()
	defer z.mu.Unlock()
	var all []netip.Addr
	for _, r := range z.chain(name) {
		all = append(append(all, r.records.A...), r.records.AAAA...)
	}
	return all
}

// named are a name's records.
type named struct {
	name    string
	records records
}

const maxAliases = 8

// chain follows a name's aliases.
func (z *zone) chain(name string) (all []named) {
	for range maxAliases {
		e := z.names[name]
		if e == nil {
			return all
		}
		all = append(all, named{name, e.now()})
		if name = e.now().CNAME; name == "" {
			return all
		}
	}
	return all
}

// serve answers on a UDP address until close.
func (z *zone) serve(address string) error {
	conn, err := net.ListenPacket("udp", address)
	if err != nil {
		return fmt.Errorf("--dns: %w", err)
	}
	z.conn = conn
	go func() {
		query := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(query)
			if err != nil {
				return
			}
			if answer, err := z.reply(query[:n]); err == nil { // what is no query is not answered
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return nil
}

func (z *zone) close() {
	if z.conn != nil {
		_ = z.conn.Close()
	}
}

// reply answers one query.
func (z *zone) reply(query []byte) ([]byte, error) {
	var p dnsmessage.Parser
	head, err := p.Start(query)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	found := z.lookUp(strings.ToLower(strings.TrimSuffix(q.Name.String(), ".")), q.Type)
	answer := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: head.ID, Response: true, Authoritative: true, RecursionDesired: head.RecursionDesired, RecursionAvailable: true},
		Questions: []dnsmessage.Question{q},
	}
	if len(found) == 0 {
		answer.RCode = dnsmessage.RCodeNameError
	}
	for _, n := range found {
		if err := n.add(&answer, q.Type); err != nil {
			return nil, err
		}
	}
	return answer.Pack()
}

// lookUp is chain for a query from outside.
func (z *zone) lookUp(name string, t dnsmessage.Type) []named {
	z.mu.Lock()
	defer z.mu.Unlock()
	found := z.chain(name)
	if t != dnsmessage.TypeA {
		return found
	}
	z.askedA[name]++
	if e := z.names[name]; e != nil && e.everyA {
		e.turn()
	}
	return found
}

// add writes a name's records of one type, and its alias.
func (n named) add(m *dnsmessage.Message, t dnsmessage.Type) error {
	name, err := dnsmessage.NewName(n.name + ".")
	if err != nil {
		return err
	}
	add := func(t dnsmessage.Type, body dnsmessage.ResourceBody) {
		head := dnsmessage.ResourceHeader{Name: name, Type: t, Class: dnsmessage.ClassINET} // TTL 0: ask again
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: body})
	}
	if n.records.CNAME != "" {
		target, err := dnsmessage.NewName(n.records.CNAME + ".")
		if err != nil {
			return err
		}
		add(dnsmessage.TypeCNAME, &dnsmessage.CNAMEResource{CNAME: target})
	}
	if t == dnsmessage.TypeA {
		for _, a := range n.records.A {
			add(t, &dnsmessage.AResource{A: a.As4()})
		}
	}
	if t == dnsmessage.TypeAAAA {
		for _, a := range n.records.AAAA {
			add(t, &dnsmessage.AAAAResource{AAAA: a.As16()})
		}
	}
	return nil
}
