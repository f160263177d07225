package tensortest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// recur runs random histories of ragged steps against the oracle: requests
// come, grow by chunks and single tokens in one step, and go.
func (s cacheSuite) recur(t *testing.T) {
	for _, c := range recurCases() {
		t.Run(c.name, func(t *testing.T) { s.recurHistory(t, c) })
	}
}

func (s cacheSuite) recurHistory(t *testing.T, c recurCase) {
	x := s.open(t)
	cache := x.recurrentCache(c)
	t.Cleanup(cache.Release)
	layers := make([]recurred, c.Layers)
	for i := range layers {
		layers[i] = x.recurWeights(c)
	}
	model := map[tensor.RequestID][]past{}
	next := tensor.RequestID(1)
	for step := range 14 {
		if step%3 == 0 {
			model[next] = make([]past, c.Layers)
			next++
		}
		if step == 7 { // a request goes in the middle
			cache.Drop(2)
			delete(model, 2)
		}
		var segments []tensor.Segment
		for id := next - 1; id > 0; id-- { // in another order than they came
			if p := model[id]; p != nil && (step%5 != 4 || id != 1) { // one waits now and then
				segments = append(segments, tensor.Segment{Request: id, Start: len(p[0].rows), Length: lengthOf(x, step)})
			}
		}
		for layer := range layers {
			s.recurStep(x, c, cache, model, segments, layer, &layers[layer])
		}
	}
	for id := range model {
		cache.Drop(id)
	}
	if n := cache.Bytes(); n != 0 || x.b.Memory().KV != 0 {
		t.Errorf("%d bytes are left after all requests were dropped, the gauge reports %d", n, x.b.Memory().KV)
	}
}

// recurring allows for what rounding does to a state that is read and written
// again and again.
func (s cacheSuite) recurring() cacheSuite {
	s.Tolerance *= 4
	return s
}

// lengthOf is how many tokens a segment has: one in half the steps, else
// anything up to more than a chunk of any back end.
func lengthOf(x *bench, step int) int {
	if step%2 == 1 {
		return 1
	}
	return 1 + x.rng.IntN(6)*x.rng.IntN(30)
}

func (s cacheSuite) recurStep(x *bench, c recurCase, cache tensor.Cache, model map[tensor.RequestID][]past, segments []tensor.Segment, layer int, r *recurred) {
	x.t.Helper()
	x.recurRows(r, c, tensor.Tokens(segments))
	r.arrays(x.s, c)
	r.spec.Cache, r.spec.Layer, r.spec.Segments = cache, layer, segments
	got := x.read(x.s.Recur(r.spec))
	var want []float64
	row := 0
	for _, g := range segments {
		for range g.Length {
			want = append(want, recurOracle(c, &model[g.Request][layer], r, row)...)
			row++
		}
	}
	s.recurring().near(x.t, fmt.Sprintf("recurrent layer %d, %v", layer, segments), got, want)
}

// recurChunks computes one request at once, in chunks, and token by token.
func (s cacheSuite) recurChunks(t *testing.T) {
	for _, c := range recurCases() {
		x := s.open(t)
		const rows = 150
		cache := x.recurrentCache(c)
		t.Cleanup(cache.Release)
		all := x.recurOperands(x.s, c, rows)
		var whole []float32
		for id, chunk := range []int{rows, 1, 7, 64, 100} {
			var got []float32
			for at := 0; at < rows; at += chunk {
				n := min(chunk, rows-at)
				part := all.part(c, at, n)
				part.arrays(x.s, c)
				part.spec.Cache, part.spec.Segments = cache, []tensor.Segment{{Request: tensor.RequestID(id), Start: at, Length: n}}
				got = append(got, x.read(x.s.Recur(part.spec))...)
			}
			if whole == nil {
				whole = got
				continue
			}
			s.recurring().same(t, fmt.Sprintf("%s, chunks of %d", c.name, chunk), got, whole)
		}
	}
}

// recurForgets wants a state that cannot go back to be forgotten with all else
// of its request, and the others to stay.
func (s cacheSuite) recurForgets(t *testing.T) {
	x := s.open(t)
	c := recurCases()[0]
	cache := x.recurrentCache(c)
	t.Cleanup(cache.Release)
	row := x.s.From(x.random(2*8), 8, 2)
	attend := func(segments []tensor.Segment) {
		n := tensor.Tokens(segments)
		part := x.s.Rows(row, []int{0, 1, 2, 3, 4, 5, 6, 7}[:n])
		x.read(x.s.AppendAttend(tensor.AttendSpec{Cache: cache, Segments: segments, Scale: 1, Q: part, K: part, V: part}))
	}
	recur := func(layer int, segments []tensor.Segment) []float32 {
		r := x.recurOperands(x.s, c, tensor.Tokens(segments))
		r.spec.Cache, r.spec.Layer, r.spec.Segments = cache, layer, segments
		return x.read(x.s.Recur(r.spec))
	}
	both := []tensor.Segment{{Request: 1, Length: 3}, {Request: 2, Length: 2}}
	attend(both)
	if got := cache.Length(1); got != 0 {
		t.Errorf("%d tokens are held by every layer before one recurred", got)
	}
	recur(0, both)
	recur(1, both)
	if a, b := cache.Length(1), cache.Length(2); a != 3 || b != 2 {
		t.Errorf("requests hold %d and %d tokens, want 3 and 2", a, b)
	}
	cache.Truncate(1, 3) // nothing is past them
	more := []tensor.Segment{{Request: 1, Start: 3, Length: 1}, {Request: 2, Start: 2, Length: 1}}
	recur(0, more[:1]) // the step fails in the second layer
	cache.Truncate(1, 3)
	cache.Truncate(2, 2)
	if a, b := cache.Length(1), cache.Length(2); a != 0 || b != 2 {
		t.Errorf("requests hold %d and %d tokens, want 0, as the state moved on, and 2", a, b)
	}
	attend(both[:1])
	r := x.recurOperands(x.s, c, 3)
	r.spec.Cache, r.spec.Segments = cache, both[:1]
	again := x.read(x.s.Recur(r.spec))
	r.spec.Segments = []tensor.Segment{{Request: 9, Length: 3}}
	s.same(t, "a request that began again", again, x.read(x.s.Recur(r.spec)))
	cache.Drop(2)
	if got, want := cache.Bytes(), x.b.Memory().KV; got != want || got < 2*c.StateBytes() || got >= 3*c.StateBytes() {
		t.Errorf("%d bytes are held, the gauge reports %d; two states have %d", got, want, 2*c.StateBytes())
	}
}

// recurDrafts wants the state before drafts back where they are not taken, and the one
// after them where they are, as if each row had been a step of its own.
func (s cacheSuite) recurDrafts(t *testing.T) {
	for _, c := range recurCases() {
		t.Run(c.name, func(t *testing.T) {
			d := &draftRun{suite: s.recurring(), bench: s.open(t), c: c}
			d.cache = d.recurrentCache(c)
			t.Cleanup(d.cache.Release)
			d.layers = []recurred{d.recurWeights(c), d.recurWeights(c)}
			d.run()
		})
	}
}

// draftRun has requests 1 and 3 with drafts, and request 2 without, whose rows are one step
// each.
type draftRun struct {
	suite cacheSuite
	*bench
	c      recurCase
	cache  tensor.Cache
	layers []recurred
}

func (d *draftRun) run() {
	d.step(tensor.Segment{Request: 1, Length: 2}, 2) // nothing is kept
	d.cache.Truncate(1, 0)
	d.step(tensor.Segment{Request: 1, Length: 2}, 2)
	d.step(tensor.Segment{Request: 1, Start: 2, Length: 3, Draft: 2}, 1)
	d.step(tensor.Segment{Request: 1, Start: 3, Length: 2, Draft: 1}, 2)
	d.step(tensor.Segment{Request: 1, Start: 5, Length: 4, Draft: 1}, 3)
	d.step(tensor.Segment{Request: 1, Start: 8, Length: 1}, 1)
	d.cache.Truncate(1, 8)
	if n := d.cache.Length(1); n != 0 {
		d.t.Errorf("%d tokens are left, of which no state is kept", n)
	}
	d.step(tensor.Segment{Request: 3, Length: 2, Draft: 1}, 1)
	d.cache.Truncate(3, 0) // and begins again, from zeros
	if n := d.cache.Length(3); n != 0 {
		d.t.Errorf("%d tokens are left of none", n)
	}
	d.step(tensor.Segment{Request: 3, Length: 3}, 3)
	d.cache.Truncate(3, 0)
	d.step(tensor.Segment{Request: 3, Length: 2, Draft: 1}, 1)
	d.cache.Drop(1)
	d.cache.Drop(2)
	if n, one := d.cache.Bytes(), d.c.StateBytes(); n < 2*one || n != d.b.Memory().KV {
		d.t.Errorf("%d bytes are held with a draft, the gauge reports %d; a state has %d", n, d.b.Memory().KV, one)
	}
	d.cache.Drop(3)
	if n := d.cache.Bytes(); n != 0 || d.b.Memory().KV != 0 {
		d.t.Errorf("%d bytes are left after all requests were dropped, the gauge reports %d", n, d.b.Memory().KV)
	}
}

// step computes a segment, of which only the first rows are taken, together with the first
// of these of request 2, and the others of request 2 one by one.
func (d *draftRun) step(g tensor.Segment, taken int) {
	d.t.Helper()
	other := tensor.Segment{Request: 2, Start: d.cache.Length(2), Length: 1}
	if g.Start == 0 {
		d.cache.Drop(2)
		other.Start = 0
	}
	for layer, weights := range d.layers {
		r := weights
		d.recurRows(&r, d.c, g.Length+1)
		for _, f := range r.widths(d.c) {
			copy((*f.of)[g.Length*f.by:], (*f.of)[:f.by]) // the last row is the first
		}
		both := d.read(d.recur(layer, r, g, other))
		wide := len(both) / (g.Length + 1)
		want := both[g.Length*wide:]
		for i := 1; i < taken; i++ {
			want = append(want, d.read(d.recur(layer, r.part(d.c, i, 1), tensor.Segment{Request: 2, Start: other.Start + i, Length: 1}))...)
		}
		d.suite.same(d.t, fmt.Sprintf("layer %d, %+v", layer, g), both[:taken*wide], want)
	}
	for _, a := range []tensor.Segment{g, {Request: 2, Start: other.Start, Length: taken}} {
		part := d.s.From(make([]float32, 2*a.Length), a.Length, 2)
		d.read(d.s.AppendAttend(tensor.AttendSpec{Cache: d.cache, Segments: []tensor.Segment{a}, Scale: 1, Q: part, K: part, V: part}))
	}
	d.cache.Truncate(g.Request, g.Start+taken)
	if n := d.cache.Length(g.Request); n != g.Start+taken {
		d.t.Fatalf("%d tokens are left of %+v, want %d", n, g, g.Start+taken)
	}
}

func (d *draftRun) recur(layer int, r recurred, segments ...tensor.Segment) tensor.Array {
	r.arrays(d.s, d.c)
	r.spec.Cache, r.spec.Layer, r.spec.Segments = d.cache, layer, segments
	return d.s.Recur(r.spec)
}

func (s cacheSuite) recurErrors(t *testing.T) {
	x := s.open(t)
	c := recurCases()[0]
	for name, change := range map[string]func(*tensor.RecurrentSpec){
		"heads that do not share keys evenly": func(r *tensor.RecurrentSpec) { r.ValueHeads = 5 },
		"no key heads":                        func(r *tensor.RecurrentSpec) { r.KeyHeads = 0 },
		"one tap":                             func(r *tensor.RecurrentSpec) { r.Taps = 1 },
		"a shape of no layers":                func(r *tensor.RecurrentSpec) { r.Layers = 0 },
	} {
		shape := c.RecurrentSpec
		change(&shape)
		if _, err := x.b.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: 1, HeadSize: 4, BlockTokens: 4, Recurrent: shape}); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
	}
	cache := x.recurrentCache(c)
	one, two := []tensor.Segment{{Request: 1, Length: 1}}, []tensor.Segment{{Request: 1, Length: 2}}
	for name, f := range map[string]struct {
		change func(sc tensor.Scope, r *tensor.RecurSpec)
		want   error
	}{
		"too few rows":             {func(_ tensor.Scope, r *tensor.RecurSpec) { r.Segments = two }, tensor.ErrShape},
		"no such layer":            {func(_ tensor.Scope, r *tensor.RecurSpec) { r.Layer = 2 }, tensor.ErrShape},
		"keys as wide as values":   {func(_ tensor.Scope, r *tensor.RecurSpec) { r.K = r.V }, tensor.ErrShape},
		"a decay of another width": {func(_ tensor.Scope, r *tensor.RecurSpec) { r.Decay = r.Q }, tensor.ErrShape},
		"too few taps":             {func(_ tensor.Scope, r *tensor.RecurSpec) { r.Kernel = r.Bias }, tensor.ErrShape},
		"a rate for each tap":      {func(_ tensor.Scope, r *tensor.RecurSpec) { r.LogRate = r.Kernel }, tensor.ErrShape},
		"ids":                      {func(sc tensor.Scope, r *tensor.RecurSpec) { r.Beta = sc.IDs([]int32{1}) }, tensor.ErrShape},
		"no operand":               {func(_ tensor.Scope, r *tensor.RecurSpec) { r.V = nil }, tensor.ErrReleased},
		"no cache":                 {func(_ tensor.Scope, r *tensor.RecurSpec) { r.Cache = nil }, tensor.ErrReleased},
		"a start in the middle": {func(_ tensor.Scope, r *tensor.RecurSpec) {
			r.Segments = []tensor.Segment{{Request: 1, Start: 1, Length: 1}}
		}, tensor.ErrSegment},
	} {
		sc := x.b.NewScope(context.Background())
		r := x.recurOperands(sc, c, 1)
		r.spec.Cache, r.spec.Segments = cache, one
		f.change(sc, &r.spec)
		sc.Recur(r.spec)
		if err := sc.Err(); !errors.Is(err, f.want) {
			t.Errorf("%s: error %v, want %v", name, err, f.want)
		}
		sc.Close()
		if got := x.b.Memory().KV; got != 0 {
			t.Fatalf("%s: %d bytes of state are held", name, got)
		}
	}
	cache.Release()
}
