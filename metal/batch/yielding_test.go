//go:build !race

package batch

import (
	"fmt"
	"slices"
	"testing"
)

// The requests that may give way are found once in a step, for all that wait: a tenant may queue many
// that do not fit.
func TestPromptsThatDoNotFitAreNoWorkForEachStep(t *testing.T) {
	work := func(queued int) float64 {
		s := scheduler(t, Limits{ContextTokens: 131072, CacheTokens: 196608, BlockTokens: 64, Sequences: 64, Queue: 64, Turn: 64})
		id := ID(0)
		submit := func(tenant string, prompt int) {
			id++
			if err := s.Submit(Request{ID: id, Prompt: prompt, Tenant: tenant}); err != nil {
				t.Fatal(err)
			}
		}
		submit("long", 100_000)
		for i := range 63 {
			submit(fmt.Sprint("short", i%2), 20)
		}
		for range 300 {
			s.Yield()
			run(t, s, plan(s, 4096))
		}
		for range queued {
			submit("queues", 120_000)
		}
		return testing.AllocsPerRun(3, func() {
			if ids := s.Yield(); len(ids) > 0 {
				t.Fatalf("%d requests gave way in vain", len(ids))
			}
		})
	}
	if one, many := work(1), work(43); one == 0 || many > 2*one {
		t.Errorf("%v allocations with 43 prompts that do not fit, %v with one", many, one)
	}
}

// TestALongPromptIsNotComputedInVainNextToAnswersThatGrow: the prompt is younger than all answers of the
// other tenant, which fill the cache. That tenant's own youngest are preempted, before and after the
// prompt is computed.
func TestALongPromptIsNotComputedInVainNextToAnswersThatGrow(t *testing.T) {
	const context, prompt = 4096, 3000
	s := scheduler(t, Limits{ContextTokens: context, CacheTokens: 2 * context, BlockTokens: 16, Sequences: 8, Queue: 8, Turn: 64})
	for id := ID(2); id < 10; id++ {
		submit(t, s, Request{ID: id, Prompt: 8, Tokens: context - 8, Tenant: "many"})
	}
	preempted, steps := 0, 0
	step := func() {
		s.Yield()
		step := plan(s, 16)
		if slices.Contains(step.Preempted, 1) {
			t.Fatalf("the only request of a tenant is preempted with %d tokens while another runs %d", s.all[1].known, s.Running())
		}
		preempted += len(step.Preempted)
		run(t, s, step)
		steps++
	}
	for range 600 {
		step()
	}
	submit(t, s, Request{ID: 1, Prompt: prompt, Tenant: "other"})
	for s.all[1].known < prompt+500 && steps < 3000 {
		step()
	}
	if s.all[1].known < prompt+500 || preempted == 0 {
		t.Errorf("after %d steps, %d of %d tokens are known, and %d of the other tenant were preempted", steps, s.all[1].known, prompt+500, preempted)
	}
}

// TestLargePromptsOfTwoTenantsDoNotKeepAnotherWaiting: together they hold the cache, while the tokens of one of
// them are computed. The other gives its blocks to short requests, and both end all the same.
func TestLargePromptsOfTwoTenantsDoNotKeepAnotherWaiting(t *testing.T) {
	const context, pause = 8192, 20
	s := scheduler(t, Limits{ContextTokens: context, CacheTokens: 2 * context, BlockTokens: 16, Sequences: 4, Queue: 8, Turn: 64})
	large := Request{Prompt: context - 8, Tokens: 4}
	id, sent, ended, waited, longest := ID(0), map[string]int{}, map[string]int{}, 0, 0
	ask := func(tenant string, r Request) {
		id++
		r.ID, r.Tenant = id, tenant
		submit(t, s, r)
		sent[tenant]++
	}
	swapped := 0
	for step := range 8000 {
		for _, tenant := range []string{"a", "b", "d"} {
			if sent[tenant] == ended[tenant] {
				ask(tenant, large)
			}
		}
		if sent["c"] == ended["c"] && step%pause == 0 {
			ask("c", Request{Prompt: 20, Tokens: 5})
		}
		swapped += len(s.Yield())
		next := plan(s, 32)
		run(t, s, next)
		if waited++; s.tenants["c"] == nil || s.tenants["c"].waiting == 0 {
			waited = 0
		}
		longest = max(longest, waited)
		for _, row := range next.Rows {
			if r := s.all[row.ID]; r.done() {
				s.Remove(r.id)
				ended[r.tenant.name]++
			}
		}
	}
	if longest > 2 {
		t.Errorf("a short request waited for %d steps of those in which two large prompts hold the cache", longest)
	}
	for _, tenant := range []string{"a", "b", "d"} {
		if ended[tenant] < 8 {
			t.Errorf("%d large requests of %s ended, of all %v", ended[tenant], tenant, ended)
		}
	}
	if swapped > sent["c"] {
		t.Errorf("%d requests gave way to %d short ones", swapped, sent["c"])
	}
}
