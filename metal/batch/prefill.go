package batch

import (
	"cmp"
	"slices"
)

// ProposeChunks proposes prefill chunks for the next plan with at most this
// many tokens in total, the head first. The caller may shorten or drop
// chunks. The slice is valid until the next call. The prompts of held requests wait; if the
// head is one, another is first meanwhile.
func (s *Scheduler) ProposeChunks(tokens int, held ...ID) []Row {
	s.chunks, s.budget = s.chunks[:0], tokens
	head := s.prefill(held)
	if s.paused || head == nil {
		return nil
	}
	if s.Decodes() == 0 {
		s.excess = 0
	}
	passing := 0
	for passing < len(s.prompts) && mayOvertake(s.prompts[passing], head) {
		passing++
	}
	share := tokens
	if s.passing = nil; passing > 0 {
		takeTurns(s.prompts[:passing])
		s.passing = s.prompts[0]
		share = (tokens + int(s.plans%2)) / 2
	}
	spare := tokens - s.propose(head, share)
	own, proposed := tokens-spare, len(s.chunks) > 0
	for _, r := range s.prompts[:passing] {
		spare -= s.propose(r, spare)
	}
	if own == 0 {
		spare -= s.propose(head, spare)
	} else if proposed {
		s.chunks[0] = s.chunk(head, own+max(0, spare)) // runs of others may have taken more than there was
		spare -= s.chunks[0].Length - own
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
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.left(), b.left()), cmp.Compare(a.arrival, b.arrival))
	})
	return head
}

// nextPrompt returns the oldest prompt of the tenant that has had the fewest prefill tokens.
func (s *Scheduler) nextPrompt() *request {
	return slices.MinFunc(s.prompts, func(a, b *request) int {
		return cmp.Or(cmp.Compare(s.prefilled(a.tenant), s.prefilled(b.tenant)), cmp.Compare(a.arrival, b.arrival))
	})
}

// mayOvertake reports whether a prompt may share the steps of the head.
func mayOvertake(r, head *request) bool {
	return r.priority > head.priority || r.priority == head.priority && r.left() < head.left()
}

// takeTurns orders the prompts that may share the steps of the head: of one priority the tenant that was
// first longest ago is first now.
func takeTurns(prompts []*request) {
	slices.SortStableFunc(prompts, func(a, b *request) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.tenant.passed, b.tenant.passed))
	})
}

// propose adds a chunk of at most this many tokens and returns its length. It adds none while a run that
// no row divides would make the chunk longer and the last such excess is not made up for: the tokens do that.
func (s *Scheduler) propose(r *request, tokens int) int {
	if tokens < 1 {
		return 0
	}
	p := s.chunk(r, tokens)
	if p.Length > tokens && s.excess > 0 {
		return tokens
	}
	s.chunks = append(s.chunks, p)
	return p.Length
}

// chunk returns the next prefill chunk of a request, of at most this many
// tokens.
func (s *Scheduler) chunk(r *request, tokens int) Row {
	n := min(r.left(), tokens, r.maxChunk)
	if b := s.limits.Boundary; b > 0 {
		n = min(n, b-r.computed%b)
	}
	n = r.undivided(n)
	return Row{ID: r.id, Start: r.computed, Length: n, Sample: n == r.left()}
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
