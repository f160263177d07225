package nn

import (
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Latent is attention to a latent vector, which the cache keeps in place of keys
// and values of single heads (family.Latent).
type Latent struct {
	// QA and QNorm make the vector that QB makes queries of; where QA has no matrix
	// QB reads the input.
	QA, QB Linear
	QNorm  RMSNorm
	// KV computes the latent vector, which KVNorm norms, and the rotated part
	// of keys.
	KV     Linear
	KVNorm RMSNorm
	// EmbedQ and Unembed have a matrix for each head.
	EmbedQ, Unembed, O Linear

	// indexer selects tokens; nil means all.
	indexer *indexer

	heads int
	shape family.Latent
	spec  AttentionSpec
}

// newLatent declares latent attention under path.
func newLatent(l *Loader, path string, d family.Dimensions, f family.Attention, shape family.Latent, layer int) *Latent {
	a := &Latent{heads: d.QueryHeads, shape: shape, spec: AttentionSpec{Layer: layer, Scale: float32(f.Scale), Window: f.Window, Temper: f.Temper}}
	if f.Rope != nil {
		a.spec.Rope = l.rope(*f.Rope)
	}
	biased := func(name string, to *Linear) {
		l.Linear(path+name, to)
		if shape.Bias {
			l.Bias(path+name, to)
		}
	}
	if shape.QueryRank > 0 {
		biased(".q_a_proj", &a.QA)
		l.RMSNorm(path+".q_a_layernorm", shape.Eps, &a.QNorm)
		l.Linear(path+".q_b_proj", &a.QB)
	} else {
		l.Linear(path+".q_proj", &a.QB)
	}
	biased(".kv_a_proj_with_mqa", &a.KV)
	l.RMSNorm(path+".kv_a_layernorm", shape.Eps, &a.KVNorm)
	l.heads(path+".embed_q", &a.EmbedQ)
	l.heads(path+".unembed_out", &a.Unembed)
	biased(".o_proj", &a.O)
	if shape.Indexer != nil {
		a.indexer = newIndexer(l, path+".indexer", *shape.Indexer, a.spec.Rope)
	}
	return a
}

// heads declares the matrices of all heads.
func (l *Loader) heads(path string, to *Linear) {
	l.matrix(path, 3, func(m tensor.Matrix) { to.Matrix = m })
}

// indexer is the indexer of sparse attention.
type indexer struct {
	Q, K, Weights Linear
	Norm          Norm
	rope          tensor.RopeSpec
	size, topK    int
}

// newIndexer declares an indexer under path, whose heads are rotated like those of
// the layer but for the order of pairs.
func newIndexer(l *Loader, path string, f family.Indexer, rope tensor.RopeSpec) *indexer {
	x := &indexer{rope: rope, size: f.Size, topK: f.TopK, Norm: Norm{Eps: 1e-6}}
	x.rope.Interleaved = f.Interleaved
	l.Linear(path+".wq_b", &x.Q)
	l.Linear(path+".wk", &x.K)
	l.vector(path+".k_norm.weight", func(v tensor.Array) { x.Norm.Weight = v })
	l.vector(path+".k_norm.bias", func(v tensor.Array) { x.Norm.Bias = v })
	l.Linear(path+".weights_proj", &x.Weights)
	return x
}

// of returns the indexer's keys [T, size] and the operands of attention, of the
// layer's input x and the latent vectors of its queries.
func (x *indexer) of(s tensor.Scope, in, latent tensor.Array, p Pass) (tensor.Array, *tensor.Indexer) {
	keys := s.Rope(x.Norm.apply(s, x.K.Apply(s, in)), p.Segments, x.size, x.rope)
	queries := s.Rope(x.Q.Apply(s, latent), p.Segments, x.size, x.rope)
	return keys, &tensor.Indexer{Q: queries, Weights: x.Weights.Apply(s, in), Size: x.size, TopK: x.topK}
}

// Attend appends the vector and the rotated part of keys to the cache, and returns
// the values that the heads read, [T, heads*Value].
func (a *Latent) Attend(s tensor.Scope, x tensor.Array, p Pass) tensor.Array {
	from := x
	if a.QA.Matrix != nil {
		from = a.QNorm.Apply(s, a.QA.Apply(s, x))
	}
	q := a.QB.Apply(s, from)
	parts := s.Split(q, a.shape.Plain, a.shape.Rotated)
	s.Release(q)
	kv := s.Split(a.KV.Apply(s, x), a.shape.Rank, a.shape.Rotated)
	narrow, turned := kv[1], parts[1]
	if a.spec.Rope.Size > 0 {
		narrow, turned = s.Rope(narrow, p.Segments, a.shape.Rotated, a.spec.Rope), s.Rope(turned, p.Segments, a.shape.Rotated, a.spec.Rope)
	}
	stored, widths := []tensor.Array{a.KVNorm.Apply(s, kv[0]), narrow}, []int{a.shape.Rank, a.shape.Rotated}
	var selects *tensor.Indexer
	if a.indexer != nil {
		var own tensor.Array
		own, selects = a.indexer.of(s, x, from, p)
		stored, widths = append(stored, own), append(widths, a.indexer.size)
	}
	keys := s.Join(stored, widths...)
	embedded := s.LinearEach(parts[0], a.EmbedQ.Matrix, a.heads)
	queries := s.Join([]tensor.Array{embedded, turned}, a.shape.Rank, a.shape.Rotated)
	if t := a.spec.Temper; t != nil { // of the whole query
		grown := s.Rope(queries, p.Segments, a.shape.Rank+a.shape.Rotated, tensor.RopeSpec{Beta: t.Beta, Every: t.Every})
		s.Release(queries)
		queries = grown
	}
	if turned != parts[1] {
		s.Release(turned)
	}
	for _, done := range []tensor.Array{parts[0], parts[1], embedded} {
		s.Release(done)
	}
	seen := s.AppendAttend(tensor.AttendSpec{
		Cache: p.Cache, Layer: a.spec.Layer, Segments: p.Segments, Q: queries, K: keys, Scale: a.spec.Scale, Window: a.spec.Window, Indexer: selects,
	})
	s.Release(queries)
	s.Release(keys)
	defer s.Release(seen)
	return s.LinearEach(seen, a.Unembed.Matrix, a.heads)
}

// Output is the projection after Attend.
func (a *Latent) Output() Linear { return a.O }
