package embed_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// pooled is a pooling in plain words and float64.
func pooled(p embed.Pooling, rows [][]float32, mask []float32) []float64 {
	out := make([]float64, len(rows[0]))
	var counted []int
	for i := range rows {
		if mask == nil || mask[i] != 0 {
			counted = append(counted, i)
		}
	}
	for j := range out {
		switch p.Mode {
		case embed.First:
			out[j] = float64(rows[counted[0]][j])
		case embed.Last:
			out[j] = float64(rows[counted[len(counted)-1]][j])
		case embed.Mean:
			for _, i := range counted {
				out[j] += float64(rows[i][j]) / float64(len(counted))
			}
		}
	}
	if p.Normalize {
		var squares float64
		for _, v := range out {
			squares += v * v
		}
		for j := range out {
			out[j] /= math.Sqrt(squares)
		}
	}
	return out
}

func near(t *testing.T, what string, got []float32, want []float64) {
	t.Helper()
	const tolerance = 2e-6 // of the largest
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	top := 0.0
	for _, v := range want {
		top = max(top, math.Abs(v))
	}
	for i, v := range want {
		if !(math.Abs(float64(got[i])-v) <= tolerance*top) {
			t.Fatalf("%s: number %d is %v, want %v", what, i, got[i], v)
		}
	}
}

func poolings() []embed.Pooling {
	var out []embed.Pooling
	for _, m := range []embed.Mode{embed.Last, embed.Mean, embed.First} {
		out = append(out, embed.Pooling{Mode: m}, embed.Pooling{Mode: m, Normalize: true})
	}
	return out
}

func TestPoolingsOfSeveralTextsInOneStep(t *testing.T) {
	b := ref.New(ref.Options{Poison: true})
	s := b.NewScope(context.Background())
	segments := []tensor.Segment{{Request: 1, Length: 3}, {Request: 2, Length: 1}, {Request: 3, Length: 4}}
	var rows [][]float32
	var flat []float32
	for i := range 8 {
		row := []float32{float32(i*i) - 3, 0.25 * float32(i), -2, float32(7 - i)}
		rows, flat = append(rows, row), append(flat, row...)
	}
	states := s.From(flat, 8, 4)
	for name, mask := range map[string][]float32{
		"all rows": nil, "first rows of each masked": {0, 1, 1, 1, 0, 0, 1, 1}, "last rows masked": {1, 1, 0, 1, 1, 0, 0, 0}, "rows inside masked": {1, 0, 1, 1, 1, 0, 0, 1},
	} {
		for _, p := range poolings() {
			got := make([]float32, 3*4)
			s.Read(p.Pool(s, states, segments, mask), got)
			if err := s.Err(); err != nil {
				t.Fatal(err)
			}
			at := 0
			for i, g := range segments {
				var part []float32
				if mask != nil {
					part = mask[at : at+g.Length]
				}
				near(t, fmt.Sprintf("%s, %v, text %d", name, p, i), got[4*i:4*i+4], pooled(p, rows[at:at+g.Length], part))
				at += g.Length
			}
		}
	}
	none := make([]float32, 4)
	s.Read(embed.Pooling{Mode: embed.Mean, Normalize: true}.Pool(s, states, []tensor.Segment{{Length: 8}}, make([]float32, 8)), none)
	if err := s.Err(); err != nil || slices.ContainsFunc(none, func(v float32) bool { return v != 0 }) {
		t.Errorf("a mean of no rows is %v (%v), want zeros", none, err)
	}
	s.Close()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// short is a back end whose steps are short.
type short struct {
	tensor.Backend
	chunk int
}

func (s short) Chunk() int { return s.chunk }

type network struct {
	b     tensor.Backend
	m     arch.Model
	cache tensor.Cache
}

func open(t *testing.T, family tinymodel.Family, o ref.Options, faults ...func(op string) error) *network {
	t.Helper()
	c := tinymodel.Default()
	c.Family, c.NormSpread = family, 0.5
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if p, err := embed.Of(f); err != nil || p != embed.Default() {
		t.Errorf("pooling %v (%v), want that of a decoder", p, err)
	}
	o.Poison = true
	n := &network{b: ref.New(o)}
	for _, fault := range faults {
		n.b = tensortest.Faulty(n.b, fault)
	}
	if n.m, err = arch.Load(context.Background(), n.b, f, nil); err != nil {
		t.Fatal(err)
	}
	if n.cache, err = n.b.NewCache(n.m.CacheSpec()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if held := n.b.Memory(); held.KV != 0 {
			t.Errorf("the cache holds %d bytes", held.KV)
		}
		n.cache.Release()
		n.m.Release()
		if err := n.b.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// states computes all states of a text at once.
func (n *network) states(t *testing.T, tokens []int32) [][]float32 {
	t.Helper()
	s := n.b.NewScope(context.Background())
	defer s.Close()
	defer n.cache.Drop(99)
	out := n.m.Hidden(s, n.cache, s.IDs(tokens), []tensor.Segment{{Request: 99, Length: len(tokens)}})
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	width := out.Shape()[1]
	flat := make([]float32, len(tokens)*width)
	s.Read(out, flat)
	var rows [][]float32
	for i := range tokens {
		rows = append(rows, flat[i*width:(i+1)*width])
	}
	return rows
}

func TestATextHasOneVectorWhateverTheChunks(t *testing.T) {
	n := open(t, tinymodel.Qwen3, ref.Options{Threads: 2})
	tokens := make([]int32, 50)
	for i := range tokens {
		tokens[i] = int32((i*37 + 5) % 500)
	}
	rows := n.states(t, tokens)
	id := tensor.RequestID(0)
	for _, chunk := range []int{7, 25, 50, 512} {
		for _, p := range poolings() {
			id++
			got, err := embed.Run(context.Background(), short{Backend: n.b, chunk: chunk}, n.m, n.cache, id, tokens, p)
			if err != nil {
				t.Fatal(err)
			}
			near(t, fmt.Sprintf("chunks of %d, %v", chunk, p), got, pooled(p, rows, nil))
			if n.cache.Length(id) != 0 {
				t.Errorf("chunks of %d, %v: the text is still in the cache", chunk, p)
			}
		}
	}
}

func TestNothingIsEmbeddedWithoutTokens(t *testing.T) {
	n := open(t, tinymodel.Llama, ref.Options{})
	if _, err := embed.Run(context.Background(), n.b, n.m, n.cache, 1, nil, embed.Default()); !errors.Is(err, embed.ErrEmpty) {
		t.Errorf("error %v, want ErrEmpty", err)
	}
}

// TestEveryFailingOperationOfAnEmbeddingLeavesNothingBehind fails the n-th
// operation for every n.
func TestEveryFailingOperationOfAnEmbeddingLeavesNothingBehind(t *testing.T) {
	var fail, seen int
	broken := errors.New("device lost")
	n := open(t, tinymodel.Llama, ref.Options{}, func(string) error {
		if seen++; seen == fail {
			return broken
		}
		return nil
	})
	before := n.b.Memory()
	for _, p := range []embed.Pooling{embed.Default(), {Mode: embed.Mean, Normalize: true}} {
		for fail = 1; ; fail++ {
			seen = 0
			_, err := embed.Run(context.Background(), short{Backend: n.b, chunk: 3}, n.m, n.cache, tensor.RequestID(fail), []int32{1, 2, 3, 4, 5}, p)
			if after := n.b.Memory(); after.Live != before.Live || after.KV != 0 || after.Arrays != before.Arrays {
				t.Fatalf("%v: operation %d failed and left %+v, before it was %+v", p, fail, after, before)
			}
			if err == nil {
				break
			}
			if !errors.Is(err, broken) {
				t.Fatalf("%v: operation %d: error %v, want the back end's", p, fail, err)
			}
		}
		if fail < 40 {
			t.Errorf("%v: only %d operations", p, fail-1)
		}
	}
}
