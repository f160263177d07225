//go:build mlx

package arch_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/mlx"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// wide computes in float32 regardless of the file's type.
type wide struct{ *mlx.Backend }

func (w wide) SetPrecision(quant.Type) { w.Backend.SetPrecision(quant.Float32) }

// frameworks runs MLX in float32 on every file. In half precision a logit of
// these models is off by up to a third of the largest, here and in mlx-lm
// alike, so there its rounding is compared instead (metal/mlx,
// TestHalfPrecisionRoundsWhereMLXLMRounds).
func frameworks() []backend {
	const ours = 2e-5 // seen: 6.1e-6 on a processor
	return []backend{{
		name:      "mlx",
		open:      func(*testing.T) tensor.Backend { return wide{mlx.New(mlx.Options{})} },
		tolerance: map[quant.Type]float64{quant.Float32: ours, quant.Float16: ours, quant.BFloat16: ours},
	}}
}
