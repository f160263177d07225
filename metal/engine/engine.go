// Package engine serves one model: any goroutine sends requests, and one goroutine loads
// the model, computes every step and releases it.
//
// # How a request runs
//
// Generate makes a sequence of the request (inputProcessor: template, tokenizer, limits,
// constraint), looks its prefix up in the prefixCache, has the memory guard check its
// prompt, and queues it (admission). Everything that can be refused is refused here, with a
// typed Refusal. After admission, its Stream ends exactly once. The loop prefills the
// prompt in chunks, then decodes one token in each step. Package output turns the tokens
// into text, reasoning, tool calls and log-probabilities, and the Stream passes them to the
// client, which the loop never waits for.
//
// # How one iteration of the loop runs
//
//  1. receive takes new requests, and runs tasks such as Abort and Trim.
//  2. sampleParked samples rows whose masks were late for their step.
//  3. If a step is in flight, pipeline dispatches the next one on its tokens and then
//     completes it. Otherwise:
//  4. reap ends requests whose clients have cancelled them.
//  5. plan admits sequences, restores their cached prefixes, chooses prefill chunks within
//     pace and memory, and preempts sequences without KV.
//  6. execute dispatches the step to the back end and completes it: it samples, delivers
//     tokens, and saves full blocks to the prefix cache. Where that pays, the drafter first
//     adds a guess of the next token to each decode row; a right one is delivered too.
//
// If there is nothing to compute, wait waits for a request.
//
// An embedding model or reranker has an embedLoop instead, which computes passes over texts.
//
// # What else there is
//
// The loader reads the model. The states Loading, Ready, Draining, Failed and Stopped are
// in lifecycle. Package guard keeps the process under its memory limits, and package
// constraint restricts output to a form. Status is a snapshot that never waits for a step.
// A Session and a Reader run a model without a queue, for command lines and tests. The
// engine knows no wire format and no process: package server does.
//
// Calls between the files of this package point one way: from Engine to the loader and the
// loops, from the loop to its planner, runner and blocks, and from these to sequences. Start
// reading at Engine.Generate and loop.iterate.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Options of an engine.
type Options struct {
	// ModelPath is a GGUF file or a folder that holds one.
	ModelPath string
	// Adapters of the model that requests may name.
	Adapters []Adapter
	// Backend computes; the engine closes it.
	Backend tensor.Backend
	// ContextTokens is the maximum length of a request; 0 means the model's own.
	ContextTokens int
	// Sequences run at once; 0 means 1. They share CacheTokens of KV; 0 means one whole
	// context for each. Queue more requests may wait; 0 means defaultQueue.
	Sequences, CacheTokens, Queue int
	// HeapLimit, unless nil, receives what the heap of Go may take of LimitBytes once the
	// model is loaded, in bytes.
	HeapLimit func(bytes int64)
	// LimitBytes of the whole process; 0 means no limit.
	LimitBytes int64
	// PrefixCache keeps computed prefixes in the part of the promised KV that no request
	// holds, and takes no other memory. CacheMemory is how many bytes may hold them in
	// addition.
	PrefixCache bool
	CacheMemory int64
	// Drafts uses the draft head of a model that has one: its guesses of tokens after the
	// next are checked in the same step. No answer depends on it.
	Drafts bool
	// ModelDigest identifies the weights, and Numerics everything else that changes bits:
	// back end, versions, precision. Cached prefixes are found under both.
	ModelDigest, Numerics string
	// SharedPrefixes are texts with which prompts or system messages of any tenant may
	// begin. All tenants within SharedScope find these beginnings in the prefix cache.
	SharedPrefixes []string
	SharedScope    string
	// ChatTemplate replaces the chat templates of the model; empty means its own.
	ChatTemplate string
	// CacheQueue is how many bytes that wait for the tier under the prefix cache may be in
	// memory.
	CacheQueue int64
	// Below returns the tier under the prefix cache for blocks of an origin; nil means no
	// tier. Its maker closes it, after Wait.
	Below func(kv.Origin) kv.Tier
	// Task of the model; empty means the one that the model declares. A decoder that
	// declares none generates text, but may be used for vectors or scores.
	Task model.Task
	// Supervised is true if an agent publishes limits. Until it does, the guard reports
	// that it is inactive.
	Supervised bool
	Log        *slog.Logger

	// estimator of prompts; nil means arithmetic. Tests set it.
	estimator guard.Estimator
	// attachPatience instead of the constant. Tests set it.
	attachPatience time.Duration
	// draftCost instead of what is measured (draftCosts). Tests set it.
	draftCost float64
	// unread instead of maxUnread. Tests set it.
	unread int64
}

const (
	defaultQueue = 64
	// abortRetry is when clients of aborted requests may try again: by then the agent has
	// measured what the abort freed.
	abortRetry = 5 * time.Second
)

// Engine serves one model.
type Engine struct {
	*shared
	lifecycle *lifecycle
	// input is nil until it is known what the model is, and prefixes until it is loaded or
	// if there is no prefix cache.
	input    atomic.Pointer[inputProcessor]
	prefixes atomic.Pointer[prefixCache]
	streams  openStreams
	// kill cancels hard.
	kill context.CancelFunc
	done chan struct{}
}

// Start begins to load and returns at once. Shutdown ends the engine; Wait returns how it
// ended.
func Start(opts Options) *Engine {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Sequences <= 0 {
		opts.Sequences = 1
	}
	if opts.Queue <= 0 {
		opts.Queue = defaultQueue
	}
	e := &Engine{
		shared:    &shared{opts: opts, log: opts.Log, admission: newAdmission(opts.Sequences, opts.Queue)},
		lifecycle: newLifecycle(opts.Log), done: make(chan struct{}),
	}
	e.guard = guard.New(guard.Options{
		Backend: opts.Backend, LimitBytes: opts.LimitBytes, Supervised: opts.Supervised, Log: opts.Log, Notify: e.lifecycle.notify,
		Cached: func() int64 { return e.prefixes.Load().bytes() }, Unread: e.unread,
	})
	e.hard, e.kill = context.WithCancel(context.Background())
	go e.run()
	return e
}

// unread are the bytes of output that no client has read yet, of prompts, images and tools that
// requests hold, and of logits that wait for masks.
func (e *Engine) unread() int64 {
	if p := e.input.Load(); p != nil {
		return p.unread.Held() + p.images.bytes() + p.tools.Held() + p.prompts.Held() + e.counters.parked.Load()
	}
	return 0
}

// run is the engine's one goroutine: it loads, serves and releases.
func (e *Engine) run() {
	defer close(e.done)
	defer e.kill()
	m, err := e.load()
	if err == nil {
		err = e.serve(m)
	} else if state, _, _ := e.lifecycle.current(); state == Draining {
		err = nil // it was stopped while it loaded
	}
	if err != nil {
		e.fail(err)
	}
	if m != nil {
		if m.input.constraints != nil {
			m.input.constraints.Wait()
		}
		m.release()
	}
	if lost := e.prefixes.Load().close(); lost > 0 { // after the model, whose memory does not wait for a disk
		e.log.Warn("parts of the prefix cache could not be saved", "blocks", lost)
	}
	if err = e.opts.Backend.Close(); err != nil {
		err = fmt.Errorf("close back end: %w", err)
	}
	e.lifecycle.stopped(err)
}

// load loads the model, makes its prefix cache and declares Ready.
func (e *Engine) load() (*loadedModel, error) {
	began := time.Now()
	if err := e.opts.Backend.Attach(); err != nil {
		return nil, err
	}
	l := &loader{e.shared, e.input.Store}
	m, err := l.load()
	if err != nil {
		return nil, err
	}
	if e.opts.keepsPrefixes() && m.cache != nil {
		p := newPrefixCache(e.opts, m, l.sharedPrompts(m.input))
		e.prefixes.Store(p)
		e.guard.Reserve(p.extra + footprint.CacheQueueHeld(e.opts.CacheQueue))
		e.log.Info("prefix cache enabled", "bytes", p.ram.Stats().Budget, "blockTokens", p.shape.Block)
	}
	e.guard.SetReady()
	e.admission.start()
	e.lifecycle.loaded()
	e.log.Info("model loaded", "bytes", e.counters.loaded.Load(), "milliseconds", time.Since(began).Milliseconds())
	return m, nil
}

// serve computes until the engine drains or fails.
func (e *Engine) serve(m *loadedModel) error {
	if m.embedder != nil {
		return newEmbedLoop(e.shared, m).run()
	}
	l, err := newLoop(e.shared, m, e.prefixes.Load())
	if err != nil {
		e.admission.stop()
		return err
	}
	return l.run()
}

// fail publishes the cause, and ends the requests that the loop has not taken.
func (e *Engine) fail(err error) {
	e.lifecycle.fail(err)
	sequences, embeddings := e.admission.fail()
	refusal := &Refusal{Kind: Internal, Message: "the engine failed"}
	for _, s := range sequences {
		s.stream.finish(Finished{Err: refusal})
	}
	for _, r := range embeddings {
		r.end(refusal)
	}
}

// Shutdown stops admission, lets requests finish until ctx ends, cancels the rest, and
// returns once everything is released. It returns how many requests it cancelled. A second
// call waits for the first.
func (e *Engine) Shutdown(ctx context.Context) int {
	before := e.lifecycle.drain()
	e.admission.drain()
	if before == Loading {
		e.kill() // nothing can be running yet
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		e.admission.abort()
		e.kill()
		<-e.done
	}
	return e.admission.cancelledCount()
}

// Wait returns once the engine has released everything: nil after an orderly end, the cause
// after a failure.
func (e *Engine) Wait() error {
	<-e.done
	return e.lifecycle.cause()
}

// Done is closed once the engine has released everything.
func (e *Engine) Done() <-chan struct{} { return e.done }

// Status returns a snapshot; it never waits for a step.
func (e *Engine) Status() Status {
	c := &e.counters
	s := Status{
		LoadedBytes: c.loaded.Load(), LoadBytes: c.loadTotal.Load(), Memory: e.opts.Backend.Memory(),
		Running: c.running.Load(), Queued: c.queued.Load(), Steps: c.steps.Load(), Iteration: c.iteration(),
		PromptTokens: c.promptTokens.Load(), GeneratedTokens: c.generated.Load(), Preemptions: c.preemptions.Load(), Drafts: c.drafts.Load(), RightDrafts: c.rightDrafts.Load(),
		Guard: e.guard.Status(), Prefixes: e.prefixes.Load().status(),
	}
	s.State, s.Reason, s.Message = e.lifecycle.current()
	if p := e.input.Load(); p != nil {
		s.Task = p.task
	}
	return s
}

// Changed returns a channel that is closed at the next change of state, and when the guard
// asks for room.
func (e *Engine) Changed() <-chan struct{} { return e.lifecycle.watch() }

// AwaitReady blocks until the engine serves or has failed.
func (e *Engine) AwaitReady(ctx context.Context) error {
	for {
		changed := e.Changed()
		switch state, _, _ := e.lifecycle.current(); state {
		case Ready:
			return nil
		case Loading:
		default:
			if err := e.lifecycle.cause(); err != nil {
				return err
			}
			return fmt.Errorf("engine is %v", state)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the model to load: %w", ctx.Err())
		}
	}
}

// Facts of the loaded model; ok is false while loading.
func (e *Engine) Facts() (facts model.Facts, ok bool) {
	p := e.input.Load()
	if p == nil {
		return model.Facts{}, false
	}
	return p.facts, true
}

// Generate checks a request and queues it. The error is a *Refusal. A returned stream ends
// with exactly one Finished and must be closed; the request is cancelled when ctx is.
func (e *Engine) Generate(ctx context.Context, r Request) (*Stream, error) {
	input, refusal := e.inputFor(model.Generate)
	if refusal != nil {
		return nil, refusal
	}
	if err := e.admission.check(r.owner()); err != nil {
		return nil, e.refusalOf(err)
	}
	var s *sequence
	if err := contained(e.log, "input", func() error { s, refusal = input.sequenceOf(ctx, r); return nil }); err != nil {
		return nil, internal(err)
	}
	if refusal != nil {
		return nil, refusal
	}
	if refusal := e.admit(ctx, s); refusal != nil {
		e.prefixes.Load().release(s)
		s.stream.Close()
		return nil, refusal
	}
	e.streams.add(s.stream)
	unhook := context.AfterFunc(ctx, s.stream.cancel)
	s.stream.onFinish(func() { unhook() })
	e.admission.notify()
	return s.stream, nil
}

// admit queues a sequence if its prompt fits under the memory limit.
func (e *Engine) admit(ctx context.Context, s *sequence) *Refusal {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.hard, cancel)()
	cached := e.prefixes.Load().lookup(ctx, s)
	asked, exceeded := e.guard.Check(ctx, footprint.Prefill{
		New: int64(s.prompt - cached), Cached: int64(cached), Restored: int64(cached),
		Chunk: int64(s.maxChunk(e.opts.Backend.Chunk())), AllLogits: s.wantsPromptLogprobs(),
	}, true)
	s.asked = asked
	if exceeded != nil {
		return outOfMemory(exceeded)
	}
	if err := e.admission.admit(s); err != nil {
		return e.refusalOf(err)
	}
	e.counters.promptTokens.Add(int64(s.prompt))
	return nil
}

// inputFor returns the input processor for a task, or refuses a task that the model is not
// made for.
func (e *Engine) inputFor(task model.Task) (*inputProcessor, *Refusal) {
	if state, _, _ := e.lifecycle.current(); state != Ready {
		return nil, notReady(state)
	}
	p := e.input.Load()
	if p.task != task {
		return nil, invalid("model", "%s", wrongTask(p.task, task))
	}
	return p, nil
}

// refusalOf an error of admission.
func (e *Engine) refusalOf(err error) *Refusal {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusal
	}
	state, _, _ := e.lifecycle.current()
	return notReady(state)
}

// wrongTask is the message of a request for a task that the model is not made for.
func wrongTask(made, asked model.Task) string {
	does := map[model.Task]string{model.Generate: "generates text", model.Embed: "computes embeddings of texts", model.Rerank: "scores documents for a query"}
	instead := map[model.Task]string{model.Generate: "chat or completions", model.Embed: "embeddings", model.Rerank: "rerank"}
	return fmt.Sprintf("this model %s and does not support %s; use it for %s, or choose another model", does[made], instead[asked], instead[made])
}

// SetLimits applies newly published limits; older ones are ignored. It is safe
// for concurrent use and never waits for a step.
func (e *Engine) SetLimits(l guard.Limits) {
	if e.guard.SetLimits(l) {
		e.admission.notify()
	}
}

// Trim returns pooled memory of the back end to the system, between two steps.
// It returns the measured number of bytes, never negative, 0 while nothing is
// served.
func (e *Engine) Trim(ctx context.Context) (int64, error) {
	var n int64
	var failed error
	if _, err := e.admission.run(ctx, func(loopControl) { n, failed = e.guard.Reclaim() }); err != nil {
		return 0, err
	}
	return n, failed
}

// Forget drops the prefix cache and pooled memory of the back end, between two
// steps. It returns the measured number of bytes, never negative.
func (e *Engine) Forget(ctx context.Context) (int64, error) {
	var n int64
	var failed error
	_, err := e.admission.run(ctx, func(loopControl) {
		n = e.prefixes.Load().clear()
		var pooled int64
		pooled, failed = e.guard.Reclaim()
		n += pooled
	})
	if err != nil {
		return 0, err
	}
	return n, failed
}

// Abort ends every running and queued request with a terminal error that has the reason;
// the engine continues. What clients have not read of answers is dropped, also where these had
// ended before. When it returns, their memory is back with the system. It returns how many
// requests there were.
func (e *Engine) Abort(ctx context.Context, reason string) (int, error) {
	if reason == "" {
		reason = "the request was aborted because this Mac is short of memory"
	}
	aborted := 0
	var failed error
	_, err := e.admission.run(ctx, func(l loopControl) {
		refusal := &Refusal{Kind: Aborted, Message: reason, RetryAfter: abortRetry}
		aborted = l.abortAll(refusal)
		e.streams.abort(refusal)
		_, failed = e.guard.Reclaim()
		e.log.Warn("requests aborted", "requests", aborted, "reason", reason)
	})
	if err != nil {
		return 0, err
	}
	return aborted, failed
}
