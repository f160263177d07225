//go:build !race

package batch

import (
	"fmt"
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
