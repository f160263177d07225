// Package footprint compares the arithmetic of metal/footprint with the kernel's
// figures: each model is served under the limit that an agent would set, its
// promised context is filled with real requests, and the most that the process
// held is compared with the engine's estimate.
//
// It owns the models, one for every family at least, and the bound: a model that
// is estimated too low would be admitted where it has no room, one that is
// estimated too high would be refused where it has. It refuses to measure a model
// whose promised cache was not filled.
//
// Start reading at Subject, then measure.
package footprint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"

	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/test/bench/proc"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/served"
)

// Subject is `bench footprint`.
func Subject() scenario.Subject {
	s := scenario.Scenario{
		Name: "estimate", Title: "What a model takes, estimated and measured", Rounds: 1, Run: run,
		About: `"engine footprint" and the most that "engine serve" ever held, from the start of its process to the end of requests that fill every
promised token of its cache at once, under the limits that an agent would publish. Held is Pss_Anon + Pss_Shmem + SwapPss, read every 20 ms or
a tenth of the time. MLX computes on the processor here (mlx-cpu in the arithmetic); a Mac's GPU is not measured. Weights and KV are exact on
both sides; the other terms are the arrays of a step, what the back end keeps pooled, and the process itself.`,
	}
	for _, m := range rows(nil) {
		for _, b := range backends(&scenario.Env{}) {
			s.Parts = append(s.Parts, m.name+" on "+b.name)
		}
	}
	return scenario.Subject{Name: "footprint", Help: "estimated and measured memory of every model family", Scenarios: []scenario.Scenario{s}}
}

// The bound of the ratio of estimate to peak.
const least, most = 1.0, 1.25

// backend is a program and what it computes with.
type backend struct {
	program string
	// name that the engine has for it, and the one that the arithmetic has.
	name, arithmetic string
	// slow ones are given little to compute.
	slow bool
}

func backends(e *scenario.Env) []backend {
	return []backend{
		{program: e.Engine, name: "ref", arithmetic: "ref"},
		{program: e.MLXEngine, name: "mlx", arithmetic: "mlx-cpu", slow: true},
	}
}

func run(ctx context.Context, e *scenario.Env, r *report.Report) error {
	for _, m := range rows(e) {
		for _, b := range backends(e) {
			name := m.name + " on " + b.name
			if !e.Wants(name) {
				continue
			}
			path, err := m.open(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			got, err := measure(ctx, m, path, b)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			got.fill(r, name)
			fmt.Fprintf(e.Log, "%s: estimate / peak is %.3f\n", name, got.ratio())
		}
	}
	return nil
}

// open makes a model ready and checks that it is of the family of its row.
func (m row) open(ctx context.Context) (string, error) {
	path, err := m.ready(ctx)
	if err != nil {
		return "", err
	}
	f, err := weights.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if f.Dim.Architecture != m.family {
		return "", fmt.Errorf("%s is a %s, its row has %s", path, f.Dim.Architecture, m.family)
	}
	return path, nil
}

// estimate is what the engine expects to take, in bytes.
type estimate struct {
	Weights   int64 `json:"weightsBytes"`
	KV        int64 `json:"kvBytes"`
	Transient int64 `json:"transientBytes"`
	Pooled    int64 `json:"pooledBytes"`
	Overhead  int64 `json:"overheadBytes"`
	Total     int64 `json:"totalBytes"`
	Limit     int64 `json:"limitBytes"`
	Cache     int64 `json:"cacheLimitBytes"`
}

// measured is one model on one back end, in bytes.
type measured struct {
	promise  promise
	estimate estimate
	// loading is the most that the process held until it was ready, idle what it
	// held then, and peak the most that it ever held.
	loading, idle, peak int64
	// weights and kv are the engine's own figures at their largest.
	weights, kv int64
}

func (m measured) ratio() float64 { return float64(m.estimate.Total) / float64(m.peak) }

func (m measured) fill(r *report.Report, name string) {
	r.Add(name+", estimate / peak", "x", report.Between(least, most), m.ratio())
	e := m.estimate
	for _, term := range []struct {
		name  string
		bytes int64
	}{
		{fmt.Sprintf("peak with %d x %d tokens", m.promise.sequences, m.promise.tokens), m.peak},
		{"estimated weights", e.Weights}, {"estimated KV", e.KV}, {"estimated step", e.Transient}, {"estimated pooled", e.Pooled}, {"estimated process", e.Overhead},
		{"reported weights", m.weights}, {"reported KV", m.kv}, {"loading", m.loading}, {"loaded and idle", m.idle},
	} {
		r.Add(name+", "+term.name, "MB", report.Bound{}, float64(term.bytes)/1e6)
	}
}

// ask runs `engine footprint`.
func ask(ctx context.Context, path string, b backend, p promise) (e estimate, err error) {
	out, err := exec.CommandContext(ctx, b.program, "footprint", "--json", "--model", path, "--backend", b.arithmetic,
		"--context", strconv.Itoa(p.tokens), "--sequences", strconv.Itoa(p.sequences), "--cache-tokens", strconv.Itoa(p.tokens*p.sequences)).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return e, fmt.Errorf("estimate: %w", err)
	}
	if err := json.Unmarshal(out, &e); err != nil {
		return e, fmt.Errorf("estimate: %w", err)
	}
	return e, nil
}

// filled is the least share of the promised KV that has to have been held.
const filled = 0.95

// measure serves a model under its estimate and fills what was promised.
func measure(ctx context.Context, m row, path string, b backend) (out measured, err error) {
	out.promise = m.quick
	if b.slow {
		out.promise = m.slow
	}
	if out.estimate, err = ask(ctx, path, b, out.promise); err != nil {
		return out, err
	}
	var o observer
	e, err := served.Start(ctx, served.Options{
		Program: b.program, Backend: b.name, Model: path, ContextTokens: out.promise.tokens, Sequences: out.promise.sequences,
		LimitBytes: out.estimate.Limit, Started: o.start,
	})
	if err != nil {
		return out, errors.Join(err, o.stop())
	}
	defer func() { err = errors.Join(err, e.Stop()) }()
	out.loading = o.peak.Load()
	if out.idle, err = proc.Footprint(e.PID); err == nil {
		err = o.fill(ctx, e, filling{out.estimate, out.promise, m.reads})
	}
	if err == nil && m.sight != nil {
		err = lookAll(ctx, e, *m.sight)
	}
	if err = errors.Join(err, o.stop()); err != nil {
		return out, err
	}
	out.peak, out.weights, out.kv = o.peak.Load(), o.weights, o.kv
	if float64(out.kv) < filled*float64(out.estimate.KV) {
		return out, fmt.Errorf("the engine held at most %d bytes of KV of the promised %d: the context was not filled", out.kv, out.estimate.KV)
	}
	return out, nil
}
