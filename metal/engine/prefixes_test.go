package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/kv/kvtest"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/race"
	"metalfleet.dev/metalfleet/test/seed"
)

// mebi is room for all that tiny models remember.
const mebi = 64 << 20

// tokensOf a vocabulary, the same for the same seed.
func tokensOf(seed uint64, n, vocabulary int) []int32 {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(3 + r.IntN(vocabulary-3))
	}
	return out
}

// conversation returns requests with common beginnings: a prompt, the same
// again, one that extends it, and one that diverges in the middle.
func conversation(vocabulary int) []engine.Request {
	first := tokensOf(1, 300, vocabulary)
	var out []engine.Request
	for i, tokens := range [][]int32{
		first, first,
		slices.Concat(first, tokensOf(2, 60, vocabulary)),
		slices.Concat(first[:200], tokensOf(3, 50, vocabulary)),
		slices.Concat(first[:100], tokensOf(4, 10, vocabulary)),
	} {
		r := engine.Request{Tokens: tokens, Sampling: draws(uint64(i)), MaxTokens: 30}
		if i > 0 {
			r.Logprobs, r.Sampling.Bias = alternatives(i), map[int32]float32{int32(20 + i): 3}
		}
		out = append(out, r)
	}
	return out
}

// sameButCached compares answers whose prompts were restored in part. Their
// log-probabilities may differ by rounding: where a layer rotates, sums are cut
// where its blocks are.
func sameButCached(t *testing.T, what string, got, want []answer) {
	t.Helper()
	got = slices.Clone(got)
	for i := range got {
		got[i].finished.Usage.Cached = want[i].finished.Usage.Cached
		if alike(got[i].logprobs, want[i].logprobs) {
			got[i].logprobs = want[i].logprobs
		}
	}
	same(t, what, got, want)
}

// alike reports whether both have the same tokens with equal log-probabilities
// up to rounding.
func alike(a, b []sample.Ranked) bool {
	near := func(a, b sample.Likely) bool { return a.ID == b.ID && math.Abs(a.Logprob-b.Logprob) < 1e-3 }
	return slices.EqualFunc(a, b, func(a, b sample.Ranked) bool {
		return near(a.Chosen, b.Chosen) && slices.EqualFunc(a.Top, b.Top, near)
	})
}

func askAll(t *testing.T, e *engine.Engine, rs []engine.Request) []answer {
	t.Helper()
	var out []answer
	for _, r := range rs {
		out = append(out, ask(t, e, r))
	}
	return out
}

// For every family, hybrids included, sampled so that other numbers would soon
// be other tokens; as many tokens are restored as possible.
func TestRestoredAnswersEqualComputedOnes(t *testing.T) {
	seen := map[tinymodel.Family]bool{}
	for _, c := range tinymodel.Cases() {
		if seen[c.Config.Family] {
			continue
		}
		seen[c.Config.Family] = true
		if race.Enabled && c.Config.Family != tinymodel.Llama && c.Config.Family != tinymodel.Qwen35 {
			continue // the families differ in arithmetic alone
		}
		t.Run(string(c.Config.Family), func(t *testing.T) {
			path, err := c.Write(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			rs := conversation(c.Config.Vocabulary)
			want := askAll(t, ready(t, engine.Options{ModelPath: path}, ref.Options{}), rs)
			for name, r := range map[string]ref.Options{"step by step": {}, "steps ahead": {Ahead: true}} {
				e := ready(t, engine.Options{ModelPath: path, CacheMemory: mebi}, r)
				got := askAll(t, e, rs)
				sameButCached(t, name, got, want)
				var cached []int
				for _, a := range got {
					cached = append(cached, a.finished.Usage.Cached)
				}
				// Blocks of 128 tokens; states also 4 tokens apart where a prompt ended.
				wantCached := []int{0, 256, 256, 128, 0}
				if c.Config.Hybrid.Interval > 0 {
					wantCached = []int{0, 296, 296, 128, 0}
				}
				if !slices.Equal(cached, wantCached) {
					t.Errorf("%s: %d tokens were restored, want %d", name, cached, wantCached)
				}
				if p := e.Status().Prefixes; p.Bytes == 0 || p.Hits != 3 || p.Misses != 2 || p.Restored == 0 || p.Saved == 0 {
					t.Errorf("%s: status %+v", name, p)
				}
			}
		})
	}
	if len(seen) < 10 {
		t.Errorf("%d families", len(seen))
	}
}

// The next turn continues after the answer, at the last boundary that it
// filled.
func TestAnswersAreCached(t *testing.T) {
	for name, path := range map[string]string{"plain": model(t, tinymodel.Default()), "hybrid": hybrid(t)} {
		if race.Enabled && name == "hybrid" {
			continue
		}
		for how, r := range map[string]ref.Options{"step by step": {}, "steps ahead": {Ahead: true}} {
			t.Run(name+", "+how, func(t *testing.T) {
				e := ready(t, engine.Options{ModelPath: path, CacheMemory: mebi}, r)
				first := engine.Request{Tokens: tokensOf(1, 100, 400), Sampling: draws(1), MaxTokens: 300}
				a := ask(t, e, greedily([]engine.Request{first})[0])
				if len(a.tokens) < 200 {
					t.Fatalf("the model ended its turn after %d tokens", len(a.tokens))
				}
				next := engine.Request{Tokens: slices.Concat(first.Tokens, a.tokens), Sampling: draws(2), MaxTokens: 5}
				want := (len(next.Tokens) - 1) / 128 * 128
				if got := ask(t, e, next).finished.Usage.Cached; got != want {
					t.Errorf("%d of %d tokens were restored, want %d", got, len(next.Tokens), want)
				}
			})
		}
	}
}

func TestCachedBlocksOfBatchedRequestsNeverMix(t *testing.T) {
	for name, path := range map[string]string{"plain": model(t, tinymodel.Default()), "hybrid": hybrid(t)} {
		t.Run(name, func(t *testing.T) {
			var rs, further []engine.Request
			for i := range uint64(6) {
				tokens := tokensOf(i/2, 150+10*int(i), 400) // pairs begin alike
				rs = append(rs, engine.Request{Tokens: tokens, Sampling: draws(i), MaxTokens: 60})
				further = append(further, engine.Request{Tokens: slices.Concat(tokens, tokensOf(i+50, 20, 400)), Sampling: draws(i + 9), MaxTokens: 30})
			}
			plain := ready(t, engine.Options{ModelPath: path}, ref.Options{})
			want, wantFurther := askAll(t, plain, rs), askAll(t, plain, further)
			for how, r := range map[string]ref.Options{"step by step": {}, "steps ahead": {Ahead: true}} {
				e := ready(t, engine.Options{ModelPath: path, Sequences: 4, CacheMemory: mebi}, r)
				sameButCached(t, how, together(t, e, rs), want)
				got := together(t, e, further)
				sameButCached(t, how+", further", got, wantFurther)
				for i, a := range got {
					if a.finished.Usage.Cached < 128 {
						t.Errorf("%s: request %d began with %d restored tokens", how, i, a.finished.Usage.Cached)
					}
				}
			}
		})
	}
}

// TestPreemptedRequestsGoOnFromWhatTheySaved: not from their first token.
func TestPreemptedRequestsGoOnFromWhatTheySaved(t *testing.T) {
	for name, path := range map[string]string{"plain": model(t, tinymodel.Default()), "hybrid": hybrid(t)} {
		t.Run(name, func(t *testing.T) {
			var rs []engine.Request
			for i := range uint64(3) {
				rs = append(rs, engine.Request{Tokens: tokensOf(i, 150, 400), Sampling: draws(i), MaxTokens: 180})
			}
			want := together(t, ready(t, engine.Options{ModelPath: path, Sequences: 3}, ref.Options{}), rs)
			var st engine.Status
			for range 30 { // a busy machine may end one before the next is there, or preempt one that has no block yet
				tight := ready(t, engine.Options{ModelPath: path, Sequences: 3, CacheTokens: 768, CacheMemory: mebi}, ref.Options{})
				sameButCached(t, "in a tight cache", together(t, tight, rs), want)
				st = tight.Status()
				if t.Failed() {
					return
				}
				if p := st.Prefixes; st.Preemptions > 0 && p.Hits >= st.Preemptions && p.Restored >= 128*st.Preemptions {
					return
				}
			}
			t.Errorf("in none of 30 rounds all who were preempted went on from what they saved; in the last %d were preempted, and %d went on", st.Preemptions, st.Prefixes.Hits)
		})
	}
}

// Thousands of tokens in blocks of full size, cancelled after the middle, resumed in
// memory and, by another engine, from disk. replay_test.go has 90,000.
func TestLongPromptResumesFromItsLastBoundary(t *testing.T) {
	const tokens, blocks = 3600, 8
	for name, c := range map[string]brokenOff{
		"plain":           {path: model(t, lengthy(tinymodel.Default())), tokens: tokens, saved: blocks, want: blocks * 256},
		"plain, on disk":  {path: model(t, lengthy(tinymodel.Default())), tokens: tokens, saved: blocks, want: blocks * 256, disk: true},
		"hybrid":          {path: hybridOf(t, lengthy(tinymodel.Default())), tokens: 5000, saved: 2 * 2, want: 2 * 2048},
		"hybrid, on disk": {path: hybridOf(t, lengthy(tinymodel.Default())), tokens: 5000, saved: 2 * 2, want: 2 * 2048, disk: true},
	} {
		if race.Enabled && name != "plain, on disk" {
			continue // minutes
		}
		t.Run(name, c.resumes)
	}
}

// brokenOff is a prompt that is cancelled on its way.
type brokenOff struct {
	path   string
	tokens int
	// saved is how many blocks and states there are when it is cancelled, want how
	// many tokens are restored when it is asked again.
	saved int64
	want  int
	disk  bool
}

// resumes asks for the prompt, cancels it, asks again, of another engine where it
// lies on disk, and wants the answer of an engine that remembers nothing.
func (c brokenOff) resumes(t *testing.T) {
	var serving atomic.Pointer[engine.Engine]
	reached, cancelled := make(chan struct{}), make(chan struct{})
	o := engine.Options{ModelPath: c.path, CacheMemory: 512 << 20, ModelDigest: "sha256:aa", Numerics: "ref 1"}
	dir := t.TempDir()
	below := onDisk(t, dir, "e1", &o)
	e := ready(t, o, ref.Options{}, func(op string) error {
		if e := serving.Load(); op == "Embed" && e != nil && e.Status().Prefixes.Saved >= c.saved {
			serving.Store(nil)
			close(reached)
			<-cancelled
		}
		return nil
	})
	serving.Store(e)
	r := engine.Request{Tokens: tokensOf(1, c.tokens, 400), Sampling: draws(1), MaxTokens: 1}
	s, err := e.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	<-reached
	s.Cancel()
	close(cancelled)
	if a := collect(t, s); a.finished.Err == nil || a.finished.Err.Kind != engine.Cancelled {
		t.Fatalf("a cancelled prompt ended with %+v", a.finished)
	}
	if c.disk {
		stop(e)
		below()
		below = onDisk(t, dir, "e2", &o)
		e = ready(t, o, ref.Options{})
	}
	a := ask(t, e, r)
	if got := a.finished.Usage.Cached; got != c.want {
		t.Errorf("%d tokens were restored, want %d", got, c.want)
	}
	sameButCached(t, t.Name(), []answer{a}, []answer{ask(t, ready(t, engine.Options{ModelPath: c.path}, ref.Options{}), r)})
	stop(e)
	below()
}

// onDisk gives an engine a tier in a folder, with a lease of its own; below closes
// the tier and says whether every block is somewhere.
func onDisk(t *testing.T, dir, epoch string, o *engine.Options) (below func()) {
	t.Helper()
	var tier *cold.Tier
	o.Below = func(origin kv.Origin) kv.Tier {
		tier = cold.Open(cold.Options{FS: disk.OS{}, Origin: origin, QueueBytes: 64 << 20, PutWait: time.Minute})
		for _, folder := range append(cold.Shards(), filepath.Join(cold.Temporary, epoch)) {
			if err := (disk.OS{}).MkdirAll(filepath.Join(cold.Folder(dir, tier.Namespace()), folder)); err != nil {
				t.Error(err)
			}
		}
		if err := tier.Attach(cold.Lease{Dir: dir, Epoch: epoch, GrantedBytes: 1 << 30}); err != nil {
			t.Error(err)
		}
		return tier
	}
	return func() {
		t.Helper()
		if err := tier.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if c := tier.Counters(); !c.Balanced() || c.Queued != 0 || c.DroppedTotal() != 0 {
			t.Errorf("of what was saved %+v", c)
		}
	}
}

// lengthy serves 10,000 tokens.
func lengthy(c tinymodel.Config) tinymodel.Config {
	c.Context, c.Layers = 10_000, 1
	return c
}

// 10,000 requests with cached prefixes, refused by the full queue: no claim and
// no byte stays.
func TestRefusedRequestsLeaveNoClaims(t *testing.T) {
	e := ready(t, engine.Options{Sequences: 1, Queue: 1, CacheMemory: mebi}, ref.Options{})
	r := engine.Request{Tokens: tokensOf(1, 300, 400), Sampling: draws(1), MaxTokens: 2}
	ask(t, e, r)
	e.SetLimits(guard.Limits{PausePrefill: true, Sequence: 1})
	var waiting []*engine.Stream
	for range 2 {
		s, err := e.Generate(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, s)
	}
	before := e.Status().Prefixes
	for range 10_000 {
		var refusal *engine.Refusal
		if _, err := e.Generate(t.Context(), r); !errors.As(err, &refusal) || refusal.Kind != engine.QueueFull {
			t.Fatalf("refused with %v", err)
		}
	}
	if after := e.Status().Prefixes; after != before {
		t.Errorf("%+v after, %+v before", after, before)
	}
	e.SetLimits(guard.Limits{Sequence: 2})
	for _, s := range waiting {
		if a := collect(t, s); a.finished.Err != nil || a.finished.Usage.Cached != 256 {
			t.Errorf("a queued request ended with %+v", a.finished)
		}
	}
	if n := engine.Counted(e); n != 0 {
		t.Errorf("%d bytes are pinned without a request", n)
	}
}

// The lookup of its cached prefix came before the refusal.
func TestRequestRefusedByTheGuardLeavesNoClaims(t *testing.T) {
	arithmetic := &recorder{}
	e := ready(t, engine.WithEstimator(engine.Options{CacheMemory: mebi, LimitBytes: 1 << 40}, arithmetic), ref.Options{})
	r := engine.Request{Tokens: tokensOf(1, 300, 400), Sampling: draws(1), MaxTokens: 2}
	ask(t, e, r)
	arithmetic.mu.Lock()
	arithmetic.over = true
	arithmetic.mu.Unlock()
	for range 100 {
		var refusal *engine.Refusal
		if _, err := e.Generate(t.Context(), r); !errors.As(err, &refusal) || refusal.Kind != engine.OutOfMemory {
			t.Fatalf("refused with %v", err)
		}
	}
	if n := engine.Counted(e); n != 0 || engine.Kept(e) != 0 {
		t.Errorf("%d bytes are pinned without a request", n)
	}
}

// Requests that share prefixes are cancelled in the queue, in the prompt or in
// the answer; later ones with the same prompt get its answer, and no claim is
// left.
func TestRandomCancellations(t *testing.T) {
	for name, path := range map[string]string{"plain": model(t, tinymodel.Default()), "hybrid": hybrid(t)} {
		t.Run(name, func(t *testing.T) {
			seed := seed.Of(t)
			r := rand.New(rand.NewPCG(seed, 0))
			rs := conversation(400)
			want := askAll(t, ready(t, engine.Options{ModelPath: path}, ref.Options{}), rs)
			e := ready(t, engine.Options{ModelPath: path, Sequences: 2, CacheTokens: 700, CacheMemory: 1 << 20}, ref.Options{Ahead: r.IntN(2) == 0})
			rounds := 40
			if race.Enabled {
				rounds = 10
			}
			for range rounds {
				var streams []*engine.Stream
				var which []int
				for range 1 + r.IntN(4) {
					i := r.IntN(len(rs))
					s, err := e.Generate(t.Context(), rs[i])
					if err != nil {
						t.Fatal(err)
					}
					streams, which = append(streams, s), append(which, i)
				}
				for i, s := range streams {
					cancelled := r.IntN(2) == 0
					for range r.IntN(4) {
						if ev, err := s.Next(t.Context()); err != nil || ev.Finished != nil {
							cancelled = true // it is over, and not compared
							break
						}
						if !cancelled {
							break
						}
					}
					if cancelled {
						s.Cancel()
						for {
							if _, err := s.Next(t.Context()); err != nil {
								break
							}
						}
						continue
					}
					if a := collect(t, s); a.finished.Reason != want[which[i]].finished.Reason || a.finished.Usage.Generated != want[which[i]].finished.Usage.Generated {
						t.Fatalf("request %d ended with %+v, want %+v", which[i], a.finished, want[which[i]].finished)
					}
				}
			}
			sameButCached(t, "afterwards", askAll(t, e, rs), want)
			waitFor(t, "an end of all claims", func() bool { return engine.Counted(e) == 0 })
			if m := e.Status().Memory; m.KV != 0 {
				t.Errorf("%d bytes are held without a request", m.KV)
			}
		})
	}
}

// After its requests ended; computing again gives the same answers.
func TestFailedStepDropsThePrefixCache(t *testing.T) {
	var fail atomic.Bool
	below := kvtest.NewFake()
	e := ready(t, engine.Options{CacheMemory: mebi, Sequences: 2, ModelDigest: "sha256:aa", Below: func(kv.Origin) kv.Tier { return below }}, ref.Options{}, func(op string) error {
		if op == "Linear" && fail.CompareAndSwap(true, false) {
			return errors.New("the device is gone")
		}
		return nil
	})
	r := engine.Request{Tokens: tokensOf(1, 300, 400), Sampling: draws(1), MaxTokens: 10}
	want := ask(t, e, r)
	if e.Status().Prefixes.Bytes == 0 {
		t.Fatal("nothing is remembered")
	}
	for len(below.Puts()) < 2 {
		<-time.After(time.Millisecond)
	}
	fail.Store(true)
	if a := ask(t, e, r); a.finished.Err == nil || a.finished.Err.Kind != engine.Internal {
		t.Errorf("a failed step ends with %+v", a.finished)
	}
	engine.Active(t.Context(), e) // the step is over
	if p := e.Status().Prefixes; p.Bytes != 0 || p.Blocks != 0 {
		t.Errorf("after a failed step %+v is remembered", p)
	}
	got := ask(t, e, r)
	same(t, "computed again", []answer{got}, []answer{want})
	if got.finished.Usage.Cached != 0 || e.Status().Prefixes.Bytes == 0 {
		t.Errorf("%+v; %+v", got.finished, e.Status().Prefixes)
	}
}

// Between two steps, on the goroutine that owns the back end. Trim empties the
// pool only.
func TestForgetReportsFreedBytes(t *testing.T) {
	e := ready(t, engine.Options{CacheMemory: mebi}, ref.Options{})
	r := engine.Request{Tokens: tokensOf(1, 300, 400), Sampling: draws(1), MaxTokens: 10}
	want := ask(t, e, r)
	if n, err := e.Trim(t.Context()); err != nil || e.Status().Prefixes.Bytes == 0 {
		t.Errorf("Trim: %d, %v, %+v: it takes the pool alone", n, err, e.Status().Prefixes)
	}
	before := e.Status()
	n, err := e.Forget(t.Context())
	if err != nil || n != before.Prefixes.Bytes+before.Memory.Pooled || before.Prefixes.Bytes == 0 || e.Status().Prefixes.Bytes != 0 {
		t.Errorf("Forget: %d bytes, %v; %+v before, %+v after", n, err, before.Prefixes, e.Status().Prefixes)
	}
	if n, err := e.Forget(t.Context()); err != nil || n != 0 {
		t.Errorf("Forget of nothing: %d, %v", n, err)
	}
	same(t, "computed again", []answer{ask(t, e, r)}, []answer{want})
}

// Shutdown ends requests, then writes the remaining blocks; an engine with the
// same weights and numerics continues from them.
func TestPrefixCacheOutlivesTheEngineOnDisk(t *testing.T) {
	below := kvtest.NewFake()
	o := engine.Options{ModelPath: model(t, tinymodel.Default()), CacheMemory: mebi, ModelDigest: "sha256:aa", Numerics: "ref 1", Below: func(kv.Origin) kv.Tier { return below }}
	r := engine.Request{Tokens: tokensOf(1, 300, 400), Sampling: draws(1), MaxTokens: 10}
	e := ready(t, o, ref.Options{})
	want := ask(t, e, r)
	running, err := e.Generate(t.Context(), engine.Request{Tokens: tokensOf(2, 200, 400), Sampling: draws(2), MaxTokens: 300})
	if err != nil {
		t.Fatal(err)
	}
	stop(e)
	if a := collect(t, running); a.finished.Err == nil && a.finished.Usage.Generated < 300 {
		t.Errorf("a running request ended with %+v", a.finished)
	}
	blocks := len(below.Puts())
	if s := e.Status().Prefixes; s.Bytes != 0 || blocks < 2 {
		t.Errorf("%d blocks were written down, %+v is left", blocks, s)
	}
	again := ready(t, o, ref.Options{})
	got := ask(t, again, r)
	sameButCached(t, "after a restart", []answer{got}, []answer{want})
	if got.finished.Usage.Cached != 256 {
		t.Errorf("%d tokens were restored after a restart, want 256", got.finished.Usage.Cached)
	}
	for name, change := range map[string]func(*engine.Options){
		"other weights":   func(o *engine.Options) { o.ModelDigest = "sha256:ab" },
		"other numerics":  func(o *engine.Options) { o.Numerics = "ref 2" },
		"another context": func(o *engine.Options) { o.ContextTokens = 256 + 60 },
	} {
		changed := o
		change(&changed)
		if got := ask(t, ready(t, changed, ref.Options{}), r).finished.Usage.Cached; got != 0 {
			t.Errorf("%s: %d tokens were restored", name, got)
		}
	}
}

// onlooker notes who of an engine's own goroutine asks a tier for more than an
// offer.
type onlooker struct {
	*kvtest.Fake
	t *testing.T
}

func (w onlooker) look(call string) {
	frames := runtime.CallersFrames(func() []uintptr { pc := make([]uintptr, 64); return pc[:runtime.Callers(3, pc)] }())
	for f, more := frames.Next(); more; f, more = frames.Next() {
		if strings.Contains(f.Function, "(*looping).") {
			w.t.Errorf("%s is called by %s", call, f.Function)
			return
		}
	}
}

func (w onlooker) Put(k kv.Key, p []byte) kv.Saved { w.look("Put"); return w.Fake.Put(k, p) }
func (w onlooker) Size(k kv.Key) (int64, bool)     { w.look("Size"); return w.Fake.Size(k) }
func (w onlooker) Await(ctx context.Context) error { w.look("Await"); return w.Fake.Await(ctx) }
func (w onlooker) Read(ctx context.Context, k kv.Key, dst []byte) error {
	w.look("Read")
	return w.Fake.Read(ctx, k, dst)
}

// TestTheEnginesOwnGoroutineAsksNoDisk: the scheduler loop saves, evicts and
// restores without reading the disk, with enough memory and without.
func TestTheEnginesOwnGoroutineAsksNoDisk(t *testing.T) {
	path := model(t, tinymodel.Default())
	for _, budget := range []int64{1, 100 << 10, mebi} {
		below := onlooker{Fake: kvtest.NewFake(), t: t}
		o := engine.Options{ModelPath: path, CacheMemory: budget, ModelDigest: "sha256:aa", Below: func(kv.Origin) kv.Tier { return below }}
		for range 2 {
			e := ready(t, o, ref.Options{})
			together(t, e, conversation(400))
			stop(e)
		}
		if len(below.Puts()) == 0 {
			t.Errorf("with %d bytes nothing was offered", budget)
		}
	}
}

// TestTheFirstRequestWaitsForTheTierBelow: after the engine is ready, it waits
// briefly for the disk tier, whose blocks save more time than that. Without a
// lease it continues.
func TestTheFirstRequestWaitsForTheTierBelow(t *testing.T) {
	below := kvtest.NewFake()
	o := engine.Options{ModelPath: model(t, tinymodel.Default()), CacheMemory: mebi, ModelDigest: "sha256:aa", Below: func(kv.Origin) kv.Tier { return below }}
	r := engine.Request{Tokens: tokensOf(1, 300, 400), Sampling: draws(1), MaxTokens: 10}
	e := ready(t, o, ref.Options{})
	want := ask(t, e, r)
	stop(e)
	back := below.Leave()
	e = ready(t, engine.WithAttachPatience(o, time.Hour), ref.Options{})
	came := make(chan *engine.Stream, 1)
	go func() {
		s, err := e.Generate(t.Context(), r)
		if err != nil {
			t.Error(err)
		}
		came <- s
	}()
	select {
	case <-came:
		t.Fatal("the request did not wait")
	default:
	}
	back()
	got := collect(t, <-came)
	sameButCached(t, "from the tier below", []answer{got}, []answer{want})
	if got.finished.Usage.Cached != 256 {
		t.Errorf("%d tokens were restored, want 256", got.finished.Usage.Cached)
	}
	stop(e)
	defer below.Leave()()
	e = ready(t, engine.WithAttachPatience(o, time.Millisecond), ref.Options{})
	sameButCached(t, "without the tier below", []answer{ask(t, e, r)}, []answer{want})
}

// TestADamagedBlockBelowIsComputedAgain, and so are the blocks after it.
func TestADamagedBlockBelowIsComputedAgain(t *testing.T) {
	below := kvtest.NewFake()
	o := engine.Options{ModelPath: model(t, tinymodel.Default()), CacheMemory: mebi, ModelDigest: "sha256:aa", Below: func(kv.Origin) kv.Tier { return below }}
	r := engine.Request{Tokens: tokensOf(1, 400, 400), Sampling: draws(1), MaxTokens: 10}
	e := ready(t, o, ref.Options{})
	want := ask(t, e, r)
	stop(e)
	below.Damage(below.Puts()[1])
	got := ask(t, ready(t, o, ref.Options{}), r)
	sameButCached(t, "with a damaged block", []answer{got}, []answer{want})
	if got.finished.Usage.Cached != 128 {
		t.Errorf("%d tokens were restored, want those of the first block", got.finished.Usage.Cached)
	}
}

// TestWhatIsRememberedStaysWithinItsBudget, and what has no room is not saved;
// answers are the same.
func TestWhatIsRememberedStaysWithinItsBudget(t *testing.T) {
	path := model(t, tinymodel.Default())
	rs := conversation(400)
	want := askAll(t, ready(t, engine.Options{ModelPath: path}, ref.Options{}), rs)
	for _, budget := range []int64{1, 40 << 10, 100 << 10, 200 << 10} {
		e := ready(t, engine.Options{ModelPath: path, CacheMemory: budget, Sequences: 2}, ref.Options{})
		for round := range 3 {
			sameButCached(t, fmt.Sprintf("%d bytes, round %d", budget, round), together(t, e, rs), want)
			if p := e.Status().Prefixes; p.Bytes > budget || p.Budget != budget {
				t.Errorf("%+v in %d bytes", p, budget)
			}
		}
	}
}

// TestOtherPromptsHaveOtherAnswers: comparing answers, as the tests above do,
// shows something.
func TestOtherPromptsHaveOtherAnswers(t *testing.T) {
	e := ready(t, engine.Options{CacheMemory: mebi}, ref.Options{})
	p := sample.Neutral()
	p.Temperature, p.Seed = 1.5, 1
	a := ask(t, e, engine.Request{Tokens: tokensOf(1, 300, 400), Sampling: &p, MaxTokens: 30})
	b := ask(t, e, engine.Request{Tokens: slices.Concat(tokensOf(1, 299, 400), []int32{7}), Sampling: &p, MaxTokens: 30})
	if slices.Equal(a.tokens, b.tokens) || strings.TrimSpace(a.text) == "" && len(a.tokens) == 0 {
		t.Error("two prompts have one answer: comparing answers shows nothing")
	}
}

// TestUsageCountsCachedTokensOnce: what its first look found, of which at least
// one token is always left to compute.
func TestUsageCountsCachedTokensOnce(t *testing.T) {
	e := ready(t, engine.Options{CacheMemory: mebi}, ref.Options{})
	for n, cached := range map[int][]int{300: {0, 256, 256}, 256 + 128: {0, 256, 256}, 128: {0, 0, 0}, 129: {0, 128, 128}} {
		r := engine.Request{Tokens: tokensOf(uint64(n), n, 400), Sampling: draws(1), MaxTokens: 3}
		for i, want := range cached {
			a := ask(t, e, r)
			if u := a.finished.Usage; u.Cached != want || u.Prompt != n || u.Generated != 3 {
				t.Errorf("request %d of %d tokens: usage %+v, want %d cached", i, n, u, want)
			}
		}
	}
}

func TestOnlySavedBlocksStayOfARequest(t *testing.T) {
	for name, c := range map[string]struct {
		path   string
		blocks int
	}{"plain": {path: model(t, tinymodel.Default()), blocks: 2}, "hybrid": {path: hybrid(t), blocks: 2 + 3}} { // states of two blocks and of the prompt's end
		for budget, blocks := range map[int64]int{mebi: c.blocks, 1: 0} {
			e := ready(t, engine.Options{ModelPath: c.path, CacheMemory: budget}, ref.Options{})
			for range 2 {
				ask(t, e, engine.Request{Tokens: tokensOf(1, 300, 400), Sampling: draws(1), MaxTokens: 10})
			}
			st := e.Status()
			if n := engine.Counted(e); st.Prefixes.Blocks != blocks || n != 0 || st.Memory.KV != 0 || engine.Kept(e) != 0 {
				t.Errorf("%s in %d bytes: %+v, %d bytes counted on, %d of KV, want %d blocks and nothing else", name, budget, st.Prefixes, n, st.Memory.KV, blocks)
			}
		}
	}
}

// Blocks filled by pipelined steps are saved as they fill, not at the end of
// the answer.
func TestCancelledAnswerLeavesItsBlocks(t *testing.T) {
	e := ready(t, engine.Options{CacheMemory: mebi}, ref.Options{Ahead: true}, paced)
	p := sample.Greedy()
	r := engine.Request{Tokens: tokensOf(1, 100, 400), Sampling: &p, MaxTokens: 400}
	s, err := e.Generate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	tokens := r.Tokens
	for len(tokens) < 200 {
		ev, err := s.Next(t.Context())
		if err != nil || ev.Finished != nil {
			t.Fatalf("the answer ended after %d tokens", len(tokens)-100)
		}
		tokens = append(tokens[:len(tokens):len(tokens)], ev.Tokens...)
	}
	if p := e.Status().Prefixes; p.Saved == 0 {
		t.Error("a block that is full is not saved while its request is decoding")
	}
	s.Cancel()
	collect(t, s)
	if got := ask(t, e, engine.Request{Tokens: tokens, Sampling: &p, MaxTokens: 1}).finished.Usage.Cached; got < 128 {
		t.Errorf("%d of %d tokens were restored", got, len(tokens))
	}
}

// recorder is an arithmetic that notes what it is asked.
type recorder struct {
	mu    sync.Mutex
	asked []footprint.Prefill
	// over: nothing fits; tight: nothing that is restored, once it is admitted.
	over, tight bool
}

func (r *recorder) Peak(p footprint.Prefill) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, p)
	if r.over || r.tight && p.Restored > 0 && p.Chunk == 32 { // the loop's question, not that of admission
		return 1 << 50, nil
	}
	return 1, nil
}

func (r *recorder) Fit(p footprint.Prefill, _, _ int64) (int64, bool) { return p.Chunk, true }

// As cached tokens with KV of their own before admission, as computed ones
// afterwards; if they have no room, the prompt is computed.
func TestRestoredTokensCountAgainstTheLimit(t *testing.T) {
	arithmetic := &recorder{}
	o := engine.WithEstimator(engine.Options{CacheMemory: mebi, LimitBytes: 1 << 40}, arithmetic)
	e := ready(t, o, ref.Options{})
	r := engine.Request{Tokens: tokensOf(1, 300, 400), Sampling: draws(1), MaxTokens: 3}
	want := ask(t, e, r)
	arithmetic.asked = nil
	ask(t, e, r)
	if first := arithmetic.asked[0]; first != (footprint.Prefill{New: 44, Cached: 256, Restored: 256, Chunk: first.Chunk}) {
		t.Errorf("weighed as %+v before it was admitted", first)
	}
	if last := arithmetic.asked[len(arithmetic.asked)-1]; last.New != 44 || last.Cached != 256 || last.Restored != 0 {
		t.Errorf("weighed as %+v when it was computed", last)
	}
	arithmetic.mu.Lock()
	arithmetic.tight = true
	arithmetic.mu.Unlock()
	got := ask(t, e, r)
	sameButCached(t, "without room", []answer{got}, []answer{want})
	if got.finished.Usage.Cached != 0 {
		t.Errorf("%d tokens were restored without room", got.finished.Usage.Cached)
	}
}

// bounded notes what its engine lets it hold.
type bounded struct {
	tensor.Backend
	active atomic.Int64
}

func (b *bounded) SetLimits(active, pooled int64) {
	b.active.Store(active)
	b.Backend.SetLimits(active, pooled)
}

// It is taken from the process's ceiling, and a model that does not fit next to
// it is not loaded.
func TestPrefixCacheBudgetIsReservedApart(t *testing.T) {
	b := &bounded{Backend: ref.New(ref.Options{Threads: 2})}
	path := model(t, tinymodel.Default())
	e := engine.Start(engine.Options{ModelPath: path, Backend: b, LimitBytes: 1 << 30, CacheMemory: 1 << 20})
	if err := e.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := b.active.Load(), int64(1<<30-1<<20)-engine.Overhead(e); got != want {
		t.Errorf("the back end may hold %d bytes, want %d", got, want)
	}
	stop(e)
	e = engine.Start(engine.Options{ModelPath: path, Backend: ref.New(ref.Options{}), LimitBytes: 1 << 30, CacheMemory: 1 << 30})
	if err := e.Wait(); !errors.Is(err, tensor.ErrMemory) {
		t.Errorf("a budget as large as the ceiling: %v", err)
	}
}

func TestRequestThatTakesAllKVLeavesNothing(t *testing.T) {
	const tokens = 256
	e := ready(t, engine.Options{ContextTokens: tokens, CacheTokens: tokens, PrefixCache: true}, ref.Options{})
	if a := ask(t, e, engine.Request{Tokens: tokensOf(1, tokens-6, 400), Sampling: draws(1), MaxTokens: 6}); a.finished.Err != nil {
		t.Fatal(a.finished.Err)
	}
	if p := e.Status().Prefixes; p.Bytes != 0 || p.Budget != 0 {
		t.Errorf("next to a request that took all KV %d bytes were kept under a budget of %d", p.Bytes, p.Budget)
	}
}

// Cached prefixes live in reserved KV that no request holds, and are evicted
// before requests take it.
func TestEveryByteOfKVIsReservedOnce(t *testing.T) {
	const cacheTokens = 1024
	var e atomic.Pointer[engine.Engine]
	var most atomic.Int64
	e.Store(ready(t, engine.Options{Sequences: 3, ContextTokens: 512, CacheTokens: cacheTokens, PrefixCache: true}, ref.Options{}, func(op string) error {
		if now := e.Load(); op == "Embed" && now != nil { // a step begins: what it takes has been given up
			st := now.Status()
			most.Store(max(most.Load(), st.Memory.KV+st.Prefixes.Bytes))
		}
		return nil
	}))
	token := engine.KVTokenBytes(e.Load())
	if p := e.Load().Status().Prefixes; p.Budget != cacheTokens*token {
		t.Errorf("budget %d with nothing running, want the %d tokens that were promised, of %d bytes", p.Budget, cacheTokens, token)
	}
	hit := 0
	for round := range 6 {
		var streams []*engine.Stream
		for i := range 3 {
			tokens := slices.Concat(tokensOf(uint64(i), 150, 400), tokensOf(uint64(10*round+i), 40*i, 400))
			s, err := e.Load().Generate(t.Context(), engine.Request{Tokens: tokens, Sampling: draws(uint64(round)), MaxTokens: 40})
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, s)
		}
		for _, s := range streams {
			a := collect(t, s)
			if a.finished.Err != nil {
				t.Error(a.finished.Err)
			}
			if a.finished.Usage.Cached > 0 {
				hit++
			}
		}
	}
	if most.Load() > cacheTokens*token {
		t.Errorf("requests and what is remembered held %d bytes, %d were promised", most.Load(), cacheTokens*token)
	}
	if hit < 6 || e.Load().Status().Prefixes.Bytes == 0 {
		t.Errorf("%d of 18 requests began with restored tokens: %+v", hit, e.Load().Status().Prefixes)
	}
}
