//go:build mlx

package mlx

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// TestRequestsInCompanyAttendAsAlone: a request gets the same results alone and
// in a slab with others, in any order and at any lengths; and attention of a
// prefill chunk by products equals that of the framework's kernel.
func TestRequestsInCompanyAttendAsAlone(t *testing.T) {
	for _, c := range []struct {
		window   int
		products int64
		sinks    []float32
		ragged   int
	}{{0, 0, nil, 0}, {5, 0, []float32{0.5, -1, 2, 0}, 0}, {0, 1 << 20, nil, 0}, {5, 1 << 20, []float32{0.5, -1, 2, 0}, 0}, {0, 100, []float32{0.5, -1, 2, 0}, 0}, {0, 0, nil, 1}, {5, 0, []float32{0.5, -1, 2, 0}, 1}} {
		t.Run(fmt.Sprintf("window %d, products %d, sinks %v, ragged %d", c.window, c.products, c.sinks, c.ragged), func(t *testing.T) {
			window := c.window
			rng := rand.New(rand.NewPCG(uint64(window), 9))
			b := open(t, Options{Ragged: c.ragged})
			const heads, kvHeads, size, layers, requests = 4, 2, 8, 3, 5
			shape := tensor.CacheSpec{Layers: layers, KVHeads: kvHeads, HeadSize: size, BlockTokens: 8}
			shared, alone := newCache(t, b, shape), newCache(t, b, shape)
			lengths := make([]int, requests)
			attend := func(in tensor.Cache, layer int, segments []tensor.Segment, q, k, v []float32) []float32 {
				if b.products = 0; in == shared {
					b.products = c.products
				}
				sc := b.NewScope(t.Context())
				defer sc.Close()
				n := tensor.Tokens(segments)
				out := sc.AppendAttend(tensor.AttendSpec{Cache: in, Layer: layer, Segments: segments, Window: window, Scale: 0.4, Sinks: c.sinks,
					Q: sc.From(q, n, heads*size), K: sc.From(k, n, kvHeads*size), V: sc.From(v, n, kvHeads*size)})
				got := make([]float32, n*heads*size)
				sc.Read(out, got)
				if err := sc.Err(); err != nil {
					t.Fatal(err)
				}
				return got
			}
			for step := range 60 {
				var segments []tensor.Segment
				for _, r := range rng.Perm(requests) {
					n := 1
					switch {
					case lengths[r] == 0 || rng.IntN(20) == 0:
						n = 1 + rng.IntN(9)
					case rng.IntN(6) == 0:
						n = 0
					}
					if n > 0 {
						segments = append(segments, tensor.Segment{Request: tensor.RequestID(r), Start: lengths[r], Length: n})
						lengths[r] += n
					}
				}
				n := tensor.Tokens(segments)
				for layer := range layers {
					q, k, v := normal(rng, n*heads*size), normal(rng, n*kvHeads*size), normal(rng, n*kvHeads*size)
					got := attend(shared, layer, segments, q, k, v)
					at := 0
					for _, g := range segments {
						end := at + g.Length
						want := attend(alone, layer, []tensor.Segment{g}, q[at*heads*size:end*heads*size], k[at*kvHeads*size:end*kvHeads*size], v[at*kvHeads*size:end*kvHeads*size])
						for i, w := range want {
							if d := math.Abs(float64(got[at*heads*size+i] - w)); d > 1e-5 {
								t.Fatalf("step %d, layer %d, %v of %v: value %d is %v in company, %v alone", step, layer, g, segments, i, got[at*heads*size+i], w)
							}
						}
						at = end
					}
				}
				if rng.IntN(10) == 0 {
					r := rng.IntN(requests)
					shared.Drop(tensor.RequestID(r))
					alone.Drop(tensor.RequestID(r))
					lengths[r] = 0
				}
				if shared.Bytes() != alone.Bytes() {
					t.Fatalf("step %d: %d bytes in company, %d alone", step, shared.Bytes(), alone.Bytes())
				}
			}
			// Where there is a window or there are sinks, the kernel takes none.
			if got, want := b.Ragged() > 0, c.ragged > 0 && c.window == 0; got != want {
				t.Errorf("%d segments were chosen for the kernel of ragged.h, want any: %v", b.Ragged(), want)
			}
		})
	}
}

func newCache(t *testing.T, b *Backend, s tensor.CacheSpec) tensor.Cache {
	t.Helper()
	c, err := b.NewCache(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Release)
	return c
}

func normal(rng *rand.Rand, n int) []float32 {
	return slices.Collect(func(yield func(float32) bool) {
		for range n {
			if !yield(float32(rng.NormFloat64())) {
				return
			}
		}
	})
}

// TestWhatIsAttendedByProducts: prefill chunks with lengths for which the
// framework would plan again, unless there are many scores.
func TestWhatIsAttendedByProducts(t *testing.T) {
	b := open(t, Options{})
	b.products = 1 << 20
	for _, c := range []struct{ length, seen, products int }{
		{1, 700, 0},    // an answer
		{36, 700, 1},   // with decodes
		{256, 512, 0},  // one of few pairs of lengths
		{256, 500, 1},  // many
		{600, 6000, 0}, // too many scores
	} {
		products, scores := b.attention(8, c.length, c.seen)
		if int(products) != c.products {
			t.Errorf("%d tokens that see %d: products %d, want %d", c.length, c.seen, products, c.products)
		}
		if want := int64(3 * c.products * 8 * c.length * c.seen); scores != want {
			t.Errorf("%d tokens that see %d: room for %d scores, want %d", c.length, c.seen, scores, want)
		}
	}
}
