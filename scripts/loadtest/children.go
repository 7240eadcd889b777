package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// receiverProcess is the receiver as its parent sees it.
type receiverProcess struct {
	hosts
	cmd   *exec.Cmd
	stdin io.Closer
}

func startReceiver(ctx context.Context, hosts int) (*receiverProcess, error) {
	cmd, err := self(ctx, "receiver", fmt.Sprintf("--hosts=%d", hosts))
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the receiver: %w", err)
	}
	p := &receiverProcess{cmd: cmd, stdin: stdin}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.hosts)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting the receiver: %w", err), p.stop())
	}
	return p, nil
}

// self is this program in another role.
func self(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, path, args...), nil
}

func (p *receiverProcess) stop() error {
	p.stdin.Close()
	return ended("the receiver", p.cmd.Wait())
}

// ended says how a process ended that was to end. That the run was over before
// is not its fault, and is said elsewhere.
func ended(what string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// url is where the ith healthy subscription is called.
func (p *receiverProcess) url(i int) string {
	return fmt.Sprintf("http://%s%s%d", p.OK[i%len(p.OK)], pathOK, i)
}

// deadURL is where the ith dead subscription is called.
func (p *receiverProcess) deadURL(i int) string {
	return fmt.Sprintf("http://%s%s%d", p.Dead, pathDead, i)
}

func (p *receiverProcess) count(ctx context.Context) (n int, err error) {
	err = getJSON(ctx, "http://"+p.Control+pathCount, &n)
	return n, err
}

func (p *receiverProcess) stats(ctx context.Context) (a arrivals, err error) {
	err = getJSON(ctx, "http://"+p.Control+pathStats, &a)
	return a, err
}

func (p *receiverProcess) forget(ctx context.Context) error {
	return getJSON(ctx, "http://"+p.Control+pathReset, nil)
}

// drop ends the requests to the dead ones. A service that is stopping waits for
// them otherwise; if this fails, it does.
func (p *receiverProcess) drop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = getJSON(ctx, "http://"+p.Control+pathDrop, nil)
}

func getJSON(ctx context.Context, url string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if answer == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}
