package main

import (
	"net/http"
	"testing"
)

// The header is Fly's only where Fly is, and never a neighbour's.
func TestClientAddress(t *testing.T) {
	for _, c := range []struct {
		peer, header string
		fly          bool
		want         string
	}{
		{"203.0.113.7:4711", "", false, "203.0.113.7"},
		{"203.0.113.7:4711", "198.51.100.1", false, "203.0.113.7"}, // not on Fly: anybody can set it
		{"172.16.5.2:4711", "198.51.100.1", true, "198.51.100.1"},
		{"172.16.5.2:4711", "2001:db8:1:2:3:4:5:6", true, "2001:db8:1:2::/64"},
		{"172.16.5.2:4711", "::ffff:198.51.100.1", true, "198.51.100.1"},
		{"[::ffff:172.16.5.2]:4711", "198.51.100.1", true, "198.51.100.1"},
		{"172.16.5.2:4711", "", true, "172.16.5.2"},
		{"172.16.5.2:4711", "nonsense, at great length", true, "172.16.5.2"}, // no memory for what is no address
		{"[fdaa:0:1:a7b:1::2]:4711", "198.51.100.1", true, "fdaa:0:1:a7b::/64"},
		{"[fdaa:0:1:a7b:1::2%eth0]:4711", "198.51.100.1", true, "fdaa:0:1:a7b::/64"},
		{"[fdaa:0:1:a7b:1::2]:4711", "", true, "fdaa:0:1:a7b::/64"},
		{"[2001:db8:1:2:3::1]:4711", "", false, "2001:db8:1:2::/64"},
		{"pipe", "198.51.100.1", true, "pipe"},
	} {
		r := &http.Request{RemoteAddr: c.peer, Header: http.Header{}}
		if c.header != "" {
			r.Header.Set("Fly-Client-IP", c.header)
		}
		if got := clientAddress(r, c.fly); got != c.want {
			t.Errorf("%s with %q, on Fly %v: %s, want %s", c.peer, c.header, c.fly, got, c.want)
		}
	}
}
