package engine

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/metal/engine/constraint"
	"metalfleet.dev/metalfleet/metal/engine/output"
	"metalfleet.dev/metalfleet/metal/grammar"
)

// deliver gives a sequence the token of its row.
func (l *loop) deliver(s *sequence, f *inflightStep, tokens []sampled, row int) {
	if s.echo.only {
		l.finish(s, Finished{Reason: Length})
		return
	}
	t := tokens[row]
	if errors.Is(t.err, constraint.ErrPending) {
		l.park(s, t.logits)
		return
	}
	if t.err == nil && f.argmax {
		var fits bool
		err := contained(l.log, "next token", func() (err error) { fits, err = s.constraint.Fits(t.token); return err })
		if p, ok := err.(panicked); ok {
			l.finish(s, Finished{Err: internal(p)})
			return
		}
		if !fits && !s.constraint.GiveUp(err) { // or it is not known: the host waits for it
			if err := l.resample(s); err != nil {
				l.finish(s, Finished{Err: &Refusal{Kind: Internal, Message: err.Error()}})
			}
			return
		}
	}
	l.accept(s, t, f.counted)
}

// deliverPrompt returns the log-probabilities that a step computed of a prompt. It reports
// whether the sequence continues.
func (l *loop) deliverPrompt(s *sequence, p promptLogprobs) bool {
	if p.err != nil {
		l.finish(s, Finished{Err: &Refusal{Kind: Internal, Message: "cannot rank the tokens of the prompt: " + p.err.Error()}})
		return false
	}
	if len(p.tokens) > 0 {
		s.echo.returned += len(p.tokens)
		if !s.stream.pushPrompt("", p.tokens) {
			l.finish(s, Finished{Err: s.stream.overflow()})
			return false
		}
	}
	return true
}

// park has a row leave the step: its logits wait for the mask, and the others do not.
func (l *loop) park(s *sequence, logits []float32) {
	s.parked, s.parkedAt = slices.Clone(logits), time.Now()
	if !slices.Contains(l.parked, s) {
		l.parked = append(l.parked, s)
	}
}

// resample has the newest token of a sequence sampled once more, by the host and under a
// mask: the device chose one that does not fit the constraint.
func (l *loop) resample(s *sequence) error {
	s.constraint.LeaveDevice()
	if err := l.sched.Redo(s.id, len(s.tokens)); err != nil {
		return err
	}
	if l.inflight != nil { // it writes after that token
		l.inflight.resampled = append(l.inflight.resampled, s)
		return nil
	}
	l.rewind(s)
	return nil
}

// accept adds a sampled token to its answer, or ends that with the error of sampling.
// counted is true if the scheduler has the token already.
func (l *loop) accept(s *sequence, t sampled, counted bool) {
	s.parked = nil
	switch err := t.err; {
	case errors.Is(err, constraint.ErrComplete):
		l.finish(s, s.complete(l.log))
		return
	case err != nil:
		l.finish(s, Finished{Err: s.unsampled(err)})
		return
	}
	s.tokens = append(s.tokens, t.token)
	if s.params.Penalised() {
		s.counts.Add(t.token)
	}
	l.counters.generated.Add(1)
	if end := s.show(l.log, t); end != nil {
		l.finish(s, *end)
		return
	}
	if counted {
		return
	}
	if err := l.sched.Grow(s.id); err != nil {
		l.finish(s, Finished{Err: &Refusal{Kind: Internal, Message: err.Error()}})
	}
}

// unsampled is the refusal of an answer that cannot continue: that of its request if its form cannot be
// followed.
func (s *sequence) unsampled(err error) *Refusal {
	for _, of := range []error{grammar.ErrWork, grammar.ErrAmbiguous, constraint.ErrSpelling} {
		if errors.Is(err, of) {
			return invalid(s.constraintParam, "%v", err)
		}
	}
	return &Refusal{Kind: Internal, Message: "cannot continue the model's output: " + err.Error()}
}

// show streams what a token adds to the answer. The result is nil if the answer continues.
func (s *sequence) show(log *slog.Logger, t sampled) (end *Finished) {
	var deltas []output.Delta
	var stopped bool
	err := contained(log, "output", func() (err error) { deltas, stopped, err = s.output.Push(t.token, t.ranked); return err })
	if err != nil {
		return &Finished{Err: internal(err)}
	}
	within := s.stream.push(deltas, s.output.Held()) // before the output is used again
	switch {
	case stopped:
		return &Finished{Reason: Stop, Stop: s.output.Stop()}
	case !within:
		return &Finished{Err: s.stream.overflow()}
	}
	deltas = nil
	if err := contained(log, "output", func() (err error) { deltas, end, err = s.ended(t.token); return err }); err != nil {
		return &Finished{Err: s.unsampled(err)}
	}
	if end != nil {
		s.stream.push(deltas, 0)
	}
	return end
}

// complete streams what was held back of an answer that its constraint ends.
func (s *sequence) complete(log *slog.Logger) Finished {
	var deltas []output.Delta
	if err := contained(log, "output", func() error { deltas = s.output.Flush(false); return nil }); err != nil {
		return Finished{Err: internal(err)}
	}
	s.stream.push(deltas, 0)
	return Finished{Reason: Stop, Stop: s.output.Stop()}
}

// ended reports whether an answer ends with a token that did not stop it: it is complete or
// long enough. It returns what was held back then.
func (s *sequence) ended(token int32) ([]output.Delta, *Finished, error) {
	complete, err := s.constraint.Advance(token)
	switch {
	case err != nil:
		return nil, nil, err
	case complete:
		deltas := s.output.Flush(false)
		return deltas, &Finished{Reason: Stop, Stop: s.output.Stop()}, nil
	case s.generated() < s.maxTokens:
		return nil, nil, nil
	}
	deltas := s.output.Flush(true)
	if stop := s.output.Stop(); stop != "" {
		return deltas, &Finished{Reason: Stop, Stop: stop}, nil
	}
	return deltas, &Finished{Reason: Length, Full: s.clamped}, nil
}
