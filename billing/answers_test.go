package billing

import (
	"context"
	"net"
	"net/http"
	"sync"

	"jpintel/billing/modelgate"
	"jpintel/billing/modelgatetest"
)

// answers has a handler answer in place of the upstream's stand-in, which never
// says such things, until what is returned is called.
func (s *scene) answers(handler http.Handler) (end func()) {
	s.t.Helper()
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(l) }() // until it is closed
	client, err := modelgate.New(modelgate.Options{BaseURL: "http://127.0.0.1", APIKey: modelgatetest.DevToken, Dial: l.dial})
	if err != nil {
		s.t.Fatal(err)
	}
	before := s.engine.Client
	s.engine.Client = client
	return func() {
		s.engine.Client = before
		server.Close()
	}
}

// pipeListener listens without a network: what waits for it is in the bubble.
type pipeListener struct {
	conns chan net.Conn
	end   sync.Once
	done  chan struct{}
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *pipeListener) Close() error { l.end.Do(func() { close(l.done) }); return nil }

// Addr implements net.Listener.
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
