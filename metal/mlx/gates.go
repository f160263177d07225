//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"slices"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// Split gathers the parts of runs of columns.
func (s *scope) Split(x tensor.Array, widths ...int) []tensor.Array {
	const op = "Split"
	outs := make([]tensor.Array, len(widths))
	for i := range outs {
		outs[i] = &array{}
	}
	in, ok := s.operand(op, x, 2)
	if !ok || !s.begin(op) {
		return outs
	}
	run, least := 0, 1
	for _, w := range widths {
		run, least = run+w, min(least, w)
	}
	if run <= 0 || least < 1 || in.shape[1]%run != 0 {
		s.misfit(op, "%v in parts of %v", in.shape, widths)
		return outs
	}
	first := 0
	for i, w := range widths {
		if s.failed() {
			break
		}
		outs[i] = s.made(op, C.bridge_part(s.b.token(), in.h, C.int32_t(run), C.int32_t(first), C.int32_t(first+w)), in.shape[0], in.shape[1]/run*w)
		first += w
	}
	return outs
}

// Join puts parts of rows side by side.
func (s *scope) Join(xs []tensor.Array, widths ...int) tensor.Array {
	const op = "Join"
	var parts []handle
	rows, n, run := 0, 0, 0
	for i, x := range xs {
		in, ok := s.operand(op, x, 2)
		if !ok {
			return &array{}
		}
		if i == 0 && len(widths) > 0 && widths[0] > 0 {
			rows, n = in.shape[0], in.shape[1]/widths[0]
		}
		if i >= len(widths) || widths[i] < 1 || in.shape[0] != rows || in.shape[1] != n*widths[i] {
			return s.misfit(op, "%v in parts of %v", in.shape, widths)
		}
		run += widths[i]
		parts = append(parts, in.h)
	}
	if len(parts) == 0 || len(parts) != len(widths) {
		return s.misfit(op, "%d operands in parts of %v", len(xs), widths)
	}
	if !s.begin(op) {
		return &array{}
	}
	return s.made(op, C.bridge_runs(s.b.token(), unsafe.SliceData(parts), C.int32_t(len(parts)), C.int32_t(n)), rows, n*run)
}

// SigmoidGate is x * sigmoid(gate).
func (s *scope) SigmoidGate(x, gate tensor.Array) tensor.Array {
	const op = "SigmoidGate"
	in, ok := s.operand(op, x, 2)
	if !ok {
		return &array{}
	}
	g, ok := s.operand(op, gate, 2)
	if !ok || !s.begin(op) {
		return &array{}
	}
	if g.shape[0] != in.shape[0] || in.shape[1]%g.shape[1] != 0 {
		return s.misfit(op, "%v by %v", in.shape, g.shape)
	}
	return s.made(op, C.bridge_sigmoid_gate(s.b.token(), in.h, g.h), in.shape...)
}

// AddGated is y + x * sigmoid(gate).
func (s *mixture) AddGated(y, x, gate tensor.Array) tensor.Array {
	const op = "AddGated"
	to, _ := s.operand(op, y, 2)
	in, _ := s.operand(op, x, 2)
	g, _ := s.operand(op, gate, 2)
	if s.failed() || !s.begin(op) {
		return &array{}
	}
	if !slices.Equal(to.shape, in.shape) || g.shape[0] != in.shape[0] || g.shape[1] != 1 {
		return s.misfit(op, "%v and %v by %v", to.shape, in.shape, g.shape)
	}
	return s.made(op, C.bridge_add_gated(s.b.token(), to.h, in.h, g.h), in.shape...)
}

// RMSNormGate is RMSNorm(x) * SiLU(gate).
func (s *scope) RMSNormGate(x, gate, weight tensor.Array, eps float32) tensor.Array {
	const op = "RMSNormGate"
	in, ok := s.operand(op, x, 2)
	if !ok {
		return &array{}
	}
	g, ok := s.operand(op, gate, 2)
	if !ok {
		return &array{}
	}
	w, ok := s.operand(op, weight, 1)
	if !ok || !s.begin(op) {
		return &array{}
	}
	if !slices.Equal(in.shape, g.shape) || in.shape[1]%w.shape[0] != 0 {
		return s.misfit(op, "%v by %v and %v", in.shape, g.shape, w.shape)
	}
	return s.made(op, C.bridge_rms_norm_gate(s.b.token(), in.h, g.h, w.h, C.float(eps)), in.shape...)
}
