package main

import (
	"database/sql"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"jpintel/webhook"
)

// once is the same caller with an Idempotency-Key.
func (c *testClient) once(key string) *testClient { return c.with("Idempotency-Key", key) }

// The answer to a repeated subscribe is the first one, byte for byte, whatever
// has become of the subscription.
func TestSubscribeOnce(t *testing.T) {
	s := newServer(t)
	cus, other := s.customer("cus_a", "paid"), s.customer("cus_b", "paid")
	const body = `{"url":"http://127.0.0.1:8443","events":["program.updated","program.created"],"filter":{"prefecture":["東京都","全国"]},"description":"<本番> & more"}`
	first := cus.once("k 1").call("POST", subscribePath, body, 201)
	sub := decode[webhook.SubscribeAnswer](t, first)
	same := func(body string) {
		t.Helper()
		if again := cus.once("k 1").call("POST", subscribePath, body, 201); again.body != first.body {
			t.Errorf("again:\n%swant\n%s", again.body, first.body)
		}
	}
	same(body)
	same(strings.ReplaceAll(body, ",", " ,\n"))
	cus.once("k 1").refused("POST", subscribePath, `{"url":"http://127.0.0.1:8443","events":["program.updated"]}`, 409, "Idempotency-Key: used before, for another request")
	one := listPath + "/" + sub.SubscriptionID
	cus.call("PATCH", one, `{"description":"changed"}`, 200)
	for range 2 {
		cus.call("POST", one+"/rotate-secret", nil, 200)
	}
	same(body)
	s.stop()
	s.start()
	same(body)
	cus.call("DELETE", one, nil, 204)
	same(body)
	if got := get[subscriptionPage](cus, listPath).Data; len(got) != 0 {
		t.Errorf("subscriptions: %+v", got)
	}
	for _, c := range []*testClient{cus.once("k 2"), other.once("k 1"), cus, cus} {
		if again := decode[webhook.SubscribeAnswer](t, c.call("POST", subscribePath, body, 201)); again.SubscriptionID == sub.SubscriptionID {
			t.Errorf("%v: the first subscription again", c.header)
		}
	}
}

func TestSubscribeOnceUnderConcurrency(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	var mu sync.Mutex
	answers := map[string]bool{}
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			a, err := cus.once("k").send("POST", subscribePath, `{"url":"http://127.0.0.1/","events":["program.created"]}`)
			if err != nil || a.status != 201 {
				t.Errorf("%d %s: %v", a.status, a.body, err)
			}
			mu.Lock()
			defer mu.Unlock()
			answers[a.body] = true
		})
	}
	group.Wait()
	if got := get[subscriptionPage](cus, listPath).Data; len(got) != 1 || len(answers) != 1 {
		t.Errorf("%d subscriptions, answers %q; want one", len(got), slices.Collect(maps.Keys(answers)))
	}
}

func TestIdempotencyKeyHeader(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	const body = `{"url":"http://127.0.0.1/","events":["program.created"]}`
	for _, c := range []struct {
		values []string
		detail string
	}{
		{[]string{""}, "Idempotency-Key: empty"},
		{[]string{"a", "a"}, "Idempotency-Key: there twice"},
		{[]string{strings.Repeat("k", 256)}, "Idempotency-Key: want 1 to 255 printable ASCII characters"},
		{[]string{"鍵"}, "Idempotency-Key: want 1 to 255 printable ASCII characters"},
	} {
		wrong := *cus
		wrong.header = cus.header.Clone()
		wrong.header[http.CanonicalHeaderKey("Idempotency-Key")] = c.values
		wrong.refused("POST", subscribePath, body, 400, c.detail)
	}
	cus.once(strings.Repeat("k", 255)).call("POST", subscribePath, body, 201)
}

// The server forgets keys that are over their time, and only those.
func TestServerForgetsKeys(t *testing.T) {
	s := newServer(t)
	s.customer("cus_a", "paid")
	for _, key := range []string{"old", "new"} {
		s.publish(key, `{"customer_id":"cus_a",`+finalized+`}`)
	}
	s.stop()
	file, err := sql.Open("sqlite", s.env["JPINTEL_DB"])
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Exec(`UPDATE idempotency_keys SET created_at_ms = created_at_ms - 86400000 WHERE key_seq = 1`); err != nil {
		t.Fatal(err)
	}
	s.start()
	eventually(t, func() bool {
		var left string
		if err := file.QueryRow(`SELECT group_concat(key_seq) FROM idempotency_keys`).Scan(&left); err != nil {
			t.Fatal(err)
		}
		return left == "2"
	})
}
