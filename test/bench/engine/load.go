package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/proc"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/served"
)

func loadScenario(bytes *int64) scenario.Scenario {
	return scenario.Scenario{
		Name: "load", Title: "Loading a model from disk", Rounds: 5, Parts: []string{"ref", "mlx"},
		Run: func(ctx context.Context, e *scenario.Env, r *report.Report) error { return runLoad(ctx, e, r, *bytes) },
		About: `A random Llama of about 4 GB in 4 bits (-bytes changes that), its pages dropped from the page cache before each run. Plain
reading is read(2) of 1 MiB at a time. An engine's time counts from the start of its process: "in place" until the last byte of weights is
where it is computed with; "ready" until it serves, after one token went through all weights, which on MLX's processor back end takes longer
than the load and is measured once. Ratios are taken within a round. The peak is VmHWM: everything that was ever resident.`,
	}
}

const (
	loadContext  = 256 // tokens, which keeps the KV small next to the weights
	leastOfPlain = 0.7
	// The most memory that an engine may hold.
	mostWeights = 1.05
	mostMore    = 200e6
	// spare memory, so that a load pushes no other program out of memory.
	spare = 2 << 30
)

func mostMemory(weights int64) int64 { return int64(mostWeights*float64(weights) + mostMore) }

func runLoad(ctx context.Context, e *scenario.Env, r *report.Report, bytes int64) error {
	dir, err := models.Sized(e.Cache, bytes, loadContext)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil {
		return err
	}
	size, err := proc.DropPages(files...)
	if err != nil {
		return err
	}
	l := loading{dir: dir, files: files, bytes: size}
	turns := []scenario.Turn{{Name: "plain", Run: l.read}}
	var parts []string
	for _, back := range []struct{ name, program string }{{"ref", e.Engine}, {"mlx", e.MLXEngine}} {
		if e.Wants(back.name) {
			parts = append(parts, back.name)
			turns = append(turns, l.turn(back.name, back.program))
		}
	}
	samples, err := scenario.Rounds{Count: e.Rounds, Log: e.Log}.Run(ctx, scenario.Group{Name: "load", Turns: turns})
	if err != nil {
		return err
	}
	samples.Set("files/bytes", float64(size))
	samples.Fill(r, loadFigures(size, parts...)...)
	return nil
}

func loadFigures(weights int64, parts ...string) []scenario.Figure {
	peak := report.AtMost(float64(mostMemory(weights)) / 1e6).Every().Of(fmt.Sprintf("%g x weights + %g MB", mostWeights, mostMore/1e6))
	out := []scenario.Figure{
		{Name: "files of weights", Unit: "MB", Of: "files/bytes", Scale: 1e-6},
		{Name: "plain reading", Unit: "MB/s", Of: "plain/rate", Scale: 1e-6},
	}
	for _, p := range parts {
		out = append(out,
			scenario.Figure{Name: p + ", in place", Unit: "MB/s", Of: p + "/placed", Scale: 1e-6},
			scenario.Figure{Name: p + ", in place / plain reading", Of: p + "/placed", Over: "plain/rate", Bound: report.AtLeast(leastOfPlain)},
			scenario.Figure{Name: p + ", ready", Unit: "MB/s", Of: p + "/ready", Scale: 1e-6},
			scenario.Figure{Name: p + ", ready / plain reading", Of: p + "/ready", Over: "plain/rate"},
			scenario.Figure{Name: p + ", processor time", Unit: "s", Of: p + "/cpu"},
			scenario.Figure{Name: p + ", peak", Unit: "MB", Of: p + "/peak", Scale: 1e-6, Bound: peak})
	}
	return out
}

// loading is a model on disk.
type loading struct {
	dir   string
	files []string
	bytes int64
}

// read reads all files from front to back, 1 MiB at a time.
func (l loading) read(context.Context) (scenario.Values, error) {
	if _, err := proc.DropPages(l.files...); err != nil {
		return nil, err
	}
	buf := make([]byte, 1<<20)
	began := time.Now()
	for _, path := range l.files {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buf) // hides methods that ignore buf
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return scenario.Values{"rate": float64(l.bytes) / time.Since(began).Seconds()}, nil
}

// turn loads the model into a new engine. MLX is awaited only in the first
// round, because its processor back end computes a token of such a model in a
// minute.
func (l loading) turn(backend, program string) scenario.Turn {
	untilPlaced := false
	return scenario.Turn{Name: backend, Run: func(ctx context.Context) (scenario.Values, error) {
		o := served.Options{Program: program, Backend: backend, Model: l.dir, ContextTokens: loadContext, Sequences: 1, UntilPlaced: untilPlaced}
		untilPlaced = backend == "mlx"
		return l.load(ctx, o)
	}}
}

func (l loading) load(ctx context.Context, o served.Options) (v scenario.Values, err error) {
	free, err := proc.Available()
	if err != nil {
		return nil, err
	}
	if err := l.checkRoom(free); err != nil {
		return nil, err
	}
	if _, err := proc.DropPages(l.files...); err != nil {
		return nil, err
	}
	e, err := served.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Stop()) }()
	peak, err := proc.Peak(e.PID)
	if err != nil {
		return nil, err
	}
	cpu, err := proc.CPUTime(e.PID)
	if err != nil {
		return nil, err
	}
	v = scenario.Values{"placed": float64(l.bytes) / e.Placed.Seconds(), "peak": float64(peak), "cpu": cpu.Seconds()}
	if !o.UntilPlaced {
		v["ready"] = float64(l.bytes) / e.Ready.Seconds()
	}
	return v, nil
}

func (l loading) checkRoom(free int64) error {
	if want := mostMemory(l.bytes) + spare; free < want {
		return fmt.Errorf("%d bytes of memory are free, want %d to load %s", free, want, l.dir)
	}
	return nil
}
