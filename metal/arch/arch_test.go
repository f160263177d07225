package arch_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/test/race"
)

// network is a tiny model loaded on a back end of its own.
type network struct {
	t     *testing.T
	b     tensor.Backend
	m     arch.Model
	cache tensor.Cache
	vocab int
	// family is what metal/arch calls it, precision what the file asks for.
	family    string
	precision quant.Type
	// adapter of a request; nil means none has one.
	adapter func(tensor.RequestID) *nn.Adapter
}

func write(t *testing.T, c tinymodel.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	var err error
	switch {
	case c.Hybrid.Interval > 0: // which is in folders alone
		path = filepath.Join(t.TempDir(), "tiny")
		err = tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)})
	case c.Family == tinymodel.GPTOSS: // which is too
		err = tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)})
	default:
		err = tinymodel.Write(path, c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func load(t *testing.T, path string, o ref.Options) *network {
	t.Helper()
	o.Poison = true
	return loadOn(t, path, ref.New(o))
}

func loadOn(t *testing.T, path string, b tensor.Backend) *network {
	t.Helper()
	return loadChanged(t, path, b, func(*weights.File) {})
}

// loadChanged loads a model after a change of what its file holds.
func loadChanged(t *testing.T, path string, b tensor.Backend, change func(*weights.File)) *network {
	t.Helper()
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	change(f)
	if err := b.Attach(); err != nil {
		t.Fatal(err)
	}
	n := &network{t: t, b: b, vocab: f.Dim.Vocabulary, family: f.Dim.Architecture, precision: f.Precision()}
	var read atomic.Int64
	if n.m, err = arch.Load(context.Background(), n.b, f, func(b int64) { read.Add(b) }); err != nil {
		t.Fatal(err)
	}
	facts, err := f.Facts()
	if err != nil {
		t.Fatal(err)
	}
	if read.Load() != facts.WeightBytes {
		t.Errorf("progress counted %d bytes, the facts say %d", read.Load(), facts.WeightBytes)
	}
	if n.cache, err = n.b.NewCache(n.m.CacheSpec()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.cache.Release()
		n.m.Release()
		if err := n.b.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// step runs one step and returns the logits of the given rows.
func (n *network) step(tokens []int32, segments []tensor.Segment, rows []int) ([]float32, error) {
	sc := n.b.NewScope(context.Background())
	defer sc.Close()
	out := n.m.Step(n.adapted(sc, segments), n.cache, sc.IDs(tokens), segments, rows)
	if err := sc.Err(); err != nil || rows == nil {
		return nil, err
	}
	values := make([]float32, len(rows)*n.vocab)
	sc.Read(out, values)
	return values, sc.Err()
}

// adapted is the scope of a step whose requests have adapters.
func (n *network) adapted(s tensor.Scope, segments []tensor.Segment) tensor.Scope {
	var of []*nn.Adapter
	for _, g := range segments {
		for range g.Length {
			if n.adapter == nil {
				return s
			}
			of = append(of, n.adapter(g.Request))
		}
	}
	return nn.Adapted(s, of)
}

// all returns the logits at every position of one sequence, computed in chunks.
func (n *network) all(id tensor.RequestID, tokens []int32, chunk int) []float32 {
	n.t.Helper()
	var out []float32
	for at := 0; at < len(tokens); at += chunk {
		piece := tokens[at:min(at+chunk, len(tokens))]
		rows := make([]int, len(piece))
		for i := range rows {
			rows[i] = i
		}
		v, err := n.step(piece, []tensor.Segment{{Request: id, Start: at, Length: len(piece)}}, rows)
		if err != nil {
			n.t.Fatal(err)
		}
		out = append(out, v...)
	}
	n.cache.Drop(id)
	return out
}

func tokens(n, vocab int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((i*131 + i*i*7 + 3) % vocab)
	}
	return out
}

func equalBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: value %d is %v, want exactly %v", what, i, got[i], want[i])
		}
	}
}

func TestLogitsAreTheSameForAnyChunkingAndThreads(t *testing.T) {
	for _, family := range families() {
		t.Run(string(family), func(t *testing.T) {
			c := ofFamily(family)
			c.Context, c.NormSpread = 1024, 0.5
			sameForAnyChunkingAndThreads(t, c)
		})
	}
}

// ofFamily is the smallest model of a family, with what that must have.
func ofFamily(family tinymodel.Family) tinymodel.Config {
	c := tinymodel.Default()
	c.Family = family
	switch family {
	case tinymodel.Qwen3MoE:
		c.Experts = tinymodel.Experts{Count: 8, PerToken: 3, FeedForward: 64}
	case tinymodel.Gemma3:
		c.Layers, c.Window, c.Pattern = 3, 21, 2
	case tinymodel.Qwen3Next:
		c.Experts = tinymodel.Experts{Count: 8, PerToken: 3, FeedForward: 64, Shared: 32}
		c.Hybrid = tinymodel.Hybrid{Interval: 2, KeyHeads: 2, KeySize: 16, ValueHeads: 4, ValueSize: 16, Taps: 4, Rotary: 0.25}
	case tinymodel.Qwen35:
		c.Hybrid = tinymodel.Hybrid{Interval: 2, KeyHeads: 3, KeySize: 8, ValueHeads: 3, ValueSize: 24, Taps: 3, Rotary: 0.5}
	case tinymodel.GPTOSS:
		c.Window, c.Untied, c.FeedForward, c.Experts = 21, true, 64, tinymodel.Experts{Count: 8, PerToken: 3, FeedForward: 64}
		c.Scaling = tinymodel.Scaling{Kind: "yarn", Factor: 32, Original: 128, Fractional: true}
	}
	return c
}

func sameForAnyChunkingAndThreads(t *testing.T, c tinymodel.Config) {
	t.Helper()
	path := write(t, c)
	const length = 262 // crosses a KV block
	ids := tokens(length, c.Vocabulary)
	want := load(t, path, ref.Options{Threads: 1}).all(1, ids, length)
	threads, chunks := []int{1, 2, 5}, []int{1, 100, length}
	if race.Enabled {
		threads, chunks = []int{3}, []int{100}
	}
	for _, threads := range threads {
		n := load(t, path, ref.Options{Threads: threads})
		for _, chunk := range chunks {
			equalBits(t, fmt.Sprintf("%d threads, chunks of %d", threads, chunk), n.all(tensor.RequestID(chunk), ids, chunk), want)
		}
	}
}

func TestARequestGetsTheSameLogitsInCompany(t *testing.T) {
	for _, family := range families() {
		t.Run(string(family), func(t *testing.T) { sameInCompany(t, ofFamily(family)) })
	}
}

func sameInCompany(t *testing.T, c tinymodel.Config) {
	t.Helper()
	n := load(t, write(t, c), ref.Options{Threads: 2})
	ids := tokens(40, c.Vocabulary)
	alone := n.all(1, ids, 5)
	other := tokens(90, c.Vocabulary-1)
	for at := 0; at < len(ids); at += 5 { // 5 rows of ours between 3 and 4 of others
		var step []int32
		step = append(append(append(step, other[at:at+3]...), ids[at:at+5]...), other[at/5*4:at/5*4+4]...)
		segments := []tensor.Segment{
			{Request: 10, Start: at / 5 * 3, Length: 3}, {Request: 11, Start: at, Length: 5}, {Request: 12, Start: at / 5 * 4, Length: 4},
		}
		got, err := n.step(step, segments, []int{3, 4, 5, 6, 7})
		if err != nil {
			t.Fatal(err)
		}
		equalBits(t, fmt.Sprintf("rows from %d", at), got, alone[at*n.vocab:(at+5)*n.vocab])
	}
	for id := range tensor.RequestID(3) {
		n.cache.Drop(10 + id)
	}
}

// TestEveryFailingOperationLeavesNothingBehind fails the n-th operation of a
// step for every n.
func TestEveryFailingOperationLeavesNothingBehind(t *testing.T) {
	for _, family := range []tinymodel.Family{tinymodel.Qwen3, tinymodel.Qwen3Next} {
		t.Run(string(family), func(t *testing.T) { failEverywhere(t, ofFamily(family)) })
	}
}

func failEverywhere(t *testing.T, c tinymodel.Config) {
	t.Helper()
	var fail, seen int
	broken := errors.New("device lost")
	n := loadOn(t, write(t, c), tensortest.Faulty(ref.New(ref.Options{Threads: 2, Poison: true}), func(string) error {
		if seen++; seen == fail {
			return broken
		}
		return nil
	}))
	before := n.b.Memory()
	for fail = 1; ; fail++ {
		seen = 0
		_, err := n.step([]int32{1, 2, 3}, []tensor.Segment{{Request: 1, Length: 3}}, []int{2})
		n.cache.Drop(1)
		after := n.b.Memory()
		if after.Live != before.Live || after.KV != 0 || after.Arrays != before.Arrays {
			t.Fatalf("operation %d failed and left %+v, before it was %+v", fail, after, before)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, broken) {
			t.Fatalf("operation %d: error %v, want the back end's", fail, err)
		}
	}
	if fail < 30 {
		t.Errorf("a step has only %d operations", fail-1)
	}
}

func TestLoadingUnderALimitLeavesNothingBehind(t *testing.T) {
	f, err := weights.Open(write(t, tinymodel.Default()))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := ref.New(ref.Options{})
	b.SetLimits(100_000, 0)
	if _, err := arch.Load(context.Background(), b, f, nil); !errors.Is(err, tensor.ErrMemory) {
		t.Errorf("error %v, want ErrMemory", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b.SetLimits(0, 0)
	if _, err := arch.Load(ctx, b, f, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestPeakOfAStepIsBounded(t *testing.T) {
	c := tinymodel.Default()
	c.Layers = 12
	n := load(t, write(t, c), ref.Options{Threads: 2})
	before := n.b.Memory()
	if _, err := n.step(tokens(64, 500), []tensor.Segment{{Request: 1, Length: 64}}, []int{63}); err != nil {
		t.Fatal(err)
	}
	n.cache.Drop(1)
	// All arrays of one layer at 64 tokens, in classes of powers of two, are
	// under 1 MiB; those of twelve layers are not.
	if pooled := n.b.Memory().Pooled - before.Pooled; pooled > 1<<20 {
		t.Errorf("a step left %d bytes in the pool: layers do not free what they made", pooled)
	}
}

// TestADecoderSavedWithoutItsHeadIsTheSameModel: Qwen3-Embedding comes so.
func TestADecoderSavedWithoutItsHeadIsTheSameModel(t *testing.T) {
	c := tinymodel.Default()
	c.Family = tinymodel.Qwen3
	ids := tokens(20, c.Vocabulary)
	var want []float32
	for _, bare := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "model")
		layout := tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16), ShardBytes: 60_000, Bare: bare}
		if err := tinymodel.WriteFolder(dir, c, layout); err != nil {
			t.Fatal(err)
		}
		got := load(t, dir, ref.Options{}).all(1, ids, len(ids))
		if !bare {
			want = got
			continue
		}
		equalBits(t, "without a head", got, want)
	}
}
