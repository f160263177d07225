package ref

import (
	"fmt"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// split shares [0, n) among the workers in pieces of at least grain.
func (b *Backend) split(n, grain int, work func(lo, hi int)) {
	tasks := max(1, min(b.workers.size, n/grain))
	b.workers.run(tasks, func(_, task int) { work(n*task/tasks, n*(task+1)/tasks) })
}

// Rows gathers rows of x.
func (s *scope) Rows(x tensor.Array, rows []int) tensor.Array {
	in, ok := s.operand("Rows", x, 2)
	if !ok {
		return &array{}
	}
	for _, r := range rows {
		if r < 0 || r >= in.shape[0] {
			s.fail(&tensor.ShapeError{Op: "Rows", Detail: fmt.Sprintf("row %d of %v", r, in.shape)})
			return &array{}
		}
	}
	out := s.array("Rows", len(rows), in.shape[1])
	if s.failed() {
		return out
	}
	for i, r := range rows {
		copy(out.row(i), in.row(r))
	}
	return out
}

// Place replaces rows.
func (s *scope) Place(x tensor.Array, rows []int, y tensor.Array) tensor.Array {
	in, _ := s.operand("Place", x, 2)
	fresh, _ := s.operand("Place", y, 2)
	if s.failed() {
		return &array{}
	}
	if err := tensor.CheckPlace(in.shape, rows, fresh.shape); err != nil {
		s.fail(err)
		return &array{}
	}
	out := s.array("Place", in.shape...)
	if s.failed() {
		return out
	}
	copy(out.data, in.data)
	for i, r := range rows {
		copy(out.row(r), fresh.row(i))
	}
	return out
}

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

// SiLU is x * sigmoid(x).
func (s *elementwise) SiLU(x tensor.Array) tensor.Array {
	in, ok := s.operand("SiLU", x, 0)
	if !ok {
		return &array{}
	}
	out := s.array("SiLU", in.shape...)
	if s.failed() {
		return out
	}
	s.b.split(len(out.data), grainElements/8, func(lo, hi int) {
		for i, v := range in.data[lo:hi] {
			out.data[lo+i] = v / (1 + exp(-v))
		}
	})
	return out
}

// ReLU2 is the square of max(0, x).
func (s *elementwise) ReLU2(x tensor.Array) tensor.Array {
	return s.unary("ReLU2", x, func(v float32) float32 {
		v = max(0, v)
		return v * v
	})
}

// XIELU is a square on one side and an exponential on the other.
func (s *elementwise) XIELU(x tensor.Array, positive, negative, beta, eps float32) tensor.Array {
	return s.unary("XIELU", x, func(v float32) float32 {
		if v > 0 {
			return float32(float32(positive*v)*v) + float32(beta*v)
		}
		curve := float32(math.Expm1(float64(min(v, eps)))) - v
		return float32(negative*curve) + float32(beta*v)
	})
}

// SwiGLU is SiLU(gate) * up.
func (s *elementwise) SwiGLU(gate, up tensor.Array) tensor.Array {
	if s.b.vectors {
		return s.binary("SwiGLU", gate, up, vectorSwiGLU)
	}
	return s.binary("SwiGLU", gate, up, swiglu)
}

func swiglu(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	for i, v := range gate {
		dst[i] = float32(v/(1+exp(-v))) * up[i]
	}
}

// GeGLU is GELU(gate) * up.
func (s *elementwise) GeGLU(gate, up tensor.Array) tensor.Array {
	return s.binary("GeGLU", gate, up, geglu)
}

// geglu uses (1 + tanh(u))/2 = 1/(1 + e^-2u).
func geglu(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	for i, v := range gate {
		u := 0.7978845608 * (v + float32(0.044715*v)*float32(v*v))
		dst[i] = float32(v/(1+exp(-2*u))) * up[i]
	}
}

// ClampedSwiGLU is the gate of GPT-OSS.
func (s *elementwise) ClampedSwiGLU(gate, up tensor.Array, alpha, limit float32) tensor.Array {
	return s.binary("ClampedSwiGLU", gate, up, func(dst, gate, up []float32) {
		gate, up = gate[:len(dst)], up[:len(dst)]
		for i, g := range gate {
			g = min(g, limit)
			u := min(max(up[i], -limit), limit) + 1
			dst[i] = float32(g/(1+exp(-float32(alpha*g)))) * u
		}
	})
}

// LimitedSwiGLU is SwiGLU whose factors are bounded.
func (s *scope) LimitedSwiGLU(gate, up tensor.Array, limit float32) tensor.Array {
	return s.binary("LimitedSwiGLU", gate, up, func(dst, gate, up []float32) {
		gate, up = gate[:len(dst)], up[:len(dst)]
		for i, g := range gate {
			dst[i] = min(g/(1+exp(-g)), limit) * min(max(up[i], -limit), limit)
		}
	})
}

// Softplus is ln(1 + e^x).
func (s *scope) Softplus(x tensor.Array) tensor.Array {
	return s.unary("Softplus", x, func(v float32) float32 {
		return max(v, 0) + float32(math.Log1p(math.Exp(-math.Abs(float64(v)))))
	})
}

// ScaleShift is scale*x + shift.
func (s *elementwise) ScaleShift(x tensor.Array, scale, shift float32) tensor.Array {
	in, ok := s.operand("ScaleShift", x, 0)
	if !ok {
		return &array{}
	}
	out := s.array("ScaleShift", in.shape...)
	if s.failed() {
		return out
	}
	s.b.split(len(out.data), grainElements, func(lo, hi int) {
		for i, v := range in.data[lo:hi] {
			out.data[lo+i] = float32(v*scale) + shift
		}
	})
	return out
}

// RMSNorm scales runs of elements to unit root mean square.
func (s *scope) RMSNorm(x, weight tensor.Array, eps float32) tensor.Array {
	in, ok := s.operand("RMSNorm", x, 2)
	if !ok {
		return &array{}
	}
	w, ok := s.operand("RMSNorm", weight, 1)
	if !ok {
		return &array{}
	}
	width := w.shape[0]
	if in.shape[1]%width != 0 {
		s.fail(&tensor.ShapeError{Op: "RMSNorm", Detail: fmt.Sprintf("%v by %v", in.shape, w.shape)})
		return &array{}
	}
	out := s.array("RMSNorm", in.shape...)
	if s.failed() {
		return out
	}
	s.b.split(in.shape[0], max(1, grainElements/in.shape[1]), func(lo, hi int) {
		for run := lo * in.shape[1] / width; run < hi*in.shape[1]/width; run++ {
			row, dst := in.data[run*width:(run+1)*width], out.data[run*width:(run+1)*width]
			mean := dot(row, row) / float32(len(row))
			scale := float32(1 / math.Sqrt(float64(mean+eps)))
			for i, v := range row {
				dst[i] = float32(v*scale) * w.data[i]
			}
		}
	})
	return out
}

// Rope turns heads by the positions of their rows.
func (s *scope) Rope(x tensor.Array, segments []tensor.Segment, headSize int, spec tensor.RopeSpec) tensor.Array {
	in, ok := s.operand("Rope", x, 2)
	if !ok {
		return &array{}
	}
	half := spec.Size / 2
	if err := spec.Check(headSize); err != nil || in.shape[1]%headSize != 0 || tensor.Tokens(segments) != in.shape[0] {
		s.fail(&tensor.ShapeError{Op: "Rope", Detail: fmt.Sprintf("%v in heads of %d, %d rows in segments, %v", in.shape, headSize, tensor.Tokens(segments), err)})
		return &array{}
	}
	out := s.array("Rope", in.shape...)
	if s.failed() {
		return out
	}
	freqs := frequencies(spec)
	magnitude := spec.Magnitude
	if magnitude == 0 {
		magnitude = 1
	}
	positions := positionsOf(segments)
	s.b.split(len(positions), 4, func(lo, hi int) {
		cos, sin := make([]float32, half), make([]float32, half)
		for t := lo; t < hi; t++ {
			for i, f := range freqs {
				sn, cs := math.Sincos(float64(positions[t]) * f)
				cos[i], sin[i] = float32(cs*magnitude), float32(sn*magnitude)
			}
			if spec.Interleaved {
				turnPairs(out.row(t), in.row(t), headSize, cos, sin)
			} else {
				turn(out.row(t), in.row(t), headSize, cos, sin)
			}
			if g := float32(spec.Growth(positions[t])); g != 1 {
				row := out.row(t)
				for i := range row {
					row[i] *= g
				}
			}
		}
	})
	return out
}

// turn rotates the pairs (i, i+half) of every head and copies the rest.
func turn(dst, src []float32, headSize int, cos, sin []float32) {
	half := len(cos)
	for h := 0; h < len(src); h += headSize {
		a, b := src[h:h+half], src[h+half:h+2*half]
		x, y := dst[h:h+half], dst[h+half:h+2*half]
		for i := range half {
			x[i] = float32(a[i]*cos[i]) - float32(b[i]*sin[i])
			y[i] = float32(b[i]*cos[i]) + float32(a[i]*sin[i])
		}
		copy(dst[h+2*half:h+headSize], src[h+2*half:h+headSize])
	}
}

// turnPairs rotates the pairs (2i, 2i+1) of every head and copies the rest.
func turnPairs(dst, src []float32, headSize int, cos, sin []float32) {
	half := len(cos)
	for h := 0; h < len(src); h += headSize {
		for i := range half {
			a, b := src[h+2*i], src[h+2*i+1]
			dst[h+2*i] = float32(a*cos[i]) - float32(b*sin[i])
			dst[h+2*i+1] = float32(b*cos[i]) + float32(a*sin[i])
		}
		copy(dst[h+2*half:h+headSize], src[h+2*half:h+headSize])
	}
}

func frequencies(spec tensor.RopeSpec) []float64 {
	linear := spec.Linear
	if linear == 0 {
		linear = 1
	}
	out := make([]float64, spec.Size/2)
	for i := range out {
		out[i] = math.Pow(spec.Theta, -2*float64(i)/float64(spec.Size)) / linear
		if spec.Factors != nil {
			out[i] /= float64(spec.Factors[i])
		}
	}
	return out
}

func positionsOf(segments []tensor.Segment) []int {
	out := make([]int, 0, tensor.Tokens(segments))
	for _, g := range segments {
		for i := range g.Length {
			out = append(out, g.Start+i)
		}
	}
	return out
}

const (
	// leastExp is where exp becomes 0, plainExp what it takes without care.
	leastExp = -87.33
	plainExp = 87
)

// exponentials makes every x exp(x - top).
//
//go:norace
func exponentials(x []float32, top float32) {
	for i, v := range x {
		x[i] = exp(v - top)
	}
}

// exp is e^x in float32, within 2 units in the last place: x = n ln2 + r, a
// polynomial for e^r, and n moved into the exponent.
//
//go:norace
//go:nocheckptr
func exp(x float32) float32 {
	switch {
	case x != x:
		return x
	case x > 88.72:
		return float32(math.Inf(1))
	case x < leastExp: // the result would not be normal; its weight is nil
		return 0
	}
	n := math.Float32frombits(math.Float32bits(float32(x*1.44269504)+0x1.8p23)) - 0x1.8p23
	r := x - float32(n*0.693359375)
	r -= float32(n * -2.12194440e-4)
	p := float32(1.9875691500e-4)
	p = float32(p*r) + 1.3981999507e-3
	p = float32(p*r) + 8.3334519073e-3
	p = float32(p*r) + 4.1665795894e-2
	p = float32(p*r) + 1.6666665459e-1
	p = float32(p*r) + 5.0000001201e-1
	p = float32(float32(p*r)*r) + r + 1
	if n > 127 { // 2^128 has no float32 of its own
		return p * 2 * 0x1p127
	}
	return p * math.Float32frombits(uint32(int32(n)+127)<<23)
}
