package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"metalfleet.dev/metalfleet/hack/bench/peers"
)

const (
	threads = 2
	// decode is measured behind a short prompt, prefill on a long one.
	shortPrompt, decodeTokens = 64, 64
	longPrompt                = 512
	// MLX's processor back end computes some ten tokens a second: its prefill
	// is measured on the short prompt, on both sides.
	mlxPrompt, mlxTokens = 64, 32
)

// side is what one program did in each round, in tokens per second.
type side struct{ prefill, decode []float64 }

// figures are those of one round.
type figures struct{ prefill, decode float64 }

func (s *side) add(f figures) {
	s.prefill, s.decode = append(s.prefill, f.prefill), append(s.decode, f.decode)
}

// contest is two programs that are asked the same, round by round.
type contest struct {
	name         string
	ours, theirs func(ctx context.Context) (figures, error)
	a, b         *side
}

// round asks both; who is first changes with the round.
func (c contest) round(ctx context.Context, n int) error {
	for turn := range 2 {
		ask, to := c.ours, c.a
		if (turn+n)%2 == 1 {
			ask, to = c.theirs, c.b
		}
		f, err := ask(ctx)
		if err != nil {
			return fmt.Errorf("%s, round %d: %w", c.name, n+1, err)
		}
		to.add(f)
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
	for n := range o.runs {
		for _, c := range m.contests(o, folder, llama, mlxLM) {
			if err := c.round(ctx, n); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d done\n", n+1, o.runs)
	}
	return nil
}

func (m *measurements) contests(o options, folder string, llama, mlxLM *peers.Peer) []contest {
	return []contest{
		{
			name: "ref and llama.cpp", a: &m.ref, b: &m.llama,
			ours: func(ctx context.Context) (f figures, err error) {
				if f, err = bench(ctx, o.engine, "ref", o.model, shortPrompt, decodeTokens, 1); err != nil {
					return f, err
				}
				long, err := bench(ctx, o.engine, "ref", o.model, longPrompt, 1, 2)
				f.prefill = long.prefill
				return f, err
			},
			theirs: func(context.Context) (f figures, err error) {
				short, err := llama.Measure(shortPrompt, decodeTokens)
				if err != nil {
					return f, err
				}
				long, err := llama.Measure(longPrompt, 0)
				return figures{long.PrefillRate(longPrompt), short.DecodeRate()}, err
			},
		},
		{
			name: "mlx and mlx-lm", a: &m.mlx, b: &m.mlxLM,
			ours: func(ctx context.Context) (figures, error) {
				return bench(ctx, o.mlxEngine, "mlx", folder, mlxPrompt, mlxTokens, 1)
			},
			theirs: func(context.Context) (figures, error) {
				f, err := mlxLM.Measure(mlxPrompt, mlxTokens)
				if err != nil {
					return figures{}, err
				}
				return figures{f.PrefillRate(mlxPrompt), f.DecodeRate()}, nil
			},
		},
	}
}

// bench runs the engine's own benchmark in a process of its own. With two runs
// or more it warms up first.
func bench(ctx context.Context, program, backend, model string, prompt, tokens, runs int) (figures, error) {
	cmd := exec.CommandContext(ctx, program, "bench", "--json", "--backend", backend, "--model", model, "--threads", strconv.Itoa(threads),
		"--prompt-tokens", strconv.Itoa(prompt), "--tokens", strconv.Itoa(tokens), "--streams", "1", "--runs", strconv.Itoa(runs))
	b, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return figures{}, fmt.Errorf("%s bench: %w\n%s", program, err, exit.Stderr)
		}
		return figures{}, fmt.Errorf("%s bench: %w", program, err)
	}
	return read(b, backend, prompt)
}

// read reads what the engine's benchmark prints, and holds it against what was
// asked.
func read(b []byte, backend string, prompt int) (figures, error) {
	var lines []struct {
		Backend             string  `json:"backend"`
		PromptTokens        int     `json:"promptTokens"`
		PrefillTokensPerSec float64 `json:"prefillTokensPerSecond"`
		DecodeTokensPerSec  float64 `json:"decodeTokensPerSecond"`
	}
	if err := json.Unmarshal(b, &lines); err != nil {
		return figures{}, fmt.Errorf("read what the engine measured: %w", err)
	}
	if len(lines) != 1 || lines[0].Backend != backend || lines[0].PromptTokens != prompt || lines[0].PrefillTokensPerSec <= 0 || lines[0].DecodeTokensPerSec <= 0 {
		return figures{}, fmt.Errorf("the engine measured %+v, want one line of %s with a prompt of %d", lines, backend, prompt)
	}
	return figures{lines[0].PrefillTokensPerSec, lines[0].DecodeTokensPerSec}, nil
}
