// Command jpintel is outbound webhooks and billing operations in one binary
// and one SQLite file. `jpintel` without arguments tells what it can do.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // JPINTEL_TIMEZONE must not depend on the image

	"github.com/alecthomas/kong"

	"jpintel/store"
)

// version is set by the linker in a release build.
var version = "dev"

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	syscall.Umask(0o077) // before any file: the database, its side files and backups are the operator's alone
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(exitCode(run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr), os.Stderr))
}

// run is the whole program; tests start it as main does.
func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) error {
	a := &app{getenv: getenv, stdin: stdin, stdout: stdout, stderr: stderr}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	var commands commands
	helped := false
	parser, err := kong.New(&commands, kong.Name("jpintel"), kong.Description(description), kong.Writers(stdout, stderr),
		kong.Exit(func(int) { helped = true }), kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(a),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	if err != nil {
		return fmt.Errorf("building the command line: %w", err) // unreachable: the grammar is a constant
	}
	command, err := parser.Parse(args)
	if helped {
		return nil
	}
	if err != nil {
		return usageError{err}
	}
	if a.config, err = readConfig(getenv); err != nil {
		return err
	}
	a.json = commands.JSON
	if commands.DB != "" {
		a.config.DB = commands.DB
	}
	return command.Run()
}

// usageError is a command line that means nothing.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// errSilent ends a command with status 1 when what went wrong was printed
// already, in the command's own output.
var errSilent = errors.New("failed")

// exitCode says the error, for people, and returns the process's status.
func exitCode(err error, stderr io.Writer) int {
	usage, isUsage := errors.AsType[usageError](err)
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errSilent):
		return exitFailed
	case isUsage:
		fmt.Fprintf(stderr, "jpintel: %v\nTry: jpintel --help\n", usage)
		return exitUsage
	}
	if public, ok := errors.AsType[*store.Error](err); ok && public.Err == nil {
		fmt.Fprintf(stderr, "jpintel: %s\n", public.Message)
	} else {
		fmt.Fprintf(stderr, "jpintel: %v\n", err)
	}
	return exitFailed
}
