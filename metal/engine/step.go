package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// flight is a step on its way through the back end. Where the back end allows
// it, the next step is built on the tokens of this one before they are read,
// so that the host's work hides behind the device's. An end is then seen one
// step late: the row that was computed for nothing is dropped when it lands,
// and its memory returned then.
type flight struct {
	step  batch.Step
	scope tensor.Scope
	// out holds token ids where every row takes the largest logit, else logits;
	// nil where no row samples.
	out    tensor.Array
	argmax bool
	// began is when it was built, started when the back end had all of it; ahead
	// says that the step before it was not read by then.
	began, started time.Time
	ahead          bool
	// counted says that the scheduler knows the tokens of this step already,
	// because the next one was built on them.
	counted bool
	// ended requests have a row here and no longer want it.
	ended []batch.ID
}

// begin computes a step, or starts it where the next may be built on it.
func (l *looping) begin(step batch.Step) error {
	f, err := l.launch(step, nil)
	if err != nil {
		return l.notLaunched(step, err)
	}
	if l.steady(f) {
		l.flight = f
		return nil
	}
	return l.land(f)
}

// advance builds the next step on the one under way, where it can, and lands
// the latter.
func (l *looping) advance() error {
	f := l.flight
	l.flight = nil
	if !l.steady(f) {
		return l.land(f)
	}
	if err := l.count(f); err != nil {
		f.scope.Close()
		return err
	}
	next, err := l.launch(l.sched.Plan(), f)
	if err == nil {
		l.flight = next
		return l.land(f)
	}
	if landed := l.land(f); landed != nil {
		return landed
	}
	return l.notLaunched(f.step, err)
}

// notLaunched deals with a step that could not be built.
func (l *looping) notLaunched(step batch.Step, err error) error {
	if errors.Is(err, tensor.ErrMemory) {
		l.outOfMemory(step, err)
		return nil
	}
	return l.stepFailed(step, err)
}

// steady reports whether the next step is the same rows again, whatever the
// tokens of this one are, unless one of them is an end.
func (l *looping) steady(f *flight) bool {
	if !l.e.opts.Backend.Ahead() || !f.argmax || !l.sched.Steady(f.step) || l.fills(f.step) {
		return false
	}
	for _, r := range f.step.Rows {
		a := l.active[r.ID]
		// A nil one ended while this step was under way.
		if a == nil || a.cancelled.Load() || a.generated()+1 >= a.maxTokens {
			return false
		}
	}
	return true
}

// count tells the scheduler of a step whose tokens are not read yet.
func (l *looping) count(f *flight) error {
	f.counted = true
	for _, r := range f.step.Rows {
		if err := l.sched.Computed(r); err != nil {
			return err
		}
		if err := l.sched.Grow(r.ID); err != nil {
			return err
		}
	}
	return nil
}

// launch builds a step; its input is known tokens, or what the step before it
// yields. Handles of everything but the result are gone when it returns.
func (l *looping) launch(step batch.Step, before *flight) (*flight, error) {
	l.makeWay()
	l.prepare(step.Rows)
	f := &flight{step: step, began: time.Now(), argmax: true, ahead: before != nil}
	var ids []int32
	var segments []tensor.Segment
	var last []int
	n := 0
	for _, r := range step.Rows {
		a := l.active[r.ID]
		if before == nil {
			ids = append(ids, a.tokens[r.Start:r.Start+r.Length]...)
		}
		segments = append(segments, tensor.Segment{Request: tensor.RequestID(r.ID), Start: r.Start, Length: r.Length})
		n += r.Length
		if r.Sample {
			last = append(last, n-1)
			f.argmax = f.argmax && a.params.Argmax() && a.logprobs == nil && a.constraint == nil
			a.constraint.prepare()
		}
	}
	l.e.steps.Add(1)
	l.e.leak()
	f.scope = l.e.opts.Backend.NewScope(l.e.hard)
	inner := f.scope.Child()
	defer inner.Close()
	input := tensor.Array(nil)
	if before != nil {
		input = before.out
	} else {
		input = inner.IDs(ids)
	}
	out := l.model.model.Step(inner, l.model.cache, input, segments, last)
	if inner.Err() != nil {
		out = nil
	}
	if out != nil && f.argmax {
		out = inner.Argmax(out, l.vocabulary(out))
	}
	if out != nil {
		f.out = inner.Keep(out)
	}
	inner.Close() // before anything is computed: what nobody holds is reused
	if f.out != nil {
		f.scope.Start(f.out)
	}
	if err := f.scope.Err(); err != nil {
		f.scope.Close()
		return nil, err
	}
	f.started = time.Now()
	return f, nil
}

// vocabulary is how many of the logits stand for tokens.
func (l *looping) vocabulary(logits tensor.Array) int {
	return min(logits.Shape()[1], l.model.serving.tok.Size())
}

// land waits for a step and hands out what it yields.
func (l *looping) land(f *flight) error {
	defer f.scope.Close()
	pick, err := l.read(f)
	for _, id := range f.ended {
		l.forget(id)
	}
	if err != nil {
		return l.stepFailed(f.step, err)
	}
	l.failures, l.relieved = 0, false
	row := -1
	for _, r := range f.step.Rows {
		if r.Sample {
			row++
		}
		a := l.active[r.ID]
		if a == nil { // it ended while this step was under way
			continue
		}
		if !f.counted {
			if err := l.sched.Computed(r); err != nil {
				return err
			}
		}
		if l.flight == nil {
			l.keep(a)
		}
		if r.Sample {
			l.deliver(a, f, pick, row)
		}
	}
	l.timed(f)
	return nil
}

// timed tells the pace, and the log where it wants steps, how long a step took,
// what is saved of it included.
func (l *looping) timed(f *flight) {
	now := time.Now()
	took := f.took(l.landed, now, l.flight)
	l.landed = now
	answers := f.step.Decodes()
	l.pace.Took(answers, f.step.Tokens()-answers, took)
	if l.e.log.Enabled(context.Background(), slog.LevelDebug) {
		l.e.log.Debug("step", "answers", answers, "promptTokens", f.step.Tokens()-answers, "prompts", len(f.step.Rows)-answers, "waiting", l.sched.Waiting(),
			"ahead", f.ahead, "built", f.built().Microseconds(), "took", took.Microseconds())
	}
}

// built is how long the host took to hand a step to the back end.
func (f *flight) built() time.Duration { return f.started.Sub(f.began) }

// took is how long a step that lands now would have taken by itself, again and
// again: landed is when the one before it did, next the one that was built on it,
// if any. The first step of several waited while the next was built; the last was
// built while the one before it computed, and seems to take no time.
func (f *flight) took(landed, now time.Time, next *flight) time.Duration {
	switch {
	case f.ahead && next != nil:
		return now.Sub(landed)
	case f.ahead:
		return max(now.Sub(landed), f.built())
	case next != nil:
		return now.Sub(f.began) - next.built()
	}
	return now.Sub(f.began)
}

// deliver gives a request the token of its row.
func (l *looping) deliver(a *active, f *flight, pick picker, row int) {
	p, err := pick(row)
	if err != nil {
		l.end(a, Finished{Err: &Refusal{Kind: Internal, Message: "the model's output cannot be sampled: " + err.Error()}})
		return
	}
	if !l.take(a, p) || f.counted {
		return
	}
	if err := l.sched.Grow(a.id); err != nil {
		l.end(a, Finished{Err: &Refusal{Kind: Internal, Message: err.Error()}})
	}
}

// picked is a token, and how likely it was where its request wants to know.
type picked struct {
	token  int32
	ranked *sample.Ranked
}

// picker chooses the token of a sampled row.
type picker func(row int) (picked, error)

// read waits for the results of a step.
func (l *looping) read(f *flight) (picker, error) {
	if f.out == nil {
		f.scope.Wait()
		return nil, f.scope.Err()
	}
	shape := f.out.Shape()
	if f.argmax {
		ids := make([]int32, shape[0])
		f.scope.ReadIDs(f.out, ids)
		return func(row int) (picked, error) {
			if ids[row] < 0 {
				return picked{}, fmt.Errorf("the largest logit is not a finite number: %w", sample.ErrLogits)
			}
			return picked{token: ids[row]}, nil
		}, f.scope.Err()
	}
	width, use := shape[1], l.vocabulary(f.out)
	if n := shape[0] * width; cap(l.logits) < n {
		l.logits = make([]float32, n)
	}
	flat := l.logits[:shape[0]*width]
	f.scope.Read(f.out, flat)
	if err := f.scope.Err(); err != nil {
		return nil, err
	}
	return l.draw(f.step, func(row int) []float32 { return flat[row*width:][:use] }), nil
}

// abandon gives up the step under way.
func (l *looping) abandon() {
	f := l.flight
	if f == nil {
		return
	}
	l.flight = nil
	f.scope.Close()
	for _, id := range f.ended {
		l.forget(id)
	}
}
