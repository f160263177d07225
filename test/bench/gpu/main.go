// Command gpu holds the engine on an NVIDIA GPU against mlx-lm on the same one:
// random weights of real shapes, both read the same files, in turns. It owns
// the bounds that issues 4 and 7 set; it refuses to pass where one of them is missed.
//
// Start reading at main; run.sh prepares what it is given.
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
	"slices"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/test/bench/lines"
)

type options struct {
	engine, peer, models, out string
	shapes                    string
	rounds, tokens            int
}

func main() {
	var o options
	flag.StringVar(&o.engine, "engine", "bin/gpu/engine", "engine linked against MLX")
	flag.StringVar(&o.peer, "peer", "test/bench/gpu/peer.py", "mlx-lm's side")
	flag.StringVar(&o.models, "models", ".cache/gpu/work", "folder with a model of each shape")
	flag.StringVar(&o.shapes, "shapes", strings.Join(shapes(), ","), "which to measure; the record keeps what it has of others")
	flag.StringVar(&o.out, "out", "docs/bench", "folder for gpu.json and gpu.md")
	list := flag.Bool("list", false, "say the shapes, one in a line, and end")
	flag.IntVar(&o.rounds, "rounds", 15, "how often both sides measure each thing")
	flag.IntVar(&o.tokens, "tokens", 64, "tokens to decode")
	flag.Parse()
	if *list {
		fmt.Println(strings.Join(shapes(), "\n"))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-gpu:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	r, err := recorded(o.out)
	if err != nil {
		return err
	}
	r.Tokens, r.Rounds = o.tokens, o.rounds
	device, err := gpu(ctx)
	if err != nil {
		return err
	}
	for shape := range strings.SplitSeq(o.shapes, ",") {
		if !slices.Contains(shapes(), shape) {
			return fmt.Errorf("shape %q is unknown, want some of %s", shape, strings.Join(shapes(), ","))
		}
		m, err := measure(ctx, o, shape)
		if err != nil {
			return fmt.Errorf("%s: %w", shape, err)
		}
		m.Date, m.GPU = time.Now().UTC().Format(time.DateOnly), device
		r.keep(m)
		fmt.Fprintf(os.Stderr, "%s: measured\n", shape)
		if err := r.write(o.out); err != nil { // what is measured stays, whatever comes
			return err
		}
	}
	r.print(os.Stdout)
	return r.verdict()
}

// large is the dense shape that bounds of several rows are of.
const large = "qwen3-8b"

// shapes of test/tinymodel that are measured; run.sh asks for them with -list.
func shapes() []string { return []string{"qwen3-0.6b", large, "qwen3-30b-a3b", "qwen3.5-0.8b"} }

// ask is one thing to measure: so many prompts of so many tokens, then steps
// that give each one token more.
type ask struct{ streams, prompt, tokens int }

func (a ask) line() string { return fmt.Sprintf("%d %d %d", a.streams, a.prompt, a.tokens) }

// behind is how many tokens a sequence has where its decoding begins.
const behind = 128

func (o options) decode(streams int) ask { return ask{streams, behind, o.tokens} }

func prefill(tokens int) ask { return ask{1, tokens, 4} }

func lengths() []int { return []int{512, 4096} }
func streams() []int { return []int{1, 8, 16} }

// round is what both sides said once.
type round struct {
	ours map[ask]benched
	peer map[ask]timed
}

// benched is a line of engine bench.
type benched struct {
	Prefill     float64 `json:"prefillTokensPerSecond"`
	Step        float64 `json:"decodeStepMilliseconds"`
	Host        float64 `json:"hostMilliseconds"`
	CPU         float64 `json:"cpuMilliseconds"`
	WeightBytes int64   `json:"weightBytes"`
}

// timed is a line of peer.py, in seconds.
type timed struct {
	Prefill float64 `json:"prefill"`
	Step    float64 `json:"step"`
}

// greeting is what peer.py says first.
type greeting struct {
	MLXLM     string  `json:"mlxLM"`
	MLX       string  `json:"mlx"`
	Device    string  `json:"device"`
	Bandwidth float64 `json:"bandwidth"`
}

// rowsEvery is in how many rounds steps of several rows are measured once: the
// peer's take long.
const rowsEvery = 3

// A shape that is slow is measured in fewer rounds: as many as enough holds,
// and fewest at least.
const (
	enough = 60 * time.Second
	fewest = 7
)

// asks of a round.
func (o options) asks(round int) []ask {
	out := []ask{o.decode(1)}
	for _, n := range lengths() {
		out = append(out, prefill(n))
	}
	if round%rowsEvery == 0 {
		for _, n := range streams()[1:] {
			out = append(out, o.decode(n))
		}
	}
	return out
}

// measure has both sides loaded at once and lets them measure in turns, a few
// tenths of a second each: what the machine does beside is the same for both.
func measure(ctx context.Context, o options, shape string) (m model, err error) {
	m = model{Shape: shape, options: o}
	folder := filepath.Join(o.models, shape)
	ours, err := lines.Start(ctx, o.engine, "bench", "--backend", "mlx", "--model", folder, "--lines")
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, ours.Stop()) }()
	peer, err := lines.Start(ctx, "python3", o.peer, folder)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, peer.Stop()) }()
	if err := peer.Answer(&m.greeting); err != nil {
		return m, err
	}
	began := time.Now()
	for i := range o.rounds + 1 { // the first warms up: the first use of a kernel may compile it
		if i > fewest && time.Since(began) > enough {
			break
		}
		r := round{map[ask]benched{}, map[ask]timed{}}
		for j, a := range o.asks(max(0, i-1)) {
			if err := r.both(a, ours, peer, (i+j)%2 == 0); err != nil {
				return m, fmt.Errorf("round %d: %w", i, err)
			}
		}
		if i > 0 {
			m.rounds = append(m.rounds, r)
		}
	}
	if m.unread, err = unreadBytes(folder); err != nil {
		return m, err
	}
	m.sum()
	return m, nil
}

// slow is an answer that is said, for who wonders what takes so long.
const slow = 20 * time.Second

// both asks both sides the same.
func (r *round) both(a ask, ours, peer *lines.Program, oursFirst bool) error {
	var b benched
	var t timed
	timed := func(who string, p *lines.Program, answer any) func() error {
		return func() error {
			began := time.Now()
			err := p.Ask(a.line(), answer)
			if took := time.Since(began); took > slow {
				fmt.Fprintf(os.Stderr, "%s took %.0f s for %q\n", who, took.Seconds(), a.line())
			}
			return err
		}
	}
	asks := []func() error{timed("we", ours, &b), timed("the peer", peer, &t)}
	if !oursFirst {
		asks[0], asks[1] = asks[1], asks[0]
	}
	for _, f := range asks {
		if err := f(); err != nil {
			return err
		}
	}
	r.ours[a], r.peer[a] = b, t
	return nil
}

func gpu(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").Output()
	if err != nil {
		return "", fmt.Errorf("ask nvidia-smi for the GPU: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// unreadBytes are weights that a step of one row does not read: an embedding
// that is not the head too, of which it takes a row, and the experts that its
// token does not go through.
func unreadBytes(folder string) (int64, error) {
	raw, err := os.ReadFile(filepath.Join(folder, "config.json"))
	if err != nil {
		return 0, err
	}
	type config struct {
		Tied         *bool `json:"tie_word_embeddings"`
		Vocabulary   int64 `json:"vocab_size"`
		Hidden       int64 `json:"hidden_size"`
		Layers       int64 `json:"num_hidden_layers"`
		Experts      int64 `json:"num_experts"`
		PerToken     int64 `json:"num_experts_per_tok"`
		Inner        int64 `json:"moe_intermediate_size"`
		Quantization struct {
			Bits  int64 `json:"bits"`
			Group int64 `json:"group_size"`
		} `json:"quantization"`
	}
	var c struct {
		config
		Text *config `json:"text_config"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return 0, fmt.Errorf("%s: %w", folder, err)
	}
	if c.Text != nil { // of a decoder inside another model, which says how it is quantised
		c.Text.Quantization = c.Quantization
		if c.Text.Tied == nil {
			c.Text.Tied = c.Tied
		}
		c.config = *c.Text
	}
	if c.Tied == nil || c.Quantization.Group == 0 {
		return 0, errors.New("config.json does not say what a step reads")
	}
	weights := c.Layers * (c.Experts - c.PerToken) * 3 * c.Inner * c.Hidden
	if !*c.Tied {
		weights += c.Vocabulary * c.Hidden
	}
	return weights * (c.Quantization.Bits*c.Quantization.Group + 32) / c.Quantization.Group / 8, nil
}
