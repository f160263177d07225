// Command load measures how fast the engine loads a model of some gigabytes
// from a disk whose pages nobody has read before, beside plainly reading the
// same files, and how much memory it takes at most.
//
// It owns the random model below .cache/bench, the measurement, its bounds and
// the record in docs/bench. Before each reading it drops the files' pages and
// looks that they are gone; it refuses to measure a reading from memory, and to
// run where the model has no room. Plain reading and each back end take turns,
// and ratios are taken within a round: disks differ from minute to minute.
//
//	go run ./test/bench/load        (make bench-load)
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
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	engine, mlxEngine, dir, out string
	bytes                       int64
	runs                        int
	limit                       time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.engine, "engine", filepath.Join("bin", "engine"), "engine program (make build builds it)")
	flag.StringVar(&o.mlxEngine, "mlx-engine", filepath.Join("bin", "mlx", "engine"), "engine program with MLX (make mlx builds it)")
	flag.StringVar(&o.dir, "dir", filepath.Join(".cache", "bench"), "folder below which the model is written and kept")
	flag.Int64Var(&o.bytes, "bytes", 4e9, "about how large the model is")
	flag.IntVar(&o.runs, "runs", 5, "rounds")
	flag.StringVar(&o.out, "out", filepath.Join("docs", "bench"), "folder for load.json and load.md; empty writes none")
	flag.DurationVar(&o.limit, "limit", 30*time.Minute, "most that everything may take")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-load:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	if o.runs < 1 {
		return fmt.Errorf("%d runs, want at least 1", o.runs)
	}
	model, err := write(o.dir, o.bytes)
	if err != nil {
		return err
	}
	r := newReport()
	m, err := measure(ctx, o, model)
	if err != nil {
		return err
	}
	m.fill(r)
	return r.Finish(o.out)
}
