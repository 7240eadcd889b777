package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// child is a server that the demo has started.
type child struct {
	cmd  *exec.Cmd
	addr string
	done chan struct{}
}

// startChild starts this program as a server and waits until it listens. Its
// log goes to server.log in dir.
func startChild(ctx context.Context, dir string, environment []string) (*child, error) {
	cmd, err := self(ctx, environment, "serve")
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "server.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, done: make(chan struct{})}
	addr := make(chan string, 1)
	go func() {
		defer close(c.done)
		defer log.Close()
		followLog(out, log, addr)
	}()
	select {
	case c.addr = <-addr:
		return c, nil
	case <-c.done:
		return nil, fmt.Errorf("the server did not start: see %s (%w)", log.Name(), cmd.Wait())
	case <-time.After(demoPatience):
		return nil, errors.Join(fmt.Errorf("the server did not start in time: see %s", log.Name()), c.kill())
	}
}

// followLog copies the server's log and picks out where it listens.
func followLog(out io.Reader, log io.Writer, addr chan<- string) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		_, _ = log.Write(line) // a log that cannot be written is no reason to stop
		var entry struct{ Msg, Addr string }
		if json.Unmarshal(line, &entry) == nil && entry.Msg == "listening" {
			addr <- entry.Addr
		}
		if err != nil {
			return
		}
	}
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill ends the server as a crash would.
func (c *child) kill() error {
	err := c.cmd.Process.Signal(syscall.SIGKILL)
	<-c.done
	_ = c.cmd.Wait() // "signal: killed" is what was wanted
	return err
}

// stop ends the server as a deploy would.
func (c *child) stop() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-c.done
	err := c.cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); ok && c.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return nil // it was killed before
	}
	return err
}

// self is this program again, with an environment of its own.
func self(ctx context.Context, environment []string, args ...string) (*exec.Cmd, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append([]string{"HOME=" + os.Getenv("HOME"), "PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}, environment...)
	return cmd, nil
}

// runChild runs a command of this program and returns what it printed.
func runChild(ctx context.Context, dir string, environment []string, args ...string) ([]byte, error) {
	cmd, err := self(ctx, environment, args...)
	if err != nil {
		return nil, err
	}
	var words bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &words
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, words.String())
	}
	return out, err
}

// apiClient calls the demo's server as its operator and as its customer.
type apiClient struct {
	base, token, key string
}

func (c *apiClient) admin(ctx context.Context, method, path string, body, answer any) error {
	return c.call(ctx, method, path, http.Header{"Authorization": {"Bearer " + c.token}}, body, answer)
}

// adminOnce is a POST with an Idempotency-Key.
func (c *apiClient) adminOnce(ctx context.Context, key, path string, body, answer any) error {
	return c.call(ctx, http.MethodPost, path, http.Header{"Authorization": {"Bearer " + c.token}, "Idempotency-Key": {key}}, body, answer)
}

func (c *apiClient) customer(ctx context.Context, method, path string, body, answer any) error {
	return c.call(ctx, method, path, http.Header{"X-Api-Key": {c.key}}, body, answer)
}

func (c *apiClient) call(ctx context.Context, method, path string, header http.Header, body, answer any) error {
	var in []byte
	if body != nil {
		var err error
		if in, err = json.Marshal(body); err != nil {
			return err
		}
	}
	_, out, err := c.send(ctx, method, path, header, in)
	if err != nil || answer == nil {
		return err
	}
	return json.Unmarshal(out, answer)
}

// send makes a call with a body as it is, and returns the answer: one that is no
// success is an error.
func (c *apiClient) send(ctx context.Context, method, path string, header http.Header, body []byte) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	return resp.StatusCode, answer, err
}

// demoDelivery is what the demo looks at of a delivery.
type demoDelivery struct {
	EventID string `json:"event_id"`
	Status  string `json:"status"`
}

// deliveries reads a subscription's deliveries, all of them or the first few.
func (c *apiClient) deliveries(ctx context.Context, subscription, status string, most int) ([]demoDelivery, error) {
	limit := 100
	if most > 0 {
		limit = most
	}
	path := "/v1/webhooks/subscriptions/" + subscription + "/deliveries?status=" + status + "&limit=" + strconv.Itoa(limit) + "&cursor="
	var all []demoDelivery
	for cursor := ""; ; {
		var page struct {
			Data       []demoDelivery `json:"data"`
			NextCursor *string        `json:"next_cursor"`
		}
		if err := c.customer(ctx, "GET", path+cursor, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Data...)
		if page.NextCursor == nil || most > 0 && len(all) >= most {
			return all, nil
		}
		cursor = *page.NextCursor
	}
}

// events reads the whole feed and returns its event ids.
func (c *apiClient) events(ctx context.Context) ([]string, error) {
	var all []string
	for cursor := ""; ; {
		var page struct {
			Data []struct {
				EventID string `json:"event_id"`
			} `json:"data"`
			NextCursor string `json:"next_cursor"`
		}
		if err := c.customer(ctx, "GET", "/v1/events?limit=100&after="+cursor, nil, &page); err != nil {
			return nil, err
		}
		if len(page.Data) == 0 {
			return all, nil
		}
		for _, e := range page.Data {
			all = append(all, e.EventID)
		}
		cursor = page.NextCursor
	}
}
