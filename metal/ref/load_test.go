package ref

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
)

// TestWeightsTakeTheBytesOfTheirRows: nothing is widened, padded or kept twice.
func TestWeightsTakeTheBytesOfTheirRows(t *testing.T) {
	b := New(Options{Threads: 1})
	defer b.Close()
	const out, in = 37, 256
	formats := []quant.Format{quant.DenseOf(quant.BFloat16), quant.DenseOf(quant.Float32), quant.SymmetricOf(8, 32, quant.Float16)}
	for _, bits := range quant.Bits() {
		for _, group := range quant.Groups() {
			formats = append(formats, quant.AffineOf(bits, group, quant.BFloat16), quant.AffineOf(bits, group, quant.Float32))
		}
	}
	for _, f := range formats {
		sizes, err := f.Sizes(in)
		if err != nil {
			t.Fatal(err)
		}
		row, err := f.NewRow(in)
		if err != nil {
			t.Fatal(err)
		}
		m, err := b.LoadMatrix(f, out, in, func(put func(int, quant.Row) error) error {
			for i := range out {
				if err := put(i, row); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if want := int64(out * sizes.Sum()); m.Bytes() != want || b.Memory().Active() != want {
			t.Errorf("%v: %d bytes, %d counted, the rows have %d", f, m.Bytes(), b.Memory().Active(), want)
		}
		m.Release()
	}
}

// TestRowsInAnyOrderOpenFewBlocks: buffers stay small compared with the matrix
// in whichever order a file has its rows.
func TestRowsInAnyOrderOpenFewBlocks(t *testing.T) {
	b := New(Options{Threads: 1})
	defer b.Close()
	f := quant.AffineOf(4, 32, quant.Float16)
	const out, in = 64 * blockRows, 32
	row, err := f.NewRow(in)
	if err != nil {
		t.Fatal(err)
	}
	m := &matrix{b: b, format: f, layout: layoutOf(f), out: out, in: in, data: make([]byte, out*16), scales: make([]byte, out*4)}
	sizes, _ := f.Sizes(in)
	l := newLoading(m, sizes)
	for i := range out {
		if err := l.put(i%64*blockRows+i/64, row); err != nil { // the first of every block, then the second
			t.Fatal(err)
		}
		if n := len(l.open) + len(l.free); n > openBlocks+1 {
			t.Fatalf("%d blocks are held after %d rows", n, i+1)
		}
	}
}
