package webhook

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
)

// loopback lets requests to this machine through.
func loopback(resolver string) *Guard {
	return NewGuard(GuardOptions{AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, AllowHTTP: true, Resolver: resolver})
}

func TestKillSwitchStates(t *testing.T) {
	for name, c := range map[string]struct {
		env  bool
		sets []bool
		want KillSwitchState
	}{
		"off":                      {false, nil, KillSwitchState{}},
		"on at run time":           {false, []bool{true}, KillSwitchState{true, "runtime"}},
		"on and off again":         {false, []bool{true, false}, KillSwitchState{}},
		"the environment":          {true, nil, KillSwitchState{true, "env"}},
		"the environment wins":     {true, []bool{true, false}, KillSwitchState{true, "env"}},
		"the environment is named": {true, []bool{true}, KillSwitchState{true, "env"}},
	} {
		t.Run(name, func(t *testing.T) {
			k := NewKillSwitch(c.env)
			for _, on := range c.sets {
				k.Set(on)
			}
			if got := k.State(); got != c.want {
				t.Errorf("state %+v, want %+v", got, c.want)
			}
			if halted := k.halted().Err() != nil; halted != c.want.On {
				t.Errorf("requests are stopped: %v, want %v", halted, c.want.On)
			}
		})
	}
}

// While the switch is on, not even a connection is made; afterwards requests go
// on over the same sender.
func TestKillSwitchStopsEveryRequest(t *testing.T) {
	var connections, requests atomic.Int64
	receiver := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { requests.Add(1) }))
	receiver.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	receiver.Start()
	defer receiver.Close()
	s := NewSender(loopback(""), "Jpintel", "test")
	defer s.Close()
	request := Request{URL: receiver.URL, Secrets: []string{newSecret()}, EventID: "evt_1", Body: []byte(`{}`)}

	s.Kill.Set(true)
	if r := s.Send(t.Context(), request); !r.Interrupted {
		t.Errorf("while the switch is on: %+v, want Interrupted", r)
	}
	if connections.Load() != 0 {
		t.Errorf("%d connections were made while the switch was on", connections.Load())
	}
	s.Kill.Set(false)
	if r := s.Send(t.Context(), request); !r.OK() || requests.Load() != 1 {
		t.Errorf("after it: %+v and %d requests, want a success and 1", r, requests.Load())
	}
}

// What is on the wire when the switch goes on is finished: the receiver has it.
func TestKillSwitchFinishesWhatIsOnTheWire(t *testing.T) {
	arrived, answer := make(chan struct{}), make(chan struct{})
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-answer
		w.WriteHeader(http.StatusAccepted)
	}))
	defer receiver.Close()
	s := NewSender(loopback(""), "Jpintel", "test")
	defer s.Close()
	result := make(chan Result, 1)
	go func() {
		result <- s.Send(context.Background(), Request{URL: receiver.URL, Secrets: []string{newSecret()}, EventID: "evt_1", Body: []byte(`{}`)})
	}()
	<-arrived
	s.Kill.Set(true)
	close(answer)
	if r := <-result; !r.OK() || r.Status != http.StatusAccepted {
		t.Errorf("the request on the wire ended with %+v, want 202", r)
	}
}

// What has no connection yet when the switch goes on is cancelled and is no
// attempt.
func TestKillSwitchCancelsWhatIsNotOnTheWire(t *testing.T) {
	dns, err := net.ListenPacket("udp", "127.0.0.1:0") // hears questions and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer dns.Close()
	s := NewSender(loopback(dns.LocalAddr().String()), "Jpintel", "test")
	defer s.Close()
	result := make(chan Result, 1)
	go func() {
		result <- s.Send(context.Background(), Request{URL: "https://hooks.example.com/", Secrets: []string{newSecret()}, EventID: "evt_1", Body: []byte(`{}`)})
	}()
	if _, _, err := dns.ReadFrom(make([]byte, 512)); err != nil { // the look-up is under way
		t.Fatal(err)
	}
	s.Kill.Set(true)
	if r := <-result; !r.Interrupted {
		t.Errorf("the waiting request ended with %+v, want Interrupted", r)
	}
}
