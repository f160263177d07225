package tensortest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// formats are all that a back end loads.
func formats() []quant.Format {
	out := []quant.Format{
		quant.DenseOf(quant.Float32), quant.DenseOf(quant.Float16), quant.DenseOf(quant.BFloat16),
		quant.AffineOf(4, 32, quant.Float16), quant.AffineOf(8, 32, quant.Float16),
		quant.SymmetricOf(4, 32, quant.Float16), quant.SymmetricOf(8, 32, quant.Float16),
	}
	return out
}

// randomRow makes a row in the given format and the values it means.
func (x *bench) randomRow(f quant.Format, n int) (quant.Row, []float64) {
	x.t.Helper()
	row, err := f.NewRow(n)
	if err != nil {
		x.t.Fatal(err)
	}
	if f.Quantized() {
		x.randomGroups(f, row)
	} else {
		for i := range n {
			f.Type.Put(row.Raw, i, float32(x.rng.NormFloat64()))
		}
	}
	values, exact := make([]float32, n), make([]float64, n)
	if err := f.Dequantize(row, values); err != nil {
		x.t.Fatal(err)
	}
	for i, v := range values {
		exact[i] = float64(v)
		if f.Quantized() {
			exact[i] = exactly(f, row, i)
		}
	}
	return row, exact
}

// exactly is element i without rounding.
func exactly(f quant.Format, r quant.Row, i int) float64 {
	g, q := i/f.Group, float64(quant.Q(r.Raw, f.Bits, i))
	scale := float64(f.Type.At(r.Scales, g))
	if f.Mode == quant.Symmetric {
		return scale * (q - float64(int(1)<<(f.Bits-1)))
	}
	return scale*q + float64(f.Type.At(r.Biases, g))
}

func (x *bench) randomGroups(f quant.Format, row quant.Row) {
	for i := range row.Raw {
		row.Raw[i] = byte(x.rng.Uint32())
	}
	for g := range len(row.Scales) / f.Type.Bytes() {
		scale := float32(x.rng.NormFloat64()) * 0.05
		if g%5 == 4 {
			scale = float32(g+1) * 0x1p-24 // subnormal in half precision
		}
		f.Type.Put(row.Scales, g, scale)
		if f.Mode == quant.Affine {
			f.Type.Put(row.Biases, g, float32(x.rng.NormFloat64()))
		}
	}
}

// matrix loads random rows, last row first, and returns their values.
func (x *bench) matrix(f quant.Format, out, in int) (tensor.Matrix, [][]float64) {
	x.t.Helper()
	values := make([][]float64, out)
	m, err := x.b.LoadMatrix(f, out, in, func(put func(int, quant.Row) error) error {
		for r := out - 1; r >= 0; r-- {
			row, v := x.randomRow(f, in)
			values[r] = v
			if err := put(r, row); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		x.t.Fatalf("load %v [%d, %d]: %v", f, out, in, err)
	}
	x.t.Cleanup(m.Release)
	return m, values
}

func (s Suite) linear(t *testing.T) {
	for _, f := range formats() {
		for _, c := range []struct{ tokens, out, in int }{{1, 5, 32}, {1, 600, 96}, {3, 17, 160}, {20, 33, 64}, {9, 1100, 32}} {
			t.Run(fmt.Sprintf("%v %d tokens [%d,%d]", f, c.tokens, c.out, c.in), func(t *testing.T) {
				x := s.open(t)
				a, av := x.matrix(f, c.out, c.in)
				b, bv := x.matrix(f, 7, c.in)
				in := x.random(c.tokens * c.in)
				outs := x.s.Linear(x.s.From(in, c.tokens, c.in), a, b)
				s.near(t, "first product", x.read(outs[0]), product(in, av, c.tokens, c.in))
				s.near(t, "second product", x.read(outs[1]), product(in, bv, c.tokens, c.in))
				got := x.read(x.s.Embed(a, x.s.IDs([]int32{int32(c.out - 1), 0})))
				s.near(t, "Embed", got, append(append([]float64{}, av[c.out-1]...), av[0]...))
			})
		}
	}
	t.Run("different formats in one call", func(t *testing.T) {
		x := s.open(t)
		a, av := x.matrix(quant.AffineOf(4, 32, quant.Float16), 6, 64)
		b, bv := x.matrix(quant.DenseOf(quant.Float16), 5, 64)
		in := x.random(2 * 64)
		outs := x.s.Linear(x.s.From(in, 2, 64), a, b)
		s.near(t, "affine", x.read(outs[0]), product(in, av, 2, 64))
		s.near(t, "half", x.read(outs[1]), product(in, bv, 2, 64))
	})
}

func product(x []float32, m [][]float64, tokens, in int) []float64 {
	out := make([]float64, 0, tokens*len(m))
	for t := range tokens {
		for _, row := range m {
			var sum float64
			for i, w := range row {
				sum += w * float64(x[t*in+i])
			}
			out = append(out, sum)
		}
	}
	return out
}

// independent wants each row's result whatever stands beside it.
func (s Suite) independent(t *testing.T) {
	for _, f := range formats() {
		t.Run(f.String(), func(t *testing.T) {
			x := s.open(t)
			const tokens, out, in = 19, 1030, 96
			a, _ := x.matrix(f, out, in)
			b, _ := x.matrix(f, 40, in)
			v := x.random(tokens * in)
			all := x.s.Linear(x.s.From(v, tokens, in), a, b)
			wantA, wantB := x.read(all[0]), x.read(all[1])
			for r := range tokens {
				one := x.s.Linear(x.s.From(v[r*in:(r+1)*in], 1, in), a)
				s.same(t, "row alone", x.read(one[0]), wantA[r*out:(r+1)*out])
			}
			tail := x.s.Linear(x.s.From(v[5*in:], tokens-5, in), b)
			s.same(t, "other matrix, other chunk", x.read(tail[0]), wantB[5*40:])
		})
	}
}

func (s Suite) same(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if !s.Bitwise {
		wide := make([]float64, len(want))
		for i, v := range want {
			wide[i] = float64(v)
		}
		s.near(t, what, got, wide)
		return
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: value %d is %v, want exactly %v", what, i, got[i], want[i])
		}
	}
}

func (s Suite) matrixErrors(t *testing.T) {
	x := s.open(t)
	good, _ := x.randomRow(quant.AffineOf(4, 32, quant.Float16), 64)
	bad := func(change func(*quant.Row)) quant.Row {
		r := quant.Row{Raw: good.Raw, Scales: slices.Clone(good.Scales), Biases: slices.Clone(good.Biases)}
		change(&r)
		return r
	}
	for name, rows := range map[string]map[int]quant.Row{
		"row out of range": {0: good, 5: good},
		"row missing":      {0: good},
		"short row":        {0: good, 1: bad(func(r *quant.Row) { r.Raw = r.Raw[:31] })},
		"no scale":         {0: good, 1: bad(func(r *quant.Row) { r.Scales = r.Scales[:1] })},
		"no bias":          {0: good, 1: bad(func(r *quant.Row) { r.Biases = nil })},
		"infinite scale":   {0: good, 1: bad(func(r *quant.Row) { r.Scales[3] = 0x7c })},
		"bias not finite":  {0: good, 1: bad(func(r *quant.Row) { r.Biases[1] = 0xfe })},
	} {
		_, err := x.b.LoadMatrix(quant.AffineOf(4, 32, quant.Float16), 2, 64, func(put func(int, quant.Row) error) error {
			for i, r := range rows {
				if err := put(i, r); err != nil {
					return err
				}
			}
			return nil
		})
		if !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
	}
	for name, c := range map[string]struct {
		f       quant.Format
		out, in int
	}{"part of a group": {quant.AffineOf(4, 32, quant.Float16), 2, 33}, "no rows": {quant.DenseOf(quant.Float32), 0, 4}, "negative": {quant.DenseOf(quant.Float32), 4, -1}} {
		if _, err := x.b.LoadMatrix(c.f, c.out, c.in, nil); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
	}
	if _, err := x.b.LoadMatrix(quant.AffineOf(7, 32, quant.Float16), 2, 32, nil); !errors.Is(err, tensor.ErrUnsupported) {
		t.Errorf("unknown format: error %v, want ErrUnsupported", err)
	}
	if w := x.b.Memory().Weights; w != 0 {
		t.Errorf("failed loads left %d bytes of weights", w)
	}
}
