package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// embedLoop computes passes of an embedding model or reranker. The engine's own goroutine
// alone uses it.
type embedLoop struct {
	*shared
	model *loadedModel
	embedTurns
	pace     embedPace
	failures int
}

// passInput is one input of one request.
type passInput struct {
	of *embedding
	at int
}

func newEmbedLoop(s *shared, m *loadedModel) *embedLoop {
	l := &embedLoop{shared: s, model: m}
	l.pace.Slice = textSlice
	if m.embedder.BlockTokens() > 0 {
		l.least = embed.PassTokens(s.opts.Backend) / (shortPasses * s.opts.Sequences)
	}
	return l
}

// run computes passes until the engine drains or fails.
func (l *embedLoop) run() error {
	defer l.admission.stop()
	defer l.counters.rest()
	for {
		l.counters.begin()
		draining, aborting := l.receive()
		if aborting {
			l.admission.countCancelled(l.abortAll(&Refusal{Kind: Cancelled, Message: "the engine is stopping and the request did not finish in time"}))
			return nil
		}
		l.reap()
		pass := l.pass()
		if l.guard.PausePrefill() && !draining {
			pass = nil
		}
		if len(pass) > 0 {
			if err := l.compute(pass); err != nil {
				l.abortAll(&Refusal{Kind: Internal, Message: "the engine failed: " + err.Error()})
				return err
			}
			continue
		}
		if draining && len(l.requests) == 0 {
			return nil
		}
		l.counters.rest()
		<-l.admission.wake
	}
}

// receive takes new requests and runs tasks.
func (l *embedLoop) receive() (draining, aborting bool) {
	in := l.admission.take()
	for _, r := range in.embeddings {
		l.enter(r)
	}
	l.publish()
	runTasks(l, in.tasks)
	return in.draining, in.aborting
}

// reap ends requests whose clients have cancelled them.
func (l *embedLoop) reap() {
	for _, r := range slices.Clone(l.requests) {
		if r.ctx.Err() != nil {
			l.finish(r, &Refusal{Kind: Cancelled, Message: "the request was cancelled"})
		}
	}
}

// pass returns the inputs of the next pass: those whose turn it is, so that long lists, or
// many, do not delay the requests of others, until they are as many tokens as the back end
// takes at once, or in a short time while several tenants have requests. What a decoder keeps of
// them fits the promised KV cache. An input that is longer is alone in its pass, which computes a part of it.
func (l *embedLoop) pass() (out []passInput) {
	tokens, blocks := 0, l.held()
	l.begin()
	l.look()
	l.hold(blocks)
	for r := l.next(); r != nil; r = l.next() {
		in := passInput{r, r.begun + r.taken}
		n, long := in.tokens(), l.long(in)
		blocks += l.blocks(n)
		if len(out) > 0 && (long || tokens+n > l.pace.room || l.full(len(out)+1, blocks)) {
			return out
		}
		if out, tokens = append(out, r.take()), tokens+n; long {
			return out
		}
	}
	return out
}

// look sets how many tokens the next pass takes, and what they cost.
func (l *embedLoop) look() {
	deepest := 0
	for _, r := range l.requests {
		deepest = max(deepest, l.depth(r))
	}
	l.growth = l.pace.look(len(l.tenants) > 1, deepest, embed.PassTokens(l.opts.Backend))
}

// blocks of the cache that tokens take in a decoder.
func (l *embedLoop) blocks(tokens int) int {
	size := l.model.embedder.BlockTokens()
	if size == 0 {
		return 0
	}
	return (tokens + size - 1) / size
}

// full reports whether inputs take more than the KV cache promised to a decoder.
func (l *embedLoop) full(inputs, blocks int) bool {
	size := l.model.embedder.BlockTokens()
	return size > 0 && (inputs > l.opts.Sequences || blocks*size > l.model.cacheTokens)
}

// compute runs one pass, smaller if memory is short, and returns its results. The error is
// of a back end that fails again and again.
func (l *embedLoop) compute(pass []passInput) error {
	if l.long(pass[0]) {
		return l.computeChunk(pass[0])
	}
	pass, exceeded := l.fit(pass)
	if exceeded != nil {
		l.finish(pass[0].of, outOfMemory(exceeded))
		return nil
	}
	began := time.Now()
	out, err := l.forward(pass)
	if errors.Is(err, tensor.ErrMemory) {
		if n, rerr := l.guard.Reclaim(); rerr == nil && n > 0 || len(pass) > 1 {
			began = time.Now()
			out, err = l.forward(pass[:1])
			pass = pass[:1]
		}
	}
	if err != nil { // else a tenant whose requests leave would be the next again and again
		for _, p := range pass {
			p.of.count(p.cost())
		}
	}
	switch {
	case errors.Is(err, context.Canceled):
		return nil // the next iteration ends those that were cancelled, or everything
	case errors.Is(err, tensor.ErrMemory):
		l.finish(pass[0].of, outOfMemory(l.guard.Abort(0, l.guard.Room())))
		return nil
	case err != nil:
		return l.failed(pass, err)
	}
	l.failures = 0
	l.pace.took(time.Since(began), pass)
	for i, p := range pass {
		p.of.out = append(p.of.out, out[i])
		p.done()
	}
	for _, p := range pass {
		if p.of.begun == len(p.of.inputs) {
			l.finish(p.of, nil)
		}
	}
	return nil
}

func inputsOf(pass []passInput) []embed.Tokenized {
	inputs := make([]embed.Tokenized, len(pass))
	for i, p := range pass {
		inputs[i] = p.of.inputs[p.at]
	}
	return inputs
}

// forward computes a pass. It ends early with context.Canceled if the engine stops, or if
// all clients of the pass have cancelled their requests.
func (l *embedLoop) forward(pass []passInput) ([][]float32, error) {
	l.counters.steps.Add(1)
	ctx, cancel := context.WithCancel(l.hard)
	defer cancel()
	var wanted atomic.Int64
	wanted.Store(int64(len(pass)))
	for _, p := range pass {
		defer context.AfterFunc(p.of.ctx, func() {
			if wanted.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	inputs := make([]embed.Input, len(pass))
	for i, p := range pass {
		inputs[i] = p.of.inputs[p.at].Input()
	}
	return l.model.embedder.Compute(ctx, inputs)
}

// fit returns as much of a pass as there is room for now: all of it, half as many inputs,
// and so on. The error is of a single input without room, after the pool was reclaimed.
func (l *embedLoop) fit(pass []passInput) ([]passInput, *guard.Exceeded) {
	reclaimed := false
	for {
		tokens := passTokens(inputsOf(pass), embed.PassTokens(l.opts.Backend))
		needed, r, exceeded := l.guard.Weigh(footprint.Prefill{New: int64(tokens), Chunk: int64(l.opts.Backend.Chunk())})
		switch {
		case exceeded != nil:
			return pass, exceeded
		case r.Fits(needed) && (reclaimed || r.Pooled == 0 || r.Fits(needed+r.Pooled)):
			return pass, nil
		case !reclaimed && r.Pooled > 0:
			reclaimed = true
			if _, err := l.guard.Reclaim(); err != nil {
				l.log.Error("could not free pooled memory", "error", err.Error())
			}
		case r.Fits(needed):
			return pass, nil
		case len(pass) > 1:
			pass = pass[:len(pass)/2]
			l.guard.Throttled()
		default:
			return pass, l.guard.Abort(needed, r)
		}
	}
}

// failed ends the requests of a pass that the back end could not compute.
func (l *embedLoop) failed(pass []passInput, err error) error {
	l.log.Error("pass failed", "inputs", len(pass), "error", err.Error())
	for _, p := range pass {
		l.finish(p.of, &Refusal{Kind: Internal, Message: "the back end failed: " + err.Error()})
	}
	if l.failures++; l.failures >= failuresInARow {
		return fmt.Errorf("%w: %d passes in a row: %w", ErrBackend, l.failures, err)
	}
	return nil
}

// finish ends a request, once.
func (l *embedLoop) finish(r *embedding, refusal *Refusal) {
	at := slices.Index(l.requests, r)
	if at < 0 {
		return
	}
	l.leave(at)
	r.forgetWalk()
	l.admission.release(r.tenant)
	l.publish()
	r.end(refusal)
}

// abortAll ends every request.
func (l *embedLoop) abortAll(r *Refusal) int {
	n := len(l.requests)
	for _, one := range slices.Clone(l.requests) {
		l.finish(one, r)
	}
	return n
}

// publish updates the counts of requests: as many run as sequences were promised, the
// others wait.
func (l *embedLoop) publish() {
	running := min(len(l.requests), l.opts.Sequences)
	l.counters.running.Store(int64(running))
	l.counters.queued.Store(int64(len(l.requests) - running))
}
