package engine

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/vision"
)

// TestAPromptThatWaitsForAnImageLeavesTheStepToOthers: it would keep its turn, and its tokens would be
// computed by no step, in each step until its image is there. So would those of the first prompt of all.
func TestAPromptThatWaitsForAnImageLeavesTheStepToOthers(t *testing.T) {
	const tokens = 64
	for name, waits := range map[string]batch.ID{"the first prompt": 1, "one that may pass it": 2} {
		sched, err := batch.New(batch.Limits{ContextTokens: 4096, CacheTokens: 16384, BlockTokens: block, Sequences: 4, Queue: 4})
		if err != nil {
			t.Fatal(err)
		}
		held := &sequences{byID: map[batch.ID]*sequence{}, sched: sched}
		b := &blocks{sequences: held}
		for i, prompt := range []int{4000, 2000, 2100} {
			id := batch.ID(i + 1)
			held.byID[id] = &sequence{id: id, tokens: make([]int32, prompt), prompt: prompt}
			if err := sched.Submit(batch.Request{ID: id, Prompt: prompt, Tenant: string(rune('a' + id))}); err != nil {
				t.Fatal(err)
			}
		}
		sched.Admit()
		image := &promptImage{span: vision.Span{Rows: 8, Columns: 8}}
		held.byID[waits].images = &promptImages{list: []*promptImage{image}}
		proposed := map[batch.ID]int{}
		total := 0
		for _, row := range b.propose(tokens, nil) {
			proposed[row.ID] += row.Length
			total += row.Length
		}
		if proposed[waits] != 0 || total != tokens {
			t.Errorf("%s waits for an image: a step has %v of %d tokens", name, proposed, tokens)
		}
		if len(b.wanted) != 1 || b.wanted[0].image != image {
			t.Errorf("%s: the images to encode are %v", name, b.wanted)
		}
	}
}
