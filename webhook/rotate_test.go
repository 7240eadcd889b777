package webhook

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
)

// signedReceiver keeps the headers of what it is sent; it answers with one status
// after the other, the last one for ever.
type signedReceiver struct {
	receivers
	mu      sync.Mutex
	headers []http.Header
}

func newSignedReceiver(statuses ...int) *signedReceiver {
	r := &signedReceiver{}
	r.answer = func(req *http.Request) (*http.Response, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		n := min(len(r.headers), len(statuses)-1)
		r.headers = append(r.headers, req.Header.Clone())
		return respond(statuses[n]), nil
	}
	return r
}

// wantSigned fails the test unless the nth request (from 0) is signed with
// exactly these secrets, newest first, in both families.
func (r *signedReceiver) wantSigned(t *testing.T, n int, secrets ...string) {
	t.Helper()
	all := r.all()
	if len(all) <= n {
		t.Fatalf("%d requests, want the %dth", len(all), n)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	h, body := r.headers[n], []byte(all[n].body)
	want := sign(secrets, h.Get("webhook-id"), all[n].at, body)
	if got := h.Get("X-Jpintel-Signature"); got != want.stripe {
		t.Errorf("request %d: %d signatures in X-Jpintel-Signature: %s, want %d: %s", n, strings.Count(got, "v1="), got, len(secrets), want.stripe)
	}
	if got := h.Get("webhook-signature"); got != want.standard {
		t.Errorf("request %d: webhook-signature: %s, want %s", n, got, want.standard)
	}
	for i, secret := range secrets {
		if err := Verify(secret, "Jpintel", h, body, all[n].at); err != nil {
			t.Errorf("request %d, secret %d: %v", n, i, err)
		}
	}
	if Verify(newSecret(), "Jpintel", h, body, all[n].at) == nil {
		t.Error("any secret verifies")
	}
}

// Each secret goes on signing for its whole grace after it was replaced, also
// when the next rotation comes within it.
func TestRotationGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.RotationGrace = Duration(time.Hour)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		r := newSignedReceiver(200)
		w, _ := start(t, s, &r.receivers)
		s.Changed = w.Forget
		began, n := time.Now(), 0
		at := func(after time.Duration, secrets ...string) {
			t.Helper()
			time.Sleep(time.Until(began.Add(after)))
			publish(t, s, updated("UNI-1", nil))
			r.wantSigned(t, n, secrets...)
			n++
		}
		rotate := func() string {
			t.Helper()
			a, err := s.RotateSecret(t.Context(), SubscriptionRequest{"cus_a", sub.SubscriptionID})
			if err != nil {
				t.Fatal(err)
			}
			if !a.OldValidUntil.Equal(time.Now().Add(time.Hour)) || !a.SecretShownOnce {
				t.Errorf("%+v at %s", a, time.Now())
			}
			return a.SigningSecret
		}
		a := sub.SigningSecret
		at(0, a)
		b := rotate() // a until 60 min
		at(0, b, a)
		at(30*time.Minute, b, a)
		c := rotate() // b until 90 min
		at(30*time.Minute, c, b, a)
		at(59*time.Minute+59*time.Second, c, b, a)
		at(time.Hour, c, b)
		at(89*time.Minute+59*time.Second, c, b)
		at(90*time.Minute, c)
		at(48*time.Hour, c)
	})
}

// There are four old ones at most; each that ends makes room for another.
func TestRotationLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.RotationGrace = Duration(time.Hour)
		customer(t, s, "cus_a")
		customer(t, s, "cus_b")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		which := SubscriptionRequest{"cus_a", sub.SubscriptionID}
		for range maxOldSecrets {
			if _, err := s.RotateSecret(t.Context(), which); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Minute)
		}
		_, err := s.RotateSecret(t.Context(), which)
		wantCode(t, err, store.CodeConflict, "4 replaced secrets are still valid")
		for _, other := range []SubscriptionRequest{{"cus_b", sub.SubscriptionID}, {"cus_a", "sub_none"}} {
			_, err = s.RotateSecret(t.Context(), other)
			wantCode(t, err, store.CodeNotFound, other.SubscriptionID)
			_, err = s.FinishRotation(t.Context(), other)
			wantCode(t, err, store.CodeNotFound, other.SubscriptionID)
		}
		time.Sleep(20 * time.Minute) // the first one's hour is over
		if _, err := s.RotateSecret(t.Context(), which); err != nil {
			t.Error(err)
		}
		_, err = s.RotateSecret(t.Context(), which)
		wantCode(t, err, store.CodeConflict, "4 replaced secrets are still valid")
	})
}

// A rotation at the same time as others: no more than four old ones, and every
// secret that was shown signs.
func TestRotationsAtTheSameTime(t *testing.T) {
	s := newService(t)
	s.RotationGrace = Duration(time.Hour)
	customer(t, s, "cus_a")
	sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
	var all sync.WaitGroup
	answers := make(chan string, 12)
	for range cap(answers) {
		all.Go(func() {
			a, err := s.RotateSecret(t.Context(), SubscriptionRequest{"cus_a", sub.SubscriptionID})
			switch {
			case err == nil:
				answers <- a.SigningSecret
			case store.CodeOf(err) != store.CodeConflict:
				t.Error(err)
			}
		})
	}
	all.Wait()
	close(answers)
	want := []string{sub.SigningSecret}
	for secret := range answers {
		want = append(want, secret)
	}
	got, err := readSecrets(s.DB.Reader(t.Context()), s.DB.Keys, subSeq(t, s, sub.SubscriptionID), sub.SubscriptionID, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if len(want) != 1+maxOldSecrets || !slices.Equal(got, want) {
		t.Errorf("%d sign, %d were shown", len(got), len(want))
	}
}

// The retry of what had failed before a rotation carries both signatures, over
// the same body; after the rotation is finished, the new one only.
func TestRotationBetweenAFailureAndItsRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.RotationGrace = Duration(24 * time.Hour)
		customer(t, s, "cus_a")
		sub := subscribe(t, s, SubscribeRequest{CustomerID: "cus_a"})
		which := SubscriptionRequest{"cus_a", sub.SubscriptionID}
		r := newSignedReceiver(503, 503, 200)
		w, _ := start(t, s, &r.receivers)
		s.Changed = w.Forget
		publish(t, s, updated("UNI-1", nil))
		r.wantSigned(t, 0, sub.SigningSecret)
		rotated, err := s.RotateSecret(t.Context(), which)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		r.wantSigned(t, 1, rotated.SigningSecret, sub.SigningSecret)
		for range 2 {
			if _, err := s.FinishRotation(t.Context(), which); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Minute)
		r.wantSigned(t, 2, rotated.SigningSecret)
		if all := r.all(); len(all) != 3 || all[0].body != all[2].body {
			t.Errorf("%+v", all)
		}
	})
}
