//go:build !race

package batch

import "testing"

// TestShortPromptsOfATenantHoldUpNoShortPromptOfAnother: prompts that are shorter than the head share
// half of each step. Those of one tenant, one after another, would leave a longer one of another
// nothing until the head is done.
func TestShortPromptsOfATenantHoldUpNoShortPromptOfAnother(t *testing.T) {
	const half = 256
	for _, c := range []struct {
		name, head   string
		short, other int
	}{
		{name: "the head is of the same tenant", head: "many", short: 900, other: 1000},
		{name: "the head is of a third tenant", head: "third", short: half, other: 1000},
	} {
		s := scheduler(t, Limits{ContextTokens: 100_000, CacheTokens: 400_000, BlockTokens: 16, Sequences: 4, Queue: 8})
		submit(t, s, Request{ID: 1, Prompt: 60_000, Tenant: c.head})
		run(t, s, plan(s, 2*half))
		submit(t, s, Request{ID: 2, Prompt: c.other, Tenant: "other"})
		next, steps := ID(3), 0
		for s.InKV(2) < c.other {
			for s.Running()+s.Waiting() < 4 {
				submit(t, s, Request{ID: next, Prompt: c.short, Tenant: "many"})
				next++
			}
			step := plan(s, 2*half)
			run(t, s, step)
			for _, r := range step.Rows {
				if r.Sample && r.ID > 2 {
					s.Remove(r.ID)
				}
			}
			if steps++; steps > 400 {
				break
			}
		}
		if most := 2*(c.other+half-1)/half + 2; steps > most {
			t.Errorf("%s: a prompt of %d tokens takes %d steps, want at most %d", c.name, c.other, steps, most)
		}
	}
}

// TestATenantThatLeavesAndComesBackHasHadItsPrompts: two tenants with one request each, one after
// the other, would have the head for ever, as if each came for the first time.
func TestATenantThatLeavesAndComesBackHasHadItsPrompts(t *testing.T) {
	const tokens, prompt, other = 512, 2048, 4096
	s := scheduler(t, Limits{ContextTokens: 100_000, CacheTokens: 400_000, BlockTokens: 16, Sequences: 4, Queue: 8})
	submit(t, s, Request{ID: 1, Prompt: other, Tenant: "other"})
	for s.InKV(1) < other {
		run(t, s, plan(s, tokens)) // its answer continues
	}
	next := ID(3)
	ask := func() {
		submit(t, s, Request{ID: next, Prompt: prompt, Tenant: []string{"a", "b"}[next%2]})
		next++
	}
	ask()
	ask()
	run(t, s, plan(s, tokens))
	submit(t, s, Request{ID: 2, Prompt: other, Tenant: "other"})
	steps := 0
	for ; s.InKV(2) < other && steps < 1000; steps++ {
		step := plan(s, tokens)
		run(t, s, step)
		for _, r := range step.Rows {
			if r.Sample && r.ID > 2 {
				s.Remove(r.ID)
				ask()
			}
		}
	}
	if most := 6 * other / tokens; steps > most {
		t.Errorf("a prompt of %d tokens takes %d steps of %d tokens, want at most %d", other, steps, tokens, most)
	}
	for id := range next {
		s.Remove(id)
	}
	if len(s.tenants) > 0 {
		t.Errorf("%d tenants are known without a request", len(s.tenants))
	}
}
