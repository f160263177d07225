//go:build mlx

package mlx

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
)

func TestConformance(t *testing.T) { tensortest.Run(t, suite(Options{})) }

// What CUDA wants of long rows is right anywhere.
func TestConformanceOfMatricesWhoseColumnsAreCut(t *testing.T) {
	tensortest.RunMatrices(t, suite(Options{CutColumns: 32}))
}

func TestConformanceOfMatricesThatAreJoined(t *testing.T) {
	tensortest.RunMatrices(t, suite(Options{Join: true}))
	tensortest.RunMatrices(t, suite(Options{Join: true, CutColumns: 32}))
}

func TestConformanceOfProductsInHalves(t *testing.T) {
	tensortest.RunMatrices(t, suite(Options{HalvedFrom: 1}))
}

// What CUDA does with what is restored is right anywhere, block by block or all
// of it at once.
func TestConformanceOfBlocksTakenApartOnTheDevice(t *testing.T) {
	for _, bytes := range []int64{1, 1 << 30} {
		tensortest.Run(t, suite(Options{Whole: bytes}))
	}
}

func suite(o Options) tensortest.Suite {
	return tensortest.Suite{
		New: func(*testing.T) tensor.Backend {
			b := New(o)
			b.SetPrecision(quant.Float32)
			return b
		},
		Tolerance: 3e-6,
		Angle:     1e-8,
	}
}
