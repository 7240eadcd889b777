package main

import (
	"fmt"
	"net"
	"strconv"
	"sync"
)

// canary listens where nobody may be led to, and counts who comes.
type canary struct {
	listeners []net.Listener
	missing   []string // addresses that this machine does not have

	mu   sync.Mutex
	seen []string // where, by whom
}

// canaryAddresses are all this machine: what a hole would reach first.
var canaryAddresses = []string{"127.0.0.1", "127.0.0.2", "::1"}

func newCanary(port int) (*canary, error) {
	c := &canary{}
	for i, host := range canaryAddresses {
		address := net.JoinHostPort(host, strconv.Itoa(port))
		listener, err := net.Listen("tcp", address)
		if err != nil && i == 0 {
			return nil, fmt.Errorf("the canary cannot listen (another port: --canary): %w", err)
		}
		if err != nil {
			c.missing = append(c.missing, address)
			continue
		}
		c.listeners = append(c.listeners, listener)
		go c.watch(listener)
	}
	return c, nil
}

func (c *canary) watch(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		c.mu.Lock()
		c.seen = append(c.seen, fmt.Sprintf("%s from %s", conn.LocalAddr(), conn.RemoteAddr()))
		c.mu.Unlock()
		_ = conn.Close()
	}
}

// visits are the connections so far.
func (c *canary) visits() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string{}, c.seen...)
}

func (c *canary) close() {
	for _, l := range c.listeners {
		_ = l.Close()
	}
}
