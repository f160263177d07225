package weights

import (
	"io"
	"slices"
	"sync/atomic"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

// pieceBytes is about how much is read at once.
const pieceBytes = 1 << 20

// kind is a part of a quant.Row.
type kind int

const (
	words kind = iota
	scales
	biases
	kinds
)

func (k kind) String() string { return [...]string{"words", "scales", "biases"}[k] }

// part is one kind of what rows are made of.
type part struct {
	kind kind
	// runs follow one another, each with this many rows.
	runs []run
	each int
	row  int // bytes of a row
}

// run is bytes that lie together.
type run struct {
	source io.ReaderAt
	offset int64
}

// layout describes how a tensor is read: the words in pieces of whole rows, and
// scales and biases once for many pieces. Alternating between them for each
// piece would defeat the read-ahead of systems: reading 4 GB took half as long
// again.
type layout struct {
	e     Entry
	words part
	// scales are the scales and biases, if any, in the order of the file.
	scales []part
	rows   int
	// each is the number of rows of a piece, and chunk that of a read of scales
	// and biases, except for the last ones.
	each, chunk int
	// scalesRow is the number of bytes of a row's scales and biases.
	scalesRow int
	// sizes are those of a row.
	sizes quant.Sizes
}

func (f *File) layout(e Entry) (*layout, error) {
	l := &layout{e: e, rows: e.Rows()}
	partOf := func(k kind, spans []span) part {
		p, bytes := part{kind: k, each: l.rows / len(spans)}, int64(0)
		for _, s := range spans {
			p.runs, bytes = append(p.runs, run{f.sources[s.file], s.offset}), bytes+s.bytes
		}
		p.row = int(bytes / int64(l.rows))
		return p
	}
	spans := e.spans()
	l.words = partOf(words, spans[words])
	for _, k := range []kind{scales, biases} {
		if spans[k][0].bytes > 0 {
			l.scales = append(l.scales, partOf(k, spans[k]))
			l.scalesRow += l.scales[len(l.scales)-1].row
		}
	}
	slices.SortFunc(l.scales, func(a, b part) int { return spans[a.kind][0].compare(spans[b.kind][0]) })
	var err error
	l.sizes, err = e.Format.Sizes(e.Columns())
	want := int64(l.sizes.Sum())
	if e.block.Quantized() {
		want, _ = e.block.RowBytes(int64(e.Columns()))
	}
	if err != nil || want != int64(l.words.row+l.scalesRow) {
		return nil, family.Invalidf("rows of %d bytes do not match %d elements of %v", l.words.row+l.scalesRow, e.Columns(), e.Format)
	}
	l.each = min(max(1, pieceBytes/l.words.row), l.rows)
	l.chunk = min(max(1, pieceBytes/max(1, l.scalesRow*l.each)), (l.rows+l.each-1)/l.each) * l.each
	return l, nil
}

// spans are where each kind lies, in the order of the rows.
func (e Entry) spans() [kinds][]span {
	out := [kinds][]span{e.stack, e.scaleStack, e.biasStack}
	for k, s := range [kinds]span{e.weight, e.scales, e.biases} {
		if len(out[k]) == 0 {
			out[k] = []span{s}
		}
	}
	return out
}

// pieces is how many there are.
func (l *layout) pieces() int { return (l.rows + l.each - 1) / l.each }

// chunk is a read of the scales and biases of some rows, part after part.
type chunk struct {
	first, rows int
	bytes       []byte
	// left is how many pieces of it were not emitted yet.
	left atomic.Int64
}

// piece is the words of some rows.
type piece struct {
	first, rows int
	bytes       []byte
	scales      *chunk
	err         error
}

// readChunk reads the scales and biases of rows from first on.
func (l *layout) readChunk(first int, buf []byte) (*chunk, error) {
	c := &chunk{first: first, rows: min(l.chunk, l.rows-first), bytes: buf}
	c.left.Store(int64((c.rows + l.each - 1) / l.each))
	at := 0
	for _, p := range l.scales {
		n := c.rows * p.row
		if err := p.read(first, buf[at:at+n]); err != nil {
			return c, err
		}
		at += n
	}
	return c, nil
}

func (l *layout) readPiece(first int, buf []byte, scales *chunk) piece {
	p := piece{first: first, rows: min(l.each, l.rows-first), scales: scales}
	p.bytes = buf[:p.rows*l.words.row]
	p.err = l.words.read(first, p.bytes)
	return p
}

func (p part) read(first int, buf []byte) error {
	for len(buf) > 0 {
		r, at := p.runs[first/p.each], first%p.each
		n := min(p.each-at, len(buf)/p.row)
		if err := readAt(r.source, buf[:n*p.row], r.offset+int64(at)*int64(p.row), p.kind.String()); err != nil {
			return err
		}
		first, buf = first+n, buf[n*p.row:]
	}
	return nil
}
