package ref_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// attending is a layer, and queries, keys and values of one request.
type attending struct {
	heads, kvHeads, size, tokens int
	q, k, v                      []float32
}

func randomAttending(heads, kvHeads, size, tokens int) attending {
	rng := rand.New(rand.NewPCG(21, 22))
	random := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	return attending{heads: heads, kvHeads: kvHeads, size: size, tokens: tokens, q: random(tokens * heads * size), k: random(tokens * kvHeads * size), v: random(tokens * kvHeads * size)}
}

func (a attending) cache(t testing.TB, be *ref.Backend, block, window int) tensor.Cache {
	t.Helper()
	spec := tensor.CacheSpec{Layers: 1, KVHeads: a.kvHeads, HeadSize: a.size, BlockTokens: block}
	if window > 0 {
		spec.Windows = []int{window}
	}
	c, err := be.NewCache(spec)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// step attends from one position on, for one request or more whose rows are the
// same, and returns all rows.
func (a attending) step(s tensor.Scope, c tensor.Cache, requests []tensor.RequestID, from, n, window int, sinks []float32) tensor.Array {
	var segments []tensor.Segment
	cut := func(x []float32, heads int) tensor.Array {
		width := heads * a.size
		return s.From(slices.Repeat(x[from*width:(from+n)*width], len(requests)), n*len(requests), width)
	}
	for _, id := range requests {
		segments = append(segments, tensor.Segment{Request: id, Start: from, Length: n})
	}
	return s.AppendAttend(tensor.AttendSpec{
		Cache: c, Segments: segments, Scale: 0.3, Window: window, Sinks: sinks,
		Q: cut(a.q, a.heads), K: cut(a.k, a.kvHeads), V: cut(a.v, a.kvHeads),
	})
}

// TestAttentionHasTheSameBitsHoweverItIsCut cuts caches into blocks, prompts into
// pieces and the work into tasks of every kind: with one row and one head a task,
// and with several of each.
func TestAttentionHasTheSameBitsHoweverItIsCut(t *testing.T) {
	a := randomAttending(6, 2, 24, 301)
	width := a.heads * a.size
	sinks := []float32{1, -2, 0.5, 3, 0, 1}
	for _, window := range []int{0, 71, 300} {
		var want []uint32
		for _, cut := range []struct{ threads, block, piece, beside int }{
			{threads: 1, block: 256, piece: 301, beside: 1}, {threads: 3, block: 256, piece: 1, beside: 1}, {threads: 3, block: 256, piece: 64, beside: 1}, {threads: 2, block: 25, piece: 301, beside: 1}, {threads: 2, block: 7, piece: 13, beside: 3}, {threads: 16, block: 512, piece: 5, beside: 2}, {threads: 1, block: 1, piece: 50, beside: 2},
		} {
			name := fmt.Sprintf("window %d, %+v", window, cut)
			be := ref.New(ref.Options{Threads: cut.threads})
			c := a.cache(t, be, cut.block, window)
			requests := []tensor.RequestID{1, 2, 3}[:cut.beside]
			var got []uint32
			for from := 0; from < a.tokens; from += cut.piece {
				n := min(cut.piece, a.tokens-from)
				s := be.NewScope(context.Background())
				bits := bitsOf(s, a.step(s, c, requests, from, n, window, sinks), n*len(requests)*width)
				if err := s.Err(); err != nil {
					t.Fatal(err)
				}
				s.Close()
				for r := range requests {
					if !slices.Equal(bits[r*n*width:(r+1)*n*width], bits[:n*width]) {
						t.Fatalf("%s: request %d of %d got another answer to the same question at %d", name, r, len(requests), from)
					}
				}
				got = append(got, bits[:n*width]...)
			}
			c.Release()
			if err := be.Close(); err != nil {
				t.Fatal(err)
			}
			if want == nil {
				want = got
				continue
			}
			for i := range want {
				if got[i] != want[i] {
					t.Fatalf("%s: element %d of token %d differs", name, i%width, i/width)
				}
			}
		}
	}
}

// BenchmarkAttend is a layer of SmolLM2 after 1,024 positions: one row, and a
// prefill chunk.
func BenchmarkAttend(b *testing.B) {
	const before = 1024
	for _, rows := range []int{1, 3, 16, 128} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			a := randomAttending(9, 3, 64, before+rows)
			be := ref.New(ref.Options{})
			defer be.Close()
			c := a.cache(b, be, 256, 0)
			defer c.Release()
			s := be.NewScope(context.Background())
			defer s.Close()
			a.step(s, c, []tensor.RequestID{1}, 0, before, 0, nil)
			for b.Loop() {
				inner := s.Child()
				a.step(inner, c, []tensor.RequestID{1}, before, rows, 0, nil)
				inner.Close()
				c.Truncate(1, before)
			}
			if err := s.Err(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows*(before+rows)*a.heads), "ns/key")
		})
	}
}
