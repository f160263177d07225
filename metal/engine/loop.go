package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tokenizer"
)

const (
	// maxChunk bounds the prompt tokens of one step, and with it how late a
	// cancel is seen.
	maxChunk = 128
	minChunk = 8
	// prefillSlice is how long running answers may wait for a prompt beside them.
	prefillSlice = 200 * time.Millisecond
)

// active is an admitted request as the loop holds it.
type active struct {
	id     batch.ID
	stream *Stream
	// cancelled is set from outside and seen between steps.
	cancelled atomic.Bool
	// tokens of the prompt and the answer; prompt of them are the prompt.
	tokens    []int32
	prompt    int
	maxTokens int
	params    sample.Params
	counts    sample.Counts
	decoder   *tokenizer.Decoder
	stops     *sample.StopMatcher
}

func (a *active) generated() int { return len(a.tokens) - a.prompt }

// looping is what the loop alone touches.
type looping struct {
	e       *Engine
	model   *loadedModel
	sched   *batch.Scheduler
	sampler *sample.Sampler
	active  map[batch.ID]*active
	logits  []float32
	// rate is how many tokens a second steps with prompts computed lately.
	rate     float64
	failures int
}

// serve computes steps until the engine drains or breaks.
func (e *Engine) serve(m *loadedModel) error {
	sched, err := batch.New(batch.Limits{
		ContextTokens: m.serving.context, CacheTokens: m.cacheTokens, BlockTokens: m.model.CacheSpec().BlockTokens,
		Sequences: e.opts.Sequences, Queue: e.opts.Queue,
	})
	if err != nil {
		return err
	}
	l := &looping{e: e, model: m, sched: sched, sampler: sample.New(m.serving.tok.Size()), active: map[batch.ID]*active{}}
	for {
		more, err := l.turn()
		if err != nil {
			l.endAll(&Refusal{Kind: Internal, Message: "the engine failed: " + err.Error()})
			return err
		}
		if !more {
			return nil
		}
	}
}

// turn takes what came in, computes one step, or waits for something to do.
func (l *looping) turn() (more bool, err error) {
	draining, aborting := l.takeInbox()
	if aborting {
		l.e.countCancelled(len(l.active))
		l.endAll(&Refusal{Kind: Cancelled, Message: "the engine is stopping and the request did not finish in time"})
		return false, nil
	}
	l.reap()
	step := l.sched.Plan(l.budget())
	for _, id := range step.Preempted {
		l.model.cache.Drop(tensor.RequestID(id))
		l.e.preemptions.Add(1)
	}
	l.publish()
	if len(step.Rows) > 0 {
		return true, l.compute(step)
	}
	if draining && len(l.active) == 0 {
		return false, nil
	}
	if len(step.Preempted) == 0 {
		<-l.e.wake
	}
	return true, nil
}

func (l *looping) takeInbox() (draining, aborting bool) {
	e := l.e
	e.mu.Lock()
	inbox := e.inbox
	e.inbox = nil
	draining, aborting = e.state == Draining, e.aborting
	l.sched.PausePrefill(e.limits.PausePrefill && !draining)
	e.mu.Unlock()
	for _, a := range inbox {
		if err := l.sched.Submit(a.id, a.prompt); err != nil {
			a.stream.finish(Finished{Err: &Refusal{Kind: Internal, Message: err.Error()}})
			continue
		}
		l.active[a.id] = a
	}
	return draining, aborting
}

// reap ends requests that were cancelled from outside.
func (l *looping) reap() {
	for _, a := range l.active {
		if a.cancelled.Load() {
			l.end(a, Finished{Err: &Refusal{Kind: Cancelled, Message: "the request was cancelled"}})
		}
	}
}

// budget is how many prompt tokens the next step may take: a time slice where
// others wait for it, else the bound.
func (l *looping) budget() int {
	if l.sched.Running() <= 1 || l.rate == 0 {
		return maxChunk
	}
	return min(maxChunk, max(minChunk, int(l.rate*prefillSlice.Seconds())))
}

func (l *looping) publish() {
	l.e.running.Store(int64(l.sched.Running()))
	l.e.queued.Store(int64(l.sched.Waiting()))
}

// compute runs one step and hands out what it yields.
func (l *looping) compute(step batch.Step) error {
	began := time.Now()
	logits, err := l.forward(step)
	l.e.steps.Add(1)
	if err != nil {
		return l.stepFailed(step, err)
	}
	l.failures = 0
	if n := step.Tokens(); n > step.Decodes() {
		if d := time.Since(began).Seconds(); d > 0 {
			l.rate = float64(n) / d
		}
	}
	for i, r := range step.Rows {
		if err := l.sched.Computed(r); err != nil {
			return err
		}
		if r.Sample {
			l.deliver(l.active[r.ID], logits[i])
		}
	}
	return nil
}

// forward computes a step; the result has a row of logits for each row that
// samples.
func (l *looping) forward(step batch.Step) ([][]float32, error) {
	var ids []int32
	var segments []tensor.Segment
	var last []int
	for _, r := range step.Rows {
		ids = append(ids, l.active[r.ID].tokens[r.Start:r.Start+r.Length]...)
		segments = append(segments, tensor.Segment{Request: tensor.RequestID(r.ID), Start: r.Start, Length: r.Length})
		if r.Sample {
			last = append(last, len(ids)-1)
		}
	}
	sc := l.e.opts.Backend.NewScope(l.e.hard)
	defer sc.Close()
	out := l.model.model.Step(sc, l.model.cache, sc.IDs(ids), segments, last)
	if err := sc.Err(); err != nil {
		return nil, err
	}
	rows := make([][]float32, len(step.Rows))
	if out == nil {
		return rows, nil
	}
	width := out.Shape()[1]
	if n := len(last) * width; cap(l.logits) < n {
		l.logits = make([]float32, n)
	}
	flat := l.logits[:len(last)*width]
	sc.Read(out, flat)
	for i, r := range step.Rows {
		if r.Sample {
			rows[i], flat = flat[:min(width, l.model.serving.tok.Size())], flat[width:]
		}
	}
	return rows, sc.Err()
}

// stepFailed ends the requests of a step that the back end could not compute;
// the others go on.
func (l *looping) stepFailed(step batch.Step, err error) error {
	if errors.Is(err, context.Canceled) {
		return nil // aborting: the next turn ends everything
	}
	refusal := &Refusal{Kind: Internal, Message: "the back end failed: " + err.Error()}
	if errors.Is(err, tensor.ErrMemory) {
		m := l.e.opts.Backend.Memory()
		refusal = &Refusal{Kind: OutOfMemory, Message: "the memory limit was reached while computing", Used: m.Active(), RetryAfter: time.Second}
	} else {
		l.failures++
	}
	l.e.log.Error("step failed", "rows", len(step.Rows), "tokens", step.Tokens(), "error", err.Error())
	for _, r := range step.Rows {
		l.end(l.active[r.ID], Finished{Err: refusal})
	}
	if l.failures >= failuresInARow {
		return fmt.Errorf("%w: %d steps in a row: %w", ErrBackend, l.failures, err)
	}
	return nil
}

// deliver samples the next token of a request and streams what it shows.
func (l *looping) deliver(a *active, logits []float32) {
	token, err := l.sampler.Token(a.params, logits, uint64(a.generated()), &a.counts)
	if err != nil {
		l.end(a, Finished{Err: &Refusal{Kind: Internal, Message: "the model's output cannot be sampled: " + err.Error()}})
		return
	}
	a.tokens = append(a.tokens, token)
	a.counts.Add(token)
	l.e.generatedTotals.Add(1)
	if l.model.serving.ends[token] {
		l.flush(a)
		l.end(a, Finished{Reason: Stop})
		return
	}
	text, err := a.decoder.Push(token)
	if err != nil {
		l.end(a, Finished{Err: &Refusal{Kind: Internal, Message: err.Error()}})
		return
	}
	shown, stopped := a.stops.Push(text)
	a.stream.push(shown, token)
	if stopped {
		l.end(a, Finished{Reason: Stop})
		return
	}
	if a.generated() >= a.maxTokens {
		l.flush(a)
		l.end(a, Finished{Reason: Length})
		return
	}
	if err := l.sched.Grow(a.id); err != nil {
		l.end(a, Finished{Err: &Refusal{Kind: Internal, Message: err.Error()}})
	}
}

// flush shows what decoder and stop strings held back.
func (l *looping) flush(a *active) {
	shown, stopped := a.stops.Push(a.decoder.Flush())
	if !stopped {
		shown += a.stops.Flush()
	}
	a.stream.pushText(shown)
}

// end finishes a request and returns its memory.
func (l *looping) end(a *active, f Finished) {
	l.sched.Remove(a.id)
	l.model.cache.Drop(tensor.RequestID(a.id))
	delete(l.active, a.id)
	l.e.release()
	f.Usage.Generated = a.generated()
	l.publish()
	a.stream.finish(f)
}

func (l *looping) endAll(r *Refusal) {
	for _, a := range l.active {
		l.end(a, Finished{Err: r})
	}
}
