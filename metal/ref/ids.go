package ref

import (
	"fmt"
	"math"
	"slices"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// idArray makes room for n token ids.
func (s *arena) idArray(op string, n int) *array {
	a := s.array(op, n)
	if !s.failed() {
		a.ids = unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(a.data))), n)
		a.data = nil
	}
	return a
}

// idOperand checks that an array is alive and holds token ids.
func (s *arena) idOperand(op string, ta tensor.Array) (*array, bool) {
	if s.failed() {
		return nil, false
	}
	a, ok := ta.(*array)
	if !ok || a.mem == nil {
		s.fail(fmt.Errorf("%s: %w", op, tensor.ErrReleased))
		return nil, false
	}
	if a.ids == nil {
		s.fail(&tensor.ShapeError{Op: op, Detail: "got numbers, want token ids"})
		return nil, false
	}
	return a, true
}

// IDs copies token ids into a new array.
func (s *arena) IDs(ids []int32) tensor.Array {
	out := s.idArray("IDs", len(ids))
	if !s.failed() {
		copy(out.ids, ids)
	}
	return out
}

// JoinIDs copies rows of token ids, followed by known ones, into a new array.
func (s *arena) JoinIDs(ta tensor.Array, rows []int, ids []int32) tensor.Array {
	const op = "JoinIDs"
	a, ok := s.idOperand(op, ta)
	if !ok {
		return &array{}
	}
	if len(rows) == 0 || slices.Min(rows) < 0 || slices.Max(rows) >= len(a.ids) || len(ids) > 0 && slices.Min(ids) < 0 {
		s.fail(&tensor.ShapeError{Op: op, Detail: fmt.Sprintf("rows %v of %d ids and %d more, want rows and no negative id", rows, len(a.ids), len(ids))})
		return &array{}
	}
	out := s.idArray(op, len(rows)+len(ids))
	if s.failed() {
		return out
	}
	for i, r := range rows {
		out.ids[i] = a.ids[r]
	}
	copy(out.ids[len(rows):], ids)
	out.chosen = a.chosen
	return out
}

// ReadIDs copies token ids out.
func (s *arena) ReadIDs(ta tensor.Array, dst []int32) {
	a, ok := s.idOperand("ReadIDs", ta)
	if !ok {
		return
	}
	if len(dst) != len(a.ids) {
		s.fail(&tensor.ShapeError{Op: "ReadIDs", Detail: fmt.Sprintf("%v into %d ids", a.shape, len(dst))})
		return
	}
	copy(dst, a.ids)
}

// Start does nothing: this back end computes at once.
func (s *arena) Start(...tensor.Array) {}

// Wait does nothing either.
func (s *arena) Wait(...tensor.Array) {}

// Argmax is the index of the largest of the first elements of each row, the
// lowest among equals.
func (s *scope) Argmax(x tensor.Array, width int) tensor.Array {
	in, ok := s.operand("Argmax", x, 2)
	if !ok {
		return &array{}
	}
	if width < 1 || width > in.shape[1] {
		s.fail(&tensor.ShapeError{Op: "Argmax", Detail: fmt.Sprintf("first %d of %v", width, in.shape)})
		return &array{}
	}
	out := s.idArray("Argmax", in.shape[0])
	if s.failed() {
		return out
	}
	out.chosen = true
	for t := range out.ids {
		out.ids[t] = argmax(in.row(t)[:width])
	}
	return out
}

// noChoice is the id of a row that Argmax found no choice in. A step may be
// built on it before anyone reads it, so Embed takes it: the row that it gives
// is of no use.
const noChoice = -1

// argmax is noChoice where the largest is not a finite number.
func argmax(row []float32) int32 {
	best := 0
	for i, v := range row {
		if v != v {
			return noChoice
		}
		if v > row[best] {
			best = i
		}
	}
	if math.IsInf(float64(row[best]), 0) {
		return noChoice
	}
	return int32(best)
}

// Embed gathers rows of a matrix.
func (s *scope) Embed(tm tensor.Matrix, tids tensor.Array) tensor.Array {
	ids, ok := s.idOperand("Embed", tids)
	if !ok {
		return &array{}
	}
	m, ok := tm.(*matrix)
	if !ok || m.mem == nil {
		s.fail(fmt.Errorf("Embed: %w", tensor.ErrReleased))
		return &array{}
	}
	least := int32(0)
	if ids.chosen {
		least = noChoice
	}
	for _, id := range ids.ids {
		if id < least || int(id) >= m.out {
			s.fail(&tensor.ShapeError{Op: "Embed", Detail: fmt.Sprintf("row %d of %d", id, m.out)})
			return &array{}
		}
	}
	out := s.array("Embed", len(ids.ids), m.in)
	if s.failed() {
		return out
	}
	s.b.split(len(ids.ids), 8, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			if ids.ids[i] == noChoice {
				clear(out.row(i))
				continue
			}
			m.row(int(ids.ids[i]), out.row(i))
		}
	})
	return out
}
