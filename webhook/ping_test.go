package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// withSender gives the service a sender whose requests r answers.
func withSender(t *testing.T, s *Service, r *receivers) {
	t.Helper()
	s.Sender = newSender(t, s.Guard)
	s.Sender.transport = r
}

// attemptsToday are the attempts that are written down, by customer and day.
func attemptsToday(t testing.TB, s *Service) []string {
	t.Helper()
	return lines(t, s.DB, `SELECT customer_id, day, attempts FROM webhook_daily_attempts WHERE attempts > 0 ORDER BY 1, 2`)
}

// A ping tells what came of it, counts for the day and changes nothing else.
func TestPingOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.Cap = NewDailyCap(s.DB, 100)
		customer(t, s, "cus_a")
		which := SubscriptionRequest{"cus_a", subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID}
		before := lines(t, s.DB, `SELECT * FROM webhook_subscriptions`)
		counted := 0
		for name, c := range map[string]struct {
			response *http.Response
			err      error
			ok       bool
			category Category
			counts   bool
		}{
			"accepted":  {respond(202), nil, true, "", true},
			"gone":      {respond(410), nil, false, Category4xx, true},
			"busy":      {respond(429, "Retry-After", "60"), nil, false, Category429, true},
			"broken":    {respond(500), nil, false, Category5xx, true},
			"elsewhere": {respond(302, "Location", "/"), nil, false, CategoryRedirect, true},
			"cut off":   {nil, io.ErrUnexpectedEOF, false, CategoryReset, true},
			"refused":   {nil, &Refusal{Reason: "private", Detail: "the address is not a public one"}, false, CategoryBlocked, false},
		} {
			withSender(t, s, &receivers{answer: func(*http.Request) (*http.Response, error) {
				time.Sleep(70 * time.Millisecond)
				return c.response, c.err
			}})
			a, err := s.Ping(t.Context(), which)
			if err != nil || a.OK != c.ok || a.ErrorCategory != c.category || a.DurationMS != 70 || (a.Status == nil) != (c.response == nil) || a.Status != nil && *a.Status != c.response.StatusCode {
				t.Errorf("%s: %+v, %v", name, a, err)
			}
			if c.counts {
				counted++
			}
			if got := attemptsToday(t, s); !slices.Equal(got, []string{fmt.Sprintf("cus_a 2000-01-01 %d", counted)}) && counted > 0 {
				t.Errorf("%s: counted %q, want %d", name, got, counted)
			}
		}
		if after := lines(t, s.DB, `SELECT * FROM webhook_subscriptions`); !slices.Equal(before, after) {
			t.Errorf("before %q, after %q", before, after)
		}
		if n := number(t, s.DB, `SELECT (SELECT COUNT(*) FROM webhook_deliveries) + (SELECT COUNT(*) FROM webhook_attempts) + (SELECT COUNT(*) FROM outbox_events)`); n != 0 {
			t.Errorf("%d rows are left", n)
		}
	})
}

// A caller that goes away does not save itself the attempt.
func TestPingWithoutItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.Cap = NewDailyCap(s.DB, 1)
		customer(t, s, "cus_a")
		which := SubscriptionRequest{"cus_a", subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID}
		withSender(t, s, always(200, time.Second))
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { _, err := s.Ping(ctx, which); done <- err }()
		synctest.Wait()
		cancel(errors.New("gone"))
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := attemptsToday(t, s); !slices.Equal(got, []string{"cus_a 2000-01-01 1"}) {
			t.Errorf("counted %q", got)
		}
		_, err := s.Ping(t.Context(), which)
		wantCode(t, err, store.CodeRateLimited, "the daily cap of 1 delivery attempts is used up")
	})
}

// One ping a subscription, eight in all; what was refused for that is not
// counted, and the end of one makes room.
func TestPingsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.Cap = NewDailyCap(s.DB, 100)
		customer(t, s, "cus_a")
		r := always(200, 5*time.Second)
		withSender(t, s, r)
		var subs []SubscriptionRequest
		for range maxPings + 1 {
			subs = append(subs, SubscriptionRequest{"cus_a", subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"}).SubscriptionID})
		}
		for _, which := range subs[:maxPings] {
			go func() {
				if a, err := s.Ping(context.Background(), which); err != nil || !a.OK {
					t.Errorf("%+v, %v", a, err)
				}
			}()
			synctest.Wait()
		}
		_, err := s.Ping(t.Context(), subs[0])
		wantCode(t, err, store.CodeRateLimited, "a test of this subscription is under way")
		_, err = s.Ping(t.Context(), subs[maxPings])
		wantCode(t, err, store.CodeRateLimited, "too many tests are under way")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := attemptsToday(t, s); !slices.Equal(got, []string{fmt.Sprintf("cus_a 2000-01-01 %d", maxPings)}) || len(r.all()) != maxPings {
			t.Errorf("counted %q; %d requests", got, len(r.all()))
		}
		if _, err := s.Ping(t.Context(), subs[maxPings]); err != nil {
			t.Error(err)
		}
	})
}
