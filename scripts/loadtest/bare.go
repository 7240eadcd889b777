package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"jpintel/webhook"
)

// bareWorkers is how many requests the bare loop has in flight: as many as the
// service by default.
const bareWorkers = 64

// bareSecret signs for the bare loop; eventID is the length of a real one.
const (
	bareSecret = "whsec_000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	bareEvent  = "evt_01KBA7Q0Q0Q0Q0Q0Q0Q0Q0Q0Q0"
	bareBrand  = "Jpintel"
)

// bareFigures are what the bare loop came to.
type bareFigures struct {
	Requests int           `json:"requests"`
	Took     time.Duration `json:"took_ns"`
	CPU      time.Duration `json:"cpu_ns"` // this process's, user and system
}

// plus adds what another loop came to.
func (b bareFigures) plus(c bareFigures) bareFigures {
	return bareFigures{b.Requests + c.Requests, b.Took + c.Took, b.CPU + c.CPU}
}

// runBare is the bare loop's process: nothing but signing and sending.
func runBare(ctx context.Context, args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("bare", flag.ContinueOnError)
	url, requests := f.String("url", "", ""), f.Int("requests", 0, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	loop := &bareLoop{url: *url, body: envelope(program(0, time.Now().UnixNano()))}
	loop.client.Transport = &http.Transport{MaxIdleConnsPerHost: bareWorkers, DisableCompression: true}
	req, err := loop.request(ctx)
	if err != nil {
		return err
	}
	if err := webhook.Verify(bareSecret, bareBrand, req.Header, loop.body, time.Now()); err != nil {
		return fmt.Errorf("the bare loop does not sign as the service does: %w", err)
	}
	if _, err := loop.run(ctx, bareWorkers); err != nil { // connections
		return err
	}
	figures, err := loop.run(ctx, *requests)
	return errors.Join(err, json.NewEncoder(stdout).Encode(figures))
}

// bareLoop POSTs one body over and over.
type bareLoop struct {
	url    string
	body   []byte
	client http.Client
}

func (l *bareLoop) run(ctx context.Context, requests int) (bareFigures, error) {
	var left atomic.Int64
	left.Store(int64(requests))
	errs := make(chan error, bareWorkers)
	var workers sync.WaitGroup
	began, cpu := time.Now(), ownCPU()
	for range bareWorkers {
		workers.Go(func() {
			for left.Add(-1) >= 0 {
				if err := l.post(ctx); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	workers.Wait()
	select {
	case err := <-errs:
		return bareFigures{}, fmt.Errorf("the bare loop: %w", err)
	default:
		return bareFigures{requests, time.Since(began), ownCPU() - cpu}, nil
	}
}

func (l *bareLoop) post(ctx context.Context) error {
	req, err := l.request(ctx)
	if err != nil {
		return err
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusNoContent {
		return errors.New(resp.Status)
	}
	return nil
}

// request is one as the service makes it.
func (l *bareLoop) request(ctx context.Context) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url, bytes.NewReader(l.body))
	if err != nil {
		return nil, err
	}
	t := strconv.FormatInt(time.Now().Unix(), 10)
	stripe := signature([]byte(bareSecret), t+".", l.body)
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(bareSecret, "whsec_"))
	if err != nil {
		return nil, err // unreachable: hex digits are base64
	}
	standard := signature(key, bareEvent+"."+t+".", l.body)
	h := req.Header
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("User-Agent", bareBrand+"-Webhooks/loadtest")
	h.Set("X-"+bareBrand+"-Event", string(webhook.TypeProgramCreated))
	h.Set("X-"+bareBrand+"-Delivery", "dlv_01KBA7Q0Q0Q0Q0Q0Q0Q0Q0Q0Q0")
	h.Set("X-"+bareBrand+"-Attempt", "1")
	h.Set("X-"+bareBrand+"-Signature", "t="+t+",v1="+hex.EncodeToString(stripe))
	h.Set("Webhook-Id", bareEvent)
	h.Set("Webhook-Timestamp", t)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(standard))
	return req, nil
}

func signature(key []byte, prefix string, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(prefix))
	mac.Write(body)
	return mac.Sum(nil)
}

// ownCPU is what this process has used.
func ownCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails only for a wrong argument
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// bare runs the bare loop in its own process.
func bare(ctx context.Context, url string, requests int) (figures bareFigures, err error) {
	cmd, err := self(ctx, "bare", "--url="+url, "--requests="+strconv.Itoa(requests))
	if err != nil {
		return figures, err
	}
	var words bytes.Buffer
	cmd.Stderr = &words
	out, err := cmd.Output()
	if err != nil {
		return figures, fmt.Errorf("the bare loop: %w: %s", err, words.String())
	}
	err = json.Unmarshal(out, &figures)
	return figures, err
}
