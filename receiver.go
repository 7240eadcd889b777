package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"jpintel/webhook"
)

// maxReceived is the most bytes that a local receiver reads of a request: an
// event's data has 64 KiB at most.
const maxReceived = 128 << 10

// receipt is one request that a local receiver got.
type receipt struct {
	At             time.Time `json:"at"`
	EventID        string    `json:"event_id"`
	EventType      string    `json:"event_type"`
	DeliveryID     string    `json:"delivery_id"`
	SubscriptionID string    `json:"subscription_id"`
	Attempt        int       `json:"attempt"`
	Verified       bool      `json:"verified"`
	Problem        string    `json:"problem,omitempty"` // why it was not verified
	Answered       int       `json:"answered"`          // HTTP status
	Body           string    `json:"body"`
}

// receiver is an endpoint as a customer would have it: it verifies before it
// looks at anything else.
type receiver struct {
	brand  string
	secret func() string // "": not known, nothing is verified
	answer func(receipt) int
	got    func(receipt)
}

// ServeHTTP implements http.Handler.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxReceived))
	got := receipt{At: time.Now(), EventID: req.Header.Get("webhook-id"), Body: string(body), Problem: "no secret given (--secret)"}
	got.EventType, got.DeliveryID = req.Header.Get("X-"+r.brand+"-Event"), req.Header.Get("X-"+r.brand+"-Delivery")
	got.Attempt, _ = strconv.Atoi(req.Header.Get("X-" + r.brand + "-Attempt")) // 0 where a stranger calls
	if secret := r.secret(); err != nil {
		got.Problem = "the body could not be read"
	} else if secret != "" {
		got.check(webhook.Verify(secret, r.brand, req.Header, body, got.At))
	}
	got.Answered = r.answer(got)
	r.got(got)
	w.WriteHeader(got.Answered)
}

// check takes the verdict on the signature, and that the body says what the
// header says.
func (g *receipt) check(err error) {
	var envelope struct {
		EventID        string `json:"event_id"`
		SubscriptionID string `json:"subscription_id"`
	}
	switch {
	case err != nil:
		g.Problem = err.Error()
	case json.Unmarshal([]byte(g.Body), &envelope) != nil || envelope.EventID != g.EventID:
		g.Problem = "the body does not carry the event id of the header"
	default:
		g.Verified, g.Problem, g.SubscriptionID = true, "", envelope.SubscriptionID
	}
}
