// Package scenario holds what the subjects of the benchmark program have in
// common: the description of a scenario, the options that all of them obey, the
// rounds in which programs take turns, and the figures computed from them.
//
// It owns the order of turns and the arithmetic between samples: ratios and
// differences are taken within one repetition, so that a machine that is slow
// for a while is slow for both sides. What a turn does belongs to the subjects.
//
// Start reading at Scenario, then Rounds.Run.
package scenario

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/test/bench/report"
)

// Subject is one argument of the benchmark program.
type Subject struct {
	Name, Help string
	// Flags declares the flags of this subject alone; nil declares none.
	Flags     func(*flag.FlagSet)
	Scenarios []Scenario
}

// Scenario is one measurement with a report of its own.
type Scenario struct {
	// Name of the scenario; the report is called SUBJECT-NAME.
	Name string
	// Title and About head the report.
	Title, About string
	// Rounds when -rounds is not given.
	Rounds int
	// GPU scenarios run with -gpu, all others without.
	GPU bool
	// Parts that -only can select; empty if the scenario is one piece.
	Parts []string
	Run   func(ctx context.Context, e *Env, r *report.Report) error
}

// Env is what every scenario gets: the options of the command line.
type Env struct {
	// Engine and MLXEngine are programs: without and with MLX.
	Engine, MLXEngine string
	// Cache is the folder of models that are written once and kept.
	Cache string
	// Python that has mlx-lm for the GPU.
	Python string
	// Logs receives the logs of programs if a run fails.
	Logs string
	// Out is the folder of the reports; empty writes none.
	Out string

	GPU, NoBounds bool
	// Limit bounds each scenario.
	Limit time.Duration

	// Rounds of the current scenario.
	Rounds int
	// Log receives progress.
	Log io.Writer

	rounds   int // as given; 0 leaves it to the scenario
	only     *regexp.Regexp
	current  string // name of the current scenario
	cleanups []func() error
}

// Cleanup runs f when the scenario has ended, the last one first.
func (e *Env) Cleanup(f func() error) { e.cleanups = append(e.cleanups, f) }

// Close runs what Cleanup was given.
func (e *Env) Close() error {
	var errs []error
	for _, f := range slices.Backward(e.cleanups) {
		errs = append(errs, f())
	}
	e.cleanups = nil
	return errors.Join(errs...)
}

// Scratch creates a folder that is removed when the scenario has ended. Its path
// is short enough for sockets.
func (e *Env) Scratch() (string, error) {
	dir, err := os.MkdirTemp("", "mf-")
	if err != nil {
		return "", fmt.Errorf("scratch folder: %w", err)
	}
	e.Cleanup(func() error { return os.RemoveAll(dir) })
	return dir, nil
}

// Flags declares the options and returns the Env that they fill.
func Flags(f *flag.FlagSet) *Env {
	e := &Env{Log: os.Stderr}
	f.StringVar(&e.Engine, "engine", filepath.Join("bin", "engine"), "engine `program` (make build)")
	f.StringVar(&e.MLXEngine, "mlx-engine", filepath.Join("bin", "mlx", "engine"), "engine `program` with MLX (make mlx)")
	f.StringVar(&e.Cache, "cache", filepath.Join(".cache", "bench"), "`folder` for models that are written once and kept")
	f.StringVar(&e.Python, "python", "python3", "`program` that has mlx-lm, with -gpu")
	f.StringVar(&e.Logs, "logs", filepath.Join(".run", "bench-failed"), "`folder` for the logs of a run that failed")
	f.StringVar(&e.Out, "out", filepath.Join("bin", "bench"), "`folder` for reports in JSON and Markdown; empty writes none")
	f.BoolVar(&e.GPU, "gpu", false, "run the scenarios for an NVIDIA GPU (see test/bench/gpu/run.sh)")
	f.BoolVar(&e.NoBounds, "no-bounds", false, "succeed even if a bound is missed")
	f.DurationVar(&e.Limit, "limit", 2*time.Hour, "most `time` that one scenario may take")
	f.IntVar(&e.rounds, "rounds", 0, "`number` of rounds; 0 leaves it to the scenario")
	f.Func("only", "run only the scenarios and parts, as in \"stall ref\", that match a `regexp`", func(s string) (err error) {
		e.only, err = regexp.Compile(s)
		return err
	})
	return e
}

// Wants reports whether -only selects a part of the current scenario.
func (e *Env) Wants(part string) bool {
	return e.only == nil || e.only.MatchString(e.current+" "+part)
}

// Model is a folder in the cache.
func (e *Env) Model(name string) string { return filepath.Join(e.Cache, name) }

func (e *Env) selects(s Scenario) bool {
	if s.GPU != e.GPU {
		return false
	}
	if e.only == nil || e.only.MatchString(s.Name) {
		return true
	}
	return slices.ContainsFunc(s.Parts, func(part string) bool { return e.only.MatchString(s.Name + " " + part) })
}

// Run runs the selected scenarios one after another and writes their reports to
// out. A scenario that fails does not keep the next ones from running.
func (e *Env) Run(ctx context.Context, s Subject, out io.Writer) error {
	if e.rounds < 0 {
		return fmt.Errorf("-rounds is %d, want 0 or more", e.rounds)
	}
	var gpu report.Version
	if e.GPU {
		var err error
		if gpu, err = device(ctx); err != nil {
			return err
		}
	}
	var errs []error
	ran := 0
	for _, c := range s.Scenarios {
		if !e.selects(c) {
			continue
		}
		ran++
		if err := e.one(ctx, s.Name, c, gpu, out); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", s.Name, c.Name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	if ran == 0 {
		errs = append(errs, fmt.Errorf("no scenario of %s was selected (-gpu is %v); run it with -list to see them", s.Name, e.GPU))
	}
	return errors.Join(errs...)
}

// one runs a scenario. What it measured before it failed is reported, too.
func (e *Env) one(ctx context.Context, subject string, s Scenario, gpu report.Version, out io.Writer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, e.Limit, fmt.Errorf("not done within %s", e.Limit))
	defer cancel()
	e.current, e.Rounds = s.Name, s.Rounds
	if e.rounds > 0 {
		e.Rounds = e.rounds
	}
	r := report.New(subject+"-"+s.Name, s.Title, s.About)
	if e.GPU {
		r.Peer(gpu.Name, gpu.Version)
	}
	err := errors.Join(s.Run(ctx, e, r), e.Close())
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	if len(r.Lines) > 0 {
		fmt.Fprintf(out, "%s %s: %s\n\n%s\n", subject, s.Name, s.Title, r.Table())
		if e.Out != "" {
			err = errors.Join(err, r.Write(e.Out))
		}
	}
	if err != nil {
		return err
	}
	if e.NoBounds {
		return r.Unmeasured()
	}
	return r.Judge()
}

// device returns the name of the GPU and the version of its driver.
func device(ctx context.Context) (report.Version, error) {
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").Output()
	if err != nil {
		return report.Version{}, fmt.Errorf("ask nvidia-smi for the GPU (see test/bench/gpu/run.sh): %w", err)
	}
	name, driver, _ := strings.Cut(strings.TrimSpace(string(out)), ",")
	return report.Version{Name: name, Version: "driver " + strings.TrimSpace(driver)}, nil
}
