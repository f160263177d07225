package tensortest

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// formats are all that a back end loads.
func formats() []quant.Format {
	var out []quant.Format
	for _, t := range []quant.Type{quant.Float32, quant.Float16, quant.BFloat16} {
		out = append(out, quant.DenseOf(t), quant.SymmetricOf(4, 32, t), quant.SymmetricOf(8, 32, t))
		for _, bits := range quant.Bits() {
			for _, group := range quant.Groups() {
				out = append(out, quant.AffineOf(bits, group, t))
			}
		}
	}
	return append(out, quant.BlockFloats()...)
}

// width is that of a row of n groups; dense rows have odd widths.
func width(f quant.Format, n int) int {
	if f.Quantized() {
		return n * f.Group
	}
	return 32*n - 1
}

// randomRow makes a row in the given format and the values it means.
func (x *bench) randomRow(f quant.Format, n int) (quant.Row, []float64) {
	x.t.Helper()
	row, err := f.NewRow(n)
	if err != nil {
		x.t.Fatal(err)
	}
	switch {
	case f.BlockFloat():
		x.randomBlocks(f, row)
	case f.Quantized():
		x.randomGroups(f, row)
	default:
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
	if f.BlockFloat() {
		return exactlyBlock(f, r, i)
	}
	g, q := i/f.Group, float64(quant.Q(r.Raw, f.Bits, i))
	scale := float64(f.Type.At(r.Scales, g))
	if f.Mode == quant.Symmetric {
		return scale * (q - float64(int(1)<<(f.Bits-1)))
	}
	return scale*q + float64(f.Type.At(r.Biases, g))
}

func (x *bench) randomGroups(f quant.Format, row quant.Row) {
	for at := 0; at < len(row.Raw); at += 4 { // rows are whole words
		binary.LittleEndian.PutUint32(row.Raw[at:], x.rng.Uint32())
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

// linear compares with the oracle: one group and many, few rows and more than
// one thread's, one token and a chunk.
func (s matrixSuite) linear(t *testing.T) {
	for _, f := range formats() {
		t.Run(f.String(), func(t *testing.T) {
			for _, c := range []struct{ tokens, out, groups int }{{1, 5, 1}, {1, 530, 2}, {3, 17, 5}, {20, 33, 2}, {9, 1100, 1}} {
				in := width(f, c.groups)
				t.Run(fmt.Sprintf("%d tokens [%d,%d]", c.tokens, c.out, in), func(t *testing.T) {
					x := s.open(t)
					a, av := x.matrix(f, c.out, in)
					b, bv := x.matrix(f, 7, in)
					v := x.random(c.tokens * in)
					outs := x.s.Linear(x.s.From(v, c.tokens, in), a, b)
					s.products(t, "first product", x.read(outs[0]), v, av, c.tokens, in)
					s.products(t, "second product", x.read(outs[1]), v, bv, c.tokens, in)
					got := x.read(x.s.Embed(a, x.s.IDs([]int32{int32(c.out - 1), 0})))
					s.near(t, "Embed", got, append(append([]float64{}, av[c.out-1]...), av[0]...))
				})
			}
		})
	}
	t.Run("different formats in one call", func(t *testing.T) {
		x := s.open(t)
		a, av := x.matrix(quant.AffineOf(4, 32, quant.Float16), 6, 64)
		b, bv := x.matrix(quant.DenseOf(quant.Float16), 5, 64)
		in := x.random(2 * 64)
		outs := x.s.Linear(x.s.From(in, 2, 64), a, b)
		s.products(t, "affine", x.read(outs[0]), in, av, 2, 64)
		s.products(t, "half", x.read(outs[1]), in, bv, 2, 64)
	})
}

// linearBias compares with the oracle, matrices of one kind and of two in one
// call.
func (s matrixSuite) linearBias(t *testing.T) {
	dense, packed := quant.DenseOf(quant.BFloat16), quant.AffineOf(4, 32, quant.Float16)
	for name, c := range map[string]struct{ first, second quant.Format }{
		"dense": {dense, dense}, "packed": {packed, packed}, "both": {packed, dense},
	} {
		t.Run(name, func(t *testing.T) {
			x := s.open(t)
			const tokens, in = 9, 64
			v, added := x.random(tokens*in), [][]float32{x.random(530), x.random(7)}
			a, av := x.matrix(c.first, 530, in)
			b, bv := x.matrix(c.second, 7, in)
			biases := []tensor.Array{x.s.From(added[0], 530), x.s.From(added[1], 7)}
			outs := x.s.LinearBias(x.s.From(v, tokens, in), []tensor.Matrix{a, b}, biases)
			for i, values := range [][][]float64{av, bv} {
				want, top := product(v, values, tokens, in)
				for j := range want {
					want[j] += float64(added[i][j%len(added[i])])
				}
				s.nearOf(t, "product and bias", x.read(outs[i]), want, top+3)
			}
			one := x.s.LinearBias(x.s.From(v[5*in:6*in], 1, in), []tensor.Matrix{a}, biases[:1])
			s.same(t, "row alone", x.read(one[0]), x.read(outs[0])[5*530:6*530])
		})
	}
}

// product is x by m transposed, and the largest sum of absolute values of the
// terms of a result: errors are relative to that, since terms may cancel.
func product(x []float32, m [][]float64, tokens, in int) (out []float64, top float64) {
	for t := range tokens {
		for _, row := range m {
			var sum, size float64
			for i, w := range row {
				term := w * float64(x[t*in+i])
				sum += term
				size += math.Abs(term)
			}
			out, top = append(out, sum), max(top, size)
		}
	}
	return out, top
}

// products compares with the oracle.
func (s Suite) products(t *testing.T, what string, got, x []float32, m [][]float64, tokens, in int) {
	t.Helper()
	want, top := product(x, m, tokens, in)
	s.nearOf(t, what, got, want, top)
}

// independent checks that each row's result does not depend on the other rows,
// in every number of bits, mode and type; linear covers formats that share a
// scale.
func (s matrixSuite) independent(t *testing.T) {
	for _, f := range formats() {
		if f.Mode == quant.Affine && f.Group != 64 || f.Type == quant.Float32 && f.Quantized() && f.Bits != 4 {
			continue
		}
		t.Run(f.String(), func(t *testing.T) {
			x := s.open(t)
			const tokens, out = 11, 1030 // rows for several threads, tokens for two blocks
			in := width(f, 2)
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
