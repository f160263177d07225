//go:build mlx && !race

package backends

import (
	"errors"
	"slices"
	"testing"
)

func TestMLXRefusesToRoundActivations(t *testing.T) {
	for _, name := range []string{"", "mlx"} {
		if b, err := Open(name, Options{EightBitActivations: true}); !errors.Is(err, errUnsupported) {
			t.Errorf("%q opened %v (%v), want ErrUnsupported", name, b, err)
		}
	}
}

func TestMLXIsTheBestWhereItIsBuilt(t *testing.T) {
	if names := Names(); !slices.Equal(names, []string{"mlx", "ref"}) {
		t.Errorf("back ends are %v, want mlx, then ref", names)
	}
}
