//go:build mlx

package mlx

import (
	"fmt"
	"strconv"
	"testing"
)

func TestExpertKernelsOnTheProcessor(t *testing.T) {
	for name, c := range map[string]struct {
		source string
		cases  int
		more   []string
	}{
		"few":  {"experts_few_source", 18, []string{"gate.inc=gate_numbers", "one.inc=experts_one_of_gated"}},
		"many": {"experts_many_source", 16, []string{"sort.inc=experts_sort_source"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines := runKernel(t, "experts", expertsHeader+rowKernelsHeader, "experts_numbers", c.source, c.more...)
			if len(lines) != c.cases {
				t.Errorf("%d cases were run, want %d: %q", len(lines), c.cases, lines)
			}
			for _, line := range lines {
				var tokens, in, out int
				var worst float64
				if _, err := fmt.Sscanf(line, "%d %d %d %f", &tokens, &in, &out, &worst); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				if worst > 0.016 || worst == 0 { // a result is rounded to 8 bits, and is a few times that root at most
					t.Errorf("%d tokens by %d columns and %d rows: off by %v of the root of the sum of squares, want at most 0.016", tokens, in, out, worst)
				}
			}
		})
	}
}

func TestKernelsThatChooseExpertsOnTheProcessor(t *testing.T) {
	lines := runKernel(t, "experts_choose", expertsHeader, "experts_numbers", "experts_route_source", "scored.inc=experts_scored_source", "score.inc=experts_score_source", "combine.inc=experts_combine_source")
	if len(lines) != 9 {
		t.Fatalf("%d cases were run, want 9: %q", len(lines), lines)
	}
	checkErrors(t, lines[:5], 5, 2e-6)  // shares, in float32
	checkErrors(t, lines[5:7], 2, 0.02) // sums, rounded to 8 bits
	for _, line := range lines[7:] {    // shares of scores that one order of sums rounds to other 8 bits than another
		if worst, err := strconv.ParseFloat(line, 64); err != nil || worst > 0.02 {
			t.Errorf("shares by a router are off by %q, want at most 0.02", line)
		}
	}
}
