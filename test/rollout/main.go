// Command rollout is make test-rollout: the real system, with real agents and
// engines, changes its models under constant load, and no client notices.
//
// It owns the load, the changes and the verdict: with room to surge and without,
// and with an undo in the middle, 0 requests fail and 0 are cut; a revision whose
// weights load and generate no token is halted, and the old one goes on serving.
// Each model has a Mac of its own, so that all stories are told at once.
// Processes belong to package fleet.
//
// Start reading at stories.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

// patience bounds each wait; three times what a busy two-core machine took.
const patience = 90 * time.Second

func main() {
	root := flag.String("root", ".", "folder whose bin holds the programs")
	keep := flag.String("logs", filepath.Join(".run", "rollout-failed"), "folder for the logs of a run that failed")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: rollout [-root DIR] [-logs DIR]; make test-rollout")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *root, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "test-rollout:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root, keep string) error {
	models, err := os.MkdirTemp("", "mf-models-")
	if err != nil {
		return fmt.Errorf("models: %w", err)
	}
	defer os.RemoveAll(models)
	spoilt, slow := tinymodel.Default(), tinymodel.Default()
	spoilt.NormSpread = math.NaN() // it loads, and every score is not a number
	slow.Name, slow.Endless, slow.Context = "slow", true, 2048
	for file, config := range map[string]tinymodel.Config{goodFile: slow, spoiltFile: spoilt} {
		if err := tinymodel.Write(filepath.Join(models, file), config); err != nil {
			return err
		}
	}
	options := fleet.Options{Root: root, ModelRoot: models, Say: func(step string) { fmt.Println("  ", step) }}
	for _, s := range stories() {
		options.Macs = append(options.Macs, fleet.Mac{Name: s.name, Chip: "M4Max", Memory: "64Gi"})
	}
	return fleet.With(ctx, options, keep, tellAll)
}

// tellAll tells all stories at once.
func tellAll(ctx context.Context, f *fleet.Fleet) error {
	fmt.Println("   every change at once, each under load on a Mac of its own")
	all := stories()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for n, s := range all {
		wg.Go(func() {
			t := &test{Fleet: f, name: s.name}
			began := time.Now()
			verdict := "ended"
			if err := s.tell(t, ctx); err != nil {
				errs[n] = fmt.Errorf("%s: %w", s.what, err)
				verdict = "FAILED"
			}
			fmt.Printf("   %-58s %-6s after %5.1f s: %s\n", s.what, verdict, time.Since(began).Seconds(), t.load.sum())
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
