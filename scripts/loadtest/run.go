package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"jpintel/store"
)

// settle is how long an idle service is left alone before it is weighed.
const settle = time.Second

// bench is one run: its folder and what it has started.
type bench struct {
	options
	ctx      context.Context
	folder   string
	program  string
	token    string
	client   *client
	receiver *receiverProcess
	progress io.Writer
	starts   int
	puts     int // programs that were put so far
	idle     process
}

// runOnce measures everything once.
func runOnce(ctx context.Context, o options, progress io.Writer) (all figures, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	folder, err := os.MkdirTemp(o.dir, "jpintel-loadtest-")
	if err != nil {
		return all, err
	}
	b := &bench{options: o, ctx: ctx, folder: folder, program: o.jpintel, token: adminToken(), progress: progress}
	defer func() {
		if b.receiver != nil {
			err = errors.Join(err, b.receiver.stop())
		}
		if o.keep {
			fmt.Fprintf(progress, "kept: %s\n", folder)
			return
		}
		err = errors.Join(err, os.RemoveAll(folder))
	}()
	return b.run()
}

func (b *bench) run() (figures, error) {
	if err := b.prepare(); err != nil {
		return nil, err
	}
	limit, err := bare(b.ctx, "http://"+b.receiver.Control+pathBare, b.bare/2)
	if err != nil {
		return nil, err
	}
	var phases []phase
	for _, name := range b.phases() {
		p, err := b.phase(name)
		if err != nil {
			return nil, fmt.Errorf("phase %s: %w", name, err)
		}
		phases = append(phases, p)
	}
	again, err := bare(b.ctx, "http://"+b.receiver.Control+pathBare, b.bare/2)
	if err != nil {
		return nil, err
	}
	sizes, err := b.weighFile()
	if err != nil {
		return nil, err
	}
	return b.figures(limit.plus(again), phases, sizes), nil
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.progress, "  "+format+"\n", args...) }

func (b *bench) db() string { return filepath.Join(b.folder, "jpintel.db") }

// prepare starts the receiver, makes the subscriptions, and lets each that
// answers do so once, so that none is on probation.
func (b *bench) prepare() (err error) {
	if inMemory(b.folder) {
		b.say("warning: %s is in memory, where a sync costs nothing: name a folder on a disk with --dir", b.folder)
	}
	if b.program == "" {
		b.say("building the service")
		if b.program, err = build(b.ctx, b.folder); err != nil {
			return err
		}
	}
	if b.receiver, err = startReceiver(b.ctx, min(b.healthy(), maxHosts)); err != nil {
		return err
	}
	b.client = newClient(b.token, b.clients)
	return b.serving(func(s *service, db *store.DB) error {
		time.Sleep(settle)
		if b.idle, err = readProcess(s.pid()); err != nil {
			return err
		}
		b.say("making %d subscriptions", b.subscriptions)
		if err := subscribe(b.ctx, b.client, b.options, b.receiver); err != nil {
			return err
		}
		_, err := b.put(db, max(b.groups(), warmUp), 0)
		return err
	})
}

// serving runs fn while the service serves the file. db is the file beside it,
// for looking only.
func (b *bench) serving(fn func(s *service, db *store.DB) error) (err error) {
	b.starts++
	s, err := startService(b.ctx, b.program, b.db(), b.token, filepath.Join(b.folder, fmt.Sprintf("service-%d.log", b.starts)), b.env)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop(b.dropDead)) }()
	b.client.base = s.base
	db, err := store.Open(b.ctx, b.db(), store.Options{})
	if err != nil {
		return err
	}
	defer db.Close()
	return fn(s, db)
}

// dropDead makes the service's stop a quick one, after the last phase.
func (b *bench) dropDead() {
	if b.dead > 0 && b.starts > 2 {
		b.receiver.drop()
	}
}
