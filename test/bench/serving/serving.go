// Package serving measures how the engine serves several requests: a stream next
// to a long prompt, several streams at once, prompts that the cache knows, and
// the scheduler alone.
//
// It owns the traffic and the bounds. Servers are the engine on ref and on MLX,
// and mlx-lm's server with the same weights; with -gpu, MLX and mlx-lm on the
// same NVIDIA GPU.
//
// Start reading at Subject.
package serving

import (
	"context"
	"flag"

	"metalfleet.dev/metalfleet/test/bench/peers"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/served"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

// Subject is `bench serving`.
func Subject() scenario.Subject {
	shape, before := "qwen3-8b", ""
	return scenario.Subject{
		Name: "serving", Help: "streams next to a long prompt, several streams, known prompts, the scheduler, hostile constraints",
		Flags: func(f *flag.FlagSet) {
			f.StringVar(&shape, "shape", shape, "`shape` of the random weights, with -gpu")
			f.StringVar(&before, "before", "", "an older engine `program` that is measured in turns with this one, in the scenario constraints")
		},
		Scenarios: []scenario.Scenario{
			stallScenario, onGPU(stallScenario, stallGPU(&shape)),
			batchScenario, onGPU(batchScenario, batchGPU(&shape)),
			cacheScenario, onGPU(cacheScenario, cacheGPU(&shape)),
			schedulerScenario, constraintsScenario(&before),
		},
	}
}

// runner is what a scenario runs.
type runner = func(context.Context, *scenario.Env, *report.Report) error

// onGPU is a scenario with the weights of a large model on a GPU.
func onGPU(s scenario.Scenario, run runner) scenario.Scenario {
	s.Name, s.GPU, s.Parts, s.Run = s.Name+"-gpu", true, nil, run
	return s
}

// aboutGPU ends the explanation of scenarios that also run on a GPU.
const aboutGPU = " With -gpu: random weights of a real shape in 4 bits, after one round that does not count and compiles the kernels."

// server can be started with a model.
type server struct {
	name string
	// ours is held to bounds.
	ours  bool
	start func(context.Context) (traffic.Target, func() error, error)
}

// peerName is that of mlx-lm's server.
const peerName = "mlx-lm's server"

// ours is the engine with room for streams of the given length.
func ours(program, backend, model string, tokens, streams int) server {
	return server{name: backend, ours: true, start: func(ctx context.Context) (traffic.Target, func() error, error) {
		e, err := served.Start(ctx, served.Options{Program: program, Backend: backend, Model: model, ContextTokens: tokens, Sequences: streams, PrefixCache: true})
		if err != nil {
			return nil, nil, err
		}
		return traffic.Engine{Client: e.Client}, e.Stop, nil
	}}
}

// peer is mlx-lm's server; on a processor it is installed first.
func peer(e *scenario.Env, folder string, streams int) server {
	return server{name: peerName, start: func(ctx context.Context) (traffic.Target, func() error, error) {
		python := e.Python
		if !e.GPU {
			var err error
			if python, err = peers.Install(ctx, peers.MLXLM); err != nil {
				return nil, nil, err
			}
		}
		s, err := peers.StartServer(ctx, python, folder, streams)
		if err != nil {
			return nil, nil, err
		}
		return s, s.Stop, nil
	}}
}
