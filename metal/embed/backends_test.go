package embed_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// backend is a back end that every recorded reader runs on.
type backend struct {
	name string
	open func(t *testing.T) tensor.Backend
}

// backends lists those of this build; backends_mlx_test.go adds what its tag
// links.
func backends() []backend {
	return append([]backend{{name: "ref", open: func(*testing.T) tensor.Backend { return ref.New(ref.Options{Threads: 2, Poison: true}) }}}, frameworks()...)
}
