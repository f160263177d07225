//go:build mlx

package mlx

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
)

func TestConformance(t *testing.T) {
	tensortest.Run(t, tensortest.Suite{
		New: func(*testing.T) tensor.Backend {
			b := New(Options{})
			b.SetPrecision(quant.Float32)
			return b
		},
		Tolerance: 3e-6,
		Angle:     1e-8,
	})
}
