package ref

import (
	"fmt"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// grainElements is the least work worth handing to another thread.
const grainElements = 1 << 13

func (s *elementwise) binary(op string, ta, tb tensor.Array, f func(dst, a, b []float32)) tensor.Array {
	a, ok := s.operand(op, ta, 0)
	if !ok {
		return &array{}
	}
	b, ok := s.operand(op, tb, 0)
	if !ok {
		return &array{}
	}
	if !slices.Equal(a.shape, b.shape) {
		s.fail(&tensor.ShapeError{Op: op, Detail: fmt.Sprintf("%v and %v", a.shape, b.shape)})
		return &array{}
	}
	out := s.array(op, a.shape...)
	if s.failed() {
		return out
	}
	s.b.split(len(out.data), grainElements, func(lo, hi int) { f(out.data[lo:hi], a.data[lo:hi], b.data[lo:hi]) })
	return out
}

// Add adds element by element.
func (s *elementwise) Add(a, b tensor.Array) tensor.Array { return s.binary("Add", a, b, add) }

// Multiply multiplies element by element, by a row, or runs of each row.
func (s *elementwise) Multiply(ta, tb tensor.Array) tensor.Array {
	a, ok := s.operand("Multiply", ta, 0)
	if !ok {
		return &array{}
	}
	b, ok := s.operand("Multiply", tb, 0)
	if !ok || slices.Equal(a.shape, b.shape) {
		return s.binary("Multiply", ta, tb, multiply)
	}
	if !tensor.Multiplies(a.shape, b.shape) {
		s.fail(&tensor.ShapeError{Op: "Multiply", Detail: fmt.Sprintf("%v and %v", a.shape, b.shape)})
		return &array{}
	}
	out := s.array("Multiply", a.shape...)
	if s.failed() {
		return out
	}
	for t := range a.shape[0] {
		by := b.data
		if len(b.shape) == 2 {
			by = b.row(t)
		}
		src, dst := a.row(t), out.row(t)
		run := len(src) / len(by)
		for i, v := range src {
			dst[i] = v * by[i/run]
		}
	}
	return out
}

func add(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

func multiply(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = a[i] * b[i]
	}
}

// Map computes f of each element.
func (s *elementwise) Map(x tensor.Array, f tensor.Function) tensor.Array {
	switch f := f.(type) {
	case tensor.SiLU:
		return s.unary("SiLU", x, grainElements/8, each(func(v float32) float32 { return v / (1 + exp(-v)) }))
	case tensor.Softplus:
		return s.unary("Softplus", x, grainElements/8, each(func(v float32) float32 { return float32(softplus(float64(v))) }))
	case tensor.ReLU2:
		return s.unary("ReLU2", x, grainElements, each(func(v float32) float32 { return max(0, v) * max(0, v) }))
	case tensor.Tanh:
		return s.unary("Tanh", x, grainElements/8, each(func(v float32) float32 { return float32(math.Tanh(float64(v))) }))
	case tensor.GELU:
		if f.Tanh {
			return s.unary("GELU", x, grainElements/8, each(func(v float32) float32 { return v / (1 + exp(-2*geluAngle(v))) }))
		}
		return s.unary("GELU", x, grainElements/8, each(gelu))
	case tensor.XIELU:
		return s.unary("XIELU", x, grainElements/8, each(func(v float32) float32 { return xielu(f, v) }))
	case tensor.Clip:
		return s.unary("Clip", x, grainElements, each(func(v float32) float32 { return min(max(v, f.Low), f.High) }))
	case tensor.ScaleShift:
		return s.unary("ScaleShift", x, grainElements, func(dst, x []float32) {
			for i, v := range x {
				dst[i] = float32(v*f.Scale) + f.Shift
			}
		})
	}
	s.fail(fmt.Errorf("Map: function %T: %w", f, tensor.ErrUnsupported))
	return &array{}
}

// unary runs f on parts of x that are worth handing to another thread.
func (s *elementwise) unary(op string, x tensor.Array, grain int, f func(dst, x []float32)) tensor.Array {
	in, ok := s.operand(op, x, 0)
	if !ok {
		return &array{}
	}
	out := s.array(op, in.shape...)
	if s.failed() {
		return out
	}
	s.b.split(len(out.data), grain, func(lo, hi int) { f(out.data[lo:hi], in.data[lo:hi]) })
	return out
}

// each computes every element by itself.
func each(f func(float32) float32) func(dst, x []float32) {
	return func(dst, x []float32) {
		for i, v := range x {
			dst[i] = f(v)
		}
	}
}

func gelu(v float32) float32 {
	return float32(float64(v) / 2 * math.Erfc(-float64(v)*(1/math.Sqrt2)))
}

// geluAngle is u in the GELU that uses tanh, v*(1 + tanh(u))/2 = v/(1 + e^-2u).
func geluAngle(v float32) float32 {
	return 0.7978845608 * (v + float32(0.044715*v)*float32(v*v))
}

func xielu(f tensor.XIELU, v float32) float32 {
	if v > 0 {
		return float32(float32(f.Positive*v)*v) + float32(f.Beta*v)
	}
	curve := float32(math.Expm1(float64(min(v, f.Eps)))) - v
	return float32(f.Negative*curve) + float32(f.Beta*v)
}

// GLU computes the elements of a gated linear unit.
func (s *elementwise) GLU(gate, up tensor.Array, g tensor.GLU) tensor.Array {
	switch g := g.(type) {
	case tensor.SwiGLU:
		if s.b.vectors {
			return s.binary("SwiGLU", gate, up, vectorSwiGLU)
		}
		return s.binary("SwiGLU", gate, up, swiglu)
	case tensor.GeGLU:
		return s.binary("GeGLU", gate, up, geglu)
	case tensor.ClampedSwiGLU:
		return s.binary("ClampedSwiGLU", gate, up, func(dst, gate, up []float32) {
			gate, up = gate[:len(dst)], up[:len(dst)]
			for i, v := range gate {
				v = min(v, g.Limit)
				u := min(max(up[i], -g.Limit), g.Limit) + 1
				dst[i] = float32(v/(1+exp(-float32(g.Alpha*v)))) * u
			}
		})
	case tensor.LimitedSwiGLU:
		return s.binary("LimitedSwiGLU", gate, up, func(dst, gate, up []float32) {
			gate, up = gate[:len(dst)], up[:len(dst)]
			for i, v := range gate {
				dst[i] = min(v/(1+exp(-v)), g.Limit) * min(max(up[i], -g.Limit), g.Limit)
			}
		})
	}
	s.fail(fmt.Errorf("GLU: %T: %w", g, tensor.ErrUnsupported))
	return &array{}
}

func swiglu(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	for i, v := range gate {
		dst[i] = float32(v/(1+exp(-v))) * up[i]
	}
}

func geglu(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	for i, v := range gate {
		dst[i] = float32(v/(1+exp(-2*geluAngle(v)))) * up[i]
	}
}
