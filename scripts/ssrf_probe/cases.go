package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"golang.org/x/net/idna"
)

// testCase is one URL and what the server must do with it.
type testCase struct {
	id, group string
	allow     bool
	layer     string // where the guard refuses it: parse, connect, dns, or several
	url       json.RawMessage
	why       string
}

// readCases reads the case file and adds the probe's own.
func readCases(path string) ([]testCase, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []testCase
	for n, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
		if n == 0 {
			continue // the header
		}
		c, err := readCase(strings.Split(line, "\t"))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n+1, err)
		}
		all = append(all, c)
	}
	return append(all, extraCases...), nil
}

func readCase(columns []string) (testCase, error) {
	if len(columns) != 6 {
		return testCase{}, errors.New("want 6 columns: id, group, verdict, layer, url_json, why")
	}
	c := testCase{id: columns[0], group: columns[1], allow: columns[2] == "ALLOW", layer: columns[3], url: json.RawMessage(columns[4]), why: columns[5]}
	var text string
	if err := json.Unmarshal(c.url, &text); err != nil {
		return c, fmt.Errorf("url_json: %w", err)
	}
	if !c.allow && columns[2] != "BLOCK" {
		return c, errors.New("verdict: want BLOCK or ALLOW")
	}
	return c, nil
}

// text is the URL as a string.
func (c testCase) text() string {
	var s string
	_ = json.Unmarshal(c.url, &s) // was read once already, or is a constant
	return s
}

// host is the URL's host as a resolver would see it: mapped, lower case. It is
// "" where the URL has none.
func (c testCase) host() string {
	u, err := url.Parse(c.text())
	if err != nil {
		return ""
	}
	host := u.Hostname()
	if strings.HasPrefix(u.Host, "[") {
		return host
	}
	if mapped, err := idna.Lookup.ToASCII(host); err == nil {
		host = mapped
	}
	return strings.ToLower(host)
}

// literal is the host's address, if it is one.
func (c testCase) literal() (netip.Addr, bool) {
	addr, err := netip.ParseAddr(c.host())
	return addr, err == nil
}

// connects reports whether the refusal depends on what address is meant.
func (c testCase) connects() bool { return strings.Contains(c.layer, "connect") }

// needsDNS reports whether the verdict depends on the zone being served.
func (c testCase) needsDNS(opened bool) bool {
	if _, ok := c.literal(); ok || c.host() == "" {
		return false
	}
	// A server that is opened for something lets any port of a name pass until
	// it knows the addresses.
	return c.allow || c.layer == "connect" || c.layer == "dns" || opened && c.connects()
}

// leadsOnlyTo reports whether everything that the URL can mean is in the list.
func (c testCase) leadsOnlyTo(allow []netip.Prefix, z *zone) bool {
	within := func(addr netip.Addr) bool {
		return slices.ContainsFunc(allow, func(p netip.Prefix) bool { return p.Contains(addr) })
	}
	name := strings.TrimSuffix(c.host(), ".")
	if name == "localhost" { // which of the two it is, the server's hosts file says
		return within(netip.AddrFrom4([4]byte{127, 0, 0, 1})) || within(netip.IPv6Loopback())
	}
	if !c.connects() {
		return false
	}
	if addr, ok := c.literal(); ok {
		return within(addr)
	}
	addrs := z.addresses(name)
	return len(addrs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !within(a.Unmap()) })
}
