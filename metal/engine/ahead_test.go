package engine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// greedy requests of many lengths; some end at a stop string, some at a bound.
func greedy() []engine.Request {
	var out []engine.Request
	for i := range 6 {
		text, p := strings.Repeat("One rack holds many Macs. ", i*2+1), sample.Greedy()
		r := engine.Request{Prompt: &text, Sampling: &p, MaxTokens: 12 + 9*i}
		if i%2 == 1 {
			r.Stop = []string{"e", "a"}
		}
		out = append(out, r)
	}
	return out
}

// countInputs counts the steps whose input came from the host.
func countInputs(fromHost *atomic.Int64) func(op string) error {
	return func(op string) error {
		if op == "IDs" {
			fromHost.Add(1)
		}
		return nil
	}
}

// waitFor is for what the loop does after a client has its answer.
func waitFor(t *testing.T, what string, there func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !there(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%s did not come in %s", what, patience)
		}
	}
}

func TestStepsAheadGiveTheSameAnswers(t *testing.T) {
	o := engine.Options{Sequences: 3}
	plain := together(t, ready(t, o, ref.Options{}), append(greedy(), requests()...))
	var fromHost atomic.Int64
	e := ready(t, o, ref.Options{Ahead: true}, countInputs(&fromHost))
	early := together(t, e, append(greedy(), requests()...))
	for i := range plain {
		if !slices.Equal(plain[i].tokens, early[i].tokens) || plain[i].text != early[i].text || plain[i].finished.Reason != early[i].finished.Reason {
			t.Errorf("request %d: %v %q ahead, %v %q without", i, early[i].tokens, early[i].text, plain[i].tokens, plain[i].text)
		}
	}
	one, two := requests()[0], requests()[0]
	two.Sampling = draws(99)
	if a, b := ask(t, e, one), ask(t, e, two); slices.Equal(a.tokens, b.tokens) {
		t.Errorf("two seeds drew the same: %v", a.tokens)
	}
	alone := ask(t, e, greedy()[4])
	if !slices.Equal(alone.tokens, plain[4].tokens) {
		t.Errorf("alone: %v, want %v", alone.tokens, plain[4].tokens)
	}
	if steps := e.Status().Steps; fromHost.Load() >= steps-int64(len(alone.tokens))/2 {
		t.Errorf("%d of %d steps took their input from the host: nothing was computed ahead", fromHost.Load(), steps)
	}
}

func TestAStopThatIsSeenOneStepLateShowsNothingMore(t *testing.T) {
	var fromHost atomic.Int64
	e := ready(t, engine.Options{Sequences: 2}, ref.Options{Ahead: true}, countInputs(&fromHost))
	text, p := "Show me more", sample.Greedy()
	r := engine.Request{Prompt: &text, Sampling: &p, MaxTokens: 40}
	whole := ask(t, e, r)
	runes := []rune(whole.text)
	r.Stop = []string{string(runes[len(runes)/2:])}
	cut := ask(t, e, r)
	if want, _, _ := strings.Cut(whole.text, r.Stop[0]); cut.text != want || cut.finished.Reason != engine.Stop {
		t.Errorf("%q ended with %q, want %q and a stop", cut.text, cut.finished.Reason, want)
	}
	r.Stop = []string{string(runes[len(runes)/2 : len(runes)/2+1])}
	if cut := ask(t, e, r); strings.Contains(cut.text, r.Stop[0]) || cut.finished.Reason != engine.Stop {
		t.Errorf("%q ended with %q, want it to stop before %q", cut.text, cut.finished.Reason, r.Stop[0])
	}
	// The client knows the end one step before the row that was computed for
	// nothing lands and gives its memory back.
	waitFor(t, "the return of the last request's memory", func() bool { return e.Status().Memory.KV == 0 })
}

func TestACancelAheadOfAStepReturnsItsMemory(t *testing.T) {
	e := ready(t, engine.Options{Sequences: 2}, ref.Options{Ahead: true}, paced)
	ctx, cancel := context.WithCancel(context.Background())
	text, p := "Show me more", sample.Greedy()
	s, err := e.Generate(ctx, engine.Request{Prompt: &text, Sampling: &p, MaxTokens: 400})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := s.Next(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if end := collect(t, s); end.finished.Err == nil {
		t.Errorf("a cancelled request ended with %q", end.finished.Reason)
	}
	ask(t, e, engine.Request{Prompt: &text, Sampling: &p, MaxTokens: 5}) // the loop went on
	if kv := e.Status().Memory.KV; kv != 0 {
		t.Errorf("%d bytes of KV are left", kv)
	}
}

func TestAFaultAheadEndsItsRequestsAndTheEngineGoesOn(t *testing.T) {
	boom := errors.New("boom")
	var steps, fail atomic.Int64
	e := ready(t, engine.Options{Sequences: 2}, ref.Options{Ahead: true}, func(op string) error {
		if op == "Embed" && steps.Add(1) == fail.Load() {
			return fmt.Errorf("step: %w", boom)
		}
		return nil
	})
	text, p := "Show me more", sample.Greedy()
	for n := range int64(4) {
		fail.Store(steps.Load() + 2 + n)
		got := ask(t, e, engine.Request{Prompt: &text, Sampling: &p, MaxTokens: 30})
		if got.finished.Err == nil {
			t.Errorf("fault %d steps on: the request ended with %q", n, got.finished.Reason)
		}
		if again := ask(t, e, engine.Request{Prompt: &text, Sampling: &p, MaxTokens: 3}); again.finished.Err != nil {
			t.Errorf("after a fault: %v", again.finished.Err)
		}
		if kv := e.Status().Memory.KV; kv != 0 {
			t.Errorf("%d bytes of KV are left after a fault", kv)
		}
	}
}

func TestAShutdownAheadOfAStepLeavesNothing(t *testing.T) {
	e := ready(t, engine.Options{Sequences: 2}, ref.Options{Ahead: true}, paced)
	text, p := "Show me more", sample.Greedy()
	s, err := e.Generate(context.Background(), engine.Request{Prompt: &text, Sampling: &p, MaxTokens: 400})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := stop(e); n != 1 {
		t.Errorf("%d requests were cancelled, want 1", n)
	}
	if end := collect(t, s); end.finished.Err == nil {
		t.Error("the request ended without an error")
	}
}

// unreadable is a back end whose results cannot be read while fail returns true, as those of a
// device that ended a step with an error.
type unreadable struct {
	tensor.Backend
	fail func() bool
}

func (b unreadable) NewScope(ctx context.Context) tensor.Scope {
	return &unreadableScope{Scope: b.Backend.NewScope(ctx), fail: b.fail}
}

type unreadableScope struct {
	tensor.Scope
	fail func() bool
	err  error
}

func (s *unreadableScope) ReadIDs(a tensor.Array, to []int32) {
	if s.Scope.ReadIDs(a, to); s.fail() {
		s.err = errors.New("the device is gone")
	}
}

func (s *unreadableScope) Err() error {
	if s.err != nil {
		return s.err
	}
	return s.Scope.Err()
}

// TestAFaultAheadLeavesNoBlocks: a block that was about to be saved when a step failed is not saved
// after the prefix cache was dropped, when the step that was built on the failed one completes.
func TestAFaultAheadLeavesNoBlocks(t *testing.T) {
	var reads, fail atomic.Int64
	b := unreadable{ref.New(ref.Options{Ahead: true, Poison: true, Threads: 2}), func() bool { return reads.Add(1) == fail.Load() }}
	e := ready(t, engine.Options{CacheMemory: mebi, Sequences: 2, Backend: b}, ref.Options{})
	p := sample.Greedy()
	for n := range int64(40) {
		fail.Store(reads.Load() + 2 + n)
		if got := ask(t, e, engine.Request{Tokens: tokensOf(1, 100, 400), Sampling: &p, MaxTokens: 60, IgnoreEnd: true}); got.finished.Err == nil {
			t.Fatalf("fault %d steps on: the request ended with %q", n, got.finished.Reason)
		}
		waitFor(t, "the end of the step", func() bool { return engine.Active(t.Context(), e) == 0 })
		if blocks := e.Status().Prefixes.Blocks; blocks != 0 {
			t.Errorf("fault %d steps on: %d blocks are kept", n, blocks)
		}
	}
}
