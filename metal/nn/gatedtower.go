package nn

import (
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/vision"
)

// gatedLayer is a layer of Gemma 4's tower: both halves are normed before and after, and
// heads are normed.
type gatedLayer struct {
	before, after, beforeFeed, afterFeed RMSNorm
	qNorm, kNorm, vNorm                  RMSNorm
	q, k, v, o, gate, up, down           clipped
}

// clipped is a product whose input and output have bounds: the least and the largest value
// of the one, then of the other. It has none if the tower is not Clipped.
type clipped struct {
	Linear
	bounds [4][]float32
}

// clipped declares the matrix path+".weight" and its bounds.
func (l *Loader) clipped(path string, bounded bool, to *clipped) {
	l.Linear(path, &to.Linear)
	for i, name := range family.TowerBounds() {
		if bounded {
			l.host(path+"."+name, &to.bounds[i])
		}
	}
}

// Apply multiplies x [T, in]: [T, out]. What is clipped does not outlive it: a layer would
// hold half as much again (family.Tower.Elements).
func (c clipped) Apply(s tensor.Scope, x tensor.Array) tensor.Array {
	if c.bounds[0] == nil {
		return c.Linear.Apply(s, x)
	}
	inner := s.Child()
	defer inner.Close()
	product := c.Linear.Apply(inner, inner.Map(x, tensor.Clip{Low: c.bounds[0][0], High: c.bounds[1][0]}))
	return inner.Keep(inner.Map(product, tensor.Clip{Low: c.bounds[2][0], High: c.bounds[3][0]}))
}

// declareGated declares all but the places of a gated tower.
func (t *Tower) declareGated() {
	const at = family.TowerPrefix
	l, d := t.loader, t.dims
	l.Linear(at+"patch", &t.patch.Linear)
	t.gated = make([]gatedLayer, d.Layers)
	bare := RMSNorm{l.ones(d.HeadSize()), float32(d.Eps)}
	for i := range t.gated {
		layer := &t.gated[i]
		path := fmt.Sprintf("%slayers.%d.", at, i)
		for name, to := range map[string]*RMSNorm{
			"before": &layer.before, "after": &layer.after, "beforeFeed": &layer.beforeFeed, "afterFeed": &layer.afterFeed, "qNorm": &layer.qNorm, "kNorm": &layer.kNorm,
		} {
			l.RMSNorm(path+name, d.Eps, to)
		}
		layer.vNorm = bare
		for name, to := range map[string]*clipped{"q": &layer.q, "k": &layer.k, "v": &layer.v, "o": &layer.o, "gate": &layer.gate, "up": &layer.up, "down": &layer.down} {
			l.clipped(path+name, d.Clipped, to)
		}
	}
	if d.Standard {
		l.whole(at+"merger.offset", 2, func(m tensor.Matrix) { t.merger.offset = m })
		l.vector(at+"merger.factor", func(v tensor.Array) { t.merger.factor = v })
	}
	t.merger.mean = RMSNorm{l.ones(d.Hidden), float32(d.Eps)}
	l.Linear(at+"merger.project", &t.merger.project)
}

// embedGated projects patches, and adds the places of their columns and of their rows:
// [T, hidden].
func (t *Tower) embedGated(s tensor.Scope, p *vision.Patches) tensor.Array {
	rows := p.Rows * p.Columns
	x := t.patch.Linear.Apply(s, s.Map(s.From(p.Values, rows, p.Width), tensor.ScaleShift{Scale: 2, Shift: -1}))
	var across, down []int32
	for row, column := range vision.Order(p.Rows, p.Columns, t.dims.Merge) {
		across, down = append(across, int32(column)), append(down, int32(t.dims.Side+row))
	}
	return s.Add(x, s.Add(s.Embed(t.places.Matrix, s.IDs(across)), s.Embed(t.places.Matrix, s.IDs(down))))
}

// gatedLayer runs one layer on x [T, hidden].
func (t *Tower) gatedLayer(s tensor.Scope, l *gatedLayer, x tensor.Array, r *turns) tensor.Array {
	normed := l.before.Apply(s, x)
	q := t.rotateApart(s, l.qNorm.Apply(s, l.q.Apply(s, normed)), r)
	k := t.rotateApart(s, l.kNorm.Apply(s, l.k.Apply(s, normed)), r)
	seen := t.attend(s, q, k, l.vNorm.Apply(s, l.v.Apply(s, normed)))
	x = s.Add(x, l.after.Apply(s, l.o.Apply(s, seen)))
	normed = l.beforeFeed.Apply(s, x)
	wide := s.GLU(l.gate.Apply(s, normed), l.up.Apply(s, normed), tensor.GeGLU{})
	return s.Add(x, l.afterFeed.Apply(s, l.down.Apply(s, wide)))
}

// rotateApart turns the first half of each head by column and the second by row. Pairs are
// (i, i+size/4) of a half.
func (t *Tower) rotateApart(s tensor.Scope, x tensor.Array, r *turns) tensor.Array {
	half := t.dims.HeadSize() / 2
	spec := tensor.RopeSpec{Theta: t.dims.Theta, Size: half}
	parts := s.Split(x, half, half)
	return s.Join([]tensor.Array{s.Rope(parts[0], r.columns, half, spec), s.Rope(parts[1], r.rows, half, spec)}, half, half)
}

// scaled multiplies means x [T, hidden] by the root of the width, and standardizes their
// columns.
func (t *Tower) scaled(s tensor.Scope, m *merger, x tensor.Array) tensor.Array {
	x = s.Map(x, tensor.ScaleShift{Scale: float32(math.Sqrt(float64(t.dims.Hidden)))})
	if m.factor == nil || s.Err() != nil {
		return x
	}
	offset := s.Embed(m.offset, s.IDs(make([]int32, x.Shape()[0])))
	return s.Multiply(s.Add(x, s.Map(offset, tensor.ScaleShift{Scale: -1})), m.factor)
}
