package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tokenizer"
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
	// clamped is true if maxTokens is the room in the context and not what the request
	// wants.
	clamped  bool
	priority int
	// ending is which tokens end the answer.
	ending ending
	// echo is the prompt that is returned.
	echo    echo
	params  sample.Params
	counts  sample.Counts
	decoder *tokenizer.Decoder
	stops   *sample.StopMatcher
	// logprobs wanted beside each token; nil where none are. untold ones wait for
	// the text of their tokens.
	logprobs *int
	untold   untold
	// progress of the prompt is reported.
	progress bool
	// constraint that the answer is held to; nil is none. parked are the logits of a row that
	// left its step because its mask was late.
	constraint *constrained
	parked     []float32
	// reasoner tells thoughts from the answer; nil takes all for the answer.
	reasoner *reasoner
	// census counts the tokens of thoughts: it is the reasoner, or one whose text is
	// unused if the caller separates thoughts from the answer as well.
	census *reasoner
	// caller reads calls of tools in the answer; nil takes all for text.
	caller *caller
	// asked says that the host was asked for room once, weighed that the guard
	// let its prompt begin.
	asked, weighed bool

	// salt of the keys of its blocks.
	salt kv.Salt
	// chain of keys, where prompts are remembered, and what the request counts on.
	chain *kv.Chain
	holds []kv.Holding
	// saved whole blocks, and the next ones are staged; mute says that no more are.
	// began says that the first look for what is remembered is over, which found cached
	// tokens.
	saved       int
	staged      bool
	mute, began bool
	cached      int
}

func (a *active) generated() int { return len(a.tokens) - a.prompt }

// looping is what the loop alone touches.
type looping struct {
	e      *Engine
	model  *loadedModel
	sched  *batch.Scheduler
	hands  []*hand
	active map[batch.ID]*active
	logits []float32
	// flight is a step that was started and not read; nil where the back end
	// does not compute ahead.
	flight *flight
	// pace says how much of prompts a step takes; landed is when the last step
	// that it was told of was read.
	pace     batch.Pace
	landed   time.Time
	failures int
	// parked requests wait for the masks of their next tokens.
	parked []*active
	// hold is a prompt that waits for room; nil if none does.
	hold *holding
	// prefixes that are remembered; nil if none are. fresh requests may still go on
	// from one.
	prefixes *prefixes
	fresh    []batch.ID
	// relieved says that the pool was reclaimed since the last step that landed.
	relieved bool
}

// serve computes steps until the engine drains or breaks.
func (e *Engine) serve(m *loadedModel) error {
	defer e.closes()
	boundary := 0 // no step has a point inside at which a state is saved
	if m.shape.States {
		boundary = m.shape.Block
	}
	sched, err := batch.New(batch.Limits{
		ContextTokens: m.serving.context, CacheTokens: m.cacheTokens, BlockTokens: m.blockTokens,
		Sequences: e.opts.Sequences, Queue: e.opts.Queue, Boundary: boundary,
	})
	if err != nil {
		return err
	}
	l := &looping{e: e, model: m, sched: sched, hands: newHands(m.serving.tok.Size()), active: map[batch.ID]*active{}, prefixes: e.prefixes.Load()}
	for {
		more, err := l.turn()
		if err != nil {
			l.abandon()
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
		l.abandon()
		l.e.countCancelled(len(l.active))
		l.endAll(&Refusal{Kind: Cancelled, Message: "the engine is stopping and the request did not finish in time"})
		return false, nil
	}
	l.drawParked()
	if l.flight != nil {
		return true, l.advance()
	}
	l.reap()
	pieces, needed := l.prefill()
	step := l.sched.Plan(pieces...)
	for _, id := range step.Preempted {
		l.active[id].weighed, l.active[id].parked = false, nil
		l.model.cache.Drop(tensor.RequestID(id))
		l.e.preemptions.Add(1)
	}
	l.publish()
	if len(step.Rows) > 0 {
		return true, l.begin(step, needed)
	}
	if draining && len(l.active) == 0 {
		return false, nil
	}
	if len(step.Preempted) == 0 {
		l.prepare()
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
	chores := e.chores
	e.chores = nil
	e.mu.Unlock()
	l.sched.PausePrefill(e.limits.now().PausePrefill && !draining)
	for _, a := range inbox {
		if err := l.sched.Submit(batch.Request{ID: a.id, Prompt: a.prompt, Priority: a.priority, Tokens: a.maxTokens}); err != nil {
			e.letGo(a)
			a.stream.finish(Finished{Err: &Refusal{Kind: Internal, Message: err.Error()}})
			continue
		}
		if a.constraint != nil {
			a.constraint.notify = e.poke
		}
		l.active[a.id] = a
	}
	l.publish()
	attend(l, chores)
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

// budget is how many prompt tokens the next step may take, within what the back
// end takes at once.
func (l *looping) budget() int {
	return l.pace.Tokens(l.sched.Work(), l.e.opts.Backend.Chunk())
}

func (l *looping) publish() {
	l.e.running.Store(int64(l.sched.Running()))
	l.e.queued.Store(int64(l.sched.Waiting()))
	var unread int64
	for _, a := range l.active {
		if a.logprobs != nil {
			unread += a.stream.unreadBytes()
		}
	}
	l.e.unread.Store(unread)
}

// stepFailed ends the requests of a step that the back end could not compute;
// the others go on.
func (l *looping) stepFailed(step batch.Step, err error) error {
	if errors.Is(err, context.Canceled) {
		return nil // aborting: the next turn ends everything
	}
	refusal := &Refusal{Kind: Internal, Message: "the back end failed: " + err.Error()}
	if errors.Is(err, tensor.ErrMemory) {
		r := l.e.room(l.model.serving)
		refusal = &Refusal{Kind: OutOfMemory, Message: "the step reached the memory limit", Used: r.held, Limit: r.limit, RetryAfter: retryAfter}
	} else {
		l.failures++
	}
	l.e.log.Error("step failed", "rows", len(step.Rows), "tokens", step.Tokens(), "error", err.Error())
	for _, r := range step.Rows {
		if a := l.active[r.ID]; a != nil { // else it ended before the step did
			l.end(a, Finished{Err: refusal})
		}
	}
	l.reset(err)
	if l.failures >= failuresInARow {
		return fmt.Errorf("%w: %d steps in a row: %w", ErrBackend, l.failures, err)
	}
	return nil
}

// take adds a token to an answer and streams what it shows; alive says whether
// the answer goes on.
func (l *looping) take(a *active, p picked) (alive bool) {
	token := p.token
	a.tokens = append(a.tokens, token)
	a.counts.Add(token)
	l.e.generatedTotals.Add(1)
	if a.ending.tokens[token] {
		l.flush(a, false)
		l.end(a, Finished{Reason: Stop, Stop: a.stops.Matched()})
		return false
	}
	text, err := a.decoder.Push(token)
	if err != nil {
		l.end(a, Finished{Err: &Refusal{Kind: Internal, Message: err.Error()}})
		return false
	}
	if a.reasoner == nil {
		a.census.see(token, text)
	}
	thoughts, text, counts := a.reasoner.see(token, a.caller.shown(text))
	if !a.reasoner.thinking() {
		text += a.caller.mark(token, a.decoder)
	}
	if !counts {
		p.ranked = nil
	}
	a.untold.add(p.ranked, 0)
	a.stream.push(token, thoughts)
	stopped := l.tell(a, a.caller.read(text))
	a.stream.notify()
	if stopped {
		l.end(a, Finished{Reason: Stop, Stop: a.stops.Matched()})
		return false
	}
	done, err := a.constraint.took(token)
	if err != nil {
		l.end(a, Finished{Err: &Refusal{Kind: Internal, Message: err.Error()}})
		return false
	}
	if done {
		l.flush(a, false)
		l.end(a, Finished{Reason: Stop})
		return false
	}
	if a.generated() >= a.maxTokens {
		l.flush(a, true)
		l.end(a, Finished{Reason: Length, Full: a.clamped})
		return false
	}
	return true
}

// flush shows what decoder and stop strings held back; cut is set where a limit ended the
// answer.
func (l *looping) flush(a *active, cut bool) {
	thoughts, text := a.reasoner.rest(a.caller.shown(a.decoder.Flush()))
	a.stream.pushText("", thoughts, nil)
	if l.tell(a, append(a.caller.read(text), a.caller.rest(cut)...)) {
		return
	}
	held := a.stops.Flush()
	last := a.untold.shows(len(held))
	if !a.caller.called() {
		last = append(last, a.untold.all()...)
	}
	a.stream.pushText(held, "", last)
}

// end finishes a request and returns its memory; while a step that computes it
// is under way, the memory stays until that step has landed.
func (l *looping) end(a *active, f Finished) {
	if l.flight != nil {
		l.flight.ended = append(l.flight.ended, a)
	} else {
		l.forget(a.id)
	}
	delete(l.active, a.id)
	l.e.letGo(a)
	l.e.release()
	f.Usage.Generated, f.Usage.Cached, f.Usage.Reasoning = a.generated(), a.cached, a.census.counted()
	f.TextCalls = a.caller.broken()
	l.publish()
	a.stream.finish(f)
}

// forget returns the memory of a request.
func (l *looping) forget(id batch.ID) {
	l.sched.Remove(id)
	l.model.cache.Drop(tensor.RequestID(id))
}

func (l *looping) endAll(r *Refusal) {
	for _, a := range l.active {
		l.end(a, Finished{Err: r})
	}
}
