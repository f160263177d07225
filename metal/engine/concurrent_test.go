package engine_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
)

// unending is an answer that nothing ends soon.
func unending() engine.Request {
	p := sample.Greedy()
	return engine.Request{Tokens: tokensOf(1, 100, 400), Sampling: &p, MaxTokens: 400}
}

// streaming returns a running request that has received this many tokens.
func streaming(t *testing.T, e *engine.Engine, tokens int) *engine.Stream {
	t.Helper()
	s, err := e.Generate(t.Context(), unending())
	if err != nil {
		t.Fatal(err)
	}
	for got := 0; got < tokens; {
		ev, err := s.Next(t.Context())
		if err != nil || ev.Finished != nil {
			t.Fatalf("the answer ended after %d tokens: %v", got, err)
		}
		got += len(ev.Tokens)
	}
	return s
}

// TestPromptsComeAndGoWithoutABreakOfTheStepsAhead: a stream continues step by
// step, each step built before the previous one is read, while other requests
// are admitted, computed, saved block by block, and finished.
func TestPromptsComeAndGoWithoutABreakOfTheStepsAhead(t *testing.T) {
	p := sample.Greedy()
	var rs []engine.Request
	for i := range 6 {
		rs = append(rs, engine.Request{Tokens: tokensOf(uint64(10+i), 150-3*i, 400), Sampling: &p, MaxTokens: 1 + 2*i})
	}
	o := engine.Options{Sequences: 4, CacheMemory: mebi}
	want := askAll(t, ready(t, o, ref.Options{}), rs)
	var fromHost atomic.Int64
	e := ready(t, o, ref.Options{Ahead: true}, func(op string) error {
		if op == "IDs" {
			fromHost.Add(1)
		}
		if op == "Embed" { // or a busy machine makes pieces small, and steps many
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	})
	s := streaming(t, e, 5)
	before, steps := fromHost.Load(), e.Status().Steps
	same(t, "next to a stream", slices.Concat(askAll(t, e, rs[:3]), together(t, e, rs[3:])), want)
	// A prompt of which a single token is left breaks them once: its step is that of an
	// answer, whose token is known. Each fills a block, begins and ends.
	if n, all := fromHost.Load()-before, e.Status().Steps-steps; n > 3 || all < 20 {
		t.Errorf("%d of %d steps took their input from the host", n, all)
	}
	if n := e.Status().Running; n == 0 { // one that just ended may be among them
		t.Fatal("the stream ended, and is to outlast the prompts")
	}
	for i, r := range rs {
		whole := r.Tokens
		if got := ask(t, e, r).finished.Usage.Cached; got != (len(whole)-1)/128*128 {
			t.Errorf("%d of %d tokens of prompt %d are remembered", got, len(whole), i)
		}
	}
	s.Cancel()
	collect(t, s)
	waitFor(t, "the return of all memory", func() bool { return e.Status().Memory.KV == 0 })
}

// Filled with its last tokens, one step before, or long before.
func TestBlockFilledByConcurrentAnswerIsSavedAtItsEnd(t *testing.T) {
	e := ready(t, engine.Options{Sequences: 4, CacheMemory: mebi}, ref.Options{Ahead: true}, paced)
	s := streaming(t, e, 5)
	p := sample.Greedy()
	for most := 7; most < 13; most++ {
		prompt := tokensOf(uint64(50+most), 120, 400)
		a := ask(t, e, engine.Request{Tokens: prompt, Sampling: &p, MaxTokens: most})
		if len(a.tokens) != most {
			t.Fatalf("%d tokens came, want %d", len(a.tokens), most)
		}
		want := 0
		if len(prompt)+most-1 >= 128 { // the last token was never computed
			want = 128
		}
		ask(t, e, engine.Request{Tokens: tokensOf(4, 5, 400), Sampling: &p, MaxTokens: 3}) // it is saved a step later
		again := slices.Concat(prompt, a.tokens, tokensOf(3, 20, 400))
		if got := ask(t, e, engine.Request{Tokens: again, Sampling: &p, MaxTokens: 1}).finished.Usage.Cached; got != want {
			t.Errorf("after an answer of %d tokens %d are remembered, want %d", most, got, want)
		}
	}
	s.Cancel()
	collect(t, s)
	waitFor(t, "the return of all memory", func() bool { return e.Status().Memory.KV == 0 })
	if p := e.Status().Prefixes; p.Blocks == 0 || p.Evicted > 0 {
		t.Errorf("prefixes %+v", p)
	}
}

// Where the prompt ends on a block boundary, before a pipelined step moves the
// state on.
func TestStateIsSavedDuringAStream(t *testing.T) {
	path, p := hybrid(t), sample.Greedy()
	o := engine.Options{ModelPath: path, Sequences: 3, CacheMemory: mebi}
	plain := ready(t, engine.Options{ModelPath: path}, ref.Options{})
	e := ready(t, o, ref.Options{Ahead: true}, paced)
	s := streaming(t, e, 5)
	for i := range 4 {
		r := engine.Request{Tokens: tokensOf(uint64(70+i), 140+i, 400), Sampling: &p, MaxTokens: 3}
		want := ask(t, plain, r)
		for n, cached := range []int{0, (len(r.Tokens) - 1) / 4 * 4} {
			got := ask(t, e, r)
			if got.finished.Usage.Cached != cached {
				t.Errorf("prompt %d, time %d: %d tokens were restored, want %d", i, n+1, got.finished.Usage.Cached, cached)
			}
			sameButCached(t, "next to a stream", []answer{got}, []answer{want})
		}
	}
	s.Cancel()
	collect(t, s)
}

// apart is a back end whose device has memory of its own, and copies from and to
// what is pinned.
type apart struct {
	tensor.Backend
	pinned, unpinned atomic.Int64
}

func (*apart) Apart() bool { return true }

func (a *apart) Pin([]byte) (unpin func()) {
	a.pinned.Add(1)
	return func() { a.unpinned.Add(1) }
}

// TestWhatADeviceHoldsTakesNothingOfWhatTheHostRemembers: where their memories are
// apart, and what is remembered is pinned; elsewhere requests take of it.
func TestWhatADeviceHoldsTakesNothingOfWhatTheHostRemembers(t *testing.T) {
	o := engine.Options{Sequences: 2, PrefixCache: true}
	budgets := func(e *engine.Engine) (idle, busy int64) {
		t.Helper()
		idle = e.Status().Prefixes.Budget
		s := streaming(t, e, 150) // and one block is full
		busy = e.Status().Prefixes.Budget
		s.Cancel()
		collect(t, s)
		return idle, busy
	}
	if idle, busy := budgets(ready(t, o, ref.Options{}, paced)); busy >= idle || idle == 0 {
		t.Errorf("one memory: %d bytes may be held during a request, %d without", busy, idle)
	}
	b := &apart{Backend: tensortest.Faulty(ref.New(ref.Options{}), paced)}
	o.Backend = b
	e := ready(t, o, ref.Options{})
	if idle, busy := budgets(e); busy != idle || idle == 0 {
		t.Errorf("two memories: %d bytes may be held during a request, %d without", busy, idle)
	}
	if b.pinned.Load() == 0 {
		t.Error("nothing is pinned")
	}
	stop(e)
	waitFor(t, "the end of all pins", func() bool { return b.unpinned.Load() == b.pinned.Load() })
}

// flat is an estimator for which every prefill chunk takes the same memory,
// regardless of its size.
type flat struct{ cost int64 }

func (f flat) Peak(footprint.Prefill) (int64, error) { return f.cost, nil }

func (f flat) Fit(p footprint.Prefill, room, _ int64) (int64, bool) { return p.Chunk, f.cost <= room }

// piecesSeen follows the engine's log of steps: how many had pieces of prompts, and
// how many of these were built while another's were computed.
type piecesSeen struct {
	slog.Handler
	mu            sync.Mutex // guards what follows
	all, together int
	last          bool // the step before had some
}

func (p *piecesSeen) Enabled(context.Context, slog.Level) bool { return true }

func (p *piecesSeen) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "step" {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pieces, ahead := false, false
	r.Attrs(func(a slog.Attr) bool {
		pieces = pieces || a.Key == "promptTokens" && a.Value.Int64() > 0
		ahead = ahead || a.Key == "ahead" && a.Value.Bool()
		return true
	})
	if pieces {
		p.all++
	}
	if pieces && ahead && p.last {
		p.together++
	}
	p.last = pieces
	return nil
}

// Otherwise the second waits for the first.
func TestChunksOfTwoInFlightStepsFitTogether(t *testing.T) {
	const cost = 1 << 30 // large enough to dominate everything else
	for fits, name := range map[int64]string{1: "room for one", 2: "room for two"} {
		t.Run(name, func(t *testing.T) {
			seen := &piecesSeen{Handler: slog.DiscardHandler}
			o := engine.WithEstimator(engine.Options{Sequences: 2, Log: slog.New(seen)}, flat{cost})
			e := ready(t, o, ref.Options{Ahead: true}, paced)
			s := streaming(t, e, 5)
			held, _ := engine.Held(e)
			publisher(e)(guard.Limits{Memory: (held + fits*cost + cost/2) * 10 / 9})
			p := sample.Greedy()
			for i := range 4 {
				a := ask(t, e, engine.Request{Tokens: tokensOf(uint64(90+i), 300, 400), Sampling: &p, MaxTokens: 1})
				if a.finished.Err != nil {
					t.Errorf("prompt %d: %v", i, a.finished.Err)
				}
			}
			s.Cancel()
			collect(t, s)
			seen.mu.Lock()
			defer seen.mu.Unlock()
			if seen.all < 8 || (seen.together > 0) != (fits == 2) {
				t.Errorf("of %d steps with pieces %d were under way with another", seen.all, seen.together)
			}
		})
	}
}
