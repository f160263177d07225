//go:build !race

package footprint

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
)

// hybrid is the model of the golden vector: 40 layers, of which 10 have a cache
// that grows and 30 a state; 16 query heads and 2 KV heads of 256.
var hybrid = model.Facts{Architecture: "hybrid", Layers: 40, GrowingLayers: 10, RecurrentLayers: 30, RecurrentStateBytes: 1, RecurrentSize: 1,
	HiddenSize: 2048, FeedForwardSize: 1, QueryHeads: 16, KeyValueHeads: 2, HeadSize: 256, VocabularySize: 1, ContextTokens: 262144,
	KeyValueElementBytes: 2, WeightBytes: 20 * GiB}

// plainKernels write scores out in 4 bytes and keep whole tokens.
var plainKernels = Kernels{ScoreBytes: 4}

func inGiB(n int64) string { return fmt.Sprintf("%.3f", float64(n)/float64(GiB)) }

func TestPrefillPeakOfARecordedModel(t *testing.T) {
	got, err := PrefillPeak(hybrid, plainKernels, Prefill{New: 110_000, Chunk: 2048})
	if err != nil {
		t.Fatal(err)
	}
	const output = 16 * 2048 * 256 * 4
	if s := inGiB(got.Attention - output); s != "13.428" {
		t.Errorf("scores are %s GiB, want 13.428", s)
	}
	if s := inGiB(output); s != "0.031" {
		t.Errorf("output is %s GiB, want 0.031", s)
	}
	if s := inGiB(got.KV - hybrid.RecurrentStateBytes); s != "2.098" {
		t.Errorf("KV is %s GiB, want 2.098", s)
	}
	if s := inGiB(got.KV + got.Attention); s != "15.557" {
		t.Errorf("attention and KV are %s GiB, want 15.557", s)
	}
	used := float64(27.91) * float64(GiB)
	if int64(used)+got.Total() <= 40*GiB {
		t.Errorf("%s GiB with 27.91 in use pass a limit of 40", inGiB(got.Total()))
	}
	half := plainKernels
	half.ScoreBytes = 2
	if got, _ = PrefillPeak(hybrid, half, Prefill{New: 110_000, Chunk: 2048}); inGiB(got.KV+got.Attention) != "8.843" {
		t.Errorf("with scores of 2 bytes %s GiB, want 8.843", inGiB(got.KV+got.Attention))
	}
}

func TestPrefillRefusesUnknownDimensions(t *testing.T) {
	for name, change := range map[string]func(*model.Facts){
		"query heads":                func(f *model.Facts) { f.QueryHeads = 0 },
		"head size":                  func(f *model.Facts) { f.HeadSize = 0 },
		"KV heads":                   func(f *model.Facts) { f.KeyValueHeads = 0 },
		"element width":              func(f *model.Facts) { f.KeyValueElementBytes = 0 },
		"a state of unknown size":    func(f *model.Facts) { f.RecurrentStateBytes = 0 },
		"a layer of unknown width":   func(f *model.Facts) { f.RecurrentSize = 0 },
		"layers of no kind":          func(f *model.Facts) { f.RecurrentLayers = 29 },
		"more layers than there are": func(f *model.Facts) { f.GrowingLayers = 11 },
		"a window of unknown length": func(f *model.Facts) { f.RecurrentLayers, f.WindowLayers = 29, 1 },
		"a number that wraps":        func(f *model.Facts) { f.HeadSize = math.MaxInt64 / 3 },
		"a number that wraps twice":  func(f *model.Facts) { f.QueryHeads, f.HeadSize = 1<<40, 1<<40 },
	} {
		f := hybrid
		change(&f)
		for _, new := range []int64{1, 1000, math.MaxInt64} {
			if p, err := PrefillPeak(f, plainKernels, Prefill{New: new}); !errors.Is(err, model.ErrIncomplete) {
				t.Errorf("%s, %d tokens: %+v, %v; want ErrIncomplete", name, new, p, err)
			}
		}
		if chunk, ok := FitChunk(f, plainKernels, Prefill{New: 100, Chunk: 10}, math.MaxInt64, 1); ok {
			t.Errorf("%s: a chunk of %d fits", name, chunk)
		}
	}
}

func TestFusedKernelsCostTheirOutputOnly(t *testing.T) {
	mlx := KernelsOf(MLX)
	type at struct{ queries, group int64 }
	few, manyFew, wide, many := at{queries: 1, group: 8}, at{queries: 8, group: 4}, at{queries: 8, group: 8}, at{queries: 512, group: 8}
	for size, want := range map[int64]map[at]bool{
		64:  {few: true, manyFew: true, wide: false, many: true},
		80:  {few: false, manyFew: false, wide: false, many: true},
		96:  {few: true, manyFew: true, wide: false, many: false},
		128: {few: true, manyFew: true, wide: false, many: true},
		256: {few: true, manyFew: true, wide: false, many: false},
	} {
		for c, fused := range want {
			if got := mlx.Fused(size, c.queries, c.group); got != fused {
				t.Errorf("head size %d, %d queries, %d heads each: fused %v, want %v", size, c.queries, c.group, got, fused)
			}
			if KernelsOf(MLXCPU).Fused(size, c.queries, c.group) || KernelsOf("").Fused(size, c.queries, c.group) {
				t.Errorf("head size %d is fused where no GPU is known", size)
			}
			f := hybrid
			f.HeadSize, f.QueryHeads, f.KeyValueHeads = size, 2*c.group, 2
			output := f.QueryHeads * c.queries * size * 4
			scores := f.QueryHeads * c.queries * 5000 * 4
			if a := mlx.attend(f, c.queries, 5000); fused && a.bytes != output || !fused && a.bytes != output+scores {
				t.Errorf("head size %d, %d queries: %d bytes, output is %d and scores are %d", size, c.queries, a.bytes, output, scores)
			}
		}
	}
}

func TestScoresIncludeCachedTokens(t *testing.T) {
	without, _ := PrefillPeak(hybrid, plainKernels, Prefill{New: 1000, Chunk: 100})
	with, _ := PrefillPeak(hybrid, plainKernels, Prefill{New: 1000, Cached: 50_000, Chunk: 100})
	if more := with.Attention - without.Attention; more != 16*100*50_000*4 {
		t.Errorf("50,000 cached tokens add %d bytes of scores", more)
	}
}

// The last chunk of a prompt may be too short for the kernels that take long
// ones.
func TestShortLastChunkIsCharged(t *testing.T) {
	f := hybrid
	f.HeadSize = 80
	got, err := PrefillPeak(f, KernelsOf(MLX), Prefill{New: 100_000, Chunk: 512})
	if want := int64(16*8*80*4 + 16*8*100_000*4); err != nil || got.Attention != want {
		t.Errorf("attention is %d (%v), want that of 8 queries with scores: %d", got.Attention, err, want)
	}
}

func TestRefHasOneRowOfScoresPerThread(t *testing.T) {
	got, err := PrefillPeak(hybrid, KernelsOf(Ref), Prefill{New: 10_000, Chunk: 128})
	if want := int64(16*128*256*4 + 32*10_000*4); err != nil || got.Attention != want {
		t.Errorf("attention is %d (%v), want %d", got.Attention, err, want)
	}
}

func TestOnlyGrowingLayersAreCharged(t *testing.T) {
	all := hybrid
	all.GrowingLayers, all.RecurrentLayers, all.RecurrentStateBytes = 40, 0, 0
	p := Prefill{New: 10_000, Cached: 1000, Chunk: 512}
	ten, err1 := PrefillPeak(hybrid, plainKernels, p)
	forty, err2 := PrefillPeak(all, plainKernels, p)
	if err1 != nil || err2 != nil || forty.KV != 4*ten.KV || ten.KV != 10_000*10*2*256*2*2 {
		t.Errorf("10 of 40 layers take %d, all 40 take %d (%v, %v)", ten.KV, forty.KV, err1, err2)
	}
}

// A cache that allocates for the whole prompt at its start holds that from then
// on; one whose windows rotate allocates as they grow.
func TestAllocatedKVIsNotChargedAgain(t *testing.T) {
	kv := func(k Kernels, f model.Facts, p Prefill) int64 {
		t.Helper()
		got, err := PrefillPeak(f, k, p)
		if err != nil {
			t.Fatal(err)
		}
		return got.KV
	}
	p := Prefill{New: 3000, Cached: 1000, Chunk: 512}
	rest := kv(plainKernels, hybrid, p)
	for room, want := range map[int64]int64{0: rest, 500: rest, 1000: rest, 2500: rest / 2, 4000: 0, 9000: 0} {
		p.Room = room
		if got := kv(plainKernels, hybrid, p); got != want {
			t.Errorf("with room for %d tokens the rest takes %d, want %d", room, got, want)
		}
	}
	windows := hybrid
	windows.GrowingLayers, windows.WindowLayers, windows.WindowTokens, windows.RecurrentLayers, windows.RecurrentStateBytes = 8, 32, 1024, 0, 0
	rotating := Kernels{ScoreBytes: 4, Rotates: true}
	p.Room = 0
	want := kv(rotating, windows, p)
	p.Room = 4000
	if got := kv(rotating, windows, p); got != want {
		t.Errorf("next to windows the rest takes %d, want %d", got, want)
	}
}

func TestRecurrentStateIsChargedOnce(t *testing.T) {
	f := hybrid
	f.RecurrentStateBytes = 7 * MiB
	first, _ := PrefillPeak(f, plainKernels, Prefill{New: 10})
	more, _ := PrefillPeak(f, plainKernels, Prefill{New: 10, Cached: 10})
	if first.KV-more.KV != 7*MiB {
		t.Errorf("the first tokens take %d, the next %d", first.KV, more.KV)
	}
}

// The largest of attention, recurrence and feed-forward, and more where a back
// end writes more.
func TestRecurrentLayerIsChargedItsActivations(t *testing.T) {
	f := hybrid
	f.RecurrentSize = 100_000
	k := plainKernels
	few, err1 := PrefillPeak(f, k, Prefill{New: 10})
	k.RecurrentCopies = 6
	many, err2 := PrefillPeak(f, k, Prefill{New: 10})
	if err1 != nil || err2 != nil || few.Activations != 10*(2*2048*2+2*100_000*4) || many.Activations-few.Activations != 10*4*100_000*4 {
		t.Errorf("activations are %d, and %d where six copies are written (%v, %v)", few.Activations, many.Activations, err1, err2)
	}
	f.RecurrentSize, f.FeedForwardSize = 1, 100_000
	if p, err := PrefillPeak(f, k, Prefill{New: 10}); err != nil || p.Activations != 10*(3*2048*2+5*100_000*2) {
		t.Errorf("activations are %d (%v), want those of the feed-forward", p.Activations, err)
	}
	f.FeedForwardSize = 1
	if p, err := PrefillPeak(f, k, Prefill{New: 10}); err != nil || p.Activations != 10*2*(7*2048+3*4096+4*512) {
		t.Errorf("activations are %d (%v), want those of attention", p.Activations, err)
	}
}

// Only layers that grow exist twice while they are copied.
func TestRecurrentStatesDoNotGrow(t *testing.T) {
	k := Kernels{GrowLayers: 4, BlockTokens: 256}
	all := hybrid
	all.GrowingLayers, all.RecurrentLayers, all.RecurrentStateBytes, all.RecurrentSize = 40, 0, 0, 0
	ten, err1 := PrefillPeak(hybrid, k, Prefill{New: 1024})
	forty, err2 := PrefillPeak(all, k, Prefill{New: 1024})
	if err1 != nil || err2 != nil || ten.Growth != forty.Growth || ten.Growth != 768*4*2*2*256*2 {
		t.Errorf("four of ten growing layers exist twice in %d bytes, four of forty in %d (%v, %v)", ten.Growth, forty.Growth, err1, err2)
	}
}

func TestSlidingWindowIsBounded(t *testing.T) {
	f := hybrid
	f.GrowingLayers, f.WindowLayers, f.WindowTokens, f.RecurrentLayers, f.RecurrentStateBytes = 8, 32, 1024, 0, 0
	perToken := int64(2 * 2 * 256 * 2)
	rotating := Kernels{ScoreBytes: 4, Rotates: true}
	for name, c := range map[string]struct {
		k    Kernels
		p    Prefill
		want int64
	}{
		"within the window":      {k: rotating, p: Prefill{New: 500}, want: 500 * 40 * perToken},
		"past the window":        {k: rotating, p: Prefill{New: 5000}, want: (5000*8 + 1024*32) * perToken},
		"the window is full":     {k: rotating, p: Prefill{New: 500, Cached: 1024}, want: 500 * 8 * perToken},
		"a cache that keeps all": {k: plainKernels, p: Prefill{New: 5000}, want: 5000 * 40 * perToken},
		"our back ends rotate":   {k: KernelsOf(Ref), p: Prefill{New: 5120}, want: (5120*8 + 1280*32) * 2 * perToken},
	} {
		if got, err := PrefillPeak(f, c.k, c.p); err != nil || got.KV != c.want {
			t.Errorf("%s: %d (%v), want %d", name, got.KV, err, c.want)
		}
	}
	f.GrowingLayers, f.WindowLayers = 0, 40
	got, err := PrefillPeak(f, Kernels{ScoreBytes: 4, MaskBytes: 6}, Prefill{New: 100_000, Chunk: 100})
	if want := int64(16*100*256*4 + 16*100*1124*4 + 100*1124*6); err != nil || got.Attention != want {
		t.Errorf("attention under a window is %d (%v), want %d: it sees the window and the chunk", got.Attention, err, want)
	}
}

func TestCachedAndNewTokensAtTheLimit(t *testing.T) {
	whole, _ := PrefillPeak(hybrid, plainKernels, Prefill{New: 1000, Chunk: 64})
	for name, c := range map[string]struct {
		p    Prefill
		want Peak
	}{
		"negative restored ones as well":   {p: Prefill{New: 1000, Restored: -5, Chunk: 64}, want: whole},
		"no more are restored than cached": {p: Prefill{New: 1000, Restored: 5000, Chunk: 64}, want: whole},
		"negative cached tokens are none":  {p: Prefill{New: 1000, Cached: -5, Chunk: 64}, want: whole},
		"no new tokens":                    {p: Prefill{New: 0, Cached: 1000, Chunk: 64}, want: Peak{}},
		"fewer than none":                  {p: Prefill{New: -3, Cached: -3, Chunk: -3}, want: Peak{}},
	} {
		if got, err := PrefillPeak(hybrid, plainKernels, c.p); err != nil || got != c.want {
			t.Errorf("%s: %+v (%v), want %+v", name, got, err, c.want)
		}
	}
	cached, _ := PrefillPeak(hybrid, plainKernels, Prefill{New: 1000, Cached: 5000, Chunk: 64})
	restored, _ := PrefillPeak(hybrid, plainKernels, Prefill{New: 1000, Cached: 5000, Restored: 5000, Chunk: 64})
	all, _ := PrefillPeak(hybrid, plainKernels, Prefill{New: 6000, Chunk: 64})
	if restored.KV != all.KV || restored.Attention != cached.Attention || cached.KV >= restored.KV {
		t.Errorf("what is restored takes %+v; in place it takes %+v, computed %+v", restored, cached, all)
	}
	once, _ := PrefillPeak(hybrid, plainKernels, Prefill{New: 1000})
	if same, _ := PrefillPeak(hybrid, plainKernels, Prefill{New: 1000, Chunk: 1000}); once != same {
		t.Errorf("without a chunk %+v, want all at once: %+v", once, same)
	}
	if same, _ := PrefillPeak(hybrid, plainKernels, Prefill{New: 1000, Chunk: 5000}); once != same {
		t.Errorf("a chunk longer than the prompt %+v, want %+v", same, once)
	}
}

// anyFacts is a random model that could be.
func anyFacts(r *rand.Rand) model.Facts {
	f := model.Facts{
		Architecture: "any", GrowingLayers: r.Int64N(40), WindowLayers: r.Int64N(40), RecurrentLayers: r.Int64N(40) + 1,
		WindowTokens: 1 + r.Int64N(4096), RecurrentStateBytes: 1 + r.Int64N(1<<20), RecurrentSize: 1 + r.Int64N(20000), HiddenSize: 1 + r.Int64N(8192), FeedForwardSize: 1 + r.Int64N(30000),
		KeyValueHeads: 1 + r.Int64N(16), HeadSize: []int64{64, 80, 96, 128, 256, 2 + 2*r.Int64N(200)}[r.IntN(6)],
		VocabularySize: 1 + r.Int64N(200_000), ContextTokens: 1 << 20, KeyValueElementBytes: 2 + 2*r.Int64N(2), WeightBytes: 1 + r.Int64N(1<<40),
	}
	f.QueryHeads = f.KeyValueHeads * (1 + r.Int64N(16))
	f.Layers = f.GrowingLayers + f.WindowLayers + f.RecurrentLayers
	f.WideWeightBytes = r.Int64N(2) * (f.WeightBytes + r.Int64N(1<<30))
	return f
}

func anyKernels(r *rand.Rand) Kernels {
	k := []Kernels{KernelsOf(Ref), KernelsOf(MLX), KernelsOf(MLXCPU), KernelsOf(""), plainKernels}[r.IntN(5)]
	k.Rotates = r.IntN(2) == 0
	return k
}

func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

func TestPeakIsMonotoneInEveryArgument(t *testing.T) {
	r := seeded(t)
	for range 20_000 {
		f, k := anyFacts(r), anyKernels(r)
		p := Prefill{New: 1 + r.Int64N(200_000), Cached: r.Int64N(200_000), Chunk: 1 + r.Int64N(4096)}
		base, err := PrefillPeak(f, k, p)
		if err != nil {
			t.Fatalf("%+v: %v", f, err)
		}
		by := 1 + r.Int64N(1000)
		for name, more := range map[string]struct {
			f model.Facts
			p Prefill
		}{
			"new":            {f: f, p: Prefill{New: p.New + by, Cached: p.Cached, Chunk: p.Chunk}},
			"chunk":          {f: f, p: Prefill{New: p.New, Cached: p.Cached, Chunk: p.Chunk + by}},
			"growing layers": {f: func() model.Facts { g := f; g.GrowingLayers += by; g.Layers += by; return g }(), p: p},
			"feed-forward":   {f: func() model.Facts { g := f; g.FeedForwardSize += by; return g }(), p: p},
			"hidden":         {f: func() model.Facts { g := f; g.HiddenSize += by; return g }(), p: p},
			"vocabulary":     {f: func() model.Facts { g := f; g.VocabularySize += by; return g }(), p: p},
		} {
			got, err := PrefillPeak(more.f, k, more.p)
			ok := got.KV >= base.KV && got.Attention >= base.Attention && got.Activations >= base.Activations && got.Logits >= base.Logits
			if err != nil || !ok {
				t.Fatalf("%d more of %s: %+v after %+v (%v)\n%+v\n%+v\n%+v", by, name, got, base, err, f, k, p)
			}
		}
		// What is cached already is not charged again, but is attended to.
		got, err := PrefillPeak(f, k, Prefill{New: p.New, Cached: p.Cached + by, Chunk: p.Chunk})
		if err != nil || got.Attention < base.Attention {
			t.Fatalf("%d more cached tokens: attention %d after %d (%v)", by, got.Attention, base.Attention, err)
		}
	}
}

func TestLargestFittingChunkIsExact(t *testing.T) {
	r := seeded(t)
	shrunk := 0
	for range 20_000 {
		f, k := anyFacts(r), anyKernels(r)
		p := Prefill{New: 1 + r.Int64N(100_000), Cached: r.Int64N(100_000), Chunk: 1 + r.Int64N(4096)}
		full, err := PrefillPeak(f, k, p)
		if err != nil {
			t.Fatal(err)
		}
		floor := 1 + r.Int64N(64)
		room := full.KV + int64(float64(full.Total()-full.KV)*1.2*r.Float64())
		peak := func(chunk int64) int64 {
			got, err := PrefillPeak(f, k, Prefill{New: p.New, Cached: p.Cached, Chunk: chunk})
			if err != nil {
				t.Fatal(err)
			}
			return got.Total()
		}
		chunk, ok := FitChunk(f, k, p, room, floor)
		least := min(floor, p.Chunk, p.New)
		switch {
		case !ok && peak(least) <= room:
			t.Fatalf("no chunk, but %d fit: %+v, floor %d", least, p, floor)
		case !ok:
			continue
		case chunk < least || chunk > p.Chunk:
			t.Fatalf("chunk %d of %d, floor %d", chunk, p.Chunk, floor)
		case peak(chunk) > room:
			t.Fatalf("chunk %d takes %d, there is room for %d", chunk, peak(chunk), room)
		case chunk < p.Chunk && peak(chunk+1) <= room:
			t.Fatalf("chunk %d, but one more fits too", chunk)
		case chunk < p.Chunk:
			shrunk++
		}
	}
	if shrunk < 1000 {
		t.Errorf("only %d of 20,000 chunks were made smaller: the test looks at little", shrunk)
	}
}

func TestChunkHasFullSizeIfItFits(t *testing.T) {
	for name, p := range map[string]Prefill{
		"a long prompt":              {New: 10_000, Chunk: 512},
		"one shorter than the chunk": {New: 7, Chunk: 512},
		"nothing to compute":         {New: 0, Chunk: 512},
	} {
		if chunk, ok := FitChunk(hybrid, plainKernels, p, math.MaxInt64, 32); !ok || chunk != 512 {
			t.Errorf("%s: chunk %d, %v", name, chunk, ok)
		}
	}
	if chunk, ok := FitChunk(hybrid, plainKernels, Prefill{New: 300}, math.MaxInt64, 32); !ok || chunk != 300 {
		t.Errorf("without a bound of chunks: %d, %v", chunk, ok)
	}
}

func TestWhatGrowsByCopyingExistsTwiceForAWhile(t *testing.T) {
	f := llama8B
	k := KernelsOf(MLX)
	for name, c := range map[string]struct{ held, want int64 }{
		"the first block copies nothing":         {held: 32 * MiB, want: 0},
		"the second copies the first":            {held: 64 * MiB, want: 32 * MiB},
		"a larger one up to what is small":       {held: 128 * MiB, want: 64 * MiB},
		"a large one four layers at a time":      {held: 1 * GiB, want: 124 * MiB},
		"a very large one two slabs at the most": {held: 16 * GiB, want: 512 * MiB},
	} {
		if got := k.growth(f, c.held, 1); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if got := KernelsOf(Ref).growth(f, GiB, 1); got != 0 {
		t.Errorf("ref adds blocks and copies nothing, but %d", got)
	}
	p, err := PrefillPeak(f, k, Prefill{New: 1, Cached: 8191, Chunk: 512})
	if err != nil || p.Growth != 124*MiB || p.Total() != p.KV+p.Growth {
		t.Errorf("a block more: %+v (%v)", p, err)
	}
}

// Of latent vectors of 576 numbers a processor makes a copy for each of 20 heads, in two
// layers at once; of keys and values that lie apart it makes none.
func TestLatentVectorsAreCopiedOnAProcessor(t *testing.T) {
	apart := llama8B
	apart.QueryHeads, apart.KeyValueHeads, apart.HeadSize = 20, 1, 576
	latent := apart
	latent.GrowingElements = 576
	for name, want := range map[string]int64{Ref: 0, MLX: 0, MLXCPU: 20 * 4096 * 576 * 4 * 2} {
		k := KernelsOf(name)
		if got := k.attend(latent, 32, 4096).bytes - k.attend(apart, 32, 4096).bytes; got != want {
			t.Errorf("on %s latent vectors are charged %d bytes more than others, want %d", name, got, want)
		}
	}
}

// On a processor small caches are copied layer by layer, and those of several
// sequences are states and keys apart.
func TestWhatExistsTwiceOnAProcessor(t *testing.T) {
	k := KernelsOf(MLXCPU)
	quarter := llama8B // one layer in four keeps keys: a block of 256 tokens is 8 MiB in all
	quarter.GrowingLayers, quarter.RecurrentLayers, quarter.RecurrentSize, quarter.RecurrentStateBytes = 8, 24, 1, 24*MiB
	for name, c := range map[string]struct {
		f                     model.Facts
		held, sequences, want int64
	}{
		"a small one, four layers":                 {f: llama8B, held: 64 * MiB, sequences: 1, want: 32 * MiB / 32 * 4},
		"a small one, one of four layers":          {f: quarter, held: 24*MiB + 40*MiB, sequences: 1, want: 32 * MiB / 8},
		"a large one, four layers of those it has": {f: quarter, held: 24*MiB + 88*MiB, sequences: 1, want: 80 * MiB / 8 * 4},
		"the states of three sequences":            {f: quarter, held: 4*24*MiB + 8*MiB, sequences: 4, want: 3 * 24 * MiB / 24 * 4},
		"a few states":                             {f: quarter, held: 3*24*MiB + 8*MiB, sequences: 3, want: 2 * 24 * MiB / 24 * 3},
	} {
		if got := k.growth(c.f, c.held, c.sequences); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestActivationsOfQueuedLayersAreCharged(t *testing.T) {
	p := Prefill{New: 64, Chunk: 64}
	one, err := PrefillPeak(llama8B, Kernels{}, p)
	// 7 x 4096 residual, 3 x 4096 queries, 4 x 1024 keys and values, 3 x 14336 and 2 x 14336 of the feed-forward.
	if want := int64(64 * (7*4096 + 3*4096 + 4*1024 + 5*14336) * 2); err != nil || one.Activations != want {
		t.Errorf("one layer takes %d (%v), want %d", one.Activations, err, want)
	}
	for layers, times := range map[int64]int64{1: 1, 4: 4, 100: 32} {
		if got, err := PrefillPeak(llama8B, Kernels{LayersAhead: layers}, p); err != nil || got.Activations != times*one.Activations {
			t.Errorf("%d layers ahead of 32 take %d (%v), one takes %d", layers, got.Activations, err, one.Activations)
		}
	}
}

// qwen3MoE are the dimensions of Qwen3-30B-A3B in 4 bits.
var qwen3MoE = model.Facts{Architecture: "qwen3_moe", Layers: 48, GrowingLayers: 48, HiddenSize: 2048, FeedForwardSize: 768,
	Experts: 128, ExpertsPerToken: 8, ExpertFeedForwardSize: 768,
	QueryHeads: 32, KeyValueHeads: 4, HeadSize: 128, VocabularySize: 151936, ContextTokens: 40960, KeyValueElementBytes: 2, WeightBytes: 17_200_000_000}

func TestMixtureOfExpertsCountsAllWeightsAndActiveActivations(t *testing.T) {
	p, err := PrefillPeak(qwen3MoE, Kernels{}, Prefill{New: 64})
	// 7 x 2048 residual, 3 x 4096 queries, 4 x 512 keys and values; 2 x 128 scores,
	// and for each of 8 experts a share and an id, 5 x 768 and 2 x 2048.
	if want := int64(64 * 2 * (7*2048 + 3*4096 + 4*512 + 2*128 + 8*(2+5*768+2*2048))); err != nil || p.Activations != want {
		t.Errorf("activations are %d (%v), want %d", p.Activations, err, want)
	}
	dense := qwen3MoE
	dense.FeedForwardSize = 16384 // of layers that have no experts
	if q, err := PrefillPeak(dense, Kernels{}, Prefill{New: 64}); err != nil || q.Activations != 64*2*(7*2048+3*4096+4*512+5*16384) {
		t.Errorf("next to a wide dense layer activations are %d (%v)", q.Activations, err)
	}
	for _, backend := range Backends() {
		got := estimated(t, qwen3MoE, Context{Tokens: 8192, Sequences: 4, CacheTokens: 8192, Backend: backend})
		if got.Weights != qwen3MoE.WeightBytes {
			t.Errorf("%s: %d bytes of weights, want those of all experts, %d", backend, got.Weights, qwen3MoE.WeightBytes)
		}
	}
	for name, f := range map[string]func(*model.Facts){
		"how many see a token":      func(f *model.Facts) { f.ExpertsPerToken = 0 },
		"more than there are":       func(f *model.Facts) { f.ExpertsPerToken = 129 },
		"how wide an expert is":     func(f *model.Facts) { f.ExpertFeedForwardSize = 0 },
		"experts beyond 63 bits":    func(f *model.Facts) { f.Experts = math.MaxInt64 / 2 },
		"an expert beyond 63 bits":  func(f *model.Facts) { f.ExpertFeedForwardSize = math.MaxInt64 / 2 },
		"seen experts that are all": func(f *model.Facts) { f.Experts, f.ExpertsPerToken = math.MaxInt64/128, math.MaxInt64/128 },
	} {
		facts := qwen3MoE
		f(&facts)
		if _, err := PrefillPeak(facts, Kernels{}, Prefill{New: 64}); !errors.Is(err, model.ErrIncomplete) {
			t.Errorf("%s: error %v, want ErrIncomplete", name, err)
		}
	}
}

// Back ends release what is before the window, so Gemma pays for all tokens in
// one layer of six.
func TestSlidingWindowIncludesTheCurrentStep(t *testing.T) {
	gemma := model.Facts{Architecture: "gemma3_text", Layers: 26, GrowingLayers: 4, WindowLayers: 22, WindowTokens: 512, HiddenSize: 1152, FeedForwardSize: 6912,
		QueryHeads: 4, KeyValueHeads: 1, HeadSize: 256, VocabularySize: 262144, ContextTokens: 32768, KeyValueElementBytes: 2, WeightBytes: GiB}
	for backend, c := range map[string]struct{ width, kept int64 }{Ref: {width: 4, kept: 768}, MLX: {width: 2, kept: 1024}, MLXCPU: {width: 2, kept: 768}} {
		for _, sequences := range []int64{1, 3} {
			got := estimated(t, gemma, Context{Tokens: 32768, Sequences: sequences, CacheTokens: 32768, Backend: backend})
			if want := (32768*4 + sequences*c.kept*22) * 2 * 256 * c.width; got.KV != want {
				t.Errorf("%s: %d bytes of keys and values of %d sequences, want %d", backend, got.KV, sequences, want)
			}
		}
	}
	// Layers that grow lie by themselves: four of them exist twice, which are all.
	long := Prefill{New: 1 << 20}
	p, err := PrefillPeak(gemma, KernelsOf(MLX), long)
	if grown := long.New * 4 * 2 * 256 * 2; err != nil || p.Growth < grown/100*99 {
		t.Errorf("%d bytes exist twice while %d grow (%v)", p.Growth, grown, err)
	}
}

// Without fused kernels, 16-bit activations of norms and attention exist next
// to their widened copies; those of the feed-forward are not widened.
func TestWidenedActivationsExistTwice(t *testing.T) {
	activations := func(backend string, width int64) int64 {
		f := smollm2
		f.KeyValueElementBytes = width
		p, err := PrefillPeak(f, KernelsOf(backend), Prefill{New: 32})
		if err != nil {
			t.Fatal(err)
		}
		return p.Activations
	}
	// SmolLM2: 7 x 576 residual, 3 x 576 queries, 4 x 192 keys and values; 3 x 1536 and 2 x 1536 of the feed-forward.
	const around, feedForward, elements = 7*576 + 3*576 + 4*192, 5 * 1536, 32 * 4
	for backend, width := range map[string]int64{MLX: 2, MLXCPU: 2 + 4} {
		if half, want := activations(backend, 2), elements*(around*width+feedForward*2); half != want {
			t.Errorf("%s: %d bytes of activations in 2 bytes, want %d", backend, half, want)
		}
		if whole, want := activations(backend, 4), int64(elements*(around+feedForward)*4); whole != want {
			t.Errorf("%s: %d bytes of activations in 4 bytes, want %d", backend, whole, want)
		}
	}
}
