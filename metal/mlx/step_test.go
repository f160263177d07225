//go:build mlx

package mlx

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// stepHeads are the shapes of a layer's attention for which a GPU takes one kernel for a
// step (attend_step.h).
type stepHeads struct {
	heads int
	cache tensor.CacheSpec
	rope  tensor.RopeSpec
	// shared values are the keys before norm and rotation.
	shared bool
}

// A GPU takes one kernel for the norms and rotations of a step, for what it writes into
// the cache and for attention. The results are those of the operations one by one, and so
// is what later steps read: the other cache is given computed operands, and a sink that
// weighs nothing, for which there is no kernel.
func TestAStepByOneKernelEqualsItsOperations(t *testing.T) {
	periods := make([]float32, 256)
	for i := range periods {
		periods[i] = 1
		if i >= 64 {
			periods[i] = 1e20
		}
	}
	for name, c := range map[string]stepHeads{
		"heads":         {heads: 4, cache: tensor.CacheSpec{KVHeads: 2, HeadSize: 256}, rope: tensor.RopeSpec{Theta: 10000, Size: 256}},
		"shared values": {heads: 2, cache: tensor.CacheSpec{KVHeads: 1, HeadSize: 512}, rope: tensor.RopeSpec{Theta: 1e6, Size: 512, Factors: periods}, shared: true},
		"window":        {heads: 4, cache: tensor.CacheSpec{KVHeads: 2, HeadSize: 256, Windows: []int{5}}, rope: tensor.RopeSpec{Theta: 10000, Size: 64}},
		"latent":        {heads: 4, cache: tensor.CacheSpec{KVHeads: 1, HeadSize: 576, ValueSize: 512, Within: true}, rope: tensor.RopeSpec{Theta: 10000, Size: 64, Interleaved: true}},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t, Options{})
			b.SetPrecision(quant.BFloat16)
			c.cache.Layers, c.cache.BlockTokens = 1, 8
			l := newStepLayer(t, b, c)
			fused, apart := newCache(t, b, c.cache), newCache(t, b, c.cache)
			lengths := []int{7, 1, 12}
			for step := range 6 {
				var segments []tensor.Segment
				for r := range lengths {
					if step == 0 {
						segments = append(segments, tensor.Segment{Request: tensor.RequestID(r), Length: lengths[r]})
						continue
					}
					segments = append(segments, tensor.Segment{Request: tensor.RequestID(r), Start: lengths[r], Length: 1})
					lengths[r]++
				}
				got, want := l.attend(t, fused, segments, step, false), l.attend(t, apart, segments, step, true)
				largest := 0.0
				for _, w := range want {
					largest = max(largest, math.Abs(float64(w)))
				}
				for i, w := range want {
					if d := math.Abs(float64(got[i] - w)); !(d <= 0.02*largest) {
						t.Fatalf("step %d: value %d is %v, want %v by operations one by one (the largest is %v)", step, i, got[i], w, largest)
					}
				}
			}
		})
	}
}

// stepLayer has rows of numbers that operands of attention are cut from.
type stepLayer struct {
	stepHeads
	b          *Backend
	rows       tensor.Matrix
	widths     []int
	q, k, v    tensor.Array // weights of norms
	vocabulary int
}

func newStepLayer(t *testing.T, b *Backend, c stepHeads) *stepLayer {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(c.heads), 11))
	raw := func(n int) []byte {
		var out []byte
		for _, v := range normal(rng, n) {
			out = binary.LittleEndian.AppendUint16(out, uint16(math.Float32bits(v)>>16))
		}
		return out
	}
	l := &stepLayer{stepHeads: c, b: b, vocabulary: 32}
	size, kv := c.cache.HeadSize, c.cache.KVHeads
	norms := []int{size, size, size}
	switch {
	case c.cache.Within: // the vector of queries, what is turned of them next to what is not, and a key
		rank := c.cache.ValueSize
		l.widths, norms[1] = []int{c.heads * rank, c.heads * (32 + size - rank), rank, size - rank}, rank
	case c.shared:
		l.widths = []int{c.heads * size, kv * size}
	default:
		l.widths = []int{c.heads * size, kv * size, kv * size}
	}
	width := 0
	for _, w := range l.widths {
		width += w
	}
	var err error
	l.rows, err = b.LoadMatrix(quant.DenseOf(quant.BFloat16), l.vocabulary, width, func(put func(int, quant.Row) error) error {
		return put(0, quant.Row{Raw: raw(l.vocabulary * width)})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.rows.Release)
	s := b.NewScope(t.Context())
	t.Cleanup(s.Close)
	for i, to := range []*tensor.Array{&l.q, &l.k, &l.v} {
		if *to, err = b.LoadVector(quant.BFloat16, raw(norms[i])); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Release(*to) })
	}
	return l
}

// attend appends a step and returns what it attends to; apart, by operations one by one.
func (l *stepLayer) attend(t *testing.T, c tensor.Cache, segments []tensor.Segment, step int, apart bool) []float32 {
	t.Helper()
	s := l.b.NewScope(t.Context())
	defer s.Close()
	n := tensor.Tokens(segments)
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((7*step + 5*i) % l.vocabulary)
	}
	spec := l.operands(s, s.Split(s.Embed(l.rows, s.IDs(ids)), l.widths...), segments)
	spec.Cache, spec.Segments, spec.Scale = c, segments, 1/float32(math.Sqrt(float64(l.cache.HeadSize)))
	if len(l.cache.Windows) > 0 {
		spec.Window = l.cache.Windows[0]
	}
	if apart {
		for _, a := range []tensor.Array{spec.Q, spec.K, spec.V} {
			if a != nil {
				s.Read(a, make([]float32, n*a.Shape()[1]))
			}
		}
		spec.Sinks = slices.Repeat([]float32{-1e9}, l.heads)
	}
	out := s.AppendAttend(spec)
	got := make([]float32, n*out.Shape()[1])
	s.Read(out, got)
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return got
}

// operands of attention of parts of rows.
func (l *stepLayer) operands(s tensor.Scope, parts []tensor.Array, segments []tensor.Segment) tensor.AttendSpec {
	size := l.cache.HeadSize
	if !l.cache.Within {
		values := parts[len(parts)-1]
		return tensor.AttendSpec{
			Q: s.Rope(s.RMSNorm(parts[0], l.q, 1e-6), segments, size, l.rope), K: s.Rope(s.RMSNorm(parts[1], l.k, 1e-6), segments, size, l.rope), V: s.RMSNorm(values, l.v, 1e-6),
		}
	}
	rank := l.cache.ValueSize
	turned := s.Rope(s.Split(parts[1], 32, size-rank)[1], segments, size-rank, l.rope)
	return tensor.AttendSpec{
		Q: s.Join([]tensor.Array{parts[0], turned}, rank, size-rank),
		K: s.Join([]tensor.Array{s.RMSNorm(parts[2], l.k, 1e-6), s.Rope(parts[3], segments, size-rank, l.rope)}, rank, size-rank),
	}
}
