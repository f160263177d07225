// Command footprint (bench) holds the arithmetic of metal/footprint against
// what the kernel says: for each model at hand it asks the engine for its
// estimate, serves the model under the limit that an agent would set, fills the
// promised context with real requests, and records the most that the process
// held meanwhile.
//
// It owns the measurement, its bounds and the record in docs/bench, and random
// models below .cache/bench/footprint. It refuses to call a model measured
// whose promised cache was not filled. The bound holds for every model: one
// that is estimated too low would be admitted where it has no room, one that is
// estimated too high would be refused where it has.
//
//	go run ./test/bench/footprint        (make bench-footprint)
//
// Start reading at run.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	engine, mlxEngine, dir, out, only string
	limit                             time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.engine, "engine", filepath.Join("bin", "engine"), "engine program (make build builds it)")
	flag.StringVar(&o.mlxEngine, "mlx-engine", filepath.Join("bin", "mlx", "engine"), "engine program with MLX (make mlx builds it)")
	flag.StringVar(&o.dir, "dir", filepath.Join(".cache", "bench", "footprint"), "folder below which random models are written and kept")
	flag.StringVar(&o.out, "out", filepath.Join("docs", "bench"), "folder for footprint.json and footprint.md; empty writes none")
	flag.StringVar(&o.only, "only", "", "regular expression of the names to measure, such as 'tiny.*ref'; empty means all")
	flag.DurationVar(&o.limit, "limit", 2*time.Hour, "most that everything may take")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-footprint:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return fmt.Errorf("folder of models: %w", err)
	}
	var all []measured
	for _, m := range models(o) {
		for _, b := range o.backends() {
			if !only.MatchString(m.name + " on " + b.name) {
				continue
			}
			got, err := measureReady(ctx, m, b)
			if err != nil {
				return fmt.Errorf("%s on %s: %w", m.name, b.name, err)
			}
			fmt.Fprintln(os.Stderr, got)
			all = append(all, got)
		}
	}
	return newReport(all, models(o)).Finish(o.out)
}

// measureReady makes a model ready and measures it.
func measureReady(ctx context.Context, m model, b backend) (measured, error) {
	path, err := m.open(ctx)
	if err != nil {
		return measured{}, err
	}
	return measure(ctx, m, path, b)
}

// backend is a program and what it computes with.
type backend struct {
	program string
	// name that the engine has for it, and the one that the arithmetic has.
	name, arithmetic string
	// slow ones are given little to compute.
	slow bool
}

func (o options) backends() []backend {
	return []backend{
		{program: o.engine, name: "ref", arithmetic: "ref"},
		{program: o.mlxEngine, name: "mlx", arithmetic: "mlx-cpu", slow: true},
	}
}
