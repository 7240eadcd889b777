package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// gate stands between a server and the upstream, byte by byte. It can stop a
// request half-way, and keep an answer.
type gate struct {
	t        testing.TB
	listener net.Listener
	to       string
	mu       sync.Mutex
	rule     gateRule
}

// gateRule is for the next request that begins with these words, such as
// "POST /v1/groups ".
type gateRule struct {
	begins *regexp.Regexp
	half   bool                // half of its body goes on, and nothing after it
	change func([]byte) []byte // of the whole answer, before it goes on
	met    chan struct{}       // closed when the request was met: and, but for half, answered
	free   chan struct{}       // once closed, the answer goes on
}

// newGate opens a gate to an address like 127.0.0.1:8790.
func newGate(t testing.TB, to string) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{t: t, listener: listener, to: to}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test has ended
			}
			running.Go(func() { g.pass(conn) })
		}
	})
	t.Cleanup(func() { listener.Close(); running.Wait() })
	return g
}

// url is the base URL by way of the gate.
func (g *gate) url() string { return "http://" + g.listener.Addr().String() + "/v1" }

// next arms the gate for one request.
func (g *gate) next(begins string, rule gateRule) gateRule {
	rule.begins, rule.met = regexp.MustCompile("^"+begins), make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rule = rule
	return rule
}

// take returns the rule for a request, once.
func (g *gate) take(request []byte) (rule gateRule, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.rule.begins == nil || !g.rule.begins.Match(request) {
		return gateRule{}, false
	}
	rule, g.rule = g.rule, gateRule{}
	return rule, true
}

// pass takes one request to the upstream, and its answer back.
func (g *gate) pass(client net.Conn) {
	defer client.Close()
	upstream, err := net.Dial("tcp", g.to)
	if err != nil {
		return // the upstream is gone: so is the connection
	}
	defer upstream.Close()
	head, body, err := readRequest(client)
	if err != nil {
		return // the server was killed
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, client) // until the server leaves
		_ = upstream.Close()
	}()
	rule, met := g.take(head)
	if met && rule.half {
		_, _ = upstream.Write(append(head, body[:len(body)/2]...)) // the upstream tells what came
		close(rule.met)
		<-gone
		return
	}
	_, _ = upstream.Write(append(head, body...))
	if !met {
		_, _ = io.Copy(client, upstream)
		return
	}
	answer, _ := io.ReadAll(upstream) // it closes each connection
	if rule.change != nil {
		answer = rule.change(answer)
	}
	close(rule.met)
	if rule.free != nil {
		select {
		case <-rule.free:
		case <-gone:
			return
		}
	}
	_, _ = client.Write(answer)
}

var gateLength = regexp.MustCompile(`(?i)\r\ncontent-length: (\d+)\r\n`)

// readRequest reads one request as it is on the wire.
func readRequest(conn net.Conn) (head, body []byte, err error) {
	r := bufio.NewReader(conn)
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return nil, nil, err
		}
		head = append(head, line...)
	}
	if m := gateLength.FindSubmatch(head); m != nil {
		n, _ := strconv.Atoi(string(m[1])) // digits
		body = make([]byte, n)
		_, err = io.ReadFull(r, body)
	}
	return head, body, err
}

// gateFailure makes a 500 of an answer, which repeats the answer's secret in
// many writings.
func gateFailure(secret *regexp.Regexp, write func(string) string) func([]byte) []byte {
	return func(answer []byte) []byte {
		body := `{"error":{"code":"internal_error","message":"could not deliver ` + write(string(secret.Find(answer))) + `","type":"server"}}`
		return []byte("HTTP/1.1 500 " + http.StatusText(500) + "\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: " +
			strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	}
}

// gateAddress is the host and port of a base URL.
func gateAddress(base string) string {
	return strings.TrimSuffix(strings.TrimPrefix(base, "http://"), "/v1")
}
