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

// TestRequestsInCompanyAttendAsAlone: whoever shares a slab, in whatever order,
// at whatever lengths, gets what it would get alone.
func TestRequestsInCompanyAttendAsAlone(t *testing.T) {
	for _, window := range []int{0, 5} {
		t.Run(fmt.Sprintf("window %d", window), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(window), 9))
			b := open(t, Options{})
			const heads, kvHeads, size, layers, requests = 4, 2, 8, 3, 5
			shape := tensor.CacheSpec{Layers: layers, KVHeads: kvHeads, HeadSize: size, BlockTokens: 8}
			shared, alone := newCache(t, b, shape), newCache(t, b, shape)
			lengths := make([]int, requests)
			attend := func(c tensor.Cache, layer int, segments []tensor.Segment, q, k, v []float32) []float32 {
				sc := b.NewScope(t.Context())
				defer sc.Close()
				n := tensor.Tokens(segments)
				out := sc.AppendAttend(tensor.AttendSpec{Cache: c, Layer: layer, Segments: segments, Window: window, Scale: 0.4,
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
