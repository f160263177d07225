//go:build !race

package engine_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
)

// faults notes the operations of a back end, and one of them has no memory.
type faults struct {
	sync.Mutex
	ran   map[string]bool
	fails string
}

func (f *faults) fault(op string) error {
	f.Lock()
	defer f.Unlock()
	if f.ran[op] = true; op == f.fails {
		return tensor.ErrMemory
	}
	return nil
}

// during returns the operations of a function, of which one fails.
func (f *faults) during(fails string, work func()) map[string]bool {
	f.Lock()
	f.ran, f.fails = map[string]bool{}, fails
	f.Unlock()
	work()
	f.Lock()
	defer f.Unlock()
	f.fails = ""
	return f.ran
}

// TestAttackAnImageThatFailsWhileOthersDecode: the step that is computed meanwhile does not have
// the request of the image, and the next one is not built on it.
func TestAttackAnImageThatFailsWhileOthersDecode(t *testing.T) {
	for _, family := range []string{"gemma3", "gemma4", "qwen3_vl"} {
		f := &faults{ran: map[string]bool{}}
		e := engine.Start(engine.Options{ModelPath: seeing(t, family), Sequences: 4, Backend: tensortest.Faulty(ref.New(ref.Options{Threads: 1, Ahead: true}), f.fault)})
		if err := e.AwaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		greedy := sample.Greedy()
		words := func(n int) engine.Request {
			return engine.Request{Prompt: prompt("a b c"), Sampling: &greedy, MaxTokens: n, IgnoreEnd: true}
		}
		look := func(seed int) {
			r := about("what is ", "?", picture(t, 60, 60, seed))
			r.Logprobs = nil
			_ = ask(t, e, r)
		}
		text := f.during("", func() { _ = ask(t, e, words(8)) })
		seed := 0
		for op := range f.during("", func() { look(seed) }) {
			if text[op] {
				continue
			}
			s, err := e.Generate(t.Context(), words(400))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
			seed++
			f.during(op, func() { look(seed) })
			s.Cancel()
			if a := ask(t, e, words(8)); len(a.tokens) != 8 {
				t.Errorf("%s: after %s failed an answer has %d tokens", family, op, len(a.tokens))
			}
		}
		if seed < 2 {
			t.Errorf("%s: %d operations are of images alone", family, seed)
		}
	}
}

// TestAnImageThatFailsDropsThePrefixCache: the device that fails in the vision tower is the one that
// computed what is cached.
func TestAnImageThatFailsDropsThePrefixCache(t *testing.T) {
	var fails atomic.Bool
	e := ready(t, engine.Options{ModelPath: seeing(t, "qwen3_vl"), CacheMemory: mebi, Sequences: 2}, ref.Options{}, func(op string) error {
		if op == "AttendAll" && fails.Load() {
			return errors.New("the device is gone")
		}
		return nil
	})
	words := engine.Request{Tokens: tokensOf(1, 300, 100), Sampling: draws(1), MaxTokens: 10}
	want := ask(t, e, words)
	if e.Status().Prefixes.Bytes == 0 {
		t.Fatal("nothing is cached")
	}
	fails.Store(true)
	if a := ask(t, e, about("what is ", "?", picture(t, 60, 60, 1))); a.finished.Err == nil || a.finished.Err.Kind != engine.Internal {
		t.Errorf("a failed image ends with %+v", a.finished)
	}
	fails.Store(false)
	if p := e.Status().Prefixes; p.Bytes != 0 {
		t.Errorf("after a failed image %+v is cached", p)
	}
	got := ask(t, e, words)
	if got.finished.Usage.Cached != 0 {
		t.Errorf("%d tokens are restored", got.finished.Usage.Cached)
	}
	same(t, "computed again", []answer{got}, []answer{want})
}
