package ref

import (
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// AttendAll computes softmax(scale q k) v of every row over all rows of its
// segment, in order: other segments have no effect.
func (s *scope) AttendAll(spec tensor.AttendAllSpec) tensor.Array {
	const op = "AttendAll"
	q, _ := s.operand(op, spec.Q, 2)
	k, _ := s.operand(op, spec.K, 2)
	v, _ := s.operand(op, spec.V, 2)
	if s.failed() {
		return &array{}
	}
	least := 0
	for _, g := range spec.Segments {
		least = min(least, g.Length)
	}
	rows, width := q.shape[0], q.shape[1]
	if least < 0 || tensor.Tokens(spec.Segments) != rows || spec.Heads <= 0 || width%spec.Heads != 0 ||
		k.shape[0] != rows || v.shape[0] != rows || k.shape[1] != width || v.shape[1] != width {
		s.fail(&tensor.ShapeError{Op: op, Detail: fmt.Sprintf("q %v, k %v, v %v in %d heads, %d rows in segments",
			q.shape, k.shape, v.shape, spec.Heads, tensor.Tokens(spec.Segments))})
		return &array{}
	}
	out := s.array(op, rows, width)
	if s.failed() {
		return out
	}
	// of says for each row where its segment begins and ends.
	of := make([][2]int, 0, rows)
	for _, g := range spec.Segments {
		first := len(of)
		for range g.Length {
			of = append(of, [2]int{first, first + g.Length})
		}
	}
	size := width / spec.Heads
	vectors := s.b.vectors && size%lanes == 0
	s.b.workers.run(rows*spec.Heads, func(worker, task int) {
		t, at := task/spec.Heads, task%spec.Heads*size
		scores := grow(&s.b.scratch[worker].scores, of[t][1]-of[t][0])
		attendAll(scores, q.row(t)[at:at+size], out.row(t)[at:at+size], k, v, of[t][0], at, spec.Scale, vectors)
	})
	return out
}

// attendAll is one query against as many rows as there are scores, from first
// on; its head begins at column at.
func attendAll(scores, q, out []float32, k, v *array, first, at int, scale float32, vectors bool) {
	width := k.shape[1]
	keys, values := k.data[first*width+at:], v.data[first*width+at:]
	top := float32(math.Inf(-1))
	clear(out)
	var sum float32
	if vectors {
		vectorDotRows(scores, q, keys, width, scale)
		vectorExp(scores, vectorMax(scores, top))
		sum = total(scores)
		vectorAddRows(out, values, scores, width)
	} else {
		dotRows(scores, q, keys, width, scale)
		exponentials(scores, highest(scores, top))
		sum = total(scores)
		addRows(out, values, scores, width)
	}
	scaleBy(out, 1/sum)
}

// total adds x up in order.
//
//go:norace
func total(x []float32) (sum float32) {
	for _, v := range x {
		sum += v
	}
	return sum
}

// addRows adds rows, each times its p, to out, in order. One begins every stride
// elements.
//
//go:norace
//go:nocheckptr
func addRows(out, rows, p []float32, stride int) {
	for i, w := range p {
		for j, x := range rows[i*stride : i*stride+len(out)] {
			out[j] += float32(w * x)
		}
	}
}

// LayerNorm subtracts the mean of rows and scales them to unit variance.
func (s *scope) LayerNorm(x, weight, bias tensor.Array, eps float32) tensor.Array {
	const op = "LayerNorm"
	in, _ := s.operand(op, x, 2)
	w, _ := s.operand(op, weight, 1)
	b, _ := s.operand(op, bias, 1)
	if s.failed() {
		return &array{}
	}
	width := in.shape[1]
	if w.shape[0] != width || b.shape[0] != width {
		s.fail(&tensor.ShapeError{Op: op, Detail: fmt.Sprintf("%v by %v and %v", in.shape, w.shape, b.shape)})
		return &array{}
	}
	out := s.array(op, in.shape...)
	if s.failed() {
		return out
	}
	s.b.split(in.shape[0], max(1, grainElements/width), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			layerNorm(out.row(r), in.row(r), w.data, b.data, eps)
		}
	})
	return out
}

// layerNorm sums in float64: the variance is a difference of what may be large.
func layerNorm(dst, row, weight, bias []float32, eps float32) {
	var mean, variance float64
	for _, v := range row {
		mean += float64(v)
	}
	mean /= float64(len(row))
	for _, v := range row {
		d := float64(v) - mean
		variance += d * d
	}
	scale := 1 / math.Sqrt(variance/float64(len(row))+float64(eps))
	for i, v := range row {
		dst[i] = float32(float32((float64(v)-mean)*scale)*weight[i]) + bias[i]
	}
}
