package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// client calls the server's API, patiently: a 429 is waited out.
type client struct {
	base, key, token string
	http             http.Client
}

// answer is what the server said.
type answer struct {
	status int
	body   []byte
}

// detail is the answer's error text.
func (a answer) detail() string {
	var e struct{ Detail string }
	if json.Unmarshal(a.body, &e) != nil || e.Detail == "" {
		return fmt.Sprintf("status %d: %.200q", a.status, a.body)
	}
	return e.Detail
}

const (
	callTimeout = 30 * time.Second
	maxWaits    = 60 // for one call
	maxAnswer   = 1 << 20
)

// customer calls as the customer, admin as the operator.
func (c *client) customer(ctx context.Context, method, path string, body any) (answer, error) {
	return c.call(ctx, method, path, "X-API-Key", c.key, body)
}

func (c *client) admin(ctx context.Context, method, path string, body any) (answer, error) {
	return c.call(ctx, method, path, "Authorization", "Bearer "+c.token, body)
}

func (c *client) call(ctx context.Context, method, path, header, credential string, body any) (answer, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	for range maxWaits {
		a, wait, err := c.once(ctx, method, path, header, credential, text)
		if err != nil || wait == 0 {
			return a, err
		}
		select {
		case <-ctx.Done():
			return a, ctx.Err()
		case <-time.After(wait):
		}
	}
	return answer{}, fmt.Errorf("%s %s: too many calls, for ever", method, path)
}

// once makes a call; wait says how long to hold back and then do it again.
func (c *client) once(ctx context.Context, method, path, header, credential string, body []byte) (a answer, wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return a, 0, err
	}
	req.Header.Set(header, credential)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return a, 0, err
	}
	defer resp.Body.Close()
	a.status = resp.StatusCode
	if a.body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer)); err != nil {
		return a, 0, err
	}
	if a.status == http.StatusTooManyRequests {
		seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		if err != nil || seconds < 1 {
			seconds = 1
		}
		wait = time.Duration(seconds) * time.Second
	}
	return a, wait, nil
}

// subscription is what the probe looks at of a new one.
type subscription struct {
	ID  string `json:"subscription_id"`
	URL string `json:"url"`
}

// subscribe registers a URL. The answer is there also when it was refused.
func (c *client) subscribe(ctx context.Context, url json.RawMessage, event, attribute, value string) (answer, subscription, error) {
	var sub subscription
	a, err := c.customer(ctx, "POST", "/v1/webhooks/subscribe", map[string]any{
		"url": url, "events": []string{event}, "filter": map[string]string{attribute: value}, "description": "ssrf_probe: may be deleted",
	})
	if err == nil && a.status == http.StatusCreated {
		err = json.Unmarshal(a.body, &sub)
	}
	return a, sub, err
}

// unsubscribe deletes a subscription, also when the probe was interrupted.
func (c *client) unsubscribe(ctx context.Context, id string) error {
	a, err := c.customer(context.WithoutCancel(ctx), "DELETE", "/v1/webhooks/subscriptions/"+id, nil)
	if err == nil && a.status != http.StatusNoContent {
		err = fmt.Errorf("deleting subscription %s: %s", id, a.detail())
	}
	return err
}

// attempt is what the probe looks at of one, a test call's answer too.
type attempt struct {
	Status     *int   `json:"status"`
	Category   string `json:"error_category"`
	RemoteAddr string `json:"remote_addr"`
}

const (
	pollEvery = 200 * time.Millisecond
	patience  = 30 * time.Second // longer than an attempt may take
)

// attempted waits for the first attempts of a subscription's first n
// deliveries, and returns them, oldest first.
func (c *client) attempted(ctx context.Context, subscription string, n int) ([]attempt, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		found, err := c.attempts(ctx, subscription)
		if err != nil {
			return nil, err
		}
		if len(found) >= n {
			return found, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("subscription %s: %d attempts awaited, %d made", subscription, n, len(found))
		case <-time.After(pollEvery):
		}
	}
}

// attempts are the first ones of a subscription's deliveries that have one.
func (c *client) attempts(ctx context.Context, subscription string) (found []attempt, err error) {
	var page struct {
		Data []struct {
			ID string `json:"delivery_id"`
		}
	}
	if err := c.get(ctx, "/v1/webhooks/subscriptions/"+subscription+"/deliveries", &page); err != nil {
		return nil, err
	}
	for _, d := range slices.Backward(page.Data) {
		var detail struct{ Attempts []attempt }
		if err := c.get(ctx, "/v1/webhooks/deliveries/"+d.ID, &detail); err != nil {
			return nil, err
		}
		if len(detail.Attempts) > 0 {
			found = append(found, detail.Attempts[0])
		}
	}
	return found, nil
}

func (c *client) get(ctx context.Context, path string, v any) error {
	a, err := c.customer(ctx, "GET", path, nil)
	if err != nil {
		return err
	}
	if a.status != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, a.detail())
	}
	return json.Unmarshal(a.body, v)
}
