// Command batch measures several streams at once beside mlx-lm's server, on the
// same weights and in the same run, and then requests that arrive at random
// times at rates around the most that the peer can do.
//
// It owns the measurement, its bounds and the record in docs/bench, the plot
// included. Both servers stay loaded and are asked in turns; ratios are taken
// within a turn. It fails when a bound is missed, or when a peer is.
//
//	go run ./test/bench/batch        (make bench-batch; test/bench/gpu/run.sh on a GPU)
//
// Start reading at run.
package main

import (
	"context"
	"encoding/json"
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
	"metalfleet.dev/metalfleet/test/bench/served"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

// options are the flags.
type options struct {
	engine, program, model, python, out, steps string
	requests, runs                             int
	limit                                      time.Duration
	load                                       load
}

func main() {
	var o options
	flag.StringVar(&o.engine, "engine", filepath.Join("bin", "engine"), "engine program that converts the model (make build builds it)")
	flag.StringVar(&o.program, "program", filepath.Join("bin", "mlx", "engine"), "engine program that is measured (make mlx builds it)")
	flag.StringVar(&o.model, "model", "", "folder to serve on a GPU; empty measures SmolLM2 on the processor")
	flag.StringVar(&o.python, "python", "python3", "Python that has mlx-lm for the GPU")
	flag.StringVar(&o.steps, "steps", "", "file for the log of the engine's steps; empty writes none")
	flag.IntVar(&o.requests, "requests", 16, "requests at each rate, or twice the streams on a GPU")
	flag.IntVar(&o.runs, "runs", 3, "rounds of streams")
	flag.StringVar(&o.out, "out", filepath.Join("docs", "bench"), "folder for batch.json, batch.md, arrivals.json and arrivals.svg (batch-gpu, arrivals-gpu); empty writes none")
	flag.DurationVar(&o.limit, "limit", 60*time.Minute, "most that everything may take")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-batch:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	if o.runs < 1 || o.requests < 1 {
		return fmt.Errorf("%d runs and %d requests, want at least 1", o.runs, o.requests)
	}
	o.load = onGPU
	if o.model == "" {
		o.load = onProcessor
		work, err := os.MkdirTemp("", "mf-")
		if err != nil {
			return fmt.Errorf("scratch folder: %w", err)
		}
		defer os.RemoveAll(work)
		o.model = filepath.Join(work, "model")
		if err := convert(ctx, o.engine, o.model); err != nil {
			return err
		}
	}
	m := measurements{o: o}
	if err := m.measure(ctx); err != nil {
		return err
	}
	if o.out != "" {
		if err := m.keep(); err != nil {
			return err
		}
	}
	r := newReport(o)
	m.fill(r)
	return r.Finish(o.out)
}

// convert writes SmolLM2 as a folder that both read.
func convert(ctx context.Context, engine, folder string) error {
	b, err := exec.CommandContext(ctx, "bash", filepath.Join("hack", "models", "fetch.sh"), "smollm2").Output()
	if err != nil {
		return fmt.Errorf("fetch the model: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	gguf := lines[len(lines)-1]
	if out, err := exec.CommandContext(ctx, engine, "convert", "--model", gguf, "--out", folder).CombinedOutput(); err != nil {
		return fmt.Errorf("convert %s: %w\n%s", gguf, err, out)
	}
	return nil
}

// load is what a machine is asked, and what must hold there.
type load struct {
	// suffix of the record's names.
	suffix string
	// context is the longest request, prompt and tokens those of each.
	context, prompt, tokens int
	// streams at once, and how many tokens a second ours must have at least with
	// so many, in those of the peer.
	streams []int
	least   map[int]float64
	// rates are multiples of what the peer does with the most streams.
	rates []float64
	// sooner is how much sooner than the peer's the first token must come at the
	// last rate, in the nine tenths that come first; 0 asks nothing.
	sooner float64
}

var (
	onProcessor = load{context: 512, prompt: 16, tokens: 16, streams: []int{1, 4, 8}, least: map[int]float64{1: 0.95, 4: 0.95, 8: 0.95}, rates: []float64{0.5, 0.8, 1.1}}
	onGPU       = load{
		suffix: "-gpu", context: 1024, prompt: 128, tokens: 64,
		streams: []int{1, 8, 16, 32}, least: map[int]float64{1: 1, 8: 2, 16: 3.5, 32: 4}, rates: []float64{1, 2, 3}, sooner: 2,
	}
)

func (l load) most() int { return l.streams[len(l.streams)-1] }

// measurements are those of both servers, ours first.
type measurements struct {
	o options
	// speed is tokens a second of so many streams, one value per round.
	speed [2]map[int][]float64
	// arrivals are the figures at each rate.
	arrivals [2][]arrival
	// words that have about so many tokens.
	words func(tokens int) int
	seed  uint64
}

// arrival is a load at one rate.
type arrival struct {
	// Rate of requests a second.
	Rate float64 `json:"requestsPerSecond"`
	traffic.Figures
}

var names = [2]string{"ours", "mlx-lm's server"}

func (m *measurements) measure(ctx context.Context) (err error) {
	l := m.o.load
	e, err := served.Start(ctx, served.Options{Program: m.o.program, Backend: "mlx", Model: m.o.model, ContextTokens: l.context, Sequences: l.most(), PrefixCache: true, Steps: m.o.steps})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Stop()) }()
	python := m.o.python
	if l.suffix == "" {
		if python, err = peers.Install(ctx, ".", peers.MLXLM, os.Stderr); err != nil {
			return err
		}
	}
	peer, err := traffic.StartMLXLM(ctx, python, m.o.model, l.most())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Stop()) }()
	targets := [2]traffic.Target{traffic.Engine{Client: e.Client}, peer}
	if m.words, err = traffic.Words(ctx, targets[0]); err != nil {
		return err
	}
	if l.suffix != "" { // a GPU's kernels are compiled when a shape is first computed
		m.speed = [2]map[int][]float64{{}, {}}
		for _, count := range l.streams {
			if err := m.turn(ctx, targets, 0, count); err != nil {
				return fmt.Errorf("%d streams, warm-up: %w", count, err)
			}
		}
	}
	m.speed = [2]map[int][]float64{{}, {}}
	for n := range m.o.runs {
		for _, count := range l.streams {
			if err := m.turn(ctx, targets, n, count); err != nil {
				return fmt.Errorf("%d streams, round %d: %w", count, n+1, err)
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d done, tokens a second by streams: %s %v, %s %v\n", n+1, m.o.runs, names[0], m.speed[0], names[1], m.speed[1])
	}
	return m.arrive(ctx, targets)
}

// arrive asks both at each rate, at the same times.
func (m *measurements) arrive(ctx context.Context, targets [2]traffic.Target) error {
	l, count := m.o.load, m.o.requests
	if l.suffix != "" {
		count = 2 * l.most()
	}
	capacity := median(m.speed[1][l.most()]) / float64(l.tokens)
	for _, share := range l.rates {
		for i, t := range targets {
			rs := m.requests(count)
			f, err := traffic.Sum(traffic.OpenLoop(ctx, t, rs, traffic.Poisson(share*capacity, len(rs), uint64(count))))
			if err != nil {
				return fmt.Errorf("%s at %.2f requests a second: %w", names[i], share*capacity, err)
			}
			m.arrivals[i] = append(m.arrivals[i], arrival{share * capacity, f})
			fmt.Fprintf(os.Stderr, "%s at %.2f requests a second: %+v\n", names[i], share*capacity, f)
		}
	}
	return nil
}

// turn asks both the same number of streams; who is first changes.
func (m *measurements) turn(ctx context.Context, targets [2]traffic.Target, n, count int) error {
	rs := m.requests(count)
	for i := range targets {
		at := (i + n) % 2
		f, err := traffic.Sum(traffic.Together(ctx, targets[at], rs))
		if err != nil {
			return fmt.Errorf("%s: %w", names[at], err)
		}
		m.speed[at][count] = append(m.speed[at][count], f.TokensPerSecond)
	}
	return nil
}

// requests that nobody has been asked before.
func (m *measurements) requests(count int) []traffic.Request {
	rs := make([]traffic.Request, count)
	for i := range rs {
		m.seed++
		rs[i] = traffic.Request{Prompt: traffic.Prompt(m.words(m.o.load.prompt), m.seed), MaxTokens: m.o.load.tokens}
	}
	return rs
}

// keep writes the figures at each rate, and their plot.
func (m *measurements) keep() error {
	b, err := json.MarshalIndent(map[string][]arrival{names[0]: m.arrivals[0], names[1]: m.arrivals[1]}, "", "  ")
	if err != nil {
		return fmt.Errorf("keep the arrivals: %w", err)
	}
	var curves []traffic.Curve
	for i, name := range names {
		c := traffic.Curve{Name: name}
		for _, a := range m.arrivals[i] {
			c.X, c.Y = append(c.X, a.Rate), append(c.Y, a.TTFT.P90)
		}
		curves = append(curves, c)
	}
	svg := traffic.Plot("Time to the first token, by rate of arrivals", "requests a second", "p90, ms", curves)
	if err := os.MkdirAll(m.o.out, 0o755); err != nil {
		return fmt.Errorf("keep the arrivals: %w", err)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(m.o.out, "arrivals"+m.o.load.suffix+".json"), append(b, '\n'), 0o644),
		os.WriteFile(filepath.Join(m.o.out, "arrivals"+m.o.load.suffix+".svg"), []byte(svg), 0o644),
	)
}
