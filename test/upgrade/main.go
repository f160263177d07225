// Command upgrade is the test behind make test-upgrade: twenty answers stream
// through the gateway from two Macs while their agents are replaced, one Mac
// after the other, and then by two builds that do not work.
//
// It owns the builds, the server that gives them out, the streams and the
// verdict: no stream fails or is cut in any of the three upgrades, one Mac at a
// time is away, engines are the same processes before and after, and what does
// not work is taken back and said. Processes belong to package fleet.
//
// Start reading at run, then test.good and test.bad.
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

const (
	model = "story"
	// context of the model; an answer of full length takes many seconds with
	// ten beside it.
	modelContext = 4096
	// streams at once over both Macs.
	streams = 20
	// patience bounds each wait; three times what a busy two-core machine took.
	patience = 6 * time.Minute
)

func main() {
	root := flag.String("root", ".", "folder of the module, whose bin holds the programs")
	keep := flag.String("logs", filepath.Join(".run", "upgrade-failed"), "folder for the logs of a run that failed")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: upgrade [-root DIR] [-logs DIR]; make test-upgrade")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *root, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "test-upgrade:", err)
		os.Exit(1)
	}
}

// run makes the builds, brings a fleet up, and tests it.
func run(ctx context.Context, root, keep string) (err error) {
	scratch, err := os.MkdirTemp("", "mf-upgrade-")
	if err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	fmt.Println("   builds: the same source under another version, and two that do not work")
	r, err := newReleases(ctx, root, scratch)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	models := filepath.Join(scratch, "models")
	if err := os.Mkdir(models, 0o755); err != nil {
		return fmt.Errorf("models: %w", err)
	}
	c := tinymodel.Default()
	c.Name, c.Seed, c.Context, c.Endless = model, 2, modelContext, true
	c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize = 4, 256, 768, 8, 4, 32
	if err := tinymodel.Write(filepath.Join(models, "story.gguf"), c); err != nil {
		return err
	}
	env, flags := []string{"SSL_CERT_FILE=" + r.roots}, []string{"--allow-source-cidr=127.0.0.0/8"}
	options := fleet.Options{Root: root, ModelRoot: models, Say: func(s string) { fmt.Println("  ", s) }, Macs: []fleet.Mac{
		{Name: "macbook", Chip: "M4Max", Memory: "64Gi", Flags: flags, Env: env},
		{Name: "studio", Chip: "M2Ultra", Memory: "192Gi", Flags: flags, Env: env},
	}}
	return fleet.With(ctx, options, keep, func(ctx context.Context, f *fleet.Fleet) error {
		t := &test{Fleet: f, releases: r, macs: []string{"macbook", "studio"}}
		if err := t.deploy(ctx); err != nil {
			return err
		}
		if err := t.good(ctx); err != nil {
			return fmt.Errorf("an upgrade to a good build: %w", err)
		}
		for _, b := range []bad{{"test-exits", "exit", "exit code 1"}, {"test-hangs", "hang", "not ready within"}} {
			if err := t.bad(ctx, b); err != nil {
				return fmt.Errorf("an upgrade to a build that will %s: %w", b.mode, err)
			}
		}
		return nil
	})
}
