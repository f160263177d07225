// Command engine (bench) measures the engine on SmolLM2 and two cores:
// compared with llama.cpp and mlx-lm in the same run, and served, from outside, as
// the agent asks it.
//
// It owns the measurement, its bounds and the record in docs/bench. Every round
// asks each program the same, one after the other and in changing order, and
// the ratio of the two is taken within the round: a machine that is slow for a
// while is slow for both. It fails when a bound is missed, or when a peer is.
//
//	go run ./test/bench/engine        (make bench-engine)
//
// Start reading at run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/bench/peers"
)

// options are the flags.
type options struct {
	engine, mlxEngine, model, out string
	runs                          int
	limit                         time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.engine, "engine", filepath.Join("bin", "engine"), "engine program (make build builds it)")
	flag.StringVar(&o.mlxEngine, "mlx-engine", filepath.Join("bin", "mlx", "engine"), "engine program with MLX (make mlx builds it); empty leaves MLX and mlx-lm out, and writes no record")
	flag.StringVar(&o.model, "model", "", "GGUF file; empty fetches SmolLM2")
	flag.IntVar(&o.runs, "runs", 5, "rounds")
	flag.StringVar(&o.out, "out", filepath.Join("docs", "bench"), "folder for engine.json and engine.md; empty writes none")
	flag.DurationVar(&o.limit, "limit", 40*time.Minute, "most that everything may take")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-engine:", err)
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
	if o.model == "" {
		var err error
		if o.model, err = fetch(ctx); err != nil {
			return err
		}
	}
	r := newReport()
	var m measurements
	if err := m.beside(ctx, o); err != nil {
		return err
	}
	if err := m.alone(ctx, o); err != nil {
		return err
	}
	m.fill(r)
	if !m.withMLX {
		o.out = ""
	}
	return r.Finish(o.out)
}

// fetch gets the real weights and returns their path.
func fetch(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", filepath.Join("hack", "models", "fetch.sh"), "smollm2")
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("fetch the model: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	path := lines[len(lines)-1]
	if path == "" {
		return "", errors.New("fetch the model: no path was printed")
	}
	return path, nil
}

// startPeer installs and starts one.
func startPeer(ctx context.Context, n peers.Name, model string) (*peers.Peer, error) {
	python, err := peers.Install(ctx, ".", n, os.Stderr)
	if err != nil {
		return nil, err
	}
	return peers.Start(ctx, n, peers.Options{Python: python, Root: ".", Model: model, Threads: threads})
}
