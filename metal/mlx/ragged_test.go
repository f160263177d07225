//go:build mlx

package mlx

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestRaggedKernelOnTheProcessor(t *testing.T) {
	lines := runKernel(t, "ragged", raggedHeader, "ragged_numbers", "ragged_source")
	if len(lines) != 89 {
		t.Errorf("%d cases were run, want 89: %q", len(lines), lines)
	}
	for _, line := range lines {
		of, figure, _ := strings.Cut(line, ": ")
		worst, err := strconv.ParseFloat(figure, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		// A result is rounded to 8 bits, as parts are, and is a few times that root at
		// most; of one token it is its value.
		if worst > 0.016 || worst == 0 && !strings.HasPrefix(line, "length 1 start 0 ") {
			t.Errorf("%s: off by %v of the root of the sum of squares, want at most 0.016", of, worst)
		}
	}
}

// TestWhatTheRaggedKernelTakes: segments that the framework would attend one by
// one, together with the others of the step; but none if one call of the
// framework attends them all, and none so long that few thread blocks would be
// busy for long.
func TestWhatTheRaggedKernelTakes(t *testing.T) {
	one, two := &slab{}, &slab{}
	answer := func(in *slab, slot, seen int) stretch {
		return stretch{slab: in, slot: slot, start: seen - 1, length: 1, seen: seen}
	}
	piece := func(start, length int) stretch {
		return stretch{slab: two, slot: 9, start: start, length: length, seen: start + length}
	}
	for name, c := range map[string]struct {
		of   []stretch
		want []bool
	}{
		"an answer":                    {[]stretch{answer(one, 0, 500)}, []bool{false}},
		"level answers":                {[]stretch{answer(one, 3, 500), answer(one, 2, 500)}, []bool{false, false}},
		"level answers and a gap":      {[]stretch{answer(one, 0, 500), answer(one, 2, 500)}, []bool{true, true}},
		"uneven answers":               {[]stretch{answer(one, 0, 500), answer(one, 1, 501)}, []bool{true, true}},
		"level answers of two slabs":   {[]stretch{answer(one, 0, 500), answer(two, 0, 500)}, []bool{true, true}},
		"a piece":                      {[]stretch{piece(0, 48)}, []bool{true}},
		"a long piece":                 {[]stretch{piece(0, 65)}, []bool{false}},
		"the longest piece":            {[]stretch{piece(5000, 64)}, []bool{true}},
		"an answer and a piece":        {[]stretch{answer(one, 0, 500), piece(20, 28)}, []bool{true, true}},
		"a long answer and a piece":    {[]stretch{answer(one, 0, 2049), piece(20, 28)}, []bool{false, true}},
		"answers of several and piece": {[]stretch{piece(0, 300), answer(one, 0, 7), answer(two, 1, 7)}, []bool{false, true, true}},
		"long uneven answers":          {[]stretch{answer(one, 0, 10), answer(one, 1, 4096)}, []bool{true, true}},
		"very long uneven answers":     {[]stretch{answer(one, 0, 10), answer(one, 1, 4097)}, []bool{false, false}},
	} {
		chosen := chooseRagged(c.of)
		var got []bool
		number := int64(0)
		for _, g := range c.of {
			if got = append(got, g.ragged); g.ragged {
				number++
			}
		}
		if !slices.Equal(got, c.want) || chosen != number {
			t.Errorf("%s: the kernel takes %v, %d of them, want %v", name, got, chosen, c.want)
		}
	}
}
