package ref

import (
	"fmt"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// Exceed is how far elements exceed the mean of their row and a number of deviations.
func (s *elementwise) Exceed(x tensor.Array, by float32) tensor.Array {
	in, ok := s.operand("Exceed", x, 2)
	if !ok {
		return &array{}
	}
	out := s.array("Exceed", in.shape...)
	if s.failed() {
		return out
	}
	s.b.split(in.shape[0], max(1, grainElements/in.shape[1]), func(lo, hi int) {
		for t := lo; t < hi; t++ {
			row, n := in.row(t), float64(in.shape[1])
			var sum, squares float64
			for _, v := range row {
				sum += float64(v)
			}
			for _, v := range row {
				squares += (float64(v) - sum/n) * (float64(v) - sum/n)
			}
			from := sum/n + float64(by)*math.Sqrt(squares/n)
			for i, v := range row {
				out.row(t)[i] = float32(max(0, float64(v)-from))
			}
		}
	})
	return out
}

// MixRuns adds up the runs of each row.
func (s *elementwise) MixRuns(x, by tensor.Array, n int) tensor.Array {
	in, _ := s.operand("MixRuns", x, 2)
	factors, _ := s.operand("MixRuns", by, 2)
	if s.failed() {
		return &array{}
	}
	m, err := tensor.CheckMix(in.shape, factors.shape, n)
	if err != nil {
		s.fail(err)
		return &array{}
	}
	width := in.shape[1] / n
	out := s.array("MixRuns", in.shape[0], m*width)
	if s.failed() {
		return out
	}
	s.b.split(in.shape[0], max(1, grainElements/(n*m*width)), func(lo, hi int) {
		for t := lo; t < hi; t++ {
			clear(out.row(t))
			for i, f := range factors.row(t) {
				dst := out.row(t)[i/n*width : (i/n+1)*width]
				for k, v := range in.row(t)[i%n*width : (i%n+1)*width] {
					dst[k] += float32(f * v)
				}
			}
		}
	})
	return out
}

// Level scales rows to the root mean square of others.
func (s *elementwise) Level(x, like tensor.Array, least float32) tensor.Array {
	in, _ := s.operand("Level", x, 2)
	to, _ := s.operand("Level", like, 2)
	if s.failed() {
		return &array{}
	}
	if !slices.Equal(in.shape, to.shape) {
		s.fail(&tensor.ShapeError{Op: "Level", Detail: fmt.Sprintf("%v and %v", in.shape, to.shape)})
		return &array{}
	}
	out := s.array("Level", in.shape...)
	if s.failed() {
		return out
	}
	for t := range in.shape[0] {
		scale := float32(math.Sqrt(meanSquare(to.row(t)) / max(meanSquare(in.row(t)), float64(least))))
		for i, v := range in.row(t) {
			out.row(t)[i] = v * scale
		}
	}
	return out
}

func meanSquare(row []float32) float64 {
	var sum float64
	for _, v := range row {
		sum += float64(v) * float64(v)
	}
	return sum / float64(len(row))
}
