//go:build !race

package footprint

import (
	"errors"
	"math"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
)

// smollm2 are the dimensions of SmolLM2-135M-Instruct in float32 with Q4_1 weights.
var smollm2 = model.Facts{Architecture: "llama", Layers: 30, GrowingLayers: 30, HiddenSize: 576, FeedForwardSize: 1536,
	QueryHeads: 9, KeyValueHeads: 3, HeadSize: 64, VocabularySize: 49152, ContextTokens: 8192, KeyValueElementBytes: 4, WeightBytes: 98_000_000}

// llama8B are an 8B model's at half precision: 32 layers, 8 KV heads of 128.
var llama8B = model.Facts{Architecture: "llama", Layers: 32, GrowingLayers: 32, HiddenSize: 4096, FeedForwardSize: 14336,
	QueryHeads: 32, KeyValueHeads: 8, HeadSize: 128, VocabularySize: 128256, ContextTokens: 131072, KeyValueElementBytes: 2, WeightBytes: 5 * GiB}

func estimated(t *testing.T, f model.Facts, c Context) Terms {
	t.Helper()
	terms, err := Estimate(f, c)
	if err != nil {
		t.Fatal(err)
	}
	return terms
}

// The nearest peer took query heads for KV heads and charged four times as
// much.
func TestEstimateCountsKVHeads(t *testing.T) {
	for _, b := range []string{MLX, MLXCPU} {
		if got := estimated(t, llama8B, Context{Tokens: 131072, Sequences: 1, CacheTokens: 131072, Backend: b}); got.KV != 16*GiB {
			t.Errorf("KV of an 8B model at 128k on %s: %d, want 16 GiB: grouped-query heads count, not query heads", b, got.KV)
		}
	}
	if got := estimated(t, llama8B, Context{Tokens: 131072, Sequences: 1, CacheTokens: 131072, Backend: Ref}); got.KV != 32*GiB {
		t.Errorf("on ref: %d, want 32 GiB: it keeps keys and values in float32", got.KV)
	}
	small := estimated(t, smollm2, Context{Tokens: 2048, Sequences: 4, CacheTokens: 4096, Backend: Ref})
	if small.KV != 4096*30*3*64*4*2 || small.Weights != 98_000_000 {
		t.Errorf("got %+v", small)
	}
}

func TestADraftHeadIsChargedWhereItIsUsed(t *testing.T) {
	plain := llama8B
	plain.Layers, plain.RecurrentLayers, plain.RecurrentStateBytes, plain.RecurrentSize = 64, 32, 100*MiB, 8192
	head := plain
	head.Layers, head.GrowingLayers, head.RecurrentStateBytes = 65, 33, 200*MiB
	head.WeightBytes, head.DraftWeightBytes = 6*GiB, GiB
	c := Context{Tokens: 4096, Sequences: 8, CacheTokens: 8192}
	for _, c.Backend = range Backends() {
		without, with := estimated(t, plain, c), estimated(t, head, c)
		if more := with.Weights - without.Weights; c.Backend != Ref && (more != GiB || with.KV-without.KV < 800*MiB) || c.Backend == Ref && with != without {
			t.Errorf("on %s: %+v, without a head %+v", c.Backend, with, without)
		}
	}
}

// The heap of Go may take the slack, and what is estimated for the process, a queue and images.
func TestTheHeapMayTakeWhatArraysAreNotPromised(t *testing.T) {
	for _, b := range Backends() {
		terms := estimated(t, smollm2, Context{Tokens: 2048, Sequences: 4, CacheTokens: 4096, PrefixCache: GiB, CacheQueue: 64 * MiB, Backend: b})
		terms.Images = 10 * MiB
		limit := EngineLimit(terms.Total())
		if got, want := terms.Heap(limit), limit-terms.Total()+terms.Overhead+terms.CacheQueue+10*MiB; got != want || got < 140*MiB || got > 400*MiB {
			t.Errorf("on %s: %d MiB of %d, want %d", b, got/MiB, limit/MiB, want/MiB)
		}
		if got, want := terms.Heap(1), terms.Overhead+terms.CacheQueue+10*MiB; got != want {
			t.Errorf("on %s: %d under a limit that is too small, want %d", b, got, want)
		}
	}
}

// Every byte of its budget is reserved on every back end; of the other terms
// only the pool grows with it.
func TestPrefixCacheIsATermOfItsOwn(t *testing.T) {
	for _, b := range Backends() {
		c := Context{Tokens: 4096, Sequences: 2, CacheTokens: 8192, Backend: b}
		without := estimated(t, llama8B, c)
		c.PrefixCache = 3 * GiB
		with := estimated(t, llama8B, c)
		if with.PrefixCache != 3*GiB || without.PrefixCache != 0 || with.Total() < without.Total()+3*GiB || with.Pooled < without.Pooled ||
			with.KV != without.KV || with.Weights != without.Weights || with.Transient != without.Transient || with.Overhead != without.Overhead {
			t.Errorf("on %s: %+v, without %+v", b, with, without)
		}
	}
	for _, n := range []int64{-1, math.MaxInt64} {
		if _, err := Estimate(llama8B, Context{Tokens: 4096, Sequences: 2, CacheTokens: 8192, PrefixCache: n}); err == nil {
			t.Errorf("a prefix cache of %d bytes was taken", n)
		}
	}
}

// The tokens of answers are part of cacheTokens, so decoding never exceeds the
// reservation.
func TestDecodeGrowthIsReserved(t *testing.T) {
	c := Context{Tokens: 4096, Sequences: 4, CacheTokens: 16384, Backend: MLX}
	reserved := estimated(t, llama8B, c)
	var grown int64
	for range c.Sequences { // each with a prompt of 1 and an answer up to the context's end
		p, err := PrefillPeak(llama8B, KernelsOf(MLX), Prefill{New: c.Tokens, Chunk: 512})
		if err != nil {
			t.Fatal(err)
		}
		grown += p.KV
	}
	if reserved.KV < grown {
		t.Errorf("%d bytes of KV are reserved, four full contexts take %d", reserved.KV, grown)
	}
}

func TestCacheTokensAreWholeBlocks(t *testing.T) {
	one := estimated(t, smollm2, Context{Tokens: 1, Sequences: 1, CacheTokens: 1, Backend: Ref})
	block := estimated(t, smollm2, Context{Tokens: 1, Sequences: 1, CacheTokens: 256, Backend: Ref})
	if one.KV != block.KV || one.KV != 256*30*3*64*4*2 {
		t.Errorf("one token takes %d, a block %d", one.KV, block.KV)
	}
}

func TestWeightsAreCountedAsTheBackEndStoresThem(t *testing.T) {
	f := smollm2
	f.WideWeightBytes = 118_000_000
	c := Context{Tokens: 256, Sequences: 1, CacheTokens: 256}
	for b, want := range map[string]int64{Ref: 98_000_000, MLX: 118_000_000, MLXCPU: 118_000_000, "": 118_000_000} {
		c.Backend = b
		if got := estimated(t, f, c); got.Weights != want {
			t.Errorf("on %q weights take %d, want %d", b, got.Weights, want)
		}
	}
}

// A reservation is made before a Mac is chosen: it must suffice on each one.
func TestWithoutABackEndTheLargestCounts(t *testing.T) {
	for _, f := range []model.Facts{smollm2, llama8B, hybrid} {
		c := Context{Tokens: 2048, Sequences: 4, CacheTokens: 8192}
		largest := estimated(t, f, c).Total()
		reached := false
		for _, b := range Backends() {
			c.Backend = b
			n := estimated(t, f, c).Total()
			reached = reached || n == largest
			if n > largest {
				t.Errorf("%s on %s takes %d, more than the largest of all: %d", f.Architecture, b, n, largest)
			}
		}
		if !reached {
			t.Errorf("%s: no back end takes %d", f.Architecture, largest)
		}
	}
	if _, err := Estimate(smollm2, Context{Tokens: 1, Sequences: 1, CacheTokens: 1, Backend: "abacus"}); err == nil || !strings.Contains(err.Error(), "abacus") {
		t.Errorf("an unknown back end: %v", err)
	}
}

// The pool is bounded by the limit that follows from the estimate.
func TestPoolFitsTheResultingLimit(t *testing.T) {
	for base := int64(1); base < 1<<50; base = base*5/3 + 1 {
		p := pooled(base)
		need := PooledLimit(EngineLimit(base + p))
		if p < need || p > need+need/100+64 {
			t.Errorf("with %d bytes %d are pooled, the limit that follows lets %d", base, p, need)
		}
	}
	small := estimated(t, smollm2, Context{Tokens: 1, Sequences: 1, CacheTokens: 1, Backend: Ref})
	if small.Pooled > small.Transient {
		t.Errorf("%d bytes are pooled of arrays of %d", small.Pooled, small.Transient)
	}
}

// Adapters are held with the weights, and their products with those of a step.
func TestAdaptersAreCharged(t *testing.T) {
	for _, name := range Backends() {
		c := Context{Tokens: 2000, Sequences: 2, CacheTokens: 4000, Backend: name}
		with := c
		with.Adapters = 5_000_000
		a, b := estimated(t, smollm2, c), estimated(t, smollm2, with)
		if b.Weights-a.Weights != with.Adapters || b.Transient < a.Transient {
			t.Errorf("on %s adapters of %d bytes are charged %d, and a step %d bytes more", name, with.Adapters, b.Weights-a.Weights, b.Transient-a.Transient)
		}
		p, k := Prefill{New: 500}, KernelsOf(name)
		before, err := PrefillPeak(smollm2, k, p)
		if err != nil {
			t.Fatal(err)
		}
		k.Adapted = true
		after, err := PrefillPeak(smollm2, k, p)
		if least := 500 * 2 * smollm2.FeedForwardSize * 2; err != nil || after.Activations-before.Activations < least {
			t.Errorf("on %s the products of adapters are charged %d bytes, want at least %d (%v)", name, after.Activations-before.Activations, least, err)
		}
	}
}

// With MLX a step that computes a prompt holds the states of the other sequences a
// second time, and those of four layers a third time.
func TestStatesOfSequencesThatDecodeAreChargedTwice(t *testing.T) {
	f, c := hybrid, Context{Tokens: 256, Sequences: 4, CacheTokens: 1024}
	want := map[string]int64{Ref: 0, MLX: 3*30*MiB + 64*MiB, MLXCPU: 3*30*MiB + 3*4*MiB}
	for _, b := range table() {
		f.RecurrentStateBytes = 30 * MiB
		got := b.step(f, c).bytes
		f.RecurrentStateBytes = 0
		if got -= b.step(f, c).bytes; got != want[b.name] {
			t.Errorf("on %s a step is charged %d bytes of states, want %d", b.name, got, want[b.name])
		}
	}
}

// Loading a vocabulary takes more than a small model with a short context, and
// precedes weights and context.
func TestLoadingTheVocabularyIsCharged(t *testing.T) {
	small, one := smollm2, Context{Tokens: 1, Sequences: 1, CacheTokens: 1}
	small.WeightBytes = 2_000_000
	for _, b := range table() {
		one.Backend = b.name
		least := b.process + small.VocabularySize*(tokenBytes+loadingBytes) + headingTokens*headingBytes
		if got := estimated(t, small, one).Total(); got < least {
			t.Errorf("on %s a context of one token takes %d, reading the vocabulary alone %d", b.name, got, least)
		}
		whole := estimated(t, smollm2, one)
		if want := max(b.step(smollm2, one).bytes, b.kernels.growth(smollm2, whole.KV, 1)); whole.Transient != want {
			t.Errorf("on %s a short context with weights is charged %d, a step takes %d", b.name, whole.Transient, want)
		}
	}
}

func TestUnknownDimensionsAreRefused(t *testing.T) {
	c := Context{Tokens: 16, Sequences: 1, CacheTokens: 16}
	for name, change := range map[string]func(*model.Facts){
		"unknown KV heads":       func(f *model.Facts) { f.KeyValueHeads = 0 },
		"no layer grows":         func(f *model.Facts) { f.GrowingLayers = 0 },
		"an absurd head size":    func(f *model.Facts) { f.HeadSize = 1 << 60 },
		"an absurd vocabulary":   func(f *model.Facts) { f.VocabularySize = 1 << 60 },
		"absurd weights":         func(f *model.Facts) { f.WeightBytes = math.MaxInt64 },
		"an absurd feed-forward": func(f *model.Facts) { f.FeedForwardSize = math.MaxInt64 / 2 },
		"negative wide weights":  func(f *model.Facts) { f.WideWeightBytes = -1 },
	} {
		f := smollm2
		change(&f)
		if _, err := Estimate(f, c); !errors.Is(err, model.ErrIncomplete) {
			t.Errorf("%s: %v, want ErrIncomplete", name, err)
		}
	}
}

func TestEstimateRefusesImpossibleContexts(t *testing.T) {
	for name, c := range map[string]Context{
		"no tokens":                   {Sequences: 1, CacheTokens: 1},
		"no sequences":                {Tokens: 1, CacheTokens: 1},
		"adapters of negative size":   {Tokens: 100, Sequences: 1, CacheTokens: 100, Adapters: -1},
		"fewer cache tokens than one": {Tokens: 100, Sequences: 1, CacheTokens: 99},
		"more sequences than can be":  {Tokens: 100, Sequences: 1<<20 + 1, CacheTokens: 100},
		"more tokens than can be":     {Tokens: 100, Sequences: 1, CacheTokens: 1<<40 + 1},
	} {
		if _, err := Estimate(smollm2, c); err == nil || !strings.Contains(err.Error(), "unsupported context") && c.Adapters >= 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEstimateNeverDecreases(t *testing.T) {
	r := seeded(t)
	for range 20_000 {
		f := anyFacts(r)
		c := Context{Tokens: 1 + r.Int64N(100_000), Sequences: 1 + r.Int64N(64), Backend: append(Backends(), "")[r.IntN(len(Backends())+1)]}
		c.CacheTokens = c.Tokens + r.Int64N(500_000)
		base := estimated(t, f, c).Total()
		by := 1 + r.Int64N(10_000)
		wider := f
		wider.WeightBytes += by
		adapted := c
		adapted.Adapters += by
		for name, more := range map[string]struct {
			f model.Facts
			c Context
		}{
			"tokens":       {f: f, c: Context{Tokens: c.Tokens + by, Sequences: c.Sequences, CacheTokens: c.CacheTokens + by, Backend: c.Backend}},
			"sequences":    {f: f, c: Context{Tokens: c.Tokens, Sequences: c.Sequences + by, CacheTokens: c.CacheTokens, Backend: c.Backend}},
			"cache tokens": {f: f, c: Context{Tokens: c.Tokens, Sequences: c.Sequences, CacheTokens: c.CacheTokens + by, Backend: c.Backend}},
			"weights":      {f: wider, c: c},
			"adapters":     {f: f, c: adapted},
		} {
			if got := estimated(t, more.f, more.c).Total(); got < base {
				t.Fatalf("%d more %s: %d after %d\n%+v\n%+v", by, name, got, base, f, c)
			}
		}
	}
}

func TestEngineLimitLeavesSlack(t *testing.T) {
	for reserved, want := range map[int64]int64{0: 64 * MiB, GiB: GiB + 64*MiB, 20 * GiB: 21 * GiB} {
		if got := EngineLimit(reserved); got != want {
			t.Errorf("limit of %d: %d, want %d", reserved, got, want)
		}
	}
}

func TestCeilingPolicies(t *testing.T) {
	for name, tc := range map[string]struct {
		host Host
		want Limits
	}{
		"a small Mac leaves 4 GiB":                          {host: Host{Total: 16 * GiB}, want: Limits{Ceiling: 12 * GiB, Term: Static, Capacity: 12 * GiB * 900 / 1000}},
		"balanced leaves 6 GiB":                             {host: Host{Total: 64 * GiB}, want: Limits{Ceiling: 58 * GiB, Term: Static, Capacity: 58 * GiB * 900 / 1000}},
		"the Metal cap binds":                               {host: Host{Total: 64 * GiB, MetalCap: 48 * GiB}, want: Limits{Ceiling: 48 * GiB, Term: MetalCap, Capacity: 48 * GiB * 900 / 1000}},
		"the administrator's number binds":                  {host: Host{Total: 48 * GiB, MetalCap: 44 * GiB, Explicit: 40 * GiB}, want: Limits{Ceiling: 40 * GiB, Term: Explicit, Capacity: 36 * GiB}},
		"the administrator's number never loosens":          {host: Host{Total: 48 * GiB, MetalCap: 36 * GiB, Explicit: 100 * GiB}, want: Limits{Ceiling: 36 * GiB, Term: MetalCap, Capacity: 36 * GiB * 900 / 1000}},
		"a 512 GiB Mac is not denied a model of 420 GiB":    {host: Host{Total: 512 * GiB, MetalCap: 464 * GiB, Policy: Safe}, want: Limits{Ceiling: 464 * GiB, Term: MetalCap, Capacity: 440 * GiB}},
		"a Mac smaller than what it must leave has no room": {host: Host{Total: 3 * GiB}, want: Limits{Ceiling: 0, Term: Static, Capacity: 0}},
		"custom ignores the rule for small machines":        {host: Host{Total: 8 * GiB, Policy: Custom}, want: Limits{Ceiling: 6 * GiB, Term: Static, Capacity: 6 * GiB * 850 / 1000}},
	} {
		if got := LimitsOf(tc.host); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}
