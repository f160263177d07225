// Command engine serves one model, or runs it once from the command line. It
// never uses the network.
//
// Exit codes: 0 done; 1 something else failed; 2 wrong usage or configuration;
// 3 the model cannot be loaded (not found, invalid, not supported, does not
// fit); 4 the back end failed while computing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"sort"
	"strings"
	"syscall"

	"metalfleet.dev/metalfleet/metal/backends"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/tensor"
)

var version = "unversioned" // set by the linker

const (
	exitOK = iota
	exitFailure
	exitUsage
	exitModel
	exitBackend
)

// usageError is a mistake of whoever called.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// command is one subcommand.
type command struct {
	help string
	run  func(context.Context, *env, []string) error
}

// env is what commands read and write.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

func commands() map[string]command {
	return map[string]command{
		"serve":     {"serve one model on a Unix socket, as the agent wants it", serve},
		"generate":  {"answer one prompt on the terminal", generate},
		"tokenize":  {"turn text on standard input into token ids, or back with --decode", tokenize},
		"logits":    {"print the largest logits behind a list of tokens", logits},
		"template":  {"write a conversation as the model's chat template does", template},
		"embed":     {"turn texts into vectors", embedTexts},
		"rerank":    {"score documents for a query", rerank},
		"footprint": {"estimate the memory that serving a model takes, without loading it", estimate},
		"inspect":   {"say what a model file holds", inspect},
		"convert":   {"write a model as a folder that mlx-lm loads too", convertModel},
		"bench":     {"measure prefill and decode", bench},
		"selftest":  {"find out whether this engine computes right on this machine", examine},
	}
}

func main() {
	debug.SetGCPercent(50) // weights lie outside the Go heap; keep the rest small
	os.Exit(run(os.Args[1:], &env{os.Stdin, os.Stdout, os.Stderr}))
}

func run(args []string, e *env) int {
	if len(args) == 1 && (args[0] == "--version" || args[0] == "-version" || args[0] == "version") {
		fmt.Fprintln(e.stdout, "engine", version)
		return exitOK
	}
	if len(args) == 0 || args[0] == "help" || args[0] == "--help" || args[0] == "-h" {
		usage(e.stderr)
		return exitUsage
	}
	cmd, ok := commands()[args[0]]
	if !ok {
		fmt.Fprintf(e.stderr, "engine: unknown command %q\n", args[0])
		usage(e.stderr)
		return exitUsage
	}
	ctx, stop := context.Background(), func() {}
	if args[0] != "serve" { // serve has its own rules for signals
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	}
	defer stop()
	err := cmd.run(ctx, e, args[1:])
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	fmt.Fprintf(e.stderr, "engine %s: %v\n", args[0], err)
	return exitCode(err)
}

func exitCode(err error) int {
	var u usageError
	var r *engine.Refusal
	switch {
	case errors.As(err, &u):
		return exitUsage
	case errors.As(err, &r):
		if r.Kind == engine.Internal {
			return exitBackend
		}
		return exitFailure
	case engine.IsModelError(err):
		return exitModel
	case errors.Is(err, engine.ErrBackend):
		return exitBackend
	}
	return exitFailure
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "usage: engine COMMAND [flags]; engine COMMAND --help lists the flags; engine --version")
	names := make([]string, 0, len(commands()))
	for n := range commands() {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		fmt.Fprintf(w, "  %-9s %s\n", n, commands()[n].help)
	}
}

// flags makes a flag set; parse refuses what is left over.
func (e *env) flags(name string) *flag.FlagSet {
	f := flag.NewFlagSet("engine "+name, flag.ContinueOnError)
	f.SetOutput(e.stderr)
	return f
}

func parse(f *flag.FlagSet, args []string, required ...string) error {
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	if f.NArg() > 0 {
		return usagef("unexpected argument %q", f.Arg(0))
	}
	var missing []string
	for _, name := range required {
		if f.Lookup(name).Value.String() == "" {
			missing = append(missing, "--"+name)
		}
	}
	if len(missing) > 0 {
		return usagef("missing %s", strings.Join(missing, ", "))
	}
	return nil
}

// modelHelp says what --model takes.
const modelHelp = "GGUF file, or a folder with one, or a folder with config.json and safetensors (required)"

// alwaysJSON takes --json where there is no other form.
func alwaysJSON(f *flag.FlagSet) {
	f.Bool("json", true, "print JSON; there is no other form")
}

// backendFlags are common to all commands that compute.
type backendFlags struct {
	name    *string
	threads *int
}

func addBackend(f *flag.FlagSet) backendFlags {
	names := backends.Names()
	return backendFlags{
		name:    f.String("backend", names[0], "back end that computes: "+strings.Join(names, " or ")),
		threads: f.Int("threads", 0, "threads that compute with ref; 0 means one per processor"),
	}
}

func (b backendFlags) open() (tensor.Backend, error) { return openBackend(*b.name, *b.threads) }

// openBackend opens a back end by name; empty means the best one compiled in.
func openBackend(name string, threads int) (tensor.Backend, error) {
	if threads < 0 {
		return nil, usagef("--threads is %d, want 0 or more", threads)
	}
	b, err := backends.Open(name, backends.Options{Threads: threads})
	if err != nil {
		return nil, usageError{err}
	}
	return b, nil
}
