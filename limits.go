package main

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"jpintel/store"
)

const (
	// guessBurst wrong keys or tokens are answered to one address at once, then
	// one every guessEvery: plenty for a typo, nothing for a search.
	guessBurst = 20
	guessEvery = 6 * time.Second
	// maxLimiters bounds the memory of one kind of limit.
	maxLimiters = 10_000
)

// limiters is one rate for each of many callers.
type limiters struct {
	rate  rate.Limit
	burst int

	mu sync.Mutex
	by map[string]*rate.Limiter
}

func newLimiters(perSecond rate.Limit, burst int) *limiters {
	return &limiters{rate: perSecond, burst: burst, by: map[string]*rate.Limiter{}}
}

func (l *limiters) of(caller string, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if found := l.by[caller]; found != nil {
		return found
	}
	if len(l.by) >= maxLimiters {
		for other, limiter := range l.by { // those that are full again say nothing
			if limiter.TokensAt(now) >= float64(l.burst) {
				delete(l.by, other)
			}
		}
	}
	if len(l.by) >= maxLimiters {
		clear(l.by) // an attack from everywhere: bounded memory comes first
	}
	limiter := rate.NewLimiter(l.rate, l.burst)
	l.by[caller] = limiter
	return limiter
}

// take counts one call and returns how long the caller has to wait, 0 if it
// need not: then the call is not counted.
func (l *limiters) take(caller string, now time.Time) time.Duration {
	r := l.of(caller, now).ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// tooMany answers 429 with the time to wait.
func tooMany(wait time.Duration, message string) error {
	return &store.Error{Code: store.CodeRateLimited, Message: message, RetryAfter: wait}
}

// flyNeighbours is Fly's private network, 6PN. Fly's proxy, which is in front of
// the service, does not come from there.
var flyNeighbours = netip.MustParsePrefix("fdaa::/16")

// clientAddress is who a request comes from, as far as limits go: an IPv4
// address, or an IPv6 network of 64 bits, which is one customer's line. behindFly
// says that Fly's proxy is in front: its header is believed, but not from a
// neighbour in the private network, who goes around the proxy.
func clientAddress(r *http.Request, behindFly bool) string {
	text, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		text = r.RemoteAddr
	}
	peer, err := netip.ParseAddr(text)
	if err != nil {
		return text
	}
	if given, err := netip.ParseAddr(r.Header.Get("Fly-Client-IP")); err == nil && behindFly && !flyNeighbours.Contains(peer.WithZone("")) {
		peer = given
	}
	if peer = peer.Unmap().WithZone(""); peer.Is4() {
		return peer.String()
	}
	network, err := peer.Prefix(64)
	if err != nil {
		return peer.String() // unreachable: an IPv6 address has 128 bits
	}
	return network.String()
}
