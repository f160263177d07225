// Package engine measures the engine: decode and prefill next to llama.cpp and
// mlx-lm, the served engine, loading from disk, and an NVIDIA GPU.
//
// It owns what is asked of both sides, and the bounds. Ours and the peer are
// loaded at once and take turns; ratios are taken within a turn.
//
// Start reading at Subject.
package engine

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/peers"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
)

// Subject is `bench engine`.
func Subject() scenario.Subject {
	bytes := int64(4e9)
	s := scenario.Subject{
		Name: "engine", Help: "decode and prefill next to llama.cpp and mlx-lm, footprint, loading from disk",
		Flags:     func(f *flag.FlagSet) { f.Int64Var(&bytes, "bytes", bytes, "load: about how `large` the model is") },
		Scenarios: []scenario.Scenario{decodeScenario, servedScenario, loadScenario(&bytes)},
	}
	for _, shape := range shapes {
		s.Scenarios = append(s.Scenarios, gpuScenario(shape))
	}
	return s
}

var decodeScenario = scenario.Scenario{
	Name: "decode", Title: "The engine on two threads, next to its peers", Rounds: 5, Parts: []string{"ref", "mlx"}, Run: runDecode,
	About: `SmolLM2-135M-Instruct in 4 bits (the GGUF file in Q4_1; for MLX the same weights as "engine convert" writes them), two
threads. "engine bench" and the peer stay loaded and take turns. Decode at N is the median step after a prompt of N tokens, greedy;
prefill of N is the time from the prompt to its first token. MLX computes on the processor here, about ten tokens per second, so its
prompts are shorter. The rate of several streams is that of all together.`,
}

const threads = "2"

// pair is one of our back ends and its peer.
type pair struct {
	backend string
	peer    peers.Name
	asks    []ask
}

// ask is a prompt and a number of tokens to decode after it, and what the
// ratios to the peer have to be.
type ask struct {
	prompt, tokens, repeat int
	decode, prefill        *report.Bound // nil: not a figure
}

func atLeast(v float64) *report.Bound {
	b := report.AtLeast(v)
	return &b
}

var pairs = []pair{
	{backend: "ref", peer: peers.LlamaCPP, asks: []ask{
		{prompt: 64, tokens: 24, repeat: 3, decode: atLeast(0.55)},
		{prompt: 512, tokens: 24, repeat: 3, decode: atLeast(1), prefill: atLeast(1)},
		{prompt: 2000, tokens: 24, decode: atLeast(1)},
	}},
	{backend: "mlx", peer: peers.MLXLM, asks: []ask{
		{prompt: 16, tokens: 12, repeat: 3, decode: atLeast(0.97)},
		{prompt: 64, prefill: atLeast(0.97)},
	}},
}

// Options of ref: activations of 8 bits, which the peer has as well in its own
// way, and several streams in one step, which reads the weights once.
const (
	shortPrompt, shortTokens = 64, 24
	leastCoarse              = 0.60 // of llama.cpp
	streams, leastOfStreams  = 8, 1.7
)

func runDecode(ctx context.Context, e *scenario.Env, r *report.Report) error {
	gguf, folder, err := models.SmolLM2(ctx, e.Engine, e.Cache)
	if err != nil {
		return err
	}
	var groups []scenario.Group
	var figures []scenario.Figure
	for _, p := range pairs {
		if !e.Wants(p.backend) {
			continue
		}
		program, model := e.Engine, gguf
		if p.backend == "mlx" {
			program, model = e.MLXEngine, folder
		}
		peer, err := startPeer(ctx, p.peer, model)
		if err != nil {
			return err
		}
		e.Cleanup(peer.Stop)
		r.Versions = append(r.Versions, peer.Versions...)
		ours, err := load(ctx, program, p.backend, model)
		if err != nil {
			return err
		}
		e.Cleanup(ours.Stop)
		for _, a := range p.asks {
			groups = append(groups, p.group(a, ours, peer))
			figures = append(figures, p.figures(a)...)
		}
		if p.backend == "ref" {
			coarse, err := load(ctx, program, "ref", model, "--activations", "8bit")
			if err != nil {
				return err
			}
			e.Cleanup(coarse.Stop)
			groups = append(groups, refGroups(ours, coarse, peer)...)
			figures = append(figures, refFigures...)
		}
	}
	return e.Measure(ctx, r, 0, figures, groups...)
}

func (p pair) group(a ask, ours *loaded, peer *peers.Peer) scenario.Group {
	return scenario.Group{
		Name: fmt.Sprintf("%s and %s at %d", p.backend, p.peer, a.prompt), Repeat: a.repeat,
		Turns: []scenario.Turn{ours.turn(p.ours(a), 1, a.prompt, a.tokens), peerTurn(peer, p.theirs(a), 1, a.prompt, a.tokens)},
	}
}

func (p pair) ours(a ask) string   { return fmt.Sprintf("%s %d", p.backend, a.prompt) }
func (p pair) theirs(a ask) string { return fmt.Sprintf("%s %d", p.peer, a.prompt) }

func (p pair) figures(a ask) []scenario.Figure {
	var out []scenario.Figure
	for _, f := range []struct {
		key, name string
		bound     *report.Bound
	}{
		{"decode", fmt.Sprintf("decode at %d", a.prompt), a.decode},
		{"prefill", fmt.Sprintf("prefill of %d", a.prompt), a.prefill},
	} {
		if f.bound == nil {
			continue
		}
		ours, theirs := p.ours(a)+"/"+f.key, p.theirs(a)+"/"+f.key
		out = append(out,
			scenario.Figure{Name: fmt.Sprintf("%s, %s", p.backend, f.name), Unit: "tokens/s", Of: ours},
			scenario.Figure{Name: fmt.Sprintf("%s, %s", p.peer, f.name), Unit: "tokens/s", Of: theirs},
			scenario.Figure{Name: fmt.Sprintf("%s, %s / %s", f.name, p.backend, p.peer), Of: ours, Over: theirs, Bound: *f.bound})
	}
	return out
}

func refGroups(ref, coarse *loaded, llama *peers.Peer) []scenario.Group {
	return []scenario.Group{
		{Name: "8-bit activations", Repeat: 3, Turns: []scenario.Turn{
			coarse.turn("coarse", 1, shortPrompt, shortTokens), peerTurn(llama, "llama.cpp next to coarse", 1, shortPrompt, shortTokens),
		}},
		{Name: "streams", Repeat: 3, Turns: []scenario.Turn{
			ref.turn("many", streams, shortPrompt, shortTokens), ref.turn("one", 1, shortPrompt, shortTokens),
			peerTurn(llama, "llama.cpp many", streams, shortPrompt, shortTokens),
		}},
	}
}

var refFigures = []scenario.Figure{
	{Name: "ref with 8-bit activations, decode", Unit: "tokens/s", Of: "coarse/decode"},
	{Name: "decode, ref with 8-bit activations / llama.cpp", Of: "coarse/decode", Over: "llama.cpp next to coarse/decode", Bound: report.AtLeast(leastCoarse)},
	{Name: fmt.Sprintf("ref, decode of %d streams", streams), Unit: "tokens/s", Of: "many/decode"},
	{Name: fmt.Sprintf("llama.cpp, decode of %d streams", streams), Unit: "tokens/s", Of: "llama.cpp many/decode"},
	{Name: fmt.Sprintf("decode of %d streams, ref / llama.cpp", streams), Of: "many/decode", Over: "llama.cpp many/decode"},
	{Name: fmt.Sprintf("decode, ref with %d streams / with one", streams), Of: "many/decode", Over: "one/decode", Bound: report.AtLeast(leastOfStreams)},
}

func startPeer(ctx context.Context, n peers.Name, model string) (*peers.Peer, error) {
	python, err := peers.Install(ctx, n)
	if err != nil {
		return nil, err
	}
	return peers.Start(ctx, n, python, model, threads)
}

func peerTurn(p *peers.Peer, name string, streams, prompt, tokens int) scenario.Turn {
	return scenario.Turn{Name: name, Run: func(context.Context) (scenario.Values, error) {
		t, err := p.Measure(streams, prompt, tokens)
		if err != nil {
			return nil, err
		}
		v := scenario.Values{}
		if t.Prefill > 0 {
			v["prefill"] = float64(prompt) / t.Prefill
		}
		if tokens > 0 {
			v["decode"] = float64(streams) / t.Step
		}
		return v, nil
	}}
}

// loaded is `engine bench --lines`, which stays loaded as the peers do.
type loaded struct {
	*peers.Program
	backend string
}

// load starts the engine and has it compute once.
func load(ctx context.Context, program, backend, model string, more ...string) (*loaded, error) {
	args := append([]string{"bench", "--lines", "--backend", backend, "--model", model, "--threads", threads}, more...)
	p, err := peers.Launch(ctx, program, args...)
	if err != nil {
		return nil, err
	}
	l := &loaded{p, backend}
	if _, err := l.measure(1, 1, 1); err != nil {
		return nil, errors.Join(err, l.Stop())
	}
	return l, nil
}

// line is what `engine bench --lines` prints.
type line struct {
	Backend      string  `json:"backend"`
	Streams      int     `json:"streams"`
	PromptTokens int     `json:"promptTokens"`
	Prefill      float64 `json:"prefillTokensPerSecond"`
	Decode       float64 `json:"decodeTokensPerSecond"`
	Step         float64 `json:"decodeStepMilliseconds"`
	Host         float64 `json:"hostMilliseconds"`
	CPU          float64 `json:"cpuMilliseconds"`
}

func (l *loaded) measure(streams, prompt, tokens int) (scenario.Values, error) {
	var got line
	if err := l.Ask(streams, prompt, max(1, tokens), &got); err != nil {
		return nil, err
	}
	return got.values(l.backend, streams, prompt)
}

// values checks that the engine measured what it was asked for.
func (l line) values(backend string, streams, prompt int) (scenario.Values, error) {
	if l.Backend != backend || l.Streams != streams || l.PromptTokens != prompt || l.Prefill <= 0 || l.Decode <= 0 {
		return nil, fmt.Errorf("the engine measured %+v, want %s with %d prompts of %d", l, backend, streams, prompt)
	}
	return scenario.Values{"prefill": l.Prefill, "decode": l.Decode, "step": l.Step, "host": l.Host, "cpu": l.CPU}, nil
}

func (l *loaded) turn(name string, streams, prompt, tokens int) scenario.Turn {
	return scenario.Turn{Name: name, Run: func(context.Context) (scenario.Values, error) { return l.measure(streams, prompt, tokens) }}
}
