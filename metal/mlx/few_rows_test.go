//go:build mlx

package mlx

import (
	"fmt"
	"testing"
)

func TestFewRowsKernelOnTheProcessor(t *testing.T) {
	lines := runKernel(t, "few_rows", fewRowsHeader, "few_rows_numbers", "few_rows_source")
	if len(lines) != 33 {
		t.Errorf("%d cases were run, want 33: %q", len(lines), lines)
	}
	for _, line := range lines {
		var tokens, in int
		var worst float64
		if _, err := fmt.Sscanf(line, "%d %d %f", &tokens, &in, &worst); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		// A result is rounded to 8 bits, and is a few times that root at most.
		if worst > 0.016 || worst == 0 {
			t.Errorf("%d tokens by %d columns: off by %v of the root of the sum of squares, want at most 0.016", tokens, in, worst)
		}
	}
}
