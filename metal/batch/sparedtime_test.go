//go:build !race

package batch

import (
	"testing"
	"time"
)

// timed runs a scheduler next to a clock. A tenant "crowd" always has twice as many small requests as there are
// places, and others send one request after the other.
type timed struct {
	s              *Scheduler
	pace           Pace
	token          float64 // seconds of a prompt token; a step with answers takes 0.06 more
	small, large   Request
	others         []string
	last           ID
	now            float64
	idle           map[string]float64 // seconds since a request of a tenant ran
	longest        float64            // of these
	ended, offered int
}

func (c *timed) ask(t *testing.T, tenant string, r Request) {
	t.Helper()
	c.last++
	r.ID, r.Tenant = c.last, tenant
	submit(t, c.s, r)
}

// step runs a step.
func (c *timed) step(t *testing.T) {
	t.Helper()
	for v := c.s.tenants["crowd"]; v == nil || v.running+v.waiting < 2*c.s.limits.Sequences; v = c.s.tenants["crowd"] {
		c.ask(t, "crowd", c.small)
		c.offered++
	}
	for _, name := range c.others {
		v := c.s.tenants[name]
		if v == nil || v.running+v.waiting == 0 {
			c.ask(t, name, c.large)
		}
	}
	c.s.Yield()
	c.s.Admit()
	step := c.s.Plan(c.s.ProposeChunks(c.pace.Tokens(c.s.Work(), 512))...)
	load := step.Load()
	took := float64(load.PrefillTokens) * c.token
	if load.Decodes > 0 {
		took += 0.06
	}
	c.pace.Owe(load, time.Duration(took*1e9))
	c.pace.Took(load, time.Duration(took*1e9))
	c.s.Took(time.Duration(took * 1e9))
	run(t, c.s, step)
	c.now += took
	for _, name := range c.others {
		if c.idle[name] += took; c.s.tenants[name].running > 0 {
			c.idle[name] = 0
		}
		c.longest = max(c.longest, c.idle[name])
	}
	for _, row := range step.Rows {
		if r := c.s.all[row.ID]; r.done() {
			c.s.Remove(r.id)
			if r.tenant.name != "crowd" {
				c.ended++
			}
		}
	}
}

// TestSmallRequestsDoNotKeepOthersWaitingForLong: a turn of small requests lasted for 1,024 steps, in which no
// prompt of more than twice their blocks began, although it took one place or would have fitted, and although
// steps of prompts take long.
func TestSmallRequestsDoNotKeepOthersWaitingForLong(t *testing.T) {
	for _, c := range []struct {
		name         string
		token        float64
		small, large Request
		others       []string
		longest      float64
	}{
		{name: "prompts of a few blocks", token: 0.0025, small: Request{Prompt: 10, Tokens: 63}, large: Request{Prompt: 600, Tokens: 50}, others: []string{"a", "b"}, longest: 10},
		{name: "prompts that fit next to small ones", token: 0.0005, small: Request{Prompt: 10, Tokens: 63}, large: Request{Prompt: 6000, Tokens: 50}, others: []string{"a", "b"}, longest: 10},
		{name: "prompts that do not fit next to three", token: 0.0025, small: Request{Prompt: 3800, Tokens: 1}, large: Request{Prompt: 8000, Tokens: 50}, others: []string{"a"}, longest: 60},
		{name: "prompts that do not fit next to three answers", token: 0.00125, small: Request{Prompt: 3800, Tokens: 50}, large: Request{Prompt: 8000, Tokens: 50}, others: []string{"a"}, longest: 60},
	} {
		m := timed{s: scheduler(t, Limits{ContextTokens: 8192, CacheTokens: 16384, BlockTokens: 256, Sequences: 4, Queue: 64, Turn: 64}), token: c.token, small: c.small, large: c.large, others: c.others, idle: map[string]float64{}}
		for m.now < 1200 {
			m.step(t)
		}
		if m.longest > c.longest || m.ended == 0 {
			t.Errorf("%s: one did not run for %.0f s next to %d small requests in %.0f s, want at most %.0f s; %d ended", c.name, m.longest, m.offered, m.now, c.longest, m.ended)
		}
	}
}
