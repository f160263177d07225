package batch

import (
	"cmp"
	"math"
	"slices"
)

const (
	// unit is what a token without context costs.
	unit = 256
	// heaviest is how many times as much a token costs at most, wherever it is: a growth that was
	// measured wrong may not stop a prompt.
	heaviest = 64
)

// Weigh sets by how much more a token of a prompt costs per token of its context, as a part of what it costs
// without any. Steps are shared, and the next head is chosen, by what tokens cost.
func (s *Scheduler) Weigh(growth float64) { s.growth = growth }

// Dearer is how many times as much a token costs with some context as without, see Pace.Growth.
func Dearer(growth float64, context int) float64 { return min(heaviest, 1+growth*float64(context)) }

// weight is what the next token of a prompt costs.
func (s *Scheduler) weight(computed int) int64 { return int64(unit * Dearer(s.growth, computed)) }

// cost is what the tokens of a row cost.
func (s *Scheduler) cost(row Row) int64 { return int64(row.Length) * s.weight(row.Start) }

// rest is what the rest of a prompt costs.
func (s *Scheduler) rest(r *request) int64 { return int64(r.left()) * s.weight(r.computed+r.left()/2) }

// ProposeChunks proposes prefill chunks for the next plan that cost at most as much as this many
// tokens of the head, the head first. The caller may shorten or drop
// chunks. The slice is valid until the next call. The prompts of held requests wait; if the
// head is one, another is first meanwhile.
func (s *Scheduler) ProposeChunks(tokens int, held ...ID) []Row {
	s.chunks, s.budget = s.chunks[:0], 0
	head := s.prefill(held)
	if s.paused || head == nil {
		return nil
	}
	s.budget = int64(tokens) * s.weight(s.head.computed)
	if s.Decodes() == 0 {
		s.excess = 0
	}
	passing := 0
	for passing < len(s.prompts) && s.mayOvertake(s.prompts[passing], head) {
		passing++
	}
	share, weight := s.budget, s.weight(head.computed)
	if s.passing = nil; passing > 0 {
		takeTurns(s.prompts[:passing])
		s.passing = s.prompts[0]
		share = (s.budget/weight + s.plans%2) / 2 * weight
	}
	spare := s.budget - s.propose(head, share)
	own, proposed := s.budget-spare, len(s.chunks) > 0
	for _, r := range s.prompts[:passing] {
		spare -= s.propose(r, spare)
	}
	if own == 0 {
		spare -= s.propose(head, spare)
	} else if proposed {
		more := min(max(0, spare)/weight, s.room()) // runs of others may have taken more than there was
		s.chunks[0] = s.chunk(head, s.chunks[0].Length+int(more))
		spare -= s.cost(s.chunks[0]) - own
	}
	for _, r := range s.prompts[passing:] {
		spare -= s.propose(r, spare)
	}
	return s.chunks
}

// prefill returns the head, or another prompt while that is held, nil if there is none, and
// sets s.prompts to the other requests in prefill, those that may overtake it first.
func (s *Scheduler) prefill(held []ID) *request {
	s.prompts = s.prompts[:0]
	for _, r := range s.running {
		if r.prefills() {
			s.prompts = append(s.prompts, r)
		}
	}
	if len(s.prompts) == 0 {
		s.head = nil
		return nil
	}
	if !slices.Contains(s.prompts, s.head) {
		s.head = s.nextPrompt()
		s.headStart = s.prefilled(s.head.tenant)
		s.forgetTenants()
	}
	head := s.head
	s.prompts = slices.DeleteFunc(s.prompts, func(r *request) bool { return slices.Contains(held, r.id) })
	if len(s.prompts) == 0 {
		return nil
	}
	if slices.Contains(held, head.id) {
		head = s.nextPrompt()
	}
	s.prompts = slices.DeleteFunc(s.prompts, func(r *request) bool { return r == head })
	slices.SortFunc(s.prompts, func(a, b *request) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(s.rest(a), s.rest(b)), cmp.Compare(a.arrival, b.arrival))
	})
	return head
}

// nextPrompt returns the oldest prompt of the tenant whose prefill tokens cost the least.
func (s *Scheduler) nextPrompt() *request {
	return slices.MinFunc(s.prompts, func(a, b *request) int {
		return cmp.Or(cmp.Compare(s.prefilled(a.tenant), s.prefilled(b.tenant)), cmp.Compare(a.arrival, b.arrival))
	})
}

// mayOvertake reports whether a prompt may share the steps of the head.
func (s *Scheduler) mayOvertake(r, head *request) bool {
	return r.priority > head.priority || r.priority == head.priority && s.rest(r) < s.rest(head)
}

// takeTurns orders the prompts that may share the steps of the head: of one priority the tenant that was
// first longest ago is first now, later if that took more than its half.
func takeTurns(prompts []*request) {
	slices.SortStableFunc(prompts, func(a, b *request) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.tenant.passed, b.tenant.passed))
	})
}

// propose adds a chunk that costs at most what is spare and returns its cost. If a token or a run that no row
// divides costs more, it adds none while the last such excess is not made up for: what is spare does that.
func (s *Scheduler) propose(r *request, spare int64) int64 {
	tokens, room := spare/s.weight(r.computed), s.room()
	if spare < 1 || room < 1 || tokens < 1 && len(s.chunks) > 0 && r != s.passing {
		return 0
	}
	p := s.chunk(r, int(min(max(1, tokens), room)))
	if s.cost(p) > spare && s.excess > 0 {
		return spare
	}
	s.chunks = append(s.chunks, p)
	return s.cost(p)
}

// room is how many tokens the step may have in addition to those of the proposed chunks.
func (s *Scheduler) room() int64 {
	room := int64(math.MaxInt64)
	if s.limits.Chunk > 0 {
		room = int64(s.limits.Chunk)
	}
	for _, p := range s.chunks {
		room -= int64(p.Length)
	}
	return max(0, room)
}

// chunk returns the next prefill chunk of a request, of at most this many
// tokens.
func (s *Scheduler) chunk(r *request, tokens int) Row {
	n := min(r.left(), tokens, r.maxChunk)
	if b := s.limits.Boundary; b > 0 {
		n = min(n, b-r.computed%b)
	}
	n = r.undivided(n)
	return Row{ID: r.id, Start: r.computed, Length: n, Sample: n == r.left(), EndsPrompt: r.computed > 0 && r.left() == 1}
}

// undivided is the length of a row of about n tokens that divides no run: it ends before
// a run that does not fit, unless it begins there.
func (r *request) undivided(n int) int {
	for _, w := range r.whole {
		if end := r.computed + n; w.From < end && end < w.To {
			if w.From > r.computed {
				return w.From - r.computed
			}
			return w.To - r.computed
		}
	}
	return n
}

// Shorten is a row that ProposeChunks returned, with about this many tokens.
func (s *Scheduler) Shorten(row Row, tokens int) Row {
	if r := s.all[row.ID]; r != nil && r.computed == row.Start {
		return s.chunk(r, tokens)
	}
	return row
}
