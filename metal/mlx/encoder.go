//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"fmt"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// AttendAll lets every token see all tokens of its segment.
func (s *scope) AttendAll(spec tensor.AttendAllSpec) tensor.Array {
	const op = "AttendAll"
	q, _ := s.operand(op, spec.Q, 2)
	k, _ := s.operand(op, spec.K, 2)
	v, _ := s.operand(op, spec.V, 2)
	if s.failed() || !s.begin(op) {
		return &array{}
	}
	rows, width, least := q.shape[0], q.shape[1], 0
	lengths := make([]C.int32_t, 0, len(spec.Segments))
	var scores int64
	for _, g := range spec.Segments {
		least = min(least, g.Length)
		if g.Length > 0 {
			lengths = append(lengths, C.int32_t(g.Length))
			scores += int64(g.Length) * int64(g.Length)
		}
	}
	if least < 0 || tensor.Tokens(spec.Segments) != rows || spec.Heads <= 0 || width%spec.Heads != 0 ||
		k.shape[0] != rows || v.shape[0] != rows || k.shape[1] != width || v.shape[1] != width {
		return s.misfit(op, "q %v, k %v, v %v in %d heads, %d rows in segments", q.shape, k.shape, v.shape, spec.Heads, tensor.Tokens(spec.Segments))
	}
	if !s.b.gpu.Load() { // a processor writes the scores out, and their softmax in place
		if err := s.b.admit(scores * int64(spec.Heads) * int64(q.width())); err != nil {
			s.fail(fmt.Errorf("%s: %w", op, err))
			return &array{}
		}
	}
	return s.made(op, C.bridge_attend_all(s.b.token(), q.h, k.h, v.h, C.int32_t(spec.Heads), C.float(spec.Scale), unsafe.SliceData(lengths), C.int32_t(len(lengths))), rows, width)
}

// LayerNorm subtracts the mean of rows and scales them to unit variance.
func (s *scope) LayerNorm(x, weight, bias tensor.Array, eps float32) tensor.Array {
	const op = "LayerNorm"
	in, _ := s.operand(op, x, 2)
	w, _ := s.operand(op, weight, 1)
	b, _ := s.operand(op, bias, 1)
	if s.failed() || !s.begin(op) {
		return &array{}
	}
	if w.shape[0] != in.shape[1] || b.shape[0] != in.shape[1] {
		return s.misfit(op, "%v by %v and %v", in.shape, w.shape, b.shape)
	}
	return s.made(op, C.bridge_layer_norm(s.b.token(), in.h, w.h, b.h, C.float(eps)), in.shape...)
}
