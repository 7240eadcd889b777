package main

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
)

// demoReceiver is one of the demo's receivers and everything that it got.
type demoReceiver struct {
	name         string
	url          string
	subscription string

	mu       sync.Mutex
	secret   string
	failures int    // how many requests of the first event are still to be answered with 503
	first    string // that event's id
	receipts []receipt
}

// newDemoReceiver listens on a free port. It fails as many times for the first
// event that it gets.
func newDemoReceiver(name, brand string, failures int) (*demoReceiver, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &demoReceiver{name: name, url: "http://" + listener.Addr().String() + "/hooks", failures: failures}
	handler := &receiver{brand: brand, secret: e.knownSecret, answer: e.answer, got: e.got}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: readHeaderTimeout}
	go func() { _ = server.Serve(listener) }() // ends with the process
	return e, nil
}

func (e *demoReceiver) subscribed(id, secret string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.subscription, e.secret = id, secret
}

func (e *demoReceiver) knownSecret() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.secret
}

func (e *demoReceiver) answer(got receipt) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !got.Verified {
		return http.StatusUnauthorized
	}
	if e.first == "" {
		e.first = got.EventID
	}
	if e.failures > 0 && got.EventID == e.first {
		e.failures--
		return http.StatusServiceUnavailable
	}
	return http.StatusNoContent
}

func (e *demoReceiver) got(got receipt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.receipts = append(e.receipts, got)
}

// count is how many requests have come.
func (e *demoReceiver) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.receipts)
}

// distinct is how many events have been accepted.
func (e *demoReceiver) distinct() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.acceptedEvents())
}

func (e *demoReceiver) acceptedEvents() map[string]bool {
	accepted := map[string]bool{}
	for _, got := range e.receipts {
		if got.Answered < 300 {
			accepted[got.EventID] = true
		}
	}
	return accepted
}

// samples are some receipts to show.
func (e *demoReceiver) samples(n int) []receipt {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]receipt(nil), e.receipts[:min(n, len(e.receipts))]...)
}

// ofType are the receipts of an event type.
func (e *demoReceiver) ofType(eventType string) []receipt {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(e.receipts), func(got receipt) bool { return got.EventType != eventType })
}

// firstEvent is every request of the first event that came.
func (e *demoReceiver) firstEvent() []receipt {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []receipt
	for _, got := range e.receipts {
		if got.EventID == e.receipts[0].EventID {
			all = append(all, got)
		}
	}
	return all
}

// demoAccount is one receiver's line of the account.
type demoAccount struct {
	expected, delivered, requests, repeated, pending int
	problems                                         []string
}

// account holds what the server says it delivered against what came.
func (e *demoReceiver) account(expected []demoDelivery) demoAccount {
	e.mu.Lock()
	defer e.mu.Unlock()
	accepted := e.acceptedEvents()
	line := demoAccount{expected: len(expected), requests: len(e.receipts)}
	line.repeated, line.problems = e.repetitions()
	for _, d := range expected {
		switch {
		case d.Status == "pending":
			line.pending++
		case accepted[d.EventID] && d.Status == "success":
			line.delivered++
		default:
			line.problems = append(line.problems, fmt.Sprintf("%s is %s, and the receiver accepted it: %v", d.EventID, d.Status, accepted[d.EventID]))
		}
		delete(accepted, d.EventID)
	}
	for id := range accepted {
		line.problems = append(line.problems, id+" came and was not expected")
	}
	return line
}

// repetitions counts requests for an event that had come before, and finds
// those whose bytes differ and those that did not verify.
func (e *demoReceiver) repetitions() (repeated int, problems []string) {
	bodies := map[string]string{}
	for _, got := range e.receipts {
		if !got.Verified {
			problems = append(problems, got.EventID+" did not verify: "+got.Problem)
		}
		first, again := bodies[got.EventID]
		if !again {
			bodies[got.EventID] = got.Body
			continue
		}
		repeated++
		if first != got.Body {
			problems = append(problems, got.EventID+" came again with other bytes")
		}
	}
	return repeated, problems
}
