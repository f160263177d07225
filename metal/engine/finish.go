package engine

// finish ends a request and returns its memory. While a step that computes it is in flight,
// the memory stays until that step has completed.
func (l *loop) finish(s *sequence, f Finished) {
	if l.inflight != nil {
		l.inflight.ended = append(l.inflight.ended, s)
	} else {
		l.forget(s.id)
	}
	delete(l.byID, s.id)
	s.parked = nil
	l.prefixes.release(s)
	s.images.forget(s.prompt)
	l.admission.release(s.owner)
	f.Usage.Generated, f.Usage.Cached, f.Usage.Reasoning = s.generated(), s.prefix.cached, s.output.ReasoningTokens()
	f.TextCalls = s.output.BrokenCalls()
	l.publish()
	s.stream.finish(f)
}

func (l *loop) finishAll(r *Refusal) {
	for _, s := range l.byID {
		l.finish(s, Finished{Err: r})
	}
}

// publish updates the counts that Status and the memory guard report.
func (l *loop) publish() {
	l.counters.running.Store(int64(l.sched.Running()))
	l.counters.queued.Store(int64(l.sched.Waiting()))
	var parked int64
	for _, s := range l.parked {
		parked += 4 * int64(len(s.parked))
	}
	l.counters.parked.Store(parked)
}
