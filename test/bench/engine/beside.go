package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"metalfleet.dev/metalfleet/test/bench/lines"
	"metalfleet.dev/metalfleet/test/bench/peers"
)

const (
	threads = 2
	// decode is measured behind a short prompt, prefill on a long one.
	shortPrompt, decodeTokens = 64, 24
	longPrompt                = 512
	// MLX's processor back end computes some ten tokens a second: its prompts
	// are shorter, on both sides.
	mlxShortPrompt, mlxTokens = 16, 12
	mlxPrompt                 = 64
	turnsPerRound             = 3
)

// streamsAtOnce are decoded in one step, which reads the weights once.
const streamsAtOnce = 8

// side is what one program did in each round, in tokens per second.
type side struct{ prefill, decode []float64 }

// figures are those of one round.
type figures struct{ prefill, decode float64 }

func (s *side) addPrefill(f figures) { s.prefill = append(s.prefill, f.prefill) }
func (s *side) addDecode(f figures)  { s.decode = append(s.decode, f.decode) }

// contest is two programs that are asked the same, round by round, turns times
// a round.
type contest struct {
	name         string
	turns        int
	ours, theirs func() (figures, error)
	keep         func(s *side, f figures)
	a, b         *side
}

// round asks both; who is first changes with the turn.
func (c contest) round(n int) error {
	for i := range 2 * c.turns {
		ask, to := c.ours, c.a
		if (i+i/2+n*c.turns)%2 == 1 {
			ask, to = c.theirs, c.b
		}
		f, err := ask()
		if err != nil {
			return fmt.Errorf("%s, round %d: %w", c.name, n+1, err)
		}
		c.keep(to, f)
	}
	return nil
}

// beside measures the model alone, without queue, sampling and text, beside the
// peers.
func (m *measurements) beside(ctx context.Context, o options) (err error) {
	work, err := os.MkdirTemp("", "mf-")
	if err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	defer os.RemoveAll(work)
	folder := filepath.Join(work, "model")
	if out, err := exec.CommandContext(ctx, o.engine, "convert", "--model", o.model, "--out", folder).CombinedOutput(); err != nil {
		return fmt.Errorf("convert %s: %w\n%s", o.model, err, out)
	}
	llama, err := startPeer(ctx, peers.LlamaCPP, o.model)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, llama.Stop()) }()
	mlxLM, err := startPeer(ctx, peers.MLXLM, folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mlxLM.Stop()) }()
	m.versions = append(llama.Versions, mlxLM.Versions...)
	ref, err := load(ctx, o.engine, "ref", o.model)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ref.Stop()) }()
	coarse, err := load(ctx, o.engine, "ref", o.model, "--activations", "8bit")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, coarse.Stop()) }()
	mlx, err := load(ctx, o.mlxEngine, "mlx", folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mlx.Stop()) }()
	for n := range o.runs {
		for _, c := range append(m.contests(ref, llama, mlx, mlxLM), m.options(ref, coarse, llama)...) {
			if err := c.round(n); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d done\n", n+1, o.runs)
	}
	return nil
}

// contests decode in many short turns, so that a machine that is slow for a
// while does not decide, and compute one prompt a round.
func (m *measurements) contests(ref *loaded, llama *peers.Peer, mlx *loaded, mlxLM *peers.Peer) []contest {
	asks := func(us *loaded, peer *peers.Peer, prompt, tokens int) (ours, theirs func() (figures, error)) {
		return func() (figures, error) { return us.measure(prompt, max(1, tokens)) },
			func() (figures, error) { return peerFigures(peer, prompt, tokens) }
	}
	var all []contest
	for _, c := range []struct {
		name                         string
		us                           *loaded
		peer                         *peers.Peer
		a, b                         *side
		prompt, behind, decodeTokens int
	}{
		{"ref and llama.cpp", ref, llama, &m.ref, &m.llama, longPrompt, shortPrompt, decodeTokens},
		{"mlx and mlx-lm", mlx, mlxLM, &m.mlx, &m.mlxLM, mlxPrompt, mlxShortPrompt, mlxTokens},
	} {
		decode := contest{name: c.name + ", decode", turns: turnsPerRound, keep: (*side).addDecode, a: c.a, b: c.b}
		decode.ours, decode.theirs = asks(c.us, c.peer, c.behind, c.decodeTokens)
		prefill := contest{name: c.name + ", prefill", turns: 1, keep: (*side).addPrefill, a: c.a, b: c.b}
		prefill.ours, prefill.theirs = asks(c.us, c.peer, c.prompt, 0)
		all = append(all, decode, prefill)
	}
	return all
}

// options of ref: activations of 8 bits beside the peer, which has no others,
// and several streams in one step beside one.
func (m *measurements) options(ref, coarse *loaded, llama *peers.Peer) []contest {
	decode := func(of *loaded, streams int) func() (figures, error) {
		return func() (figures, error) { return of.measureStreams(streams, shortPrompt, decodeTokens) }
	}
	return []contest{
		{
			name: "ref with 8-bit activations and llama.cpp, decode", turns: turnsPerRound, keep: (*side).addDecode, a: &m.coarse, b: &m.llamaBesideCoarse,
			ours: decode(coarse, 1), theirs: func() (figures, error) { return peerFigures(llama, shortPrompt, decodeTokens) },
		},
		{
			name: "ref with 8 streams and one, decode", turns: turnsPerRound, keep: (*side).addDecode, a: &m.many, b: &m.one,
			ours: decode(ref, streamsAtOnce), theirs: decode(ref, 1),
		},
	}
}

// peerFigures asks a peer; without tokens there is no decode.
func peerFigures(p *peers.Peer, prompt, tokens int) (figures, error) {
	f, err := p.Measure(prompt, tokens)
	if err != nil {
		return figures{}, err
	}
	out := figures{prefill: f.PrefillRate(prompt)}
	if tokens > 0 {
		out.decode = f.DecodeRate()
	}
	return out, nil
}

// loaded is the engine's own benchmark, kept loaded as the peers are.
type loaded struct {
	*lines.Program
	backend string
}

// load starts it and has it compute once.
func load(ctx context.Context, program, backend, model string, more ...string) (*loaded, error) {
	args := append([]string{"bench", "--lines", "--backend", backend, "--model", model, "--threads", strconv.Itoa(threads)}, more...)
	p, err := lines.Start(ctx, program, args...)
	if err != nil {
		return nil, err
	}
	l := &loaded{p, backend}
	if _, err := l.measure(1, 1); err != nil {
		return nil, errors.Join(err, l.Stop())
	}
	return l, nil
}

func (l *loaded) measure(prompt, tokens int) (figures, error) {
	return l.measureStreams(1, prompt, tokens)
}

// measureStreams decodes so many in one step; the rate is that of all together.
func (l *loaded) measureStreams(streams, prompt, tokens int) (figures, error) {
	var b benched
	if err := l.Ask(fmt.Sprintf("%d %d %d", streams, prompt, tokens), &b); err != nil {
		return figures{}, err
	}
	return b.figures(l.backend, streams, prompt)
}

// benched is what the engine's benchmark prints.
type benched struct {
	Backend             string  `json:"backend"`
	Streams             int     `json:"streams"`
	PromptTokens        int     `json:"promptTokens"`
	PrefillTokensPerSec float64 `json:"prefillTokensPerSecond"`
	DecodeTokensPerSec  float64 `json:"decodeTokensPerSecond"`
}

// figures of it, held against what was asked.
func (b benched) figures(backend string, streams, prompt int) (figures, error) {
	if b.Backend != backend || b.Streams != streams || b.PromptTokens != prompt || b.PrefillTokensPerSec <= 0 || b.DecodeTokensPerSec <= 0 {
		return figures{}, fmt.Errorf("the engine measured %+v, want %s with %d prompts of %d", b, backend, streams, prompt)
	}
	return figures{b.PrefillTokensPerSec, b.DecodeTokensPerSec}, nil
}
