package nn

import (
	"errors"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

// TestALargeMatrixInAnotherOrder: what is arranged in memory that no promise counts is bounded.
func TestALargeMatrixInAnotherOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		shape []int64
		model int64
		fits  bool
	}{
		"at the bound":     {[]int64{1 << 12, 1 << 12}, 1 << 30, true},
		"over it":          {[]int64{1<<12 + 1, 1 << 12}, 1 << 30, false},
		"a vector":         {[]int64{1 << 30}, 1 << 30, false},
		"of a large model": {[]int64{5120, 8192}, 216e9, true},
		"most of a model":  {[]int64{1 << 15, 1 << 15}, 3 << 30, false},
	} {
		err := onHost(weights.Entry{Shape: tc.shape, Format: quant.DenseOf(quant.BFloat16)}, tc.model)
		if tc.fits != (err == nil) || !tc.fits && !errors.Is(err, weights.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
