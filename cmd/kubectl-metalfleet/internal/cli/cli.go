// Package cli is the command tree of the kubectl plugin: flags, requests to the
// API server, printing, exit codes.
//
// It owns the effects. Decisions and drawings are in the packages next to it,
// each pure: inventory (nodes, top), onemac (status, settings), explain (why),
// rehearse (plan), drain, history (rollout), picture (text); front calls the
// gateway and load measures it. It writes only these: a Mac that is to join and
// its token, spec.unschedulable, the settings of a Mac and the request to clear
// its caches, the desired agent version, the fields of a deployment's spec that a
// pause or an undo changes, and the deletion of a replica to drain. The join
// token is the only secret that it prints.
//
// Start reading at Main, then commands for the table of all commands.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

// Exit codes of the program.
const (
	exitOK      = 0
	exitFailed  = 1 // it failed, and standard error says why
	exitUsage   = 2 // the command line is wrong
	exitNoFit   = 3 // plan: it does not fit
	exitUnknown = 4 // plan: unknown, because the source was not inspected yet
)

// Env is all that a command touches of its process.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	// InTerminal and OutTerminal say whether a person sits there.
	InTerminal, OutTerminal bool
	// Size of the terminal at Out.
	Size    func() (width, height int, err error)
	Getenv  func(string) string
	Now     func() time.Time
	Version string
}

// ink colours where a person reads and did not say no.
func (e *Env) ink() picture.Ink {
	return picture.Ink(e.OutTerminal && e.Getenv("NO_COLOR") == "" && e.Getenv("TERM") != "dumb")
}

// usageError is a command line that cannot be meant.
type usageError struct{ error }

// Unwrap returns the cause.
func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// answer is an exit code that is no failure: what there was to say is printed.
type answer int

func (a answer) Error() string { return fmt.Sprintf("exit code %d", int(a)) }

// Quiet silences libraries, which log what the commands say themselves in better
// words. It is for the whole process, once, before anything else.
func Quiet() {
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
}

// Main runs one command line and returns the exit code.
func Main(ctx context.Context, args []string, e Env) int {
	root := newRoot(&e)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var said answer
	var wrong usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &said):
		return int(said)
	case errors.As(err, &wrong):
		fmt.Fprintf(e.Err, "error: %s\nSee `kubectl metalfleet --help`.\n", picture.Lines(err.Error()))
		return exitUsage
	case ctx.Err() != nil:
		fmt.Fprintf(e.Err, "error: interrupted: %s\n", picture.Lines(err.Error()))
		return exitFailed
	default:
		fmt.Fprintf(e.Err, "error: %s\n", picture.Lines(err.Error()))
		return exitFailed
	}
}

// app is what all commands share; a command of several steps is a type of its own around it.
type app struct {
	*Env
	flags  *clusterFlags
	output string
}

// commands is the table of all commands.
func (a *app) commands() []*cobra.Command {
	mac := macCommand{a}
	return []*cobra.Command{
		a.joinToken(), enrolmentCommand{a}.enrolment(), a.nodes(), topCommand{a}.top(), a.why(), planCommand{a}.plan(), a.status(), mac.settings(), mac.clearCache(), mac.cordon(), mac.uncordon(), mac.drain(),
		rolloutCommand{a}.rollout(), upgradeCommand{a}.upgradeAgents(), chatCommand{a}.chat(), benchCommand{a}.bench(), logsCommand{a}.logs(), a.version(),
	}
}

const rootLong = `kubectl metalfleet inspects and operates a fleet of Macs that serve models.

Exit codes: 0 success; 1 failure; 2 invalid command line; plan also uses 3 (does
not fit) and 4 (unknown). The output has no colours if it is not a terminal, or if
NO_COLOR is set.`

func newRoot(e *Env) *cobra.Command {
	a := &app{Env: e, flags: &clusterFlags{}}
	root := &cobra.Command{
		Use: "kubectl-metalfleet", Short: "Inspect and operate a fleet of Macs that serve models", Long: rootLong,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl metalfleet"},
		SilenceErrors: true, SilenceUsage: true, SuggestionsMinimumDistance: 2,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return unknownCommand(c, args[0])
		},
		Args: cobra.ArbitraryArgs,
	}
	root.SetIn(e.In)
	root.SetOut(e.Out)
	root.SetErr(e.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	a.flags.bind(root.PersistentFlags())
	root.AddCommand(a.commands()...)
	return root
}

func unknownCommand(c *cobra.Command, name string) error {
	near := c.SuggestionsFor(name)
	if len(near) > 0 {
		return usagef("unknown command %q; did you mean %s?", name, strings.Join(near, ", "))
	}
	return usagef("unknown command %q", name)
}

// exactly wants n arguments, called what.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s takes %s, got %d", c.CommandPath(), what, len(args))
		}
		return nil
	}
}

// none wants no argument.
func none() cobra.PositionalArgs { return exactly(0, "no arguments") }

// outputFlag adds -o to a command that prints data.
func (a *app) outputFlag(c *cobra.Command) {
	c.Flags().StringVarP(&a.output, "output", "o", "", `output format: "json", or empty for text`)
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveNoFileComp))
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if a.output != "" && a.output != "json" {
			return usagef("--output is %q, want json or an empty string", a.output)
		}
		return run(c, args)
	}
}

func (a *app) json() bool { return a.output == "json" }

// printJSON writes one object for programs.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.Out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func (a *app) version() *cobra.Command {
	c := &cobra.Command{
		Use: "version", Short: "Print the version of this plugin", Args: none(),
		Example:           "  kubectl metalfleet version",
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.RunE = func(*cobra.Command, []string) error {
		if a.json() {
			return a.printJSON(map[string]string{"version": a.Version})
		}
		_, err := fmt.Fprintln(a.Out, "kubectl-metalfleet", a.Version)
		return err
	}
	a.outputFlag(c)
	return c
}
