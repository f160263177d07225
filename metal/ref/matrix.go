package ref

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/float16"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// matrix is a weight matrix [out, in]. Dense formats lie row by row as loaded.
// Quantised ones lie group by group: the packed words of group 0 of every row,
// then of group 1, and so on, so that one table of products serves a whole
// column of groups; scales (and biases beside them) lie in the same order.
type matrix struct {
	b       *Backend
	format  tensor.Format
	out, in int
	mem     []byte
	// data is the dense rows or the packed words; scales are half precision.
	data   []byte
	scales []uint16
}

// perGroup is how many half-precision numbers a group carries.
func perGroup(f tensor.Format) int {
	if f.Biased() {
		return 2
	}
	return 1
}

func groupBytes(f tensor.Format) int { return tensor.GroupSize * f.Bits() / 8 }

// LoadMatrix fills a matrix from rows in any order.
func (b *Backend) LoadMatrix(format tensor.Format, out, in int, fill func(put func(int, tensor.Row) error) error) (tensor.Matrix, error) {
	if out <= 0 || in <= 0 || int64(out) > math.MaxInt32 || int64(in) > math.MaxInt32 {
		return nil, &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("[%d, %d]", out, in)}
	}
	if format < tensor.Float32 || format > tensor.Symmetric8 {
		return nil, fmt.Errorf("load matrix as %v: %w", format, tensor.ErrUnsupported)
	}
	if format.Quantized() && in%tensor.GroupSize != 0 {
		return nil, &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("%d columns are not whole groups of %d", in, tensor.GroupSize)}
	}
	m := &matrix{b: b, format: format, out: out, in: in}
	dataBytes, scaleCount := int64(out)*int64(in)*int64(format.Bits())/8, int64(0)
	if format.Quantized() {
		scaleCount = int64(out) * int64(in/tensor.GroupSize) * int64(perGroup(format))
	}
	var err error
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

func (m *matrix) fill(fill func(put func(int, tensor.Row) error) error) error {
	seen, count := make([]bool, m.out), 0
	err := fill(func(row int, r tensor.Row) error {
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

func (m *matrix) put(row int, r tensor.Row) error {
	rowBytes := m.in * m.format.Bits() / 8
	if len(r.Raw) != rowBytes {
		return &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("row of %d bytes, want %d", len(r.Raw), rowBytes)}
	}
	if !m.format.Quantized() {
		copy(m.data[row*rowBytes:], r.Raw)
		return nil
	}
	groups, gb := m.in/tensor.GroupSize, groupBytes(m.format)
	if len(r.Scales) != groups || m.format.Biased() && len(r.Biases) != groups {
		return &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("%d scales and %d biases for %d groups", len(r.Scales), len(r.Biases), groups)}
	}
	for g := range groups {
		at := g*m.out + row
		copy(m.data[at*gb:at*gb+gb], r.Raw[g*gb:])
		s := r.Scales[g]
		finite := s&0x7c00 != 0x7c00
		if m.format.Biased() {
			finite = finite && r.Biases[g]&0x7c00 != 0x7c00
			m.scales[2*at], m.scales[2*at+1] = s, r.Biases[g]
		} else {
			m.scales[at] = s
		}
		if !finite {
			return fmt.Errorf("row %d, group %d: scale or bias is not a finite number: %w", row, g, tensor.ErrShape)
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

// row writes the float32 values of one row.
func (m *matrix) row(row int, dst []float32) {
	le := binary.LittleEndian
	rowBytes := m.in * m.format.Bits() / 8
	switch m.format {
	case tensor.Float32:
		copy(dst, floats(m.data[row*rowBytes:][:rowBytes]))
	case tensor.Float16:
		raw := m.data[row*rowBytes:]
		for i := range dst {
			dst[i] = float16.Float32(le.Uint16(raw[2*i:]))
		}
	case tensor.BFloat16:
		raw := m.data[row*rowBytes:]
		for i := range dst {
			dst[i] = float16.FromBrain(le.Uint16(raw[2*i:]))
		}
	default:
		m.affineRow(row, dst)
	}
}

func (m *matrix) affineRow(row int, dst []float32) {
	zero := float32(0)
	if !m.format.Biased() {
		zero = float32(int(1) << (m.format.Bits() - 1))
	}
	gb := groupBytes(m.format)
	for g := range m.in / tensor.GroupSize {
		at := g*m.out + row
		packed := m.data[at*gb:][:gb]
		scale, bias := m.scaleBias(at)
		out := dst[g*tensor.GroupSize:][:tensor.GroupSize]
		for i := range out {
			q := packed[i*m.format.Bits()/8]
			if m.format.Bits() == 4 {
				q = q >> (i % 2 * 4) & 15
			}
			out[i] = float32(scale*(float32(q)-zero)) + bias
		}
	}
}

func (m *matrix) scaleBias(at int) (scale, bias float32) {
	if m.format.Biased() {
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
