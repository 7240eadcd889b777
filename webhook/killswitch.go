package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
)

// KillSwitch stops every request to customers' URLs. It can be on for two
// reasons: the environment said so at start, which holds until the next start,
// or the file does, which `jpintel kill-switch` changes at run time. While it is
// on nothing is lost and no attempt is used up; events are committed and fanned
// out, and the backlog drains under the same limits afterwards.
type KillSwitch struct {
	env bool

	mu      sync.Mutex
	shut    bool
	runtime bool
	halt    context.Context // ends when the switch goes on
	trip    context.CancelFunc
}

// NewKillSwitch returns a switch; env is whether the environment turns it on.
func NewKillSwitch(env bool) *KillSwitch {
	k := &KillSwitch{env: env}
	k.halt, k.trip = context.WithCancel(context.Background())
	if env {
		k.trip()
	}
	return k
}

// KillSwitchState is whether the switch is on and what turned it on.
type KillSwitchState struct {
	On     bool   `json:"on"`
	Source string `json:"source"` // env, runtime, or "" while it is off
}

// State tells what holds. The environment wins.
func (k *KillSwitch) State() KillSwitchState {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.env:
		return KillSwitchState{true, "env"}
	case k.runtime:
		return KillSwitchState{true, "runtime"}
	}
	return KillSwitchState{}
}

// Set turns the run-time switch on or off and reports whether that changed
// anything. What has not reached the wire when it goes on is cancelled.
func (k *KillSwitch) Set(on bool) (changed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if changed = on != k.runtime; !changed {
		return false
	}
	k.runtime = on
	if on {
		k.trip()
	} else if !k.env && !k.shut {
		k.halt, k.trip = context.WithCancel(context.Background())
	}
	return true
}

// Shut stops every request until the process ends, because webhooks are not
// open. This is no state of the switch, and State does not tell it.
func (k *KillSwitch) Shut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shut = true
	k.trip()
}

// stopped reports whether requests are stopped, by whatever.
func (k *KillSwitch) stopped() bool { return k.halted().Err() != nil }

// halted returns the context that ends when requests are stopped; it has ended
// already while they are.
func (k *KillSwitch) halted() context.Context {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.halt
}

var errHalted = errors.New("the kill switch is on")

// flight is one request between the switch and the wire.
type flight struct{ phase atomic.Int32 }

// The phases of a flight. It leaves waiting once: to the wire, or not at all.
const (
	flightWaiting int32 = iota
	flightOnTheWire
	flightHalted
)

// watch cancels the request when the switch goes on before it has a
// connection. stop ends the watch.
func (f *flight) watch(k *KillSwitch, cancel context.CancelCauseFunc) (stop func() bool) {
	return context.AfterFunc(k.halted(), func() {
		if f.phase.CompareAndSwap(flightWaiting, flightHalted) {
			cancel(errHalted)
		}
	})
}

// gotConn lets the request onto the wire, or, where the switch was faster,
// closes the connection that is about to carry it. One of HTTP/2 carries others
// too; there the cancelled context keeps this request from being written.
func (f *flight) gotConn(info httptrace.GotConnInfo) {
	if f.phase.CompareAndSwap(flightWaiting, flightOnTheWire) || f.phase.Load() != flightHalted {
		return
	}
	if c, ok := info.Conn.(*tls.Conn); ok && c.ConnectionState().NegotiatedProtocol == "h2" {
		return
	}
	_ = info.Conn.Close() // it is not used any more
}

func (f *flight) halted() bool { return f.phase.Load() == flightHalted }
