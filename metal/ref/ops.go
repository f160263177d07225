package ref

import (
	"fmt"
	"math"

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
