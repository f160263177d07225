package batch

// Draft adds a draft to the decode row of a plan: one more token, which the caller guesses.
// ok is false if the request could not continue after the token that it gets anyway, if no
// block is free for the draft, or if a state has to be saved before it. The caller records
// the tokens of the row with Computed as far as they are right.
func (s *Scheduler) Draft(row Row) (_ Row, ok bool) {
	r := s.all[row.ID]
	switch {
	case r == nil || !r.running || !r.decodes() || row.Drafts > 0 || row.Start != r.computed:
		return row, false
	case r.known+1 > s.limits.ContextTokens, r.maxTokens > 0 && r.known+1 >= r.maxTokens:
		return row, false
	case s.limits.Boundary > 0 && r.known%s.limits.Boundary == 0:
		return row, false
	}
	if s.blocksFor(r.known+1) > r.blocks {
		if s.freeBlocks == 0 {
			return row, false
		}
		s.freeBlocks--
		r.blocks++
	}
	row.Length, row.Drafts = row.Length+1, 1
	return row, true
}
