package ref

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// Rows lie in columns: one that is written alone touches as many cache lines
// and pages as it has groups, a few bytes each. So rows are written a block at
// a time. Those that come together are written from where they are. Those that
// come one by one are gathered first, in any order: where too many blocks are
// begun, the oldest is written as far as it came.
const (
	blockRows  = 128 // 16 took a third longer for 4 GB, 256 no less time
	openBlocks = 8
	// together is how many rows are worth writing from where they are.
	together = 16
)

// block is consecutive rows of a matrix on their way into the columns.
type block struct {
	first int
	// have marks the rows that were read.
	have [blockRows]bool
	rows int
	// raw, scales and biases hold rows as they came, concatenated.
	raw, scales, biases []byte
}

// loading is the state of fill in addition to the matrix.
type loading struct {
	m     *matrix
	sizes quant.Sizes
	// seen is a bit per row that came, count how many did.
	seen     []atomic.Uint32
	count    atomic.Int64
	infinite atomic.Bool

	mu sync.Mutex
	// open are begun blocks, the oldest first, and free are empty ones; both
	// are guarded by mu, and so are the contents of open blocks.
	open, free []*block
}

func newLoading(m *matrix, sizes quant.Sizes) *loading {
	return &loading{m: m, sizes: sizes, seen: make([]atomic.Uint32, (m.out+31)/32)}
}

// load takes the rows that fill puts.
func (m *matrix) load(sizes quant.Sizes, fill func(put func(int, quant.Row) error) error) error {
	l := newLoading(m, sizes)
	if err := fill(l.put); err != nil {
		return err
	}
	if n := l.count.Load(); n != int64(m.out) {
		return &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("got %d of %d rows", n, m.out)}
	}
	for _, b := range l.open {
		m.scatter(b, sizes)
	}
	m.finite = !l.infinite.Load()
	return nil
}

// put takes rows that follow first. Several goroutines may call it.
func (l *loading) put(first int, r quant.Row) error {
	m := l.m
	rows, err := m.format.CheckRows(m.in, r)
	if err != nil {
		return &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("row %d", first), Cause: err}
	}
	if err := l.claim(first, rows); err != nil {
		return err
	}
	switch {
	case !m.inColumns():
		copy(m.data[first*l.sizes.Raw:], r.Raw)
		copy(m.scales[first*l.sizes.Scales:], r.Scales)
		if m.format.Type == quant.Float16 && !quant.Float16.Finite(r.Raw) {
			l.infinite.Store(true)
		}
	case rows >= together:
		for lo := 0; lo < rows; lo += blockRows {
			hi := min(lo+blockRows, rows)
			m.scatterRows(r.Slice(lo, hi, l.sizes), first+lo, hi-lo)
		}
	default:
		for i := range rows {
			l.gathered(first+i, r.At(i, l.sizes))
		}
	}
	return nil
}

// claim marks rows as come.
func (l *loading) claim(first, rows int) error {
	for row := first; row < first+rows; row++ {
		if row < 0 || row >= l.m.out || l.seen[row/32].Or(1<<(row%32))&(1<<(row%32)) != 0 {
			return &tensor.ShapeError{Op: "LoadMatrix", Detail: fmt.Sprintf("row %d of %d is out of range or duplicate", row, l.m.out)}
		}
	}
	l.count.Add(int64(rows))
	return nil
}

// gathered takes one row, and writes a block that is to be written then.
func (l *loading) gathered(row int, r quant.Row) {
	full := l.gather(row, r)
	if full == nil {
		return
	}
	l.m.scatter(full, l.sizes)
	l.mu.Lock()
	l.free = append(l.free, full)
	l.mu.Unlock()
}

// gather copies a row into its block. It returns a block that is to be
// written now and then put among the free ones: this one if it is full, or the
// oldest if there were too many.
func (l *loading) gather(row int, r quant.Row) (full *block) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := row - row%blockRows
	at := slices.IndexFunc(l.open, func(b *block) bool { return b.first == first })
	if at < 0 {
		if len(l.open) == openBlocks {
			full = l.open[0]
			l.open = slices.Delete(l.open, 0, 1)
		}
		at = len(l.open)
		l.open = append(l.open, l.begin(first))
	}
	b := l.open[at]
	i := row - first
	b.have[i] = true
	b.rows++
	copy(b.raw[i*l.sizes.Raw:], r.Raw)
	copy(b.scales[i*l.sizes.Scales:], r.Scales)
	copy(b.biases[i*l.sizes.Biases:], r.Biases)
	if b.rows == min(blockRows, l.m.out-first) {
		if full != nil {
			return full // the last row of a block of one: it is written with the rest
		}
		l.open = slices.Delete(l.open, at, at+1)
		return b
	}
	return full
}

// begin gives an empty block.
func (l *loading) begin(first int) *block {
	if n := len(l.free); n > 0 {
		b := l.free[n-1]
		l.free = l.free[:n-1]
		*b = block{first: first, raw: b.raw, scales: b.scales, biases: b.biases}
		return b
	}
	n := min(blockRows, l.m.out)
	return &block{first: first, raw: make([]byte, n*l.sizes.Raw), scales: make([]byte, n*l.sizes.Scales), biases: make([]byte, n*l.sizes.Biases)}
}

// scatter writes a block's rows into the columns. No two goroutines write the
// same row.
func (m *matrix) scatter(b *block, sizes quant.Sizes) {
	for lo := 0; lo < blockRows; lo++ {
		hi := lo
		for hi < blockRows && b.have[hi] {
			hi++
		}
		if hi > lo {
			m.scatterRows(quant.Row{Raw: b.raw, Scales: b.scales, Biases: b.biases}.Slice(lo, hi, sizes), b.first+lo, hi-lo)
			lo = hi
		}
	}
}

// scatterRows writes n rows that follow first.
func (m *matrix) scatterRows(r quant.Row, first, n int) {
	m.scatterWords(r.Raw, first, n)
	m.scatterScales(r.Scales, r.Biases, first, n)
}

// scatterWords writes the words of n consecutive rows.
func (m *matrix) scatterWords(raw []byte, first, n int) {
	low, high := m.layout[0].bytes(), m.layout[1].bytes()
	width := low + high
	rowBytes := len(raw) / n
	g := 0
	if low == 16 && high == 0 {
		for ; g+4 <= m.in/groupSize; g += 4 {
			gather16by4(m.data[(g*m.out+first)*low:], raw[g*width:], n, rowBytes, m.out*low)
		}
	}
	for ; g < m.in/groupSize; g++ {
		at := g * m.out * width
		lows := m.data[at+first*low : at+(first+n)*low]
		from := raw[g*width:]
		switch {
		case high > 0:
			highs := m.data[at+m.out*low+first*high : at+m.out*low+(first+n)*high]
			for i := range n {
				m.layout.split(from[i*rowBytes:], lows[i*low:][:low], highs[i*high:][:high])
			}
		case low == 16:
			gather16(lows, from, n, rowBytes)
		default:
			gather8(lows, from, n, rowBytes)
		}
	}
}

// gather16 joins n pieces of 16 bytes that are step bytes apart. This function
// and similar ones dominate the time of loading; therefore they use pointers.
func gather16(dst, src []byte, n, step int) {
	_, _ = dst[16*n-1], src[(n-1)*step+15]
	d, s := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	for i := range n {
		*(*[16]byte)(unsafe.Add(d, 16*i)) = *(*[16]byte)(unsafe.Add(s, i*step))
	}
}

// gather16by4 is gather16 for four pieces that lie side by side, a line of the
// cache, and go to places that lie column bytes apart: each line is read once.
func gather16by4(dst, src []byte, n, step, column int) {
	_, _ = dst[3*column+16*n-1], src[(n-1)*step+63]
	d, s := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	for i := range n {
		line, to := (*[4][16]byte)(unsafe.Add(s, i*step)), unsafe.Add(d, 16*i)
		*(*[16]byte)(to) = line[0]
		*(*[16]byte)(unsafe.Add(to, column)) = line[1]
		*(*[16]byte)(unsafe.Add(to, 2*column)) = line[2]
		*(*[16]byte)(unsafe.Add(to, 3*column)) = line[3]
	}
}

// gather8 joins pieces of 8 bytes.
func gather8(dst, src []byte, n, step int) {
	_, _ = dst[8*n-1], src[(n-1)*step+7]
	d, s := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	for i := range n {
		*(*[8]byte)(unsafe.Add(d, 8*i)) = *(*[8]byte)(unsafe.Add(s, i*step))
	}
}

// scatterScales writes the scales of n rows, each followed by its bias.
func (m *matrix) scatterScales(scales, biases []byte, first, n int) {
	size, step := m.format.Type.Bytes(), m.scaleBytes()
	rowBytes := len(scales) / n
	g := 0
	if m.biasAt() > 0 && size == 2 {
		for ; g+4 <= m.in/m.format.Group; g += 4 {
			pair2by4(m.scales[(g*m.out+first)*step:], scales[g*size:], biases[g*size:], n, rowBytes, m.out*step)
		}
	}
	for ; g < m.in/m.format.Group; g++ {
		dst, from := m.scales[(g*m.out+first)*step:][:n*step], scales[g*size:]
		switch {
		case m.biasAt() == 0:
			for i := range n {
				copy(dst[i*size:(i+1)*size], from[i*rowBytes:])
			}
		case size == 2:
			pair2(dst, from, biases[g*2:], n, rowBytes)
		default:
			pair4(dst, from, biases[g*4:], n, rowBytes)
		}
	}
}

// pair2 writes n scales of 2 bytes that are step bytes apart, each followed by
// its bias.
func pair2(dst, scales, biases []byte, n, step int) {
	_, _, _ = dst[4*n-1], scales[(n-1)*step+1], biases[(n-1)*step+1]
	d, s, b := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(scales)), unsafe.Pointer(unsafe.SliceData(biases))
	for i := range n {
		to := (*[2]uint16)(unsafe.Add(d, 4*i))
		to[0], to[1] = *(*uint16)(unsafe.Add(s, i*step)), *(*uint16)(unsafe.Add(b, i*step))
	}
}

// pair2by4 is pair2 for four scales that lie side by side and go to places that
// lie column bytes apart.
func pair2by4(dst, scales, biases []byte, n, step, column int) {
	_, _, _ = dst[3*column+4*n-1], scales[(n-1)*step+7], biases[(n-1)*step+7]
	d, s, b := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(scales)), unsafe.Pointer(unsafe.SliceData(biases))
	for i := range n {
		four, with, to := (*[4]uint16)(unsafe.Add(s, i*step)), (*[4]uint16)(unsafe.Add(b, i*step)), unsafe.Add(d, 4*i)
		*(*[2]uint16)(to) = [2]uint16{four[0], with[0]}
		*(*[2]uint16)(unsafe.Add(to, column)) = [2]uint16{four[1], with[1]}
		*(*[2]uint16)(unsafe.Add(to, 2*column)) = [2]uint16{four[2], with[2]}
		*(*[2]uint16)(unsafe.Add(to, 3*column)) = [2]uint16{four[3], with[3]}
	}
}

// pair4 writes scales of 4 bytes.
func pair4(dst, scales, biases []byte, n, step int) {
	_, _, _ = dst[8*n-1], scales[(n-1)*step+3], biases[(n-1)*step+3]
	d, s, b := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(scales)), unsafe.Pointer(unsafe.SliceData(biases))
	for i := range n {
		to := (*[2]uint32)(unsafe.Add(d, 8*i))
		to[0], to[1] = *(*uint32)(unsafe.Add(s, i*step)), *(*uint32)(unsafe.Add(b, i*step))
	}
}
