package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// wide is a model of 4 kB of KV a token: 256 tokens take a block of 1 MiB.
func wide(t *testing.T) string { return deep(t, 2) }

// deep is a wide model with this many layers, each with 2 kB of KV per token.
func deep(t *testing.T, layers int) string {
	c := tinymodel.Default()
	c.Layers = layers
	c.QueryHeads, c.KVHeads, c.HeadSize, c.Context = 4, 4, 64, 1<<16
	return model(t, c)
}

// believed is an estimator that a test steers, in bytes a token of the chunk.
type believed struct {
	cost atomic.Int64
	// called with every estimate, if set.
	called func(p footprint.Prefill)
}

func (b *believed) Peak(p footprint.Prefill) (int64, error) {
	if b.called != nil {
		b.called(p)
	}
	if b.cost.Load() < 0 {
		return 0, errors.New("the number of heads is not known")
	}
	return b.cost.Load() * min(p.Chunk, p.New), nil
}

func (b *believed) Fit(p footprint.Prefill, room, floor int64) (int64, bool) {
	for _, n := range []int64{p.Chunk, p.Chunk / 2, min(floor, p.Chunk)} {
		if b.cost.Load()*min(n, p.New) <= room {
			return n, true
		}
	}
	return 0, false
}

func long(n int) engine.Request {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i*31%400 + 20)
	}
	return engine.Request{Tokens: ids, Sampling: draws(5), MaxTokens: 4}
}

// refusalOf wants a request to be refused.
func refusalOf(t *testing.T, e *engine.Engine, r engine.Request) *engine.Refusal {
	t.Helper()
	s, err := e.Generate(context.Background(), r)
	var refusal *engine.Refusal
	if !errors.As(err, &refusal) || s != nil {
		t.Fatalf("error %v, want a refusal", err)
	}
	return refusal
}

// publish numbers publications.
func publisher(e *engine.Engine) func(guard.Limits) {
	var n atomic.Int64
	return func(l guard.Limits) {
		l.Sequence = n.Add(1)
		e.SetLimits(l)
	}
}

func TestTenThousandRefusalsLeaveNothing(t *testing.T) {
	b := &believed{}
	e := ready(t, engine.WithEstimator(engine.Options{Sequences: 2, LimitBytes: 1 << 30}, b), ref.Options{})
	before := e.Status().Memory
	p := prompt("Hello")
	b.cost.Store(1 << 40) // refused before it is admitted
	for range 10_000 {
		if r := refusalOf(t, e, engine.Request{Prompt: p}); r.Kind != engine.OutOfMemory {
			t.Fatalf("refused as %v: %v", r.Kind, r)
		}
	}
	// Refused after it is admitted: it fits when it is weighed first, and no more
	// at its first chunk.
	var calls atomic.Int64
	b.called = func(footprint.Prefill) { b.cost.Store(min(calls.Add(1)-1, 1) << 40) }
	for i := range 10_000 {
		calls.Store(0)
		s, err := e.Generate(context.Background(), engine.Request{Prompt: p})
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if a := collect(t, s); a.finished.Err == nil || a.finished.Err.Kind != engine.OutOfMemory || a.finished.Usage.Generated != 0 {
			t.Fatalf("request %d ended with %+v", i, a.finished)
		}
	}
	waitFor(t, "the last rollback", func() bool { return engine.Kept(e) == 0 })
	if n := engine.Active(t.Context(), e); n != 0 {
		t.Errorf("the loop keeps %d requests", n)
	}
	st := e.Status()
	if st.Memory.KV != 0 || st.Memory.Live != before.Live || st.Running != 0 || st.Queued != 0 || st.Guard.Refused != 20_000 || st.Guard.Aborted != 0 {
		t.Errorf("afterwards %+v, before memory was %+v", st, before)
	}
	b.called = nil
	b.cost.Store(0)
	if a := ask(t, e, engine.Request{Prompt: p, MaxTokens: 3}); a.finished.Err != nil {
		t.Errorf("a request that fits: %v", a.finished.Err)
	}
}

// Otherwise they take one step each.
func TestTwoPromptsShareAStepIfBothFit(t *testing.T) {
	for fits, steps := range map[int64]int64{2: 1, 1: 2} {
		b := &believed{}
		e := ready(t, engine.WithEstimator(engine.Options{Sequences: 2}, b), ref.Options{})
		publish := publisher(e)
		publish(guard.Limits{PausePrefill: true})
		b.cost.Store(4 << 20)
		var streams []*engine.Stream
		for range 2 {
			r := long(8)
			r.MaxTokens = 1
			s, err := e.Generate(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, s)
		}
		before, m := e.Status().Steps, e.Status().Memory
		held := m.Active() + engine.Overhead(e)
		publish(guard.Limits{Memory: (held + fits*(32<<20) + 8<<20) * 10 / 9})
		for _, s := range streams {
			if a := collect(t, s); a.finished.Err != nil {
				t.Errorf("with room for %d: %v", fits, a.finished.Err)
			}
		}
		if got := e.Status().Steps - before; got != steps {
			t.Errorf("with room for %d two prompts took %d steps, want %d", fits, got, steps)
		}
	}
}

// A prompt over the process's own limit never fits; a shortage of the host
// passes.
func TestRefusalStatesWhetherWaitingHelps(t *testing.T) {
	b := &believed{}
	e := ready(t, engine.WithEstimator(engine.Options{}, b), ref.Options{})
	publish := publisher(e)
	publish(guard.Limits{Memory: 1 << 30, HeadroomKnown: true, Headroom: 1 << 20})
	for _, c := range []struct {
		cost  int64
		later bool
	}{{cost: 2 << 20, later: true}, {cost: 2 << 30, later: false}} {
		b.cost.Store(c.cost)
		r := refusalOf(t, e, engine.Request{Prompt: prompt("Hello")})
		if r.Kind != engine.OutOfMemory || r.RetryAfter > 0 != c.later {
			t.Errorf("%d bytes under %d of its own and 1 MiB of the host's: %+v", c.cost, 1<<30, r)
		}
	}
}

func TestTokenizerErrorIsTheSameWithAndWithoutTheGuard(t *testing.T) {
	free := ready(t, engine.Options{}, ref.Options{})
	guarded := ready(t, engine.Options{LimitBytes: 1 << 30}, ref.Options{})
	publisher(guarded)(guard.Limits{Memory: 1, CanMakeRoom: true, HeadroomKnown: true}) // nothing fits
	for name, r := range map[string]engine.Request{
		"unknown token":     {Tokens: []int32{1, 512}},
		"nothing":           {},
		"empty prompt":      {Prompt: prompt("")},
		"tools that are no": {Chat: &text.Chat{Messages: []chat.Message{{Role: "user", Content: "a"}}, Tools: []byte("{")}},
		"a longer context":  {Tokens: make([]int32, 600)},
	} {
		want, got := refusalOf(t, free, r), refusalOf(t, guarded, r)
		if *want != *got {
			t.Errorf("%s: %+v with the guard, %+v without", name, got, want)
		}
	}
	if st := guarded.Status(); st.Guard.HeadroomRequest != 0 || st.Guard.Refused != 0 {
		t.Errorf("the guard acted on requests that it cannot affect: %+v", st.Guard)
	}
}

func TestUnestimatablePromptIsRefusedByNameAndReported(t *testing.T) {
	b := &believed{}
	b.cost.Store(-1)
	logs := &logged{}
	e := ready(t, engine.WithEstimator(engine.Options{LimitBytes: 1 << 30, Log: slog.New(logs)}, b), ref.Options{})
	for range 3 {
		r := refusalOf(t, e, engine.Request{Prompt: prompt("Hello")})
		if r.Kind != engine.OutOfMemory || !strings.Contains(r.Message, "the number of heads is not known") {
			t.Errorf("refused with %+v", r)
		}
	}
	if g := e.Status().Guard; g.Active || !strings.Contains(g.Inactive, "the number of heads is not known") || g.Refused != 3 {
		t.Errorf("the guard says %+v", g)
	}
	if n := logs.count("memory guard is inactive"); n != 1 {
		t.Errorf("it was logged %d times, want once", n)
	}
}

// logged counts messages.
type logged struct {
	mu       sync.Mutex
	messages []string
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }
func (l *logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logged) WithGroup(string) slog.Handler            { return l }
func (l *logged) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.messages = append(l.messages, r.Message)
	return nil
}

func (l *logged) count(message string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.messages {
		if m == message {
			n++
		}
	}
	return n
}

// If the agent publishes no limits the guard is inactive, with a reason, logged
// once.
func TestInactiveGuardIsReported(t *testing.T) {
	logs := &logged{}
	e := ready(t, engine.Options{LimitBytes: 1 << 30, Supervised: true, Log: slog.New(logs)}, ref.Options{})
	for range 3 {
		ask(t, e, engine.Request{Prompt: prompt("Hello"), MaxTokens: 1})
	}
	if g := e.Status().Guard; g.Active || !strings.Contains(g.Inactive, "has not published limits") {
		t.Errorf("without limits the guard says %+v", g)
	}
	if n := logs.count("memory guard is inactive"); n != 1 {
		t.Errorf("it was logged %d times, want once", n)
	}
	publisher(e)(guard.Limits{Memory: 1 << 30})
	if g := e.Status().Guard; !g.Active || g.Inactive != "" || g.Sequence != 1 {
		t.Errorf("with limits the guard says %+v", g)
	}
	alone := ready(t, engine.Options{Log: slog.New(logs)}, ref.Options{})
	ask(t, alone, engine.Request{Prompt: prompt("Hello"), MaxTokens: 1})
	if g := alone.Status().Guard; g.Active || g.Inactive == "" || logs.count("memory guard is inactive") != 1 {
		t.Errorf("an engine without any limit says %+v", g)
	}
}

func TestLimitsPublishedWhileLoadingApply(t *testing.T) {
	e := start(t, engine.Options{}, ref.Options{})
	publisher(e)(guard.Limits{Memory: 60 << 20, HeadroomKnown: true, Headroom: 1}) // of a model that is not there yet
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := e.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if st := e.Status(); st.Guard.Sequence != 1 {
		t.Fatalf("the guard works with %+v", st.Guard)
	}
	if a := ask(t, e, engine.Request{Prompt: prompt("Hello"), MaxTokens: 1}); a.finished.Err != nil {
		t.Errorf("headroom that was measured before the load counts after it: %v", a.finished.Err)
	}
	e.SetLimits(guard.Limits{Memory: 1 << 20, Sequence: 2})
	if r := refusalOf(t, e, engine.Request{Prompt: prompt("Hello"), MaxTokens: 1}); r.Kind != engine.OutOfMemory || r.Limit != 1<<20 {
		t.Errorf("refused with %+v", r)
	}
}

func TestChunksShrinkNearTheLimitAndGrowAgain(t *testing.T) {
	c := tinymodel.Default()
	c.Context = 4000
	path, r := model(t, c), long(600)
	want := ask(t, ready(t, engine.Options{ModelPath: path}, ref.Options{}), r)
	b := &believed{}
	b.cost.Store(1 << 20) // a chunk of 128 takes 128 MiB
	e := ready(t, engine.WithEstimator(engine.Options{ModelPath: path}, b), ref.Options{})
	publish := publisher(e)
	publish(guard.Limits{Memory: 256 << 20})
	// The zone begins at 230 MiB and some 50 are in use. Then the kernel sees 190,
	// and no more than the smallest chunk fits below the zone.
	tight, steps := false, int64(0)
	b.called = func(p footprint.Prefill) {
		switch throttled := e.Status().Guard.Throttled; {
		case !tight && p.Cached > 0:
			tight = true
			m := e.Status().Memory
			publish(guard.Limits{Memory: 256 << 20, Footprint: m.Active() + m.Pooled + 190<<20})
		case throttled == 3 && steps == 0:
			publish(guard.Limits{Memory: 1 << 30})
			steps = e.Status().Steps
		}
	}
	got := ask(t, e, r)
	if !slices.Equal(got.tokens, want.tokens) || got.finished.Err != nil {
		t.Errorf("throttled: %v %+v, want %v", got.tokens, got.finished, want.tokens)
	}
	if g := e.Status().Guard; g.Throttled < 3 || g.Throttled > 4 || g.Aborted+g.Refused != 0 {
		t.Errorf("the guard says %+v, want 3 throttled chunks, and whole ones after them", g)
	}
}

// withOthers runs a long prompt while two requests decode; only the prompt must
// end for lack of memory.
func withOthers(t *testing.T, e *engine.Engine, want []answer, victim engine.Request) engine.Finished {
	t.Helper()
	others := answering()
	var streams []*engine.Stream
	for _, r := range others {
		s, err := e.Generate(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	doomed, err := e.Generate(t.Context(), victim)
	if err != nil {
		t.Fatal(err)
	}
	end := collect(t, doomed)
	if end.finished.Err == nil || end.finished.Err.Kind != engine.OutOfMemory || end.finished.Usage.Generated != 0 {
		t.Errorf("the long prompt ended with %+v", end.finished)
	}
	for i, s := range streams {
		if a := collect(t, s); a.finished != want[i].finished {
			t.Errorf("concurrent request %d ended with %+v, want %+v", i, a.finished, want[i].finished)
		}
	}
	if g := e.Status().Guard; g.Aborted != 1 || g.Refused != 0 {
		t.Errorf("the guard says %+v, want one prefill aborted", g)
	}
	waitFor(t, "the memory of all requests", func() bool { return e.Status().Memory.KV == 0 })
	return end.finished
}

func answering() []engine.Request {
	return []engine.Request{
		{Prompt: prompt("Show me more"), Sampling: draws(1), MaxTokens: 300},
		{Prompt: prompt("One rack holds many Macs"), Sampling: draws(2), MaxTokens: 250},
	}
}

// The back end reaches its limit in the middle of a prompt estimated at zero
// bytes.
func TestUnderestimatedPromptFailsAlone(t *testing.T) {
	path := wide(t)
	var want []answer
	plain := ready(t, engine.Options{ModelPath: path, ContextTokens: 8000, Sequences: 3}, ref.Options{})
	for _, r := range answering() {
		want = append(want, ask(t, plain, r))
	}
	for name, o := range map[string]ref.Options{"step by step": {}, "steps ahead": {Ahead: true}} {
		t.Run(name, func(t *testing.T) {
			e := ready(t, engine.WithEstimator(engine.Options{ModelPath: path, ContextTokens: 8000, Sequences: 3}, &believed{}), o)
			m := e.Status().Memory
			publisher(e)(guard.Limits{Memory: m.Active() + engine.Overhead(e) + 9<<20})
			f := withOthers(t, e, want, long(6000))
			if f.Err.Used <= 0 || f.Err.Limit <= 0 || f.Err.RetryAfter <= 0 {
				t.Errorf("the error has the figures %+v", f.Err)
			}
		})
	}
}

// The memory that the kernel reports grows while a prompt is computed.
func TestFootprintOverTheLimitFailsTheRunningPrompt(t *testing.T) {
	path := wide(t)
	var want []answer
	plain := ready(t, engine.Options{ModelPath: path, ContextTokens: 8000, Sequences: 3}, ref.Options{})
	for _, r := range answering() {
		want = append(want, ask(t, plain, r))
	}
	b := &believed{}
	e := ready(t, engine.WithEstimator(engine.Options{ModelPath: path, ContextTokens: 8000, Sequences: 3}, b), ref.Options{})
	publish := publisher(e)
	publish(guard.Limits{Memory: 1 << 30})
	var once sync.Once
	b.called = func(p footprint.Prefill) {
		if p.Cached > 1000 { // no other prompt is as long, however small its pieces are
			once.Do(func() { publish(guard.Limits{Memory: 1 << 30, Footprint: 2 << 30}) })
		}
	}
	withOthers(t, e, want, long(6000))
	publish(guard.Limits{Memory: 1 << 30, Footprint: 100 << 20})
	if a := ask(t, e, long(300)); a.finished.Err != nil {
		t.Errorf("once it fell again: %v", a.finished.Err)
	}
}

func TestDecodingOverTheLimitFailsTheNewestAnswerAlone(t *testing.T) {
	path := deep(t, 8) // blocks of 4 MiB, more than all arrays of a step
	rs := []engine.Request{long(250), long(240)}
	rs[0].MaxTokens, rs[1].MaxTokens = 250, 60 // the older is still there when the younger has its prompt
	plain := ready(t, engine.Options{ModelPath: path, ContextTokens: 2000, Sequences: 2}, ref.Options{})
	want := ask(t, plain, rs[0])
	if want.finished.Usage.Generated < 30 {
		t.Fatalf("the answer is too short for this test: %+v", want.finished)
	}
	e := ready(t, engine.WithEstimator(engine.Options{ModelPath: path, ContextTokens: 2000, Sequences: 2}, &believed{}), ref.Options{}, paced)
	// Two blocks each are wanted, and there is room for three, and for a step.
	publisher(e)(guard.Limits{Memory: e.Status().Memory.Active() + engine.Overhead(e) + 15<<20})
	first, err := e.Generate(t.Context(), rs[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	second, err := e.Generate(t.Context(), rs[1])
	if err != nil {
		t.Fatal(err)
	}
	if a := collect(t, second); a.finished.Err == nil || a.finished.Err.Kind != engine.OutOfMemory || a.finished.Usage.Generated == 0 {
		t.Errorf("the younger answer ended with %+v", a.finished)
	}
	if a := collect(t, first); a.finished != want.finished {
		t.Errorf("the older answer ended with %+v, want %+v", a.finished, want.finished)
	}
}
