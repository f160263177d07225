package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
)

// measured is one line of bench.
type measured struct {
	Backend             string  `json:"backend"`
	Streams             int     `json:"streams"`
	PromptTokens        int     `json:"promptTokens"`
	Tokens              int     `json:"tokens"`
	PrefillTokensPerSec float64 `json:"prefillTokensPerSecond"`
	DecodeTokensPerSec  float64 `json:"decodeTokensPerSecond"`
	// The median step, and how much of it the host took to build it.
	DecodeStepMillisecond float64 `json:"decodeStepMilliseconds"`
	HostMillisecond       float64 `json:"hostMilliseconds"`
	// CPUMillisecond is processor time of the whole process, per step.
	CPUMillisecond float64 `json:"cpuMilliseconds"`
	// WeightBytes are what the back end holds of the model.
	WeightBytes int64 `json:"weightBytes"`
}

// bench measures the model alone, without queue, sampling and text: prompts of
// arbitrary tokens one after another, then all streams in one step.
func bench(ctx context.Context, e *env, args []string) error {
	f := e.flags("bench")
	modelPath := f.String("model", "", modelHelp)
	prompt := f.Int("prompt-tokens", 512, "tokens per prompt")
	tokens := f.Int("tokens", 64, "tokens to decode per stream")
	streams := f.String("streams", "1", "numbers of concurrent streams, comma-separated")
	runs := f.Int("runs", 1, "minimum number of runs per prompt; 2 or more adds a warm-up run")
	asJSON := f.Bool("json", false, "print a JSON array")
	lines := f.Bool("lines", false, `run the measurement on each line of standard input ("STREAMS PROMPT-TOKENS TOKENS") and print one line of JSON for it`)
	profiled := f.Bool("profile", false, "print a profile instead: the time per operation in one prompt chunk, and in one decode step with the first number of streams")
	bf := addBackend(f)
	if err := parse(f, args, "model"); err != nil {
		return err
	}
	if *prompt < 1 || *tokens < 1 || *runs < 1 {
		return usagef("--prompt-tokens is %d, --tokens %d and --runs %d, want 1 or more", *prompt, *tokens, *runs)
	}
	var counts []int
	for _, s := range strings.Split(*streams, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return usagef("--streams %q is not a list of numbers", *streams)
		}
		counts = append(counts, n)
	}
	if *profiled {
		return benchProfile(ctx, e, *modelPath, bf, profileOf{counts[0], *prompt, *tokens, *asJSON})
	}
	s, err := openSession(ctx, *modelPath, bf)
	if err != nil {
		return err
	}
	defer s.Close()
	if *lines {
		return benchLines(ctx, e, s)
	}
	var out []measured
	for _, n := range counts {
		m, err := benchStreams(ctx, s, n, *prompt, *tokens, *runs)
		if err != nil {
			return err
		}
		out = append(out, m)
		if !*asJSON {
			fmt.Fprintf(e.stdout, "%d streams: prefill of %d: %.1f tokens/s; decode of %d: %.1f tokens/s, %.2f ms per step, %.2f ms of it on the host\n",
				n, *prompt, m.PrefillTokensPerSec, *tokens, m.DecodeTokensPerSec, m.DecodeStepMillisecond, m.HostMillisecond)
		}
	}
	if *asJSON {
		return json.NewEncoder(e.stdout).Encode(out)
	}
	return nil
}

// benchLines measures once per line of input, so that another program can
// measure in between: a noisy machine then affects both alike.
func benchLines(ctx context.Context, e *env, s *engine.Session) error {
	for in := bufio.NewScanner(e.stdin); in.Scan(); {
		var streams, prompt, tokens int
		if n, err := fmt.Sscanf(in.Text(), "%d %d %d", &streams, &prompt, &tokens); err != nil || n != 3 || min(streams, prompt, tokens) < 1 {
			return usagef("line %q on standard input, want streams, prompt tokens and tokens, each 1 or more", in.Text())
		}
		m, err := benchStreams(ctx, s, streams, prompt, tokens, 1)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(e.stdout).Encode(m); err != nil {
			return err
		}
	}
	return nil
}

func benchStreams(ctx context.Context, s *engine.Session, streams, prompt, tokens, runs int) (measured, error) {
	m := measured{Backend: s.Backend(), Streams: streams, PromptTokens: prompt, Tokens: tokens, WeightBytes: s.Memory().Weights}
	ids := arbitrary(s, prompt)
	if runs > 1 { // the first use of a kernel may compile it
		if _, err := s.Evaluate(ctx, ids); err != nil {
			return m, err
		}
	}
	var prefills []time.Duration
	requests, first := make([]int64, streams), make([]int32, streams)
	for i := range max(streams, runs) {
		id := s.NewRequest()
		defer s.Drop(id)
		began := time.Now()
		if _, err := s.Extend(ctx, id, ids); err != nil {
			return m, err
		}
		prefills = append(prefills, time.Since(began))
		if i < streams {
			requests[i], first[i] = id, ids[i%prompt]
		} else {
			s.Drop(id)
		}
	}
	m.PrefillTokensPerSec = float64(prompt) / median(prefills).Seconds()
	before := cpuTime()
	c, err := s.Continue(ctx, requests, first, tokens+warmSteps)
	if err != nil {
		return m, err
	}
	m.CPUMillisecond = milliseconds(cpuTime()-before) / float64(tokens+warmSteps)
	step := median(c.Took[warmSteps:])
	m.DecodeTokensPerSec = float64(streams) / step.Seconds()
	m.DecodeStepMillisecond = milliseconds(step)
	m.HostMillisecond = milliseconds(median(c.Host[warmSteps:]))
	return m, nil
}

// cpuTime is what all threads of this process took of processors so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// warmSteps are decoded before time counts.
const warmSteps = 3

func median(d []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(d))
	return sorted[len(sorted)/2]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
