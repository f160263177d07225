package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/proc"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/served"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

const (
	longPrompt  = 512
	storyTokens = 96

	leastDecode    = 15.0
	leastPrefill   = 40.0
	mostPerWeights = 1.6
)

var servedScenario = scenario.Scenario{
	Name: "served", Title: "The engine as the agent runs it", Rounds: 5, Run: runServed,
	About: fmt.Sprintf(`SmolLM2-135M-Instruct in Q4_1 on ref, "engine serve" over its socket. Prefill is from the call to the first token of a
prompt of %d tokens, decode is between the first and the last token of an answer of %d to a short one. The footprint is Pss_Anon + Pss_Shmem +
SwapPss of the process while that answer is written.`, longPrompt, storyTokens),
}

func runServed(ctx context.Context, e *scenario.Env, r *report.Report) error {
	gguf, err := models.Fetch(ctx, "smollm2")
	if err != nil {
		return err
	}
	engine, err := served.Start(ctx, served.Options{Program: e.Engine, Backend: "ref", Model: gguf, ContextTokens: 1024, Sequences: 2})
	if err != nil {
		return err
	}
	e.Cleanup(engine.Stop)
	target := traffic.Engine{Client: engine.Client}
	words, err := traffic.Words(ctx, target)
	if err != nil {
		return err
	}
	samples, err := scenario.Rounds{Count: e.Rounds, Log: e.Log}.Run(ctx,
		scenario.One("prefill", func(ctx context.Context) (scenario.Values, error) {
			a := traffic.Ask(ctx, target, traffic.Request{Prompt: traffic.Prompt(words(longPrompt), 1), MaxTokens: 1})
			return scenario.Values{"rate": float64(a.Prompt) / a.First.Seconds()}, a.Err
		}),
		scenario.One("story", func(ctx context.Context) (scenario.Values, error) { return story(ctx, engine, words) }))
	if err != nil {
		return err
	}
	samples.Set("start/ready", traffic.Milliseconds(engine.Ready))
	samples.Fill(r, servedFigures(report.Median(samples.Runs("story/weights")), report.Median(samples.Runs("story/kv")))...)
	return nil
}

// servedFigures of a model with weights that holds KV.
func servedFigures(weights, kv float64) []scenario.Figure {
	most := report.Under((mostPerWeights*weights + kv) / 1e6).Of(fmt.Sprintf("%g x weights + KV", mostPerWeights))
	return []scenario.Figure{
		{Name: "decode", Unit: "tokens/s", Of: "story/decode", Bound: report.AtLeast(leastDecode)},
		{Name: fmt.Sprintf("prefill of %d", longPrompt), Unit: "tokens/s", Of: "prefill/rate", Bound: report.AtLeast(leastPrefill)},
		{Name: "footprint while a stream runs", Unit: "MB", Of: "story/footprint", Scale: 1e-6, Bound: most},
		{Name: "weights as loaded", Unit: "MB", Of: "story/weights", Scale: 1e-6},
		{Name: "KV of the stream", Unit: "MB", Of: "story/kv", Scale: 1e-6},
		{Name: "first token of a short prompt", Unit: "ms", Of: "story/first"},
		{Name: "start to ready", Unit: "ms", Of: "start/ready"},
	}
}

// story times a stream from its first to its last token, and reads the footprint
// of the process while the stream holds its KV.
func story(ctx context.Context, e *served.Engine, words func(int) int) (v scenario.Values, _ error) {
	var first, last time.Time
	var failed error
	pieces, began := 0, time.Now()
	u, err := traffic.Engine{Client: e.Client}.Ask(ctx, traffic.Request{Prompt: traffic.Prompt(words(24), 2), MaxTokens: storyTokens}, func() {
		last = time.Now()
		if pieces++; pieces == 1 {
			first = last
		}
		if pieces == storyTokens*3/4 {
			v, failed = memory(ctx, e)
		}
	})
	if err == nil && failed == nil && v == nil {
		err = fmt.Errorf("the answer ended after %d pieces, too few to time", pieces)
	}
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	v["first"], v["decode"] = traffic.Milliseconds(first.Sub(began)), float64(u.Generated-1)/last.Sub(first).Seconds()
	return v, nil
}

// memory is what the engine and the kernel report.
func memory(ctx context.Context, e *served.Engine) (scenario.Values, error) {
	st, err := e.Status(ctx)
	if err != nil {
		return nil, err
	}
	held, err := proc.Footprint(e.PID)
	return scenario.Values{"footprint": float64(held), "weights": float64(st.GetMemory().GetWeightsBytes()), "kv": float64(st.GetMemory().GetKvInUseBytes())}, err
}
