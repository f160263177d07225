// Package reclaim measures what an eviction gives back and what it costs others:
// on a fleet of real processes an idle engine of more than 500 MB is evicted,
// because its Mac's ceiling is lowered, while another engine streams through the
// gateway.
//
// It owns the models, the stream and the bounds. What it compares with, it reads
// itself: memory and the end of a process from /proc, the status from a watch,
// tokens where the client receives them.
//
// Start reading at Subject, then bench.evict.
package reclaim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/proc"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/fleet"
)

type options struct {
	bytes  int64
	window time.Duration
}

// Subject is `bench reclaim`.
func Subject() scenario.Subject {
	o := options{bytes: 600e6, window: 20 * time.Second}
	return scenario.Subject{
		Name: "reclaim", Help: "memory that an eviction gives back, and its cost for a stream",
		Flags: func(f *flag.FlagSet) {
			f.Int64Var(&o.bytes, "bytes", o.bytes, "about how `large` the evicted model is")
			f.DurationVar(&o.window, "window", o.window, "how long the stream is observed before and after; twice as long on mlx")
		},
		Scenarios: []scenario.Scenario{{
			Name: "eviction", Title: "What an eviction gives back, and what it costs others", Rounds: 5, Parts: []string{"ref", "mlx"},
			Run: func(ctx context.Context, e *scenario.Env, r *report.Report) error { return run(ctx, e, r, o) },
			About: `Real processes on one machine. An idle OnDemand engine with random weights is evicted because its Mac's ceiling is lowered to less
than what is in use, while SmolLM2 streams through the gateway, one short answer after another. Freed bytes are compared with the last reading
of /proc (Pss_Anon + Pss_Shmem + SwapPss) before the agent ended the engine. The status counts from the end of the process, to 20 ms,
to the watch event of the MacNode that holds the reclaim. Gaps between tokens are those that the client sees, in windows of the same
length before and after the ceiling was lowered, in the same stream.`,
		}},
	}
}

const (
	mac = "studio"
	// The models of the Mac's folder: a real one streams, because a random one
	// writes parts of characters, which are held back.
	streamFile = "stream.gguf"
	largeFile  = "large.gguf"
	large      = "large"
	streaming  = "stream"
	// streamContext holds a prompt and answerTokens. Answers are short, so that
	// tokens take as long after as before: with more context they take longer.
	streamContext, answerTokens = 256, 64
	// spare memory, so that the models push no other program out of memory.
	spare = 3 << 30
)

// The bounds.
const (
	freedOff    = 0.01
	statusLimit = 500.0 // ms
	medianLimit = 1.05
	p99Limit    = 1.5
)

func run(ctx context.Context, e *scenario.Env, r *report.Report, o options) error {
	dir, err := filepath.Abs(e.Model("reclaim"))
	if err != nil {
		return err
	}
	if err := writeModels(ctx, dir, o.bytes); err != nil {
		return err
	}
	for _, back := range []struct {
		name, engine string
		// windows: a token takes long on MLX's processor back end, so that too few
		// arrive in one window.
		windows int
	}{{"ref", e.Engine, 1}, {"mlx", e.MLXEngine, 2}} {
		if !e.Wants(back.name) {
			continue
		}
		if err := measure(ctx, e, r, dir, back.name, back.engine, o.window*time.Duration(back.windows)); err != nil {
			return fmt.Errorf("%s: %w", back.name, err)
		}
	}
	return nil
}

// writeModels writes the large model and links the one that streams.
func writeModels(ctx context.Context, dir string, bytes int64) error {
	free, err := proc.Available()
	if err != nil {
		return err
	}
	if want := 2*bytes + spare; free < want {
		return fmt.Errorf("%d bytes of memory are free, want %d", free, want)
	}
	random, err := models.Write(filepath.Join(dir, fmt.Sprintf("large-%d.gguf", bytes)), tinymodel.Large(bytes), nil)
	if err != nil {
		return err
	}
	smol, err := models.Fetch(ctx, "smollm2")
	if err != nil {
		return err
	}
	for name, to := range map[string]string{largeFile: random, streamFile: smol} {
		path := filepath.Join(dir, name)
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		if err := os.Link(to, path); err != nil {
			return fmt.Errorf("link a model: %w", err)
		}
	}
	return nil
}

// measure evicts the large model again and again on a fleet of one Mac.
func measure(ctx context.Context, e *scenario.Env, r *report.Report, dir, backend, engine string, window time.Duration) error {
	program, err := filepath.Abs(engine)
	if err != nil {
		return err
	}
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("the engine is not built, run `make build mlx`: %w", err)
	}
	o := fleet.Options{Root: ".", ModelRoot: dir, Macs: []fleet.Mac{{Name: mac, Chip: "M2Ultra", Memory: "64Gi", Flags: []string{"--engine=" + program}}}}
	return fleet.With(ctx, o, e.Logs, func(ctx context.Context, f *fleet.Fleet) (err error) {
		b := &bench{f, window}
		err = errors.Join(
			f.Deploy(ctx, fleet.Model{Name: streaming, File: streamFile, MaxTokens: streamContext, MaxConcurrentRequests: 1}),
			f.Deploy(ctx, fleet.Model{Name: large, File: largeFile, OnDemand: true, DrainSeconds: 5}))
		if err != nil {
			return err
		}
		return e.Measure(ctx, r, 0, figures(backend), scenario.One(backend, func(ctx context.Context) (scenario.Values, error) {
			t, err := b.evict(ctx)
			return t.values(), err
		}))
	})
}

func figures(backend string) []scenario.Figure {
	of := func(value string) string { return backend + "/" + value }
	return []scenario.Figure{
		{Name: backend + ", /proc before", Unit: "MB", Of: of("read"), Scale: 1e-6},
		{Name: backend + ", freed / /proc", Of: of("freed"), Over: of("read"), Bound: report.Between(1-freedOff, 1+freedOff).Every()},
		{Name: backend + ", ceiling to end of process", Unit: "ms", Of: of("took")},
		{Name: backend + ", end of process to status", Unit: "ms", Of: of("status"), Bound: report.Under(statusLimit).Every()},
		{Name: backend + ", stream, median before", Unit: "ms", Of: of("median before")},
		{Name: backend + ", stream, median after / before", Of: of("median after"), Over: of("median before"), Bound: report.AtMost(medianLimit)},
		{Name: backend + ", stream, p99 after / before", Of: of("p99 after"), Over: of("p99 before"), Bound: report.AtMost(p99Limit)},
		{Name: backend + ", stream, longest gap after", Unit: "ms", Of: of("longest after")},
		{Name: backend + ", stream, longest gap before", Unit: "ms", Of: of("longest before")},
	}
}
