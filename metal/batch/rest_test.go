//go:build !race

package batch

import (
	"fmt"
	"testing"
)

// TestPromptsThatGaveWayAreNotComputedInVain: with short requests of other tenants that come and go, a long
// prompt that is admitted as soon as one ends gives way to the next, and is computed again each time.
func TestPromptsThatGaveWayAreNotComputedInVain(t *testing.T) {
	const turn = 16
	for _, pauses := range []int{5, 40} {
		b := bystanders{s: scheduler(t, Limits{ContextTokens: 8192, CacheTokens: 1 << 17, BlockTokens: 16, Sequences: 8, Queue: 64, Turn: turn}), random: 1}
		for range 10 {
			b.ask(t, "long", 5000+b.draw(2500), 50)
		}
		wakes := make([]int, 6)
		for i := range wakes {
			wakes[i] = b.draw(pauses)
		}
		for now := range 10_000 {
			for i, at := range wakes {
				if at == now {
					b.ask(t, fmt.Sprint(i), 50+b.draw(100), 10+b.draw(30))
					b.came[i] = now
				}
			}
			for _, tenant := range b.step(t, now) {
				if tenant == "long" {
					b.ask(t, tenant, 5000+b.draw(2500), 50)
				} else {
					wakes[int(tenant[0]-'0')] = now + 1 + b.draw(pauses)
				}
			}
		}
		if share := float64(b.useful) / float64(b.computed); share < 0.85 {
			t.Errorf("with pauses of %d steps, %.2f of the computed tokens are of requests that ended, want at least 0.85", pauses, share)
		}
		if b.longest > onlyTurns*turn || b.ended["long"] == 0 {
			t.Errorf("with pauses of %d steps, a short request waited for %d steps, and %d long ones ended", pauses, b.longest, b.ended["long"])
		}
	}
}

// bystanders counts what becomes of requests of several tenants.
type bystanders struct {
	s                *Scheduler
	last             ID
	random           uint64
	came             [6]int // when the tenant of a number came; 0: its request runs
	longest          int
	computed, useful int
	ended            map[string]int
}

func (b *bystanders) draw(n int) int {
	b.random = b.random*6364136223846793005 + 1442695040888963407 // Knuth's MMIX
	return int(b.random>>33) % n
}

func (b *bystanders) ask(t *testing.T, tenant string, prompt, tokens int) {
	t.Helper()
	b.last++
	submit(t, b.s, Request{ID: b.last, Prompt: prompt, Tokens: tokens, Tenant: tenant})
}

// step runs a step, and returns the tenants whose requests ended.
func (b *bystanders) step(t *testing.T, now int) (tenants []string) {
	t.Helper()
	b.s.Yield()
	step := plan(b.s, 512)
	run(t, b.s, step)
	for _, row := range step.Rows {
		r := b.s.all[row.ID]
		b.computed += row.Length
		if i := int(r.tenant.name[0] - '0'); i < len(b.came) && b.came[i] > 0 {
			b.longest, b.came[i] = max(b.longest, now-b.came[i]), 0
		}
		if r.done() {
			b.s.Remove(r.id)
			b.useful += r.known
			if b.ended == nil {
				b.ended = map[string]int{}
			}
			b.ended[r.tenant.name]++
			tenants = append(tenants, r.tenant.name)
		}
	}
	return tenants
}
