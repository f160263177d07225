package engine

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
)

// execute computes a step. If the next one may be built on it, it is only dispatched.
func (l *loop) execute(step batch.Step, needed int64) error {
	if l.drafter != nil {
		l.blocks.makeRoom()
		if err := l.drafter.propose(step); err != nil {
			return l.notDispatched(step, err)
		}
	}
	f, err := l.dispatch(step, needed, nil)
	if err != nil {
		return l.notDispatched(step, err)
	}
	if l.canPipeline(f) {
		l.inflight = f
		return nil
	}
	return l.complete(f)
}

// pipeline dispatches the next step on the one in flight, if it can, and completes the
// latter.
func (l *loop) pipeline() error {
	f := l.inflight
	l.inflight = nil
	if !l.canPipeline(f) {
		return l.complete(f)
	}
	if err := l.count(f); err != nil {
		f.scope.Close()
		return err
	}
	chunks, needed, ok := l.planner.following(f)
	if !ok {
		return l.complete(f)
	}
	step := l.sched.Plan(chunks...)
	next, err := l.dispatch(step, needed, f)
	if err == nil {
		l.inflight = next
		return l.complete(f)
	}
	if failed := l.complete(f); failed != nil {
		return failed
	}
	return l.notDispatched(step, err)
}

// canPipeline reports whether the next step can be built before this one completes: the set
// of decoding sequences will not change by anything but their tokens, and nothing needs the
// result on the host. A sequence that ends with this step is computed once more for
// nothing. One that ended meanwhile, before its prompt was computed, needs the step completed
// first, as do a cancelled request, a prefix to restore, a prompt that waits for room and a
// state to save.
func (l *loop) canPipeline(f *inflightStep) bool {
	if !l.opts.Backend.Ahead() || !f.argmax || f.out == nil || len(f.resampled) > 0 ||
		len(l.blocks.pending) > 0 || l.planner.waiting != nil || l.drafter.next(f) || !l.sched.CanPipeline(f.step) || l.blocks.savesState(f.step) {
		return false
	}
	for _, r := range f.step.Rows {
		if l.byID[r.ID] == nil { // it ended while this step was in flight
			return false
		}
	}
	for _, s := range f.ended {
		if l.sched.InKV(s.id) < max(len(s.tokens)-1, s.prompt) { // the scheduler has it still
			return false
		}
	}
	for _, s := range l.byID {
		if s.cancelled.Load() {
			return false
		}
	}
	return true
}

// count has the scheduler count the tokens of a step before they are read.
func (l *loop) count(f *inflightStep) error {
	f.counted = true
	for _, r := range f.step.Rows {
		if err := l.sched.Computed(r); err != nil {
			return err
		}
		if !r.Sample {
			continue
		}
		if err := l.sched.Grow(r.ID); err != nil {
			return err
		}
	}
	return nil
}

// dispatch hands a step to the back end, after the prefix cache has made room for it.
func (l *loop) dispatch(step batch.Step, needed int64, before *inflightStep) (*inflightStep, error) {
	l.blocks.makeRoom()
	l.blocks.prepare()
	l.counters.steps.Add(1)
	f, err := l.runner.dispatch(step, before)
	if err == nil {
		f.needed = needed
	}
	return f, err
}

// complete waits for a step and delivers its results.
func (l *loop) complete(f *inflightStep) error {
	defer f.scope.Close()
	tokens, err := l.runner.read(f)
	for _, s := range f.ended {
		if err == nil {
			l.blocks.saveLast(s)
		}
		l.forget(s.id)
	}
	if err != nil {
		return l.stepFailed(f.step, err)
	}
	l.failures, l.reclaimed = 0, false
	if err := l.deliverAll(f, tokens); err != nil {
		return err
	}
	for _, s := range f.resampled {
		if l.byID[s.id] == s {
			l.rewind(s)
		}
	}
	l.record(f)
	return nil
}

// deliverAll gives every sequence of a step its results, and saves the blocks that it
// filled.
func (l *loop) deliverAll(f *inflightStep, tokens []sampled) error {
	row := -1
	var filled, drafted []*sequence
	var seconds [][]float32 // of drafted
	for i, r := range f.step.Rows {
		if r.Sample {
			row++
		}
		s := l.byID[r.ID]
		if s == nil || slices.Contains(f.resampled, s) { // it ended while this step was in flight, or its row counts for nothing
			continue
		}
		if r.Drafts > 0 {
			more, err := l.deliverDrafted(s, f, i, tokens, row)
			if err != nil {
				return err
			}
			if more {
				drafted, seconds = append(drafted, s), append(seconds, tokens[row].then)
			}
			continue
		}
		f.keepState(s, i, false)
		if !f.counted {
			if err := l.sched.Computed(r); err != nil {
				return err
			}
		}
		if f.promptLogprobs != nil && !l.deliverPrompt(s, f.promptLogprobs[i]) {
			continue
		}
		s.images.forget(r.Start + r.Length)
		if r.Start < s.prompt && s.prompt <= r.Start+r.Length {
			s.images.computed()
		}
		if end := r.Start + r.Length; s.progress && end <= s.prompt && s.generated() == 0 {
			s.stream.pushProgress(Progress{Processed: end, Cached: s.prefix.cached})
		}
		if l.inflight == nil {
			l.blocks.save(s)
		} else if l.blocks.due(s) {
			filled = append(filled, s)
		}
		if r.Sample {
			l.deliver(s, f, tokens, row)
		}
	}
	l.deliverSeconds(drafted, seconds)
	l.blocks.saveLater(filled)
	return nil
}

// record gives the duration of a step, including what was saved of it, to the pace, and to
// the log if that wants steps.
func (l *loop) record(f *inflightStep) {
	now := time.Now()
	took := f.duration(l.completed, now, l.inflight)
	l.completed = now
	l.blocks.side.stepped(took)
	l.sched.Took(took)
	load := f.step.Load()
	l.planner.pace.Owe(load, took)
	if !l.encoded && (f.promptLogprobs == nil || load.Decodes > 0) { // else it took longer than prompts do
		took := took - f.ranking
		l.planner.pace.Took(load, took)
		if l.drafter != nil {
			l.drafter.costs.took(f.step, took+l.drafter.spent)
		}
	}
	l.encoded = false
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("step", "answers", load.Decodes, "promptTokens", load.PrefillTokens, "prompts", len(f.step.Rows)-load.Decodes, "seen", load.DecodeContext, "past", load.PrefillContext, "waiting", l.sched.Waiting(),
			"ahead", f.ahead, "built", f.buildTime().Microseconds(), "took", took.Microseconds())
	}
}
