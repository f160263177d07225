package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"metalfleet.dev/metalfleet/test/bench/served"
)

const (
	// contextTokens keeps the cache small beside the weights.
	contextTokens = 256
	readBytes     = 1 << 20
)

// loaded is what loads of one back end took, round by round.
type loaded struct {
	// placed is the bytes per second until all weights were in place, ready
	// until the engine served. MLX is waited for once: its processor back end
	// computes a token of such a model in a minute.
	placed, ready []float64
	// peak is the most that was ever resident, in bytes, and busy the seconds
	// that processors worked for it.
	peak, busy []float64
}

// measurements are bytes per second in each round.
type measurements struct {
	model    model
	plain    []float64
	ref, mlx loaded
}

// measure has plain reading and the back ends take turns.
func measure(ctx context.Context, o options, m model) (*measurements, error) {
	out := &measurements{model: m}
	turns := []func() error{
		func() error { return out.read(ctx) },
		func() error { return out.load(ctx, served.Options{Program: o.engine, Backend: "ref"}, &out.ref) },
		func() error {
			return out.load(ctx, served.Options{Program: o.mlxEngine, Backend: "mlx", UntilPlaced: len(out.mlx.ready) > 0}, &out.mlx)
		},
	}
	for n := range o.runs {
		for i := range turns {
			if err := turns[(i+n)%len(turns)](); err != nil {
				return nil, fmt.Errorf("round %d: %w", n+1, err)
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d done\n", n+1, o.runs)
	}
	return out, nil
}

// read reads the files front to back, as plainly as can be.
func (m *measurements) read(ctx context.Context) error {
	if err := m.model.drop(); err != nil {
		return err
	}
	buf := make([]byte, readBytes)
	began := time.Now()
	var bytes int64
	for _, path := range m.model.files {
		n, err := readAll(ctx, path, buf)
		if err != nil {
			return fmt.Errorf("read plainly: %w", err)
		}
		bytes += n
	}
	m.plain = append(m.plain, float64(bytes)/time.Since(began).Seconds())
	return nil
}

func readAll(ctx context.Context, path string, buf []byte) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var bytes int64
	for ctx.Err() == nil {
		n, err := f.Read(buf)
		bytes += int64(n)
		if err == io.EOF {
			return bytes, nil
		}
		if err != nil {
			return bytes, err
		}
	}
	return bytes, ctx.Err()
}

// load starts an engine, from its process to Ready, or until its weights are in
// place.
func (m *measurements) load(ctx context.Context, o served.Options, to *loaded) (err error) {
	free, err := available()
	if err != nil {
		return err
	}
	if err := m.model.checkRoom(free); err != nil {
		return err
	}
	if err := m.model.drop(); err != nil {
		return err
	}
	o.Model, o.ContextTokens, o.Sequences = m.model.dir, contextTokens, 1
	e, err := served.Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Stop()) }()
	peak, err := e.Peak()
	if err != nil {
		return err
	}
	busy, err := e.Processor()
	if err != nil {
		return err
	}
	rate := func(d time.Duration) float64 { return float64(m.model.bytes) / d.Seconds() }
	to.placed, to.peak, to.busy = append(to.placed, rate(e.Placed)), append(to.peak, float64(peak)), append(to.busy, busy.Seconds())
	if !o.UntilPlaced {
		to.ready = append(to.ready, rate(e.Ready))
	}
	return nil
}
