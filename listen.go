package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

type listenCmd struct {
	Addr   string `default:"127.0.0.1:8787" help:"Where to listen, host:port."`
	Secret string `help:"The subscription's signing secret (whsec_…); JPINTEL_LISTEN_SECRET keeps it out of the process list."`
	Status int    `default:"204" help:"The HTTP status to answer verified requests with; others get 401."`
}

// Run receives until the context ends, one line a request.
func (c *listenCmd) Run(ctx context.Context, a *app) error {
	if c.Secret == "" {
		c.Secret = string(a.config.ListenSecret)
	}
	if c.Status < 100 || c.Status > 599 {
		return usageError{errors.New("--status: want an HTTP status")}
	}
	listener, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	server := &http.Server{ReadHeaderTimeout: readHeaderTimeout, Handler: &receiver{
		brand:  a.config.Brand,
		secret: func() string { return c.Secret },
		answer: func(got receipt) int {
			if c.Secret != "" && !got.Verified {
				return http.StatusUnauthorized
			}
			return c.Status
		},
		got: func(got receipt) {
			mu.Lock()
			defer mu.Unlock()
			a.printReceipt(got)
		},
	}}
	fmt.Fprintf(a.stderr, "Listening on http://%s\n", listener.Addr())
	context.AfterFunc(ctx, func() { _ = server.Close() }) // whoever waits is told by the closed connection
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (a *app) printReceipt(got receipt) {
	if a.json {
		_ = printJSON(a.stdout, got) // a closed pipe: nobody is left to tell
		return
	}
	verdict := "signature ok"
	if !got.Verified {
		verdict = "NOT VERIFIED: " + got.Problem
	}
	fmt.Fprintf(a.stdout, "%s  <- %s [%s] attempt %d  %s  -> %d\n   %s\n", got.At.Format(time.TimeOnly), got.EventType, got.EventID, got.Attempt, verdict, got.Answered, printable(got.Body))
}

// printable keeps a stranger's bytes from driving the terminal.
func printable(s string) string {
	clean := []rune{}
	for _, r := range s {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			r = '.'
		}
		clean = append(clean, r)
	}
	return string(clean)
}
