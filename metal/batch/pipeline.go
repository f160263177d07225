package batch

import "slices"

// CanPipeline reports whether the next step can be built before step completes:
// its decode rows will be the sampling rows of step, in the same order, without
// requests that are done with that token, and at least one remains. No block has to
// be taken from another request for that, none gives way to another tenant, and no state has to be saved at a
// boundary. A request that is admitted once step is recorded does not change this,
// unless it decodes at once; check Decodes for that.
func (s *Scheduler) CanPipeline(step Step) bool {
	if victims, _ := s.victims(); len(step.Preempted) > 0 || len(victims) > 0 {
		return false
	}
	if b := s.limits.Boundary; b > 0 && slices.ContainsFunc(step.Rows, func(r Row) bool { return (r.Start+r.Length)%b == 0 }) {
		return false
	}
	need, at, on := 0, 0, 0 // blocks, the index of the next row, and requests that continue
	for _, r := range s.running {
		known := r.known
		switch sampled := step.sampled(at); {
		case sampled < len(step.Rows) && step.Rows[sampled].ID == r.id:
			at, known = sampled+1, r.known+1
			if known > s.limits.ContextTokens {
				return false
			}
			if known == r.maxTokens {
				continue
			}
			on++
		case r.done(), r.left() == 0: // waits for its token and has no row
			continue
		case r.empty || r.left()-step.of(r.id) < 1, r.left()-step.of(r.id) == 1 && r.known > r.prompt:
			return false // it would decode in the next step with a known token
		}
		need += max(0, s.blocksFor(known)-r.blocks)
	}
	return on > 0 && step.sampled(at) == len(step.Rows) && need <= s.freeBlocks
}
