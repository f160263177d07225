package engine

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

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
		"the first chunk":                  {returned: 1, row: batch.Row{Start: 0, Length: 4}, first: 0, n: 4},
		"the next one":                     {returned: 5, row: batch.Row{Start: 4, Length: 4}, first: 4, n: 4},
		"the last one":                     {returned: 9, row: batch.Row{Start: 8, Length: 2, Sample: true}, first: 8, n: 1},
		"all at once":                      {returned: 1, row: batch.Row{Start: 0, Length: 10, Sample: true}, first: 0, n: 9},
		"computed again, returned before":  {returned: 5, row: batch.Row{Start: 0, Length: 4}, first: 4, n: 0},
		"computed again, returned in part": {returned: 5, row: batch.Row{Start: 0, Length: 7}, first: 4, n: 3},
		"computed again, returned whole":   {returned: 10, row: batch.Row{Start: 0, Length: 10}, first: 0, n: 0},
		"an answer":                        {returned: 10, row: batch.Row{Start: 12, Length: 1, Sample: true}, first: 0, n: 0},
		"an answer computed again":         {returned: 9, row: batch.Row{Start: 0, Length: 13, Sample: true}, first: 8, n: 1},
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

// Steps with a ranked prompt, of which each step next to answers may have one, show how long prompts take:
// chunks become as large as without it.
func TestRankedStepsTeachThePace(t *testing.T) {
	const perStep, perToken, ranking = 10 * time.Millisecond, 20 * time.Microsecond, 50 * time.Millisecond
	largest := func(ranked bool) (largest int) {
		l := &loop{shared: &shared{log: slog.New(slog.DiscardHandler)}, sequences: &sequences{sched: &batch.Scheduler{}}, blocks: &blocks{}, planner: &planner{}}
		answer := batch.Row{ID: 1, Start: 100, Length: 1, Sample: true}
		work := batch.Work{Decodes: 1, DecodeContext: 100, Prompts: []batch.Span{{From: 0, To: 100_000}}, Head: 2}
		for range 300 {
			tokens := l.planner.pace.Tokens(work, 2048)
			f := &inflightStep{began: time.Now(), step: batch.Step{Rows: []batch.Row{answer}}}
			if tokens > 0 {
				f.step.Rows = append(f.step.Rows, batch.Row{ID: 2, Length: tokens})
			}
			if tokens > 0 && ranked {
				f.promptLogprobs, f.ranking = make([]promptLogprobs, 2), ranking
			}
			time.Sleep(perStep + time.Duration(tokens)*perToken + f.ranking)
			l.record(f)
			largest = max(largest, tokens)
		}
		return largest
	}
	synctest.Test(t, func(t *testing.T) {
		if got, want := largest(true), largest(false); got != want || want < 128 {
			t.Errorf("the largest chunk of a ranked prompt has %d tokens after 300 steps, that of another %d", got, want)
		}
	})
}
