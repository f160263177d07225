// Package arch loads networks: it builds the layers (package nn) that a family
// describes (package family) with the weights of a file (package weights).
//
// Unknown families are refused with a typed error that lists the supported
// ones. The tests compare every family with reference implementations.
//
// Start reading at Load.
package arch

import (
	"context"
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// Model is a loaded network.
type Model interface {
	// CacheSpec returns the shape of the cache that Step extends.
	CacheSpec() tensor.CacheSpec
	// Step runs the tokens of all segments (ids [T]) through the network,
	// extends cache, and returns the logits [len(rows), vocabulary] of the given
	// rows of ids, or nil if rows is nil. The result belongs to s.
	Step(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, rows []int) tensor.Array
	// Hidden is Step without the output head: it returns the normed hidden
	// states [T, hidden], for embeddings.
	Hidden(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment) tensor.Array
	// LoadAdapter loads an adapter of the model. nn.Adapted gives it to rows of a step.
	// The caller releases it.
	LoadAdapter(ctx context.Context, f *weights.Adapter) (*nn.Adapter, error)
	// Release frees the weights.
	Release()
}

// Seeing is a Model whose steps may contain tokens of images.
type Seeing interface {
	Model
	// StepSeeing is Step with tokens of images in place of rows of the embedding.
	StepSeeing(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, rows []int, sight nn.Sight) tensor.Array
}

// Drafter is a Model that may have a draft head, whose layer is one more in the cache: Step
// extends that as well.
type Drafter interface {
	Seeing
	// Drafts reports whether it has one. Otherwise the other methods must not be called.
	Drafts() bool
	// Draft has the draft head read one token of each segment (ids [segments]) with the
	// state before it (before [segments, hidden]). It extends the layer of the head and
	// returns the logits [segments, vocabulary] of the token after that.
	Draft(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, before tensor.Array) tensor.Array
	// StepDrafting is StepSeeing, and returns the states that later tokens are drafted from.
	StepDrafting(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, rows []int, sight nn.Sight, d nn.Drafting) (logits, states tensor.Array)
}

// Encoder is a loaded network with bidirectional attention.
type Encoder interface {
	// Hidden runs whole texts through the network and returns the states of its
	// last layer [T, hidden].
	Hidden(s tensor.Scope, t nn.Texts) tensor.Array
	// Begin is Hidden layer by layer.
	Begin(s tensor.Scope, t nn.Texts) *nn.EncoderPass
	// Score applies the scoring head to the states that Hidden returned; it returns
	// [texts, labels]. The model must have a head (family.Encoder.Labels > 0).
	Score(s tensor.Scope, states tensor.Array, segments []tensor.Segment) tensor.Array
	// Release frees the weights.
	Release()
}

// Encodes reports whether a family is an encoder, which cannot generate text.
func Encodes(name string) bool {
	f, ok := family.Of(name)
	return ok && f.Block == nil
}

// LoadEncoder is Load for encoders, which have Dimensions.Encoder.
func LoadEncoder(ctx context.Context, b tensor.Backend, f *weights.File, progress func(int64)) (Encoder, error) {
	if !Encodes(f.Dim.Architecture) {
		return nil, &weights.UnsupportedError{Subject: "encoder", Value: f.Dim.Architecture, Supported: family.Names(true)}
	}
	m, err := nn.LoadEncoder(ctx, nn.NewLoader(b, f, progress), f.Dim)
	if err != nil {
		return nil, fmt.Errorf("load %s model: %w", f.Dim.Architecture, err)
	}
	return m, nil
}

// Supported lists the families, sorted.
func Supported() []string {
	names := append(family.Names(false), family.Names(true)...)
	slices.Sort(names)
	return names
}

// Load loads the model in f onto b. It calls progress with the bytes of each
// row that was read, from two goroutines at once. After an error nothing stays
// loaded.
func Load(ctx context.Context, b tensor.Backend, f *weights.File, progress func(int64)) (Model, error) {
	if f.Dim.Encoder != nil {
		return nil, fmt.Errorf("%s is an encoder, which cannot generate text: %w", f.Dim.Architecture, weights.ErrUnsupported)
	}
	if known, ok := family.Of(f.Dim.Architecture); !ok || known.Block == nil {
		return nil, &weights.UnsupportedError{Subject: "architecture", Value: f.Dim.Architecture, Supported: Supported()}
	}
	m, err := nn.LoadDecoder(ctx, nn.NewLoader(b, f, progress), f.Dim)
	if err != nil {
		return nil, fmt.Errorf("load %s model: %w", f.Dim.Architecture, err)
	}
	return m, nil
}
