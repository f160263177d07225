package tensor

import (
	"fmt"
	"slices"
)

// RecurrentSpec is the shape of recurrent layers, and of the state that each
// keeps for every request, in float32 regardless of the type of activations:
// the last Taps-1 rows that its convolution saw, and a matrix [ValueSize,
// KeySize] for each value head. The size does not depend on the number of
// tokens.
type RecurrentSpec struct {
	Layers int
	// ValueHeads is a multiple of KeyHeads; as many consecutive ones share a key.
	KeyHeads, KeySize, ValueHeads, ValueSize int
	// Taps is the number of latest rows that the convolution reads, including
	// the newest.
	Taps int
}

// Channels is the input width of the convolution: queries, keys, values.
func (s RecurrentSpec) Channels() int { return 2*s.KeyHeads*s.KeySize + s.ValueHeads*s.ValueSize }

// StateElements is the number of elements of the state of one layer for one
// request.
func (s RecurrentSpec) StateElements() int {
	return (s.Taps-1)*s.Channels() + s.ValueHeads*s.ValueSize*s.KeySize
}

// StateBytes is the size of the states of all layers for one request.
func (s RecurrentSpec) StateBytes() int64 { return 4 * int64(s.Layers) * int64(s.StateElements()) }

// Fits reports whether the spec is valid; no layers are valid.
func (s RecurrentSpec) Fits() bool {
	keys := s.KeyHeads > 0 && s.KeySize > 0 && s.ValueHeads%s.KeyHeads == 0
	none := s.KeyHeads == 0 && s.KeySize == 0 // a convolution alone
	return s == RecurrentSpec{} || s.Layers > 0 && (keys || none) && s.ValueHeads > 0 && s.ValueSize > 0 && s.Taps > 1
}

// RecurRule is how the state of a recurrent layer changes.
type RecurRule int

// The rules. Let q, k and v be SiLU of the convolution of the last Taps rows. Then,
// for each value head and its key head, the delta rule
// (https://arxiv.org/abs/2412.06464) is
//
//	q, k = q/sqrt(|q|^2+1e-6)/sqrt(KeySize), k/sqrt(|k|^2+1e-6)
//	S    = exp(-exp(LogRate) * softplus(Decay+Bias)) * S
//	S    = S + sigmoid(Beta) * (v - S k) k^T
//	out  = S q
//
// where Decay and Bias may have a number for each element of a key, by which its
// column of S is forgotten (https://arxiv.org/abs/2510.26692). A state space
// (https://arxiv.org/abs/2405.21060) is
//
//	d   = softplus(Decay+Bias) within Low and High
//	S   = exp(-exp(LogRate) * d) * S + d v k^T
//	out = S q + Skip * v
//
// and a convolution alone has neither keys nor a matrix, and takes no SiLU.
const (
	DeltaRule RecurRule = iota
	StateSpace
	Convolution
)

// RecurSpec is one recurrent layer over a flat step: a causal convolution over
// queries, keys and values, channel by channel, and a rule over what comes of it,
// for each request in the order of its tokens.
type RecurSpec struct {
	Rule  RecurRule
	Cache Cache
	// Layer counts recurrent layers alone.
	Layer    int
	Segments []Segment
	// Q and K are [T, KeyHeads*KeySize], V is [T, ValueHeads*ValueSize].
	Q, K, V Array
	// Decay and Beta are [T, ValueHeads]; Decay may be [T, ValueHeads*KeySize].
	Decay, Beta Array
	// Kernel has the taps of each channel, the tap of the oldest row first:
	// [channels*Taps]. Shift [channels] is added to the convolution; nil means none.
	Kernel, Shift Array
	// LogRate and Skip are [ValueHeads], Bias has as many as a row of Decay.
	LogRate, Bias, Skip Array
	// Low and High bound the steps of a state space.
	Low, High float32
}

// Check refuses operands that do not fit the rule and the shape of the layers.
func (s RecurSpec) Check(r RecurrentSpec) error {
	tokens, keys, values := Tokens(s.Segments), r.KeyHeads*r.KeySize, r.ValueHeads*r.ValueSize
	decay := r.ValueHeads
	if s.Rule == DeltaRule && s.Decay != nil && len(s.Decay.Shape()) == 2 && s.Decay.Shape()[1] != decay {
		decay *= r.KeySize
	}
	fits := s.Layer >= 0 && s.Layer < r.Layers && (r.KeyHeads == 0) == (s.Rule == Convolution)
	for _, g := range s.Segments {
		fits = fits && g.Length >= 0 && g.Start >= 0 && g.Draft >= 0 && (g.Draft == 0 || g.Draft < g.Length)
	}
	for _, o := range []struct {
		a      Array
		wanted bool
		shape  []int
	}{
		{s.Q, s.Rule != Convolution, []int{tokens, keys}}, {s.K, s.Rule != Convolution, []int{tokens, keys}}, {s.V, true, []int{tokens, values}},
		{s.Decay, s.Rule != Convolution, []int{tokens, decay}}, {s.Beta, s.Rule == DeltaRule, []int{tokens, r.ValueHeads}},
		{s.Kernel, true, []int{r.Channels() * r.Taps}}, {s.Shift, s.Shift != nil, []int{r.Channels()}},
		{s.LogRate, s.Rule != Convolution, []int{r.ValueHeads}}, {s.Bias, s.Rule != Convolution, []int{decay}}, {s.Skip, s.Rule == StateSpace, []int{r.ValueHeads}},
	} {
		fits = fits && o.wanted == (o.a != nil) && (!o.wanted || slices.Equal(o.a.Shape(), o.shape))
	}
	if !fits {
		return &ShapeError{Op: "Recur", Detail: fmt.Sprintf("rule %d, %d rows in segments, layer %d of %+v", s.Rule, tokens, s.Layer, r)}
	}
	return nil
}

// Operands are all arrays of the layer; those that the rule does not have are nil.
func (s RecurSpec) Operands() []Array {
	return []Array{s.Q, s.K, s.V, s.Decay, s.Beta, s.Kernel, s.Shift, s.LogRate, s.Bias, s.Skip}
}
