package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"jpintel/webhook"
)

// client calls the service's API as its operator and as its customers.
type client struct {
	http  http.Client
	base  string
	token string
}

func newClient(token string, connections int) *client {
	return &client{token: token, http: http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxIdleConns: connections, DisableCompression: true},
		Timeout:   time.Minute,
	}}
}

// call makes one call; key is a customer's, or "" for the operator. once, where
// it is not "", is its Idempotency-Key.
func (c *client) call(ctx context.Context, method, path, key, once string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if key == "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	} else {
		req.Header.Set("X-API-Key", key)
	}
	if once != "" {
		req.Header.Set("Idempotency-Key", once)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, out)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(out, answer)
}

// event is one that is to be sent, and the time that it bears.
type event struct {
	n    int
	sent int64 // ns; 0: when a client takes it
}

// published is what became of a publisher's events.
type published struct {
	began time.Time
	took  time.Duration // until the last was acknowledged
	acks  []time.Duration
}

// publish sends the events first to first+count-1, each of a program of its own, with as many clients at a time as the options say. With a rate
// each bears the time at which it was its turn, whether a client was free or
// not: a service that is slow does not get fewer to be slow with.
func publish(ctx context.Context, c *client, o options, first, count int) (published, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := published{began: time.Now(), acks: make([]time.Duration, 0, count)}
	turns := make(chan event, count)
	go takeTurns(ctx, turns, first, count, o.rate)
	var mu sync.Mutex
	var clients sync.WaitGroup
	for range o.clients {
		clients.Go(func() {
			for e := range turns {
				took, err := put(ctx, c, o, e)
				if err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				p.acks = append(p.acks, took)
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	p.took = time.Since(p.began)
	if err := context.Cause(ctx); err != nil {
		return p, fmt.Errorf("publishing: %w", err)
	}
	if len(p.acks) != count {
		return p, errors.New("publishing: not all were acknowledged") // unreachable: each was, or there is a cause
	}
	return p, nil
}

// takeTurns says when which event is to be sent.
func takeTurns(ctx context.Context, turns chan<- event, first, count int, rate float64) {
	defer close(turns)
	began := time.Now()
	for i := range count {
		if rate == 0 {
			turns <- event{n: first + i} // never waits: the channel holds all
			continue
		}
		at := began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		select {
		case <-time.After(time.Until(at)):
		case <-ctx.Done():
			return
		}
		turns <- event{first + i, time.Now().UnixNano()}
	}
}

// put sends one event and returns how long its acknowledgement took.
func put(ctx context.Context, c *client, o options, e event) (time.Duration, error) {
	began := time.Now()
	if e.sent == 0 {
		e.sent = began.UnixNano()
	}
	p, area := program(e.n, e.sent), prefecture(e.n%o.groups())
	if o.programs {
		err := c.putProgram(ctx, p, area)
		return time.Since(began), err
	}
	body := map[string]any{"type": "program.created", "attributes": map[string]string{"prefecture": area}, "data": p}
	var answer struct {
		EventID string `json:"event_id"`
	}
	err := c.call(ctx, http.MethodPost, "/v1/admin/events", "", p.UnifiedID, body, &answer)
	if err == nil && answer.EventID == "" {
		err = errors.New("the answer names no event")
	}
	return time.Since(began), err
}

// putProgram puts a new program, which is an event.
func (c *client) putProgram(ctx context.Context, p webhook.ProgramCreated, area string) error {
	body := map[string]any{"primary_name": p.PrimaryName, "prefectures": []string{area}, "source_url": p.SourceURL}
	var answer struct{ Result string }
	err := c.call(ctx, http.MethodPut, "/v1/admin/programs/"+p.UnifiedID, "", "", body, &answer)
	if err == nil && answer.Result != "created" {
		err = fmt.Errorf("program %s: %s, want created", p.UnifiedID, answer.Result)
	}
	return err
}

// subscriptionsEach is how many a customer may have.
const subscriptionsEach = 20

// subscribe makes all subscriptions, and as many customers as they need: first
// those that answer, a group after the other, then the dead ones.
func subscribe(ctx context.Context, c *client, o options, r *receiverProcess) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	customers := make(chan int)
	var clients sync.WaitGroup
	for range o.clients {
		clients.Go(func() {
			for n := range customers {
				if err := c.signUp(ctx, o, r, n); err != nil {
					cancel(err)
				}
			}
		})
	}
	for n := 0; n*subscriptionsEach < o.subscriptions; n++ {
		customers <- n
	}
	close(customers)
	clients.Wait()
	return context.Cause(ctx)
}

// signUp makes the nth customer and its subscriptions.
func (c *client) signUp(ctx context.Context, o options, r *receiverProcess, n int) error {
	id := fmt.Sprintf("load-%05d", n)
	if err := c.call(ctx, http.MethodPost, "/v1/admin/customers", "", "", map[string]string{"customer_id": id, "tier": "paid"}, nil); err != nil {
		return err
	}
	var key struct {
		APIKey string `json:"api_key"`
	}
	if err := c.call(ctx, http.MethodPost, "/v1/admin/customers/"+id+"/keys", "", "", nil, &key); err != nil {
		return err
	}
	for i := n * subscriptionsEach; i < min((n+1)*subscriptionsEach, o.subscriptions); i++ {
		url, area := r.url(i), elsewhere
		if i >= o.healthy() {
			url = r.deadURL(i - o.healthy())
		} else if group := i / o.fanout; group < o.groups() {
			area = prefecture(group)
		}
		body := map[string]any{"url": url, "events": []string{"program.created"}, "filter": map[string]string{"prefecture": area}}
		if err := c.call(ctx, http.MethodPost, "/v1/webhooks/subscribe", key.APIKey, "", body, nil); err != nil {
			return err
		}
	}
	return nil
}
