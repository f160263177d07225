package engine

import (
	"errors"
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/metal/engine/constraint"
	"metalfleet.dev/metalfleet/metal/footprint"
)

const (
	// turnTokens is how many tokens a request generates at least before it gives way to another
	// tenant.
	turnTokens = 64
	// parkedToken is the time without a mask that counts as one of them.
	parkedToken = 20 * time.Millisecond
)

// loop is the scheduler loop of a model that generates text. The engine's own goroutine
// alone uses it.
type loop struct {
	*shared
	*sequences
	prefixes *prefixCache // nil if there is none
	blocks   *blocks
	planner  *planner
	runner   *runner
	drafter  *drafter // nil without a draft head
	// inflight is a step that was dispatched and not completed; nil between steps, and
	// always if the back end does not compute ahead.
	inflight *inflightStep
	// completed is when the last step was.
	completed time.Time
	// encoder of images; nil if the model has no image input. encoded is true if it took
	// time since the last step completed.
	encoder *imageEncoder
	encoded bool
	// parked sequences wait for the masks of their next tokens.
	parked []*sequence
	// failures of steps in a row. reclaimed is true if the pool was reclaimed since the
	// last step that completed.
	failures  int
	reclaimed bool
}

// newLoop returns the loop of a loaded model.
func newLoop(s *shared, m *loadedModel, p *prefixCache) (*loop, error) {
	boundary := 0 // no step has a point inside at which a state is saved
	if m.shape.States {
		boundary = m.shape.Block
	}
	sched, err := batch.New(batch.Limits{
		ContextTokens: m.input.context, CacheTokens: m.cacheTokens, BlockTokens: m.blockTokens,
		Sequences: s.opts.Sequences, Queue: s.opts.Queue, Boundary: boundary, Chunk: s.opts.Backend.Chunk(), Turn: turnTokens,
	})
	if err != nil {
		return nil, err
	}
	held := &sequences{byID: map[batch.ID]*sequence{}, sched: sched, kv: m.cache}
	restores, images := newSideWork()
	b := &blocks{sequences: held, prefixes: p, guard: s.guard, log: s.log, side: restores, came: s.admission.came}
	l := &loop{
		shared: s, sequences: held, prefixes: p, blocks: b,
		planner: &planner{sequences: held, blocks: b, guard: s.guard, log: s.log, chunk: s.opts.Backend.Chunk(), notify: s.admission.notify},
		runner: &runner{
			sequences: held, backend: s.opts.Backend, model: m.model, adapters: m.adapters, hard: s.hard, samplers: newSamplers(m.input.text.Rows(), s.log),
			vocabulary: m.input.text.Rows(), maxRows: s.opts.Sequences,
		},
	}
	if d, ok := m.model.(arch.Drafter); ok && d.Drafts() {
		l.runner.drafter, l.runner.hidden = d, int(m.input.facts.HiddenSize)
		l.drafter = &drafter{sequences: held, head: d, runner: l.runner, costs: draftCosts{fixed: s.opts.draftCost}}
	}
	if m.tower != nil {
		l.runner.axes = m.input.images.tower.Axes != nil
		l.encoder = &imageEncoder{sequences: held, tower: m.tower, input: m.input, backend: s.opts.Backend, kernels: footprint.KernelsOf(kernelsName(s.opts.Backend)), shared: s, blocks: b, side: images}
	}
	return l, nil
}

// run computes steps until the engine drains or fails.
func (l *loop) run() error {
	defer l.admission.stop()
	defer l.counters.rest()
	for {
		l.counters.begin()
		more, err := l.iterate()
		if err != nil {
			l.abandon()
			l.finishAll(&Refusal{Kind: Internal, Message: "the engine failed: " + err.Error()})
			return err
		}
		if !more {
			return nil
		}
	}
}

// iterate runs one iteration: it takes what came in, computes one step, or waits for
// something to do.
func (l *loop) iterate() (more bool, err error) {
	draining, aborting := l.receive()
	if aborting {
		l.abandon()
		l.admission.countCancelled(len(l.byID))
		l.finishAll(&Refusal{Kind: Cancelled, Message: "the engine is stopping and the request did not finish in time"})
		return false, nil
	}
	l.sampleParked()
	encoding, err := l.encode()
	if err != nil {
		return false, err
	}
	if l.inflight != nil {
		return true, l.pipeline()
	}
	l.reap()
	step, needed := l.plan()
	if len(step.Rows) > 0 {
		return true, l.execute(step, needed)
	}
	if encoding || l.blocks.side.forgive() || len(l.blocks.wanted) > 0 { // what came in during a part of an image may be a step
		return true, nil
	}
	if draining && len(l.byID) == 0 {
		return false, nil
	}
	if len(step.Preempted) == 0 {
		l.wait()
	}
	return true, nil
}

// encode computes a part of an image that a prompt needs.
func (l *loop) encode() (worked bool, err error) {
	if l.encoder == nil {
		return false, nil
	}
	worked, s, refusal, err := l.encoder.advance()
	l.encoded = l.encoded || worked
	if err != nil {
		l.log.Error("an image could not be encoded", "error", err.Error())
		l.distrust(err)
	}
	if refusal != nil {
		l.finish(s, Finished{Err: refusal})
	}
	if err == nil {
		return worked, nil
	}
	if l.failures++; l.failures >= failuresInARow {
		return worked, fmt.Errorf("%w: %d times in a row: %w", ErrBackend, l.failures, err)
	}
	return worked, nil
}

// receive takes new requests and runs tasks.
func (l *loop) receive() (draining, aborting bool) {
	in := l.admission.take()
	l.sched.PausePrefill(l.guard.PausePrefill() && !in.draining)
	for _, s := range in.sequences {
		if err := l.sched.Submit(batch.Request{ID: s.id, Prompt: s.prompt, Priority: s.priority, Tenant: s.owner, Tokens: s.maxTokens, Whole: s.images.whole(), Chunk: s.promptChunk()}); err != nil {
			l.refuse(s, err)
			continue
		}
		s.constraint.OnReady(l.admission.notify)
		l.byID[s.id] = s
	}
	l.publish()
	runTasks(l, in.tasks)
	return in.draining, in.aborting
}

// refuse ends a request that the scheduler does not take. The scheduler counts requests that
// ended during a step until it completes, so that its queue may be full.
func (l *loop) refuse(s *sequence, err error) {
	refusal := &Refusal{Kind: Internal, Message: err.Error()}
	if errors.Is(err, batch.ErrQueueFull) {
		refusal.Kind, refusal.RetryAfter = QueueFull, retryAfter
	}
	l.prefixes.release(s)
	l.admission.release(s.owner)
	s.stream.finish(Finished{Err: refusal})
}

// sampleParked samples the rows that left their step and whose masks are ready now.
func (l *loop) sampleParked() {
	parked := l.parked
	l.parked = nil // and not an empty part, which would keep them
	var ready []*sequence
	var rows [][]float32
	for _, s := range parked {
		if l.byID[s.id] != s || s.parked == nil || l.sched.InKV(s.id) != len(s.tokens) {
			s.parked = nil // a row that is computed again is sampled then
			continue
		}
		l.idle(s)
		if s.constraint.Pending() {
			l.parked = append(l.parked, s)
			continue
		}
		ready, rows = append(ready, s), append(rows, s.parked)
	}
	for i, t := range l.runner.samplers.sampleRows(ready, rows) {
		if errors.Is(t.err, constraint.ErrPending) {
			l.parked = append(l.parked, ready[i])
			continue
		}
		l.accept(ready[i], t, false)
	}
}

// idle counts the time for which a row has waited for its mask as a part of its turn.
func (l *loop) idle(s *sequence) {
	tokens := time.Since(s.parkedAt) / parkedToken
	s.parkedAt = s.parkedAt.Add(tokens * parkedToken)
	l.sched.Idle(s.id, int(tokens))
}

// reap ends requests whose clients have cancelled them.
func (l *loop) reap() {
	for _, s := range l.byID {
		if s.cancelled.Load() {
			l.finish(s, Finished{Err: &Refusal{Kind: Cancelled, Message: "the request was cancelled"}})
		}
	}
}

// plan chooses the rows of the next step, and returns how many bytes its prefill chunks
// need. Prompts that do not fit any more are ended.
func (l *loop) plan() (step batch.Step, needed int64) {
	l.preemptAll(l.sched.Yield())
	chunks, needed, refused := l.planner.next()
	for refused != nil {
		l.finish(refused.sequence, Finished{Err: outOfMemory(refused.exceeded)})
		chunks, needed, refused = l.planner.next()
	}
	step = l.sched.Plan(chunks...)
	l.preemptAll(step.Preempted)
	l.publish()
	return step, needed
}

func (l *loop) preemptAll(ids []batch.ID) {
	for _, id := range ids {
		l.blocks.leave(l.byID[id])
		l.preempt(id)
		l.counters.preemptions.Add(1)
	}
}

// wait waits for something to do. Requests that wait look again whether one whose mask is late
// gives way, and images and prompts whether there is room.
func (l *loop) wait() {
	l.blocks.prepare()
	l.runner.shrink()
	if len(l.parked) > 0 && l.sched.Waiting() > 0 || len(l.blocks.roomless)+len(l.blocks.unfit) > 0 {
		again := time.AfterFunc(parkedToken, l.admission.notify)
		defer again.Stop()
	}
	l.counters.rest()
	<-l.admission.wake
}

// abortAll ends every request that runs or waits.
func (l *loop) abortAll(r *Refusal) int {
	n := len(l.byID)
	l.abandon()
	l.finishAll(r)
	l.publish()
	return n
}

// abandon gives up the step in flight.
func (l *loop) abandon() {
	f := l.inflight
	if f == nil {
		return
	}
	l.inflight = nil
	f.scope.Close()
	for _, s := range f.ended {
		l.forget(s.id)
	}
}
