// Package modelgatetest is a stand-in for the upstream: the partner API that
// gives customers groups, keys, limits and credit. Tests and demonstrations run
// against it; it breaks on demand in the ways in which such an API breaks.
//
// # What it is faithful to
//
// The partner contract, version 1: its resources and their errors, money as
// decimal strings in the strict grammar, an Idempotency-Key on every POST, PATCH
// and DELETE, kept for 168 hours from the acceptance of the first request, lists
// with cursors in which transactions and audit events may appear late, audit
// events for successful changes only. It shares no code with the client, and is
// stricter than it has to be: an unknown member, parameter or duplicate key is an
// error, so that a client's slips show.
//
// Where providers differ, Options choose: the profile says how idempotency
// conflicts are answered, the knobs whether an external_ref is unique, whether a
// replay shows a key's secret again, how late lists are.
//
// # The walk of a request
//
//	headers read                      accept
//	body read                         before_auth
//	bearer token, route, validation   400s: nothing of these is stored
//	key looked up                     replay, 409 running, conflict, or the key is held
//	                                  before_execute
//	executed                          after_execute: a fault here rolls it back
//	committed, answer stored          after_commit
//	answer on its way                 on_response, mid_response
//
// The names on the right are where a Rule's fault strikes. What was done up to
// there stays done: a connection that is reset at after_commit leaves a group
// that its creator does not know of.
//
// # What is atomic
//
// All state is in memory under one mutex. A change, its audit event and the
// answer that is stored under its key are committed together or not at all.
//
// # Time
//
// The clock is the real one plus what Advance has added; it never goes back.
// Delays of faults are real.
package modelgatetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/julienschmidt/httprouter"
)

// readHeaderTimeout is for clients that open a connection and say nothing.
const readHeaderTimeout = 10 * time.Second

// Upstream is one partner account at the upstream. Its methods may be called
// from anywhere, at any time.
type Upstream struct {
	done    chan struct{} // closed when it ends: nothing hangs or waits any more
	running sync.WaitGroup
	server  *http.Server

	mu      sync.Mutex // guards what follows
	base    string     // "" until it serves
	options Options
	clock   clock
	ids     ids
	data    data
	records map[string]*record
	busy    map[string]time.Time // until when a key counts as running whatever its record says
	traffic map[string]*Traffic  // by Idempotency-Key
	faults  []*fault
	served  int           // requests, but for those of the control calls
	changed chan struct{} // closed, and made anew, whenever what follows mu changes
}

// New makes an upstream with nothing in it but the partner's wallet. It panics
// where the options mean nothing; Options.Validate says so beforehand.
func New(options Options) *Upstream {
	options = options.withDefaults()
	if err := options.Validate(); err != nil {
		panic("modelgatetest: " + err.Error())
	}
	u := &Upstream{
		done: make(chan struct{}), options: options, clock: clock{real: options.Now}, ids: newIDs(), data: newData(),
		records: map[string]*record{}, busy: map[string]time.Time{}, traffic: map[string]*Traffic{}, changed: make(chan struct{}),
	}
	u.data.wallet.put(&tx{now: u.clock.now()}, walletID, mustMoney(options.WalletBalance))
	u.server = &http.Server{Handler: u.handler(), ReadHeaderTimeout: readHeaderTimeout}
	return u
}

// TB is what Start needs of a *testing.T.
type TB interface {
	Helper()
	Cleanup(func())
	Fatal(args ...any)
}

// Start serves on a free port of the loopback until the test ends.
func (u *Upstream) Start(t TB) *Upstream {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.listensOn(listener)
	served := make(chan error, 1)
	go func() { served <- u.Serve(listener) }()
	t.Cleanup(func() {
		u.Close()
		if err := <-served; err != nil {
			t.Fatal(err)
		}
	})
	return u
}

// Serve serves until Close, and returns nil then. It refuses an address that
// others than this machine reach: whoever reaches it can do everything.
func (u *Upstream) Serve(listener net.Listener) error {
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok || !address.IP.IsLoopback() {
		return errors.Join(fmt.Errorf("%s is not an address of the loopback, like 127.0.0.1:8790", listener.Addr()), listener.Close())
	}
	u.listensOn(listener)
	if err := u.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (u *Upstream) listensOn(listener net.Listener) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.base = "http://" + listener.Addr().String() + basePath
}

// BaseURL is what the contract calls the base, for example
// http://127.0.0.1:8790/v1; "" until it serves.
func (u *Upstream) BaseURL() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.base
}

// Close ends every connection, hang and delay, and returns when nothing runs any
// more. A second Close does nothing.
func (u *Upstream) Close() {
	u.mu.Lock()
	select {
	case <-u.done:
	default:
		close(u.done)
	}
	u.mu.Unlock()
	_ = u.server.Close() // the listener's; nobody is left to tell
	u.running.Wait()
}

// Configure changes options while it runs. Those that are about the past, Now
// and WalletBalance, change nothing; Fund moves the wallet.
func (u *Upstream) Configure(change func(*Options)) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	options := u.options
	change(&options)
	options = options.withDefaults()
	if err := options.Validate(); err != nil {
		return err
	}
	u.options = options
	u.notify()
	return nil
}

// Advance moves the clock on and returns the new time. It panics if d is
// negative: times that were given out stay in the past.
func (u *Upstream) Advance(d time.Duration) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	defer u.notify()
	return u.clock.advance(d)
}

// Now is the upstream's time.
func (u *Upstream) Now() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.clock.now()
}

// Await returns once the condition holds of the state, or with the context's
// error. The condition is asked whenever something has changed.
func (u *Upstream) Await(ctx context.Context, condition func(State) bool) error {
	for {
		u.mu.Lock()
		state, changed := u.state(), u.changed
		u.mu.Unlock()
		if condition(state) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// enter counts a call in, unless the upstream has ended.
func (u *Upstream) enter() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	select {
	case <-u.done:
		return false
	default:
		u.running.Add(1)
		return true
	}
}

// notify wakes whoever awaits something. The mutex is held.
func (u *Upstream) notify() {
	close(u.changed)
	u.changed = make(chan struct{})
}

// handler wires the contract's calls, and the control calls beside them.
func (u *Upstream) handler() http.Handler {
	router := httprouter.New()
	router.RedirectTrailingSlash, router.RedirectFixedPath, router.HandleOPTIONS = false, false, false
	for _, op := range operations {
		router.Handle(op.method, basePath+op.path, func(w http.ResponseWriter, r *http.Request, params httprouter.Params) {
			u.serve(w, r, op, params)
		})
	}
	router.NotFound = u.nowhere(problemf(http.StatusNotFound, "route_not_found", "there is no such call"))
	router.MethodNotAllowed = u.nowhere(problemf(http.StatusMethodNotAllowed, "method_not_allowed", "the path has no such method"))
	for _, c := range controls {
		router.HandlerFunc(c.method, c.path, func(w http.ResponseWriter, r *http.Request) { u.serveControl(c, w, r) })
	}
	return router
}

// nowhere is a call that only fails, once its token has been looked at.
func (u *Upstream) nowhere(why *problem) http.Handler {
	op := operation{prepare: func(*call) (execution, error) { return nil, why }}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { u.serve(w, r, op, nil) })
}
