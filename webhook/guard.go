package webhook

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
	"golang.org/x/net/idna"
)

// Guard decides where requests may go. A customer chooses the URL, so every
// request is one that a stranger sends from inside our network. It judges in
// three places: the URL's text, the addresses of its name, and, the wall, the
// address that is really dialled.
type Guard struct {
	ports     []uint16
	allow     []netip.Prefix
	allowHTTP bool
	ownHosts  []string
	resolver  *net.Resolver
	table     *ssrf.Guardian
}

// GuardOptions configures a Guard. The zero value lets out HTTPS to public
// addresses on no port at all: Ports must be given.
type GuardOptions struct {
	Ports []uint16
	// AllowCIDRs are let through with any port, and with the name localhost
	// where they hold loopback. For tests and development only.
	AllowCIDRs []netip.Prefix
	// AllowHTTP lets plain http through. For tests and development only.
	AllowHTTP bool
	// OwnHosts are the service's own public names: no loops.
	OwnHosts []string
	// Resolver is a DNS server, host:port; default: the system's.
	Resolver string
}

const maxURL = 2048 // bytes

// NewGuard makes a guard.
func NewGuard(o GuardOptions) *Guard {
	g := &Guard{ports: o.Ports, allow: o.AllowCIDRs, allowHTTP: o.AllowHTTP, resolver: net.DefaultResolver}
	for _, h := range o.OwnHosts {
		if name, err := hostProfile.ToASCII(h); err == nil { // as CheckURL writes names
			h = name
		}
		g.ownHosts = append(g.ownHosts, strings.TrimSuffix(strings.ToLower(h), "."))
	}
	if o.Resolver != "" {
		g.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, o.Resolver)
		}}
	}
	g.table = ssrf.New(ssrf.WithAnyPort(),
		ssrf.WithDeniedV4Prefixes(netip.MustParsePrefix("168.63.129.16/32"))) // a cloud's metadata on a public address
	return g
}

// CheckURL judges a URL's text and returns its canonical form, which is what
// is stored and dialled.
func (g *Guard) CheckURL(raw string) (string, error) {
	if len(raw) > maxURL {
		return "", refuse(BlockedURLTooLong, "at most %d bytes", maxURL)
	}
	if i := strings.IndexFunc(raw, func(r rune) bool { return r <= 0x20 || r == 0x7f || r == '\\' }); i >= 0 {
		return "", refuse(BlockedURLCharacters, "no spaces, control characters or backslashes")
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "", refuse(BlockedURLSyntax, "not a URL")
	}
	if u.Scheme != "https" && (!g.allowHTTP || u.Scheme != "http") {
		return "", refuse(BlockedHTTPSRequired, "https required")
	}
	if u.User != nil {
		return "", refuse(BlockedUserinfo, "no user name or password")
	}
	if strings.Contains(raw, "#") {
		return "", refuse(BlockedFragment, "no fragment (#)")
	}
	if u.Opaque != "" || u.Hostname() == "" {
		return "", refuse(BlockedNoHost, "a host name is missing")
	}
	host, addr, err := g.checkHost(u.Host, u.Hostname())
	if err != nil {
		return "", err
	}
	port, err := g.checkPort(u, addr)
	if err != nil {
		return "", err
	}
	u.Host = canonicalHost(u.Scheme, host, addr, port)
	if u.Path == "" {
		u.Path = "/"
	}
	canonical := u.String()
	if len(canonical) > maxURL { // escaping makes it longer
		return "", refuse(BlockedURLTooLong, "at most %d bytes", maxURL)
	}
	return canonical, nil
}

// checkHost returns the host's canonical name, or its address where it is one.
func (g *Guard) checkHost(hostport, host string) (string, netip.Addr, error) {
	if strings.HasPrefix(hostport, "[") {
		addr, err := netip.ParseAddr(host)
		if err != nil || !addr.Is6() || addr.Zone() != "" {
			return "", netip.Addr{}, refuse(BlockedIPSyntax, "not an IPv6 address")
		}
		return host, addr, g.checkAddr(addr)
	}
	// Map first, then check: full-width digits and enclosed letters become an
	// address or "localhost" only here.
	name, ok := mapHost(host)
	if !ok {
		return "", netip.Addr{}, refuse(BlockedHostName, "not a host name")
	}
	dotted := strings.HasSuffix(name, ".")
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	if addr, err := netip.ParseAddr(name); err == nil && addr.Is4() && !dotted {
		return name, addr, g.checkAddr(addr)
	}
	return name, netip.Addr{}, g.checkName(name)
}

// hostProfile is the mapping that resolvers and browsers apply. Underscores
// are allowed: customers have them.
var hostProfile = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.StrictDomainName(false))

// mapHost returns the name that is looked up. One that the mapping would change
// again or refuse, as it makes of bytes that are no UTF-8, is none.
func mapHost(host string) (string, bool) {
	name, err := hostProfile.ToASCII(host)
	if err != nil {
		return "", false
	}
	again, err := hostProfile.ToASCII(name)
	return name, err == nil && again == name
}

// refusedSuffixes are names that mean this machine or a private network.
var refusedSuffixes = []string{"localhost", "local", "internal", "flycast", "onion", "arpa", "invalid", "fly-local-6pn"}

func (g *Guard) checkName(name string) error {
	if name == "localhost" && g.allowsLoopback() {
		return nil
	}
	labels := strings.Split(name, ".")
	if len(name) > 253 || slices.ContainsFunc(labels, func(l string) bool { return !validLabel(l) }) {
		return refuse(BlockedHostName, "not a host name")
	}
	last := labels[len(labels)-1]
	if isNumber(last) {
		return refuse(BlockedIPSyntax, "an IP address must be written as four plain decimal numbers")
	}
	if slices.Contains(refusedSuffixes, last) {
		return refuse(BlockedPrivateName, "the name is not a public one")
	}
	if len(labels) < 2 {
		return refuse(BlockedSingleLabel, "a full host name is needed")
	}
	if slices.Contains(g.ownHosts, name) {
		return refuse(BlockedOwnHost, "the URL is this service's own")
	}
	return nil
}

func validLabel(l string) bool {
	if l == "" || len(l) > 63 {
		return false
	}
	return !strings.ContainsFunc(l, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	})
}

// isNumber reports whether a label is a number to some resolver: decimal,
// octal or hexadecimal.
func isNumber(l string) bool {
	if hex, ok := strings.CutPrefix(l, "0x"); ok {
		return !strings.ContainsFunc(hex, func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) })
	}
	return !strings.ContainsFunc(l, func(r rune) bool { return r < '0' || r > '9' })
}

func (g *Guard) checkPort(u *url.URL, addr netip.Addr) (uint16, error) {
	port, err := portOf(u)
	// For addresses that are allowed by configuration, any port goes; what
	// address a name has is known at connect, where the port is judged again.
	anyPort := addr.IsValid() && g.allowed(addr) || !addr.IsValid() && len(g.allow) > 0
	if err != nil || !anyPort && !slices.Contains(g.ports, port) {
		return 0, refuse(BlockedPort, "port %s is not one of %s", u.Port(), portWords(g.ports))
	}
	return port, nil
}

func portOf(u *url.URL) (uint16, error) {
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		return uint16(n), err
	}
	return defaultPort(u.Scheme), nil
}

func defaultPort(scheme string) uint16 {
	if scheme == "http" {
		return 80
	}
	return 443
}

func portWords(ports []uint16) string {
	var words []string
	for _, p := range ports {
		words = append(words, strconv.Itoa(int(p)))
	}
	return listWords(words)
}

// canonicalHost writes host and port as they are dialled: no default port.
func canonicalHost(scheme, host string, addr netip.Addr, port uint16) string {
	if addr.Is6() {
		host = "[" + addr.String() + "]"
	}
	if port == defaultPort(scheme) {
		return host
	}
	return host + ":" + strconv.Itoa(int(port))
}

func (g *Guard) allowed(addr netip.Addr) bool {
	return slices.ContainsFunc(g.allow, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func (g *Guard) allowsLoopback() bool {
	return g.allowed(netip.AddrFrom4([4]byte{127, 0, 0, 1})) || g.allowed(netip.IPv6Loopback())
}

// checkAddr refuses everything that is not globally routable.
func (g *Guard) checkAddr(addr netip.Addr) error {
	switch {
	case addr.Zone() != "":
		return refuse(BlockedZone, "an address with a zone is not public")
	case addr.Is4In6():
		return refuse(BlockedMapped, "an IPv4 address must not be written as IPv6")
	case g.allowed(addr):
		return nil
	case g.table.SafeAddr(addr) != nil:
		return refuse(rangeOf(addr), "the address is not a public one")
	}
	return nil
}

// rangeOf is the bounded word for why an address is not public.
func rangeOf(addr netip.Addr) BlockedReason {
	switch {
	case addr.IsUnspecified():
		return BlockedUnspecified
	case addr.IsLoopback():
		return BlockedLoopback
	case addr.IsPrivate():
		return BlockedPrivate
	case addr.IsLinkLocalUnicast():
		return BlockedLinkLocal
	case addr.IsMulticast():
		return BlockedMulticast
	}
	return BlockedSpecial
}

// checkDial is the wall: it sees the address that is about to be connected to.
func (g *Guard) checkDial(network string, to netip.AddrPort) error {
	if network != "tcp4" && network != "tcp6" {
		return refuse(BlockedNetwork, "only TCP")
	}
	if err := g.checkAddr(to.Addr()); err != nil {
		return err
	}
	if !g.allowed(to.Addr()) && !slices.Contains(g.ports, to.Port()) {
		return refuse(BlockedPort, "port %d is not one of %s", to.Port(), portWords(g.ports))
	}
	return nil
}

// control adapts checkDial to net.Dialer: it runs after DNS, for every dial.
func (g *Guard) control(_ context.Context, network, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return refuse(BlockedIPSyntax, "not an address")
	}
	return g.checkDial(network, to)
}

// Resolve returns the addresses of host, IPv4 first, if every one of them may
// be dialled: a name with a public and a private answer is refused whole.
func (g *Guard) Resolve(ctx context.Context, host string, port uint16) ([]netip.AddrPort, error) {
	addrs, err := g.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	// "::ffff:10.0.0.1" from a resolver may be its way to write an A record
	// (Go's does so for some): what counts is what would be dialled.
	var to []netip.AddrPort
	for _, addr := range addrs {
		dialled := netip.AddrPortFrom(addr.Unmap(), port)
		if err := g.checkDial(networkOf(dialled.Addr()), dialled); err != nil {
			return nil, err
		}
		to = append(to, dialled)
	}
	if len(to) == 0 {
		return nil, &net.DNSError{Err: "no addresses", Name: host, IsNotFound: true}
	}
	slices.SortStableFunc(to, func(a, b netip.AddrPort) int { return a.Addr().BitLen() - b.Addr().BitLen() })
	return to, nil
}

func (g *Guard) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	if host == "localhost" && g.allowsLoopback() {
		// What it means is fixed (RFC 6761); which of the two a machine's hosts
		// file lists is not.
		both := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
		return slices.DeleteFunc(both, func(a netip.Addr) bool { return !g.allowed(a) }), nil
	}
	return g.resolver.LookupNetIP(ctx, "ip", host)
}

func networkOf(addr netip.Addr) string {
	if addr.Is4() {
		return "tcp4"
	}
	return "tcp6"
}

// DialContext resolves, judges all addresses and connects to the first that
// answers. Each gets an even share of the time that is left.
func (g *Guard) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	to, err := g.Resolve(ctx, host, uint16(port))
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{ControlContext: g.control, FallbackDelay: -1}
	var errs []error
	for i, addr := range to {
		share, cancel := shareOf(ctx, len(to)-i)
		conn, err := dialer.DialContext(share, networkOf(addr.Addr()), addr.String())
		cancel()
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func shareOf(ctx context.Context, left int) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
}
