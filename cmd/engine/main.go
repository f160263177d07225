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

// usageError is a mistake in the command line.
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
		"serve":     {"serve one model on a Unix socket; started by the agent", serve},
		"generate":  {"answer one prompt on the terminal", generate},
		"tokenize":  {"convert text on standard input to token IDs, or back with --decode", tokenize},
		"logits":    {"print the largest logits after a list of tokens", logits},
		"template":  {"render a conversation with the model's chat template", template},
		"embed":     {"compute embeddings of texts", embedTexts},
		"rerank":    {"score documents for a query", rerank},
		"footprint": {"estimate the memory needed to serve a model, without loading it", estimate},
		"inspect":   {"describe the contents of a model file", inspect},
		"convert":   {"convert a model to a folder that mlx-lm can load", convertModel},
		"quantize":  {"quantise a model to a folder that mlx-lm can load", quantizeModel},
		"bench":     {"measure prefill and decode speed", bench},
		"selftest":  {"check that this engine computes correctly on this machine", examine},
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

// modelHelp describes the values of --model.
const modelHelp = "GGUF file, or a folder that contains one, or a folder with config.json and safetensors (required)"

// alwaysJSON takes --json where there is no other form.
func alwaysJSON(f *flag.FlagSet) {
	f.Bool("json", true, "print JSON; this is the only format")
}

// backendFlags are common to all commands that compute.
type backendFlags struct {
	name    *string
	threads *int
	// activations is nil for commands that judge how right a back end is.
	activations *string
}

func addBackend(f *flag.FlagSet) backendFlags {
	b := addExactBackend(f)
	b.activations = f.String("activations", float32Activations,
		"format to which ref rounds activations before multiplying with quantised weights: "+float32Activations+", or "+eightBitActivations+", which is faster but less accurate")
	return b
}

func addExactBackend(f *flag.FlagSet) backendFlags {
	names := backends.Names()
	return backendFlags{
		name:    f.String("backend", names[0], "compute back end: "+strings.Join(names, " or ")),
		threads: f.Int("threads", 0, "number of compute threads of ref; 0 means one per processor"),
	}
}

func (b backendFlags) open() (tensor.Backend, error) {
	activations := ""
	if b.activations != nil {
		activations = *b.activations
	}
	return openBackend(*b.name, *b.threads, activations)
}

// What activations may be; empty means float32.
const (
	float32Activations  = "float32"
	eightBitActivations = "8bit"
)

// openBackend opens a back end by name; empty means the best one compiled in.
func openBackend(name string, threads int, activations string) (tensor.Backend, error) {
	if threads < 0 {
		return nil, usagef("--threads is %d, want 0 or more", threads)
	}
	switch activations {
	case "", float32Activations, eightBitActivations:
	default:
		return nil, usagef("--activations is %q, want %s or %s", activations, float32Activations, eightBitActivations)
	}
	b, err := backends.Open(name, backends.Options{Threads: threads, EightBitActivations: activations == eightBitActivations})
	if err != nil {
		return nil, usageError{err}
	}
	return b, nil
}
