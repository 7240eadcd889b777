// Command loadtest measures the service on this machine: deliveries a second
// from end to end, how late they are, and what each costs. In the same run it
// measures the bare limit, a plain loop that POSTs the same signed bodies to the
// same receiver, since absolute figures differ from machine to machine and from
// hour to hour: what can be compared is the ratio.
//
//	loadtest ───POST event──▶ jpintel serve ──signed POST──▶ loadtest receiver
//	 (publishes, watches)       (measured)                        ▲
//	                           loadtest bare ──signed POST────────┘
//
// Each box is a process of its own. The service runs as in production, with its
// log at level info and every write synced; only the limits on rates and on a
// day's attempts are lifted, and plain HTTP to this machine is allowed. What has
// to be in the file (--history, --pending, --drain) is written by prefill.go,
// through package store, before the service starts.
//
// A run has one phase, or two where --history or --dead says what is to be
// measured: first without it, then with it, and the ratios of the two.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// options are what a run does.
type options struct {
	subscriptions int
	dead          int
	fanout        int
	events        int
	clients       int
	rate          float64
	programs      bool
	history       int
	pending       int
	sudden        bool
	drain         bool
	bare          int
	runs          int
	timeout       time.Duration
	dir           string
	jpintel       string
	env           []string
	keep          bool
	json          bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "loadtest: %v\n", err)
		os.Exit(1)
	}
}

// run is the whole program; the first argument makes it one of the other boxes.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	switch {
	case len(args) > 0 && args[0] == "receiver":
		return receive(ctx, args[1:], os.Stdin, stdout)
	case len(args) > 0 && args[0] == "bare":
		return runBare(ctx, args[1:], stdout)
	}
	o, err := readOptions(args, stderr)
	if err != nil {
		return err
	}
	report := newReport(o)
	for i := range o.runs {
		fmt.Fprintf(stderr, "run %d of %d\n", i+1, o.runs)
		figures, err := runOnce(ctx, o, stderr)
		if err != nil {
			return err
		}
		report.add(figures)
	}
	return report.write(stdout, o.json)
}

func readOptions(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("loadtest", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() { usage(f) }
	f.IntVar(&o.subscriptions, "subscriptions", 10, "how many subscriptions there are, the dead ones among them")
	f.IntVar(&o.fanout, "fanout", 1, "how many of them each event goes to, in turn; the others filter on another prefecture")
	f.IntVar(&o.events, "events", 20000, "how many events")
	f.IntVar(&o.clients, "clients", 16, "how many clients publish at a time")
	f.Float64Var(&o.rate, "rate", 0, "events a second; 0: as fast as they are acknowledged")
	f.BoolVar(&o.programs, "programs", false, "each event is a new program that is put, state and all; without it, an event of another system's")
	f.IntVar(&o.history, "history", 0, "finished deliveries in the file in the second phase")
	f.IntVar(&o.dead, "dead", 0, "how many subscriptions accept and never answer in the second phase")
	f.IntVar(&o.pending, "pending", 1000, "deliveries due to each dead one")
	f.BoolVar(&o.sudden, "sudden", false, "the dead ones answered until now; without it they are known to be dead")
	f.BoolVar(&o.drain, "drain", false, "no live events: events × fanout deliveries are due when the service starts")
	f.IntVar(&o.bare, "bare", 20000, "requests of the bare loop")
	f.IntVar(&o.runs, "runs", 1, "repeat everything and report min, median and max")
	f.DurationVar(&o.timeout, "timeout", 15*time.Minute, "the longest that one run may take")
	f.StringVar(&o.dir, "dir", "", "a folder on a real disk for the temporary files (default: the system's)")
	f.StringVar(&o.jpintel, "jpintel", "", "the program to measure (default: built from this module)")
	f.Func("env", "NAME=VALUE for the service; may be repeated", func(s string) error { o.env = append(o.env, s); return nil })
	f.BoolVar(&o.keep, "keep", false, "keep the temporary folder: file and logs")
	f.BoolVar(&o.json, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	return o, o.check()
}

func usage(f *flag.FlagSet) {
	fmt.Fprint(f.Output(), `usage: go run ./scripts/loadtest [flags]

Measures the service end to end on this machine, beside a bare loop of the same
signed POSTs. What each figure means and how to repeat the published ones is in
docs/performance.md.

`)
	f.PrintDefaults()
}

func (o *options) check() error {
	switch {
	case runtime.GOOS != "linux":
		return errors.New("needs Linux: it reads /proc and listens on many loopback addresses")
	case o.fanout < 1 || o.dead < 0 || o.fanout > o.healthy():
		return fmt.Errorf("fanout: want 1 to %d, the subscriptions that are not dead", o.healthy())
	case o.subscriptions > 100_000 || o.dead*o.pending > 10_000_000 || o.history > 20_000_000:
		return errors.New("at most 100,000 subscriptions, 10,000,000 pending and 20,000,000 finished deliveries")
	case o.events < 1 || o.events*o.fanout > 10_000_000:
		return errors.New("events: want 1 or more, and at most 10,000,000 deliveries")
	case o.clients < 1 || o.clients > 1024 || o.rate < 0 || o.runs < 1 || o.bare < 2*bareWorkers || o.pending < 0 || o.history < 0:
		return fmt.Errorf("clients: want 1 to 1024; bare: want %d or more; the others: not negative", 2*bareWorkers)
	}
	return nil
}

// healthy is how many subscriptions answer.
func (o *options) healthy() int { return o.subscriptions - o.dead }

// groups is how many sets of subscriptions take the events in turn.
func (o *options) groups() int { return o.healthy() / o.fanout }

// phases are what is measured, in order.
func (o *options) phases() []string {
	if o.history > 0 || o.dead > 0 {
		return []string{phasePlain, phaseLoaded}
	}
	return []string{phasePlain}
}
