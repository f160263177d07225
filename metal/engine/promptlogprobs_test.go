package engine

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/batch"
)

// Each token of a prompt is ranked once, even if preemption or a failed step restarts its
// computation.
func TestTokensOfAPromptAreRankedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		returned int
		row      batch.Row
		first, n int
	}{
		"the first chunk":                  {1, batch.Row{Start: 0, Length: 4}, 0, 4},
		"the next one":                     {5, batch.Row{Start: 4, Length: 4}, 4, 4},
		"the last one":                     {9, batch.Row{Start: 8, Length: 2, Sample: true}, 8, 1},
		"all at once":                      {1, batch.Row{Start: 0, Length: 10, Sample: true}, 0, 9},
		"computed again, returned before":  {5, batch.Row{Start: 0, Length: 4}, 4, 0},
		"computed again, returned in part": {5, batch.Row{Start: 0, Length: 7}, 4, 3},
		"computed again, returned whole":   {10, batch.Row{Start: 0, Length: 10}, 0, 0},
		"an answer":                        {10, batch.Row{Start: 12, Length: 1, Sample: true}, 0, 0},
		"an answer computed again":         {9, batch.Row{Start: 0, Length: 13, Sample: true}, 8, 1},
	} {
		a := &sequence{prompt: 10, echo: echo{logprobs: true, returned: c.returned}}
		if first, n := a.promptLogits(c.row); n != c.n || n > 0 && first != c.first {
			t.Errorf("%s: %d tokens from %d on, want %d from %d on", name, n, first, c.n, c.first)
		}
	}
	if _, n := (&sequence{prompt: 10}).promptLogits(batch.Row{Length: 10}); n != 0 {
		t.Errorf("%d tokens are ranked of a prompt that is not echoed", n)
	}
}
