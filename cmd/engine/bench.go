package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
)

// measured is one line of bench.
type measured struct {
	Streams               int     `json:"streams"`
	PromptTokens          int     `json:"promptTokens"`
	Tokens                int     `json:"tokens"`
	PrefillTokensPerSec   float64 `json:"prefillTokensPerSecond"`
	DecodeTokensPerSec    float64 `json:"decodeTokensPerSecond"`
	DecodeStepMillisecond float64 `json:"decodeStepMilliseconds"`
}

// bench measures the model alone, without queue, sampling and text: prompts of
// arbitrary tokens one after another, then all streams in one step.
func bench(ctx context.Context, e *env, args []string) error {
	f := e.flags("bench")
	modelPath := f.String("model", "", modelHelp)
	prompt := f.Int("prompt-tokens", 512, "tokens of each prompt")
	tokens := f.Int("tokens", 64, "tokens to decode for each stream")
	streams := f.String("streams", "1", "numbers of streams at once, separated by commas")
	asJSON := f.Bool("json", false, "print a JSON array")
	bf := addBackend(f)
	if err := parse(f, args, "model"); err != nil {
		return err
	}
	if *prompt < 1 || *tokens < 1 {
		return usagef("--prompt-tokens is %d and --tokens %d, want 1 or more", *prompt, *tokens)
	}
	var counts []int
	for _, s := range strings.Split(*streams, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 {
			return usagef("--streams %q is not a list of numbers", *streams)
		}
		counts = append(counts, n)
	}
	s, err := openSession(ctx, *modelPath, bf)
	if err != nil {
		return err
	}
	defer s.Close()
	var out []measured
	for _, n := range counts {
		m, err := benchStreams(ctx, s, n, *prompt, *tokens)
		if err != nil {
			return err
		}
		out = append(out, m)
		if !*asJSON {
			fmt.Fprintf(e.stdout, "%d streams: prefill of %d: %.1f tokens/s; decode of %d: %.1f tokens/s, %.1f ms a step\n",
				n, *prompt, m.PrefillTokensPerSec, *tokens, m.DecodeTokensPerSec, m.DecodeStepMillisecond)
		}
	}
	if *asJSON {
		return json.NewEncoder(e.stdout).Encode(out)
	}
	return nil
}

func benchStreams(ctx context.Context, s *engine.Session, streams, prompt, tokens int) (measured, error) {
	m := measured{Streams: streams, PromptTokens: prompt, Tokens: tokens}
	ids := make([]int32, prompt)
	for i := range ids {
		ids[i] = int32((i*7919 + 13) % s.Vocabulary())
	}
	requests := make([]int64, streams)
	began := time.Now()
	for i := range requests {
		requests[i] = s.NewRequest()
		defer s.Drop(requests[i])
		if _, err := s.Extend(ctx, requests[i], ids); err != nil {
			return m, err
		}
	}
	m.PrefillTokensPerSec = float64(streams*prompt) / time.Since(began).Seconds()
	began = time.Now()
	for range tokens {
		if err := s.Decode(ctx, requests, ids[0]); err != nil {
			return m, err
		}
	}
	d := time.Since(began)
	m.DecodeTokensPerSec = float64(streams*tokens) / d.Seconds()
	m.DecodeStepMillisecond = float64(d.Microseconds()) / 1000 / float64(tokens)
	return m, nil
}
