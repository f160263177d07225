//go:build mlx

package mlx

import (
	"fmt"
	"testing"
)

func TestFewRowsKernelOnTheProcessor(t *testing.T) {
	// A result is rounded to 8 bits, and is a few times that root at most; weights
	// of some_rows are rounded, too.
	for _, kernel := range []struct {
		name  string
		cases int
		limit float64
		more  []string
	}{{"few_rows", 32, 0.016, []string{"gate.inc=gate_numbers"}}, {"some_rows", 16, 0.02, nil}} {
		t.Run(kernel.name, func(t *testing.T) {
			t.Parallel()
			lines := runKernel(t, kernel.name, fewRowsHeader+rowKernelsHeader, kernel.name+"_numbers", kernel.name+"_source", kernel.more...)
			if len(lines) != kernel.cases {
				t.Errorf("%d cases were run, want %d: %q", len(lines), kernel.cases, lines)
			}
			for _, line := range lines {
				var tokens, in, out int
				var worst float64
				if _, err := fmt.Sscanf(line, "%d %d %d %f", &tokens, &in, &out, &worst); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				if worst > kernel.limit || worst == 0 {
					t.Errorf("%d tokens by %d columns and %d rows: off by %v of the root of the sum of squares, want at most %v", tokens, in, out, worst, kernel.limit)
				}
			}
		})
	}
}
