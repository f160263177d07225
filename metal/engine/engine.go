// Package engine is one model served: requests come in from any goroutine, one
// owned goroutine loads the model, computes every step and releases it.
//
// It owns the order preflight, queue, step, sample, stream, the states Loading,
// Ready, Draining, Failed, Stopped, and the guard of its own memory. It refuses
// before anything is admitted whatever template, tokenizer, context, memory or
// queue cannot take, with a typed Refusal; after admission every stream ends
// exactly once. Status is a snapshot that never waits for a step. It knows no
// wire and no process: package server speaks for it.
//
// The guard keeps the process under the limits that the agent publishes: a
// prompt is weighed before it is admitted and again before its first chunk, near
// the limit it is computed in smaller chunks, and where the limit is met
// nevertheless exactly one request ends. It asks for room through Status and
// waits for the answer in the next limits; it evicts nothing itself.
//
// What was computed of prompts is remembered where it is told to: a request goes
// on from the longest prefix that is known (package kv), and blocks that it fills
// are saved as soon as the step that filled them is over.
//
// While a device computes a step, the next one is built on it, with its pieces of
// prompts, as long as batch.Scheduler.Steady says that the answers do not change
// their rows; others are admitted, answers come to their known ends and blocks are
// saved meanwhile.
//
// Start reading at Start and Engine.Generate; the loop is in loop.go, the guard
// in guard.go and prefill.go, what it weighs in limits.go, what is remembered in
// prefixes.go and resume.go.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// State is where an engine stands.
type State int

// The states of an engine.
const (
	Loading State = iota
	Ready
	Draining
	Failed
	Stopped
)

func (s State) String() string {
	return [...]string{"Loading", "Ready", "Draining", "Failed", "Stopped"}[s]
}

// Options say what to serve and within which limits.
type Options struct {
	// ModelPath is a GGUF file or a folder that holds one.
	ModelPath string
	// Backend computes; the engine closes it.
	Backend tensor.Backend
	// ContextTokens is the longest request; 0 takes the model's own.
	ContextTokens int
	// Sequences run at once; 0 means 1. CacheTokens of KV are shared by them;
	// 0 means one whole context for each. Queue more requests may wait; 0
	// means defaultQueue.
	Sequences, CacheTokens, Queue int
	// LimitBytes is the ceiling of the whole process; 0 means none.
	LimitBytes int64
	// PrefixCache remembers what was computed of prompts in the part of the KV
	// promised that no request holds; it takes not one byte more. CacheMemory is
	// how many bytes may hold it beside that.
	PrefixCache bool
	CacheMemory int64
	// ModelDigest names the weights, and Numerics whatever else changes bits: back
	// end, versions, precision. What is remembered is found under both.
	ModelDigest, Numerics string
	// SharedPrefixes are texts with which prompts or system messages of any tenant may
	// begin; what is remembered of these beginnings is found by all tenants within
	// SharedScope.
	SharedPrefixes []string
	SharedScope    string
	// CacheQueue is how many bytes of what waits for the tier below may be in
	// memory.
	CacheQueue int64
	// Below makes the tier that what is remembered goes to beside memory, for what
	// depends on an origin; nil is none. Whoever gives it closes it, after Wait.
	Below func(kv.Origin) kv.Tier
	// Task is what the model is to do; empty takes what it says itself. A decoder
	// that says nothing writes text, and may be wanted for vectors or scores.
	Task model.Task
	// Supervised says that an agent publishes limits; while it does not, the
	// guard says that it cannot act as it should.
	Supervised bool
	// TestLeak bytes are taken with every step and never given back: for tests
	// of what stops such an engine.
	TestLeak int64
	Log      *slog.Logger

	// estimator of prompts; nil means arithmetic. Tests set it.
	estimator estimator
	// attachPatience in place of the constant. Tests set it.
	attachPatience time.Duration
}

const (
	defaultQueue = 64
	// failuresInARow end an engine: a back end that fails this often is broken.
	failuresInARow = 3
)

// Status is a snapshot.
type Status struct {
	State State
	// Task of the model; empty until it is known.
	Task model.Task
	// Reason and Message explain Failed.
	Reason, Message string
	// LoadedBytes of LoadBytes are read.
	LoadedBytes, LoadBytes int64
	Memory                 tensor.Memory
	Running, Queued        int64
	// Steps count forward passes.
	Steps, PromptTokens, GeneratedTokens int64
	// Preemptions count requests that gave their KV back and were computed again.
	Preemptions int64
	Guard       GuardStatus
	Prefixes    PrefixStatus
}

// Engine serves one model.
type Engine struct {
	opts Options
	log  *slog.Logger

	// counters are read by Status while a step runs.
	loaded, loadTotal                         atomic.Int64
	running, queued                           atomic.Int64
	unread                                    atomic.Int64 // bytes that wait for readers
	steps, promptTokensTotal, generatedTotals atomic.Int64
	preemptions                               atomic.Int64

	limits *limits
	guard  guard
	// prefixes is nil until the model is loaded, and where nothing is remembered.
	prefixes atomic.Pointer[prefixes]
	// leaked is what TestLeak took; the engine's own goroutine alone touches it.
	leaked [][]byte

	wake chan struct{}
	done chan struct{}
	// hard ends the step that runs.
	hard context.Context
	kill context.CancelFunc

	mu sync.Mutex
	// All below are guarded by mu.
	state           State
	reason, message string
	serving         *serving // what requests need; nil until loaded
	inbox           []*active
	readings        []*reading // admitted, of an engine that reads
	admitted        int        // requests that did not end yet
	nextID          int64
	attending       bool // chores are taken
	chores          []*chore
	aborting        bool
	cancelled       int
	changed         chan struct{}
	err             error
}

// Start begins to load and returns at once. Shutdown ends the engine; Wait
// says how it ended.
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
	if opts.TestLeak > 0 {
		opts.Log.Error("this engine leaks memory on purpose, for a test", "bytesPerStep", opts.TestLeak)
	}
	e := &Engine{opts: opts, log: opts.Log, limits: newLimits(), wake: make(chan struct{}, 1), done: make(chan struct{}), changed: make(chan struct{})}
	e.hard, e.kill = context.WithCancel(context.Background())
	go e.own()
	return e
}

// Wait returns once the engine has released everything: nil after an orderly
// end, the cause after a failure.
func (e *Engine) Wait() error {
	<-e.done
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Done is closed once the engine has released everything.
func (e *Engine) Done() <-chan struct{} { return e.done }

// Status reads the snapshot; it never waits for a step.
func (e *Engine) Status() Status {
	s := Status{
		LoadedBytes: e.loaded.Load(), LoadBytes: e.loadTotal.Load(), Memory: e.opts.Backend.Memory(),
		Running: e.running.Load(), Queued: e.queued.Load(), Steps: e.steps.Load(),
		PromptTokens: e.promptTokensTotal.Load(), GeneratedTokens: e.generatedTotals.Load(), Preemptions: e.preemptions.Load(),
		Guard: e.guardStatus(), Prefixes: e.prefixes.Load().status(),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.State, s.Reason, s.Message = e.state, e.reason, e.message
	if e.serving != nil {
		s.Task = e.serving.task
	}
	return s
}

// Changed returns a channel that is closed at the next change of state, and when
// the guard asks for room.
func (e *Engine) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

// AwaitReady blocks until the engine serves or has failed.
func (e *Engine) AwaitReady(ctx context.Context) error {
	for {
		changed := e.Changed()
		switch st := e.Status(); st.State {
		case Ready:
			return nil
		case Loading:
		default:
			if err := e.cause(); err != nil {
				return err
			}
			return fmt.Errorf("engine is %v", st.State)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the model to load: %w", ctx.Err())
		}
	}
}

func (e *Engine) cause() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Facts of the loaded model; ok is false while loading.
func (e *Engine) Facts() (model.Facts, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.serving == nil {
		return model.Facts{}, false
	}
	return e.serving.facts, true
}

// Shutdown stops admission, lets requests finish until ctx ends, cancels the
// rest, and returns once everything is released. It reports how many requests
// it cancelled. A second call waits for the first.
func (e *Engine) Shutdown(ctx context.Context) int {
	e.mu.Lock()
	loading := e.state == Loading
	if loading || e.state == Ready {
		e.setState(Draining, "", "")
	}
	e.mu.Unlock()
	if loading {
		e.kill() // nothing can be running yet
	}
	e.poke()
	select {
	case <-e.done:
	case <-ctx.Done():
		e.mu.Lock()
		e.aborting = true
		e.mu.Unlock()
		e.kill()
		e.poke()
		<-e.done
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cancelled
}

// setState is called with mu held.
func (e *Engine) setState(s State, reason, message string) {
	e.state, e.reason, e.message = s, reason, message
	e.announce()
	e.log.Info("engine state changed", "state", s.String(), "reason", reason, "message", message)
}

// announce tells whoever watches to look at Status; it is called with mu held.
func (e *Engine) announce() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// poke wakes the loop.
func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// own is the engine's one goroutine: load, serve, release.
func (e *Engine) own() {
	defer close(e.done)
	defer e.kill()
	var l *loadedModel
	err := e.opts.Backend.Attach()
	if err == nil {
		l, err = e.load()
	}
	if err == nil && l.reader != nil {
		err = e.serveReadings(l)
	} else if err == nil {
		err = e.serve(l)
	} else if e.draining() {
		err = nil // told to stop while loading
	}
	if err != nil {
		e.failed(err)
	}
	if l != nil {
		l.serving.maskings.Wait()
		l.release()
	}
	e.closePrefixes() // the model's memory is not held up by a disk
	if cerr := e.opts.Backend.Close(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("close back end: %w", cerr))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
	if e.state != Failed {
		e.setState(Stopped, "", "")
	}
}

func (e *Engine) draining() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state == Draining
}

// failed publishes why, and ends what was admitted.
func (e *Engine) failed(err error) {
	e.mu.Lock()
	e.err = err
	e.setState(Failed, reasonOf(err), err.Error())
	rest, readings := e.inbox, e.readings
	e.inbox, e.readings = nil, nil
	e.mu.Unlock()
	refusal := &Refusal{Kind: Internal, Message: "the engine failed"}
	for _, a := range rest {
		a.stream.finish(Finished{Err: refusal})
	}
	for _, r := range readings {
		r.ended <- refusal
	}
}
