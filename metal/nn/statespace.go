package nn

import (
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Mamba2 is a recurrent layer whose states are those of a state space
// (https://arxiv.org/abs/2405.21060): one projection makes a gate, values, keys,
// queries and steps; what is read is multiplied by SiLU of the gate and normed in
// groups.
type Mamba2 struct {
	// Layer counts recurrent layers alone.
	Layer int
	In, O Linear
	// Kernel, Shift, LogRate, Bias and Skip are those of tensor.RecurSpec.
	Kernel, Shift, LogRate, Bias, Skip tensor.Array
	// Norm is of a group; Weight multiplies what is normed, where there are several.
	Norm   RMSNorm
	Weight tensor.Array

	shape family.Hybrid
}

// newMamba2 declares the layer under path.
func newMamba2(l *Loader, path string, layer int, d family.Dimensions) *Mamba2 {
	h := d.Hybrid
	m := &Mamba2{Layer: layer, shape: h}
	l.Linear(path+".in_proj", &m.In)
	l.Linear(path+".out_proj", &m.O)
	if h.Bias {
		l.Bias(path+".in_proj", &m.In)
		l.Bias(path+".out_proj", &m.O)
	}
	parts := []int{h.ValueWidth(), h.KeyWidth(), h.KeyWidth()} // values, keys, queries
	l.arranged([]string{path + ".conv1d.weight"}, 2, parts, func(v tensor.Array) { m.Kernel = v })
	if h.ConvolutionBias {
		l.arranged([]string{path + ".conv1d.bias"}, 1, parts, func(v tensor.Array) { m.Shift = v })
	}
	l.vector(path+".dt_bias", func(v tensor.Array) { m.Bias = v })
	l.vector(path+".A_log", func(v tensor.Array) { m.LogRate = v })
	l.vector(path+".D", func(v tensor.Array) { m.Skip = v })
	m.Norm.Eps = float32(d.NormEps)
	set := func(v tensor.Array) { m.Norm.Weight = v }
	if h.NormGroups > 1 {
		m.Norm.Weight = l.ones(h.ValueWidth() / h.NormGroups)
		set = func(v tensor.Array) { m.Weight = v }
	}
	l.vector(path+".norm.weight", set)
	return m
}

// Attend runs x [T, hidden] through the rule; O turns the result into [T, hidden].
func (m *Mamba2) Attend(s tensor.Scope, x tensor.Array, p Pass) tensor.Array {
	h := m.shape
	in := m.In.Apply(s, x)
	parts := s.Split(in, h.ValueWidth(), h.ValueWidth(), h.KeyWidth(), h.KeyWidth(), h.ValueHeads)
	s.Release(in)
	out := s.Recur(tensor.RecurSpec{
		Rule: tensor.StateSpace, Cache: p.Cache, Layer: m.Layer, Segments: p.Segments, Q: parts[3], K: parts[2], V: parts[1], Decay: parts[4],
		Kernel: m.Kernel, Shift: m.Shift, LogRate: m.LogRate, Bias: m.Bias, Skip: m.Skip, Low: float32(h.Low), High: float32(h.High),
	})
	for _, a := range parts[1:] {
		s.Release(a)
	}
	gated := s.GLU(parts[0], out, tensor.SwiGLU{})
	s.Release(parts[0])
	s.Release(out)
	normed := m.Norm.Apply(s, gated)
	s.Release(gated)
	if m.Weight == nil {
		return normed
	}
	defer s.Release(normed)
	return s.Multiply(normed, m.Weight)
}

// Output is the projection after Attend.
func (m *Mamba2) Output() Linear { return m.O }

// ShortConvolution is a recurrent layer that mixes the latest rows alone (LFM2): one
// projection makes three parts, of which the first multiplies what is convolved, and
// the second the result.
type ShortConvolution struct {
	// Layer counts recurrent layers alone.
	Layer         int
	In, O         Linear
	Kernel, Shift tensor.Array

	hidden int
}

// newShortConvolution declares the layer under path.
func newShortConvolution(l *Loader, path string, layer int, d family.Dimensions) *ShortConvolution {
	c := &ShortConvolution{Layer: layer, hidden: d.Hidden}
	l.Linear(path+".in_proj", &c.In)
	l.Linear(path+".out_proj", &c.O)
	l.flat(path+".conv.weight", func(v tensor.Array) { c.Kernel = v })
	if d.Hybrid.Bias {
		l.Bias(path+".in_proj", &c.In)
		l.Bias(path+".out_proj", &c.O)
		l.vector(path+".conv.bias", func(v tensor.Array) { c.Shift = v })
	}
	return c
}

// Attend runs x [T, hidden] through the convolution.
func (c *ShortConvolution) Attend(s tensor.Scope, x tensor.Array, p Pass) tensor.Array {
	in := c.In.Apply(s, x)
	parts := s.Split(in, c.hidden, c.hidden, c.hidden)
	s.Release(in)
	fed := s.Multiply(parts[0], parts[2])
	s.Release(parts[0])
	s.Release(parts[2])
	out := s.Recur(tensor.RecurSpec{Rule: tensor.Convolution, Cache: p.Cache, Layer: c.Layer, Segments: p.Segments, V: fed, Kernel: c.Kernel, Shift: c.Shift})
	s.Release(fed)
	defer s.Release(parts[1])
	defer s.Release(out)
	return s.Multiply(parts[1], out)
}

// Output is the projection after Attend.
func (c *ShortConvolution) Output() Linear { return c.O }

// KimiDelta is a gated delta net whose states are forgotten channel by channel
// (https://arxiv.org/abs/2510.26692). Its gates come of narrow projections.
type KimiDelta struct {
	// Layer counts recurrent layers alone.
	Layer int
	// In are the projections of queries, keys and values, of the rule's gates, and of
	// the output's gate; Decay and Gate are the second halves of those that are narrow.
	In                    [6]Linear
	Decay, Gate, O        Linear
	Kernel, Bias, LogRate tensor.Array
	Norm                  RMSNorm
}

// newKimiDelta declares the layer under path.
func newKimiDelta(l *Loader, path string, layer int, d family.Dimensions) *KimiDelta {
	k := &KimiDelta{Layer: layer}
	for i, name := range []string{".q_proj", ".k_proj", ".v_proj", ".f_a_proj", ".b_proj", ".g_a_proj"} {
		l.Linear(path+name, &k.In[i])
	}
	l.Linear(path+".f_b_proj", &k.Decay)
	l.Linear(path+".g_b_proj", &k.Gate)
	l.Linear(path+".o_proj", &k.O)
	l.arranged([]string{path + ".q_conv.conv.weight", path + ".k_conv.conv.weight", path + ".v_conv.conv.weight"}, 2, nil, func(v tensor.Array) { k.Kernel = v })
	l.vector(path+".dt_bias", func(v tensor.Array) { k.Bias = v })
	l.vector(path+".A_log", func(v tensor.Array) { k.LogRate = v })
	l.RMSNorm(path+".o_norm", d.NormEps, &k.Norm)
	return k
}

// Attend runs x [T, hidden] through the rule.
func (k *KimiDelta) Attend(s tensor.Scope, x tensor.Array, p Pass) tensor.Array {
	ms := make([]tensor.Matrix, len(k.In))
	for i, l := range k.In {
		ms[i] = l.Matrix
	}
	in := s.Linear(x, ms...)
	spec := tensor.RecurSpec{
		Cache: p.Cache, Layer: k.Layer, Segments: p.Segments, Q: in[0], K: in[1], V: in[2], Beta: in[4],
		Decay: k.Decay.Apply(s, in[3]), Kernel: k.Kernel, Bias: k.Bias, LogRate: k.LogRate,
	}
	out := s.Recur(spec)
	gate := k.Gate.Apply(s, in[5])
	for _, a := range append(in, spec.Decay) {
		s.Release(a)
	}
	normed := k.Norm.Apply(s, out)
	s.Release(out)
	defer s.Release(normed)
	defer s.Release(gate)
	return s.SigmoidGate(normed, gate)
}

// Output is the projection after Attend.
func (k *KimiDelta) Output() Linear { return k.O }
