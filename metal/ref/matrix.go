package ref

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/float16"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// matrix is a weight matrix [out, in]. Dense formats lie row by row as loaded.
// Quantised ones lie group by group: the packed words of group 0 of every row,
// then of group 1, and so on, so that one table of products serves a whole
// column of groups; scales (and biases beside them) lie in the same order.
type matrix struct {
	b       *Backend
	format  quant.Format
	out, in int
	mem     []byte
	// data is the dense rows or the packed words; scales are half precision.
	data   []byte
	scales []uint16
}

// perGroup is how many half-precision numbers a group carries.
func perGroup(f quant.Format) int {
	if f.Mode == quant.Affine {
		return 2
	}
	return 1
}

// groupSize is the number of elements that share a scale.
const groupSize = 32

func groupBytes(f quant.Format) int { return groupSize * f.Bits / 8 }

// kernels says which formats have one.
func kernels(f quant.Format) error {
	if err := f.Check(); err != nil {
		return fmt.Errorf("load matrix: %w: %w", tensor.ErrUnsupported, err)
	}
	if f.Quantized() && (f.Bits != 4 && f.Bits != 8 || f.Group != groupSize || f.Type != quant.Float16) {
		return fmt.Errorf("load matrix as %v: %w", f, tensor.ErrUnsupported)
	}
	return nil
}

// LoadMatrix fills a matrix from rows in any order.
func (b *Backend) LoadMatrix(format quant.Format, out, in int, fill func(put func(int, quant.Row) error) error) (tensor.Matrix, error) {
	if out <= 0 || in <= 0 || int64(out) > math.MaxInt32 || int64(in) > math.MaxInt32 {
		return nil, &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("[%d, %d]", out, in)}
	}
	if err := kernels(format); err != nil {
		return nil, err
	}
	sizes, err := format.Sizes(in)
	if err != nil {
		return nil, &tensor.ShapeError{Op: "LoadMatrix", Detail: err.Error()}
	}
	m := &matrix{b: b, format: format, out: out, in: in}
	dataBytes, scaleCount := int64(out)*int64(sizes.Raw), int64(0)
	if format.Quantized() {
		scaleCount = int64(out) * int64(in/groupSize) * int64(perGroup(format))
	}
	if m.mem, err = b.mem.exact(dataBytes+2*scaleCount, &b.mem.weights); err != nil {
		return nil, err
	}
	m.data = m.mem[:dataBytes:dataBytes]
	if scaleCount > 0 {
		m.scales = unsafe.Slice((*uint16)(unsafe.Pointer(&m.mem[dataBytes])), scaleCount)
	}
	if err := m.fill(fill); err != nil {
		m.Release()
		return nil, err
	}
	return m, nil
}

func (m *matrix) fill(fill func(put func(int, quant.Row) error) error) error {
	seen, count := make([]bool, m.out), 0
	err := fill(func(row int, r quant.Row) error {
		if row < 0 || row >= m.out || seen[row] {
			return &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("row %d of %d is out of range or comes twice", row, m.out)}
		}
		seen[row] = true
		count++
		return m.put(row, r)
	})
	if err == nil && count != m.out {
		err = &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("%d of %d rows came", count, m.out)}
	}
	return err
}

func (m *matrix) put(row int, r quant.Row) error {
	if err := m.format.CheckRow(m.in, r); err != nil {
		return &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("row %d: %v", row, err)}
	}
	if !m.format.Quantized() {
		copy(m.data[row*len(r.Raw):], r.Raw)
		return nil
	}
	le := binary.LittleEndian
	gb := groupBytes(m.format)
	for g := range m.in / groupSize {
		at := g*m.out + row
		copy(m.data[at*gb:at*gb+gb], r.Raw[g*gb:])
		if m.format.Mode == quant.Affine {
			m.scales[2*at], m.scales[2*at+1] = le.Uint16(r.Scales[2*g:]), le.Uint16(r.Biases[2*g:])
		} else {
			m.scales[at] = le.Uint16(r.Scales[2*g:])
		}
	}
	return nil
}

// Shape of the matrix.
func (m *matrix) Shape() (out, in int) { return m.out, m.in }

// Bytes it occupies.
func (m *matrix) Bytes() int64 { return int64(len(m.mem)) }

// Release returns the memory; releasing twice does nothing.
func (m *matrix) Release() {
	if m.mem == nil {
		return
	}
	m.b.mem.releaseExact(m.mem, &m.b.mem.weights)
	m.mem, m.data, m.scales = nil, nil, nil
}

// LoadVector makes a kept array.
func (b *Backend) LoadVector(t quant.Type, raw []byte) (tensor.Array, error) {
	n := len(raw) / t.Bytes()
	if n == 0 || len(raw)%t.Bytes() != 0 || quant.DenseOf(t).Check() != nil {
		return nil, &tensor.ShapeError{Op: "LoadVector", Detail: fmt.Sprintf("%d bytes of %v", len(raw), t)}
	}
	s := &scope{b: b, ctx: context.Background(), fault: new(error)}
	defer s.Close()
	a := s.array("LoadVector", n)
	if s.failed() {
		return nil, s.Err()
	}
	for i := range a.data {
		a.data[i] = t.At(raw, i)
	}
	return s.Keep(a), nil
}

// row writes the float32 values of one row.
func (m *matrix) row(row int, dst []float32) {
	if m.format.Quantized() {
		m.affineRow(row, dst)
		return
	}
	rowBytes := m.in * m.format.Type.Bytes()
	raw := m.data[row*rowBytes:][:rowBytes]
	if m.format.Type == quant.Float32 {
		copy(dst, floats(raw))
		return
	}
	for i := range dst {
		dst[i] = m.format.Type.At(raw, i)
	}
}

func (m *matrix) affineRow(row int, dst []float32) {
	zero := float32(0)
	if m.format.Mode == quant.Symmetric {
		zero = float32(int(1) << (m.format.Bits - 1))
	}
	gb := groupBytes(m.format)
	for g := range m.in / groupSize {
		at := g*m.out + row
		packed := m.data[at*gb:][:gb]
		scale, bias := m.scaleBias(at)
		out := dst[g*groupSize:][:groupSize]
		for i := range out {
			out[i] = float32(scale*(float32(quant.Q(packed, m.format.Bits, i))-zero)) + bias
		}
	}
}

func (m *matrix) scaleBias(at int) (scale, bias float32) {
	if m.format.Mode == quant.Affine {
		return float16.Float32(m.scales[2*at]), float16.Float32(m.scales[2*at+1])
	}
	return float16.Float32(m.scales[at]), 0
}

// halfFinite widens a half-precision number that is known to be finite: moving
// the bits into place and one exact multiplication also serve subnormals.
func halfFinite(h uint16) float32 {
	f := math.Float32frombits(uint32(h&0x7fff)<<13) * 0x1p112
	return math.Float32frombits(math.Float32bits(f) | uint32(h&0x8000)<<16)
}
