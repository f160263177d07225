//go:build !race

package batch

import (
	"fmt"
	"slices"
	"testing"
)

// long returns requests of one tenant that fill their context.
func long(tenant string, ids ...ID) (all []Request) {
	for _, id := range ids {
		all = append(all, Request{ID: id, Prompt: 8, Tenant: tenant})
	}
	return all
}

// steps runs a scheduler for n steps and returns which requests gave way.
func steps(t *testing.T, s *Scheduler, n int) (gave []ID) {
	t.Helper()
	for range n {
		gave = append(gave, s.Yield()...)
		run(t, s, plan(s, 64))
	}
	return gave
}

// runningOf returns the running requests, in the order of their IDs.
func runningOf(s *Scheduler) []ID {
	ids := slices.Clone(s.IDs()[:s.Running()])
	slices.Sort(ids)
	return ids
}

// A tenant with many long requests holds every sequence only while no other waits.
func TestATenantThatRunsNoneDoesNotWaitForTheLongRequestsOfAnother(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 4000, CacheTokens: 16000, BlockTokens: 16, Sequences: 3, Queue: 50, Turn: 20})
	submit(t, s, long("a", 1, 2, 3, 4, 5)...)
	if gave := steps(t, s, 100); len(gave) > 0 || s.Running() != 3 {
		t.Fatalf("%v gave way while no other tenant waits, %d run", gave, s.Running())
	}
	submit(t, s, long("b", 11, 12)...)
	if gave := steps(t, s, 1); len(gave) != 1 {
		t.Fatalf("%v gave way, want one", gave)
	}
	if got := runningOf(s); !slices.Contains(got, 11) || s.Running() != 3 {
		t.Fatalf("%v run, want the first of b and two of a", got)
	}
	if gave := steps(t, s, 200); len(gave) > 0 || slices.Contains(runningOf(s), 12) {
		t.Errorf("%v gave way to a tenant that runs one", gave)
	}
	submit(t, s, long("c", 21)...)
	if gave := steps(t, s, 1); len(gave) != 1 || !slices.Contains(runningOf(s), 21) || !slices.Contains(runningOf(s), 11) {
		t.Errorf("%v gave way to c, %v run", gave, runningOf(s))
	}
	submit(t, s, long("d", 31)...)
	if gave := steps(t, s, 10); len(gave) > 0 {
		t.Errorf("%v gave way although each tenant runs one and none had a longer turn", gave)
	}
	if gave := steps(t, s, 20); len(gave) != 1 || !slices.Contains(runningOf(s), 31) {
		t.Errorf("%v gave way to d after a longer turn, %v run", gave, runningOf(s))
	}
}

// Those that gave way came before one that has not run yet, and would run again and again before it.
func TestATenantThatComesLaterHasItsTurn(t *testing.T) {
	for _, c := range []struct{ sequences, others int }{{sequences: 1, others: 2}, {sequences: 4, others: 5}, {sequences: 4, others: 12}} {
		s := scheduler(t, Limits{ContextTokens: 20000, CacheTokens: 400000, BlockTokens: 16, Sequences: c.sequences, Queue: 50, Turn: 4})
		for n := range c.others {
			submit(t, s, long(fmt.Sprint("other ", n), ID(n+1))...)
		}
		steps(t, s, 200)
		submit(t, s, long("late", 100)...)
		const all = 4000
		ran := 0
		for range all {
			steps(t, s, 1)
			if slices.Contains(runningOf(s), 100) {
				ran++
			}
		}
		if share := all * c.sequences / (c.others + 1); ran < share*9/10 {
			t.Errorf("next to %d tenants a later one ran in %d of %d steps, want about %d", c.others, ran, all, share)
		}
	}
}

// A freed sequence is the waiting tenant's that runs the fewest, although others wait longer.
func TestTheTenantThatRunsTheFewestIsAdmittedFirst(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 400, CacheTokens: 4000, BlockTokens: 16, Sequences: 3, Queue: 50, Turn: 1 << 20})
	submit(t, s, long("a", 1, 2, 3, 4, 5, 6)...)
	submit(t, s, long("b", 11, 12)...)
	steps(t, s, 1)
	for _, end := range []struct{ ended, next ID }{{ended: 1, next: 11}, {ended: 2, next: 4}, {ended: 11, next: 12}} {
		s.Remove(end.ended)
		steps(t, s, 1)
		if got := runningOf(s); !slices.Contains(got, end.next) {
			t.Fatalf("after %d, %v run, want %d too", end.ended, got, end.next)
		}
	}
}

func TestARequestHasATurnBeforeItGivesWay(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 4000, CacheTokens: 16000, BlockTokens: 16, Sequences: 2, Queue: 50, Turn: 20})
	submit(t, s, Request{ID: 1, Prompt: 1600, Tenant: "a"}, Request{ID: 2, Prompt: 1600, Tenant: "a"})
	for range 25 {
		run(t, s, plan(s, 1600))
	}
	submit(t, s, long("b", 11)...)
	if gave := steps(t, s, 70); len(gave) > 0 {
		t.Errorf("%v gave way before they had generated a sixteenth of their length", gave)
	}
	if gave := steps(t, s, 30); len(gave) != 1 {
		t.Errorf("%v gave way after their turn, want one", gave)
	}
}

// A request that fills the cache gives way as well, but nothing gives way in vain.
func TestBlocksAreGivenToATenantThatRunsNone(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 100, CacheTokens: 110, BlockTokens: 10, Sequences: 8, Queue: 50, Turn: 2})
	submit(t, s, Request{ID: 1, Prompt: 40, Tenant: "a"}, Request{ID: 2, Prompt: 50, Tenant: "a"})
	steps(t, s, 4)
	submit(t, s, Request{ID: 11, Prompt: 90, Tenant: "b"})
	if gave := steps(t, s, 1); len(gave) > 0 {
		t.Errorf("%v gave way to a request that does not fit anyway", gave)
	}
	s.Remove(11)
	submit(t, s, Request{ID: 12, Prompt: 40, Tenant: "b"})
	if gave := steps(t, s, 1); len(gave) != 1 || !slices.Contains(runningOf(s), 12) {
		t.Errorf("%v gave way, %v run", gave, runningOf(s))
	}
}

// The last request of a tenant that was overtaken by others of its own does not keep a
// tenant waiting that runs none.
func TestAPatientRequestDoesNotHoldUpOtherTenants(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 60, CacheTokens: 60, BlockTokens: 10, Sequences: 2, Queue: 50, Turn: 1 << 20})
	submit(t, s, Request{ID: 1, Prompt: 20, Tenant: "a"}, Request{ID: 2, Prompt: 60, Tenant: "a"})
	for id := ID(3); id < 30; id++ {
		submit(t, s, Request{ID: id, Prompt: 10, Tenant: "a"})
	}
	s.Admit()
	for id := ID(3); s.Running() == 2; id++ {
		s.Remove(id)
		s.Admit()
	}
	submit(t, s, Request{ID: 50, Prompt: 10, Tenant: "b"})
	if got := s.Admit(); !slices.Equal(got, []ID{50}) {
		t.Errorf("%v was admitted, want the request of the other tenant", got)
	}
}

func TestNoStepIsBuiltAheadOfARequestThatGivesWay(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 400, CacheTokens: 4000, BlockTokens: 16, Sequences: 2, Queue: 50, Turn: 5})
	submit(t, s, long("a", 1, 2)...)
	steps(t, s, 10)
	step := plan(s, 64)
	if !s.CanPipeline(step) {
		t.Fatal("two requests that decode cannot be pipelined")
	}
	submit(t, s, long("b", 11)...)
	if s.CanPipeline(step) {
		t.Error("the next step can be pipelined although a request gives way before it")
	}
}

// The prompts of a tenant that sent many long ones delay that of another by one of them.
func TestTheNextHeadIsOfTheTenantWithTheFewestPrefillTokens(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 1000, CacheTokens: 9000, BlockTokens: 10, Sequences: 8, Queue: 9})
	heads := func(steps int) (ids []ID) {
		for range steps {
			step := plan(s, 100)
			if head := step.Rows[0].ID; len(ids) == 0 || ids[len(ids)-1] != head {
				ids = append(ids, head)
			}
			run(t, s, step)
			for _, r := range step.Rows {
				if r.Sample {
					s.Remove(r.ID)
				}
			}
		}
		return ids
	}
	for id := range ID(5) {
		submit(t, s, Request{ID: 1 + id, Prompt: 600, Tenant: "a"})
	}
	if got := heads(7); !slices.Equal(got, []ID{1, 2}) {
		t.Fatalf("the heads are %v", got)
	}
	submit(t, s, Request{ID: 11, Prompt: 600, Tenant: "b"}, Request{ID: 12, Prompt: 600, Tenant: "b"})
	if got, want := heads(5+6+6+6), []ID{2, 11, 3, 12}; !slices.Equal(got, want) {
		t.Errorf("the heads are %v, want %v", got, want)
	}
	// A tenant that comes late has no claim on what others had before: of those that had no more than each, the oldest is next.
	submit(t, s, Request{ID: 21, Prompt: 600, Tenant: "c"}, Request{ID: 22, Prompt: 600, Tenant: "c"})
	if got, want := heads(6+6+6), []ID{4, 21, 5}; !slices.Equal(got, want) {
		t.Errorf("with a tenant that came late the heads are %v, want %v", got, want)
	}
}

// A tenant that holds every sequence with prompts of which nothing is computed yet gives
// way at once.
func TestAPromptThatHasNotBegunGivesWay(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 4000, CacheTokens: 16000, BlockTokens: 16, Sequences: 3, Queue: 50, Turn: 20})
	for id := range ID(3) {
		submit(t, s, Request{ID: 1 + id, Prompt: 3000, Tenant: "a"})
	}
	run(t, s, plan(s, 64))
	submit(t, s, Request{ID: 11, Prompt: 3000, Tenant: "b"})
	gave := s.Yield()
	if s.Admit(); len(gave) != 1 || gave[0] == 1 || !slices.Contains(runningOf(s), 11) {
		t.Errorf("%v gave way, %v run; want one of which nothing was computed to give way to 11", gave, runningOf(s))
	}
}

// TestAttackTenantsThatHoldTheCache: two tenants hold most of the cache with one long answer
// each, and a third sends prompts that do not fit with these. What stands still for such a
// prompt does so for a turn and not until a long answer ends, regardless of its priority.
func TestAttackTenantsThatHoldTheCache(t *testing.T) {
	const turn, size = 2, 400
	for _, priority := range []int{0, -1} {
		s := scheduler(t, Limits{ContextTokens: size, CacheTokens: 2 * size, BlockTokens: 16, Sequences: 4, Queue: 50, Turn: turn})
		asks := map[string]Request{
			"x": {Prompt: 200, Tokens: 190}, "y": {Prompt: 200, Tokens: 190}, "z": {Prompt: 390, Tokens: 5, Priority: priority}, "honest": {Prompt: 8, Tokens: 5},
		}
		id := ID(0)
		ask := func(tenant string) {
			r := asks[tenant]
			id++
			r.ID, r.Tenant = id, tenant
			submit(t, s, r)
		}
		for _, tenant := range []string{"x", "y", "z", "honest"} {
			ask(tenant)
		}
		still, longest, ended := 0, 0, map[string]int{}
		for range 2000 {
			s.Yield()
			step := plan(s, 64)
			run(t, s, step)
			still++
			for _, row := range step.Rows {
				r := s.all[row.ID]
				tenant := r.tenant.name
				if tenant == "honest" {
					longest, still = max(longest, still), 0
				}
				if r.done() {
					s.Remove(r.id)
					ended[tenant]++
					ask(tenant)
				}
			}
		}
		if most := onlyTurns*turn + 2*size/64; longest > most {
			t.Errorf("with priority %d, a tenant stood still for %d steps, want at most %d", priority, longest, most)
		}
		for tenant := range asks {
			if ended[tenant] == 0 {
				t.Errorf("with priority %d, no request of %s ended, of others %v", priority, tenant, ended)
			}
		}
	}
}

// While the head is held, the others advance by the same rules, and it stays the head.
func TestAHeldPromptLetsOthersPass(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 400, CacheTokens: 4000, BlockTokens: 16, Sequences: 3, Queue: 50, Turn: 1 << 20})
	submit(t, s, Request{ID: 1, Prompt: 300, Tenant: "a"}, Request{ID: 2, Prompt: 200, Tenant: "a"}, Request{ID: 11, Prompt: 300, Tenant: "b"})
	s.Admit()
	run(t, s, s.Plan(s.ProposeChunks(10)...))
	firstOf := func(held ...ID) ID {
		if chunks := s.ProposeChunks(20, held...); len(chunks) > 0 {
			return chunks[0].ID
		}
		return 0
	}
	if got := []ID{firstOf(1), firstOf(1, 2, 11), firstOf()}; !slices.Equal(got, []ID{11, 0, 1}) {
		t.Errorf("%v are first, want 11 of the other tenant, none, and the head", got)
	}
}

// Long prompts of one tenant that hold every sequence, or the cache, keep a tenant that runs none waiting
// neither until they are computed nor until each has generated a part of its length. They end all the same.
func TestLongPromptsThatHaveBegunGiveWay(t *testing.T) {
	const size, turn = 32_768, 8
	for _, c := range []struct {
		name                   string
		prompts, prompt, other int
	}{
		{name: "sequences", prompts: 4, prompt: size / 2, other: 50},
		{name: "cache", prompts: 2, prompt: size - size/16, other: size / 4},
	} {
		s := scheduler(t, Limits{ContextTokens: size, CacheTokens: 2 * size, BlockTokens: 256, Sequences: 4, Queue: 64, Turn: turn})
		for i := range c.prompts {
			submit(t, s, Request{ID: ID(1 + i), Prompt: c.prompt - 640*i, Tenant: "a", Tokens: size / 16})
			run(t, s, plan(s, 512))
		}
		other, waited, longest, ended, left := ID(10), 0, 0, 0, c.prompts
		for range 20_000 {
			if s.all[other] == nil {
				other++
				submit(t, s, Request{ID: other, Prompt: c.other, Tenant: "b", Tokens: 5})
			}
			s.Yield()
			step := plan(s, 512)
			if waited++; s.all[other].running {
				longest, waited = max(longest, waited), 0
			}
			run(t, s, step)
			for _, row := range step.Rows {
				if r := s.all[row.ID]; r.done() {
					s.Remove(r.id)
					if ended++; r.tenant.name == "a" {
						left--
					}
				}
			}
			if left == 0 {
				break
			}
		}
		if longest > onlyTurns*turn+1 {
			t.Errorf("%s: another tenant waited for %d steps, want at most %d", c.name, longest, onlyTurns*turn+1)
		}
		if left > 0 {
			t.Errorf("%s: %d of %d long requests did not end while %d others did", c.name, left, c.prompts, ended-c.prompts+left)
		}
	}
}

// A request that was overtaken often waits for long prompts that are computed. Short requests of others,
// which leave room for it, do not wait for these as well, and it runs all the same.
func TestAPatientRequestThatWaitsForPromptsHoldsUpNoShortOne(t *testing.T) {
	const size, turn = 8192, 4
	s := scheduler(t, Limits{ContextTokens: size, CacheTokens: 2 * size, BlockTokens: 16, Sequences: 4, Queue: 50, Turn: turn})
	asks := map[string]Request{
		"x": {Prompt: 6200, Tokens: 50}, "y": {Prompt: 5600, Tokens: 50}, "z": {Prompt: 7500, Tokens: 5}, "short": {Prompt: 20, Tokens: 5},
	}
	id := ID(0)
	ask := func(tenant string) {
		r := asks[tenant]
		id++
		r.ID, r.Tenant = id, tenant
		submit(t, s, r)
	}
	for _, tenant := range []string{"x", "y", "z", "short"} {
		ask(tenant)
	}
	still, longest, ended := 0, 0, map[string]int{}
	for range 10_000 {
		s.Yield()
		step := plan(s, 64)
		run(t, s, step)
		still++
		for _, row := range step.Rows {
			r := s.all[row.ID]
			if r.tenant.name == "short" {
				longest, still = max(longest, still), 0
			}
			if r.done() {
				s.Remove(r.id)
				ended[r.tenant.name]++
				ask(r.tenant.name)
			}
		}
	}
	if longest > onlyTurns*turn {
		t.Errorf("short requests stood still for %d steps, want at most %d", longest, onlyTurns*turn)
	}
	for tenant := range asks {
		if ended[tenant] < ended["x"]/2 || ended[tenant] == 0 {
			t.Errorf("%d requests of %s ended, of all %v", ended[tenant], tenant, ended)
		}
	}
}

// All that decodes, and prompts of other tenants that run or wait, unless they are held.
func TestOthersAreAnswersAndPromptsOfOtherTenants(t *testing.T) {
	s := scheduler(t, Limits{ContextTokens: 64, CacheTokens: 256, BlockTokens: 16, Sequences: 2, Queue: 4})
	submit(t, s, Request{ID: 1, Prompt: 8, Tenant: "a"}, Request{ID: 2, Prompt: 8, Tenant: "a"}, Request{ID: 3, Prompt: 8, Tenant: "b"}, Request{ID: 4, Prompt: 8, Tenant: "a"})
	want := func(tenant string, n int, held ...ID) {
		t.Helper()
		if got := s.Others(tenant, held...); got != n {
			t.Errorf("%d others for %s next to held %v, want %d", got, tenant, held, n)
		}
	}
	want("a", 1)
	want("b", 3)
	want("b", 1, 1, 4)
	run(t, s, plan(s, 8))
	want("a", 2)
	want("b", 3)
}
