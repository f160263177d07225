// Command crash is the test behind make test-crash: the agent's process is
// killed at each step of a load and of an unload, as a power failure would, and
// started again.
//
// It owns the table of steps and the verdict: the job is finished, no engine is
// lost and none is there twice, freed bytes are counted once, and the ledger is
// what the residents hold. The points come from agent/pool; the agent kills
// itself at one because this program asks it to in its environment.
//
// Start reading at cases, then test.run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

const (
	mac = "studio"
	// modelBytes make an engine's figures large beside its own bookkeeping.
	modelBytes = 64 << 20
	// patience bounds each wait; three times what a busy two-core machine took.
	patience = 90 * time.Second
)

func main() {
	root := flag.String("root", ".", "folder whose bin holds the programs")
	only := flag.String("run", "", "only cases whose name matches this expression")
	keep := flag.String("logs", filepath.Join(".run", "crash-failed"), "folder for the logs of a run that failed")
	flag.Parse()
	wanted, err := regexp.Compile(*only)
	if flag.NArg() > 0 || err != nil {
		fmt.Fprintln(os.Stderr, "usage: crash [-root DIR] [-run EXPRESSION]; make test-crash", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *root, *keep, wanted); err != nil {
		fmt.Fprintln(os.Stderr, "test-crash:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root, keep string, wanted *regexp.Regexp) error {
	models, err := os.MkdirTemp("", "mf-models-")
	if err != nil {
		return fmt.Errorf("models: %w", err)
	}
	defer os.RemoveAll(models)
	if err := tinymodel.Write(filepath.Join(models, "model.gguf"), tinymodel.Large(modelBytes)); err != nil {
		return err
	}
	options := fleet.Options{Root: root, ModelRoot: models, Macs: []fleet.Mac{{Name: mac, Chip: "M2Ultra", Memory: "64Gi"}}}
	return fleet.With(ctx, options, keep, func(ctx context.Context, f *fleet.Fleet) error {
		var errs []error
		done := 0
		for n, c := range cases() {
			if !wanted.MatchString(c.String()) {
				continue
			}
			began := time.Now()
			t := &test{Fleet: f, step: c, model: fmt.Sprintf("model-%02d", n)}
			err := t.run(ctx)
			verdict := "finished after the restart"
			if err != nil {
				verdict = "FAILED: " + err.Error()
				errs = append(errs, fmt.Errorf("%s: %w", c, err))
			}
			fmt.Printf("   %-28s %5.1f s  %s%s\n", c, time.Since(began).Seconds(), verdict, t.said)
			done++
			if err != nil {
				break // the Mac is not as the next case wants it
			}
		}
		if done == 0 {
			errs = append(errs, errors.New("no case matches -run"))
		}
		return errors.Join(errs...)
	})
}
