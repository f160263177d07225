package ref_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/test/race"
)

// everyFormat lists all quantised formats.
func everyFormat() (all []quant.Format) {
	for _, kind := range []quant.Type{quant.Float32, quant.Float16, quant.BFloat16} {
		for _, bits := range quant.Bits() {
			for _, group := range quant.Groups() {
				all = append(all, quant.AffineOf(bits, group, kind))
			}
		}
		all = append(all, quant.SymmetricOf(4, 32, kind), quant.SymmetricOf(8, 32, kind))
	}
	return all
}

// wild are rows with outliers and groups of nothing, and in the last of
// several numbers that are none.
func wild(rng *rand.Rand, tokens, in int) []float32 {
	x := make([]float32, tokens*in)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * math.Exp(2*rng.NormFloat64()))
	}
	clear(x[:32])
	x[40] = 1e-35
	x[100] = 3e38
	if tokens > 1 {
		x[len(x)-in+64] = float32(math.Inf(-1))
		x[len(x)-1] = float32(math.NaN())
	}
	return x
}

// bitsOf reads an array; all that is not a number is the same.
func bitsOf(s tensor.Scope, out tensor.Array, n int) []uint32 {
	values, bits := make([]float32, n), make([]uint32, n)
	s.Read(out, values)
	for i, v := range values {
		if bits[i] = math.Float32bits(v); v != v {
			bits[i] = math.Float32bits(float32(math.NaN()))
		}
	}
	return bits
}

// both are back ends that compute without vectors and with them, where this
// program and this processor have any.
func both(t *testing.T, opts ref.Options) (portable, vectors *ref.Backend) {
	t.Helper()
	if !ref.HasVectors() {
		t.Log("no vectors here: the portable kernels are compared with themselves")
	}
	vectors = ref.New(opts)
	opts.Vectors, opts.Threads = ref.NoVectors, 1
	portable = ref.New(opts)
	t.Cleanup(func() {
		if err := errors.Join(portable.Close(), vectors.Close()); err != nil {
			t.Error(err)
		}
	})
	return portable, vectors
}

// same runs one computation on both and compares what comes out.
func same(t *testing.T, portable, vectors *ref.Backend, what string, n int, compute func(be *ref.Backend, s tensor.Scope) tensor.Array) {
	t.Helper()
	var bits [2][]uint32
	for i, be := range []*ref.Backend{portable, vectors} {
		s := be.NewScope(context.Background())
		bits[i] = bitsOf(s, compute(be, s), n)
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	numbers := 0
	for i, want := range bits[0] {
		if v := math.Float32frombits(want); v == v && v != 0 {
			numbers++
		}
		if got := bits[1][i]; got != want {
			t.Fatalf("%s: output %d is %v with vectors, %v without", what, i, math.Float32frombits(got), math.Float32frombits(want))
		}
	}
	if numbers == 0 {
		t.Fatalf("%s: nothing is a number", what)
	}
}

func TestVectorsGiveTheBitsOfTheTables(t *testing.T) {
	const out, in = 269, 384 // a whole tile and 13 rows
	rng := rand.New(rand.NewPCG(11, 12))
	for _, o := range []ref.Options{{Threads: 1}, {Threads: 5}, {Threads: 2, Vectors: ref.ShortVectors}, {Threads: 2, EightBitActivations: true}} {
		portable, vectors := both(t, o)
		for _, f := range append(everyFormat(), quant.DenseOf(quant.BFloat16), quant.DenseOf(quant.Float32)) {
			for _, tokens := range []int{1, 2, 8, 11} {
				if race.Enabled && tokens != 2 {
					continue
				}
				x := wild(rng, tokens, in)
				same(t, portable, vectors, fmt.Sprintf("%v, %d tokens, %+v", f, tokens, o), tokens*out, func(be *ref.Backend, s tensor.Scope) tensor.Array {
					m := randomMatrix(t, be, f, out, in)
					defer m.Release()
					return s.Linear(s.From(x, tokens, in), m)[0]
				})
			}
		}
	}
}

func TestVectorsAttendToTheSameBits(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	portable, vectors := both(t, ref.Options{Threads: 3})
	random := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64() * 6)
		}
		return x
	}
	for _, size := range []int{8, 24, 64, 12} { // the last is not whole lanes
		const tokens, heads, kvHeads = 75, 4, 2
		q, k, v, sinks := random(tokens*heads*size), random(tokens*kvHeads*size), random(tokens*kvHeads*size), random(heads)
		k[30*kvHeads*size] = 300 // the softmax of the others is zero
		k[60*kvHeads*size] = float32(math.NaN())
		for _, window := range []int{0, 7} {
			same(t, portable, vectors, fmt.Sprintf("heads of %d, window %d", size, window), tokens*heads*size, func(be *ref.Backend, s tensor.Scope) tensor.Array {
				cache, err := be.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: kvHeads, HeadSize: size, BlockTokens: 16})
				if err != nil {
					t.Fatal(err)
				}
				defer cache.Release()
				return s.AppendAttend(tensor.AttendSpec{
					Cache: cache, Segments: []tensor.Segment{{Request: 1, Length: tokens}}, Scale: 0.2, Window: window, Sinks: sinks,
					Q: s.From(q, tokens, heads*size), K: s.From(k, tokens, kvHeads*size), V: s.From(v, tokens, kvHeads*size),
				})
			})
		}
	}
}

func TestVectorsAttendToWholeSegmentsToTheSameBits(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 16))
	portable, vectors := both(t, ref.Options{Threads: 3})
	for _, size := range []int{8, 24, 64, 12} { // the last is not whole lanes
		const tokens, heads = 75, 3
		var x [3][]float32
		for i := range x {
			for range tokens * heads * size {
				x[i] = append(x[i], float32(rng.NormFloat64()*6))
			}
		}
		x[1][30*heads*size] = 300                      // the softmax of the others is zero
		x[1][60*heads*size+size] = float32(math.NaN()) // in the second head
		same(t, portable, vectors, fmt.Sprintf("heads of %d", size), tokens*heads*size, func(_ *ref.Backend, s tensor.Scope) tensor.Array {
			return s.AttendAll(tensor.AttendAllSpec{
				Segments: []tensor.Segment{{Length: 1}, {Length: 0}, {Length: 66}, {Length: 8}}, Heads: heads, Scale: 0.2,
				Q: s.From(x[0], tokens, heads*size), K: s.From(x[1], tokens, heads*size), V: s.From(x[2], tokens, heads*size),
			})
		})
	}
}

func TestVectorsRaiseEToTheSameBits(t *testing.T) {
	portable, vectors := both(t, ref.Options{Threads: 1})
	gate := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 0, float32(math.Copysign(0, -1)), 87.33, 87.34, -87, -88.7, -88.8, 1e-40}
	for v := float32(-95); v < 95; v += 0.0137 {
		gate = append(gate, v)
	}
	up := slices.Repeat([]float32{3, -0.7, 1e-3}, len(gate))[:len(gate)]
	same(t, portable, vectors, "SwiGLU", len(gate), func(_ *ref.Backend, s tensor.Scope) tensor.Array {
		return s.GLU(s.From(gate, len(gate)), s.From(up, len(gate)), tensor.SwiGLU{})
	})
}

// TestEightBitActivationsAreAsFarAsTheyMayBe holds the option against float32
// activations: each activation is off by at most half a step, of which the
// largest of its group has 127, and in the root mean square outputs are off by
// no more than 0.8 %, seen: 0.54 %.
func TestEightBitActivationsAreAsFarAsTheyMayBe(t *testing.T) {
	const out, in, tokens, most = 96, 384, 9, 0.008
	rng := rand.New(rand.NewPCG(15, 16))
	x := make([]float32, tokens*in)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	exact, coarse := ref.New(ref.Options{Threads: 2}), ref.New(ref.Options{Threads: 2, EightBitActivations: true})
	defer exact.Close()
	defer coarse.Close()
	for _, f := range everyFormat() {
		products := func(be *ref.Backend) []float32 {
			m := randomMatrix(t, be, f, out, in)
			defer m.Release()
			s := be.NewScope(context.Background())
			defer s.Close()
			y := make([]float32, tokens*out)
			s.Read(s.Linear(s.From(x, tokens, in), m)[0], y)
			if err := s.Err(); err != nil {
				t.Fatal(err)
			}
			return y
		}
		want, got := products(exact), products(coarse)
		var off, all float64
		for i, w := range want {
			off += math.Pow(float64(got[i]-w), 2)
			all += math.Pow(float64(w), 2)
		}
		if share := math.Sqrt(off / all); share > most || share < most/100 {
			t.Errorf("%v: outputs are off by %.3g of their size, want at most %v, and something", f, share, most)
		}
	}
}

// TestTheLargestDigitsDoNotOverflow multiplies the largest elements by
// activations all of whose digits are as large as they come.
func TestTheLargestDigitsDoNotOverflow(t *testing.T) {
	const out, in = 33, 64
	digits := float32(-128-128<<8-63<<16) / (1 << 22)
	x := slices.Repeat([]float32{digits}, in)
	x[0], x[in/2] = 1, 1 // the largest of each group has the largest number
	for _, vectors := range []ref.Vectors{ref.LongestVectors, ref.ShortVectors} {
		portable, fast := both(t, ref.Options{Threads: 1, Vectors: vectors})
		for _, bits := range quant.Bits() {
			f := quant.AffineOf(bits, 32, quant.Float32)
			same(t, portable, fast, f.String(), out, func(be *ref.Backend, s tensor.Scope) tensor.Array {
				row, err := f.NewRow(in)
				if err != nil {
					t.Fatal(err)
				}
				for i := range row.Raw {
					row.Raw[i] = 0xff
				}
				for g := range in / 32 {
					f.Type.Put(row.Scales, g, 1)
				}
				m, err := be.LoadMatrix(f, out, in, func(put func(int, quant.Row) error) error {
					for i := range out {
						if err := put(i, row); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				defer m.Release()
				return s.Linear(s.From(x, 1, in), m)[0]
			})
		}
	}
}
