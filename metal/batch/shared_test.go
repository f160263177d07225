//go:build !race

package batch

import (
	"math"
	"testing"
	"time"
)

// experts is a simulated device whose model reads more of its experts with each row of a step.
type experts struct {
	name string
	// shared weights, all experts, and a row take this many seconds. A row has the active part of the experts.
	shared, all, active, row float64
}

var models = []experts{
	{name: "dense, 8B", shared: 0.009, row: 0.0011},
	{name: "30B, 8 of 128 experts", shared: 0.004, all: 0.030, active: 8. / 128, row: 0.0005},
	{name: "20B, 4 of 32 experts", shared: 0.004, all: 0.020, active: 4. / 32, row: 0.0006},
	{name: "120B, 4 of 128 experts", shared: 0.005, all: 0.110, active: 4. / 128, row: 0.00085},
	{name: "235B, 8 of 128 experts", shared: 0.012, all: 0.150, active: 8. / 128, row: 0.0022},
}

// takes is how many seconds a step takes. A row takes twice as long at a context of 8400 tokens.
func (m experts) takes(s Step) float64 {
	took, l := m.shared+m.all*(1-math.Pow(1-m.active, float64(s.Tokens()))), s.Load()
	return took + m.row*(float64(s.Tokens())+float64(l.PrefillContext)/8400)
}

// company is a scheduler that runs on a device with experts.
type company struct {
	experts
	s     *Scheduler
	pace  Pace
	next  ID
	clock float64
	// tokens of answers, and prompts that were computed.
	tokens, prompts int
	answers         map[ID]bool
	// late counts a step when the next one is planned, as an engine that computes ahead does.
	late    bool
	pending func()
}

func (c *company) ask(t *testing.T, tenant string, prompt int, answers bool) {
	t.Helper()
	c.next++
	submit(t, c.s, Request{ID: c.next, Prompt: prompt, Tenant: tenant})
	c.answers[c.next] = answers
}

// step runs a step, after which prompts without an answer end. It returns how long it took.
func (c *company) step(t *testing.T) float64 {
	t.Helper()
	c.s.Yield()
	c.s.Admit()
	w := c.s.Work()
	c.s.Weigh(c.pace.Growth(w))
	step := c.s.Plan(c.s.ProposeChunks(c.pace.Tokens(w, 512))...)
	c.pending()
	took := c.takes(step)
	for _, r := range step.Rows {
		if err := c.s.Computed(r); err != nil {
			t.Fatal(err)
		}
		switch {
		case !r.Sample:
		case !c.answers[r.ID]:
			c.s.Remove(r.ID)
			c.prompts++
		default:
			if err := c.s.Grow(r.ID); err != nil {
				t.Fatal(err)
			}
			c.tokens++
		}
	}
	c.clock += took
	c.pending = func() {
		c.pace.Owe(step.Load(), time.Duration(took*1e9))
		c.pace.Took(step.Load(), time.Duration(took*1e9))
		c.pending = func() {}
	}
	if !c.late {
		c.pending()
	}
	return took
}

// run runs steps next to prompts of a tenant that always has some, and returns how long a token of an answer takes.
func (c *company) run(t *testing.T, steps int, tenant string, prompt int) float64 {
	t.Helper()
	began, before := c.clock, c.tokens
	for range steps {
		for len(c.s.all) < len(c.answersLeft())+6 && prompt > 0 {
			c.ask(t, tenant, prompt, false)
		}
		c.step(t)
	}
	return (c.clock - began) / float64(c.tokens-before)
}

func (c *company) answersLeft() (ids []ID) {
	for id := range c.s.all {
		if c.answers[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// newCompany has computed prompts.
func newCompany(t *testing.T, m experts) *company {
	t.Helper()
	c := &company{experts: m, answers: map[ID]bool{}, pending: func() {}, s: scheduler(t, Limits{ContextTokens: 131_072, CacheTokens: 8 * 131_072, BlockTokens: 256, Sequences: 16, Queue: 16, Chunk: 512, Turn: 64})}
	c.run(t, 200, "first", 4000)
	for len(c.s.all) > 0 {
		c.step(t)
	}
	return c
}

// TestAttackPromptsNextToAnswersOfAnotherTenant: where a few more rows read most of the experts of a model, prompts
// that were to keep a third of their speed took most of the time of answers. Those of another tenant take less than
// twice as long, and the prompts no more than 5.5 times as long as alone. It does not matter for how long answers of
// both had no prompt next to them.
func TestAttackPromptsNextToAnswersOfAnotherTenant(t *testing.T) {
	for _, m := range models {
		for _, prompt := range []int{100, 1500, 20_000} {
			for _, answers := range []int{1, 2, 4} {
				for _, own := range []int{0, 1} {
					attackWithPrompts(t, m, prompt, answers, own)
				}
			}
		}
	}
}

// attackWithPrompts runs prompts next to answers of another tenant and some of their own.
func attackWithPrompts(t *testing.T, m experts, prompt, answers, own int) {
	t.Helper()
	c := newCompany(t, m)
	for range answers {
		c.ask(t, "answers", 64, true)
	}
	for range own {
		c.ask(t, "prompts", 64, true)
	}
	c.run(t, 2000, "", 0)
	alone := c.run(t, 400, "", 0)
	if next := c.run(t, 1000, "prompts", prompt); own > 0 && next >= 2*alone {
		t.Errorf("%s: after a time without prompts, a token of %d answers takes %.1f ms next to prompts of %d tokens, alone %.1f ms", m.name, answers, 1e3*next, prompt, 1e3*alone)
	}
	began, done := c.clock, c.prompts
	next := c.run(t, 4000, "prompts", prompt)
	if next >= 2*alone {
		t.Errorf("%s: a token of %d answers takes %.1f ms next to prompts of %d tokens, alone %.1f ms", m.name, answers, 1e3*next, prompt, 1e3*alone)
	}
	full := m.takes(Step{Rows: []Row{{Length: 512}}}) / 512 * float64(prompt)
	if took := (c.clock - began) / float64(c.prompts-done); prompt < 20_000 && took > 5.5*full {
		t.Errorf("%s: a prompt of %d tokens takes %.2f s next to %d answers, alone %.2f s", m.name, prompt, took, answers, full)
	}
}

// TestPromptsOfOneStepOwePauses: each is computed, and its request done, when the step after it is planned.
func TestPromptsOfOneStepOwePauses(t *testing.T) {
	for _, m := range models {
		for _, late := range []bool{false, true} {
			c := newCompany(t, m)
			c.late = late
			c.ask(t, "answers", 64, true)
			c.run(t, 400, "", 0)
			alone := c.run(t, 400, "", 0)
			began, before := c.clock, c.tokens
			for range 1000 {
				if len(c.s.all) == 1 {
					c.ask(t, "prompts", 12, false)
				}
				c.step(t) // with the prompt, or of a pause
				if len(c.s.all) == 1 {
					c.step(t)
				}
			}
			if next := (c.clock - began) / float64(c.tokens-before); next >= 2*alone {
				t.Errorf("%s, late %v: a token takes %.1f ms next to short prompts, alone %.1f ms", m.name, late, 1e3*next, 1e3*alone)
			}
		}
	}
}

// TestAPauseIsAsLongAsItsStepNeeds, however long steps of answers take; but a stall of the machine is none.
func TestAPauseIsAsLongAsItsStepNeeds(t *testing.T) {
	for _, step := range []time.Duration{10 * time.Millisecond, 200 * time.Millisecond} {
		for took, most := range map[time.Duration]time.Duration{12 * step: 13 * step, time.Hour: max(time.Second, 13*step)} {
			p := Pace{}
			p.Took(Load{Decodes: 2}, step)
			p.Owe(Load{Decodes: 2, PrefillTokens: 64, Shared: true}, took)
			paused := time.Duration(0)
			for ; paused < time.Hour && p.Tokens(Work{Decodes: 2, Prompts: []Span{{0, 1000}}, Shared: true}, 512) == 0; paused += step {
				p.Owe(Load{Decodes: 2, Shared: true}, step+time.Second) // with other work
			}
			if least := min(took, most) - step; paused < least || paused > most {
				t.Errorf("after a step of %v, steps of %v take %v before the next with a prompt, want %v to %v", took, step, paused, least, most)
			}
		}
	}
}

// TestAnswersPayForPromptsOfTheirOwnTenant: a prompt keeps a third of its speed next to answers of its tenant, where
// there is no other.
func TestAnswersPayForPromptsOfTheirOwnTenant(t *testing.T) {
	const prompt = 1500
	for _, m := range models {
		c := newCompany(t, m)
		c.ask(t, "own", 64, true)
		c.run(t, 1000, "own", prompt)
		began, done := c.clock, c.prompts
		c.run(t, 2000, "own", prompt)
		full := m.takes(Step{Rows: []Row{{Length: 512}}}) / 512 * prompt
		if took := (c.clock - began) / float64(c.prompts-done); took > 3.3*full {
			t.Errorf("%s: a prompt takes %.2f s, alone %.2f s", m.name, took, full)
		}
	}
}

// TestTheFirstTokenNextToPromptsOfAnotherTenant: steps of prompts alone are short while several tenants have
// requests, and for a while after that, and their size does not shrink with each.
func TestTheFirstTokenNextToPromptsOfAnotherTenant(t *testing.T) {
	c := newCompany(t, models[len(models)-1])
	c.run(t, 50, "hog", 4000)
	if took := c.step(t); took < 0.9 {
		t.Errorf("a step of one tenant takes %.2f s", took)
	}
	for range 100 {
		c.ask(t, "other", 10, false)
		for range 2 {
			if took := c.step(t); took > 0.5 && c.next > 60 || took < 0.15 {
				t.Fatalf("a step with a short prompt of another tenant, or one after it, takes %.2f s", took)
			}
		}
	}
	for range 200 {
		c.run(t, 1, "hog", 4000)
	}
	if took := c.step(t); took < 0.9 {
		t.Errorf("a step of one tenant after the other has left takes %.2f s", took)
	}
}
