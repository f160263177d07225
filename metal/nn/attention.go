package nn

import (
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/vision"
)

// Pass is the state that all layers of one step share.
type Pass struct {
	Cache    tensor.Cache
	Segments []tensor.Segment
	// Turns are where tokens stand for rotations; nil means where they stand in their
	// requests.
	Turns *Turns
	// Mutual are runs of rows whose tokens see one another.
	Mutual []tensor.Run
	// Inner is what each layer gets of each token besides; nil where layers get
	// nothing.
	Inner []tensor.Array
}

// Turns are the positions of tokens by time and, in images, by row and column. Rows
// and Columns are nil if they are equal to Time.
type Turns struct{ Time, Rows, Columns []tensor.Segment }

// TurnsOf are the turns of tokens at places; flat ones are equal on all axes.
func TurnsOf(places []vision.Place, flat bool) *Turns {
	t := new(Turns)
	for _, p := range places {
		t.Time = append(t.Time, tensor.Segment{Start: p.Time, Length: 1})
		if !flat {
			t.Rows = append(t.Rows, tensor.Segment{Start: p.Row, Length: 1})
			t.Columns = append(t.Columns, tensor.Segment{Start: p.Column, Length: 1})
		}
	}
	return t
}

// Attention is grouped-query attention over a request's own past. Heads may be
// normed one by one before they are turned.
type Attention struct {
	// K has no matrix in layers that read the keys and values of another, V none
	// where keys are values too.
	Q, K, V, O Linear
	// Gate is one number per head, whose sigmoid or, with Softplus, softplus
	// multiplies the output of the head; it has no matrix if the family has none.
	Gate     Linear
	Softplus bool
	// Biases of Q, K and V; nil if the family has none.
	Biases *Biases
	// HeadNorms of queries and keys; nil if the family has none.
	HeadNorms *HeadNorms
	// Gated: each head of Q is followed by a gate of its size, whose sigmoid
	// multiplies the output of the head.
	Gated bool
	// NormLast heads are normed after they were rotated.
	NormLast bool
	// Sinks are scores of query heads that join the softmax without a value;
	// nil if the family has none.
	Sinks []float32
	// axes are what pairs turn by in images (family.Tower.Axes); nil where that makes no
	// difference.
	axes []int
	// alone is set where the tokens of an image do not see those of it that follow them.
	alone bool
	AttentionSpec
}

// Biases are added to the projections of queries, keys and values.
type Biases struct{ Q, K, V tensor.Array }

// HeadNorms norm each head of queries and keys, with one weight for all heads.
type HeadNorms struct{ Q, K RMSNorm }

// AttentionSpec describes a layer's attention except for its weights.
type AttentionSpec struct {
	// Layer counts those that attend and have keys of their own.
	Layer    int
	HeadSize int
	// ValueNorm norms each head of values; its weight is ones. ValueScale multiplies
	// values if it is not 0.
	ValueNorm  RMSNorm
	ValueScale float32
	// Rope is the rotary embedding; size 0 means none.
	Rope tensor.RopeSpec
	// Temper scales queries up with their position; nil means that it does not.
	Temper *family.Temper
	// Scale multiplies scores.
	Scale float32
	// Window is the number of latest positions that a token attends to,
	// including itself; 0 means all.
	Window int
	// Chunk, unless 0, cuts positions into chunks; a token attends to none before its own.
	Chunk int
	// Cap bounds scores; 0 means that it does not.
	Cap float32
}

// newAttention declares q_proj, k_proj, v_proj and o_proj with the prefix path,
// and the family's optional tensors.
func newAttention(l *Loader, path string, d family.Dimensions, f family.Attention, layer int) *Attention {
	a := &Attention{Gated: f.Gated, NormLast: f.NormLast, AttentionSpec: AttentionSpec{
		Layer: layer, HeadSize: f.HeadSize, Temper: f.Temper, Scale: float32(f.Scale), Window: f.Window, Chunk: f.Chunk, Cap: float32(f.Cap), ValueScale: float32(f.ValueScale),
	}}
	if f.Rope != nil {
		a.Rope = l.rope(*f.Rope)
	}
	if d.Tower != nil {
		a.axes, a.alone = d.Tower.Axes, d.Tower.Windowed && f.Window == 0
	}
	l.Linear(path+".q_proj", &a.Q)
	if !f.Shared {
		l.Linear(path+".k_proj", &a.K)
	}
	if !f.Shared && !f.Same {
		l.Linear(path+".v_proj", &a.V)
	}
	l.Linear(path+".o_proj", &a.O)
	if f.Bias {
		l.Biases(path, a)
	}
	if f.OutBias {
		l.Bias(path+".o_proj", &a.O)
	}
	l.headNorms(path, d, f, a)
	if a.Softplus = f.HeadGate == family.SoftplusGate; f.HeadGate != family.NoGate {
		l.Linear(path+".g_proj", &a.Gate)
	}
	if f.Sinks {
		l.Sinks(path, a)
	}
	return a
}

// headNorms declares the norms of heads.
func (l *Loader) headNorms(path string, d family.Dimensions, f family.Attention, to *Attention) {
	bare := func() RMSNorm { return RMSNorm{l.ones(f.HeadSize), float32(d.NormEps)} }
	if f.ValueNorm && !f.Shared {
		to.ValueNorm = RMSNorm{l.ones(f.ValueSize), float32(d.NormEps)}
	}
	switch {
	case f.HeadNorm == family.NoHeadNorm:
	case f.HeadNorm == family.BareHead:
		to.HeadNorms = &HeadNorms{bare(), bare()}
	case f.Shared:
		to.HeadNorms = new(HeadNorms)
		l.RMSNorm(path+".q_norm", d.NormEps, &to.HeadNorms.Q)
	default:
		l.HeadNorms(path, d.NormEps, to)
	}
}

// Biases declares the biases of q_proj, k_proj and v_proj with the prefix path.
func (l *Loader) Biases(path string, to *Attention) {
	b := new(Biases)
	to.Biases = b
	l.vector(path+".q_proj.bias", func(v tensor.Array) { b.Q = v })
	l.vector(path+".k_proj.bias", func(v tensor.Array) { b.K = v })
	l.vector(path+".v_proj.bias", func(v tensor.Array) { b.V = v })
}

// HeadNorms declares q_norm and k_norm with the prefix path.
func (l *Loader) HeadNorms(path string, eps float64, to *Attention) {
	to.HeadNorms = new(HeadNorms)
	l.RMSNorm(path+".q_norm", eps, &to.HeadNorms.Q)
	l.RMSNorm(path+".k_norm", eps, &to.HeadNorms.K)
}

// project gives queries, keys and values of x; those that the layer does not have
// are nil.
func (a *Attention) project(s tensor.Scope, x tensor.Array) (q, k, v tensor.Array) {
	ms := []tensor.Matrix{a.Q.Matrix, a.K.Matrix, a.V.Matrix}
	if b := a.Biases; b != nil {
		out := s.LinearBias(x, ms, []tensor.Array{b.Q, b.K, b.V})
		return out[0], out[1], out[2]
	}
	switch {
	case a.K.Matrix == nil:
		return s.Linear(x, ms[0])[0], nil, nil
	case a.V.Matrix == nil:
		out := s.Linear(x, ms[:2]...)
		return out[0], out[1], out[1]
	}
	out := s.Linear(x, ms...)
	return out[0], out[1], out[2]
}

// Attend appends the keys and values of x [T, hidden] to the cache and returns
// the output of the heads, [T, heads*size]; O projects that to [T, hidden].
func (a *Attention) Attend(s tensor.Scope, x tensor.Array, p Pass) tensor.Array {
	q, k, v := a.project(s, x)
	var gate tensor.Array
	if a.Gated {
		parts := s.Split(q, a.HeadSize, a.HeadSize)
		s.Release(q)
		q, gate = parts[0], parts[1]
	}
	if a.ValueNorm.Weight != nil {
		v = a.ValueNorm.Apply(s, v)
	}
	if a.ValueScale != 0 && v != nil {
		v = s.Map(v, tensor.ScaleShift{Scale: a.ValueScale})
	}
	q = a.turned(s, q, p, a.queries(), true)
	if k != nil {
		k = a.turned(s, k, p, a.Rope, false)
	}
	mutual := p.Mutual
	if a.alone {
		mutual = nil
	}
	seen := s.AppendAttend(tensor.AttendSpec{
		Cache: p.Cache, Layer: a.Layer, Segments: p.Segments, Q: q, K: k, V: v,
		Scale: a.Scale, Window: a.Window, Chunk: a.Chunk, Sinks: a.Sinks, Cap: a.Cap, Mutual: mutual,
	})
	switch {
	case a.Gate.Matrix != nil && a.Softplus:
		return s.Multiply(seen, s.Map(a.Gate.Apply(s, x), tensor.Softplus{}))
	case a.Gate.Matrix != nil:
		return s.SigmoidGate(seen, a.Gate.Apply(s, x))
	}
	if gate == nil {
		return seen
	}
	defer s.Release(seen)
	defer s.Release(gate)
	return s.SigmoidGate(seen, gate)
}

// turned norms and rotates heads of queries or keys.
func (a *Attention) turned(s tensor.Scope, x tensor.Array, p Pass, spec tensor.RopeSpec, queries bool) tensor.Array {
	norm := func() {
		switch n := a.HeadNorms; {
		case n == nil:
		case queries:
			x = n.Q.Apply(s, x)
		default:
			x = n.K.Apply(s, x)
		}
	}
	if !a.NormLast {
		norm()
	}
	if spec.Size > 0 || spec.Beta != 0 {
		x = a.rotate(s, x, p, spec)
	}
	if a.NormLast {
		norm()
	}
	return x
}

// rotate turns heads by where their tokens stand. Tokens of images turn once by each axis:
// pairs that do not turn by it are turned by nothing.
func (a *Attention) rotate(s tensor.Scope, x tensor.Array, p Pass, spec tensor.RopeSpec) tensor.Array {
	switch {
	case p.Turns == nil || a.axes == nil:
		return s.Rope(x, p.Segments, a.HeadSize, spec)
	case p.Turns.Rows == nil:
		return s.Rope(x, p.Turns.Time, a.HeadSize, spec)
	}
	for axis, at := range [][]tensor.Segment{p.Turns.Time, p.Turns.Rows, p.Turns.Columns} {
		turned := s.Rope(x, at, a.HeadSize, alongAxis(spec, a.axes, axis))
		if axis > 0 {
			s.Release(x)
		}
		x = turned
	}
	return x
}

// alongAxis leaves the pairs of other axes alone, and what multiplies heads to the first
// axis.
func alongAxis(spec tensor.RopeSpec, axes []int, axis int) tensor.RopeSpec {
	const still = 1e20 // divides the frequency: no position turns a pair by as much as a rounding
	factors := make([]float32, len(axes))
	for i, of := range axes {
		factors[i] = 1
		if spec.Factors != nil {
			factors[i] = spec.Factors[i]
		}
		if of != axis {
			factors[i] = still
		}
	}
	spec.Factors = factors
	if axis > 0 {
		spec.Magnitude, spec.Beta = 1, 0
	}
	return spec
}

// Output returns the projection after Attend.
func (a *Attention) Output() Linear { return a.O }

// queries is how queries are turned.
func (a *Attention) queries() tensor.RopeSpec {
	spec := a.Rope
	if a.Temper != nil {
		spec.Beta, spec.Every, spec.Lead = a.Temper.Beta, a.Temper.Every, a.Temper.Lead
	}
	return spec
}
