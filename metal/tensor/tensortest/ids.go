package tensortest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

func (x *bench) readIDs(a tensor.Array) []int32 {
	x.t.Helper()
	out := make([]int32, a.Shape()[0])
	x.s.ReadIDs(a, out)
	if err := x.s.Err(); err != nil {
		x.t.Fatalf("scope failed: %v", err)
	}
	return out
}

func (s Suite) ids(t *testing.T) {
	x := s.open(t)
	want := []int32{7, 0, math.MaxInt32 - 1, 7}
	given := slices.Clone(want)
	a := x.s.IDs(given)
	clear(given) // they were copied
	if got := x.readIDs(a); !slices.Equal(got, want) || !slices.Equal(a.Shape(), []int{4}) {
		t.Errorf("ids of shape %v read %v, want %v", a.Shape(), got, want)
	}
}

// argmax is the rule that greedy decoding rests on.
func (s Suite) argmax(t *testing.T) {
	x := s.open(t)
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		name string
		row  []float32
		want int32
	}{
		{"the largest", []float32{-3, 2, 5, 4, 9}, 2},
		{"the lowest among equals", []float32{1, 4, -2, 4, 9}, 1},
		{"all equal", []float32{-1, -1, -1, -1, 9}, 0},
		{"what a filter took away does not win", []float32{-inf, -7, -inf, -8, 9}, 1},
		{"the last that counts", []float32{0, 1, 2, 3, 9}, 3},
		{"nothing is left", []float32{-inf, -inf, -inf, -inf, 9}, -1},
		{"an infinity", []float32{0, inf, 1, 2, 9}, -1},
		{"not a number, first", []float32{nan, 3, 4, 5, 9}, -1},
		{"not a number, later", []float32{5, 4, 3, nan, 9}, -1},
		{"not a number outside the compared values", []float32{5, 4, 3, 2, nan}, 0},
	} {
		if got := x.readIDs(x.s.Argmax(x.s.From(c.row, 1, 5), 4)); got[0] != c.want {
			t.Errorf("%s: %v gives %d, want %d", c.name, c.row, got[0], c.want)
		}
	}
	const rows, width = 7, 5003
	v, want := x.random(rows*width), make([]int32, rows)
	for r := range want {
		want[r] = int32((r*811 + 4000) % width)
		v[r*width+int(want[r])] = 50
	}
	if got := x.readIDs(x.s.Argmax(x.s.From(v, rows, width), width)); !slices.Equal(got, want) {
		t.Errorf("largest of many rows: %v, want %v", got, want)
	}
}

// chosen gathers the rows of ids that were not read: a step that is built
// ahead.
func (s Suite) chosen(t *testing.T) {
	x := s.open(t)
	m, values := x.matrix(quant.AffineOf(4, 64, quant.BFloat16), 11, 64)
	scores := x.random(3 * 11)
	scores[0*11+10], scores[2*11+4] = 20, 20
	scores[1*11+3] = float32(math.NaN()) // a row without a choice spoils no other
	got := x.read(x.s.Embed(m, x.s.Argmax(x.s.From(scores, 3, 11), 11)))
	s.near(t, "first", got[:64], values[10])
	s.near(t, "last", got[2*64:], values[4])
}

// joined are ids that were not read, followed by known ones: a step that is
// built ahead, with a prefill chunk.
func (s Suite) joined(t *testing.T) {
	x := s.open(t)
	m, values := x.matrix(quant.AffineOf(4, 64, quant.BFloat16), 11, 64)
	scores := x.random(3 * 11)
	scores[0*11+10], scores[1*11+4], scores[2*11+6] = 20, 20, 20
	for name, c := range map[string]struct {
		rows []int
		ids  []int32
		want []int32
	}{
		"all and some":     {[]int{0, 1, 2}, []int32{7, 0, 10}, []int32{10, 4, 6, 7, 0, 10}},
		"some without one": {[]int{0, 2}, []int32{3}, []int32{10, 6, 3}},
		"another order":    {[]int{2, 0, 2}, nil, []int32{6, 10, 6}},
		"all alone":        {[]int{0, 1, 2}, nil, []int32{10, 4, 6}},
	} {
		rows, given := slices.Clone(c.rows), slices.Clone(c.ids)
		ids := x.s.JoinIDs(x.s.Argmax(x.s.From(scores, 3, 11), 11), rows, given)
		clear(rows) // they were copied
		clear(given)
		got := x.read(x.s.Embed(m, ids))
		for i, row := range c.want {
			s.near(t, fmt.Sprintf("%s: row %d", name, i), got[i*64:][:64], values[row])
		}
		if got := x.readIDs(ids); !slices.Equal(got, c.want) || !slices.Equal(ids.Shape(), []int{len(c.want)}) {
			t.Errorf("%s: ids of shape %v read %v, want %v", name, ids.Shape(), got, c.want)
		}
	}
	for name, known := range map[string][]int32{"too large": {1, 11}, "negative": {-1, 1}} {
		sc := x.b.NewScope(context.Background())
		sc.Embed(m, sc.JoinIDs(sc.IDs([]int32{1}), []int{0}, known))
		if err := sc.Err(); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("an id that is %s: error %v, want ErrShape", name, err)
		}
		sc.Close()
	}
}

// kinds of arrays do not mix.
func (s Suite) kinds(t *testing.T) {
	x := s.open(t)
	m, _ := x.matrix(quant.DenseOf(quant.Float32), 5, 8)
	cache, err := x.b.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: 1, HeadSize: 8, BlockTokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cache.Release)
	seg := []tensor.Segment{{Request: 1, Length: 1}}
	for name, run := range map[string]func(sc tensor.Scope, ids, numbers tensor.Array){
		"Read of ids":       func(sc tensor.Scope, ids, _ tensor.Array) { sc.Read(ids, make([]float32, 1)) },
		"ReadIDs of floats": func(sc tensor.Scope, _, numbers tensor.Array) { sc.ReadIDs(numbers, make([]int32, 8)) },
		"JoinIDs of floats": func(sc tensor.Scope, _, numbers tensor.Array) { sc.JoinIDs(numbers, []int{0}, []int32{1}) },
		"JoinIDs of none":   func(sc tensor.Scope, ids, _ tensor.Array) { sc.JoinIDs(ids, nil, []int32{1}) },
		"JoinIDs past them": func(sc tensor.Scope, ids, _ tensor.Array) { sc.JoinIDs(ids, []int{ids.Shape()[0]}, nil) },
		"JoinIDs before":    func(sc tensor.Scope, ids, _ tensor.Array) { sc.JoinIDs(ids, []int{-1}, nil) },
		"Embed of floats":   func(sc tensor.Scope, _, numbers tensor.Array) { sc.Embed(m, numbers) },
		"Linear of ids":     func(sc tensor.Scope, ids, _ tensor.Array) { sc.Linear(ids, m) },
		"Argmax of ids":     func(sc tensor.Scope, ids, _ tensor.Array) { sc.Argmax(ids, 1) },
		"Add of ids":        func(sc tensor.Scope, ids, _ tensor.Array) { sc.Add(ids, ids) },
		"SwiGLU of ids":     func(sc tensor.Scope, ids, numbers tensor.Array) { sc.GLU(numbers, ids, tensor.SwiGLU{}) },
		"SiLU of ids":       func(sc tensor.Scope, ids, _ tensor.Array) { sc.Map(ids, tensor.SiLU{}) },
		"Rows of ids":       func(sc tensor.Scope, ids, _ tensor.Array) { sc.Rows(ids, []int{0}) },
		"RMSNorm by ids":    func(sc tensor.Scope, ids, numbers tensor.Array) { sc.RMSNorm(numbers, ids, 0) },
		"Rope of ids": func(sc tensor.Scope, ids, _ tensor.Array) {
			sc.Rope(ids, seg, 2, tensor.RopeSpec{Theta: 10, Size: 2})
		},
		"Mean of ids":        func(sc tensor.Scope, ids, _ tensor.Array) { sc.Mean(ids, seg, nil) },
		"Split of ids":       func(sc tensor.Scope, ids, _ tensor.Array) { sc.Split(ids, 1) },
		"SigmoidGate by ids": func(sc tensor.Scope, ids, numbers tensor.Array) { sc.SigmoidGate(numbers, ids) },
		"AddGated by ids":    func(sc tensor.Scope, ids, numbers tensor.Array) { sc.AddGated(numbers, numbers, ids) },
		"RMSNormGate by ids": func(sc tensor.Scope, ids, numbers tensor.Array) { sc.RMSNormGate(numbers, ids, numbers, 0) },
		"Unit of ids":        func(sc tensor.Scope, ids, _ tensor.Array) { sc.Unit(ids) },
		"AppendAttend of ids": func(sc tensor.Scope, ids, numbers tensor.Array) {
			sc.AppendAttend(tensor.AttendSpec{Cache: cache, Segments: seg, Q: numbers, K: ids, V: numbers, Scale: 1})
		},
		"too few to read":   func(sc tensor.Scope, ids, _ tensor.Array) { sc.ReadIDs(ids, nil) },
		"no ids":            func(sc tensor.Scope, _, _ tensor.Array) { sc.IDs(nil) },
		"Argmax of none":    func(sc tensor.Scope, _, numbers tensor.Array) { sc.Argmax(numbers, 0) },
		"Argmax past a row": func(sc tensor.Scope, _, numbers tensor.Array) { sc.Argmax(numbers, 9) },
		"Argmax of a flat array": func(sc tensor.Scope, _, _ tensor.Array) {
			sc.Argmax(sc.From([]float32{1, 2}, 2), 2)
		},
	} {
		sc := x.b.NewScope(context.Background())
		run(sc, sc.IDs([]int32{1}), sc.From(make([]float32, 8), 1, 8))
		if err := sc.Err(); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
		sc.Close()
	}
}

// start computes ahead of a read; nothing changes but the time.
func (s Suite) start(t *testing.T) {
	x := s.open(t)
	v := x.random(64)
	want := make([]float64, len(v))
	for i, f := range v {
		want[i] = 4 * float64(f)
	}
	a := x.s.From(v, 8, 8)
	b := x.s.Add(a, a)
	x.s.Start()
	x.s.Start(b)
	c := x.s.Add(b, b)
	x.s.Wait(b)
	x.s.Start(c, x.s.Argmax(c, 8))
	x.s.Release(b) // a handle may go while the array is computed
	s.near(t, "what was started", x.read(c), want)
	x.s.Wait(c)
	x.s.Wait()
	if err := x.s.Err(); err != nil {
		t.Errorf("after everything was computed: %v", err)
	}
}
