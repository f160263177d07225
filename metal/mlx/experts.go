//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"cmp"
	"fmt"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Route chooses experts by their scores.
func (s *mixture) Route(scores tensor.Array, spec tensor.RouteSpec) (chosen, shares tensor.Array) {
	const op = "Route"
	none := &array{}
	in, ok := s.operand(op, scores, 2)
	if !ok {
		return none, none
	}
	experts := in.shape[1]
	how := C.bridge_router{
		groups: C.int32_t(max(1, spec.Groups)), top_groups: C.int32_t(spec.TopGroups), sigmoid: flag(spec.Sigmoid), pairs: flag(spec.Pairs),
		k: C.int32_t(spec.K), normalized: flag(spec.Normalized), rounded: flag(spec.Rounded), least: C.float(spec.Least), scale: C.float(cmp.Or(spec.Scale, 1)),
	}
	for _, v := range []struct {
		a  tensor.Array
		to *handle
	}{{spec.Bias, &how.bias}, {spec.Each, &how.each}} {
		if v.a == nil {
			continue
		}
		b, ok := s.operand(op, v.a, 1)
		if !ok {
			return none, none
		}
		if b.shape[0] != experts {
			s.misfit(op, "%v and a vector of %v", in.shape, b.shape)
			return none, none
		}
		*v.to = b.h
	}
	if err := spec.Check(experts); err != nil {
		s.misfit(op, "%v: %v", in.shape, err)
		return none, none
	}
	if !s.begin(op) {
		return none, none
	}
	if spec.SoftmaxLast {
		return s.routedLast(op, in, spec.K)
	}
	if spec.Jitter > 0 {
		var out [2]C.bridge_made
		err := fault(C.bridge_mix(s.b.token(), in.h, how.k, C.float(spec.Jitter), &out[0]))
		return s.both(op, in, out, spec.K, err)
	}
	if chosen, shares := s.routed(op, in, &how); chosen != nil || s.failed() {
		return chosen, shares
	}
	if spec.Rounded {
		return s.routedRounded(op, in, spec)
	}
	return s.routedByParts(op, in, &how, spec)
}

// routedRounded takes the softmax in the type of the scores.
func (s *mixture) routedRounded(op string, in *array, spec tensor.RouteSpec) (chosen, shares tensor.Array) {
	none, tokens, experts := &array{}, in.shape[0], in.shape[1]
	whole := s.made(op, C.bridge_softmax(s.b.token(), in.h), tokens, experts)
	if s.failed() {
		return none, none
	}
	ids := s.made(op, C.bridge_largest(s.b.token(), whole.h, C.int32_t(spec.K)), tokens*spec.K)
	if s.failed() {
		return none, none
	}
	ids.bound = experts
	out := s.made(op, C.bridge_shares(s.b.token(), whole.h, ids.h, C.int32_t(spec.K), flag(spec.Normalized), 0, nil), tokens, spec.K)
	s.Release(whole)
	return ids, out
}

// routedLast takes the softmax of the largest scores.
func (s *mixture) routedLast(op string, in *array, k int) (chosen, shares tensor.Array) {
	ids := s.made(op, C.bridge_largest(s.b.token(), in.h, C.int32_t(k)), in.shape[0]*k)
	if s.failed() {
		return &array{}, &array{}
	}
	ids.bound = in.shape[1]
	return ids, s.made(op, C.bridge_top_shares(s.b.token(), in.h, ids.h, C.int32_t(k)), in.shape[0], k)
}

// routedByParts is the choice of experts by several operations. It returns arrays that mean
// nothing after a failure.
func (s *mixture) routedByParts(op string, in *array, how *C.bridge_router, spec tensor.RouteSpec) (chosen, shares tensor.Array) {
	none, tokens, experts := &array{}, in.shape[0], in.shape[1]
	weights := s.made(op, C.bridge_weights(s.b.token(), in.h, how.sigmoid), tokens, experts)
	if s.failed() {
		return none, none
	}
	wanted := s.made(op, C.bridge_wanted(s.b.token(), weights.h, how), tokens, experts)
	if s.failed() {
		return none, none
	}
	ids := s.made(op, C.bridge_largest(s.b.token(), wanted.h, C.int32_t(spec.K)), tokens*spec.K)
	if s.failed() {
		return none, none
	}
	ids.bound = experts
	s.Release(wanted)
	out := s.made(op, C.bridge_shares(s.b.token(), weights.h, ids.h, C.int32_t(spec.K), flag(spec.Normalized), C.float(spec.Least), how.each), tokens, spec.K)
	s.Release(weights)
	if spec.Scale == 0 || spec.Scale == 1 || s.failed() {
		return ids, out
	}
	scaled := s.Map(out, tensor.ScaleShift{Scale: spec.Scale})
	s.Release(out)
	return ids, scaled
}

// routed is what one kernel chooses; nil where there is none for these scores.
func (s *mixture) routed(op string, in *array, how *C.bridge_router) (chosen, shares tensor.Array) {
	var out [2]C.bridge_made
	err := fault(C.bridge_route(s.b.token(), in.h, how, &out[0]))
	if err == nil && out[0].array == nil {
		return nil, nil
	}
	return s.both(op, in, out, int(how.k), err)
}

// both are the ids and shares of k experts that one call of the bridge made.
func (s *mixture) both(op string, in *array, out [2]C.bridge_made, k int, err error) (chosen, shares tensor.Array) {
	if err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
		return &array{}, &array{}
	}
	ids := s.made(op, out[0], in.shape[0]*k)
	ids.bound = in.shape[1]
	return ids, s.made(op, out[1], in.shape[0], k)
}

// LinearOf multiplies rows by the experts that were chosen for them.
func (s *mixture) LinearOf(x, chosen tensor.Array, experts int, ms ...tensor.Matrix) []tensor.Array {
	const op = "LinearOf"
	outs := make([]tensor.Array, len(ms))
	for i := range outs {
		outs[i] = &array{}
	}
	in, ok := s.operand(op, x, 2)
	if !ok {
		return outs
	}
	ids, ok := s.idOperand(op, chosen)
	if !ok {
		return outs
	}
	if experts < 1 || ids.bound > experts || ids.shape[0]%in.shape[0] != 0 {
		s.misfit(op, "%v by %d of %d experts, ids up to %d", in.shape, ids.shape[0], experts, ids.bound-1)
		return outs
	}
	if len(ms) == 2 && s.b.cuda.Load() && s.linearOfTwo(op, in, ids, experts, ms, outs) {
		return outs
	}
	for i, tm := range ms {
		m, ok := s.matrixOperand(op, tm)
		if !ok || !s.begin(op) {
			return outs
		}
		if !s.b.gpu.Load() && !m.format.Quantized() && m.format.Type != quant.Float32 {
			s.fail(fmt.Errorf("%s: dense experts in %v on a CPU: %w (float32 and quantised experts are supported, and ref supports all)", op, m.format.Type, tensor.ErrUnsupported))
			return outs
		}
		if m.in != in.shape[1] || m.out%experts != 0 {
			s.misfit(op, "%v by %d experts in [%d, %d]", in.shape, experts, m.out, m.in)
			return outs
		}
		// Many rows are copied in the order of their experts, and their products once
		// more in that of the rows.
		if !s.fits(op, int64(ids.shape[0])*int64(m.in+m.out/experts)*int64(in.width())) {
			return outs
		}
		made := C.bridge_linear_of(s.b.token(), in.h, ids.h, C.int32_t(experts), m.parts[0], m.scales(), m.biases(), C.int32_t(m.format.Group), C.int32_t(m.format.Bits), modeOf(m.format))
		outs[i] = s.made(op, made, ids.shape[0], m.out/experts)
	}
	return outs
}

// linearOfTwo multiplies by two matrices of one shape at once. It reports false, and
// has made nothing, where there is no kernel for them or they do not fit.
func (s *mixture) linearOfTwo(op string, in, ids *array, experts int, ms []tensor.Matrix, outs []tensor.Array) bool {
	var parts [2][3]handle
	var of [2]*matrix
	for i, tm := range ms {
		m, ok := s.matrixOperand(op, tm)
		if !ok || m.in != in.shape[1] || m.out%experts != 0 || len(m.parts) != 3 {
			return false
		}
		of[i], parts[i] = m, [3]handle(m.parts)
	}
	if of[0].format != of[1].format || of[0].out != of[1].out || !s.begin(op) || !s.fits(op, 2*int64(ids.shape[0])*int64(of[0].out/experts)*int64(in.width())) {
		return false
	}
	var made [2]C.bridge_made
	f := of[0].format
	if err := fault(C.bridge_linear_of_two(s.b.token(), in.h, ids.h, C.int32_t(experts), &parts[0][0], &parts[1][0], C.int32_t(f.Group), C.int32_t(f.Bits), modeOf(f), &made[0])); err != nil {
		s.fail(fmt.Errorf("%s: %w", op, err))
		return true
	}
	if made[0].array == nil {
		return false
	}
	for i, m := range made {
		outs[i] = s.made(op, m, ids.shape[0], of[0].out/experts)
	}
	return true
}

// LinearEach multiplies heads by matrices of their own.
func (s *mixture) LinearEach(x tensor.Array, tm tensor.Matrix, heads int) tensor.Array {
	const op = "LinearEach"
	in, ok := s.operand(op, x, 2)
	if !ok {
		return &array{}
	}
	m, ok := s.matrixOperand(op, tm)
	if !ok || !s.begin(op) {
		return &array{}
	}
	if heads < 1 || m.out%heads != 0 || in.shape[1] != heads*m.in {
		return s.misfit(op, "%v by %d heads in [%d, %d]", in.shape, heads, m.out, m.in)
	}
	if !s.b.gpu.Load() && !m.format.Quantized() && m.format.Type != quant.Float32 {
		s.fail(fmt.Errorf("%s: dense heads in %v on a CPU: %w (float32 and quantised ones are supported, and ref supports all)", op, m.format.Type, tensor.ErrUnsupported))
		return &array{}
	}
	if !s.fits(op, int64(in.shape[0])*int64(heads)*int64(m.in+m.out/heads)*int64(in.width())) {
		return &array{}
	}
	made := C.bridge_linear_each(s.b.token(), in.h, C.int32_t(heads), m.parts[0], m.scales(), m.biases(), C.int32_t(m.format.Group), C.int32_t(m.format.Bits), modeOf(m.format))
	return s.made(op, made, in.shape[0], m.out)
}

// Combine adds up the rows of a token, each times its share.
func (s *mixture) Combine(y, shares tensor.Array) tensor.Array {
	const op = "Combine"
	in, ok := s.operand(op, y, 2)
	if !ok {
		return &array{}
	}
	p, ok := s.operand(op, shares, 2)
	if !ok || !s.begin(op) {
		return &array{}
	}
	if in.shape[0] != p.shape[0]*p.shape[1] {
		return s.misfit(op, "%v by %v", in.shape, p.shape)
	}
	return s.made(op, C.bridge_combine(s.b.token(), in.h, p.h), p.shape[0], in.shape[1])
}
