//go:build !race

package batch

import (
	"fmt"
	"testing"
)

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

// A request of a tenant that runs none waits for at most one of each other tenant, however many these
// have queued before, also where one request at a time fits.
func TestATenantThatRunsNoneDoesNotWaitForTheQueueOfAnother(t *testing.T) {
	const context, queued, asked = 1024, 8, 40
	for _, c := range []struct {
		name             string
		cache, sequences int
		tenants          int
	}{
		{name: "room for one context", cache: context, sequences: 4, tenants: 1},
		{name: "one sequence", cache: 2 * context, sequences: 1, tenants: 1},
		{name: "one sequence, two tenants", cache: 2 * context, sequences: 1, tenants: 2},
		{name: "two tenants", cache: 2 * context, sequences: 4, tenants: 2},
	} {
		s := scheduler(t, Limits{ContextTokens: context, CacheTokens: c.cache, BlockTokens: 16, Sequences: c.sequences, Queue: 64, Turn: 64})
		next := ID(asked)
		ask := func(tenant string) {
			next++
			submit(t, s, Request{ID: next, Prompt: context - 50, Tenant: tenant})
		}
		for i := range queued * c.tenants {
			ask(fmt.Sprint(i % c.tenants))
		}
		s.Admit()
		for id := ID(0); id < asked; id++ {
			submit(t, s, Request{ID: id, Prompt: 100, Tenant: "other"})
			ended := 0
			for ; !s.all[id].running; s.Admit() {
				first := s.running[0]
				s.Remove(first.id)
				ask(first.tenant.name)
				ended++
			}
			if ended > c.tenants {
				t.Errorf("%s: request %d waited until %d of other tenants had ended, want at most one of each", c.name, id, ended)
				break
			}
			s.Remove(id)
			s.Admit()
		}
	}
}

// Runs that no row divides, as of images, take no more of the steps of an answer than text does, and leave
// a shorter prompt of another tenant its half.
func TestRunsOfAPromptTakeNoMoreThanText(t *testing.T) {
	const budget, image, images, other = 8, 256, 20, 200
	s := scheduler(t, Limits{ContextTokens: 100_000, CacheTokens: 400_000, BlockTokens: 16, Sequences: 4, Queue: 8})
	submit(t, s, Request{ID: 1, Prompt: 4, Tenant: "answers"})
	run(t, s, plan(s, budget))
	pictures := Request{ID: 2, Prompt: images * image, Tenant: "images"}
	for i := range images {
		pictures.Whole = append(pictures.Whole, Span{i * image, (i + 1) * image})
	}
	submit(t, s, pictures)
	run(t, s, plan(s, budget))
	submit(t, s, Request{ID: 3, Prompt: other, Tenant: "other"})
	steps := 1
	for ; s.InKV(3) < other && steps < 1000; steps++ {
		run(t, s, plan(s, budget))
	}
	if most := 2*other/budget + 2*image/budget; steps > most {
		t.Errorf("a prompt of %d tokens next to images takes %d steps, want at most %d", other, steps, most)
	}
	s.Remove(3)
	for ; steps < 500; steps++ {
		run(t, s, plan(s, budget))
	}
	if got, most := s.InKV(2)+other, steps*budget+image; got > most || got < most-2*image {
		t.Errorf("%d tokens are computed in %d steps of %d, want about %d", got, steps, budget, most)
	}
	s.Remove(1)
	if run(t, s, plan(s, budget)); s.InKV(2)%image != 0 || len(s.ProposeChunks(budget)) == 0 {
		t.Errorf("the images wait after %d tokens although nothing is decoded", s.InKV(2))
	}
}

// Several prompts with runs that no row divides, while nothing is decoded: each step computes some of the
// longest, also if the runs of the others take more than a step has.
func TestPromptsOfRunsAllAdvance(t *testing.T) {
	for budget := 1; budget < 200; budget += 7 {
		s := scheduler(t, Limits{ContextTokens: 1000, CacheTokens: 4000, BlockTokens: 16, Sequences: 4, Queue: 8, Boundary: 64})
		for id := range ID(4) {
			r := Request{ID: 1 + id, Prompt: 250 - 60*int(id), Tenant: string(rune('a' + id))}
			for at := 13; at+36 <= r.Prompt; at += 40 {
				r.Whole = append(r.Whole, Span{at, at + 36})
			}
			submit(t, s, r)
		}
		s.Admit()
		for range 100 {
			chunks := s.ProposeChunks(budget)
			for _, c := range chunks {
				if c.Length < 1 {
					t.Fatalf("%d tokens at a time: proposed %+v", budget, chunks)
				}
			}
			run(t, s, s.Plan(chunks...))
		}
	}
}
