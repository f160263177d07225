package arch_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// backend is a back end that every recorded case runs on.
type backend struct {
	name string
	open func(t *testing.T) tensor.Backend
	// tolerance is the largest allowed error of a logit, relative to the
	// largest logit, by the precision of the model's file (weights.File). The
	// comments give measured values. A precision without an entry is not run.
	tolerance map[quant.Type]float64
}

// backends lists those of this build; backends_mlx_test.go adds what its tag
// links.
func backends() []backend {
	const ours = 2e-5 // seen: 7.4e-6; the references are 6.1e-6 apart
	return append([]backend{{
		name:      "ref",
		open:      func(*testing.T) tensor.Backend { return ref.New(ref.Options{Threads: 2}) },
		tolerance: map[quant.Type]float64{quant.Float32: ours, quant.Float16: ours, quant.BFloat16: ours},
	}}, frameworks()...)
}
