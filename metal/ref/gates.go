package ref

import (
	"fmt"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// Split gathers the parts of runs of columns.
func (s *scope) Split(x tensor.Array, widths ...int) []tensor.Array {
	outs := make([]tensor.Array, len(widths))
	for i := range outs {
		outs[i] = &array{}
	}
	in, ok := s.operand("Split", x, 2)
	if !ok {
		return outs
	}
	run, least := 0, 1
	for _, w := range widths {
		run, least = run+w, min(least, w)
	}
	if run <= 0 || least < 1 || in.shape[1]%run != 0 {
		s.fail(&tensor.ShapeError{Op: "Split", Detail: fmt.Sprintf("%v in parts of %v", in.shape, widths)})
		return outs
	}
	n, first := in.shape[1]/run, 0
	for i, w := range widths {
		out := s.array("Split", in.shape[0], n*w)
		if s.failed() {
			return outs
		}
		for t := range in.shape[0] {
			src, dst := in.row(t), out.row(t)
			for j := range n {
				copy(dst[j*w:(j+1)*w], src[j*run+first:])
			}
		}
		outs[i] = out
		first += w
	}
	return outs
}

// Join puts parts of rows side by side.
func (s *scope) Join(xs []tensor.Array, widths ...int) tensor.Array {
	run, n, rows := 0, 0, 0
	ins := make([]*array, len(xs))
	for i, x := range xs {
		in, ok := s.operand("Join", x, 2)
		if !ok {
			return &array{}
		}
		if ins[i] = in; i == 0 && len(widths) > 0 && widths[0] > 0 {
			n, rows = in.shape[1]/widths[0], in.shape[0]
		}
	}
	for i, w := range widths {
		if run += w; w < 1 || len(widths) != len(xs) || ins[i].shape[0] != rows || ins[i].shape[1] != n*w {
			s.fail(&tensor.ShapeError{Op: "Join", Detail: fmt.Sprintf("%d operands in parts of %v", len(xs), widths)})
			return &array{}
		}
	}
	if run == 0 {
		s.fail(&tensor.ShapeError{Op: "Join", Detail: "nothing"})
		return &array{}
	}
	out := s.array("Join", rows, n*run)
	if s.failed() {
		return out
	}
	for t := range rows {
		first := 0
		for i, w := range widths {
			src, dst := ins[i].row(t), out.row(t)
			for j := range n {
				copy(dst[j*run+first:], src[j*w:(j+1)*w])
			}
			first += w
		}
	}
	return out
}

// SigmoidGate is x * sigmoid(gate).
func (s *scope) SigmoidGate(x, gate tensor.Array) tensor.Array {
	in, ok := s.operand("SigmoidGate", x, 2)
	if !ok {
		return &array{}
	}
	g, ok := s.operand("SigmoidGate", gate, 2)
	if !ok {
		return &array{}
	}
	if g.shape[0] != in.shape[0] || in.shape[1]%g.shape[1] != 0 {
		s.fail(&tensor.ShapeError{Op: "SigmoidGate", Detail: fmt.Sprintf("%v by %v", in.shape, g.shape)})
		return &array{}
	}
	out := s.array("SigmoidGate", in.shape...)
	if s.failed() {
		return out
	}
	s.b.split(in.shape[0], max(1, grainElements/8/in.shape[1]), func(lo, hi int) {
		for t := lo; t < hi; t++ {
			src, by, dst := in.row(t), g.row(t), out.row(t)
			run := len(src) / len(by)
			for j, b := range by {
				scale := 1 / (1 + exp(-b))
				for i := j * run; i < (j+1)*run; i++ {
					dst[i] = src[i] * scale
				}
			}
		}
	})
	return out
}

// AddGated is y + x * sigmoid(gate).
func (s *mixture) AddGated(y, x, gate tensor.Array) tensor.Array {
	const op = "AddGated"
	to, _ := s.operand(op, y, 2)
	in, _ := s.operand(op, x, 2)
	g, ok := s.operand(op, gate, 2)
	if !ok {
		return &array{}
	}
	if !slices.Equal(to.shape, in.shape) || g.shape[0] != in.shape[0] || g.shape[1] != 1 {
		s.fail(&tensor.ShapeError{Op: op, Detail: fmt.Sprintf("%v and %v by %v", to.shape, in.shape, g.shape)})
		return &array{}
	}
	out := s.array(op, in.shape...)
	if s.failed() {
		return out
	}
	s.b.split(in.shape[0], max(1, grainElements/8/in.shape[1]), func(lo, hi int) {
		for t := lo; t < hi; t++ {
			before, src, dst, scale := to.row(t), in.row(t), out.row(t), 1/(1+exp(-g.row(t)[0]))
			for i := range dst {
				dst[i] = before[i] + float32(src[i]*scale) // rounded once more, as by two operations
			}
		}
	})
	return out
}

// RMSNormGate is RMSNorm(x) * SiLU(gate).
func (s *scope) RMSNormGate(x, gate, weight tensor.Array, eps float32) tensor.Array {
	in, ok := s.operand("RMSNormGate", x, 2)
	if !ok {
		return &array{}
	}
	g, ok := s.operand("RMSNormGate", gate, 2)
	if !ok {
		return &array{}
	}
	w, ok := s.operand("RMSNormGate", weight, 1)
	if !ok {
		return &array{}
	}
	width := w.shape[0]
	if !slices.Equal(in.shape, g.shape) || in.shape[1]%width != 0 {
		s.fail(&tensor.ShapeError{Op: "RMSNormGate", Detail: fmt.Sprintf("%v by %v and %v", in.shape, g.shape, w.shape)})
		return &array{}
	}
	out := s.array("RMSNormGate", in.shape...)
	if s.failed() {
		return out
	}
	runs := in.shape[1] / width
	s.b.split(in.shape[0]*runs, max(1, grainElements/8/width), func(lo, hi int) {
		for at := lo * width; at < hi*width; at += width {
			row, by, dst := in.data[at:at+width], g.data[at:at+width], out.data[at:at+width]
			mean := dot(row, row) / float32(width)
			scale := float32(1 / math.Sqrt(float64(mean+eps)))
			for i, v := range row {
				dst[i] = float32(float32(v*scale)*w.data[i]) * float32(by[i]/(1+exp(-by[i])))
			}
		}
	})
	return out
}
