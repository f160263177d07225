package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/peers"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
)

// dense is the shape that the bounds of several rows are for.
const dense = "qwen3-8b"

// shapes of metal/tinymodel that are measured on a GPU.
var shapes = append([]string{"qwen3-0.6b", dense, "qwen3-30b-a3b", "qwen3.5-0.8b"}, sparse...)

// sparse shapes have experts and kinds of layers of their own. The peer computes 300
// tokens of their prompts in a second, so that long ones are left out.
var sparse = []string{"gemma4-26b-a4b", "glm-4.7-flash", "nemotron-3-nano", "qwen3.5-35b-a3b"}

func gpuScenario(shape string) scenario.Scenario {
	return scenario.Scenario{
		Name: "gpu-" + shape, Title: "The engine on an NVIDIA GPU, next to mlx-lm: " + shape, Rounds: 15, GPU: true,
		Run: func(ctx context.Context, e *scenario.Env, r *report.Report) error { return runGPU(ctx, e, r, shape) },
		About: fmt.Sprintf(`Random weights, 4 bits in groups of 64, bfloat16. Both sides have the same files loaded at once and take turns;
several rows are measured in every third round. Decoding begins after %d tokens and takes %d; a step is built from the tokens of the one
before while that still computes, on both sides. Prefill is the time to the first token. One round that does not count compiles the kernels.
The figures show that the bridge and its layout are right; they do not predict the speed of a Mac.`, gpuPrompt, gpuTokens),
	}
}

const (
	gpuPrompt, gpuTokens = 128, 64
	// A slow shape is measured in fewer rounds: those that fit into a minute, and
	// at least seven.
	gpuBudget, gpuFewest = time.Minute, 7
	// mostRows bounds a step of several rows, as a multiple of a step of one.
	mostRows = 2.6
)

// gpuAsk is measured on both sides. least is the ratio to the peer that is
// wanted, for all shapes or for the dense one alone.
type gpuAsk struct {
	streams, prompt, tokens int
	every                   int
	least                   float64
	onDense                 bool
}

// asksOf are those that a shape is measured with.
func asksOf(shape string) []gpuAsk {
	if slices.Contains(sparse, shape) {
		return []gpuAsk{gpuAsks[0], gpuAsks[1], gpuAsks[3]}
	}
	return gpuAsks
}

var gpuAsks = []gpuAsk{
	{streams: 1, prompt: gpuPrompt, tokens: gpuTokens, least: 1},
	{streams: 1, prompt: 512, tokens: 4, least: 1},
	{streams: 1, prompt: 4096, tokens: 4, least: 1},
	{streams: 8, prompt: gpuPrompt, tokens: gpuTokens, every: 3, least: 2, onDense: true},
	{streams: 16, prompt: gpuPrompt, tokens: gpuTokens, every: 3, least: 3.5, onDense: true},
}

func (a gpuAsk) name(side string) string { return fmt.Sprintf("%s %d x %d", side, a.streams, a.prompt) }

// decodes reports whether the decoding is a figure; otherwise the prefill is.
func (a gpuAsk) decodes() bool { return a.tokens == gpuTokens }

func runGPU(ctx context.Context, e *scenario.Env, r *report.Report, shape string) error {
	folder, err := models.Shape(e.Cache, shape)
	if err != nil {
		return err
	}
	ours, err := load(ctx, e.MLXEngine, "mlx", folder)
	if err != nil {
		return err
	}
	e.Cleanup(ours.Stop)
	peer, err := peers.Start(ctx, peers.MLXLM, e.Python, folder)
	if err != nil {
		return err
	}
	e.Cleanup(peer.Stop)
	r.Versions = append(r.Versions, peer.Versions...)
	var groups []scenario.Group
	for _, a := range asksOf(shape) {
		groups = append(groups, scenario.Group{Name: a.name(shape), Every: a.every, Turns: []scenario.Turn{
			ours.turn(a.name("ours"), a.streams, a.prompt, a.tokens),
			peerTurn(peer, a.name("peer"), a.streams, a.prompt, a.tokens),
		}})
	}
	samples, err := scenario.Rounds{Count: e.Rounds, Warm: 1, Budget: gpuBudget, Fewest: gpuFewest, Log: e.Log}.Run(ctx, groups...)
	samples.Fill(r, gpuFigures(shape)...)
	return err
}

func gpuFigures(shape string) []scenario.Figure {
	var ratios, steps []scenario.Figure
	for _, a := range asksOf(shape) {
		key, name := "prefill", fmt.Sprintf("prefill of %d", a.prompt)
		if a.decodes() {
			key, name = "decode", fmt.Sprintf("decode, %d streams", a.streams)
		}
		ours, theirs := a.name("ours")+"/", a.name("peer")+"/"
		ratio := scenario.Figure{Name: name + ", ours / mlx-lm", Of: ours + key, Over: theirs + key}
		if !a.onDense || shape == dense || slices.Contains(sparse, shape) {
			ratio.Bound = report.AtLeast(a.least)
		}
		ratios = append(ratios,
			scenario.Figure{Name: name, Unit: "tokens/s", Of: ours + key},
			scenario.Figure{Name: name + ", mlx-lm", Unit: "tokens/s", Of: theirs + key}, ratio)
		if !a.decodes() {
			continue
		}
		name = fmt.Sprintf("step of %d rows", a.streams)
		steps = append(steps,
			scenario.Figure{Name: name + ", host's time to build it", Unit: "ms", Of: ours + "host"},
			scenario.Figure{Name: name + ", processor time", Unit: "ms", Of: ours + "cpu"})
		if a.streams > 1 {
			rows := scenario.Figure{Name: name + " / step of 1 row", Of: ours + "step", Over: gpuAsks[0].name("ours") + "/step"}
			if shape == dense {
				rows.Bound = report.AtMost(mostRows)
			}
			steps = append(steps, rows)
		}
	}
	return append(ratios, steps...)
}
