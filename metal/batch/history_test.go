//go:build !race

package batch

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// plain is the expected state of a request, kept independently of the
// scheduler.
type plain struct {
	known, computed, answer, want int
	priority                      int
	tenant                        string
	waits                         bool
	arrival, overtaken            int
	// passed counts the requests of each other tenant, no smaller ones, that were admitted
	// while this one waited and its tenant ran none.
	passed map[string]int
}

// act is one thing that happens: an arrival, a cancel, a step. Its numbers are
// taken modulo what is possible, so that any part of a history is one.
type act struct{ kind, a, b, c int }

// The kinds of acts; those of the first are the most frequent.
const (
	stepping = iota
	arriving
	cancelling
	pausing
	forgetting
	kinds
)

// history runs acts against a scheduler and the plain model.
type history struct {
	limits  Limits
	s       *Scheduler
	model   map[ID]*plain
	arrived int
	yielded int
	paused  bool
	head    *plain // of the last step
}

// Arrivals of all priorities, cancellations at any point, reused ids, restored
// tokens, full caches, failed steps and pauses. Every step is checked against a
// plain model: rows never mix, KV never exceeds what was reserved, every
// decoding sequence advances in every step, every request ends and nothing is
// left.
func TestRandomHistories(t *testing.T) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 30
	}
	yielded := 0
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 7))
		l := Limits{ContextTokens: 20 + rng.IntN(60), BlockTokens: 1 + rng.IntN(16), Sequences: 1 + rng.IntN(5), Queue: rng.IntN(8), Boundary: rng.IntN(3) * (1 + rng.IntN(12)), Turn: 1 + rng.IntN(8)}
		l.CacheTokens = l.ContextTokens + rng.IntN(80)
		acts := make([]act, 500)
		for i := range acts {
			kind := rng.IntN(16)
			if kind >= kinds {
				kind = (kind - kinds) % 2
			}
			acts[i] = act{kind: kind, a: rng.IntN(1 << 20), b: rng.IntN(1 << 20), c: rng.IntN(1 << 20)}
		}
		n, err := replay(l, acts)
		if yielded += n; err != nil {
			small := shrink(l, acts)
			_, again := replay(l, small)
			t.Fatalf("seed %d, %+v: %v\nshrunk to %d acts %+v: %v", seed, l, err, len(small), small, again)
		}
	}
	if yielded < int(seeds) {
		t.Errorf("only %d requests gave way to another tenant in %d histories", yielded, seeds)
	}
}

// decodes reports whether it has begun its answer, of which only the newest token is not computed.
func (p *plain) decodes() bool { return p.answer > 0 && p.known-p.computed == 1 }

// shrink takes acts out while the history still fails.
func shrink(l Limits, acts []act) []act {
	for size := len(acts) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(acts); {
			less := slices.Delete(slices.Clone(acts), at, at+size)
			if _, err := replay(l, less); err != nil {
				acts = less
			} else {
				at += size
			}
		}
	}
	return acts
}

// replay returns how many requests gave way to another tenant.
func replay(l Limits, acts []act) (yielded int, err error) {
	s, err := New(l)
	if err != nil {
		return 0, err
	}
	h := &history{limits: l, s: s, model: map[ID]*plain{}}
	for i, a := range acts {
		if err := h.do(a); err != nil {
			return 0, fmt.Errorf("act %d: %w", i, err)
		}
	}
	s.PausePrefill(false)
	h.paused = false
	for range 4000 { // the remaining requests ends without help
		if len(h.model) == 0 {
			break
		}
		if err := h.step(act{a: 11}); err != nil {
			return 0, fmt.Errorf("at the end: %w", err)
		}
	}
	total := s.blocksFor(l.CacheTokens)
	if len(h.model) != 0 || s.Running()+s.Waiting()+len(s.all) != 0 || s.freeBlocks != total {
		return 0, fmt.Errorf("%d requests never ended, %d run, %d wait, %d are kept, %d of %d blocks are free", len(h.model), s.Running(), s.Waiting(), len(s.all), s.freeBlocks, total)
	}
	return h.yielded, nil
}

func (h *history) do(a act) error {
	switch a.kind {
	case arriving:
		return h.arrive(a)
	case cancelling:
		h.remove(h.any(a.a))
	case pausing:
		h.paused = a.a%3 == 0
		h.s.PausePrefill(h.paused)
	case forgetting:
		if id := h.any(a.a); id != 0 {
			h.s.Forget(id)
			h.model[id].computed = 0
		}
	default:
		return h.step(a)
	}
	return nil
}

// any is one of the requests, or 0.
func (h *history) any(n int) ID {
	ids := h.s.IDs()
	if len(ids) == 0 {
		return 0
	}
	return ids[n%len(ids)]
}

func (h *history) remove(id ID) {
	h.s.Remove(id)
	delete(h.model, id)
}

// arrive submits a request; names are few, so that they come again.
func (h *history) arrive(a act) error {
	id, prompt := ID(1+a.a%24), 1+a.b%h.limits.ContextTokens
	tenant := []string{"a", "a", "a", "b", "c"}[a.b%5]
	err := h.s.Submit(Request{ID: id, Prompt: prompt, Priority: a.c % 3, Tenant: tenant})
	known, full := h.model[id] != nil, len(h.model) >= h.limits.Sequences+h.limits.Queue
	switch {
	case known && errors.Is(err, errKnown), !known && full && errors.Is(err, ErrQueueFull):
		return nil
	case err != nil || known:
		return fmt.Errorf("submit request %d (known %v, full %v): %w", id, known, full, err)
	}
	h.arrived++
	h.model[id] = &plain{known: prompt, want: (a.c / 3) % (h.limits.ContextTokens - prompt + 1), priority: a.c % 3, tenant: tenant, waits: true, arrival: h.arrived}
	return nil
}

// runs counts the running requests of each tenant.
func (h *history) runs() map[string]int {
	n := map[string]int{}
	for _, p := range h.model {
		if !p.waits {
			n[p.tenant]++
		}
	}
	return n
}

// yield has requests give way to a tenant that runs none, which is admitted next.
func (h *history) yield() error {
	had := map[ID]int{} // tokens that were generated since a request was admitted
	for _, r := range h.s.running {
		had[r.id] = r.turn
	}
	before, gave := h.runs(), h.s.Yield()
	for _, id := range gave {
		h.model[id].computed, h.model[id].waits = 0, true
	}
	if len(gave) == 0 {
		return nil
	}
	next := h.s.next()
	if next < 0 || before[h.s.waiting[next].tenant.name] > 0 {
		return fmt.Errorf("%v gave way to no tenant that runs none", gave)
	}
	last := map[string]ID{} // of each tenant, the one that gave way last
	for _, id := range gave {
		last[h.model[id].tenant] = id
	}
	for tenant, id := range last {
		if h.runs()[tenant] == 0 && had[id] < onlyTurns*h.limits.Turn && !h.s.owed(h.s.waiting[next].tenant, h.s.all[id].tenant) {
			return fmt.Errorf("tenant %s gave all its requests, the last after %d tokens", tenant, had[id])
		}
	}
	h.yielded += len(gave)
	return h.account()
}

// admit admits, restores some of what is named, and counts who was overtaken.
func (h *history) admit(a act) error {
	named := slices.Clone(h.s.Admit())
	if err := h.pass(); err != nil {
		return err
	}
	for _, r := range h.s.running {
		p := h.model[r.id]
		if p == nil || !p.waits {
			continue
		}
		if h.paused || !slices.Contains(named, r.id) || p.computed != 0 {
			return fmt.Errorf("request %d began to run (paused %v), named are %v", r.id, h.paused, named)
		}
		p.waits, p.overtaken, p.passed = false, 0, nil
		for id, o := range h.model {
			if o.waits && o.tenant == p.tenant && o.arrival < p.arrival && h.s.all[id] != nil && !h.s.all[id].running {
				o.overtaken++
			}
		}
	}
	for id, p := range h.model {
		if p.waits && p.overtaken > overtakes*h.limits.Sequences {
			return fmt.Errorf("request %d was overtaken %d times", id, p.overtaken)
		}
	}
	for i, id := range named {
		p := h.model[id]
		if n := (a.b + i) % p.known; a.c%2 == 0 && p.computed == 0 {
			if err := h.s.Restored(id, n); err != nil {
				return err
			}
			p.computed = n
		}
	}
	return nil
}

// pass checks that no other tenant is served twice before one that runs none, except while tenants catch up. It
// is called before the model notes which requests were admitted.
func (h *history) pass() error {
	runs, began := map[string]int{}, []*request{}
	for _, r := range h.s.running {
		runs[r.tenant.name]++
		if h.model[r.id].waits {
			began = append(began, r)
		}
	}
	for _, w := range h.s.waiting {
		p := h.model[w.id]
		if p.passed == nil || runs[p.tenant] > 0 {
			p.passed = map[string]int{}
		}
		for _, r := range began {
			if runs[p.tenant] > 0 || r.priority > p.priority || r.blocks < h.s.blocksFor(p.known) || h.s.worked < h.s.catching {
				continue
			}
			if p.passed[r.tenant.name]++; p.passed[r.tenant.name] > 1 {
				return fmt.Errorf("request %d, whose tenant runs none, was passed %d times by tenant %s", w.id, p.passed[r.tenant.name], r.tenant.name)
			}
		}
	}
	return nil
}

// propose cuts what is proposed for the next step, as a guard of memory does.
func (h *history) propose(a act) ([]Row, error) {
	budget := 1 + a.a%12
	pieces, tokens := h.s.ProposeChunks(budget), 0
	head, err := h.nextHead()
	if err != nil {
		return nil, err
	}
	for i, r := range pieces {
		p := h.model[r.ID]
		if p == nil || r.Start != p.computed || slices.ContainsFunc(pieces[:i], func(o Row) bool { return o.ID == r.ID }) {
			return nil, fmt.Errorf("proposed %+v of %+v", pieces, p)
		}
		tokens += r.Length
		if p == head {
			continue
		}
		got := 0
		for _, o := range pieces {
			if h.model[o.ID] == head {
				got = o.Length
			}
		}
		least := min(budget/2, head.known-head.computed)
		if b := h.limits.Boundary; b > 0 {
			least = min(least, b-head.computed%b)
		}
		if got < least {
			return nil, fmt.Errorf("of %d tokens the head %+v gets %d in %+v", budget, head, got, pieces)
		}
	}
	if tokens > budget || head != nil && !h.paused && tokens == 0 {
		return nil, fmt.Errorf("proposed %+v for %d tokens", pieces, budget)
	}
	if a.b%5 == 0 && len(pieces) > 0 {
		pieces[a.c%len(pieces)].Length = 1 + a.c%pieces[a.c%len(pieces)].Length
	}
	if a.b%17 == 0 {
		pieces = pieces[:len(pieces)/2]
	}
	return pieces, nil
}

// nextHead returns the prompt that advances first, nil if there is none. It stays the
// same until it is computed or runs no more, and is the oldest of its tenant when it is
// chosen.
func (h *history) nextHead() (*plain, error) {
	prompts := map[*plain]bool{}
	for _, r := range h.s.running {
		if p := h.model[r.id]; !p.decodes() {
			prompts[p] = true
		}
	}
	if h.s.head == nil && len(prompts) == 0 {
		h.head = nil
		return nil, nil
	}
	var head *plain
	if h.s.head != nil {
		head = h.model[h.s.head.id]
	}
	if !prompts[head] {
		return nil, fmt.Errorf("the head %+v is no prompt that runs", head)
	}
	if prompts[h.head] && h.head != head {
		return nil, fmt.Errorf("the head %+v lost its place to %+v", h.head, head)
	}
	for p := range prompts {
		if h.head != head && p.tenant == head.tenant && p.arrival < head.arrival {
			return nil, fmt.Errorf("the head %+v is younger than %+v", head, p)
		}
	}
	h.head = head
	return head, nil
}

func (h *history) step(a act) error {
	if err := h.yield(); err != nil {
		return err
	}
	if err := h.admit(a); err != nil {
		return err
	}
	pieces, err := h.propose(a)
	if err != nil {
		return err
	}
	if a.c%13 == 0 { // a cancel between two calls
		h.remove(h.any(a.b))
	}
	answers := map[ID]bool{}
	for id, p := range h.model {
		if !p.waits && p.decodes() {
			answers[id] = true
		}
	}
	step := h.s.Plan(pieces...)
	for _, id := range step.Preempted {
		p, runs := h.model[id], h.runs()
		for other, o := range h.model {
			if !o.waits && cmp.Or(cmp.Compare(p.priority, o.priority), cmp.Compare(runs[o.tenant], runs[p.tenant]), cmp.Compare(o.arrival, p.arrival)) > 0 {
				return fmt.Errorf("%d was preempted before %d", id, other)
			}
		}
		delete(answers, id)
		p.computed, p.waits = 0, true
	}
	if err := h.compute(step, answers, a); err != nil {
		return err
	}
	return h.account()
}

// compute checks the rows of a step and computes them, or fails to.
func (h *history) compute(step Step, answers map[ID]bool, a act) error {
	seen := map[ID]bool{}
	for _, r := range step.Rows {
		p, end := h.model[r.ID], r.Start+r.Length
		if p == nil || p.waits || seen[r.ID] || r.Start != p.computed || r.Length < 1 || end > p.known || r.Sample != (end == p.known) {
			return fmt.Errorf("row %+v does not fit %+v", r, p)
		}
		if r.Decode() != p.decodes() {
			return fmt.Errorf("row %+v is one of an answer: %v, but %+v", r, r.Decode(), p)
		}
		if b := h.limits.Boundary; b > 0 && r.Start/b != (end-1)/b {
			return fmt.Errorf("row %+v has a multiple of %d inside", r, b)
		}
		seen[r.ID] = true
		delete(answers, r.ID)
	}
	if len(answers) > 0 {
		return fmt.Errorf("answers %v do not move in %+v", answers, step)
	}
	if a.c%19 == 0 {
		return nil // the back end failed
	}
	for _, r := range step.Rows {
		p := h.model[r.ID]
		p.computed += r.Length
		if err := h.s.Computed(r); err != nil {
			return err
		}
		if !r.Sample {
			continue
		}
		if p.answer++; p.answer > p.want {
			h.remove(r.ID)
			continue
		}
		p.known++
		if err := h.s.Grow(r.ID); err != nil {
			return err
		}
	}
	return nil
}

// account checks that the blocks of running requests cover what they computed
// and that nothing was promised twice.
func (h *history) account() error {
	used, inKV := 0, 0
	for _, r := range h.s.running {
		p := h.model[r.id]
		if p == nil || p.computed != r.computed || r.blocks*h.limits.BlockTokens < p.computed {
			return fmt.Errorf("%d tokens in %d blocks, want %+v", r.computed, r.blocks, p)
		}
		used, inKV = used+r.blocks, inKV+p.computed
	}
	total := h.s.blocksFor(h.limits.CacheTokens)
	if used+h.s.freeBlocks != total || h.s.freeBlocks < 0 || inKV > total*h.limits.BlockTokens {
		return fmt.Errorf("%d blocks used and %d free of %d, %d tokens in KV", used, h.s.freeBlocks, total, inKV)
	}
	if len(h.s.all) != len(h.model) || h.s.Running()+h.s.Waiting() != len(h.model) {
		return fmt.Errorf("%d requests are kept, %d run and %d wait, want %d", len(h.s.all), h.s.Running(), h.s.Waiting(), len(h.model))
	}
	counted := 0
	for name, t := range h.s.tenants {
		idle := t.running+t.waiting == 0
		if counted += t.waiting; t.running != h.runs()[name] || idle && (t.prefilled <= h.s.headStart && h.limits.Sequences > 1 || len(h.model) == 0) {
			return fmt.Errorf("tenant %s: %+v, want %d", name, t, h.runs()[name])
		}
	}
	if counted != h.s.Waiting() {
		return fmt.Errorf("%d requests of tenants wait, want %d", counted, h.s.Waiting())
	}
	if h.s.Running() > h.limits.Sequences || !slices.IsSortedFunc(h.s.running, order) || !slices.IsSortedFunc(h.s.waiting, order) {
		return fmt.Errorf("%d run at once", h.s.Running())
	}
	return nil
}
