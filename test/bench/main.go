// Command bench measures metalfleet next to its peers and holds the figures to
// bounds.
//
//	go run ./test/bench SUBJECT [flags]     (make bench SUBJECT=engine ARGS="...")
//
// Each subject is a package with a list of scenarios; each scenario prints a table
// and writes a report in JSON and Markdown. The exit status is 1 if something
// could not be measured or, without -no-bounds, missed its bound.
//
// Start reading at run, then at a subject's package.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"metalfleet.dev/metalfleet/test/bench/engine"
	"metalfleet.dev/metalfleet/test/bench/fleet"
	"metalfleet.dev/metalfleet/test/bench/footprint"
	"metalfleet.dev/metalfleet/test/bench/gateway"
	"metalfleet.dev/metalfleet/test/bench/grammar"
	"metalfleet.dev/metalfleet/test/bench/placement"
	"metalfleet.dev/metalfleet/test/bench/reclaim"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/serving"
)

func subjects() []scenario.Subject {
	return []scenario.Subject{engine.Subject(), serving.Subject(), gateway.Subject(), placement.Subject(), reclaim.Subject(), footprint.Subject(), fleet.Subject(), grammar.Subject()}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return fmt.Errorf("usage: bench SUBJECT [flags]\n%s", help())
	}
	for _, s := range subjects() {
		if s.Name != args[0] {
			continue
		}
		flags := flag.NewFlagSet("bench "+s.Name, flag.ContinueOnError)
		e := scenario.Flags(flags)
		list := flags.Bool("list", false, "print the scenarios and their parts, and stop")
		if s.Flags != nil {
			s.Flags(flags)
		}
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		if flags.NArg() > 0 {
			return fmt.Errorf("unexpected argument %q after the flags", flags.Arg(0))
		}
		if *list {
			printScenarios(out, s)
			return nil
		}
		return e.Run(ctx, s, out)
	}
	return fmt.Errorf("unknown subject %q, want one of\n%s", args[0], help())
}

func help() string {
	var b strings.Builder
	for _, s := range subjects() {
		fmt.Fprintf(&b, "  %-10s %s\n", s.Name, s.Help)
	}
	return b.String()
}

func printScenarios(out io.Writer, s scenario.Subject) {
	for _, c := range s.Scenarios {
		fmt.Fprintf(out, "%s: %s", c.Name, c.Title)
		if c.GPU {
			fmt.Fprint(out, " (with -gpu)")
		}
		fmt.Fprintln(out)
		for _, part := range c.Parts {
			fmt.Fprintln(out, "  "+part)
		}
	}
}
