// Command agent hosts engines on one Mac, as its MacNode orders. "agent join"
// brings the Mac into a fleet, once.
//
// It owns its flags and signals, and nothing else: packages agent and
// agent/join are the program. SIGTERM ends the agent and no engine.
//
// Start reading at run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"
	_ "time/tzdata" // for systems without it

	"github.com/go-logr/logr"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"metalfleet.dev/metalfleet/agent"
	"metalfleet.dev/metalfleet/agent/upgrade"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/logs"
	"metalfleet.dev/metalfleet/api/tracing"
)

// version is set by the linker.
var version = "unversioned"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	syscall.Umask(0o077) // sockets and logs are this user's alone
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	var code exitCode
	switch {
	case errors.As(err, &code):
		os.Exit(int(code))
	case err != nil:
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// exitCode ends the program with a code that says all there is to say.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "join" {
		return runJoin(ctx, args[1:], stdout, stderr)
	}
	f, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if f.version {
		_, err := fmt.Fprintln(stdout, "agent", version)
		return err
	}
	tail := logs.NewTail(agentapi.MaxLogBytes)
	log, debug := newLogger(io.MultiWriter(stderr, tail), f.verbose, f.format)
	program, launched, err := f.enter(log, args)
	if err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	boundHeap()
	klog.SetLogger(log)
	ctrllog.SetLogger(log)
	logs.TakeStandard(slog.New(logr.ToSlogHandler(log.WithName("standard"))))
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, stdlog.Writer())) // a peer can cause any number of its lines
	c, err := f.config(log, launched)
	if err != nil {
		return err
	}
	c.Verbose, c.LogDebug, c.LogTail = f.verbose, debug, tail
	if err := testHooks(&c, os.Getenv); err != nil {
		return err
	}
	if c.Tracer, err = f.traces.New("metalfleet-agent", version, log); err != nil {
		return err
	}
	defer closeTracer(c.Tracer, log)
	a, err := agent.New(c)
	if err != nil {
		return err
	}
	log.Info("Agent started", "version", version, "MacNode", c.Name, "pid", os.Getpid())
	err = errors.Join(a.Run(ctx), a.Close())
	if !a.Upgrading() {
		return err
	}
	log.Info("Agent is exiting so that another version can start", "pid", os.Getpid())
	code, err := a.Restart(program)
	if err != nil {
		return err
	}
	return exitCode(code)
}

// boundHeap sets the collector's memory limit, unless the environment has one.
func boundHeap() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(collectBytes)
	}
}

// enter leaves this process to another version of the agent, where one is to
// run; else it says who started this one.
func (f flags) enter(log logr.Logger, args []string) (upgrade.Program, *upgrade.Launched, error) {
	if f.state == "" {
		return upgrade.Program{}, nil, nil // check refuses that
	}
	path, err := os.Executable()
	if err != nil {
		return upgrade.Program{}, nil, fmt.Errorf("path of this program: %w", err)
	}
	state, err := filepath.Abs(f.state)
	if err != nil {
		return upgrade.Program{}, nil, fmt.Errorf("--state: %w", err)
	}
	p := upgrade.Program{Log: log.WithName("upgrade"), Folder: upgrade.In(state), Version: version, Path: path, Args: args}
	launched, err := p.Enter()
	var ended upgrade.Ended
	if errors.As(err, &ended) {
		return p, nil, exitCode(ended)
	}
	return p, launched, err
}

// closeTracer sends the last traces.
func closeTracer(t *tracing.Tracer, log logr.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := t.Close(ctx); err != nil {
		log.Info("Traces were lost", "reason", err.Error())
	}
}

// newLogger also returns what turns details on and off.
func newLogger(to io.Writer, verbose bool, format logs.Format) (logr.Logger, func(debug bool)) {
	level := &slog.LevelVar{}
	set := func(debug bool) {
		level.Set(slog.LevelInfo)
		if debug {
			level.Set(slog.LevelDebug)
		}
	}
	set(verbose)
	return logr.FromSlogHandler(logs.Bounded(format.Handler(to, level))), set
}

func userAgent() string { return "metalfleet-agent/" + version }
