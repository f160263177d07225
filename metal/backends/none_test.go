//go:build !mlx && !race

package backends

import (
	"errors"
	"strings"
	"testing"
)

func TestABuildWithoutMLXSaysHowToGetIt(t *testing.T) {
	if _, err := Open("mlx", Options{}); !errors.Is(err, errUnknown) || !strings.Contains(err.Error(), "make mlx") {
		t.Errorf("mlx: %v, want ErrUnknown and the way to get it", err)
	}
}
