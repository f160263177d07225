package nn

import (
	"slices"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// newRecurrent declares the recurrent mixer of a layer under path; number is its number
// among those.
func newRecurrent(l *Loader, path string, number int, d family.Dimensions) Mixer {
	path += "." + d.Hybrid.Prefix()
	switch d.Hybrid.Rule {
	case family.Mamba2:
		return newMamba2(l, path, number, d)
	case family.ShortConvolution:
		return newShortConvolution(l, path, number, d)
	case family.KimiDelta:
		return newKimiDelta(l, path, number, d)
	}
	return newGatedDelta(l, path, number, d)
}

// GatedDelta is a recurrent layer: a short convolution over queries, keys and
// values, the gated delta rule, and a gated norm. Its state for a request has a
// constant size.
type GatedDelta struct {
	// Layer counts recurrent layers alone.
	Layer int
	// In are the projections: of queries, keys, values and the output's gate,
	// then of both gates of the rule. There are two where the family joins them,
	// else four.
	In []Linear
	// Kernel, Bias and LogRate are those of tensor.RecurSpec.
	Kernel, Bias, LogRate tensor.Array
	Norm                  RMSNorm
	O                     Linear

	shape family.Hybrid
}

// newGatedDelta declares a recurrent layer with the prefix path; layer is its
// number among the recurrent layers.
func newGatedDelta(l *Loader, path string, layer int, d family.Dimensions) *GatedDelta {
	g := &GatedDelta{Layer: layer, shape: d.Hybrid}
	names := []string{".in_proj_qkv", ".in_proj_z", ".in_proj_b", ".in_proj_a"}
	if d.Hybrid.Joined {
		names = []string{".in_proj_qkvz", ".in_proj_ba"}
	}
	g.In = make([]Linear, len(names))
	for i, name := range names {
		l.Linear(path+name, &g.In[i])
	}
	l.flat(path+".conv1d.weight", func(v tensor.Array) { g.Kernel = v })
	l.vector(path+".dt_bias", func(v tensor.Array) { g.Bias = v })
	l.vector(path+".A_log", func(v tensor.Array) { g.LogRate = v })
	g.Norm.Eps = float32(d.NormEps)
	l.vector(path+".norm.weight", func(v tensor.Array) { g.Norm.Weight = v }) // never less one
	l.Linear(path+".out_proj", &g.O)
	return g
}

// Attend runs x [T, hidden] through the rule and returns the output of the
// value heads, [T, heads*size]; O projects that to [T, hidden].
func (g *GatedDelta) Attend(s tensor.Scope, x tensor.Array, p Pass) tensor.Array {
	spec := tensor.RecurSpec{Cache: p.Cache, Layer: g.Layer, Segments: p.Segments, Kernel: g.Kernel, LogRate: g.LogRate, Bias: g.Bias}
	gate := g.project(s, x, &spec)
	out := s.Recur(spec)
	for _, a := range []tensor.Array{spec.Q, spec.K, spec.V, spec.Decay, spec.Beta} {
		s.Release(a)
	}
	defer s.Release(out)
	defer s.Release(gate)
	return s.RMSNormGate(out, gate, g.Norm.Weight, g.Norm.Eps)
}

// Output returns the projection after Attend.
func (g *GatedDelta) Output() Linear { return g.O }

// project fills the operands of the rule and returns the output's gate.
func (g *GatedDelta) project(s tensor.Scope, x tensor.Array, spec *tensor.RecurSpec) (gate tensor.Array) {
	h := g.shape
	ms := make([]tensor.Matrix, len(g.In))
	for i, l := range g.In {
		ms[i] = l.Matrix
	}
	in := s.Linear(x, ms...)
	defer s.Release(in[0])
	if !h.Joined {
		parts := s.Split(in[0], h.KeyWidth(), h.KeyWidth(), h.ValueWidth())
		spec.Q, spec.K, spec.V, spec.Beta, spec.Decay = parts[0], parts[1], parts[2], in[2], in[3]
		return in[1]
	}
	shared := h.ValueHeads / h.KeyHeads
	parts := s.Split(in[0], h.KeySize, h.KeySize, shared*h.ValueSize, shared*h.ValueSize)
	gates := s.Split(in[1], shared, shared)
	s.Release(in[1])
	spec.Q, spec.K, spec.V, spec.Beta, spec.Decay = parts[0], parts[1], parts[2], gates[0], gates[1]
	return parts[3]
}

// backwards returns parts of these numbers of units from the last to the first.
func backwards(raw []byte, unit int, parts []int) []byte {
	var out [][]byte
	for _, n := range parts {
		out = append([][]byte{raw[:n*unit]}, out...)
		raw = raw[n*unit:]
	}
	return slices.Concat(out...)
}
