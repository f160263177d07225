//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// Exceed is how far elements exceed the mean of their row and a number of deviations.
func (s *elementwise) Exceed(x tensor.Array, by float32) tensor.Array {
	const op = "Exceed"
	in, ok := s.operand(op, x, 2)
	if !ok || !s.begin(op) {
		return &array{}
	}
	return s.made(op, C.bridge_exceed(s.b.token(), in.h, C.float(by)), in.shape...)
}

// MixRuns adds up the runs of each row.
func (s *elementwise) MixRuns(x, by tensor.Array, n int) tensor.Array {
	const op = "MixRuns"
	in, _ := s.operand(op, x, 2)
	factors, _ := s.operand(op, by, 2)
	if s.failed() || !s.begin(op) {
		return &array{}
	}
	m, err := tensor.CheckMix(in.shape, factors.shape, n)
	if err != nil {
		s.fail(err)
		return &array{}
	}
	return s.made(op, C.bridge_mix_runs(s.b.token(), in.h, factors.h, C.int32_t(n), C.int32_t(m)), in.shape[0], m*in.shape[1]/n)
}

// Level scales rows to the root mean square of others.
func (s *elementwise) Level(x, like tensor.Array, least float32) tensor.Array {
	const op = "Level"
	in, _ := s.operand(op, x, 2)
	to, _ := s.operand(op, like, 2)
	if s.failed() || !s.begin(op) {
		return &array{}
	}
	if !slices.Equal(in.shape, to.shape) {
		return s.misfit(op, "%v and %v", in.shape, to.shape)
	}
	return s.made(op, C.bridge_level(s.b.token(), in.h, to.h, C.float(least)), in.shape...)
}
