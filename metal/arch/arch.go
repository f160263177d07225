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
	"maps"
	"slices"

	"metalfleet.dev/metalfleet/metal/arch/bert"
	"metalfleet.dev/metalfleet/metal/arch/gemma3"
	"metalfleet.dev/metalfleet/metal/arch/gptoss"
	"metalfleet.dev/metalfleet/metal/arch/llama"
	"metalfleet.dev/metalfleet/metal/arch/qwen2"
	"metalfleet.dev/metalfleet/metal/arch/qwen3"
	"metalfleet.dev/metalfleet/metal/arch/qwen3moe"
	"metalfleet.dev/metalfleet/metal/arch/qwen3next"
	"metalfleet.dev/metalfleet/metal/arch/xlmroberta"
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

// Encoder is a loaded network whose tokens see one another all at once.
type Encoder interface {
	// Hidden runs whole texts through the network and returns the states of its
	// last layer [T, hidden].
	Hidden(s tensor.Scope, t nn.Texts) tensor.Array
	// Scores does the same and returns what the head says of each text [texts,
	// labels]; only a model that has one may be asked.
	Scores(s tensor.Scope, t nn.Texts) tensor.Array
	// Release frees the weights.
	Release()
}

// encoders is the table of those.
func encoders() map[string]func(context.Context, *nn.Loader, weights.Dimensions) (*nn.Encoder, error) {
	return map[string]func(context.Context, *nn.Loader, weights.Dimensions) (*nn.Encoder, error){
		"bert":        bert.Load,
		"xlm-roberta": xlmroberta.Load,
	}
}

// Encodes says that a family is an encoder, and so continues no text.
func Encodes(family string) bool { return encoders()[family] != nil }

// LoadEncoder is Load for a model that is an encoder (weights.Dimensions.Encoder).
func LoadEncoder(ctx context.Context, b tensor.Backend, f *weights.File, progress func(int64)) (Encoder, error) {
	load, ok := encoders()[f.Dim.Architecture]
	if !ok {
		return nil, &weights.UnsupportedError{Subject: "encoder", Value: f.Dim.Architecture, Supported: slices.Sorted(maps.Keys(encoders()))}
	}
	m, err := load(ctx, nn.NewLoader(b, f, progress), f.Dim)
	if err != nil {
		return nil, fmt.Errorf("load %s model: %w", f.Dim.Architecture, err)
	}
	return m, nil
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
		"qwen3_5":     qwen3next.Load,
		"qwen3_moe":   qwen3moe.Load,
		"qwen3_next":  qwen3next.Load,
	}
}

// Supported lists the families, sorted.
func Supported() []string {
	names := slices.Collect(maps.Keys(families()))
	return slices.Sorted(slices.Values(slices.AppendSeq(names, maps.Keys(encoders()))))
}

// Load loads the model in f onto b. progress is told the bytes of each row that
// was read, by two goroutines at once. After an error nothing stays loaded.
func Load(ctx context.Context, b tensor.Backend, f *weights.File, progress func(int64)) (Model, error) {
	if f.Dim.Encoder != nil {
		return nil, fmt.Errorf("%s is an encoder, which cannot generate text: %w", f.Dim.Architecture, weights.ErrUnsupported)
	}
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
