package weights

import (
	"context"
	"fmt"
	"io"
	"sync"

	"metalfleet.dev/metalfleet/metal/quant"
)

const (
	// pieceBytes is about how much is read at once.
	pieceBytes = 1 << 20
	// spareBuffers is how many pieces are read ahead of those that are placed:
	// so many keep the disk busy while rows are placed (make bench-load).
	spareBuffers = 5
)

// Rows reads a tensor front to back and hands out each row under its canonical
// index, in the entry's format. The next piece is read while emit runs. The
// bytes are valid during the call. A file that has become shorter is
// ErrTruncated.
func (f *File) Rows(ctx context.Context, e Entry, emit func(row int, r quant.Row) error) error {
	return f.load(ctx, e, 1, emit)
}

// Place is Rows for whoever does not mind the order: emit may be called by two
// goroutines at once, so that placing rows keeps up with reading them.
func (f *File) Place(ctx context.Context, e Entry, emit func(row int, r quant.Row) error) error {
	return f.load(ctx, e, 2, emit)
}

// Values reads a vector as numbers.
func (f *File) Values(ctx context.Context, e Entry) ([]float32, error) {
	if len(e.Shape) != 1 {
		return nil, invalidf("tensor %s has shape %v, want one dimension", e.Name, e.Shape)
	}
	values := make([]float32, e.Columns())
	return values, f.Rows(ctx, e, func(_ int, r quant.Row) error { return e.Format.Dequantize(r, values) })
}

func (f *File) load(ctx context.Context, e Entry, emitters int, emit func(row int, r quant.Row) error) error {
	l, err := f.layout(e)
	if err != nil {
		return fmt.Errorf("tensor %s: %w", e.Name, err)
	}
	if l.each == l.rows {
		err = l.whole(ctx, emit)
	} else {
		err = l.pieces(ctx, emitters, emit)
	}
	if err != nil {
		return fmt.Errorf("load tensor %s: %w", e.Name, err)
	}
	return nil
}

// part is one of the runs of bytes that rows are made of.
type part struct {
	source io.ReaderAt
	name   string
	offset int64
	row    int // bytes of a row
}

// layout is how a tensor is read: pieces of whole rows, of each part one after
// the other.
type layout struct {
	f     *File
	e     Entry
	parts []part
	rows  int
	// each is the number of rows of a piece, the last one aside.
	each int
	// row is the bytes of a row in all parts.
	row int
}

func (f *File) layout(e Entry) (*layout, error) {
	l := &layout{f: f, e: e, rows: e.Rows()}
	add := func(name string, s span) {
		if s.bytes > 0 {
			row := int(s.bytes / int64(l.rows))
			l.parts = append(l.parts, part{f.sources[s.file], name, s.offset, row})
			l.row += row
		}
	}
	add("words", e.weight)
	add("scales", e.scales)
	add("biases", e.biases)
	if sizes, err := e.Format.Sizes(e.Columns()); err != nil || sizes.Sum() != l.row {
		return nil, invalidf("rows of %d bytes are not %d elements of %v", l.row, e.Columns(), e.Format)
	}
	l.each = min(max(1, pieceBytes/l.row), l.rows)
	return l, nil
}

// piece is some rows, part after part.
type piece struct {
	first, rows int
	bytes       []byte
	err         error
}

func (l *layout) read(first int, buf []byte) piece {
	p := piece{first: first, rows: min(l.each, l.rows-first), bytes: buf}
	at := 0
	for _, part := range l.parts {
		n := p.rows * part.row
		from := part.offset + int64(first)*int64(part.row)
		if p.err = readAt(part.source, buf[at:at+n], from, part.name); p.err != nil {
			return p
		}
		at += n
	}
	return p
}

// whole reads and emits a tensor that is one piece.
func (l *layout) whole(ctx context.Context, emit func(int, quant.Row) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	split, err := l.splitter()
	if err != nil {
		return err
	}
	buf := l.f.take(l.rows * l.row)
	defer l.f.give(buf)
	return l.emit(l.read(0, buf), split, emit)
}

// pieces reads in one goroutine while others emit: the caller's, and as many
// beside it as make emitters.
func (l *layout) pieces(ctx context.Context, emitters int, emit func(int, quant.Row) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	empty, full := make(chan []byte, emitters+spareBuffers), make(chan piece)
	for range cap(empty) {
		buf := l.f.take(l.each * l.row)
		defer l.f.give(buf)
		empty <- buf
	}
	var others sync.WaitGroup
	others.Go(func() {
		defer close(full)
		l.feed(ctx, empty, full)
	})
	for range emitters - 1 {
		others.Go(func() { l.drain(stop, empty, full, emit) })
	}
	l.drain(stop, empty, full, emit)
	others.Wait()
	return context.Cause(ctx)
}

// feed reads pieces until the last one, or until ctx ends.
func (l *layout) feed(ctx context.Context, empty <-chan []byte, full chan<- piece) {
	for first := 0; first < l.rows; first += l.each {
		select {
		case <-ctx.Done():
			return
		case buf := <-empty:
			select {
			case <-ctx.Done():
				return
			case full <- l.read(first, buf):
			}
		}
	}
}

// drain emits pieces until there are no more. A fault stops the reader.
func (l *layout) drain(stop context.CancelCauseFunc, empty chan<- []byte, full <-chan piece, emit func(int, quant.Row) error) {
	split, err := l.splitter()
	if err != nil {
		stop(err)
	}
	for p := range full {
		if err == nil {
			if err = l.emit(p, split, emit); err != nil {
				stop(err)
			}
		}
		empty <- p.bytes
	}
}

// splitter makes rows of block types readable; nil where rows are as they are
// stored.
func (l *layout) splitter() (*quant.Row, error) {
	if !l.e.block.Quantized() {
		return nil, nil
	}
	row, err := l.e.Format.NewRow(l.e.Columns())
	return &row, err
}

// emit hands out the rows of a piece.
func (l *layout) emit(p piece, split *quant.Row, emit func(int, quant.Row) error) error {
	if p.err != nil {
		return p.err
	}
	for i := range p.rows {
		var runs [3][]byte
		at := 0
		for k, part := range l.parts {
			runs[k] = p.bytes[at+i*part.row:][:part.row:part.row]
			at += p.rows * part.row
		}
		row := quant.Row{Raw: runs[0], Scales: runs[1], Biases: runs[2]}
		if split != nil {
			l.e.block.Split(runs[0], *split)
			row = *split
		}
		if err := emit(l.e.canonicalRow(p.first+i), row); err != nil {
			return err
		}
	}
	return nil
}

// maxSpare is how many pieces are kept for the next tensor.
const maxSpare = 2 + spareBuffers

// take gives a piece of n bytes.
func (f *File) take(n int) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, b := range f.spare {
		if cap(b) >= n {
			f.spare = append(f.spare[:i], f.spare[i+1:]...)
			return b[:n]
		}
	}
	return make([]byte, n, max(n, pieceBytes))
}

// give takes a piece back.
func (f *File) give(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.spare) < maxSpare && cap(b) <= 2*pieceBytes {
		f.spare = append(f.spare, b)
	}
}
