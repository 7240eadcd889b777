package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// startPatience is how long the service may take until it listens: a file
	// with a million deliveries is looked at first.
	startPatience = time.Minute
	// stopPatience is longer than the service waits for what is in flight.
	stopPatience = 30 * time.Second
)

// build makes the program to measure, as the image has it.
func build(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "jpintel")
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", path, "jpintel")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the service (or name one with --jpintel): %w\n%s", err, out)
	}
	return path, nil
}

// service is the process that is measured.
type service struct {
	base  string // of its API
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
	err   error // once ended
}

func adminToken() string {
	random := make([]byte, 32)
	rand.Read(random) // never fails
	return hex.EncodeToString(random)
}

// startService starts the service on a file and waits until it listens. The
// environment is its own, so that nothing of the caller's is measured.
func startService(ctx context.Context, path, db, token, log string, extra []string) (*service, error) {
	file, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the child has its own
	cmd := exec.CommandContext(ctx, path, "serve")
	cmd.Env = append([]string{
		"HOME=" + os.Getenv("HOME"), "PATH=" + os.Getenv("PATH"), "TMPDIR=" + filepath.Dir(db),
		"JPINTEL_DB=" + db, "JPINTEL_ADDR=127.0.0.1:0", "JPINTEL_ADMIN_TOKEN=" + token, "JPINTEL_LOG_LEVEL=info", "JPINTEL_LOG_FORMAT=json",
		"JPINTEL_WEBHOOK_ALLOW_CIDRS=127.0.0.0/8", "JPINTEL_WEBHOOK_ALLOW_HTTP=1", "JPINTEL_WEBHOOK_RATE=0", "JPINTEL_API_RATE=0",
		"JPINTEL_WEBHOOK_DAILY_CAP=1000000000", // counted, and never reached
	}, extra...)
	cmd.Stdout, cmd.Stderr = file, file
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopPatience
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the service: %w", err)
	}
	s := &service{cmd: cmd, log: log, ended: make(chan struct{})}
	go func() { defer close(s.ended); s.err = cmd.Wait() }()
	if err := s.waitListening(); err != nil {
		return nil, errors.Join(err, s.stop(func() {}))
	}
	return s, nil
}

func (s *service) pid() int { return s.cmd.Process.Pid }

func (s *service) waitListening() error {
	for deadline := time.Now().Add(startPatience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		addr, err := listeningAt(s.log)
		if err != nil {
			return err
		}
		if addr != "" {
			s.base = "http://" + addr
			return nil
		}
		select {
		case <-s.ended:
			text, _ := os.ReadFile(s.log)
			return fmt.Errorf("the service did not start: %w\n%s", s.err, text)
		default:
		}
	}
	return fmt.Errorf("the service does not listen after %s", startPatience)
}

// listeningAt looks for the address in the first lines of a log.
func listeningAt(log string) (string, error) {
	file, err := os.Open(log)
	if err != nil {
		return "", err
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	for range 100 {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return "", nil // no more yet
		}
		var entry struct{ Msg, Addr string }
		if bytes.Contains(line, []byte(`"listening"`)) && json.Unmarshal(line, &entry) == nil && entry.Msg == "listening" {
			return entry.Addr, nil
		}
	}
	return "", nil
}

// stop ends the service as a deploy would, and kills it if that takes too long.
// It calls stopping once the service knows.
func (s *service) stop(stopping func()) error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	stopping()
	select {
	case <-s.ended:
	case <-time.After(stopPatience):
		_ = s.cmd.Process.Kill() // it has ended meanwhile, or now
		<-s.ended
		return fmt.Errorf("the service had to be killed: see %s", s.log)
	}
	return ended("the service", s.err)
}
