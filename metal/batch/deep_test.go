//go:build !race

package batch

import (
	"fmt"
	"testing"
	"time"
)

// device computes steps on a simulated device: a token takes twice as long at a context of double tokens.
type device struct {
	s      *Scheduler
	pace   Pace
	double float64
	next   ID
	clock  float64
	// steps with an answer, and those of them that took more than four times as long as without a prompt.
	steps, slow int
}

func (d *device) ask(t *testing.T, tenant string, tokens int) ID {
	t.Helper()
	d.next++
	submit(t, d.s, Request{ID: d.next, Prompt: tokens, Tenant: tenant})
	return d.next
}

func (d *device) step(t *testing.T) {
	t.Helper()
	d.s.Yield()
	d.s.Admit()
	w := d.s.Work()
	d.s.Weigh(d.pace.Growth(w))
	step := d.s.Plan(d.s.ProposeChunks(d.pace.Tokens(w, d.s.limits.Chunk))...)
	took := 0.012
	for _, r := range step.Rows {
		if r.Decode() {
			took += 0.001
		} else {
			took += float64(r.Length) * 0.00067 * (1 + (float64(r.Start)+float64(r.Length)/2)/d.double)
		}
		if err := d.s.Computed(r); err != nil {
			t.Fatal(err)
		}
		if r.Sample {
			if err := d.s.Grow(r.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := step.Decodes(); n > 0 {
		if d.steps++; took > 4*(0.012+0.001*float64(n)) {
			d.slow++
		}
	}
	d.clock += took
	d.pace.Owe(step.Load(), time.Duration(took*1e9))
	d.pace.Took(step.Load(), time.Duration(took*1e9))
}

// prompt returns in how many seconds a prompt is computed.
func (d *device) prompt(t *testing.T, tenant string, tokens int) float64 {
	t.Helper()
	began, id := d.clock, d.ask(t, tenant, tokens)
	for d.s.InKV(id) < tokens {
		d.step(t)
	}
	d.s.Remove(id)
	return d.clock - began
}

// A prompt next to one of nearly the whole context has half of the time, not half of the tokens, and steps with
// answers stay short, although only short prompts were computed alone.
func TestADeepPromptTakesHalfOfTheTime(t *testing.T) {
	const context, prompt = 262_144, 2048
	for _, c := range []struct{ answers, chunk int }{{0, 512}, {2, 512}, {2, 2048}} {
		answers := c.answers
		d := device{double: 8400, s: scheduler(t, Limits{ContextTokens: context, CacheTokens: 4 * context, BlockTokens: 256, Sequences: 8, Queue: 8, Chunk: c.chunk, Turn: 64})}
		for range 10 {
			d.prompt(t, "short", prompt)
		}
		for range answers {
			d.ask(t, "answers", 16)
			d.step(t)
		}
		for range 5 {
			d.prompt(t, "short", prompt)
			for range 40 * answers {
				d.step(t)
			}
		}
		alone := d.prompt(t, "short", prompt)
		deep := d.ask(t, "deep", context-1000)
		d.steps, d.slow = 0, 0
		for _, at := range []int{65_000, 130_000, 230_000} {
			for d.s.InKV(deep) < at {
				d.step(t)
			}
			if took := d.prompt(t, "short", prompt); took > 3.5*alone {
				t.Errorf("%+v: next to a prompt of which %d tokens are computed a short one takes %.1f s, alone %.1f s", c, at, took, alone)
			}
		}
		if d.slow > d.steps/100 {
			t.Errorf("%+v: %d of %d steps take more than 4 times as long as without a prompt", c, d.slow, d.steps)
		}
	}
}

// A short rest of a prompt that is deep costs more than a longer one without context, and holds up none of these.
func TestAShortRestOfADeepPromptHoldsUpNoPrompt(t *testing.T) {
	const context, prompt, deep = 262_144, 2048, 250_000
	d := device{double: 8400, s: scheduler(t, Limits{ContextTokens: context, CacheTokens: 4 * context, BlockTokens: 256, Sequences: 8, Queue: 8, Chunk: 512, Turn: 64})}
	for range 10 {
		d.prompt(t, "short", prompt)
	}
	alone := d.prompt(t, "short", prompt)
	for range 3 {
		id := d.ask(t, "deep", deep+2000)
		d.s.Admit()
		if err := d.s.Restored(id, deep); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			d.step(t)
		}
		if took := d.prompt(t, "short", prompt); took > 5*alone {
			t.Errorf("next to a rest of 2000 tokens after %d a prompt takes %.1f s, alone %.1f s", deep, took, alone)
		}
		for d.s.InKV(id) < deep+2000 {
			d.step(t)
		}
		d.s.Remove(id)
	}
}

// A token at a deep context may cost more than the half of a step that prompts share. The others have as much before
// the next one.
func TestATokenThatCostsMoreThanAHalfIsATurnOfAsMuch(t *testing.T) {
	const budget, deep, prompt = 12, 250_000, 1000
	s := scheduler(t, Limits{ContextTokens: 262_144, CacheTokens: 1 << 20, BlockTokens: 256, Sequences: 8, Queue: 8, Turn: 64})
	s.Weigh(1.0 / 8400)
	submit(t, s, Request{ID: 1, Prompt: 60_000, Tenant: "head"})
	run(t, s, plan(s, budget))
	submit(t, s, Request{ID: 2, Prompt: deep + 1000, Tenant: "deep"})
	s.Admit()
	if err := s.Restored(2, deep); err != nil {
		t.Fatal(err)
	}
	submit(t, s, Request{ID: 3, Prompt: prompt, Tenant: "short"})
	steps := 0
	for ; s.InKV(3) < prompt; steps++ {
		run(t, s, plan(s, budget))
	}
	if most := 3 * prompt / budget; steps > most {
		t.Errorf("a prompt of %d tokens takes %d steps of %d, want at most %d", prompt, steps, budget, most)
	}
	if got, least := s.InKV(1), steps*budget/2; got < least {
		t.Errorf("the head has %d tokens after %d steps, want at least %d", got, steps, least)
	}
	if got := s.InKV(2) - deep; got < 10 {
		t.Errorf("the deep prompt has %d tokens after %d steps", got, steps)
	}
}

// A tenant that comes for the first time has had as much as each of those that are there: others that had a prompt
// before would wait for all that come.
func TestTenantsThatComeForTheFirstTimeAreNotAlwaysNext(t *testing.T) {
	const own, budget = 30_000, 512
	for _, prompt := range []int{4096, 20_480} {
		s := scheduler(t, Limits{ContextTokens: 131_072, CacheTokens: 524_288, BlockTokens: 256, Sequences: 8, Queue: 64, Turn: 64})
		next, fresh, known := ID(10), false, 0
		come := func() {
			submit(t, s, Request{ID: next, Prompt: prompt, Tenant: fmt.Sprint(next), Tokens: 2})
			next++
		}
		compute := func(id ID) (spent int) {
			submit(t, s, Request{ID: id, Prompt: own, Tenant: "known", Tokens: 2})
			for s.all[id] != nil && spent < 100*own {
				step := plan(s, budget)
				run(t, s, step)
				spent += step.Tokens()
				for _, r := range step.Rows {
					if r.Sample {
						s.Remove(r.ID)
						if r.ID >= 10 && fresh {
							come()
						}
					}
				}
				known = max(known, len(s.tenants))
			}
			return spent
		}
		compute(1)
		fresh = true
		come()
		come()
		for id := range ID(3) {
			if spent := compute(2 + id); spent > 4*own {
				t.Errorf("a prompt of %d tokens next to those of %d of new tenants is computed after %d", own, prompt, spent)
			}
		}
		if known > 16 {
			t.Errorf("%d tenants are known", known)
		}
	}
}
