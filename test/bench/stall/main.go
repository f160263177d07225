// Command stall measures what a long prompt does to an answer that is already
// streaming, and the answer to the prompt: on the reference, on MLX's processor
// back end, and on mlx-lm's server beside it with the same weights; or, with
// -model, on MLX's GPU back end and mlx-lm's server on the same GPU.
//
// It owns the measurement, its bounds and the record in docs/bench. In each round
// a stream runs alone, a prompt runs alone, and then the same kind of prompt
// comes while such a stream is under way. It refuses a stream that ends before
// the prompt is computed. The peer's figures are beside ours without a bound.
//
//	go run ./test/bench/stall        (make bench-stall; test/bench/gpu/run.sh on a GPU)
//
// Start reading at setting.round.
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
	"slices"
	"strings"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/bench/peers"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/served"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

// options are the flags.
type options struct {
	engine, mlxEngine, out, only string
	model, python, steps         string
	runs                         int
	limit                        time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.engine, "engine", filepath.Join("bin", "engine"), "engine program (make build builds it)")
	flag.StringVar(&o.mlxEngine, "mlx-engine", filepath.Join("bin", "mlx", "engine"), "engine program with MLX (make mlx builds it)")
	flag.StringVar(&o.only, "only", "", "measure this one alone: ref, mlx or mlx-lm's server")
	flag.StringVar(&o.model, "model", "", "folder to serve on a GPU; empty measures SmolLM2 on the processor")
	flag.StringVar(&o.python, "python", "python3", "Python that has mlx-lm for the GPU")
	flag.StringVar(&o.steps, "steps", "", "file for the log of the engine's steps; empty writes none")
	flag.IntVar(&o.runs, "runs", 5, "rounds")
	flag.StringVar(&o.out, "out", filepath.Join("docs", "bench"), "folder for stall.json and stall.md; empty writes none")
	flag.DurationVar(&o.limit, "limit", 60*time.Minute, "most that everything may take")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-stall:", err)
		os.Exit(1)
	}
}

// setting is one server and how long the prompts are that it is asked.
type setting struct {
	name string
	// prompt in tokens, stream the tokens of an answer that runs alone: about as
	// many as come while the prompt is computed, since later tokens look back at
	// more, and one gap in a hundred is the second or the fifth longest. context is
	// the longest request.
	prompt, stream, context int
	// ours is held to the bounds.
	ours bool
	// warm rounds come before those that are measured: a GPU's kernels are
	// compiled when a shape is first computed.
	warm  int
	start starter
	// words that have about so many tokens.
	words func(tokens int) int
}

func settings(o options, gguf, folder string) []setting {
	cpu := func(ctx context.Context) (string, error) { return peers.Install(ctx, ".", peers.MLXLM, os.Stderr) }
	gpu := func(context.Context) (string, error) { return o.python, nil }
	all := []setting{
		{name: "ref", prompt: 2048, stream: 1024, context: 4096, ours: true, start: o.serve(o.engine, "ref", gguf, 4096)},
		{name: "mlx", prompt: 256, stream: 160, context: 4096, ours: true, start: o.serve(o.mlxEngine, "mlx", folder, 4096)},
		{name: "mlx-lm's server", prompt: 256, stream: 160, context: 4096, start: peer(cpu, folder)},
	}
	if o.model != "" {
		all = []setting{
			{name: "mlx", prompt: 8192, stream: 192, context: 16384, ours: true, warm: 1, start: o.serve(o.mlxEngine, "mlx", o.model, 16384)},
			{name: "mlx-lm's server", prompt: 8192, stream: 192, context: 16384, warm: 1, start: peer(gpu, o.model)},
		}
	}
	return slices.DeleteFunc(all, func(s setting) bool { return o.only != "" && o.only != s.name })
}

type starter func(ctx context.Context) (traffic.Target, func() error, error)

func (o options) serve(program, backend, model string, tokens int) starter {
	return func(ctx context.Context) (traffic.Target, func() error, error) {
		e, err := served.Start(ctx, served.Options{Program: program, Backend: backend, Model: model, ContextTokens: tokens, Sequences: 4, PrefixCache: true, Steps: o.steps})
		if err != nil {
			return nil, nil, err
		}
		return traffic.Engine{Client: e.Client}, e.Stop, nil
	}
}

func peer(python func(ctx context.Context) (string, error), folder string) starter {
	return func(ctx context.Context) (traffic.Target, func() error, error) {
		program, err := python(ctx)
		if err != nil {
			return nil, nil, err
		}
		m, err := traffic.StartMLXLM(ctx, program, folder, 4)
		if err != nil {
			return nil, nil, err
		}
		return m, m.Stop, nil
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
	gguf, folder := "", ""
	if o.model == "" {
		work, err := os.MkdirTemp("", "mf-")
		if err != nil {
			return fmt.Errorf("scratch folder: %w", err)
		}
		defer os.RemoveAll(work)
		folder = filepath.Join(work, "model")
		if gguf, err = smollm2(ctx, o.engine, folder); err != nil {
			return err
		}
	}
	r := newReport(o.model)
	for _, s := range settings(o, gguf, folder) {
		f, err := s.measure(ctx, o.runs)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		f.fill(r, s)
	}
	return r.Finish(o.out)
}

// smollm2 fetches the model, a GGUF file, and writes it as a folder too.
func smollm2(ctx context.Context, engine, folder string) (string, error) {
	fetched, err := exec.CommandContext(ctx, "bash", filepath.Join("hack", "models", "fetch.sh"), "smollm2").Output()
	if err != nil {
		return "", fmt.Errorf("fetch the model: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(fetched)), "\n")
	gguf := lines[len(lines)-1]
	if out, err := exec.CommandContext(ctx, engine, "convert", "--model", gguf, "--out", folder).CombinedOutput(); err != nil {
		return "", fmt.Errorf("convert %s: %w\n%s", gguf, err, out)
	}
	return gguf, nil
}

// figures have one value per round, in milliseconds.
type figures struct {
	alone, beside struct{ median, p99, prefill []float64 }
}

// measure starts the server and asks it round by round.
func (s setting) measure(ctx context.Context, rounds int) (f figures, err error) {
	t, stop, err := s.start(ctx)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if s.words, err = traffic.Words(ctx, t); err != nil {
		return f, err
	}
	for n := range s.warm {
		if err := s.round(ctx, t, uint64(rounds+n+1), new(figures)); err != nil {
			return f, fmt.Errorf("warm-up %d: %w", n+1, err)
		}
	}
	for n := range rounds {
		if err := s.round(ctx, t, uint64(n+1), &f); err != nil {
			return f, fmt.Errorf("round %d: %w", n+1, err)
		}
		fmt.Fprintf(os.Stderr, "%s: round %d of %d done\n", s.name, n+1, rounds)
	}
	return f, nil
}

func (s setting) asked(prompt, tokens int, seed uint64) traffic.Request {
	return traffic.Request{Prompt: traffic.Prompt(s.words(prompt), seed), MaxTokens: tokens}
}

// streamPrompt is what the stream continues, in tokens.
const streamPrompt = 24

// round runs a stream alone, a prompt alone, and then a prompt beside a stream.
func (s setting) round(ctx context.Context, t traffic.Target, n uint64, f *figures) error {
	stream := traffic.Ask(ctx, t, s.asked(streamPrompt, s.stream, 100*n))
	if stream.Err != nil {
		return stream.Err
	}
	prompt := traffic.Ask(ctx, t, s.asked(s.prompt, 1, 100*n+1))
	if prompt.Err != nil {
		return prompt.Err
	}
	if prompt.Prompt < s.prompt*9/10 || prompt.Prompt > s.prompt*11/10 {
		return fmt.Errorf("the prompt has %d tokens, want about %d", prompt.Prompt, s.prompt)
	}
	gaps, second, err := s.both(ctx, t, n)
	if err != nil {
		return err
	}
	add := func(to *[]float64, d time.Duration) { *to = append(*to, float64(d.Microseconds())/1000) }
	add(&f.alone.median, traffic.Percentile(stream.Gaps, 50))
	add(&f.alone.p99, traffic.Percentile(stream.Gaps, 99))
	add(&f.alone.prefill, prompt.First)
	add(&f.beside.median, traffic.Percentile(gaps, 50))
	add(&f.beside.p99, traffic.Percentile(gaps, 99))
	add(&f.beside.prefill, second.First)
	return nil
}

// both has a prompt come while a stream is under way. The gaps are those of the
// stream that ended after the prompt was sent and began before it was computed.
func (s setting) both(ctx context.Context, t traffic.Target, n uint64) (gaps []time.Duration, prompt traffic.Answer, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pieces := make(chan time.Time, s.context)
	ended := make(chan error, 1)
	go func() { // until the stream ends or is cancelled: awaited below
		_, tokens, err := t.Ask(ctx, s.asked(streamPrompt, s.context/2, 100*n+2), func() { pieces <- time.Now() })
		close(pieces)
		ended <- fmt.Errorf("the stream ended after %d tokens, before the prompt was computed: %w", tokens, errors.Join(err, errStream))
	}()
	const under = 8 // pieces of the stream before the prompt comes
	var last time.Time
	for range under {
		var ok bool
		if last, ok = <-pieces; !ok {
			return nil, prompt, <-ended
		}
	}
	sent := time.Now()
	prompt = traffic.Ask(ctx, t, s.asked(s.prompt, 1, 100*n+3))
	done := sent.Add(prompt.First)
	var early error
	select {
	case early = <-ended:
	default:
		gaps = collect(pieces, last, sent, done, cancel)
		<-ended
	}
	return gaps, prompt, errors.Join(prompt.Err, early)
}

var errStream = errors.New("want one that lasts longer")

// collect reads the pieces until one came after done, which may be the one that
// the prompt held up longest, and then ends the stream.
func collect(pieces <-chan time.Time, last, sent, done time.Time, end func()) (gaps []time.Duration) {
	for at := range pieces {
		if at.After(sent) && last.Before(done) {
			gaps = append(gaps, at.Sub(last))
		}
		last = at
		if at.After(done) {
			end()
		}
	}
	return gaps
}

// The bounds of the issue.
const (
	mostGap     = 2
	mostPrefill = 3
)

const aboutProcessor = "`make bench-stall`: SmolLM2-135M-Instruct in 4 bits (the GGUF file in Q4_1 on ref; `engine convert` of it for MLX and mlx-lm), served by the engine over\n" +
	"its socket and by mlx-lm's server over HTTP. A stream runs alone, then a prompt alone (2,048 tokens on ref, 256 where MLX computes on the\n" +
	"processor), then such a prompt comes when the eighth token of such a stream has come. Inter-token time is between two pieces of the stream; beside the\n" +
	"prompt those count that lie between its sending and its first token. Prompts are random words, others each time, so that nobody has them cached."

const aboutGPU = "`test/bench/gpu/run.sh`: random weights of the shape %s in 4 bits, served by the engine over its socket and by mlx-lm's server over HTTP, each alone on\n" +
	"an NVIDIA GPU. A stream runs alone, then a prompt of 8,192 tokens alone, then such a prompt comes when the eighth token of such a stream has come.\n" +
	"Inter-token time is between two pieces of the stream; beside the prompt those count that lie between its sending and its first token. Prompts are\n" +
	"random words, others each time, so that nobody has them cached. One round before those that are measured has the kernels compiled."

// newReport of the processor, or of a model on a GPU.
func newReport(model string) *report.Report {
	if model != "" {
		return report.New("stall-gpu", "A stream beside a long prompt on a GPU", fmt.Sprintf(aboutGPU, filepath.Base(model)))
	}
	return report.New("stall", "A stream beside a long prompt", aboutProcessor)
}

// fill adds every figure, with its bound where it is ours.
func (f figures) fill(r *report.Report, s setting) {
	gap, prefill := report.Bound{}, report.Bound{}
	if s.ours {
		gap, prefill = report.Under(mostGap), report.AtMost(mostPrefill)
	}
	r.Add(s.name+", inter-token alone, median", "ms", report.Bound{}, f.alone.median...)
	r.Add(s.name+", inter-token alone, p99", "ms", report.Bound{}, f.alone.p99...)
	r.Add(s.name+", inter-token beside a prompt, median", "ms", report.Bound{}, f.beside.median...)
	r.Add(s.name+", inter-token beside a prompt, p99", "ms", report.Bound{}, f.beside.p99...)
	r.Ratio(s.name+", inter-token p99, beside / alone", gap, f.beside.p99, f.alone.p99)
	r.Add(fmt.Sprintf("%s, prompt of %d alone", s.name, s.prompt), "ms", report.Bound{}, f.alone.prefill...)
	r.Add(fmt.Sprintf("%s, prompt of %d beside a stream", s.name, s.prompt), "ms", report.Bound{}, f.beside.prefill...)
	r.Ratio(s.name+", prompt, beside / alone", prefill, f.beside.prefill, f.alone.prefill)
}
