//go:build mlx

package embed_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/mlx"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// wide computes in float32 regardless of the file's type.
type wide struct{ *mlx.Backend }

func (w wide) SetPrecision(quant.Type) { w.Backend.SetPrecision(quant.Float32) }

func frameworks() []backend {
	return []backend{{"mlx", func(*testing.T) tensor.Backend { return wide{mlx.New(mlx.Options{})} }}}
}
