// Command fuzz runs every fuzz target of the module, one after the other, each
// for a stated time, and prints what it did: executions, new interesting
// inputs, seconds. An input that a target fails on is a finding: go test saves
// it below the package's testdata/fuzz, where it is committed with the fix and
// run by every go test from then on.
//
// It owns which targets there are: it finds `func Fuzz` in the test files that
// this machine would compile, so that nobody keeps a list. It refuses (exit 1)
// findings, targets that do not compile, and a run without any target.
//
// Start reading at run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"time"
)

func main() {
	var o options
	flag.DurationVar(&o.time, "time", 30*time.Second, "how long each target runs")
	flag.IntVar(&o.workers, "workers", 2, "how many inputs are tried at once")
	only := flag.String("run", "", "only the targets whose package and name match, such as metal/chat.*FuzzRender")
	flag.Parse()
	var err error
	if o.only, err = regexp.Compile(*only); err != nil || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: fuzz [-time 30s] [-workers 2] [-run REGEXP]")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, ".", o, goTest); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

type options struct {
	time    time.Duration
	workers int
	only    *regexp.Regexp
}

var errFindings = errors.New("findings; fix what they show and commit the inputs")

// run fuzzes each target with tool and prints a line for it.
func run(ctx context.Context, root string, o options, tool func(context.Context, target, options) (string, error)) error {
	targets, err := list(root)
	if err != nil {
		return err
	}
	ran, failed := 0, 0
	for _, t := range targets {
		if !o.only.MatchString(t.String()) {
			continue
		}
		ran++
		began := time.Now()
		output, err := tool(ctx, t, o)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r := read(output)
		fmt.Printf("%-55s %10d executions %5d new interesting %6.0f s\n", t, r.executions, r.interesting, time.Since(began).Seconds())
		if err != nil || r.saved != "" {
			failed++
			report(t, r, output, err)
		}
	}
	switch {
	case ran == 0:
		return errors.New("no target was found")
	case failed > 0:
		return fmt.Errorf("%d of %d targets have %w", failed, ran, errFindings)
	}
	fmt.Printf("%d targets, no finding\n", ran)
	return nil
}

// report says what a target failed on, and where the input is.
func report(t target, r result, output string, err error) {
	fmt.Println(output)
	if r.saved == "" {
		fmt.Printf("%s failed without an input: %v\n", t, err)
		return
	}
	fmt.Printf("%s fails on an input, saved as %s/%s\n", t, t.dir, r.saved)
}
