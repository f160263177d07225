// Command reclaim measures what an eviction gives back and what it costs
// others: on a fleet of real processes an idle engine of more than 500 MB is
// evicted, because its Mac's ceiling is lowered, while another engine streams
// real weights through the gateway, one short answer after the other.
//
// It owns the models below .cache/bench, the measurement, its bounds and
// the record in docs/bench. What it compares with, it reads itself: memory from
// /proc, the end of a process from the kernel, the status from a watch of the
// API server, tokens where the client gets them. Both sides of a ratio come
// from one stream. It refuses to run where the large model has no room.
//
//	go run ./test/bench/reclaim        (make bench-reclaim)
//
// Start reading at measure, then bench.trial.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/fleet"
)

// options are the flags.
type options struct {
	root, dir, out, keep string
	stream               string
	only                 string
	rounds, many         int
	bytes                int64
	window, limit        time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "folder whose bin holds the programs")
	flag.StringVar(&o.dir, "dir", filepath.Join(".cache", "bench", "reclaim"), "folder for the models, which are kept")
	flag.StringVar(&o.stream, "stream", filepath.Join(".cache", "models", "smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), "real model that streams (hack/models/fetch.sh smollm2)")
	flag.StringVar(&o.out, "out", filepath.Join("docs", "bench"), "folder for reclaim.json and reclaim.md; empty writes none")
	flag.StringVar(&o.keep, "logs", filepath.Join(".run", "bench-reclaim-failed"), "folder for the logs of a run that failed")
	flag.StringVar(&o.only, "only", "", "one back end alone: ref or mlx")
	flag.IntVar(&o.rounds, "rounds", 5, "evictions for each back end")
	flag.IntVar(&o.many, "many", 10, "engines that go at once")
	flag.Int64Var(&o.bytes, "bytes", 600e6, "about how large the evicted model is")
	flag.DurationVar(&o.window, "window", 20*time.Second, "how long the stream is looked at, before and after; on mlx twice as long")
	flag.DurationVar(&o.limit, "limit", 40*time.Minute, "most that everything may take")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-reclaim:", err)
		os.Exit(1)
	}
}

// backEnd is one way to compute.
type backEnd struct {
	name string
	// program below the root.
	program string
	// windows is how many windows are looked at: where a token takes long, too
	// few come in one.
	windows int
}

func backEnds() []backEnd {
	return []backEnd{
		{"ref", filepath.Join("bin", "engine"), 1},
		{"mlx", filepath.Join("bin", "mlx", "engine"), 2},
	}
}

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	if o.rounds < 1 || o.many < 1 || o.only != "" && o.only != "ref" && o.only != "mlx" {
		return fmt.Errorf("-rounds %d, -many %d and -only %q: want at least 1, and ref or mlx", o.rounds, o.many, o.only)
	}
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return fmt.Errorf("models: %w", err)
	}
	if err := writeModels(o.dir, o.stream, o.bytes); err != nil {
		return err
	}
	r := report.New("reclaim", "What an eviction gives back, and what it costs others", about)
	var failed error
	for _, b := range backEnds() {
		if o.only == "" || o.only == b.name {
			if err := measure(ctx, o, b, r); err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", b.name, err))
			}
		}
	}
	return errors.Join(failed, r.Finish(o.out))
}

// measure runs all trials of one back end on a fleet of one Mac.
func measure(ctx context.Context, o options, be backEnd, r *report.Report) error {
	root, err := filepath.Abs(o.root)
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	program := filepath.Join(root, be.program)
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("its engine is not built, run `make build mlx`: %w", err)
	}
	options := fleet.Options{
		Root: root, ModelRoot: o.dir,
		Macs: []fleet.Mac{{Name: mac, Chip: "M2Ultra", Memory: "64Gi", Flags: []string{"--engine=" + program}}},
	}
	return fleet.With(ctx, options, o.keep, func(ctx context.Context, f *fleet.Fleet) error {
		o.window *= time.Duration(be.windows)
		b := &bench{Fleet: f, options: o, backEnd: be}
		if err := b.deploy(ctx); err != nil {
			return err
		}
		var evictions, deletes, many []trial
		defer func() { fill(r, be.name, o.many, evictions, deletes, many) }() // what was measured stays, whatever fails
		for n := range o.rounds {
			t, err := b.evictLarge(ctx)
			if err != nil {
				return fmt.Errorf("round %d: %w", n+1, err)
			}
			b.say("eviction %d of %d: %s", n+1, o.rounds, t)
			evictions = append(evictions, t)
		}
		t, err := b.deleteLarge(ctx)
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		b.say("delete: %s", t)
		deletes = append(deletes, t)
		if t, err = b.evictMany(ctx); err != nil {
			return fmt.Errorf("%d at once: %w", o.many, err)
		}
		b.say("%d at once: %s", o.many, t)
		many = append(many, t)
		return nil
	})
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s: %s\n", b.name, strings.TrimSpace(fmt.Sprintf(format, args...)))
}
