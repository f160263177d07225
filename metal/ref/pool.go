package ref

import (
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// leastMask is what the sum of a mask counts for at least.
const leastMask = 1e-9

// Mean is the masked mean of the rows of each segment.
func (s *scope) Mean(x tensor.Array, segments []tensor.Segment, mask []float32) tensor.Array {
	in, ok := s.operand("Mean", x, 2)
	if !ok {
		return &array{}
	}
	if n := tensor.Tokens(segments); n != in.shape[0] || mask != nil && len(mask) != n {
		s.fail(&tensor.ShapeError{Op: "Mean", Detail: fmt.Sprintf("%v, %d rows in segments, mask of %d", in.shape, n, len(mask))})
		return &array{}
	}
	out := s.array("Mean", len(segments), in.shape[1])
	if s.failed() {
		return out
	}
	row := 0
	for i, g := range segments {
		dst := out.row(i)
		clear(dst)
		var sum float32
		for range g.Length {
			weight := float32(1)
			if mask != nil {
				weight = mask[row]
			}
			for j, v := range in.row(row) {
				dst[j] += float32(weight * v)
			}
			sum += weight
			row++
		}
		inverse := 1 / max(sum, leastMask)
		for j := range dst {
			dst[j] *= inverse
		}
	}
	return out
}

// Unit scales each row to an L2 norm of 1.
func (s *scope) Unit(x tensor.Array) tensor.Array {
	in, ok := s.operand("Unit", x, 2)
	if !ok {
		return &array{}
	}
	out := s.array("Unit", in.shape...)
	if s.failed() {
		return out
	}
	for t := range in.shape[0] {
		row, dst := in.row(t), out.row(t)
		norm := float32(math.Sqrt(float64(dot(row, row))))
		scale := float32(0)
		if norm > 0 {
			scale = 1 / norm
		}
		for i, v := range row {
			dst[i] = v * scale
		}
	}
	return out
}
