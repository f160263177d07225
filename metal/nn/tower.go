package nn

import (
	"context"
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/vision"
)

// Tower is a vision tower: it turns the patches of an image into tokens.
type Tower struct {
	loader *Loader
	dims   family.Tower
	patch  Dense
	places embedding
	layers []towerLayer
	// gated are the layers of a tower that is family.Tower.Gated.
	gated  []gatedLayer
	norm   LayerNorm
	merger merger
	deep   []merger
}

// towerLayer is attention over all patches, and a feed-forward.
type towerLayer struct {
	before, beforeFeed LayerNorm
	// qkv is used where they are joined, else q, k and v.
	qkv, q, k, v, o Dense
	up, down        Dense
}

// merger makes tokens of patches. Those of mean have a norm without bias, and only
// project; offset and factor are for each column, if the tower has them.
type merger struct {
	norm     LayerNorm
	mean     RMSNorm
	up, down Dense
	project  Linear
	offset   tensor.Matrix
	factor   tensor.Array
}

// Seen are the tokens of an image: States [T, hidden] take the place of the embedding,
// and Deep are added after the first layers of the decoder, one after another.
type Seen struct {
	States tensor.Array
	Deep   []tensor.Array
}

// LoadTower loads a vision tower from its part of a file (weights.File.Tower). After an error
// nothing stays loaded.
func LoadTower(ctx context.Context, l *Loader, d family.Tower) (*Tower, error) {
	t := &Tower{loader: l, dims: d}
	const at = family.TowerPrefix
	l.Linear(at+"places", &t.places.Linear)
	if d.Gated {
		t.declareGated()
	} else {
		t.declare()
	}
	if err := l.Load(ctx); err != nil {
		l.Release()
		return nil, err
	}
	return t, nil
}

// declare declares all but the places of a tower that is not gated.
func (t *Tower) declare() {
	const at = family.TowerPrefix
	l, d := t.loader, t.dims
	t.layers, t.deep = make([]towerLayer, d.Layers), make([]merger, len(d.Deep))
	l.Dense(at+"patch", &t.patch)
	for i := range t.layers {
		t.layers[i].declare(l, fmt.Sprintf("%slayers.%d.", at, i), d)
	}
	if d.FinalNorm {
		l.LayerNorm(at+"norm", d.Eps, &t.norm)
	}
	if d.Merger == family.MergeMean {
		l.normsLessOne = true
		l.RMSNorm(at+"merger.norm", d.Eps, &t.merger.mean)
		l.whole(at+"merger.turned", 3, func(m tensor.Matrix) { t.merger.project.Matrix = m })
	} else {
		t.merger.declare(l, at+"merger", d)
	}
	for i := range t.deep {
		t.deep[i].declare(l, fmt.Sprintf("%sdeep.%d", at, i), d)
	}
}

// declare declares the layer whose tensors have the prefix at.
func (t *towerLayer) declare(l *Loader, at string, d family.Tower) {
	l.LayerNorm(at+"before", d.Eps, &t.before)
	l.LayerNorm(at+"beforeFeed", d.Eps, &t.beforeFeed)
	if d.Joined {
		l.Dense(at+"qkv", &t.qkv)
	} else {
		l.Dense(at+"q", &t.q)
		l.Dense(at+"k", &t.k)
		l.Dense(at+"v", &t.v)
	}
	l.Dense(at+"o", &t.o)
	l.Dense(at+"up", &t.up)
	l.Dense(at+"down", &t.down)
}

// declare declares the merger whose tensors have the prefix at.
func (m *merger) declare(l *Loader, at string, d family.Tower) {
	l.LayerNorm(at+".norm", d.Eps, &m.norm)
	l.Dense(at+".up", &m.up)
	l.Dense(at+".down", &m.down)
}

// Release frees the weights.
func (t *Tower) Release() { t.loader.Release() }

// Encode runs the patches of one image through the tower.
func (t *Tower) Encode(s tensor.Scope, p *vision.Patches) Seen {
	e := t.Begin(s, p)
	for e.Next() {
	}
	return e.Seen()
}

// Encoding is an image on its way through the tower, layer by layer. What it holds between
// two layers is in its scope.
type Encoding struct {
	tower *Tower
	scope tensor.Scope
	turn  *turns
	x     tensor.Array
	layer int
	out   Seen
}

// Begin embeds the patches of an image.
func (t *Tower) Begin(s tensor.Scope, p *vision.Patches) *Encoding {
	e := &Encoding{tower: t, scope: s, turn: t.rotation(p)}
	e.within(func(inner tensor.Scope) { e.x = inner.Keep(t.embed(inner, p)) })
	return e
}

// Next computes one more layer, or the tokens after the last one. It returns false once
// the tokens are there, or after an error of the scope.
func (e *Encoding) Next() bool {
	t, before := e.tower, e.x
	if e.scope.Err() != nil || e.out.States != nil {
		return false
	}
	e.within(func(s tensor.Scope) {
		if e.layer == t.dims.Layers {
			last := before
			if t.dims.FinalNorm {
				last = t.norm.Apply(s, last)
			}
			e.out.States = s.Keep(t.merge(s, &t.merger, last, false))
			return
		}
		if t.dims.Gated {
			e.x = s.Keep(t.gatedLayer(s, &t.gated[e.layer], before, e.turn))
			return
		}
		e.x = s.Keep(t.layer(s, &t.layers[e.layer], before, e.turn))
		for j, deep := range t.dims.Deep {
			if deep == e.layer {
				e.out.Deep = append(e.out.Deep, s.Keep(t.merge(s, &t.deep[j], e.x, true)))
			}
		}
	})
	e.scope.Release(before)
	e.layer++
	return e.scope.Err() == nil && e.out.States == nil
}

// Wait waits for what was computed so far.
func (e *Encoding) Wait() { e.scope.Wait(e.arrays()...) }

func (e *Encoding) arrays() []tensor.Array {
	if e.out.States != nil {
		return append([]tensor.Array{e.out.States}, e.out.Deep...)
	}
	return append([]tensor.Array{e.x}, e.out.Deep...)
}

// Seen returns the tokens of the image, which belong to its scope.
func (e *Encoding) Seen() Seen { return e.out }

// within runs a part of the computation in a scope of its own.
func (e *Encoding) within(do func(tensor.Scope)) {
	inner := e.scope.Child()
	defer inner.Close()
	do(inner)
}

// embed projects patches and adds their places: [T, hidden].
func (t *Tower) embed(s tensor.Scope, p *vision.Patches) tensor.Array {
	rows := p.Rows * p.Columns
	if t.dims.Gated {
		return t.embedGated(s, p)
	}
	x := t.patch.Apply(s, s.From(p.Values, rows, p.Width))
	ids, shares := t.taps(p)
	places := s.Embed(t.places.Matrix, s.IDs(ids))
	if t.dims.Interpolated {
		places = s.Combine(places, s.From(shares, rows, 4))
	}
	return s.Add(x, places)
}

// taps are the places of patches in the table and, of each that lies between four, their
// shares: bilinear, with the corners of the image on those of the table (transformers'
// vision_utils.py, get_vision_interpolation_indices_and_weights, 5.23).
func (t *Tower) taps(p *vision.Patches) (ids []int32, shares []float32) {
	side := t.dims.Side
	for row, column := range vision.Order(p.Rows, p.Columns, t.dims.Merge) {
		if !t.dims.Interpolated {
			ids = append(ids, int32(row*side+column))
			continue
		}
		top, down := between(row, p.Rows, side)
		left, across := between(column, p.Columns, side)
		for i := range 4 {
			y, x := min(top+i/2, side-1), min(left+i%2, side-1)
			ids = append(ids, int32(y*side+x))
		}
		shares = append(shares, (1-down)*(1-across), (1-down)*across, down*(1-across), down*across)
	}
	return ids, shares
}

// between is where one of n positions lies in a table: after an entry, by a part of the way
// to the next.
func between(i, n, side int) (at int, part float32) {
	place := float32(i) * float32(side-1) / float32(max(1, n-1))
	floor := float32(math.Floor(float64(place)))
	return int(floor), place - floor
}

// turns are the positions of patches for the rotation of heads: by row for one half of
// the pairs, by column for the other.
type turns struct{ rows, columns []tensor.Segment }

// rotation returns nil if heads are not rotated.
func (t *Tower) rotation(p *vision.Patches) *turns {
	if t.dims.Theta == 0 {
		return nil
	}
	r := new(turns)
	for row, column := range vision.Order(p.Rows, p.Columns, t.dims.Merge) {
		r.rows = append(r.rows, tensor.Segment{Start: row, Length: 1})
		r.columns = append(r.columns, tensor.Segment{Start: column, Length: 1})
	}
	return r
}

// rotate turns the heads of x. Pairs are (i, i+size/2); the first half of them turns by
// row. The result has these pairs first and then those that turn by column, which
// changes no product of a query and a key.
func (t *Tower) rotate(s tensor.Scope, x tensor.Array, r *turns) tensor.Array {
	if r == nil {
		return x
	}
	size := t.dims.HeadSize()
	spec := tensor.RopeSpec{Theta: t.dims.Theta, Size: size / 2}
	parts := s.Split(x, size/4, size/4, size/4, size/4)
	byRow := s.Rope(s.Join([]tensor.Array{parts[0], parts[2]}, size/4, size/4), r.rows, size/2, spec)
	byColumn := s.Rope(s.Join([]tensor.Array{parts[1], parts[3]}, size/4, size/4), r.columns, size/2, spec)
	return s.Join([]tensor.Array{byRow, byColumn}, size/2, size/2)
}

// layer runs one layer on x [T, hidden].
func (t *Tower) layer(s tensor.Scope, l *towerLayer, x tensor.Array, r *turns) tensor.Array {
	d := t.dims
	qkv := t.project(s, l, l.before.Apply(s, x))
	seen := t.attend(s, t.rotate(s, qkv[0], r), t.rotate(s, qkv[1], r), qkv[2])
	x = s.Add(x, l.o.Apply(s, seen))
	wide := s.Map(l.up.Apply(s, l.beforeFeed.Apply(s, x)), tensor.GELU{Tanh: d.Activation == family.GELUTanh})
	return s.Add(x, l.down.Apply(s, wide))
}

// attend lets every patch see all patches. Heads are filled with zeros up to a size that
// kernels have.
func (t *Tower) attend(s tensor.Scope, q, k, v tensor.Array) tensor.Array {
	if s.Err() != nil { // what failed has no shape
		return nil
	}
	d, rows := t.dims, q.Shape()[0]
	size := d.HeadSize()
	more := d.AttendedSize() - size
	if more > 0 {
		zeros := s.From(make([]float32, rows*d.Heads*more), rows, d.Heads*more)
		fill := func(x tensor.Array) tensor.Array { return s.Join([]tensor.Array{x, zeros}, size, more) }
		q, k, v = fill(q), fill(k), fill(v)
	}
	scale := float32(1 / math.Sqrt(float64(size)))
	if d.Gated {
		scale = 1
	}
	seen := s.AttendAll(tensor.AttendAllSpec{Segments: []tensor.Segment{{Length: rows}}, Q: q, K: k, V: v, Heads: d.Heads, Scale: scale})
	if more > 0 {
		seen = s.Split(seen, size, more)[0]
	}
	return seen
}

func (t *Tower) project(s tensor.Scope, l *towerLayer, x tensor.Array) []tensor.Array {
	if t.dims.Joined {
		return s.Split(l.qkv.Apply(s, x), t.dims.Hidden, t.dims.Hidden, t.dims.Hidden)
	}
	return s.LinearBias(x, []tensor.Matrix{l.q.Matrix, l.k.Matrix, l.v.Matrix}, []tensor.Array{l.q.Bias, l.k.Bias, l.v.Bias})
}

// merge makes tokens of blocks of patches: [T/block, out]. Deep states are normed after
// they are joined.
func (t *Tower) merge(s tensor.Scope, m *merger, x tensor.Array, deep bool) tensor.Array {
	if s.Err() != nil {
		return nil
	}
	block := t.dims.Block()
	tokens := x.Shape()[0] / block
	if t.dims.Merger != family.MergeMLP {
		segments := make([]tensor.Segment, tokens)
		for i := range segments {
			segments[i].Length = block
		}
		x = s.Mean(x, segments, nil)
		if t.dims.Merger == family.MergeScaled {
			x = t.scaled(s, m, x)
		}
		return m.project.Apply(s, m.mean.Apply(s, x))
	}
	if !deep {
		x = m.norm.Apply(s, x)
	}
	parts, widths := make([]tensor.Array, block), make([]int, block)
	for i := range parts {
		rows := make([]int, tokens)
		for j := range rows {
			rows[j] = j*block + i
		}
		parts[i], widths[i] = s.Rows(x, rows), t.dims.Hidden
	}
	x = s.Join(parts, widths...)
	if deep {
		x = m.norm.Apply(s, x)
	}
	return m.down.Apply(s, s.Map(m.up.Apply(s, x), tensor.GELU{}))
}
