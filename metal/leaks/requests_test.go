//go:build !race

package leaks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
)

const (
	// sequences run at once, in a cache that is too small for three long ones:
	// some are preempted. As many more as clients wait.
	sequences   = 3
	cacheTokens = 768
	clients     = 10
	maxAnswer   = 40
	maxPrompt   = 300
	// patience is what the engine may need to come to rest, or to end.
	patience = 20 * time.Second
)

// timers cancel requests after a number of operations of the back end, which is
// the only clock here: it stands still when nothing is computed.
type timers struct {
	mu sync.Mutex
	// now and rings are guarded by mu.
	now   int
	rings map[int][]func()
}

// tick is called before each operation.
func (a *timers) tick(string) error {
	a.mu.Lock()
	a.now++
	due := a.rings[a.now]
	delete(a.rings, a.now)
	a.mu.Unlock()
	for _, ring := range due {
		ring()
	}
	return nil
}

// after calls f after n more operations, at once for 0.
func (a *timers) after(n int, f func()) {
	if n == 0 {
		f()
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rings[a.now+n] = append(a.rings[a.now+n], f)
}

// tally counts how requests ended.
type tally struct {
	queued, prefill, decode, completed atomic.Int64
}

func (t *tally) cancelled() int64 {
	return t.queued.Load() + t.prefill.Load() + t.decode.Load()
}

// requests serves the model and cancels what is asked of it.
func (s *subject) requests(ctx context.Context, n amounts) error {
	clock := &timers{rings: make(map[int][]func())}
	b := s.open(clock.tick)
	e := engine.Start(engine.Options{ModelPath: s.path, Backend: b, Sequences: sequences, CacheTokens: cacheTokens})
	err := s.cancelAll(ctx, e, clock, n)
	ending, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e.Shutdown(ending)
	if err = errors.Join(err, e.Wait()); err != nil {
		return err
	}
	if m := b.Memory(); m.Active() != 0 || m.Live != 0 {
		return fmt.Errorf("the engine ended and left %d arrays and %d bytes", m.Live, m.Active())
	}
	return nil
}

func (s *subject) cancelAll(ctx context.Context, e *engine.Engine, clock *timers, n amounts) error {
	want := n.cancelled
	if err := e.AwaitReady(ctx); err != nil {
		return err
	}
	before := e.Status().Memory
	var t tally
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(5, uint64(i)))
			for asked := 0; t.cancelled() < int64(want) && errs[i] == nil; asked++ {
				if asked > 10*want {
					errs[i] = fmt.Errorf("only %d of %d requests could be cancelled", t.cancelled(), want)
					return
				}
				errs[i] = one(ctx, e, clock, rng, &t)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("requests: %w", err)
	}
	stopped, err := stops(ctx, e, n.stopped, &t)
	if err != nil {
		return fmt.Errorf("stop strings: %w", err)
	}
	if err := rests(ctx, e, before); err != nil {
		return fmt.Errorf("after %d cancelled and %d stopped requests: %w", t.cancelled(), stopped, err)
	}
	if err := s.settle(); err != nil {
		return err
	}
	held, err := s.grown()
	if err != nil {
		return fmt.Errorf("requests: %w", err)
	}
	st := e.Status()
	s.t.Logf("requests: %d cancelled (%d queued, %d before the first token, %d while answering), %d stopped, %d completed, %d preempted: %d arrays and %d bytes at rest, KV %d; %s",
		t.cancelled(), t.queued.Load(), t.prefill.Load(), t.decode.Load(), stopped, t.completed.Load(), st.Preemptions, st.Memory.Live, st.Memory.Active(), st.Memory.KV, held)
	if least := int64(want / 100); t.queued.Load() < least || t.prefill.Load() < least || t.decode.Load() < least {
		return fmt.Errorf("fewer than %d requests were cancelled in one of the three places", least)
	}
	return nil
}

// one asks for one answer and cancels it at a random operation: many steps
// away, or at once.
func one(ctx context.Context, e *engine.Engine, clock *timers, rng *rand.Rand, t *tally) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := engine.Request{Tokens: make([]int32, 1+rng.IntN(maxPrompt)), MaxTokens: 1 + rng.IntN(maxAnswer)}
	for i := range r.Tokens {
		r.Tokens[i] = int32(rng.IntN(256))
	}
	params := sample.Neutral()
	if params.Seed = rng.Uint64(); rng.IntN(2) == 0 {
		params = sample.Greedy()
	}
	r.Sampling = &params
	waits := e.Status().Queued > 0 // then a request that comes now waits as well
	stream, err := e.Generate(ctx, r)
	if err != nil {
		return err
	}
	at := rng.IntN(8000) * rng.IntN(4) / 3
	clock.after(at, cancel)
	for {
		event, err := stream.Next(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		f := event.Finished
		switch {
		case f == nil:
			continue
		case f.Err == nil:
			t.completed.Add(1)
		case f.Err.Kind != engine.Cancelled:
			return f.Err
		case f.Usage.Generated > 0:
			t.decode.Add(1)
		case at == 0 && waits:
			t.queued.Add(1)
		default:
			t.prefill.Add(1)
		}
		return nil
	}
}

// stops asks for answers, and again with a stop string that ends them half
// way: the engine cannot foresee that end, and may have dispatched the next step
// already.
func stops(ctx context.Context, e *engine.Engine, n int, t *tally) (stopped int, err error) {
	greedy := sample.Greedy()
	for i := range n {
		r := engine.Request{Tokens: []int32{int32(65 + i%26), int32(97 + i%26)}, MaxTokens: maxAnswer, Sampling: &greedy}
		text, _, err := answer(ctx, e, r)
		if err != nil {
			return stopped, err
		}
		t.completed.Add(1)
		half := []rune(text)[utf8.RuneCountInString(text)/2:]
		if len(half) < 2 {
			continue
		}
		r.Stop = []string{string(half[:2])}
		_, f, err := answer(ctx, e, r)
		if err != nil {
			return stopped, err
		}
		if f.Reason == engine.Stop {
			stopped++
		}
	}
	if stopped == 0 {
		return 0, errors.New("no answer was stopped")
	}
	return stopped, nil
}

// answer is one whole answer.
func answer(ctx context.Context, e *engine.Engine, r engine.Request) (string, engine.Finished, error) {
	stream, err := e.Generate(ctx, r)
	if err != nil {
		return "", engine.Finished{}, err
	}
	text := ""
	for {
		event, err := stream.Next(ctx)
		if err != nil {
			return "", engine.Finished{}, err
		}
		text += event.Text
		if f := event.Finished; f != nil {
			if f.Err != nil {
				return "", *f, f.Err
			}
			return text, *f, nil
		}
	}
}

// rests waits until the engine has completed what it had dispatched, and wants the
// back end to hold what it held before.
func rests(ctx context.Context, e *engine.Engine, before tensor.Memory) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		st := e.Status()
		err := unchanged(before, st.Memory)
		if err == nil && st.Running == 0 && st.Queued == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, fmt.Errorf("%d run and %d wait: %w", st.Running, st.Queued, ctx.Err()))
		case <-tick.C:
		}
	}
}
