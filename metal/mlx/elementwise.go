//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// pair computes each element of two equal shapes by itself.
func (s *elementwise) pair(op string, ta, tb tensor.Array, f func(a, b handle) C.bridge_made) tensor.Array {
	a, ok := s.operand(op, ta, 0)
	if !ok {
		return &array{}
	}
	b, ok := s.operand(op, tb, 0)
	if !ok || !s.begin(op) {
		return &array{}
	}
	if !slices.Equal(a.shape, b.shape) {
		return s.misfit(op, "%v and %v", a.shape, b.shape)
	}
	return s.made(op, f(a.h, b.h), a.shape...)
}

// Add adds element by element.
func (s *elementwise) Add(a, b tensor.Array) tensor.Array {
	return s.pair("Add", a, b, func(a, b handle) C.bridge_made { return C.bridge_add(s.b.token(), a, b) })
}

// Multiply multiplies element by element, by a row, or runs of each row.
func (s *elementwise) Multiply(ta, tb tensor.Array) tensor.Array {
	const op = "Multiply"
	a, ok := s.operand(op, ta, 0)
	if !ok {
		return &array{}
	}
	b, ok := s.operand(op, tb, 0)
	if !ok || !s.begin(op) {
		return &array{}
	}
	if !tensor.Multiplies(a.shape, b.shape) {
		return s.misfit(op, "%v and %v", a.shape, b.shape)
	}
	return s.made(op, C.bridge_multiply(s.b.token(), a.h, b.h), a.shape...)
}

// Map computes f of each element.
func (s *elementwise) Map(x tensor.Array, f tensor.Function) tensor.Array {
	var run func(handle) C.bridge_made
	switch f := f.(type) {
	case tensor.SiLU:
		run = func(h handle) C.bridge_made { return C.bridge_silu(s.b.token(), h) }
	case tensor.Softplus:
		run = func(h handle) C.bridge_made { return C.bridge_softplus(s.b.token(), h) }
	case tensor.ReLU2:
		run = func(h handle) C.bridge_made { return C.bridge_relu2(s.b.token(), h) }
	case tensor.Tanh:
		run = func(h handle) C.bridge_made { return C.bridge_tanh(s.b.token(), h) }
	case tensor.GELU:
		run = func(h handle) C.bridge_made { return C.bridge_gelu(s.b.token(), h, flag(f.Tanh)) }
	case tensor.XIELU:
		run = func(h handle) C.bridge_made {
			return C.bridge_xielu(s.b.token(), h, C.float(f.Positive), C.float(f.Negative), C.float(f.Beta), C.float(f.Eps))
		}
	case tensor.Clip:
		run = func(h handle) C.bridge_made { return C.bridge_clip(s.b.token(), h, C.float(f.Low), C.float(f.High)) }
	case tensor.ScaleShift:
		run = func(h handle) C.bridge_made {
			return C.bridge_scale_shift(s.b.token(), h, C.float(f.Scale), C.float(f.Shift))
		}
	default:
		s.fail(fmt.Errorf("Map: function %T: %w", f, tensor.ErrUnsupported))
		return &array{}
	}
	op := f.Function()
	in, ok := s.operand(op, x, 0)
	if !ok || !s.begin(op) {
		return &array{}
	}
	return s.made(op, run(in.h), in.shape...)
}

// GLU computes the elements of a gated linear unit.
func (s *elementwise) GLU(gate, up tensor.Array, g tensor.GLU) tensor.Array {
	var run func(a, b handle) C.bridge_made
	switch g := g.(type) {
	case tensor.SwiGLU:
		run = func(a, b handle) C.bridge_made { return C.bridge_swiglu(s.b.token(), a, b) }
	case tensor.GeGLU:
		run = func(a, b handle) C.bridge_made { return C.bridge_geglu(s.b.token(), a, b) }
	case tensor.ClampedSwiGLU:
		run = func(a, b handle) C.bridge_made {
			return C.bridge_clamped_swiglu(s.b.token(), a, b, C.float(g.Alpha), C.float(g.Limit))
		}
	case tensor.LimitedSwiGLU:
		run = func(a, b handle) C.bridge_made { return C.bridge_limited_swiglu(s.b.token(), a, b, C.float(g.Limit)) }
	default:
		s.fail(fmt.Errorf("GLU: %T: %w", g, tensor.ErrUnsupported))
		return &array{}
	}
	return s.pair(g.GLU(), gate, up, run)
}
