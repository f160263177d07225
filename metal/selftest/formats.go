package selftest

import (
	"fmt"

	"metalfleet.dev/metalfleet/metal/quant"
)

// formats are products and lookups in every number format, with scales of the
// mode's type: dense, symmetric, affine of each number of bits, and small floats.
func formats() []check {
	all := []check{
		{"dense products", func(x *bench) { products(x, quant.DenseOf(x.mode.t)) }},
		{"symmetric products, 4 and 8 bits", func(x *bench) {
			products(x, quant.SymmetricOf(4, 32, x.mode.t), quant.SymmetricOf(8, 32, x.mode.t))
		}},
	}
	all = append(all, check{"a few rows by 4 bits", fewRows})
	for _, bits := range quant.Bits() {
		all = append(all, check{fmt.Sprintf("affine products, %d bits", bits), func(x *bench) {
			for _, group := range quant.Groups() {
				products(x, quant.AffineOf(bits, group, x.mode.t))
			}
		}})
	}
	return append(all, check{"block-float products", func(x *bench) { products(x, quant.BlockFloats()...) }})
}

// fewRows are what a decode step multiplies, in the format that models mostly
// have: as many rows as a back end may have kernels of its own for, and one
// more; columns for one and for several parts of a device, and more than its
// parts take at once.
func fewRows(x *bench) {
	f := quant.AffineOf(4, 64, x.mode.t)
	shapes := []struct{ out, in int }{{16, 512}, {48, 1536}}
	if x.mode.t == quant.BFloat16 { // float16 overflows in sums of that many
		shapes = append(shapes, struct{ out, in int }{32, 4608})
	}
	for _, c := range shapes {
		x.multiply(f, c.out, c.in, 1, 2, 8, 9, 17, 32, 33)
	}
	x.multiply(f, 80, 1536, 16, 128, 129)
}

// products multiplies by matrices of given formats: of sizes that kernels like
// and of sizes that they do not, one token, some, and a chunk of a prompt.
func products(x *bench, all ...quant.Format) {
	for _, f := range all {
		for _, c := range []struct{ out, in int }{{64, 512}, {33, 384}} {
			if !f.Quantized() {
				c.in--
			}
			x.multiply(f, c.out, c.in, 1, 5, 40)
		}
	}
}

// multiply multiplies numbers of tokens by a random matrix, and looks its last
// row up.
func (x *bench) multiply(f quant.Format, out, in int, tokens ...int) {
	limit := x.product()
	if f.Quantized() {
		limit = x.packed()
	}
	rows, values := x.rows(f, out, in)
	m := x.load(f, rows, in)
	if m == nil {
		return
	}
	for _, n := range tokens {
		v := x.random(n * in)
		want := make([]float64, n*out)
		for t := range n {
			for r := range out {
				for i, w := range values[r*in : (r+1)*in] {
					want[t*out+r] += w * float64(v[t*in+i])
				}
			}
		}
		got := x.read(x.s.Linear(x.array(v, n, in), m)[0], len(want))
		x.near(fmt.Sprintf("%d tokens by %v [%d, %d]", n, f, out, in), got, want, limit)
	}
	last := x.read(x.s.Embed(m, x.s.IDs([]int32{int32(out - 1)})), in)
	x.near(fmt.Sprintf("a row of %v", f), last, values[(out-1)*in:], x.plain())
}

// rows of a random matrix in a format, and the values they mean: scale*q + bias
// in float64. Values have a spread of about 1.
func (x *bench) rows(f quant.Format, out, in int) ([]quant.Row, []float64) {
	rows, values := make([]quant.Row, out), make([]float64, out*in)
	for r := range rows {
		row, err := f.NewRow(in)
		if err != nil {
			x.fail(err)
			return rows, values
		}
		rows[r] = row
		if !f.Quantized() {
			for i, v := range x.random(in) {
				f.Type.Put(row.Raw, i, v)
				values[r*in+i] = float64(v)
			}
			continue
		}
		if f.BlockFloat() {
			x.smallFloats(f, row, values[r*in:(r+1)*in])
			continue
		}
		levels := 1 << f.Bits
		for g := range in / f.Group {
			f.Type.Put(row.Scales, g, float32((1+x.rng.Float64())*2/float64(levels)))
			if f.Mode == quant.Affine {
				f.Type.Put(row.Biases, g, float32(-1-x.rng.Float64()))
			}
		}
		for i := range in {
			quant.PutQ(row.Raw, f.Bits, i, x.rng.IntN(levels))
			values[r*in+i] = meant(f, row, i)
		}
	}
	return rows, values
}

// smallFloats fills a row with elements of any size up to 4, with scales of at
// most one, and returns their values.
func (x *bench) smallFloats(f quant.Format, row quant.Row, values []float64) {
	elements, scales := f.Tables()
	one, levels := 127, 7 // of e8m0; elements of e2m1
	if f.Mode == quant.NVFP4 {
		one = 0x38
	}
	if f.Mode == quant.MXFP8 {
		levels = 0x48
	}
	for g := range row.Scales {
		row.Scales[g] = byte(one - x.rng.IntN(2))
	}
	for i := range values {
		q := x.rng.IntN(levels) | x.rng.IntN(2)<<(f.Bits-1)
		quant.PutQ(row.Raw, f.Bits, i, q)
		values[i] = float64(elements[q]) * float64(scales[row.Scales[i/f.Group]])
	}
}

// meant is element i of a row, without rounding.
func meant(f quant.Format, r quant.Row, i int) float64 {
	g, q := i/f.Group, float64(quant.Q(r.Raw, f.Bits, i))
	scale := float64(f.Type.At(r.Scales, g))
	if f.Mode == quant.Symmetric {
		return scale * (q - float64(int(1)<<(f.Bits-1)))
	}
	return scale*q + float64(f.Type.At(r.Biases, g))
}
