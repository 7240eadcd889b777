package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
)

// receiver is an endpoint that the server may call, and that tries to send it
// on to the canary.
type receiver struct {
	server *http.Server
	port   int
	canary string // URL
	got    atomic.Int64
}

func newReceiver(cert tls.Certificate, canaryPort int) (*receiver, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{port: listener.Addr().(*net.TCPAddr).Port, canary: fmt.Sprintf("https://127.0.0.1:%d/", canaryPort)}
	r.server = &http.Server{
		Handler: r, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	go func() { _ = r.server.ServeTLS(listener, "", "") }() // ends with close
	return r, nil
}

// ServeHTTP answers /STATUS with that status and every header that could lead
// a client elsewhere.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.got.Add(1)
	_, _ = io.Copy(io.Discard, req.Body) // whoever sends it is asked for nothing more
	status, err := strconv.Atoi(strings.Trim(req.URL.Path, "/"))
	if err != nil {
		status = http.StatusNoContent
	}
	h := w.Header()
	h.Set("Location", r.canary)
	h.Set("Refresh", "0; url="+r.canary)
	h.Set("Alt-Svc", fmt.Sprintf("h2=%q; ma=3600", strings.Trim(strings.TrimPrefix(r.canary, "https:"), "/")))
	h.Set("Link", "<"+r.canary+">; rel=preconnect")
	h.Set("Connection", "close") // the next request looks the name up again
	w.WriteHeader(status)
}

// url is the receiver's address under a host that leads to it.
func (r *receiver) url(host, path string) string {
	return "https://" + net.JoinHostPort(host, strconv.Itoa(r.port)) + path
}

func (r *receiver) close() { _ = r.server.Close() }
