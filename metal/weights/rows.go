package weights

import (
	"context"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

// Rows reads a tensor front to back and hands out each row under its canonical
// index, in the entry's format. The next piece is read while emit runs. The
// bytes are valid during the call. A file that has become shorter is
// ErrTruncated.
func (f *File) Rows(ctx context.Context, e Entry, emit func(row int, r quant.Row) error) error {
	r := f.Read(ctx, []Entry{e})
	defer r.Close()
	return r.Rows(e, emit)
}

// Place is Rows for callers that need no order and accept several rows at once:
// emit may be called from two goroutines at once, so that it keeps up with
// reading, and r holds the consecutive rows from first on that were read
// together.
func (f *File) Place(ctx context.Context, e Entry, emit func(first int, r quant.Row) error) error {
	r := f.Read(ctx, []Entry{e})
	defer r.Close()
	return r.Place(e, emit)
}

// Values reads a vector as numbers.
func (f *File) Values(ctx context.Context, e Entry) ([]float32, error) {
	if len(e.Shape) != 1 {
		return nil, family.Invalidf("tensor %s has shape %v, want one dimension", e.Name, e.Shape)
	}
	values := make([]float32, e.Columns())
	return values, f.Rows(ctx, e, func(_ int, r quant.Row) error { return e.Format.Dequantize(r, values) })
}

// splitter makes rows of block types readable; nil where rows are as they are
// stored.
func (l *layout) splitter(run int) (*quant.Row, error) {
	if !l.e.block.Quantized() {
		return nil, nil
	}
	rows, err := l.e.Format.NewRow(run * l.e.Columns())
	return &rows, err
}

// emit hands out the rows of a piece, as many at once as make a run.
func (l *layout) emit(p piece, run int, split *quant.Row, emit func(int, quant.Row) error) error {
	if p.err != nil {
		return p.err
	}
	for i := 0; i < p.rows; i += run {
		n := min(run, p.rows-i)
		parts := [kinds][]byte{words: p.bytes[i*l.words.row : (i+n)*l.words.row]}
		at := 0
		for _, part := range l.scales {
			from := at + (p.first-p.scales.first+i)*part.row
			parts[part.kind] = p.scales.bytes[from : from+n*part.row]
			at += p.scales.rows * part.row
		}
		rows := quant.Row{Raw: parts[words], Scales: parts[scales], Biases: parts[biases]}
		if split != nil {
			rows = split.Slice(0, n, l.sizes)
			if moved := l.e.block.split(parts[words], rows); l.e.drift != nil {
				l.e.drift.note(moved)
			}
		}
		if err := emit(l.e.canonicalRow(p.first+i), rows); err != nil {
			return err
		}
	}
	return nil
}
