package batch

import (
	"fmt"
	"slices"
)

// overtakes limits how often a waiting request can be overtaken, as a multiple
// of Limits.Sequences.
const overtakes = 4

// Admit moves waiting requests that fit into the running set. It returns the
// running requests that have nothing in the KV cache and were not returned
// since they were admitted or forgotten: the caller can restore cached prefixes
// of them before the next plan, see Restored. The slice is valid until the next
// call.
func (s *Scheduler) Admit() []ID {
	for at := s.next(); at >= 0; at = s.next() {
		r := s.waiting[at]
		s.waiting = slices.Delete(s.waiting, at, at+1)
		for _, w := range s.waiting {
			r.large = r.large || s.large(r, w)
			if w.arrival < r.arrival && !s.before(r, w) {
				w.overtaken++
			}
		}
		s.catchUp(r.tenant)
		r.began = s.worked
		r.tenant.waiting--
		r.tenant.running++
		// Blocks for all known tokens are taken now, so that a prefill never
		// waits for memory.
		r.blocks, r.overtaken, r.running, r.empty, r.turn = s.blocksFor(r.known), 0, true, true, 0
		s.freeBlocks -= r.blocks
		s.running = insert(s.running, r)
	}
	s.favored = nil
	s.admitted = s.admitted[:0]
	for _, r := range s.running {
		if r.empty {
			r.empty = false
			s.admitted = append(s.admitted, r.id)
		}
	}
	return s.admitted
}

// next is the index in the queue of the next request to admit, or -1.
func (s *Scheduler) next() int {
	if s.paused || len(s.waiting) == 0 || len(s.running) >= s.limits.Sequences {
		return -1
	}
	patient := s.patient()
	last := len(s.running)+1 >= s.limits.Sequences // a large request takes no other place, if it fits
	room, best := s.freeBlocks-s.reserve(s.running), -1
	if at := slices.Index(s.waiting, s.favored); at >= 0 && s.blocksFor(s.favored.known) <= room {
		return at
	}
	for i, r := range s.waiting {
		switch {
		case best >= 0 && r.priority < s.waiting[best].priority:
			return best
		case s.blocksFor(r.known) > room, s.resting(r.tenant), s.mustFollow(r, patient):
		case best < 0, last && s.first(r.tenant, s.waiting[best].tenant), !last && s.before(r, s.waiting[best]):
			best = i
		}
	}
	return best
}

// before reports whether a request is admitted before another: by tenant, but while small ones are spared
// they are before large ones.
func (s *Scheduler) before(r, o *request) bool {
	if s.worked < s.spared && (s.large(r, o) || s.large(o, r)) {
		return s.large(o, r)
	}
	return s.first(r.tenant, o.tenant)
}

// first reports whether the next request to admit is of one tenant rather than of another.
func (s *Scheduler) first(t, o *tenant) bool {
	return s.owed(t, o) || t.before(o) && !s.owed(o, t)
}

// large reports whether a request may take the place of several of another tenant: it has more than its part
// of the cache.
func (s *Scheduler) large(r, o *request) bool {
	blocks := s.blocksFor(r.known)
	return r.tenant != o.tenant && blocks > 2*s.blocksFor(o.known) && blocks > s.blocksFor(s.limits.CacheTokens)/s.limits.Sequences
}

// resting reports whether a tenant gave way so lately that another request of it, in the last place, would
// do so too, and what was computed of it would be lost.
func (s *Scheduler) resting(t *tenant) bool {
	return s.plans < t.rests && t.running > 0 && len(s.running)+1 >= s.limits.Sequences && len(s.tenants) > 1
}

// patient returns the earliest of the requests that were overtaken too often.
func (s *Scheduler) patient() *request {
	var patient *request
	for _, r := range s.waiting {
		if r.overtaken >= overtakes*s.limits.Sequences && !s.resting(r.tenant) && (patient == nil || r.arrival < patient.arrival) {
			patient = r
		}
	}
	return patient
}

// mustFollow reports whether a request may not be admitted before the patient one.
func (s *Scheduler) mustFollow(r, patient *request) bool {
	return patient != nil && r != patient && !s.before(r, patient) && (r.tenant == patient.tenant || !s.leavesRoom(r, patient))
}

// leavesRoom reports whether the patient request fits next to a later one, once those that came before
// have ended or given way, which may take minutes while their prompts are computed.
func (s *Scheduler) leavesRoom(r, patient *request) bool {
	requests, blocks := 2, s.blocksFor(patient.known)+s.blocksFor(r.known)+s.limits.Sequences
	for _, q := range s.running {
		if q.arrival > patient.arrival {
			requests, blocks = requests+1, blocks+q.blocks
		}
	}
	return r.arrival > patient.arrival && requests <= s.limits.Sequences && blocks <= s.blocksFor(s.limits.CacheTokens)
}

// reserve counts one block for every running request that will soon need
// another. Without it a request admitted into the last blocks would be
// preempted first.
func (s *Scheduler) reserve(running []*request) int {
	size, n := s.limits.BlockTokens, 0
	for _, r := range running {
		if tail := r.blocks*size - r.known; 4*tail < size && r.blocks < s.blocksFor(s.limits.ContextTokens) {
			n++
		}
	}
	return n
}

// Restored records that the first tokens of a running request, of which nothing
// was computed, were restored into the KV cache. At least one known token must
// remain to be computed.
func (s *Scheduler) Restored(id ID, tokens int) error {
	r := s.all[id]
	if r == nil || !r.running || r.computed > 0 {
		return fmt.Errorf("restore %d tokens of request %d, which has already started: %w", tokens, id, errUnknown)
	}
	if tokens < 0 || tokens >= r.known {
		return fmt.Errorf("restore %d of the %d tokens of request %d, but at least one must be computed: %w", tokens, r.known, id, ErrTooLong)
	}
	r.computed = tokens
	return nil
}
