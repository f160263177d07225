package nn

import (
	"fmt"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
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

	heads int
	shape family.Latent
	spec  AttentionSpec
}

// latent declares latent attention under path.
func (l *Loader) latent(path string, d family.Dimensions, f family.Attention, shape family.Latent, layer int) *Latent {
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
	l.stack(path+".embed_q", &a.EmbedQ)
	l.stack(path+".unembed_out", &a.Unembed)
	biased(".o_proj", &a.O)
	return a
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
	keys := s.Join([]tensor.Array{a.KVNorm.Apply(s, kv[0]), narrow}, a.shape.Rank, a.shape.Rotated)
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
		Cache: p.Cache, Layer: a.spec.Layer, Segments: p.Segments, Q: queries, K: keys, Scale: a.spec.Scale, Window: a.spec.Window,
	})
	s.Release(queries)
	s.Release(keys)
	defer s.Release(seen)
	return s.LinearEach(seen, a.Unembed.Matrix, a.heads)
}

// Output is the projection after Attend.
func (a *Latent) Output() Linear { return a.O }

// turn loads a stack whose matrices lie with rows and columns exchanged.
func (l *Loader) turn(reading *weights.Reading, e weights.Entry, set func(tensor.Matrix)) error {
	stack, in, out := int(e.Shape[0]), int(e.Shape[1]), int(e.Shape[2])
	size := e.Format.Type.Bytes()
	if e.Format.Quantized() {
		return fmt.Errorf("rows of quantised columns: %w", weights.ErrUnsupported)
	}
	all := make([]byte, stack*in*out*size)
	err := reading.Rows(e, func(row int, r quant.Row) error {
		l.progress(int64(len(r.Raw)))
		matrix, column := row/in, row%in
		for i := range out {
			copy(all[((matrix*out+i)*in+column)*size:], r.Raw[i*size:(i+1)*size])
		}
		return nil
	})
	if err != nil {
		return err
	}
	m, err := l.backend.LoadMatrix(e.Format, stack*out, in, func(put func(int, quant.Row) error) error {
		return put(0, quant.Row{Raw: all})
	})
	if err != nil {
		return err
	}
	l.matrices = append(l.matrices, m)
	set(m)
	return nil
}
