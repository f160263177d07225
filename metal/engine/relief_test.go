package engine_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// The size of the pool, and zero the second time.
func TestTrimReportsFreedBytes(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	ask(t, e, engine.Request{Prompt: prompt("Hello"), MaxTokens: 5})
	engine.Active(t.Context(), e) // between two steps: the last one has let go of everything
	before := e.Status().Memory
	n, err := e.Trim(t.Context())
	after := e.Status().Memory
	if err != nil || n <= 0 || n != before.Pooled-after.Pooled || after.Pooled != 0 || after.Active() != before.Active() {
		t.Errorf("%d bytes reclaimed (%v): memory was %+v, is %+v", n, err, before, after)
	}
	if n, err := e.Trim(t.Context()); n != 0 || err != nil {
		t.Errorf("a second trim says %d, %v", n, err)
	}
	stop(e)
	if n, err := e.Trim(t.Context()); n != 0 || err != nil {
		t.Errorf("a stopped engine says %d, %v", n, err)
	}
}

// witness notes which goroutine calls a back end.
type witness struct {
	tensor.Backend
	mu     sync.Mutex
	owner  string
	others map[string]string
	trims  int
	fail   atomic.Bool
}

var errTrim = errors.New("the pool does not let go")

func goroutine() string {
	b := make([]byte, 64)
	return string(bytes.Fields(b[:runtime.Stack(b, false)])[1])
}

func (w *witness) saw(op string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if g := goroutine(); op == "Attach" {
		w.owner = g
	} else if g != w.owner {
		w.others[op] = g
	}
	if op == "Trim" {
		w.trims++
	}
}

func (w *witness) Attach() error {
	w.saw("Attach")
	return w.Backend.Attach()
}

func (w *witness) NewScope(ctx context.Context) tensor.Scope {
	w.saw("NewScope")
	return w.Backend.NewScope(ctx)
}

func (w *witness) NewCache(s tensor.CacheSpec) (tensor.Cache, error) {
	w.saw("NewCache")
	return w.Backend.NewCache(s)
}

func (w *witness) Trim() error {
	w.saw("Trim")
	if w.fail.Load() {
		return errTrim
	}
	return w.Backend.Trim()
}

func (w *witness) Close() error {
	w.saw("Close")
	return w.Backend.Close()
}

// While others trim, abort, publish limits and read the status.
func TestMemoryReliefRunsOnTheSchedulerGoroutine(t *testing.T) {
	w := &witness{Backend: ref.New(ref.Options{Threads: 2, Poison: true}), others: map[string]string{}}
	e := engine.Start(engine.Options{ModelPath: model(t, tinymodel.Default()), Backend: w, Sequences: 2})
	if err := e.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	publish := publisher(e)
	var callers sync.WaitGroup
	for i := range 4 {
		callers.Go(func() {
			for range 5 {
				s, err := e.Generate(t.Context(), engine.Request{Prompt: prompt("Hello"), MaxTokens: 20})
				if err != nil {
					t.Errorf("generate: %v", err)
					return
				}
				if _, err := e.Trim(t.Context()); err != nil {
					t.Errorf("trim: %v", err)
				}
				publish(guard.Limits{Memory: 1 << 30, Footprint: 1 << 20})
				if i == 0 {
					if _, err := e.Abort(t.Context(), ""); err != nil {
						t.Errorf("abort: %v", err)
					}
				}
				collect(t, s)
			}
		})
	}
	callers.Wait()
	stop(e)
	if err := e.Wait(); err != nil {
		t.Error(err)
	}
	if len(w.others) > 0 || w.trims < 20 {
		t.Errorf("calls from elsewhere: %v; %d trims", w.others, w.trims)
	}
}

// Running and queued requests, step by step and pipelined; their memory is free
// when the call returns.
func TestAbortEndsEveryRequestAndTheEngineContinues(t *testing.T) {
	for name, o := range map[string]ref.Options{"step by step": {}, "steps ahead": {Ahead: true}} {
		t.Run(name, func(t *testing.T) {
			e := ready(t, engine.Options{Sequences: 2}, o, paced)
			var streams []*engine.Stream
			for range 5 {
				r := greedy()[0]
				r.MaxTokens = 400
				s, err := e.Generate(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				streams = append(streams, s)
			}
			if _, err := streams[0].Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			n, err := e.Abort(t.Context(), "the Mac is over its ceiling")
			if m := e.Status().Memory; err != nil || n != 5 || m.KV != 0 || m.Pooled != 0 {
				t.Errorf("%d aborted (%v), memory is %+v", n, err, m)
			}
			for i, s := range streams {
				a := collect(t, s)
				if a.finished.Err == nil || a.finished.Err.Kind != engine.Aborted || a.finished.Err.Message != "the Mac is over its ceiling" || a.finished.Err.RetryAfter <= 0 {
					t.Errorf("request %d ended with %+v", i, a.finished)
				}
			}
			if a := ask(t, e, engine.Request{Prompt: prompt("Hello"), MaxTokens: 3}); a.finished.Err != nil {
				t.Errorf("after the abort: %v", a.finished.Err)
			}
			if n, err := e.Abort(t.Context(), ""); n != 0 || err != nil {
				t.Errorf("an idle engine aborts %d, %v", n, err)
			}
		})
	}
}

// afterReady holds the engine's own goroutine between Ready and its first step.
type afterReady struct {
	slog.Handler
	held <-chan time.Time
}

func (h afterReady) Enabled(context.Context, slog.Level) bool { return true }

func (h afterReady) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "model loaded" {
		<-h.held
	}
	return nil
}

func TestAbortBeforeTheFirstStepEndsAcceptedRequests(t *testing.T) {
	held := afterReady{Handler: slog.DiscardHandler, held: time.After(200 * time.Millisecond)}
	e := ready(t, engine.Options{Log: slog.New(held)}, ref.Options{}, paced)
	s, err := e.Generate(t.Context(), engine.Request{Prompt: prompt("Hello"), Sampling: draws(2), MaxTokens: 480})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := e.Abort(t.Context(), ""); n != 1 || err != nil {
		t.Errorf("%d aborted, %v", n, err)
	}
	if a := collect(t, s); a.finished.Err == nil || a.finished.Err.Kind != engine.Aborted {
		t.Errorf("the request ended with %+v", a.finished)
	}
}

// Shutdown and abort end its request, and it finds the end when it reads.
func TestClientThatNeverReadsHoldsNothing(t *testing.T) {
	b := tensortest.Faulty(ref.New(ref.Options{Threads: 2, Poison: true}), paced)
	e := engine.Start(engine.Options{ModelPath: model(t, tinymodel.Default()), Backend: b, Sequences: 1})
	if err := e.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	var unread []*engine.Stream
	for range 2 {
		s, err := e.Generate(t.Context(), engine.Request{Prompt: prompt("Hello"), Sampling: draws(2), MaxTokens: 480})
		if err != nil {
			t.Fatal(err)
		}
		unread = append(unread, s)
	}
	if n, err := e.Abort(t.Context(), ""); n != 2 || err != nil || e.Status().Memory.KV != 0 {
		t.Errorf("%d aborted (%v), %d bytes of KV are left", n, err, e.Status().Memory.KV)
	}
	last, err := e.Generate(t.Context(), engine.Request{Prompt: prompt("Hello"), Sampling: draws(2), MaxTokens: 480})
	if err != nil {
		t.Fatal(err)
	}
	stop(e)
	if m := b.Memory(); m.Active()+m.Pooled != 0 {
		t.Errorf("after the shutdown %+v is held", m)
	}
	for i, s := range append(unread, last) {
		if a := collect(t, s); a.finished.Err == nil {
			t.Errorf("request %d ended with %+v", i, a.finished)
		}
	}
}

func TestFailedReleaseStopsNeitherAbortNorShutdown(t *testing.T) {
	w := &witness{Backend: tensortest.Faulty(ref.New(ref.Options{Threads: 2, Poison: true}), paced), others: map[string]string{}}
	e := engine.Start(engine.Options{ModelPath: model(t, tinymodel.Default()), Backend: w})
	if err := e.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.fail.Store(true)
	s, err := e.Generate(t.Context(), engine.Request{Prompt: prompt("Hello"), Sampling: draws(2), MaxTokens: 480})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := e.Abort(t.Context(), ""); n != 1 || !errors.Is(err, errTrim) || e.Status().Memory.KV != 0 {
		t.Errorf("%d aborted, %v; memory %+v", n, err, e.Status().Memory)
	}
	if a := collect(t, s); a.finished.Err == nil || a.finished.Err.Kind != engine.Aborted {
		t.Errorf("the request ended with %+v", a.finished)
	}
	if n, err := e.Trim(t.Context()); n != 0 || !errors.Is(err, errTrim) {
		t.Errorf("trim says %d, %v", n, err)
	}
	stop(e)
	if m := w.Memory(); e.Wait() != nil || m.Active()+m.Pooled != 0 {
		t.Errorf("ended with %v, memory %+v", e.Wait(), m)
	}
}

func TestCancelledCallDoesNotWaitForAStep(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	e := ready(t, engine.Options{}, ref.Options{}, func(string) error {
		if armed.CompareAndSwap(true, false) {
			close(entered)
			<-leave
		}
		return nil
	})
	armed.Store(true)
	s, err := e.Generate(t.Context(), engine.Request{Prompt: prompt("Hello"), MaxTokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Trim(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("inside a step a trim without pressure returns %v", err)
	}
	close(leave)
	collect(t, s)
}
