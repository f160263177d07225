package ref

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

func TestCloseCountsWhatStillLives(t *testing.T) {
	b := New(Options{Threads: 2})
	sc := b.NewScope(context.Background())
	kept := sc.Keep(sc.From([]float32{1}, 1))
	sc.Close()
	if err := b.Close(); !errors.Is(err, tensor.ErrLeak) {
		t.Errorf("with a kept array alive Close says %v", err)
	}
	sc.Release(kept)
	cache, err := b.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: 1, HeadSize: 2, BlockTokens: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); !errors.Is(err, tensor.ErrLeak) {
		t.Errorf("with a cache alive Close says %v", err)
	}
	cache.Release()
	if err := b.Close(); err != nil {
		t.Errorf("with nothing alive Close says %v", err)
	}
}

func TestFreedArraysArePoisoned(t *testing.T) {
	b := New(Options{Threads: 1, Poison: true})
	defer b.Close()
	sc := b.NewScope(context.Background())
	a := sc.From([]float32{1, 2}, 2).(*array)
	seen := a.data
	sc.Close()
	if seen[0] == seen[0] {
		t.Errorf("a freed array still reads %v", seen)
	}
}

func TestPooledBytesStayUnderTheirLimit(t *testing.T) {
	b := New(Options{Threads: 1})
	b.SetLimits(0, 64<<10)
	sc := b.NewScope(context.Background())
	for range 20 {
		sc.From(make([]float32, 4096), 4096)
	}
	sc.Close()
	if m := b.Memory(); m.Pooled > 64<<10 || m.Pooled == 0 || m.Arrays != 0 {
		t.Errorf("pool afterwards: %+v", m)
	}
	if err := b.Close(); err != nil || b.Memory().Pooled != 0 {
		t.Errorf("after Close %d bytes are pooled (%v)", b.Memory().Pooled, err)
	}
}

// TestEveryByteOfThePoolIsPromisedOnce: arrays of other sizes replace pooled
// ones instead of adding to them. Small ones may add.
func TestEveryByteOfThePoolIsPromisedOnce(t *testing.T) {
	b := New(Options{Threads: 1})
	defer b.Close()
	const most = 8 << 20
	use := func(n, elements int) {
		t.Helper()
		sc := b.NewScope(context.Background())
		for range n {
			sc.From(make([]float32, elements), elements)
		}
		if m := b.Memory(); sc.Err() != nil || m.Arrays+m.Pooled > most+spare {
			t.Errorf("%d arrays of %d: %+v (%v)", n, elements, m, sc.Err())
		}
		sc.Close()
	}
	use(4, most/16)
	use(8, 4096)
	if m := b.Memory(); m.Pooled != most+8*minClass {
		t.Errorf("small arrays drove large ones out: %+v", m)
	}
	for range 3 { // a layer that recurs, its experts, a short chunk, and so on
		use(7, most/32)
		use(15, most/64)
		use(100, 4096)
		use(4, most/16)
	}
	if m := b.Memory(); m.Pooled < most/2 {
		t.Errorf("the next layer finds nothing pooled: %+v", m)
	}
}

func TestEveryTaskRunsOnce(t *testing.T) {
	for _, size := range []int{1, 2, 7} {
		w := startWorkers(size)
		for round := range 2000 {
			counts := make([]atomic.Int32, round%17)
			w.run(len(counts), func(worker, task int) {
				if worker < 0 || worker >= size {
					t.Errorf("worker %d of %d", worker, size)
				}
				counts[task].Add(1)
			})
			for i := range counts {
				if n := counts[i].Load(); n != 1 {
					t.Fatalf("task %d of %d ran %d times", i, len(counts), n)
				}
			}
		}
		w.stop()
		w.stop()
	}
}

func TestExpIsWithinTwoUnits(t *testing.T) {
	for x := float32(-87.3); x < 88.7; x += 0.00731 {
		got, want := float64(exp(x)), math.Exp(float64(x))
		if d := math.Abs(got-want) / want; d > 2.4e-7 {
			t.Fatalf("exp(%v) is %v, want %v (error %.2g)", x, got, want, d)
		}
	}
	if v := exp(100); !math.IsInf(float64(v), 1) {
		t.Errorf("exp(100) is %v", v)
	}
	if v := exp(-100); v != 0 {
		t.Errorf("exp(-100) is %v", v)
	}
	if v := exp(float32(math.NaN())); v == v {
		t.Errorf("exp(NaN) is %v", v)
	}
}

func TestHalfFiniteIsExact(t *testing.T) {
	b := New(Options{Threads: 1})
	defer b.Close()
	for h := range uint32(1 << 16) {
		if h&0x7c00 == 0x7c00 {
			continue
		}
		sign, exponent, fraction := 1.0, int(h>>10&31), float64(h&0x3ff)
		if h&0x8000 != 0 {
			sign = -1
		}
		want := sign * math.Ldexp(fraction, -24)
		if exponent > 0 {
			want = sign * math.Ldexp(1024+fraction, exponent-25)
		}
		if got := float64(halfFinite(uint16(h))); got != want {
			t.Fatalf("half %#04x is %v, want %v", h, got, want)
		}
	}
}
