//go:build mlx

package backends

import (
	"slices"
	"testing"
)

func TestMLXIsTheBestWhereItIsBuilt(t *testing.T) {
	if names := Names(); !slices.Equal(names, []string{"mlx", "ref"}) {
		t.Errorf("back ends are %v, want mlx, then ref", names)
	}
}
