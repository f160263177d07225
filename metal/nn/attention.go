package nn

import (
	"math"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// Pass is what all layers of one step share.
type Pass struct {
	Cache    tensor.Cache
	Segments []tensor.Segment
}

// Attention is grouped-query attention over a request's own past. Heads may be
// normed one by one before they are turned.
type Attention struct {
	Q, K, V, O Linear
	// HeadNorms are those of queries and keys; nil where a family has none.
	HeadNorms *HeadNorms
	AttentionSpec
}

// HeadNorms norm each head of queries and keys, with one weight for all heads.
type HeadNorms struct{ Q, K RMSNorm }

// AttentionSpec says what a layer's attention is, beside its weights.
type AttentionSpec struct {
	Layer    int
	HeadSize int
	Rope     tensor.RopeSpec
	// Window is how many latest positions a token sees, itself included; 0
	// means all.
	Window int
}

// Attention declares q_proj, k_proj, v_proj and o_proj below path.
func (l *Loader) Attention(path string, spec AttentionSpec, to *Attention) {
	to.AttentionSpec = spec
	l.Linear(path+".q_proj", &to.Q)
	l.Linear(path+".k_proj", &to.K)
	l.Linear(path+".v_proj", &to.V)
	l.Linear(path+".o_proj", &to.O)
}

// HeadNorms declares q_norm and k_norm below path.
func (l *Loader) HeadNorms(path string, eps float64, to *Attention) {
	to.HeadNorms = new(HeadNorms)
	l.RMSNorm(path+".q_norm", eps, &to.HeadNorms.Q)
	l.RMSNorm(path+".k_norm", eps, &to.HeadNorms.K)
}

// Attend appends the keys and values of x [T, hidden] to the cache and returns
// what the heads see, [T, heads*size]; O turns that into [T, hidden].
func (a *Attention) Attend(s tensor.Scope, x tensor.Array, p Pass) tensor.Array {
	qkv := s.Linear(x, a.Q.Matrix, a.K.Matrix, a.V.Matrix)
	q, k := qkv[0], qkv[1]
	if n := a.HeadNorms; n != nil {
		q, k = n.Q.Apply(s, q), n.K.Apply(s, k)
	}
	return s.AppendAttend(tensor.AttendSpec{
		Cache: p.Cache, Layer: a.Layer, Segments: p.Segments,
		Q:      s.Rope(q, p.Segments, a.HeadSize, a.Rope),
		K:      s.Rope(k, p.Segments, a.HeadSize, a.Rope),
		V:      qkv[2],
		Scale:  float32(1 / math.Sqrt(float64(a.HeadSize))),
		Window: a.Window,
	})
}
