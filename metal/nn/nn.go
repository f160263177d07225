// Package nn is the layers that model families are made of, from a product
// with one matrix to a whole decoder or encoder, and how their weights come from a file
// under canonical paths.
//
// It owns the step from a file's rows to a back end's matrices, the order in
// which they are read (the file's own), load progress, and the release of what
// was loaded. It refuses a tensor whose type a layer cannot use. It knows no
// family by name: package family describes their layers.
//
// Start reading at Loader, then Decoder and Encoder.
package nn

import (
	"math"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Linear is a product with a weight matrix, dense or quantised.
type Linear struct {
	Matrix tensor.Matrix
	// Bias is added to the product; nil means none.
	Bias tensor.Array
}

// Apply multiplies x [T, in]: [T, out].
func (l Linear) Apply(s tensor.Scope, x tensor.Array) tensor.Array {
	if l.Bias != nil {
		return s.LinearBias(x, []tensor.Matrix{l.Matrix}, []tensor.Array{l.Bias})[0]
	}
	return s.Linear(x, l.Matrix)[0]
}

// Linear declares the matrix path+".weight".
func (l *Loader) Linear(path string, to *Linear) {
	l.matrix(path, 2, func(m tensor.Matrix) { to.Matrix, l.layers[path] = m, m })
}

// table declares the matrix path+".weight" of an embedding.
func (l *Loader) table(path string, to *embedding) {
	l.matrix(path, 2, func(m tensor.Matrix) { to.Matrix = m })
}

// embedding gathers rows by token id. Its matrix may also be the output head.
type embedding struct {
	Linear
	// Scale multiplies embeddings; 0 means 1.
	Scale float32
}

// Lookup returns the embeddings of ids: [T, hidden].
func (e embedding) Lookup(s tensor.Scope, ids tensor.Array) tensor.Array {
	x := s.Embed(e.Matrix, ids)
	if e.Scale == 0 {
		return x
	}
	defer s.Release(x)
	return s.Map(x, tensor.ScaleShift{Scale: e.Scale})
}

// RMSNorm scales runs of elements to unit root mean square and by its weight.
type RMSNorm struct {
	Weight tensor.Array
	Eps    float32
}

// Apply normalises x [T, D] in runs as long as the weight.
func (n RMSNorm) Apply(s tensor.Scope, x tensor.Array) tensor.Array {
	return s.RMSNorm(x, n.Weight, n.Eps)
}

// RMSNorm declares the norm path+".weight".
func (l *Loader) RMSNorm(path string, eps float64, to *RMSNorm) {
	to.Eps = float32(eps)
	if l.normsLessOne {
		l.vector(path+".weight", func(v tensor.Array) { to.Weight = l.plusOne(v) })
		return
	}
	l.vector(path+".weight", func(v tensor.Array) { to.Weight = v })
}

// FeedForward is the second half of a block.
type FeedForward interface {
	// Apply runs it on x [T, D].
	Apply(s tensor.Scope, x tensor.Array) tensor.Array
}

// gatedMLP is down(silu(gate(x)) * up(x)), or with GELU in place of SiLU.
type gatedMLP struct {
	Gate, Up, Down Linear
	GELU           bool
	// Limit bounds both factors (family.Feed.Limit); 0 means no bound.
	Limit float32
	// Sparse gates keep what exceeds their mean by Exceed deviations.
	Sparse bool
	Exceed float32
}

// Apply runs the block on x [T, D].
func (m *gatedMLP) Apply(s tensor.Scope, x tensor.Array) tensor.Array {
	gate, up := m.project(s, x)
	if m.Sparse {
		all := gate
		gate = s.Exceed(all, m.Exceed)
		s.Release(all)
	}
	switch {
	case m.GELU:
		return m.Down.Apply(s, s.GLU(gate, up, tensor.GeGLU{}))
	case m.Limit > 0:
		return m.Down.Apply(s, s.GLU(gate, up, tensor.LimitedSwiGLU{Limit: m.Limit}))
	}
	return m.Down.Apply(s, s.GLU(gate, up, tensor.SwiGLU{}))
}

func (m *gatedMLP) project(s tensor.Scope, x tensor.Array) (gate, up tensor.Array) {
	ms := []tensor.Matrix{m.Gate.Matrix, m.Up.Matrix}
	if m.Gate.Bias == nil {
		gu := s.Linear(x, ms...)
		return gu[0], gu[1]
	}
	gu := s.LinearBias(x, ms, []tensor.Array{m.Gate.Bias, m.Up.Bias})
	return gu[0], gu[1]
}

// plainMLP is down(activation(up(x))).
type plainMLP struct {
	Up, Down   Linear
	Activation family.Activation
	// Curve is the activation if it is an XIELU.
	Curve *curve
}

// Apply runs the block on x [T, D].
func (m *plainMLP) Apply(s tensor.Scope, x tensor.Array) tensor.Array {
	inner := m.Up.Apply(s, x)
	switch m.Activation {
	case family.SiLU:
		inner = s.Map(inner, tensor.SiLU{})
	case family.GELU, family.GELUTanh:
		inner = s.Map(inner, tensor.GELU{Tanh: m.Activation == family.GELUTanh})
	case family.ReLU2:
		inner = s.Map(inner, tensor.ReLU2{})
	case family.XIELU:
		inner = s.Map(inner, tensor.XIELU{Positive: m.Curve.positive(), Negative: m.Curve.negative(), Beta: m.Curve.beta[0], Eps: m.Curve.eps[0]})
	}
	return m.Down.Apply(s, inner)
}

// newFeed declares a dense feed-forward under path.
func newFeed(l *Loader, path string, f family.Feed) FeedForward {
	linear := func(name string, to *Linear) {
		l.Linear(path+"."+name, to)
		if f.Bias {
			l.Bias(path+"."+name, to)
		}
	}
	if f.Plain {
		m := &plainMLP{Activation: f.Activation}
		if f.Activation == family.XIELU {
			m.Curve = newCurve(l, path+".act_fn")
		}
		linear("up_proj", &m.Up)
		linear("down_proj", &m.Down)
		return m
	}
	m := &gatedMLP{GELU: f.Activation == family.GELUTanh, Limit: float32(f.Limit), Sparse: f.Sparsity > 0, Exceed: float32(math.Sqrt2 * math.Erfinv(2*f.Sparsity-1))}
	linear("gate_proj", &m.Gate)
	linear("up_proj", &m.Up)
	linear("down_proj", &m.Down)
	return m
}
