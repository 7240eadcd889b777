package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"jpintel/billing/stripe/stripetest"
	"jpintel/store"
	"jpintel/store/storetest"
)

// S10, with a real kill: the server dies when events are on disk and Stripe has
// not been told. It sends them again, and each is there once.
func TestS10AServerKilledBeforeItsAnswer(t *testing.T) {
	const atOnce, rounds = 32, 30
	path := t.TempDir() + "/jpintel.db"
	s := procServe(t, path, "JPINTEL_STRIPE_WEBHOOK_SECRETS="+stripeSecret)
	beside, err := store.Open(t.Context(), path, store.Options{Keys: storetest.Keys(t)})
	s.must(err)
	deliveries := func(id string) (n int) {
		s.must(beside.Reader(t.Context()).QueryRow(`SELECT COALESCE(SUM(delivery_count), 0) FROM payment_webhook_events WHERE event_id = $1`, id).Scan(&n))
		return n
	}
	unanswered := 0
	for round := range rounds {
		sent := s.sendAtOnce(beside, fmt.Sprintf("evt_%d_", round), atOnce)
		s = procServeAs(t, s.client, path, "JPINTEL_STRIPE_WEBHOOK_SECRETS="+stripeSecret)
		for id, answered := range sent {
			stored := deliveries(id)
			if stored > 1 || answered && stored != 1 {
				t.Errorf("%s was sent once (answered with 200: %v) and has come %d times", id, answered, stored)
			}
			if !answered && stored == 1 {
				unanswered++
			}
			if status := s.tell(id); status != http.StatusOK || deliveries(id) != stored+1 {
				t.Errorf("%s, sent again: %d; it has come %d times and then %d", id, status, stored, deliveries(id))
			}
		}
		if unanswered > 0 {
			break
		}
	}
	if unanswered == 0 {
		t.Errorf("in %d rounds every event that was stored was answered too", rounds)
	}
	t.Logf("%d events were stored and not answered", unanswered)
	s.stop()
	s.must(beside.Close())
	storetest.Open(t, path) // and what has to hold holds
}

// sendAtOnce tells so many events at once, kills the server when the first of
// them is on disk, and returns which of them were answered with 200.
func (s *procServer) sendAtOnce(beside *store.DB, prefix string, n int) (answered map[string]bool) {
	s.t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	answered = map[string]bool{}
	for i := range n {
		id := fmt.Sprint(prefix, i)
		answered[id] = false
		all.Go(func() {
			status := s.tell(id)
			mu.Lock()
			defer mu.Unlock()
			answered[id] = status == http.StatusOK
		})
	}
	for found := 0; found == 0; {
		s.must(beside.Reader(s.t.Context()).QueryRow(`SELECT COUNT(*) FROM payment_webhook_events WHERE substr(event_id, 1, $1) = $2`, len(prefix), prefix).Scan(&found))
	}
	s.kill()
	all.Wait()
	return answered
}

// tell delivers an event as Stripe does, on a connection of its own, and returns
// the status; 0: no answer.
func (s *procServer) tell(id string) int {
	body := stripetest.Event(s.t, "checkout.session.completed", id)
	req, err := http.NewRequestWithContext(s.t.Context(), "POST", s.client.base+stripePath, strings.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return 0
	}
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	req.Header.Set("Stripe-Signature", stripetest.Sign(body, time.Now(), stripeSecret))
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: procPatience}).Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0 // cut off: nobody was told
	}
	return resp.StatusCode
}
