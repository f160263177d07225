// Command engine (bench) measures a served engine from outside: the real
// program in a process of its own, asked over its socket as the agent asks.
//
// It owns the measurement, its bounds and the record in docs/bench: tokens a
// second while decoding one stream, tokens a second of a prompt of 512, and
// the kernel's footprint against weight bytes and KV. It fails when a bound is
// missed.
//
//	go run ./hack/bench/engine        (make bench-engine)
//
// Start reading at measure.
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
)

func main() {
	program := flag.String("engine", filepath.Join("bin", "engine"), "engine program (make build builds it)")
	model := flag.String("model", "", "model file; empty fetches SmolLM2")
	runs := flag.Int("runs", 5, "runs of each measurement")
	out := flag.String("out", filepath.Join("docs", "bench"), "folder for engine.json and engine.md; empty writes none")
	flag.Parse()
	if err := run(*program, *model, *runs, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench-engine:", err)
		os.Exit(1)
	}
}

func run(program, model string, runs int, out string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if runs < 1 {
		return fmt.Errorf("%d runs, want at least 1", runs)
	}
	if model == "" {
		var err error
		if model, err = fetch(ctx); err != nil {
			return err
		}
	}
	m, err := measure(ctx, program, model, runs)
	if err != nil {
		return err
	}
	r := newReport(m)
	fmt.Print(r.table())
	if out != "" {
		if err := r.write(out); err != nil {
			return err
		}
	}
	return r.judge()
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
