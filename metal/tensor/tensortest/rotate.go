package tensortest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// rotating runs requests for many windows, in parallel with a cache that keeps
// all tokens: results are the same, and the memory does not grow.
func (s cacheSuite) rotating(t *testing.T) {
	for name, windows := range map[string][]int{"some": {6, 0, 6}, "all": {6, 6, 6}, "of one token": {1, 1, 0}, "in chunks": {6, 0, 6}} {
		t.Run(name, func(t *testing.T) {
			w := s.openFor(t).saving(tensor.CacheSpec{Layers: 3, KVHeads: 2, HeadSize: 6, BlockTokens: 4, Windows: windows})
			w.chunked = name == "in chunks"
			rotates := w.cache()
			whole, err := w.b.NewCache(tensor.CacheSpec{Layers: 3, KVHeads: 2, HeadSize: 6, BlockTokens: 4})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(whole.Release)
			rng, next := rand.New(rand.NewPCG(5, uint64(len(name)))), tensor.RequestID(1)
			for step := range 90 {
				if step%30 == 0 {
					next++
				}
				var segments []tensor.Segment
				for id := tensor.RequestID(2); id <= next; id++ {
					at := whole.Length(id)
					if at > savedTokens-20 { // it ends, and another begins
						rotates.Drop(id)
						whole.Drop(id)
						at = 0
					}
					segments = append(segments, tensor.Segment{Request: id, Start: at, Length: 1 + rng.IntN(19)*max(0, rng.IntN(5)-3)})
				}
				if step%7 == 3 {
					w.failHalfWay(rotates, segments)
				}
				what := fmt.Sprintf("step %d, %v", step, segments)
				s.same(t, what, w.step(rotates, segments...), w.step(whole, segments...))
				// A window, a step or some tokens for each move, and the extra
				// room on CUDA.
				if most := int64(len(segments)) * w.spec.TokenBytes(4) * 80; name == "all" && rotates.Bytes() > most {
					t.Fatalf("%s: %d bytes are held, want %d at most", what, rotates.Bytes(), most)
				}
			}
		})
	}
}

// failHalfWay gives all layers but the last a step, which is then taken back.
func (w *saving) failHalfWay(c tensor.Cache, segments []tensor.Segment) {
	w.t.Helper()
	sc := w.b.NewScope(context.Background())
	defer sc.Close()
	some := *w
	some.spec.Layers--
	some.build(sc, c, segments...)
	if err := sc.Err(); err != nil {
		w.t.Fatal(err)
	}
	for _, g := range segments {
		c.Truncate(g.Request, g.Start)
		if got := c.Length(g.Request); got != g.Start {
			w.t.Errorf("request %d has %d tokens after half a step was taken back, want %d", g.Request, got, g.Start)
		}
	}
}

// rotatingForgets wants a window that cannot go back to be forgotten with all
// else of its request, which then begins as any other.
func (s cacheSuite) rotatingForgets(t *testing.T) {
	w := s.openFor(t).saving(savingCases()["windows"])
	c := w.cache()
	first := w.step(c, tensor.Segment{Request: 1, Length: 7})
	w.grow(c, 1, 20)
	c.Truncate(1, 12) // all of them are still there
	if n := c.Length(1); n != 12 {
		t.Errorf("a request has %d tokens after it was cut to 12", n)
	}
	w.grow(c, 1, 100)
	w.grow(c, 2, 9)
	c.Truncate(1, 100)
	if n := c.Length(1); n != 100 {
		t.Errorf("a request has %d tokens after it was cut to all of its 100", n)
	}
	c.Truncate(1, 12)
	if a, b := c.Length(1), c.Length(2); a != 0 || b != 9 {
		t.Errorf("requests have %d and %d tokens, want 0, as the window has moved on, and 9", a, b)
	}
	c.Drop(2)
	s.same(t, "a request that began again", w.step(c, tensor.Segment{Request: 1, Length: 7}), first)
}

// rotatingErrors wants windows that do not fit a cache, and calls that see more
// than a layer keeps, to be refused.
func (s cacheSuite) rotatingErrors(t *testing.T) {
	x := s.openFor(t)
	for name, windows := range map[string][]int{"too few": {4}, "too many": {4, 4, 4}, "of two sizes": {4, 5}, "negative": {-1, -1}} {
		if _, err := x.b.NewCache(tensor.CacheSpec{Layers: 2, KVHeads: 1, HeadSize: 4, BlockTokens: 4, Windows: windows}); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("windows, %s: error %v, want ErrShape", name, err)
		}
	}
	c, err := x.b.NewCache(tensor.CacheSpec{Layers: 2, KVHeads: 1, HeadSize: 4, BlockTokens: 4, Windows: []int{4, 0}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Release)
	for window, want := range map[int]error{0: tensor.ErrShape, 5: tensor.ErrShape, 4: nil} {
		sc := x.b.NewScope(context.Background())
		row := sc.From(x.random(4), 1, 4)
		sc.AppendAttend(tensor.AttendSpec{Cache: c, Segments: []tensor.Segment{{Request: 1, Length: 1}}, Q: row, K: row, V: row, Scale: 1, Window: window})
		if err := sc.Err(); !errors.Is(err, want) {
			t.Errorf("window %d of a layer that keeps 4: error %v, want %v", window, err, want)
		}
		sc.Close()
		c.Drop(1)
	}
}
