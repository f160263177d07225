package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/proc"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/served"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

var servedScenario = scenario.Scenario{
	Name: "served", Title: "The engine as the agent runs it", Rounds: 5, Run: runServed,
	About: fmt.Sprintf(`SmolLM2-135M-Instruct in Q4_1 on ref, "engine serve" over its socket. Prefill is from admission to the first token of
a prompt of %d tokens, decode is between the first and the last token of a story of %d. The footprint is Pss_Anon + Pss_Shmem + SwapPss of
the process while the story is written.`, longPrompt, storyTokens),
}

const (
	longPrompt  = 512
	storyTokens = 96

	leastDecode    = 15.0
	leastPrefill   = 40.0
	mostPerWeights = 1.6
)

func runServed(ctx context.Context, e *scenario.Env, r *report.Report) (err error) {
	gguf, err := models.Fetch(ctx, "smollm2")
	if err != nil {
		return err
	}
	engine, err := served.Start(ctx, served.Options{Program: e.Engine, Backend: "ref", Model: gguf, ContextTokens: 1024, Sequences: 2})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Stop()) }()
	samples, err := scenario.Rounds{Count: e.Rounds, Log: e.Log}.Run(ctx, scenario.Group{Name: "served", Turns: []scenario.Turn{
		{Name: "prefill", Run: func(ctx context.Context) (scenario.Values, error) { return prefill(ctx, engine) }},
		{Name: "story", Run: func(ctx context.Context) (scenario.Values, error) { return story(ctx, engine) }},
	}})
	if err != nil {
		return err
	}
	samples.Set("start/ready", traffic.Milliseconds(engine.Ready))
	fillServed(samples, r)
	return nil
}

func fillServed(samples scenario.Samples, r *report.Report) {
	footprint := report.Bound{}
	weights, kv := samples.Runs("story/weights"), samples.Runs("story/kv")
	if len(weights) > 0 && len(kv) > 0 {
		footprint = report.Under((mostPerWeights*report.Median(weights) + report.Median(kv)) / 1e6).Of(fmt.Sprintf("%g x weights + KV", mostPerWeights))
	}
	samples.Fill(r,
		scenario.Figure{Name: "decode", Unit: "tokens/s", Of: "story/decode", Bound: report.AtLeast(leastDecode)},
		scenario.Figure{Name: fmt.Sprintf("prefill of %d", longPrompt), Unit: "tokens/s", Of: "prefill/rate", Bound: report.AtLeast(leastPrefill)},
		scenario.Figure{Name: "footprint while a stream runs", Unit: "MB", Of: "story/footprint", Scale: 1e-6, Bound: footprint},
		scenario.Figure{Name: "weights as loaded", Unit: "MB", Of: "story/weights", Scale: 1e-6},
		scenario.Figure{Name: "KV of the stream", Unit: "MB", Of: "story/kv", Scale: 1e-6},
		scenario.Figure{Name: "first token of a chat question", Unit: "ms", Of: "story/first"},
		scenario.Figure{Name: "start to ready", Unit: "ms", Of: "start/ready"},
	)
}

// prefill times a prompt from its admission to the first token.
func prefill(ctx context.Context, e *served.Engine) (scenario.Values, error) {
	ids := make([]int32, longPrompt)
	for i := range ids {
		ids[i] = int32(1000 + i*37%20000)
	}
	var admitted time.Time
	var took time.Duration
	_, err := served.Generate(ctx, e.Client, &wire.GenerateRequest{MaxTokens: 1, Input: served.Tokens(ids)}, func(ev *wire.GenerateEvent) {
		switch {
		case ev.GetAdmitted() != nil:
			admitted = time.Now()
		case took == 0:
			took = time.Since(admitted)
		}
	})
	if err == nil && took <= 0 {
		err = fmt.Errorf("a prompt of %d gave no token", longPrompt)
	}
	return scenario.Values{"rate": longPrompt / took.Seconds()}, err
}

// story times a stream from its first to its last token, and reads the footprint
// of the process while the stream holds its KV.
func story(ctx context.Context, e *served.Engine) (scenario.Values, error) {
	chat := &wire.Chat{Messages: []*wire.ChatMessage{{Role: "user", Content: "Write a long story about a lighthouse keeper and the sea."}}}
	var admitted, first, last time.Time
	var values scenario.Values
	var failed error
	tokens := 0
	_, err := served.Generate(ctx, e.Client, &wire.GenerateRequest{MaxTokens: storyTokens, Input: &wire.GenerateRequest_Chat{Chat: chat}}, func(ev *wire.GenerateEvent) {
		if ev.GetAdmitted() != nil {
			admitted = time.Now()
		}
		n := len(ev.GetDelta().GetTokens())
		if n == 0 {
			return
		}
		last = time.Now()
		if tokens == 0 {
			first = last
		}
		if tokens += n; tokens >= storyTokens*3/4 && values == nil {
			values, failed = memory(ctx, e)
		}
	})
	if err == nil && failed == nil && tokens < storyTokens*3/4 {
		err = fmt.Errorf("the story ended after %d tokens, too few to time", tokens)
	}
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	values["first"] = traffic.Milliseconds(first.Sub(admitted))
	values["decode"] = float64(tokens-1) / last.Sub(first).Seconds()
	return values, nil
}

// memory returns what the engine and the kernel report.
func memory(ctx context.Context, e *served.Engine) (scenario.Values, error) {
	st, err := e.Status(ctx)
	if err != nil {
		return nil, err
	}
	held, err := proc.Footprint(e.PID)
	return scenario.Values{"footprint": float64(held), "weights": float64(st.GetMemory().GetWeightsBytes()), "kv": float64(st.GetMemory().GetKvInUseBytes())}, err
}
