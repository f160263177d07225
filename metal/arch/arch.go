// Package arch loads networks: what a family describes (package family), built
// from layers (package nn) with the weights of a file (package weights).
//
// It refuses unknown families with a typed error that lists what there is. Its
// tests compare every family with what references compute.
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

// Encodes reports whether a family is an encoder, and so continues no text.
func Encodes(name string) bool {
	f, ok := family.Of(name)
	return ok && f.Block == nil
}

// LoadEncoder is Load for a model that is an encoder (family.Dimensions.Encoder).
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

// Load loads the model in f onto b. progress is told the bytes of each row that
// was read, by two goroutines at once. After an error nothing stays loaded.
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
