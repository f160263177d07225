package engine

import (
	"context"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Estimator computes what prompts take.
type Estimator interface {
	Peak(footprint.Prefill) (int64, error)
	Fit(p footprint.Prefill, room, floor int64) (int64, bool)
}

// WithEstimator makes the guard believe another arithmetic.
func WithEstimator(o Options, e Estimator) Options {
	o.estimator = foreign{e}
	return o
}

// WithAttachPatience makes first requests wait so long for the tier below.
func WithAttachPatience(o Options, d time.Duration) Options {
	o.attachPatience = d
	return o
}

type foreign struct{ e Estimator }

func (f foreign) peak(p footprint.Prefill) (int64, error) { return f.e.Peak(p) }

func (f foreign) fit(p footprint.Prefill, room, floor int64) (int64, bool) {
	return f.e.Fit(p, room, floor)
}

// Kept is how many requests the engine keeps anything of.
func Kept(e *Engine) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.admitted + len(e.inbox) + len(e.readings) + len(e.chores)
}

// Active is how many requests loop and scheduler keep.
func Active(ctx context.Context, e *Engine) (n int) {
	_, _ = e.between(ctx, func(s serves) {
		switch l := s.(type) {
		case *looping:
			n = max(len(l.active), len(l.sched.IDs()))
		case *readers:
			n = len(l.all)
		}
	})
	return n
}

// Leaked bytes on purpose.
func Leaked(ctx context.Context, e *Engine) (n int) {
	_, _ = e.between(ctx, func(serves) {
		for _, b := range e.leaked {
			n += len(b)
		}
	})
	return n
}

// Overhead of the process by arithmetic.
func Overhead(e *Engine) int64 { return e.overhead() }

// BackendOf an engine.
func BackendOf(e *Engine) tensor.Backend { return e.opts.Backend }

// Counted is how many bytes of what is remembered a request counts on.
func Counted(e *Engine) int64 { return e.prefixes.Load().ram.Counted() }

// OnFinish calls f from the loop when a stream ends.
func OnFinish(s *Stream, f func()) { s.onFinish(f) }

// KVTokenBytes is what one token of KV takes.
func KVTokenBytes(e *Engine) int64 { return e.prefixes.Load().tokenBytes }

// Held is what the guard weighs as held now, and how much of it nobody read yet.
func Held(e *Engine) (held, unread int64) {
	s, _ := e.loadedServing()
	return e.room(s).held, e.unread.Load()
}

// Prepared is for how many blocks room was made ahead.
func Prepared(e *Engine) int64 { return e.prefixes.Load().ram.Stats().Prepared }

// BlockBytes are what a whole block of a prompt has.
func BlockBytes(e *Engine) int64 {
	p := e.prefixes.Load()
	return p.tokenBytes * int64(p.shape.Block)
}

// stalls is a context that stalls the work that looks at it.
type stalls struct {
	context.Context
	looked, release chan struct{}
	once            sync.Once
}

func (s *stalls) Err() error {
	s.once.Do(func() { close(s.looked) })
	<-s.release
	return context.Canceled
}

// StallConstraint keeps the states of a constraint in use, by following a text that takes
// long, until release is called.
func StallConstraint(e *Engine, s grammar.Spec, text string) (release func(), err error) {
	t, free, err := e.serving.grammars.Table(context.Background(), "", s)
	if err != nil {
		return nil, err
	}
	ctx := &stalls{Context: context.Background(), looked: make(chan struct{}), release: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer free()
		m := t.Match(false)
		_, _ = m.Follow(ctx, []byte(text))
	}()
	<-ctx.looked
	return func() { close(ctx.release); <-done }, nil
}

// ConstraintBytes is what the constraints that were compiled take.
func ConstraintBytes(e *Engine) int64 { return e.serving.grammars.Bytes() }
