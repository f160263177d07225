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
	// The options of ref are measured after a short prompt, prefill on a long one.
	shortPrompt, decodeTokens = 64, 24
	longPrompt                = 512
	// MLX's processor back end computes some ten tokens a second: its prompts
	// are shorter, on both sides.
	mlxShortPrompt, mlxTokens = 16, 12
	mlxPrompt                 = 64
	turnsPerRound             = 3
)

// length is a prompt that ref and llama.cpp compute before they decode: its
// tokens, how often in a round, and the least that ref must reach as a share of
// llama.cpp. Prefill counts where it has a bound.
type length struct {
	prompt, turns             int
	leastDecode, leastPrefill float64
}

func lengths() [contextLengths]length {
	return [contextLengths]length{
		{prompt: shortPrompt, turns: turnsPerRound, leastDecode: 0.55},
		{prompt: longPrompt, turns: turnsPerRound, leastDecode: 1, leastPrefill: 1},
		{prompt: 2000, turns: 1, leastDecode: 1},
	}
}

const contextLengths = 3

// streamsAtOnce are decoded in one step, which reads the weights once.
const streamsAtOnce = 8

// side is what one program did in each round, in tokens per second.
type side struct{ prefill, decode []float64 }

// figures are those of one round.
type figures struct{ prefill, decode float64 }

func (s *side) addPrefill(f figures) { s.prefill = append(s.prefill, f.prefill) }
func (s *side) addDecode(f figures)  { s.decode = append(s.decode, f.decode) }

func (s *side) addBoth(f figures) {
	s.addPrefill(f)
	s.addDecode(f)
}

// pair is what ref and llama.cpp did with the same task.
type pair struct{ ref, llama side }

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

// beside measures the model alone, without queue, sampling and text, and the
// peers in the same rounds.
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
	m.versions = llama.Versions
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
	contests := append(m.contests(ref, llama), m.options(ref, coarse, llama)...)
	if m.withMLX = o.mlxEngine != ""; m.withMLX {
		mlxLM, err := startPeer(ctx, peers.MLXLM, folder)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, mlxLM.Stop()) }()
		m.versions = append(m.versions, mlxLM.Versions...)
		mlx, err := load(ctx, o.mlxEngine, "mlx", folder)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, mlx.Stop()) }()
		contests = append(contests, m.mlxContests(mlx, mlxLM)...)
	}
	for n := range o.runs {
		for _, c := range contests {
			if err := c.round(n); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d done\n", n+1, o.runs)
	}
	return nil
}

// contests of ref and llama.cpp: at each length a prompt and the steps after it.
// Short turns take turns often, so that a machine that is slow for a while does
// not decide.
func (m *measurements) contests(ref *loaded, llama *peers.Peer) []contest {
	var all []contest
	for i, l := range lengths() {
		all = append(all, contest{
			name: fmt.Sprintf("ref and llama.cpp, prompt of %d", l.prompt), turns: l.turns, keep: (*side).addBoth, a: &m.lengths[i].ref, b: &m.lengths[i].llama,
			ours:   func() (figures, error) { return ref.measure(l.prompt, decodeTokens) },
			theirs: func() (figures, error) { return peerFigures(llama, 1, l.prompt, decodeTokens) },
		})
	}
	return all
}

// mlxContests decode after a short prompt, and compute a longer one.
func (m *measurements) mlxContests(mlx *loaded, mlxLM *peers.Peer) []contest {
	return []contest{
		{
			name: "mlx and mlx-lm, decode", turns: turnsPerRound, keep: (*side).addDecode, a: &m.mlx, b: &m.mlxLM,
			ours:   func() (figures, error) { return mlx.measure(mlxShortPrompt, mlxTokens) },
			theirs: func() (figures, error) { return peerFigures(mlxLM, 1, mlxShortPrompt, mlxTokens) },
		},
		{
			name: "mlx and mlx-lm, prefill", turns: 1, keep: (*side).addPrefill, a: &m.mlx, b: &m.mlxLM,
			ours:   func() (figures, error) { return mlx.measure(mlxPrompt, 1) },
			theirs: func() (figures, error) { return peerFigures(mlxLM, 1, mlxPrompt, 0) },
		},
	}
}

// options of ref: activations of 8 bits, which llama.cpp always has, and several
// streams in one step, compared with llama.cpp and with one stream.
func (m *measurements) options(ref, coarse *loaded, llama *peers.Peer) []contest {
	decode := func(of *loaded, streams int) func() (figures, error) {
		return func() (figures, error) { return of.measureStreams(streams, shortPrompt, decodeTokens) }
	}
	peer := func(streams int) func() (figures, error) {
		return func() (figures, error) { return peerFigures(llama, streams, shortPrompt, decodeTokens) }
	}
	return []contest{
		{
			name: "ref with 8-bit activations and llama.cpp, decode", turns: turnsPerRound, keep: (*side).addDecode, a: &m.coarse.ref, b: &m.coarse.llama,
			ours: decode(coarse, 1), theirs: peer(1),
		},
		{
			name: "ref and llama.cpp with 8 streams, decode", turns: turnsPerRound, keep: (*side).addDecode, a: &m.streams.ref, b: &m.streams.llama,
			ours: decode(ref, streamsAtOnce), theirs: peer(streamsAtOnce),
		},
		{
			name: "ref with 8 streams and one, decode", turns: turnsPerRound, keep: (*side).addDecode, a: &m.many, b: &m.one,
			ours: decode(ref, streamsAtOnce), theirs: decode(ref, 1),
		},
	}
}

// peerFigures measures a peer; without tokens there is no decode. The decode rate
// is that of all streams together.
func peerFigures(p *peers.Peer, streams, prompt, tokens int) (figures, error) {
	f, err := p.Measure(streams, prompt, tokens)
	if err != nil {
		return figures{}, err
	}
	out := figures{prefill: f.PrefillRate(prompt)}
	if tokens > 0 {
		out.decode = float64(streams) * f.DecodeRate()
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

// measureStreams decodes all streams in one step; the rate is that of all together.
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

// figures of it; an error if the engine measured another task than the one requested.
func (b benched) figures(backend string, streams, prompt int) (figures, error) {
	if b.Backend != backend || b.Streams != streams || b.PromptTokens != prompt || b.PrefillTokensPerSec <= 0 || b.DecodeTokensPerSec <= 0 {
		return figures{}, fmt.Errorf("the engine measured %+v, want %s with %d prompts of %d", b, backend, streams, prompt)
	}
	return figures{b.PrefillTokensPerSec, b.DecodeTokensPerSec}, nil
}
