//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"fmt"
	"math"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// matrixOperand checks that a matrix is alive.
func (s *arena) matrixOperand(op string, tm tensor.Matrix) (*matrix, bool) {
	m, ok := tm.(*matrix)
	if !ok || m.parts == nil {
		s.fail(fmt.Errorf("%s: matrix: %w", op, tensor.ErrReleased))
		return nil, false
	}
	return m, true
}

// Embed gathers rows of a matrix.
func (s *scope) Embed(tm tensor.Matrix, tids tensor.Array) tensor.Array {
	const op = "Embed"
	ids, ok := s.idOperand(op, tids)
	if !ok || !s.begin(op) {
		return &array{}
	}
	m, ok := s.matrixOperand(op, tm)
	if !ok {
		return &array{}
	}
	if ids.bound > m.out {
		return s.misfit(op, "ids up to %d of %d rows", ids.bound-1, m.out)
	}
	return s.made(op, C.bridge_embed(s.b.token(), m.parts[0], m.scales(), m.biases(), C.int32_t(m.format.Group), C.int32_t(m.format.Bits), modeOf(m.format), C.int32_t(s.b.typeOf(m.format.Type)), ids.h), ids.shape[0], m.in)
}

// Linear multiplies x by each matrix transposed.
func (s *scope) Linear(x tensor.Array, ms ...tensor.Matrix) []tensor.Array {
	const op = "Linear"
	outs := make([]tensor.Array, len(ms))
	for i := range outs {
		outs[i] = &array{}
	}
	in, ok := s.operand(op, x, 2)
	if !ok {
		return outs
	}
	if j := s.joinedOf(in, ms); j != nil {
		s.linearJoined(in, j, outs)
		return outs
	}
	for i, tm := range ms {
		m, ok := s.matrixOperand(op, tm)
		if !ok || !s.begin(op) {
			return outs
		}
		if m.in != in.shape[1] {
			s.misfit(op, "%v by [%d, %d]", in.shape, m.out, m.in)
			return outs
		}
		outs[i] = s.made(op, C.bridge_linear(s.b.token(), in.h, m.parts[0], m.scales(), m.biases(), C.int32_t(m.format.Group), C.int32_t(m.format.Bits), modeOf(m.format)), in.shape[0], m.out)
	}
	return outs
}

// LinearBias is Linear, and adds a bias to each row.
func (s *scope) LinearBias(x tensor.Array, ms []tensor.Matrix, biases []tensor.Array) []tensor.Array {
	const op = "LinearBias"
	outs := make([]tensor.Array, len(ms))
	for i := range outs {
		outs[i] = &array{}
	}
	in, ok := s.operand(op, x, 2)
	if !ok {
		return outs
	}
	if len(biases) != len(ms) {
		s.misfit(op, "%d matrices, %d biases", len(ms), len(biases))
		return outs
	}
	packed := true
	for i, tm := range ms {
		m, ok := s.matrixOperand(op, tm)
		if !ok {
			return outs
		}
		b, ok := s.operand(op, biases[i], 1)
		if !ok {
			return outs
		}
		if m.in != in.shape[1] || m.out != b.shape[0] {
			s.misfit(op, "%v by [%d, %d] and a bias of %d", in.shape, m.out, m.in, b.shape[0])
			return outs
		}
		packed = packed && m.format.Quantized()
	}
	if packed {
		outs = s.Linear(x, ms...)
	}
	for i, tm := range ms {
		s.addBias(op, in, tm.(*matrix), biases[i].(*array), &outs[i])
	}
	return outs
}

// addBias adds a bias to a product, which is there already or is still to be
// computed.
func (s *scope) addBias(op string, in *array, m *matrix, bias *array, out *tensor.Array) {
	if !s.begin(op) {
		return
	}
	shape := []int{in.shape[0], m.out}
	if !m.format.Quantized() {
		*out = s.made(op, C.bridge_linear_bias(s.b.token(), in.h, m.parts[0], bias.h), shape...)
		return
	}
	plain := (*out).(*array)
	if plain.h == nil {
		if plain = s.Linear(in, m)[0].(*array); s.failed() {
			return
		}
	}
	*out = s.made(op, C.bridge_add_bias(s.b.token(), plain.h, bias.h), shape...)
	s.Release(plain)
}

// Rows gathers rows of x.
func (s *scope) Rows(x tensor.Array, rows []int) tensor.Array {
	const op = "Rows"
	in, ok := s.operand(op, x, 2)
	if !ok || !s.begin(op) {
		return &array{}
	}
	for _, r := range rows {
		if r < 0 || r >= in.shape[0] {
			return s.misfit(op, "row %d of %v", r, in.shape)
		}
	}
	if len(rows) == 0 {
		return s.misfit(op, "no rows")
	}
	wanted := numbers(rows)
	return s.made(op, C.bridge_rows(s.b.token(), in.h, unsafe.SliceData(wanted), C.int32_t(len(wanted))), len(rows), in.shape[1])
}

// Place replaces rows.
func (s *scope) Place(x tensor.Array, rows []int, y tensor.Array) tensor.Array {
	const op = "Place"
	in, _ := s.operand(op, x, 2)
	fresh, _ := s.operand(op, y, 2)
	if s.failed() || !s.begin(op) {
		return &array{}
	}
	if err := tensor.CheckPlace(in.shape, rows, fresh.shape); err != nil {
		s.fail(err)
		return &array{}
	}
	where := numbers(rows)
	return s.made(op, C.bridge_place(s.b.token(), in.h, unsafe.SliceData(where), C.int32_t(len(where)), fresh.h), in.shape...)
}

// Argmax is the index of the largest of the first elements of each row, the
// lowest among equals; -1 if the maximum is not a finite number.
func (s *scope) Argmax(x tensor.Array, width int) tensor.Array {
	const op = "Argmax"
	in, ok := s.operand(op, x, 2)
	if !ok || !s.begin(op) {
		return &array{}
	}
	if width < 1 || width > in.shape[1] {
		return s.misfit(op, "first %d of %v", width, in.shape)
	}
	a := s.made(op, C.bridge_argmax(s.b.token(), in.h, C.int32_t(width)), in.shape[0])
	a.bound = width
	return a
}

// RMSNorm scales runs of elements to unit root mean square.
func (s *scope) RMSNorm(x, weight tensor.Array, eps float32) tensor.Array {
	const op = "RMSNorm"
	in, ok := s.operand(op, x, 2)
	if !ok {
		return &array{}
	}
	w, ok := s.operand(op, weight, 1)
	if !ok || !s.begin(op) {
		return &array{}
	}
	if in.shape[1]%w.shape[0] != 0 {
		return s.misfit(op, "%v by %v", in.shape, w.shape)
	}
	return s.made(op, C.bridge_rms_norm(s.b.token(), in.h, w.h, C.float(eps)), in.shape...)
}

// positionsOf the rows of segments.
func positionsOf(segments []tensor.Segment) []C.int32_t {
	out := make([]C.int32_t, 0, max(0, tensor.Tokens(segments)))
	for _, g := range segments {
		for i := range g.Length {
			out = append(out, C.int32_t(g.Start+i))
		}
	}
	return out
}

// Rope turns heads by the positions of their rows.
func (s *scope) Rope(x tensor.Array, segments []tensor.Segment, headSize int, spec tensor.RopeSpec) tensor.Array {
	const op = "Rope"
	in, ok := s.operand(op, x, 2)
	if !ok || !s.begin(op) {
		return &array{}
	}
	positions := positionsOf(segments)
	if err := spec.Check(headSize); err != nil || in.shape[1]%headSize != 0 || len(positions) != in.shape[0] {
		return s.misfit(op, "%v in heads of %d, %d rows in segments, %v", in.shape, headSize, len(positions), err)
	}
	how := C.bridge_rope_spec{head: C.int32_t(headSize), size: C.int32_t(spec.Size), interleaved: flag(spec.Interleaved), base: C.float(spec.Theta), scale: 1, magnitude: 1}
	if spec.Linear != 0 {
		how.scale = C.float(1 / spec.Linear)
	}
	if spec.Magnitude != 0 {
		how.magnitude = C.float(spec.Magnitude)
	}
	return s.made(op, C.bridge_rope(s.b.token(), in.h, unsafe.SliceData(positions), &how, unsafe.SliceData(periodsOf(spec)), unsafe.SliceData(growthOf(spec, positions))), in.shape...)
}

// periodsOf are the reciprocals of the frequencies where they are more than
// powers of theta; nil where they are not.
func periodsOf(spec tensor.RopeSpec) []C.float {
	if spec.Factors == nil {
		return nil
	}
	out := make([]C.float, len(spec.Factors))
	for i, f := range spec.Factors {
		out[i] = C.float(math.Pow(spec.Theta, 2*float64(i)/float64(spec.Size)) * float64(f))
	}
	return out
}

// growthOf are the factors of whole heads; nil where all are 1, as they are in
// the greater part of most requests.
func growthOf(spec tensor.RopeSpec, positions []C.int32_t) []C.float {
	out, grown := make([]C.float, len(positions)), false
	for i, p := range positions {
		out[i] = C.float(spec.Growth(int(p)))
		grown = grown || out[i] != 1
	}
	if !grown {
		return nil
	}
	return out
}

// Mean is the masked mean of the rows of each segment.
func (s *scope) Mean(x tensor.Array, segments []tensor.Segment, mask []float32) tensor.Array {
	const op = "Mean"
	in, ok := s.operand(op, x, 2)
	if !ok || !s.begin(op) {
		return &array{}
	}
	lengths := make([]C.int32_t, len(segments))
	least := 0
	for i, g := range segments {
		lengths[i] = C.int32_t(g.Length)
		least = min(least, g.Length)
	}
	if n := tensor.Tokens(segments); n != in.shape[0] || least < 0 || mask != nil && len(mask) != n {
		return s.misfit(op, "%v, %d rows in segments, mask of %d", in.shape, n, len(mask))
	}
	return s.made(op, C.bridge_mean(s.b.token(), in.h, unsafe.SliceData(lengths), C.int32_t(len(lengths)), (*C.float)(unsafe.SliceData(mask))), len(segments), in.shape[1])
}

// Unit scales each row to an L2 norm of 1.
func (s *scope) Unit(x tensor.Array) tensor.Array {
	const op = "Unit"
	in, ok := s.operand(op, x, 2)
	if !ok || !s.begin(op) {
		return &array{}
	}
	return s.made(op, C.bridge_unit(s.b.token(), in.h), in.shape...)
}
