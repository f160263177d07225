//go:build !race

package batch

import (
	"fmt"
	"testing"
)

// crowd keeps every sequence busy with requests of one tenant, next to others that a test sends.
type crowd struct {
	s              *Scheduler
	last           ID
	prompt, answer int
	generated      int // tokens of the crowd
}

// ask sends a request, and returns it.
func (c *crowd) ask(t *testing.T, tenant string, prompt, tokens int) *request {
	t.Helper()
	c.last++
	submit(t, c.s, Request{ID: c.last, Prompt: prompt, Tokens: tokens, Tenant: tenant})
	return c.s.all[c.last]
}

// step runs a step. Requests that are done end, and new ones of the crowd come.
func (c *crowd) step(t *testing.T) {
	t.Helper()
	for v := c.s.tenants["crowd"]; v == nil || v.running+v.waiting < c.s.limits.Sequences+8; v = c.s.tenants["crowd"] {
		c.ask(t, "crowd", c.prompt, c.answer/2+int(c.last*337)%c.answer)
	}
	c.s.Yield()
	step := plan(c.s, 512)
	run(t, c.s, step)
	for _, row := range step.Rows {
		r := c.s.all[row.ID]
		if row.Sample && r.tenant.name == "crowd" {
			c.generated++
		}
		if r.done() {
			c.s.Remove(r.id)
		}
	}
}

// TestATenantThatGaveWayHasItsPlacesBack: a tenant whose requests gave way to some that leave soon was kept
// to what it had left, for many times as long as its requests had run, next to empty places.
func TestATenantThatGaveWayHasItsPlacesBack(t *testing.T) {
	const context, plans = 1 << 15, 1000
	for _, c := range []struct {
		name                                       string
		sequences, contexts, others, prompt, third int
	}{
		{name: "one prompt of the whole cache", sequences: 16, contexts: 1, others: 1, prompt: 32000},
		{name: "one prompt of the whole cache, and a third tenant", sequences: 16, contexts: 1, others: 1, prompt: 32000, third: 1},
		{name: "two prompts that fill the cache", sequences: 8, contexts: 2, others: 2, prompt: 32000, third: 1},
		{name: "short prompts of many tenants", sequences: 16, contexts: 2, others: 15, prompt: 500, third: 1},
		{name: "short prompts next to few sequences", sequences: 4, contexts: 2, others: 3, prompt: 500, third: 1},
	} {
		r := crowd{s: scheduler(t, Limits{ContextTokens: context, CacheTokens: c.contexts * context, BlockTokens: 256, Sequences: c.sequences, Queue: 64, Turn: 64}), prompt: 500, answer: 2000}
		if c.third > 0 {
			r.ask(t, "third", 100, 20_000)
		}
		for range 1800 {
			r.step(t)
		}
		var others []*request
		for i := range c.others {
			others = append(others, r.ask(t, fmt.Sprint(i), c.prompt, 50))
		}
		for range 30 {
			r.step(t)
		}
		for _, o := range others {
			r.s.Remove(o.id)
		}
		before := r.generated
		for range plans {
			r.step(t)
		}
		if places, want := float64(r.generated-before)/plans, float64(c.sequences-c.third-1)*0.85; places < want {
			t.Errorf("%s: a tenant generates %.2f tokens in a plan after others have left, want at least %.2f", c.name, places, want)
		}
	}
}

// TestLargePromptsThatComeAgainAndAgainHaveHalfOfTheTime: each took the places of all requests of another
// tenant, which kept only one.
func TestLargePromptsThatComeAgainAndAgainHaveHalfOfTheTime(t *testing.T) {
	const context, turn, sequences, plans, stay = 1 << 15, 64, 16, 12_000, 85
	for _, c := range []struct{ answer, others, queued, pause int }{
		{answer: 1000, others: 1, queued: 1, pause: 600}, {answer: 1000, others: 1, queued: 2}, {answer: 200, others: 2, queued: 1}, {answer: 20, others: 1, queued: 2}, {answer: 20, others: 2, queued: 1},
	} {
		r := crowd{s: scheduler(t, Limits{ContextTokens: context, CacheTokens: context, BlockTokens: 256, Sequences: sequences, Queue: 64, Turn: turn}), prompt: 500, answer: c.answer}
		for range 1000 {
			r.step(t)
		}
		began, before := map[*request]int{}, r.generated
		var large []*request
		waited, longest, ran := 0, 0, 0
		for now := range plans {
			if len(large) < c.others*c.queued && (c.pause == 0 || now%c.pause == 0) {
				large = append(large, r.ask(t, fmt.Sprint(now%c.others), 31_900, 700))
			}
			r.step(t)
			waited++
			for i := len(large) - 1; i >= 0; i-- {
				o := large[i]
				if o.running && began[o] == 0 {
					began[o], ran = now, ran+1
				}
				if o.running {
					longest, waited = max(longest, waited), 0
				}
				if began[o] > 0 && now >= began[o]+stay {
					r.s.Remove(o.id)
					large = append(large[:i], large[i+1:]...)
				}
			}
		}
		if places := float64(r.generated-before) / plans; places < 0.4*sequences {
			t.Errorf("%+v: a tenant generates %.2f tokens in a plan next to %d large prompts, want at least %.2f", c, places, ran, 0.4*sequences)
		}
		if most := 2*onlyTurns*turn + c.pause; ran == 0 || longest > most {
			t.Errorf("%+v: none of %d large prompts ran for %d plans, want at most %d", c, ran, longest, most)
		}
	}
}
