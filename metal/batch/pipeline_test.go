//go:build !race

package batch

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// generations is a scheduler with a plain model of what its requests generate.
type generations struct {
	*Scheduler
	rng   *rand.Rand
	left  map[ID]int // tokens that each request still generates
	ended []ID       // requests that have all their tokens, and are removed one step later
}

func newGenerations(t *testing.T, rng *rand.Rand) *generations {
	t.Helper()
	s, err := New(Limits{ContextTokens: 24, CacheTokens: 40, BlockTokens: 4, Sequences: 3, Queue: 8})
	if err != nil {
		t.Fatal(err)
	}
	h := &generations{Scheduler: s, rng: rng, left: map[ID]int{}}
	for id := range ID(1 + rng.IntN(5)) {
		h.submit(id)
	}
	return h
}

func (h *generations) submit(id ID) {
	r := Request{ID: id, Prompt: 1 + h.rng.IntN(9), Priority: h.rng.IntN(2), Tokens: 1 + h.rng.IntN(9)}
	if h.left[id] = r.Tokens; h.Submit(r) != nil { // the queue may be full
		delete(h.left, id)
	}
}

// complete records a step, and returns the rows of the requests that decode after it.
func (h *generations) complete(t *testing.T, step Step) (decodes []Row) {
	t.Helper()
	grow(t, h.Scheduler, step)
	for _, id := range h.ended {
		h.Remove(id)
	}
	h.ended = h.ended[:0]
	for _, r := range step.Rows {
		if !r.Sample {
			continue
		}
		if h.left[r.ID]--; h.left[r.ID] == 0 {
			h.ended = append(h.ended, r.ID)
			continue
		}
		decodes = append(decodes, Row{ID: r.ID, Start: r.Start + r.Length, Length: 1, Sample: true})
	}
	return decodes
}

// TestCanPipelinePredictsTheNextPlan: whenever CanPipeline is true, the decode
// rows of the next plan are the sampling rows of the step in the same order,
// one token on, without those that are done, and nothing is preempted; prefill
// chunks follow them, and other requests may be admitted.
func TestCanPipelinePredictsTheNextPlan(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	seen := map[string]int{}
	for round := range 600 {
		h := newGenerations(t, rng)
		step := plan(h.Scheduler, 1+rng.IntN(6))
		for range 30 {
			if rng.IntN(8) == 0 {
				h.submit(ID(100 + rng.IntN(1e9)))
			}
			canPipeline, running := h.CanPipeline(step), h.Running()
			decodes := h.complete(t, step)
			before := h.Decodes()
			for _, id := range h.Admit() {
				if rng.IntN(3) == 0 {
					if err := h.Restored(id, h.all[id].known-1); err != nil {
						t.Fatal(err)
					}
				}
			}
			admitted := h.Decodes() != before // one that decodes at once
			step = plan(h.Scheduler, 1+rng.IntN(6))
			if slices.ContainsFunc(step.Rows, func(r Row) bool { return slices.Contains(h.ended, r.ID) }) {
				t.Fatalf("round %d: %v have all their tokens, and are in %+v", round, h.ended, step)
			}
			if !canPipeline || admitted {
				continue
			}
			n := step.Decodes()
			if len(step.Preempted) > 0 || n == 0 || !slices.Equal(step.Rows[:n], decodes) {
				t.Fatalf("round %d: CanPipeline was true and %+v were to come, then came %+v", round, decodes, step)
			}
			for what, is := range map[string]bool{"pipelined": true, "next to a prefill": n < len(step.Rows), "after an admission": h.Running() > running, "next to the end of a prompt": slices.ContainsFunc(step.Rows, func(r Row) bool { return r.EndsPrompt }), "without one that ended": len(h.ended) > 0} {
				if is {
					seen[what]++
				}
			}
		}
	}
	for what, least := range map[string]int{"pipelined": 1000, "next to a prefill": 200, "after an admission": 50, "next to the end of a prompt": 50, "without one that ended": 100} {
		if seen[what] < least {
			t.Errorf("only %d steps were %s, want %d at least", seen[what], what, least)
		}
	}
}

// grow computes a step: each row that samples gets a token, those at the
// context's end go.
func grow(t *testing.T, s *Scheduler, step Step) {
	t.Helper()
	for _, r := range step.Rows {
		if err := s.Computed(r); err != nil {
			t.Fatal(err)
		}
		if r.Sample && s.Grow(r.ID) != nil {
			s.Remove(r.ID)
		}
	}
}
