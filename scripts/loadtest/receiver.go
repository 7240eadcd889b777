package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// The paths of the receiver: those of subscriptions are followed by a number.
const (
	pathOK    = "/ok/"    // answered at once with 204
	pathDead  = "/dead/"  // accepted and never answered
	pathBare  = "/bare"   // as pathOK, for the bare loop
	pathCount = "/count"  // how many have arrived at pathOK
	pathStats = "/stats"  // all that is known of them
	pathReset = "/forget" // as if nothing had arrived
	pathDrop  = "/drop"   // ends all requests at pathDead, and those that come later
)

// The receiver listens on many addresses of this machine, so that subscriptions
// have hosts, and connections, of their own.
const maxHosts = 200

func host(i int) string { return fmt.Sprintf("127.0.1.%d", i+1) }

const deadHost, controlHost = "127.0.2.1", "127.0.0.1"

// hosts is where the receiver listens.
type hosts struct {
	Control string   `json:"control"`
	Dead    string   `json:"dead"`
	OK      []string `json:"ok"`
}

// arrivals is what has arrived at pathOK.
type arrivals struct {
	Count     int       `json:"count"`
	Bytes     int64     `json:"bytes"`
	FirstNS   int64     `json:"first_ns"`
	LastNS    int64     `json:"last_ns"`
	Latency   quantiles `json:"latency"`   // from sending the event to arrival
	Endpoints int       `json:"endpoints"` // that anything arrived at
	Held      int       `json:"held"`      // requests that wait, now, for the dead ones
}

// receiver takes requests and remembers when they came.
type receiver struct {
	mu        sync.Mutex
	got       arrivals
	latencies []time.Duration
	paths     map[string]int
	held      int
	bodies    sync.Pool
	dropped   chan struct{}
	drop      sync.Once
}

func newReceiver() *receiver {
	return &receiver{paths: map[string]int{}, dropped: make(chan struct{}), bodies: sync.Pool{New: func() any { return new([2 * bodySize]byte) }}}
}

// receive is the receiver's process. It prints where it listens and ends when
// its input does, however its parent ended.
func receive(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	f := flag.NewFlagSet("receiver", flag.ContinueOnError)
	count := f.Int("hosts", 1, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	r := newReceiver()
	server := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	listen := func(host string) (string, error) {
		listener, err := net.Listen("tcp", host+":0")
		if err != nil {
			return "", err
		}
		go func() { failed <- server.Serve(listener) }()
		return listener.Addr().String(), nil
	}
	where, err := listenAll(listen, *count)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(stdout).Encode(where); err != nil {
		return err
	}
	parent := make(chan struct{})
	go func() { defer close(parent); _, _ = io.Copy(io.Discard, stdin) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	case <-parent:
	}
	return server.Close()
}

func listenAll(listen func(host string) (string, error), count int) (where hosts, err error) {
	if where.Control, err = listen(controlHost); err != nil {
		return where, err
	}
	if where.Dead, err = listen(deadHost); err != nil {
		return where, err
	}
	for i := range count {
		address, err := listen(host(i))
		if err != nil {
			return where, err
		}
		where.OK = append(where.OK, address)
	}
	return where, nil
}

// ServeHTTP implements http.Handler.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch path := req.URL.Path; {
	case strings.HasPrefix(path, pathOK), path == pathBare:
		r.take(path, req.Body)
		w.WriteHeader(http.StatusNoContent)
	case strings.HasPrefix(path, pathDead):
		r.hold(req)
	case path == pathCount:
		r.mu.Lock()
		defer r.mu.Unlock()
		fmt.Fprint(w, r.got.Count)
	case path == pathStats:
		_ = json.NewEncoder(w).Encode(r.stats()) // the caller finds out
	case path == pathReset:
		r.reset()
	case path == pathDrop:
		r.drop.Do(func() { close(r.dropped) })
	default:
		http.NotFound(w, req)
	}
}

// take reads a body and counts it.
func (r *receiver) take(path string, body io.Reader) {
	buffer := r.bodies.Get().(*[2 * bodySize]byte)
	defer r.bodies.Put(buffer)
	n, _ := io.ReadFull(body, buffer[:]) // shorter than the buffer: the usual error
	now := time.Now().UnixNano()
	sent := sentAt(buffer[:n])
	if path == pathBare {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.got.Count++; r.got.FirstNS == 0 {
		r.got.FirstNS = now
	}
	r.got.LastNS = now
	r.got.Bytes += int64(n)
	r.latencies = append(r.latencies, time.Duration(now-sent))
	r.paths[path]++
}

// hold waits until the sender gives up, or it is time to end.
func (r *receiver) hold(req *http.Request) {
	_, _ = io.Copy(io.Discard, req.Body)
	r.holds(1)
	defer r.holds(-1)
	select {
	case <-req.Context().Done():
	case <-r.dropped:
		panic(http.ErrAbortHandler) // closes the connection without an answer
	}
}

func (r *receiver) holds(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held += n
}

func (r *receiver) stats() arrivals {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got.Latency, r.got.Endpoints, r.got.Held = quantilesOf(slices.Clone(r.latencies)), len(r.paths), r.held
	return r.got
}

func (r *receiver) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got, r.latencies = arrivals{}, r.latencies[:0]
	clear(r.paths)
}
