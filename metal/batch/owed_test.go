//go:build !race

package batch

import (
	"fmt"
	"testing"
	"time"
)

// single is an engine with one sequence, on a simulated clock.
type single struct {
	s     *Scheduler
	now   time.Duration
	last  ID
	large Request
	// long are tenants that always have that many large requests, and short the pauses of those that send a small one
	// after the other, at next.
	long        map[string]int
	short, next map[string]time.Duration
	// generated tokens, and requests that ended, of each tenant.
	generated, ended map[string]int
}

func newSingle(t *testing.T, large Request) *single {
	t.Helper()
	const context = 131_072
	return &single{s: scheduler(t, Limits{ContextTokens: context, CacheTokens: context, BlockTokens: 64, Sequences: 1, Queue: 64, Turn: 64}), large: large,
		long: map[string]int{}, short: map[string]time.Duration{}, next: map[string]time.Duration{}, generated: map[string]int{}, ended: map[string]int{}}
}

func (c *single) ask(t *testing.T, tenant string, r Request) {
	t.Helper()
	c.last++
	r.ID, r.Tenant = c.last, tenant
	submit(t, c.s, r)
}

func (c *single) queued(tenant string) int {
	if v := c.s.tenants[tenant]; v != nil {
		return v.running + v.waiting
	}
	return 0
}

// play runs steps of a token of 1 ms, or an answer's of 30 ms, for some time.
func (c *single) play(t *testing.T, length time.Duration) {
	t.Helper()
	for end := c.now + length; c.now < end; {
		for tenant, n := range c.long {
			for c.queued(tenant) < n {
				c.ask(t, tenant, c.large)
			}
		}
		for tenant := range c.short {
			if c.queued(tenant) == 0 && c.now >= c.next[tenant] {
				c.ask(t, tenant, Request{Prompt: 200, Tokens: 100})
			}
		}
		c.s.Yield()
		c.s.Admit()
		step := c.s.Plan(c.s.ProposeChunks(512)...)
		load := step.Load()
		if len(step.Rows) == 0 {
			c.now += sparedStep
			continue
		}
		took := time.Millisecond + time.Duration(load.PrefillTokens)*time.Millisecond
		if load.Decodes > 0 {
			took += 30 * time.Millisecond
		}
		c.s.Took(took)
		c.now += took
		run(t, c.s, step)
		for _, row := range step.Rows {
			r := c.s.all[row.ID]
			if row.Sample {
				c.generated[r.tenant.name]++
			}
			if r.done() {
				c.s.Remove(r.id)
				c.ended[r.tenant.name]++
				c.next[r.tenant.name] = c.now + c.short[r.tenant.name]
			}
		}
	}
}

// TestAttackLongRequestsInTheOnlySequence: another tenant, which sends one short request after another, waits for a
// whole turn of them before each. Both have their part of the time.
func TestAttackLongRequestsInTheOnlySequence(t *testing.T) {
	const length = 2 * time.Hour
	for _, c := range []struct {
		large Request
		n     int
	}{{Request{Prompt: 100_000, Tokens: 20_000}, 2}, {Request{Prompt: 500, Tokens: 20_000}, 2}, {Request{Prompt: 100_000, Tokens: 3000}, 1}, {Request{Prompt: 500, Tokens: 3000}, 1}} {
		large := c.large
		for _, pause := range []time.Duration{100 * time.Millisecond, 5 * time.Second} {
			t.Run(fmt.Sprintf("%d of %d and %d tokens, %v", c.n, large.Prompt, large.Tokens, pause), func(t *testing.T) {
				alone := newSingle(t, large)
				alone.short["short"] = pause
				alone.play(t, length)
				without := newSingle(t, large)
				without.long["long"] = c.n
				without.play(t, length)
				both := newSingle(t, large)
				both.long["long"], both.short["short"] = c.n, pause
				both.play(t, length)
				if got, all := both.ended["short"], alone.ended["short"]; got < all/3 {
					t.Errorf("%d of %d short requests are answered next to long ones", got, all)
				}
				if got, all := both.generated["long"], without.generated["long"]; got < all/4 {
					t.Errorf("%d of %d tokens of long requests are generated next to short ones", got, all)
				}
			})
		}
	}
}
