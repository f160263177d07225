//go:build mlx

package mlx

// #include "bridge.h"
import "C"

import (
	"fmt"
	"math"
	"sync"

	"metalfleet.dev/metalfleet/metal/pages"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// matrix is a weight matrix as the framework wants it: dense floats [out, in],
// or packed words with one scale and, but for small floats, one bias for each group. Symmetric
// formats are affine ones whose bias is -2^(bits-1) scales.
type matrix struct {
	b       *Backend
	format  quant.Format // of the arrays; never Symmetric
	out, in int
	// parts are words, or floats; then scales and biases.
	parts []handle
	bytes int64
	// joined is what this matrix and others lie in, if they do.
	joined *joined
}

// modeOf is how the framework reads words of a format.
func modeOf(f quant.Format) C.int32_t {
	switch f.Mode {
	case quant.MXFP4:
		return C.BRIDGE_MXFP4
	case quant.MXFP8:
		return C.BRIDGE_MXFP8
	case quant.NVFP4:
		return C.BRIDGE_NVFP4
	}
	return C.BRIDGE_AFFINE
}

// typeOf is the type in which numbers of type t are kept.
func (b *Backend) typeOf(t quant.Type) quant.Type {
	if b.precision == quant.Float32 {
		return quant.Float32
	}
	return t
}

// LoadMatrix fills a matrix from rows in any order.
func (b *Backend) LoadMatrix(format quant.Format, out, in int, fill func(put func(int, quant.Row) error) error) (tensor.Matrix, error) {
	const op = "LoadMatrix"
	if err := b.enter(op); err != nil {
		return nil, err
	}
	if _, ok := elements([]int{out, in}); !ok {
		return nil, &tensor.ShapeError{Op: op, Detail: fmt.Sprintf("[%d, %d]", out, in)}
	}
	if err := format.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", op, tensor.ErrUnsupported, err)
	}
	if _, err := format.Sizes(in); err != nil {
		return nil, &tensor.ShapeError{Op: op, Detail: err.Error()}
	}
	l := &loading{b: b, from: format, out: out, in: in, seen: make([]bool, out)}
	if err := l.allocate(); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	m, err := l.run(fill)
	if err != nil {
		_ = b.free(l.parts, false) // the fault before it says more
		return nil, err
	}
	b.gauges.weights.Add(m.bytes)
	return m, b.measure()
}

// loading is a matrix while its rows come.
type loading struct {
	b       *Backend
	from    quant.Format // of the rows
	to      quant.Format // of the arrays
	out, in int
	parts   []handle
	memory  [][]byte // of the parts, for the host to fill
	bytes   int64

	mu    sync.Mutex
	seen  []bool // guarded by mu
	count int    // guarded by mu
}

func (l *loading) allocate() error {
	l.to = l.from
	switch {
	case l.from.BlockFloat(): // which have no floats that could be widened
	case l.from.Mode == quant.Symmetric:
		l.to.Mode, l.to.Type = quant.Affine, l.b.typeOf(l.from.Type)
	default:
		l.to.Type = l.b.typeOf(l.from.Type)
	}
	sizes, err := l.to.Sizes(l.in)
	if err != nil {
		return err
	}
	if err := l.b.admit(int64(l.out) * int64(sizes.Sum())); err != nil {
		return err
	}
	parts := []struct {
		kind  C.int32_t
		width int
	}{{C.int32_t(l.to.Type), l.in}}
	if l.to.Quantized() {
		groups := l.in / l.to.Group
		parts[0].kind, parts[0].width = C.BRIDGE_WORDS, l.in/8*l.to.Bits/4
		parts = append(parts, parts[0], parts[0])
		for i := range parts[1:] {
			parts[i+1].kind, parts[i+1].width = C.int32_t(l.to.Type), groups
		}
		if l.to.BlockFloat() {
			parts = parts[:2]
			parts[1].kind = C.BRIDGE_BYTES
		}
	}
	for _, p := range parts {
		h, memory, err := l.b.raw(p.kind, l.out, p.width)
		if err != nil {
			_ = l.b.free(l.parts, false) // the fault before it says more
			return err
		}
		pages.PreferLarge(memory)
		l.parts, l.memory = append(l.parts, h), append(l.memory, memory)
		l.bytes += int64(len(memory))
	}
	return nil
}

func (l *loading) run(fill func(put func(int, quant.Row) error) error) (*matrix, error) {
	if err := fill(l.put); err != nil {
		return nil, err
	}
	if l.count != l.out {
		return nil, &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("got %d of %d rows", l.count, l.out)}
	}
	cut := l.b.cut(l.to, l.out, l.in)
	for i := range l.parts {
		h, err := l.b.toDevice(l.parts[i], cut)
		l.parts[i] = h
		if err != nil {
			return nil, fmt.Errorf("LoadMatrix: %w", err)
		}
	}
	return &matrix{b: l.b, format: l.to, out: l.out, in: l.in, parts: l.parts, bytes: l.bytes}, nil
}

// cutColumns is how many columns a quantised product takes at once on CUDA: the
// framework's kernel for a few rows goes through all columns of an output in one block, so
// that long rows leave the device idle. An H100 takes 164 us for 8 rows by
// [4096, 12288], and 49 us for 4 parts that are added up; one row takes 38
// instead of 36.
const cutColumns = 3072

// cut is into how many parts the columns of a matrix are cut: none if it has a
// kernel of ours.
func (b *Backend) cut(f quant.Format, out, in int) int {
	columns := b.opts.CutColumns
	if columns == 0 && b.cuda.Load() && !b.fewRows(f, out, in) {
		columns = cutColumns
	}
	if columns == 0 || !f.Quantized() || in < 2*columns {
		return 1
	}
	for parts := in / columns; parts > 1; parts-- {
		if in%(parts*f.Group) == 0 {
			return parts
		}
	}
	return 1
}

// fewRows says whether the bridge has its own kernel (few_rows.h) for a few rows
// by a matrix.
func (b *Backend) fewRows(f quant.Format, out, in int) bool {
	var has C.int32_t
	err := fault(C.bridge_few_rows(b.token(), C.int32_t(f.Type), C.int32_t(f.Group), C.int32_t(f.Bits), C.int32_t(out), C.int32_t(in), &has))
	return err == nil && has != 0
}

// put copies rows that follow first to where they belong. Any goroutine may
// call it: it touches host memory alone.
func (l *loading) put(first int, r quant.Row) error {
	rows, err := l.from.CheckRows(l.in, r)
	if err != nil {
		return &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("row %d", first), Cause: err}
	}
	if err := l.claim(first, rows); err != nil {
		return err
	}
	at := func(part int) []byte {
		n := len(l.memory[part]) / l.out
		return l.memory[part][first*n : (first+rows)*n]
	}
	if !l.from.Quantized() {
		widen(l.to.Type, at(0), l.from.Type, r.Raw)
		return nil
	}
	copy(at(0), r.Raw)
	if l.from.BlockFloat() {
		copy(at(1), r.Scales)
		return nil
	}
	widen(l.to.Type, at(1), l.from.Type, r.Scales)
	if l.from.Mode == quant.Affine {
		widen(l.to.Type, at(2), l.from.Type, r.Biases)
		return nil
	}
	return l.centre(first, at(1), at(2))
}

// claim marks rows as come.
func (l *loading) claim(first, rows int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for row := first; row < first+rows; row++ {
		if row < 0 || row >= l.out || l.seen[row] {
			return &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("row %d of %d is out of range or duplicate", row, l.out)}
		}
		l.seen[row] = true
	}
	l.count += rows
	return nil
}

// centre writes the biases of symmetric rows.
func (l *loading) centre(first int, scales, biases []byte) error {
	t, zero := l.to.Type, float32(int(1)<<(l.to.Bits-1))
	for g := range len(scales) / t.Bytes() {
		t.Put(biases, g, -zero*t.At(scales, g))
		if math.IsInf(float64(t.At(biases, g)), 0) {
			return fmt.Errorf("LoadMatrix: row %d: a scale of %v times %v does not fit %v: %w", first+g/(l.in/l.to.Group), t.At(scales, g), zero, t, tensor.ErrUnsupported)
		}
	}
	return nil
}

// widen copies little-endian floats into a type at least as fine.
func widen(to quant.Type, dst []byte, from quant.Type, src []byte) {
	if to == from {
		copy(dst, src)
		return
	}
	for i := range len(src) / from.Bytes() {
		to.Put(dst, i, from.At(src, i))
	}
}

// Shape of the matrix.
func (m *matrix) Shape() (out, in int) { return m.out, m.in }

// Bytes it occupies.
func (m *matrix) Bytes() int64 { return m.bytes }

// Release returns the memory; releasing twice does nothing.
func (m *matrix) Release() {
	if m.parts == nil {
		return
	}
	m.b.gauges.weights.Add(-m.bytes)
	m.joined.release(m.b)
	if m.b.free(m.parts, false) != nil { // another thread's: it stays, and Close says so
		m.b.gauges.weights.Add(m.bytes)
		return
	}
	m.parts = nil
}

// scales and biases are nil where there are none.
func (m *matrix) scales() handle { return m.part(1) }
func (m *matrix) biases() handle { return m.part(2) }

func (m *matrix) part(i int) handle {
	if i < len(m.parts) {
		return m.parts[i]
	}
	return nil
}

// LoadVector returns a kept array.
func (b *Backend) LoadVector(t quant.Type, raw []byte) (tensor.Array, error) {
	const op = "LoadVector"
	if err := b.enter(op); err != nil {
		return nil, err
	}
	n := len(raw) / t.Bytes()
	if n == 0 || len(raw)%t.Bytes() != 0 || quant.DenseOf(t).Check() != nil {
		return nil, &tensor.ShapeError{Op: op, Detail: fmt.Sprintf("%d bytes of %v", len(raw), t)}
	}
	to := b.typeOf(t)
	bytes := int64(n * to.Bytes())
	if err := b.admit(bytes); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	h, memory, err := b.raw(C.int32_t(to), n)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	widen(to, memory, t, raw)
	if h, err = b.toDevice(h, 1); err != nil {
		_ = b.free([]handle{h}, false) // the fault before it says more
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	b.claimed += bytes
	b.gauges.live.Add(1)
	return &array{shape: []int{n}, h: h, bytes: bytes}, b.measure()
}
