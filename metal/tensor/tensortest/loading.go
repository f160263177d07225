package tensortest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// concurrent loads rows from several goroutines, in no order, one by one and
// several together, each out of one buffer that it overwrites.
func (s matrixSuite) concurrent(t *testing.T) {
	for _, f := range []quant.Format{
		quant.AffineOf(4, 64, quant.BFloat16), quant.AffineOf(3, 32, quant.Float16), quant.AffineOf(8, 128, quant.Float32),
		quant.SymmetricOf(8, 32, quant.Float16), quant.DenseOf(quant.Float16), quant.BlockFloats()[0], quant.BlockFloats()[1], quant.BlockFloats()[2],
	} {
		t.Run(f.String(), func(t *testing.T) {
			x := s.open(t)
			const out, readers = 301, 4
			in := width(f, 2)
			rows, want := make([]quant.Row, out), make([]float64, 0, out*in)
			for r := range rows {
				row, values := x.randomRow(f, in)
				rows[r], want = row, append(want, values...)
			}
			runs := x.runs(out)
			m, err := x.b.LoadMatrix(f, out, in, func(put func(int, quant.Row) error) error {
				errs := make([]error, readers)
				var wg sync.WaitGroup
				for i := range readers {
					wg.Go(func() { errs[i] = putSome(runs[len(runs)*i/readers:len(runs)*(i+1)/readers], rows, put) })
				}
				wg.Wait()
				return errors.Join(errs...)
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.Release)
			if got := x.b.Memory().Weights; got != m.Bytes() || got < int64(out*in*max(1, f.Bits)/8) {
				t.Errorf("the back end counts %d bytes of weights, the matrix %d", got, m.Bytes())
			}
			ids := make([]int32, out)
			for i := range ids {
				ids[i] = int32(i)
			}
			s.near(t, "rows", x.read(x.s.Embed(m, x.s.IDs(ids))), want)
		})
	}
}

// runs cuts rows into runs [lo, hi), most of them of one row, in no order.
func (x *bench) runs(rows int) [][2]int {
	var out [][2]int
	lengths := []int{1, 1, 1, 1, 2, 15, 16, 40}
	for lo := 0; lo < rows; {
		hi := min(lo+lengths[x.rng.IntN(len(lengths))], rows)
		out = append(out, [2]int{lo, hi})
		lo = hi
	}
	x.rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func putSome(runs [][2]int, rows []quant.Row, put func(int, quant.Row) error) error {
	var buf quant.Row
	for _, run := range runs {
		buf = quant.Row{Raw: buf.Raw[:0], Scales: buf.Scales[:0], Biases: buf.Biases[:0]}
		for _, r := range rows[run[0]:run[1]] {
			buf.Raw, buf.Scales, buf.Biases = append(buf.Raw, r.Raw...), append(buf.Scales, r.Scales...), append(buf.Biases, r.Biases...)
		}
		if err := put(run[0], buf); err != nil {
			return err
		}
		for _, part := range [][]byte{buf.Raw, buf.Scales, buf.Biases} {
			for i := range part {
				part[i] = 0x5a
			}
		}
	}
	return nil
}

func (s matrixSuite) vectors(t *testing.T) {
	x := s.open(t)
	want := []float32{0, -1.5, 0x1p-20, 65504, 0.333251953125}
	for _, kind := range []quant.Type{quant.Float32, quant.Float16, quant.BFloat16} {
		raw, values := make([]byte, len(want)*kind.Bytes()), make([]float64, len(want))
		for i, v := range want {
			kind.Put(raw, i, v)
			values[i] = float64(kind.At(raw, i))
		}
		given := bytes.Clone(raw)
		v, err := x.b.LoadVector(kind, given)
		if err != nil {
			t.Fatalf("%v: %v", kind, err)
		}
		clear(given) // it was copied
		if !slices.Equal(v.Shape(), []int{len(want)}) {
			t.Errorf("%v: shape %v", kind, v.Shape())
		}
		s.near(t, kind.String(), x.read(v), values)
		x.s.Release(v)
	}
	for name, c := range map[string]struct {
		t   quant.Type
		raw []byte
	}{
		"nothing":        {quant.Float32, nil},
		"half a number":  {quant.Float16, make([]byte, 5)},
		"part of a word": {quant.Float32, make([]byte, 6)},
	} {
		if _, err := x.b.LoadVector(c.t, c.raw); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
	}
	if _, err := x.b.LoadVector(quant.Type(9), make([]byte, 8)); err == nil {
		t.Error("a vector of an unknown type was loaded")
	}
	if m := x.b.Memory(); m.Live != 0 {
		t.Errorf("%d vectors live after their release", m.Live)
	}
}

// special are dense weights that are not finite: they take part as they are.
func (s matrixSuite) special(t *testing.T) {
	for _, kind := range []quant.Type{quant.Float32, quant.Float16, quant.BFloat16} {
		t.Run(kind.String(), func(t *testing.T) {
			x := s.open(t)
			raw := make([]byte, 4*kind.Bytes())
			for i, v := range []float64{1, math.Inf(1), 0x1p-24, -2} {
				kind.Put(raw, i, float32(v))
			}
			m, err := x.b.LoadMatrix(quant.DenseOf(kind), 1, 4, func(put func(int, quant.Row) error) error {
				return put(0, quant.Row{Raw: raw})
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.Release)
			got := x.read(x.s.Linear(x.s.From([]float32{1, 1, 1, 1}, 1, 4), m)[0])
			if !math.IsInf(float64(got[0]), 1) {
				t.Errorf("a product with infinity is %v", got[0])
			}
		})
	}
}

// changed is a copy of a good row with a fault.
func changed(good quant.Row, change func(*quant.Row)) quant.Row {
	r := quant.Row{Raw: slices.Clone(good.Raw), Scales: slices.Clone(good.Scales), Biases: slices.Clone(good.Biases)}
	change(&r)
	return r
}

// infinite writes an infinity of a type over number i.
func infinite(t quant.Type, raw []byte, i int) {
	switch t {
	case quant.Float16:
		binary.LittleEndian.PutUint16(raw[2*i:], 0x7c00)
	case quant.BFloat16:
		binary.LittleEndian.PutUint16(raw[2*i:], 0xff80)
	default:
		binary.LittleEndian.PutUint32(raw[4*i:], 0x7fc00000)
	}
}

func (s matrixSuite) matrixErrors(t *testing.T) {
	for _, f := range []quant.Format{quant.AffineOf(4, 32, quant.Float16), quant.AffineOf(5, 64, quant.BFloat16), quant.AffineOf(2, 32, quant.Float32)} {
		t.Run(f.String(), func(t *testing.T) { s.rowErrors(t, f) })
	}
	for _, f := range quant.BlockFloats() {
		t.Run(f.String(), func(t *testing.T) { s.blockErrors(t, f) })
	}
	x := s.open(t)
	half := quant.AffineOf(4, 32, quant.Float16)
	for name, c := range map[string]struct {
		f       quant.Format
		out, in int
	}{
		"part of a group": {half, 2, 33}, "half a group": {quant.AffineOf(4, 64, quant.Float16), 2, 96}, "half a group of small floats": {quant.BlockFloats()[0], 2, 48},
		"no rows": {quant.DenseOf(quant.Float32), 0, 4}, "negative": {quant.DenseOf(quant.Float32), 4, -1},
	} {
		if _, err := x.b.LoadMatrix(c.f, c.out, c.in, nil); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
	}
	if _, err := x.b.LoadMatrix(quant.AffineOf(7, 32, quant.Float16), 2, 32, nil); !errors.Is(err, tensor.ErrUnsupported) {
		t.Errorf("unknown format: error %v, want ErrUnsupported", err)
	}
	broken := errors.New("the file is gone")
	if _, err := x.b.LoadMatrix(half, 2, 32, func(func(int, quant.Row) error) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("a fill that fails: error %v, want its own", err)
	}
	if w := x.b.Memory().Weights; w != 0 {
		t.Errorf("failed loads left %d bytes of weights", w)
	}
}

func (s matrixSuite) rowErrors(t *testing.T, f quant.Format) {
	x := s.open(t)
	const groups = 3
	good, _ := x.randomRow(f, groups*f.Group)
	for name, rows := range map[string][]quant.Row{
		"row missing":     {good},
		"short row":       {good, changed(good, func(r *quant.Row) { r.Raw = r.Raw[1:] })},
		"long row":        {good, changed(good, func(r *quant.Row) { r.Raw = append(r.Raw, 0) })},
		"no scale":        {good, changed(good, func(r *quant.Row) { r.Scales = r.Scales[:len(r.Scales)-1] })},
		"no bias":         {good, changed(good, func(r *quant.Row) { r.Biases = nil })},
		"infinite scale":  {good, changed(good, func(r *quant.Row) { infinite(f.Type, r.Scales, groups-1) })},
		"bias not finite": {good, changed(good, func(r *quant.Row) { infinite(f.Type, r.Biases, 1) })},
	} {
		err := s.loadRows(x, f, groups*f.Group, rows, 0, 1)
		if !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
	}
	two := quant.Row{Raw: slices.Concat(good.Raw, good.Raw), Scales: slices.Concat(good.Scales, good.Scales), Biases: slices.Concat(good.Biases, good.Biases)}
	for name, c := range map[string]struct {
		rows []quant.Row
		at   []int
	}{
		"two past the end":        {[]quant.Row{two}, []int{1}},
		"two, and one again":      {[]quant.Row{two, good}, []int{0, 1}},
		"two and half a row":      {[]quant.Row{changed(two, func(r *quant.Row) { r.Raw = append(r.Raw, good.Raw[:len(good.Raw)/2]...) })}, []int{0}},
		"two of which one":        {[]quant.Row{changed(two, func(r *quant.Row) { r.Scales = good.Scales })}, []int{0}},
		"two, infinite in one":    {[]quant.Row{changed(two, func(r *quant.Row) { infinite(f.Type, r.Scales, 2*groups-1) })}, []int{0}},
		"no row where one is due": {[]quant.Row{{}}, []int{0}},
	} {
		if err := s.loadRows(x, f, groups*f.Group, c.rows, c.at...); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
	}
	for name, at := range map[string][2]int{"row out of range": {0, 5}, "negative row": {-1, 1}, "row twice": {1, 1}} {
		if err := s.loadRows(x, f, groups*f.Group, []quant.Row{good, good}, at[0], at[1]); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
	}
	if w := x.b.Memory().Weights; w != 0 {
		t.Errorf("failed loads left %d bytes of weights", w)
	}
}

// loadRows puts up to two rows of a matrix of two at the given places.
func (s matrixSuite) loadRows(x *bench, f quant.Format, in int, rows []quant.Row, at ...int) error {
	_, err := x.b.LoadMatrix(f, 2, in, func(put func(int, quant.Row) error) error {
		for i, r := range rows {
			if err := put(at[i], r); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}
