package tensortest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	"metalfleet.dev/metalfleet/metal/float16"
	"metalfleet.dev/metalfleet/metal/tensor"
)

var formats = []tensor.Format{
	tensor.Float32, tensor.Float16, tensor.BFloat16,
	tensor.Affine4, tensor.Affine8, tensor.Symmetric4, tensor.Symmetric8,
}

// randomRow makes a row in the given format and the values it means.
func (x *bench) randomRow(f tensor.Format, n int) (tensor.Row, []float64) {
	row := tensor.Row{Raw: make([]byte, n*f.Bits()/8)}
	values := make([]float64, n)
	if f.Quantized() {
		x.randomGroups(f, &row, values)
		return row, values
	}
	for i := range n {
		v := float32(x.rng.NormFloat64())
		switch f {
		case tensor.Float16:
			h := float16.FromFloat32(v)
			binary.LittleEndian.PutUint16(row.Raw[2*i:], h)
			v = float16.Float32(h)
		case tensor.BFloat16:
			h := float16.ToBrain(v)
			binary.LittleEndian.PutUint16(row.Raw[2*i:], h)
			v = float16.FromBrain(h)
		default:
			binary.LittleEndian.PutUint32(row.Raw[4*i:], math.Float32bits(v))
		}
		values[i] = float64(v)
	}
	return row, values
}

func (x *bench) randomGroups(f tensor.Format, row *tensor.Row, values []float64) {
	for i := range row.Raw {
		row.Raw[i] = byte(x.rng.Uint32())
	}
	for g := range len(values) / tensor.GroupSize {
		scale := float16.FromFloat32(float32(x.rng.NormFloat64()) * 0.05)
		if g%5 == 4 {
			scale = uint16(g + 1) // a subnormal scale
		}
		row.Scales = append(row.Scales, scale)
		bias := -float64(float16.Float32(scale)) * float64(int(1)<<(f.Bits()-1))
		if f.Biased() {
			h := float16.FromFloat32(float32(x.rng.NormFloat64()))
			row.Biases = append(row.Biases, h)
			bias = float64(float16.Float32(h))
		}
		for i := g * tensor.GroupSize; i < (g+1)*tensor.GroupSize; i++ {
			q := row.Raw[i*f.Bits()/8]
			if f.Bits() == 4 {
				q = q >> (i % 2 * 4) & 15
			}
			values[i] = float64(float16.Float32(scale))*float64(q) + bias
		}
	}
}

// matrix loads random rows, last row first, and returns their values.
func (x *bench) matrix(f tensor.Format, out, in int) (tensor.Matrix, [][]float64) {
	x.t.Helper()
	values := make([][]float64, out)
	m, err := x.b.LoadMatrix(f, out, in, func(put func(int, tensor.Row) error) error {
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
	for _, f := range formats {
		for _, c := range []struct{ tokens, out, in int }{{1, 5, 32}, {1, 600, 96}, {3, 17, 160}, {20, 33, 64}, {9, 1100, 32}} {
			t.Run(fmt.Sprintf("%v %d tokens [%d,%d]", f, c.tokens, c.out, c.in), func(t *testing.T) {
				x := s.open(t)
				a, av := x.matrix(f, c.out, c.in)
				b, bv := x.matrix(f, 7, c.in)
				in := x.random(c.tokens * c.in)
				outs := x.s.Linear(x.s.From(in, c.tokens, c.in), a, b)
				s.near(t, "first product", x.read(outs[0]), product(in, av, c.tokens, c.in))
				s.near(t, "second product", x.read(outs[1]), product(in, bv, c.tokens, c.in))
				got := x.read(x.s.Embed(a, []int32{int32(c.out - 1), 0}))
				s.near(t, "Embed", got, append(append([]float64{}, av[c.out-1]...), av[0]...))
			})
		}
	}
	t.Run("different formats in one call", func(t *testing.T) {
		x := s.open(t)
		a, av := x.matrix(tensor.Affine4, 6, 64)
		b, bv := x.matrix(tensor.Float16, 5, 64)
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
	for _, f := range formats {
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
	good, _ := x.randomRow(tensor.Affine4, 64)
	bad := func(change func(*tensor.Row)) tensor.Row {
		r := tensor.Row{Raw: good.Raw, Scales: append([]uint16{}, good.Scales...), Biases: append([]uint16{}, good.Biases...)}
		change(&r)
		return r
	}
	for name, rows := range map[string]map[int]tensor.Row{
		"row out of range": {0: good, 5: good},
		"row missing":      {0: good},
		"short row":        {0: good, 1: bad(func(r *tensor.Row) { r.Raw = r.Raw[:31] })},
		"no scale":         {0: good, 1: bad(func(r *tensor.Row) { r.Scales = r.Scales[:1] })},
		"no bias":          {0: good, 1: bad(func(r *tensor.Row) { r.Biases = nil })},
		"infinite scale":   {0: good, 1: bad(func(r *tensor.Row) { r.Scales[1] = 0x7c00 })},
		"bias not finite":  {0: good, 1: bad(func(r *tensor.Row) { r.Biases[0] = 0xfe00 })},
	} {
		_, err := x.b.LoadMatrix(tensor.Affine4, 2, 64, func(put func(int, tensor.Row) error) error {
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
		f       tensor.Format
		out, in int
	}{"part of a group": {tensor.Affine4, 2, 33}, "no rows": {tensor.Float32, 0, 4}, "negative": {tensor.Float32, 4, -1}} {
		if _, err := x.b.LoadMatrix(c.f, c.out, c.in, nil); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
	}
	if _, err := x.b.LoadMatrix(99, 2, 32, nil); !errors.Is(err, tensor.ErrUnsupported) {
		t.Errorf("unknown format: error %v, want ErrUnsupported", err)
	}
	if w := x.b.Memory().Weights; w != 0 {
		t.Errorf("failed loads left %d bytes of weights", w)
	}
}
