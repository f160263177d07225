//go:build mlx

package backends

import (
	"metalfleet.dev/metalfleet/metal/mlx"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// frameworks lists the back ends other than ref.
func frameworks() []Kind {
	return []Kind{{"mlx", func(Options) tensor.Backend { return mlx.New(mlx.Options{}) }}}
}
