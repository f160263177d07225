// Command scaling is the test behind make test-scaling: a deployment that scales
// itself, on a whole fleet of real processes. It goes to zero, a request that
// finds nothing waits and is served, load brings more replicas, their end takes
// them away again, and the operator is killed in between. No stream may be cut,
// and no request refused.
//
// It owns the load and the verdict; processes belong to package fleet.
//
// Start reading at test.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

// patience bounds each wait; three times what a busy two-core machine took.
const patience = 3 * time.Minute

// contextTokens of the model, and tokens of an answer that takes seconds.
const (
	contextTokens = 4096
	longAnswer    = 1200
)

func main() {
	root := flag.String("root", ".", "folder of the module")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: scaling [-root DIR]; make test-scaling")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *root); err != nil {
		fmt.Fprintln(os.Stderr, "test-scaling:", err)
		os.Exit(1)
	}
	fmt.Println("test-scaling: no stream was cut, no request refused")
}

// run brings a fleet up, tests it, and takes everything back.
func run(ctx context.Context, root string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	scratch, err := os.MkdirTemp("", "mf-scaling-") // a short path, as sockets lie below it
	if err != nil {
		return fmt.Errorf("run folder: %w", err)
	}
	defer os.RemoveAll(scratch)
	models := filepath.Join(scratch, "models")
	if err := writeModel(models); err != nil {
		return err
	}
	hurry, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	f, err := fleet.Start(ctx, fleet.Options{
		Root: root, Dir: filepath.Join(scratch, "run"), ModelRoot: models,
		Macs: []fleet.Mac{{Name: "studio", Chip: "M2Ultra", Memory: "192Gi"}, {Name: "macbook", Chip: "M4Max", Memory: "64Gi"},
			{Name: "mini", Chip: "M4", Memory: "16Gi"}},
		Say: func(step string) { fmt.Println("  ", step) },
	})
	if err != nil {
		return err
	}
	err = test(ctx, f)
	if err != nil && ctx.Err() == nil {
		logs := filepath.Join(root, ".run", "scaling-failed")
		err = errors.Join(err, f.KeepLogs(logs), fmt.Errorf("the logs are in %s", logs))
	}
	return errors.Join(err, f.Stop(hurry))
}

// writeModel makes a model whose long answers take seconds.
func writeModel(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("models: %w", err)
	}
	c := tinymodel.Default()
	c.Name, c.Seed, c.Context, c.Endless = "slow", 2, contextTokens, true
	c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize = 4, 256, 768, 8, 4, 32
	if err := tinymodel.Write(filepath.Join(dir, "slow.gguf"), c); err != nil {
		return fmt.Errorf("models: %w", err)
	}
	return nil
}
