// Command delete is the last part of make test-delete: Macs die for good, and
// what was on them is deleted, by a deployment, by a namespace, and by the
// MacNode; and Macs come back to find that nobody wants what they hold.
//
// It owns the table of deletes and the verdict: each ends within 240 s by the
// real timers, with real agents and engines, and afterwards nothing is left of
// it, on the Mac or in the API. All begin at once, each on a Mac of its own, so
// that the 180 s of silence after which a Mac is gone pass once. Processes
// belong to package fleet. What needs other failures, or the operator's clock,
// is in the tests called TestDelete, which make test-delete runs first.
//
// Start reading at deletes, then each of its stories.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/testenv"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

const (
	// limit of each delete.
	limit = 240 * time.Second
	// patience bounds all other waits; three times what a busy two-core machine took.
	patience = 90 * time.Second
)

func main() {
	root := flag.String("root", ".", "folder whose bin holds the programs")
	keep := flag.String("logs", filepath.Join(".run", "delete-failed"), "folder for the logs of a run that failed")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: delete [-root DIR] [-logs DIR]; make test-delete")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *root, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "test-delete:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root, keep string) error {
	if !testenv.HasControllers() {
		return errors.New("kube-controller-manager is not built, and namespaces cannot end without it: unset KUBEBUILDER_ASSETS and run `make build kube`")
	}
	models, err := os.MkdirTemp("", "mf-models-")
	if err != nil {
		return fmt.Errorf("models: %w", err)
	}
	defer os.RemoveAll(models)
	slow := tinymodel.Default()
	slow.Name, slow.Endless, slow.Context = "slow", true, slowContext
	slow.Layers, slow.Hidden, slow.FeedForward, slow.QueryHeads, slow.KVHeads, slow.HeadSize = 4, 256, 768, 8, 4, 32
	for file, config := range map[string]tinymodel.Config{tinyFile: tinymodel.Default(), slowFile: slow} {
		if err := tinymodel.Write(filepath.Join(models, file), config); err != nil {
			return err
		}
	}
	options := fleet.Options{Root: root, ModelRoot: models, Say: func(step string) { fmt.Println("  ", step) }}
	for _, mac := range macs {
		options.Macs = append(options.Macs, fleet.Mac{Name: mac, Chip: "M4Max", Memory: "64Gi"})
	}
	return fleet.With(ctx, options, keep, tryAll)
}

// tryAll tells all stories at once.
func tryAll(ctx context.Context, f *fleet.Fleet) error {
	fmt.Println("   every delete at once, each on a Mac of its own")
	all := deletes()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for n, d := range all {
		wg.Go(func() {
			t := &test{Fleet: f}
			verdict := "ended"
			if err := d.tell(t, ctx); err != nil {
				errs[n] = fmt.Errorf("%s: %w", d.what, err)
				verdict = "FAILED"
			}
			fmt.Printf("   %-72s %-6s after %5.1f s, of %.0f\n", d.what, verdict, t.took.Seconds(), limit.Seconds())
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
