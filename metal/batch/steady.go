package batch

import "slices"

// Steady reports whether the answers of the next plan, once step is computed and
// each row of it that samples has grown by one token, are those that it samples and
// that do not end with that, in this order, and there are some: so the next step may
// be built before they are known. No blocks have to be taken from anybody, and nothing
// is to be saved at a boundary first. Whoever is admitted meanwhile, once step is
// recorded, changes nothing of that, unless it is an answer at once: Answers says so.
func (s *Scheduler) Steady(step Step) bool {
	if len(step.Preempted) > 0 {
		return false
	}
	if b := s.limits.Boundary; b > 0 && slices.ContainsFunc(step.Rows, func(r Row) bool { return (r.Start+r.Length)%b == 0 }) {
		return false
	}
	need, at, on := 0, 0, 0 // blocks, the rows that were passed, and those that go on
	for _, r := range s.running {
		known := r.known
		switch sampled := step.sampled(at); {
		case sampled < len(step.Rows) && step.Rows[sampled].ID == r.id:
			at, known = sampled+1, r.known+1
			if known > s.limits.ContextTokens {
				return false
			}
			if known == r.most {
				continue
			}
			on++
		case r.done(), r.left() == 0: // one that waits for its token has no row
			continue
		case r.empty || r.left()-step.of(r.id) <= 1:
			return false // it would be an answer whose token is known
		}
		need += max(0, s.blocksFor(known)-r.blocks)
	}
	return on > 0 && step.sampled(at) == len(step.Rows) && need <= s.freeBlocks
}
