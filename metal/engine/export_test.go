package engine

import (
	"context"
	"runtime"
	"sync"
	"time"
	"weak"

	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/engine/output"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// WithEstimator makes the guard estimate prompts by other arithmetic.
func WithEstimator(o Options, e guard.Estimator) Options {
	o.estimator = e
	return o
}

// WithAttachPatience makes first requests wait so long for the tier below.
func WithAttachPatience(o Options, d time.Duration) Options {
	o.attachPatience = d
	return o
}

// WithDraftCost makes a step with drafts cost as much as this many steps without.
func WithDraftCost(o Options, cost float64) Options {
	o.draftCost = cost
	return o
}

// WithUnread has the output of all requests that was not sent take this many bytes.
func WithUnread(o Options, bytes int64) Options {
	o.unread = bytes
	return o
}

// Kept is how many requests and tasks the engine keeps.
func Kept(e *Engine) int {
	a := e.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.admitted + len(a.sequences) + len(a.embeddings) + len(a.tasks)
}

// Active is how many requests loop and scheduler keep.
func Active(ctx context.Context, e *Engine) (n int) {
	_, _ = e.admission.run(ctx, func(c loopControl) {
		switch l := c.(type) {
		case *loop:
			n = max(len(l.byID), len(l.sched.IDs()))
		case *embedLoop:
			n = len(l.requests)
		}
	})
	return n
}

// KeptLogits are those for which the loop keeps space between two steps.
func KeptLogits(ctx context.Context, e *Engine) (n int) {
	_, _ = e.admission.run(ctx, func(c loopControl) { n = cap(c.(*loop).runner.logits) })
	return n
}

// Overhead of the process by arithmetic.
func Overhead(e *Engine) int64 { return e.guard.Overhead() }

// BackendOf an engine.
func BackendOf(e *Engine) tensor.Backend { return e.opts.Backend }

// Counted is how many bytes of what is remembered a request counts on.
func Counted(e *Engine) int64 { return e.prefixes.Load().ram.Counted() }

// OnFinish calls f from the loop when a stream ends.
func OnFinish(s *Stream, f func()) { s.onFinish(f) }

// KVTokenBytes is what one token of KV takes.
func KVTokenBytes(e *Engine) int64 { return e.prefixes.Load().tokenBytes }

// Held is what the guard weighs as held now, and how much of it no client has read.
func Held(e *Engine) (held, unread int64) { return e.guard.Room().Held, e.input.Load().unread.Held() }

// InputAccounts are those of texts until they are read, and of tools.
func InputAccounts(e *Engine) (received, tools *share.Bytes) {
	p := e.input.Load()
	return p.received, p.tools
}

// CompiledBytes are those of compiled constraints.
func CompiledBytes(e *Engine) int64 { return e.input.Load().constraints.Bytes() }

// ParkedBytes are those of logits that wait for masks, as the guard weighs them.
func ParkedBytes(e *Engine) int64 {
	p := e.input.Load()
	return e.unread() - p.unread.Held() - p.prompts.Held()
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
	t, free, err := e.input.Load().constraints.Table(context.Background(), "", s)
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
func ConstraintBytes(e *Engine) int64 { return e.input.Load().constraints.Bytes() }

// ImageBytes are the bytes of images that requests hold, and LimitImages sets how many
// they may be.
func ImageBytes(e *Engine) int64 { return e.input.Load().images.bytes() }

// LimitImages sets how many bytes of images requests may hold.
func LimitImages(e *Engine, bytes int64) { e.input.Load().images.scaled = newScaledImages(bytes) }

// HoldImages has a tenant hold images for as long as the engine runs.
func HoldImages(e *Engine, tenant string, bytes int64) {
	e.input.Load().images.scaled.held.Add(tenant, bytes)
}

// Spoil breaks what the next token of a tenant's requests needs, so that there is a panic. It
// returns how many requests there were.
func Spoil(ctx context.Context, e *Engine, tenant string, work string) (n int) {
	_, _ = e.admission.run(ctx, func(c loopControl) {
		l, _ := c.(*loop)
		for _, s := range l.byID {
			if s.prefix.salt.Tenant != tenant {
				continue
			}
			n++
			switch work {
			case "output":
				s.output = &output.Assembler{}
			case "next token":
				s.ends = endTokens{tokens: map[int32]bool{-1: true}, min: 100}
			}
		}
	})
	return n
}

// InMemory is how many requests the loop has. left returns how many of them, and of their prompts,
// are in memory when it is called.
func InMemory(ctx context.Context, e *Engine) (requests int, left func() (requests, prompts int)) {
	var all []weak.Pointer[sequence]
	var tokens []weak.Pointer[int32]
	_, _ = e.admission.run(ctx, func(c loopControl) {
		for _, s := range c.(*loop).byID {
			all, tokens = append(all, weak.Make(s)), append(tokens, weak.Make(&s.stream.prompt[0]))
		}
	})
	return len(all), func() (requests, prompts int) {
		runtime.GC()
		for i := range all {
			if all[i].Value() != nil {
				requests++
			}
			if tokens[i].Value() != nil {
				prompts++
			}
		}
		return requests, prompts
	}
}
