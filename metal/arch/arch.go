// Package arch is the table of model families and what every family can do.
//
// It owns the choice of a family by the name in the file. It refuses unknown
// names with a typed error that lists what there is. Each family is a package
// of its own below this one.
//
// Start reading at Load.
package arch

import (
	"context"
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/metal/arch/gemma3"
	"metalfleet.dev/metalfleet/metal/arch/gptoss"
	"metalfleet.dev/metalfleet/metal/arch/llama"
	"metalfleet.dev/metalfleet/metal/arch/qwen2"
	"metalfleet.dev/metalfleet/metal/arch/qwen3"
	"metalfleet.dev/metalfleet/metal/arch/qwen3moe"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Model is a loaded network.
type Model interface {
	// CacheSpec is the shape of the cache its steps extend.
	CacheSpec() tensor.CacheSpec
	// Step runs flat tokens (an array of ids [T]) through the network, extends
	// cache, and returns logits [len(rows), vocabulary] for the given rows of
	// the step; nil rows means that no logits are wanted and the result is nil.
	// The result belongs to s.
	Step(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, rows []int) tensor.Array
	// Hidden does the same and returns the normed hidden states [T, hidden]
	// that the head would read, for embeddings.
	Hidden(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment) tensor.Array
	// Release frees the weights.
	Release()
}

// loader loads one family; what it returns is nil after an error.
type loader func(context.Context, *nn.Loader, weights.Dimensions) (*nn.Decoder, error)

// families is the explicit table.
func families() map[string]loader {
	return map[string]loader{
		"gemma3_text": gemma3.Load,
		"gpt_oss":     gptoss.Load,
		"llama":       llama.Load,
		"qwen2":       qwen2.Load,
		"qwen3":       qwen3.Load,
		"qwen3_moe":   qwen3moe.Load,
	}
}

// Supported lists the families, sorted.
func Supported() []string {
	var names []string
	for n := range families() {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Load loads the model in f onto b. progress is told the bytes of each row that
// was read, by two goroutines at once. After an error nothing stays loaded.
func Load(ctx context.Context, b tensor.Backend, f *weights.File, progress func(int64)) (Model, error) {
	load, ok := families()[f.Dim.Architecture]
	if !ok {
		return nil, &weights.UnsupportedError{Subject: "architecture", Value: f.Dim.Architecture, Supported: Supported()}
	}
	m, err := load(ctx, nn.NewLoader(b, f, progress), f.Dim)
	if err != nil {
		return nil, fmt.Errorf("load %s model: %w", f.Dim.Architecture, err)
	}
	return m, nil
}
