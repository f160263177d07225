package ref

import (
	"context"
	"fmt"
	"math"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/float16"
	"metalfleet.dev/metalfleet/metal/pages"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// matrix is a weight matrix [out, in] in as many bytes as its rows have. Dense
// formats and small floats lie row by row as loaded. Whole numbers lie in
// columns of 32 elements: the planes of group 0 of every row, then those of
// group 1, and so on, so that one table of products serves a whole column;
// scales, each followed by its bias and both in the type of the format, lie in
// columns of the format's own groups.
type matrix struct {
	b       *Backend
	format  quant.Format
	layout  layout
	out, in int
	mem     []byte
	// data is the dense rows, the words or the planes.
	data, scales []byte
	// elements and powers are what small floats and their scales mean.
	elements, powers *quant.FloatTable
	// finite dense halves are widened without a look at each.
	finite bool
}

// scaleBytes is the size of a group's scale and bias.
func (m *matrix) scaleBytes() int {
	if m.format.Mode == quant.Affine {
		return 2 * m.format.Type.Bytes()
	}
	return m.format.Type.Bytes()
}

// biasAt is the offset in bytes of a bias from its scale; 0 if there are no
// biases.
func (m *matrix) biasAt() int {
	if m.format.Mode == quant.Affine {
		return m.format.Type.Bytes()
	}
	return 0
}

// column is group g of 32 elements of rows [lo, hi).
func (m *matrix) column(g, lo, hi int) column {
	low, high, step := m.layout[0].bytes(), m.layout[1].bytes(), m.scaleBytes()
	base := g * m.out * (low + high)
	above := base + m.out*low
	scales := g / (m.format.Group / groupSize) * m.out * step
	return column{
		low: m.data[base+lo*low : base+hi*low], high: m.data[above+lo*high : above+hi*high],
		scales: m.scales[scales+lo*step : scales+hi*step],
		kind:   m.format.Type, bias: m.biasAt(), step: step,
	}
}

// LoadMatrix fills a matrix from rows in any order, from any goroutine.
func (b *Backend) LoadMatrix(format quant.Format, out, in int, fill func(put func(int, quant.Row) error) error) (tensor.Matrix, error) {
	if out <= 0 || in <= 0 || int64(out) > math.MaxInt32 || int64(in) > math.MaxInt32 {
		return nil, &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("[%d, %d]", out, in)}
	}
	if err := format.Check(); err != nil {
		return nil, fmt.Errorf("load matrix: %w: %w", tensor.ErrUnsupported, err)
	}
	sizes, err := format.Sizes(in)
	if err != nil {
		return nil, &tensor.ShapeError{Op: "LoadMatrix", Detail: err.Error()}
	}
	m := &matrix{b: b, format: format, layout: layoutOf(format), out: out, in: in}
	if m.mem, err = b.mem.exact(int64(out)*int64(sizes.Sum()), &b.mem.weights); err != nil {
		return nil, err
	}
	pages.PreferLarge(m.mem)
	m.data, m.scales = m.mem[:out*sizes.Raw], m.mem[out*sizes.Raw:]
	if format.BlockFloat() {
		m.elements, m.powers = format.Tables()
	}
	if err := m.load(sizes, fill); err != nil {
		m.Release()
		return nil, err
	}
	return m, nil
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

// LoadVector returns a kept array.
func (b *Backend) LoadVector(t quant.Type, raw []byte) (tensor.Array, error) {
	if err := quant.DenseOf(t).Check(); err != nil {
		return nil, fmt.Errorf("load vector: %w: %w", tensor.ErrUnsupported, err)
	}
	n := len(raw) / t.Bytes()
	if n == 0 || len(raw)%t.Bytes() != 0 {
		return nil, &tensor.ShapeError{Op: "LoadVector", Detail: fmt.Sprintf("%d bytes of %v", len(raw), t)}
	}
	s := &arena{b: b, ctx: context.Background(), fault: new(error)}
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
	switch {
	case m.format.BlockFloat():
		m.blockRow(row, dst)
		return
	case m.format.Quantized():
		m.quantizedRow(row, dst)
		return
	}
	rowBytes := m.in * m.format.Type.Bytes()
	m.widen(m.data[row*rowBytes:][:rowBytes], dst)
}

// widen reads dense numbers.
func (m *matrix) widen(raw []byte, dst []float32) {
	switch {
	case m.format.Type == quant.Float32:
		copy(dst, floats(raw))
	case m.format.Type == quant.BFloat16:
		widenBrain(dst, words16(raw))
	case m.finite:
		widenFinite(dst, words16(raw))
	default:
		for i, h := range words16(raw)[:len(dst)] {
			dst[i] = float16.Float32(h)
		}
	}
}

//go:norace
//go:nocheckptr
func widenBrain(dst []float32, src []uint16) {
	src = src[:len(dst)]
	for ; len(dst) >= 4 && len(src) >= 4; dst, src = dst[4:], src[4:] {
		d, w := (*[4]float32)(dst), (*[4]uint16)(src)
		d[0], d[1], d[2], d[3] = brain(w[0]), brain(w[1]), brain(w[2]), brain(w[3])
	}
	for i := range src {
		dst[i] = brain(src[i])
	}
}

func widenFinite(dst []float32, src []uint16) {
	src = src[:len(dst)]
	for ; len(dst) >= 4 && len(src) >= 4; dst, src = dst[4:], src[4:] {
		d, w := (*[4]float32)(dst), (*[4]uint16)(src)
		d[0], d[1], d[2], d[3] = halfFinite(w[0]), halfFinite(w[1]), halfFinite(w[2]), halfFinite(w[3])
	}
	for i := range src {
		dst[i] = halfFinite(src[i])
	}
}

// words16 sees bytes as 16-bit words.
func words16(p []byte) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(p))), len(p)/2)
}

func (m *matrix) quantizedRow(row int, dst []float32) {
	zero := float32(0)
	if m.format.Mode == quant.Symmetric {
		zero = float32(int(1) << (m.format.Bits - 1))
	}
	for g := range m.in / groupSize {
		c := m.column(g, row, row+1)
		scale, bias := m.format.Type.At(c.scales, 0), float32(0)
		if c.bias > 0 {
			bias = m.format.Type.At(c.scales, 1)
		}
		out := dst[g*groupSize:][:groupSize]
		for i := range out {
			q := m.layout[0].element(c.low, i) | m.layout[1].element(c.high, i)
			out[i] = float32(scale*(float32(q)-zero)) + bias
		}
	}
}
