package tensortest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// history is the plain model of one request: per layer and token, its rows.
type history struct{ k, v [][][]float32 }

// attendCase is one shape of attention.
type attendCase struct {
	name                 string
	heads, kvHeads, size int
	// values is the size of a head of values, 0 that of keys; within keys they are
	// the first elements of those.
	values int
	within bool
	// shared attends a second time to what was appended.
	shared bool
	window int
	// chunk is the number of positions of a chunk, 0 means no chunks.
	chunk int
	sinks bool
	cap   float32
	// mutual steps have runs of rows that see one another.
	mutual bool
	// index is the size of the indexer's keys, which are the last of keys; 0 means
	// no indexer.
	index int
}

// The indexer of cases that have one.
const indexHeads, indexTopK = 5, 7

// query is the size of a head of queries.
func (c attendCase) query() int { return c.size - c.index }

// wide is the size of a head of values.
func (c attendCase) wide() int { return cmp.Or(c.values, c.size) }

// attend runs random histories of ragged steps against the oracle: requests
// come, grow by chunks and single tokens in one step, and go.
func (s cacheSuite) attend(t *testing.T) {
	for _, c := range []attendCase{
		{name: "grouped heads", heads: 6, kvHeads: 2, size: 8},
		{name: "odd size", heads: 2, kvHeads: 2, size: 6},
		{name: "window", heads: 4, kvHeads: 1, size: 4, window: 5},
		{name: "sinks", heads: 4, kvHeads: 2, size: 4, sinks: true},
		{name: "bounded scores", heads: 6, kvHeads: 2, size: 8, cap: 0.7},
		{name: "bounded scores under a window", heads: 3, kvHeads: 1, size: 4, window: 5, cap: 0.4},
		{name: "rows that see one another", heads: 6, kvHeads: 2, size: 8, mutual: true},
		{name: "rows that see one another under a window", heads: 4, kvHeads: 1, size: 4, window: 5, mutual: true},
		{name: "rows that see one another, bounded scores", heads: 4, kvHeads: 2, size: 4, cap: 0.7, mutual: true},
		{name: "narrow values", heads: 4, kvHeads: 2, size: 8, values: 5},
		{name: "wide values under a window", heads: 3, kvHeads: 1, size: 4, values: 16, window: 5, sinks: true},
		{name: "values within keys", heads: 5, kvHeads: 1, size: 12, values: 8, within: true},
		{name: "values within keys, bounded", heads: 4, kvHeads: 1, size: 16, values: 8, within: true, cap: 0.7},
		{name: "read by another layer", heads: 6, kvHeads: 2, size: 8, shared: true},
		{name: "read by another layer under a window", heads: 4, kvHeads: 2, size: 8, window: 4, shared: true},
		{name: "chunks", heads: 6, kvHeads: 2, size: 8, chunk: 5},
		{name: "chunks of one token", heads: 2, kvHeads: 2, size: 6, chunk: 1},
		{name: "chunks under a window, sinks", heads: 4, kvHeads: 1, size: 4, chunk: 3, window: 3, sinks: true},
		{name: "chunks, bounded scores", heads: 5, kvHeads: 1, size: 4, chunk: 4, cap: 0.7},
		{name: "chunks that another layer reads", heads: 6, kvHeads: 2, size: 8, chunk: 4, shared: true},
		{name: "tokens that an indexer selects", heads: 5, kvHeads: 1, size: 20, values: 8, within: true, index: 6},
		{name: "window and sinks", heads: 2, kvHeads: 1, size: 4, window: 3, sinks: true},
	} {
		t.Run(c.name, func(t *testing.T) { s.attendHistory(t, c) })
	}
}

func (s cacheSuite) attendHistory(t *testing.T, c attendCase) {
	x := s.open(t)
	const layers, steps = 2, 12
	cache, err := x.b.NewCache(tensor.CacheSpec{Layers: layers, KVHeads: c.kvHeads, HeadSize: c.size, ValueSize: c.values, Within: c.within, BlockTokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cache.Release)
	var sinks []float32
	if c.sinks {
		sinks = x.random(c.heads)
	}
	model := map[tensor.RequestID]*history{}
	next := tensor.RequestID(1)
	for step := range steps {
		if step%3 == 0 {
			model[next] = &history{k: make([][][]float32, layers), v: make([][][]float32, layers)}
			next++
		}
		if step == 7 { // a request goes in the middle
			cache.Drop(2)
			delete(model, 2)
		}
		var segments []tensor.Segment
		for id := tensor.RequestID(1); id < next; id++ {
			if h := model[id]; h != nil {
				segments = append(segments, tensor.Segment{Request: id, Start: len(h.k[0]), Length: 1 + x.rng.IntN(6)*x.rng.IntN(2)})
			}
		}
		if step%4 == 1 {
			halfAStep(x, c, cache, segments)
		}
		for layer := range layers {
			s.attendStep(x, c, cache, model, segments, layer, sinks)
		}
	}
	for id, h := range model {
		if got := cache.Length(id); got != len(h.k[0]) {
			t.Errorf("request %d has %d tokens, want %d", id, got, len(h.k[0]))
		}
		cache.Drop(id)
	}
	if n := cache.Bytes(); n != 0 {
		t.Errorf("%d bytes are left after all requests were dropped", n)
	}
}

// halfAStep gives the first layer what is then truncated, as a step that fails
// in the second does.
func halfAStep(x *bench, c attendCase, cache tensor.Cache, segments []tensor.Segment) {
	x.t.Helper()
	tokens, width := tensor.Tokens(segments), c.kvHeads*c.size
	q, k := x.s.From(x.random(tokens*c.heads*c.query()), tokens, c.heads*c.query()), x.s.From(x.random(tokens*width), tokens, width)
	spec := tensor.AttendSpec{Cache: cache, Segments: segments, Scale: 1, Q: q, K: k}
	if !c.within {
		spec.V = x.s.From(x.random(tokens*c.kvHeads*c.wide()), tokens, c.kvHeads*c.wide())
	}
	_, spec.Indexer = newIndex(x, c, tokens)
	x.read(x.s.AppendAttend(spec))
	for _, g := range segments {
		cache.Truncate(g.Request, g.Start)
		if got := cache.Length(g.Request); got != g.Start {
			x.t.Errorf("request %d has %d tokens after it was cut to %d", g.Request, got, g.Start)
		}
	}
	cache.Truncate(-1, 0) // unknown: ignored
}

func (s cacheSuite) attendStep(x *bench, c attendCase, cache tensor.Cache, model map[tensor.RequestID]*history, segments []tensor.Segment, layer int, sinks []float32) {
	x.t.Helper()
	tokens, width, wide := tensor.Tokens(segments), c.kvHeads*c.size, c.kvHeads*c.wide()
	q, k, v := x.random(tokens*c.heads*c.query()), x.random(tokens*width), x.random(tokens*wide)
	spec := tensor.AttendSpec{
		Cache: cache, Layer: layer, Segments: segments, Scale: 0.3, Window: c.window, Chunk: c.chunk, Sinks: sinks, Cap: c.cap,
		Q: x.s.From(q, tokens, c.heads*c.query()), K: x.s.From(k, tokens, width),
	}
	if !c.within {
		spec.V = x.s.From(v, tokens, wide)
	}
	if c.mutual {
		spec.Mutual = mutualRuns(segments)
	}
	by, indexer := newIndex(x, c, tokens)
	spec.Indexer = indexer
	got := x.read(x.s.AppendAttend(spec))
	want := make([]float64, 0, len(got))
	again := make([]float64, 0, len(got))
	other := x.random(len(q))
	row := 0
	for _, g := range segments {
		h := model[g.Request]
		for i := range g.Length {
			key, value := k[(row+i)*width:(row+i+1)*width], v[(row+i)*wide:(row+i+1)*wide]
			if c.within {
				value = key[:wide]
			}
			h.k[layer], h.v[layer] = append(h.k[layer], key), append(h.v[layer], value)
		}
		for i := range g.Length {
			position := g.Start + i
			end := position + 1
			for _, r := range spec.Mutual {
				if r.First <= row && row < r.First+r.Length {
					end += r.First + r.Length - 1 - row
				}
			}
			keys, values, clear := by.selects(c, row, h.k[layer][:end], h.v[layer][:end])
			if clear {
				want = append(want, attendOracle(c, q[row*c.heads*c.query():], keys, values, position, sinks)...)
			} else {
				want = append(want, float64s(got[len(want):len(want)+c.heads*c.wide()])...)
			}
			again = append(again, attendOracle(c, other[row*c.heads*c.query():], keys, values, position, sinks)...)
			row++
		}
	}
	s.near(x.t, fmt.Sprintf("attention, layer %d, %v", layer, segments), got, want)
	if c.shared {
		spec.Q, spec.K, spec.V = x.s.From(other, tokens, c.heads*c.query()), nil, nil
		s.near(x.t, fmt.Sprintf("what layer %d holds, %v", layer, segments), x.read(x.s.AppendAttend(spec)), again)
	}
}

// index is the operands of an indexer for one step.
type index struct{ q, weights []float32 }

// newIndex returns random operands; the indexer is nil in cases without one.
func newIndex(x *bench, c attendCase, tokens int) (index, *tensor.Indexer) {
	if c.index == 0 {
		return index{}, nil
	}
	i := index{x.random(tokens * indexHeads * c.index), x.random(tokens * indexHeads)}
	return i, &tensor.Indexer{Q: x.s.From(i.q, tokens, indexHeads*c.index), Weights: x.s.From(i.weights, tokens, indexHeads), Size: c.index, TopK: indexTopK}
}

// float64s are the same numbers.
func float64s(in []float32) (out []float64) {
	for _, v := range in {
		out = append(out, float64(v))
	}
	return out
}

// selects returns the keys and values that a row sees. It is not clear which they
// are if the last that is selected is as good as one that is not.
func (i index) selects(c attendCase, row int, keys, values [][]float32) (k, v [][]float32, clear bool) {
	if c.index == 0 || len(keys) <= indexTopK {
		return keys, values, true
	}
	scores := make([]float64, len(keys))
	for p, key := range keys {
		for h := range indexHeads {
			var dot float64
			for j := range c.index {
				dot += float64(i.q[(row*indexHeads+h)*c.index+j]) * float64(key[c.query()+j])
			}
			scores[p] += float64(i.weights[row*indexHeads+h]) * math.Max(0, dot)
		}
	}
	sorted := slices.Sorted(slices.Values(scores))
	least := sorted[len(sorted)-indexTopK]
	for p, score := range scores {
		if score >= least {
			k, v = append(k, keys[p]), append(v, values[p])
		}
	}
	return k, v, least-sorted[len(sorted)-indexTopK-1] > 1e-3
}

// mutualRuns are runs in all segments that are long enough: one that begins after the
// first row, and, in the longest, a second one.
func mutualRuns(segments []tensor.Segment) (runs []tensor.Run) {
	row := 0
	for _, g := range segments {
		if g.Length > 2 {
			runs = append(runs, tensor.Run{First: row + 1, Length: 2})
		}
		if g.Length > 4 {
			runs = append(runs, tensor.Run{First: row + 3, Length: g.Length - 3})
		}
		row += g.Length
	}
	return runs
}

// attendOracle is one row at a position, that sees what there is of k and v.
func attendOracle(c attendCase, q []float32, k, v [][]float32, position int, sinks []float32) []float64 {
	out := make([]float64, c.heads*c.wide())
	first := 0
	if c.window > 0 {
		first = max(0, position+1-c.window)
	}
	if c.chunk > 0 {
		first = max(first, position-position%c.chunk)
	}
	for h := range c.heads {
		at := h / (c.heads / c.kvHeads)
		var sum float64
		if sinks != nil {
			sum = math.Exp(float64(sinks[h]))
		}
		for p := first; p < len(k); p++ {
			var score float64
			for i := range c.query() {
				score += float64(q[h*c.query()+i]) * float64(k[p][at*c.size+i])
			}
			score *= 0.3
			if c.cap > 0 {
				score = float64(c.cap) * math.Tanh(score/float64(c.cap))
			}
			e := math.Exp(score)
			sum += e
			for i := range c.wide() {
				out[h*c.wide()+i] += e * float64(v[p][at*c.wide()+i])
			}
		}
		for i := range c.wide() {
			out[h*c.wide()+i] /= sum
		}
	}
	return out
}

func (s cacheSuite) cacheErrors(t *testing.T) {
	x := s.open(t)
	if _, err := x.b.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: 1, HeadSize: 4}); !errors.Is(err, tensor.ErrShape) {
		t.Errorf("cache without blocks: error %v, want ErrShape", err)
	}
	cache, err := x.b.NewCache(tensor.CacheSpec{Layers: 1, KVHeads: 1, HeadSize: 4, BlockTokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	step := func(start, length int) error {
		sc := x.b.NewScope(context.Background())
		defer sc.Close()
		row := func() tensor.Array { return sc.From(x.random(length*4), length, 4) }
		sc.AppendAttend(tensor.AttendSpec{Cache: cache, Segments: []tensor.Segment{{Request: 1, Start: start, Length: length}}, Q: row(), K: row(), V: row(), Scale: 1})
		return sc.Err()
	}
	if err := step(0, 3); err != nil {
		t.Fatalf("first step: %v", err)
	}
	for _, start := range []int{0, 2, 4} {
		if err := step(start, 1); !errors.Is(err, tensor.ErrSegment) {
			t.Errorf("segment at %d after 3 tokens: error %v, want ErrSegment", start, err)
		}
	}
	for name, run := range map[string]tensor.Run{"past its segment": {First: 0, Length: 2}, "before it": {First: -1, Length: 1}, "of nothing": {First: 0}} {
		sc := x.b.NewScope(context.Background())
		one := sc.From(x.random(4), 1, 4)
		sc.AppendAttend(tensor.AttendSpec{Cache: cache, Segments: []tensor.Segment{{Request: 1, Start: 3, Length: 1}}, Q: one, K: one, V: one, Scale: 1, Mutual: []tensor.Run{run}})
		if err := sc.Err(); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("a run %s: error %v, want ErrShape", name, err)
		}
		sc.Close()
	}
	if err := step(3, 2); err != nil {
		t.Errorf("step that continues: %v", err)
	}
	if got := x.b.Memory().KV; got != cache.Bytes() || got == 0 {
		t.Errorf("back end counts %d bytes of KV, the cache %d", got, cache.Bytes())
	}
	cache.Release()
	if err := step(5, 1); !errors.Is(err, tensor.ErrReleased) {
		t.Errorf("released cache: error %v, want ErrReleased", err)
	}
	if got := x.b.Memory().KV; got != 0 {
		t.Errorf("%d bytes of KV after release", got)
	}
}
