// Command leaks looks for memory that is not given back: it runs a tiny random
// model on each back end of this build through many ragged forward passes,
// through a fault at every operation of one pass, and through requests that
// are cancelled wherever they stand. After each part the back end must hold
// what it held before, and the process no more than a bound beside it; a step
// may never take more than a formula says.
//
// It owns the measurement and the bounds, and fails on the first breach. It
// measures no speed.
//
//	go run ./test/leaks                          (make test-leaks)
//	bash hack/mlx/go.sh run ./test/leaks         the same with mlx
//
// Start reading at check.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"metalfleet.dev/metalfleet/metal/backends"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

// amounts say how much of each part is run.
type amounts struct {
	passes, cancelled, stopped int
	// settled is after how many passes the process's memory is taken as what it
	// should stay at.
	settled int
}

func main() {
	var n amounts
	flag.IntVar(&n.passes, "passes", 10_000, "forward passes")
	flag.IntVar(&n.cancelled, "cancelled", 1000, "requests to cancel")
	flag.IntVar(&n.stopped, "stopped", 20, "answers to end by a stop string")
	flag.IntVar(&n.settled, "settled", 500, "passes after which the process's memory is taken")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, n); err != nil {
		fmt.Fprintln(os.Stderr, "leaks:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, n amounts) error {
	dir, err := os.MkdirTemp("", "leaks-")
	if err != nil {
		return fmt.Errorf("folder for the model: %w", err)
	}
	defer os.RemoveAll(dir)
	c := shape()
	path := filepath.Join(dir, "tiny.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		return err
	}
	for _, kind := range backends.All() {
		for _, ahead := range variants(kind) {
			s := &subject{kind: kind, ahead: ahead, path: path, config: c, out: out}
			if err := s.check(ctx, n); err != nil {
				return fmt.Errorf("%s: %w", s.name(), err)
			}
		}
	}
	return nil
}

// variants are how a back end is run: ref also a step ahead, as MLX computes
// anyway.
func variants(kind backends.Kind) []bool {
	if kind.Name == "ref" {
		return []bool{false, true}
	}
	return []bool{false}
}

// shape is a model of many small layers, three times as many as a framework is
// told of ahead, so that what each of them keeps shows in the peak of a step. Its arrays of maxTokens rows have sizes that ref does
// not round up.
func shape() tinymodel.Config {
	c := tinymodel.Default()
	c.Family, c.Layers, c.Context = tinymodel.Qwen3, 16, 512
	return c
}

// subject is one back end under test.
type subject struct {
	kind   backends.Kind
	ahead  bool
	path   string
	config tinymodel.Config
	out    io.Writer
	// resident is what the process held when it had settled.
	resident int64
}

func (s *subject) name() string {
	if s.ahead {
		return s.kind.Name + " ahead"
	}
	return s.kind.Name
}

func (s *subject) open(fault func(string) error) tensor.Backend {
	return s.kind.New(backends.Options{Threads: 2, Poison: true, Ahead: s.ahead, Fault: fault})
}

func (s *subject) say(part, format string, args ...any) {
	fmt.Fprintf(s.out, "%-9s %-10s %s\n", s.name(), part, fmt.Sprintf(format, args...))
}

// check runs all parts. Steps that are computed ahead are the engine's affair
// alone.
func (s *subject) check(ctx context.Context, n amounts) error {
	if !s.ahead {
		if err := s.network(ctx, n); err != nil {
			return err
		}
	}
	return s.requests(ctx, n)
}
