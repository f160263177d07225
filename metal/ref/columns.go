package ref

import (
	"math"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/quant"
)

// tileRows is how many rows' sums are held between the planes of a format and
// its scales.
const tileRows = 512

// column is one group of several rows: its planes, and the scales (each
// followed by its bias) in the type of the file.
type column struct {
	low, high []byte
	scales    []byte
	kind      quant.Type
	// bias is the offset in bytes of a bias from its scale, step that of the
	// next row. A symmetric format has no bias: offset 0 reads the scale again,
	// and the sum it is multiplied with is zero.
	bias, step int
}

// check panics where a kernel would read or write beyond its operands.
func (c *column) check(l layout, rows int) {
	if len(c.low) < rows*l[0].bytes() || len(c.high) < rows*l[1].bytes() || len(c.scales) < rows*c.step || c.step < c.bias+c.kind.Bytes() {
		panic("ref: a column is shorter than its outputs")
	}
}

// All kernels add a group's contribution to every output: acc[r] +=
// scale[r]*dot + bias[r]*sum. The order of additions is part of the back end's
// contract: the same for every row count. Conversions to float32 keep compilers
// from fusing. Nothing is read beyond what check checked; pointers, which cost
// a tenth less than indices here, end one row after it, so that a column must
// lie in a mapping, or have room after it (tests).

// addOne serves 4-bit elements and the first token alone.
//
//go:norace
//go:nocheckptr
func (g *group) addOne(acc []float32, c *column, zero uint64) {
	t := &g.nibbles
	words, scales, bias, step := unsafe.Pointer(unsafe.SliceData(c.low)), unsafe.Pointer(unsafe.SliceData(c.scales)), c.bias, c.step
	kind, factor, sum := c.kind, g.first.scale, g.first.sum
	if bias == 0 {
		sum = 0
	}
	for r := range acc {
		w := (*[16]byte)(words)
		words = unsafe.Add(words, 16)
		v := zero + t[0][w[0]] + t[1][w[1]] + t[2][w[2]] + t[3][w[3]] +
			t[4][w[4]] + t[5][w[5]] + t[6][w[6]] + t[7][w[7]] +
			t[8][w[8]] + t[9][w[9]] + t[10][w[10]] + t[11][w[11]] +
			t[12][w[12]] + t[13][w[13]] + t[14][w[14]] + t[15][w[15]]
		var scale, shift float32
		switch kind {
		case quant.BFloat16:
			scale, shift = brain(*(*uint16)(scales)), brain(*(*uint16)(unsafe.Add(scales, bias)))
		case quant.Float16:
			scale, shift = halfFinite(*(*uint16)(scales)), halfFinite(*(*uint16)(unsafe.Add(scales, bias)))
		default:
			scale, shift = *(*float32)(scales), *(*float32)(unsafe.Add(scales, bias))
		}
		scales = unsafe.Add(scales, step)
		acc[r] += float32(scale*float32(float32(int32(v))*factor)) + float32(shift*sum)
	}
}

// addTwo serves 4-bit elements and both tokens.
//
//go:norace
//go:nocheckptr
func (g *group) addTwo(acc0, acc1 []float32, c *column, zero uint64) {
	t := &g.nibbles
	words, scales, bias, step := unsafe.Pointer(unsafe.SliceData(c.low)), unsafe.Pointer(unsafe.SliceData(c.scales)), c.bias, c.step
	kind, factor0, factor1, sum0, sum1 := c.kind, g.first.scale, g.second.scale, g.first.sum, g.second.sum
	if bias == 0 {
		sum0, sum1 = 0, 0
	}
	acc1 = acc1[:len(acc0)]
	for r := range acc0 {
		w := (*[16]byte)(words)
		words = unsafe.Add(words, 16)
		v := zero + t[0][w[0]] + t[1][w[1]] + t[2][w[2]] + t[3][w[3]] +
			t[4][w[4]] + t[5][w[5]] + t[6][w[6]] + t[7][w[7]] +
			t[8][w[8]] + t[9][w[9]] + t[10][w[10]] + t[11][w[11]] +
			t[12][w[12]] + t[13][w[13]] + t[14][w[14]] + t[15][w[15]]
		low := int32(v)
		high := int32((int64(v) - int64(low)) >> 32)
		var scale, shift float32
		switch kind {
		case quant.BFloat16:
			scale, shift = brain(*(*uint16)(scales)), brain(*(*uint16)(unsafe.Add(scales, bias)))
		case quant.Float16:
			scale, shift = halfFinite(*(*uint16)(scales)), halfFinite(*(*uint16)(unsafe.Add(scales, bias)))
		default:
			scale, shift = *(*float32)(scales), *(*float32)(unsafe.Add(scales, bias))
		}
		scales = unsafe.Add(scales, step)
		acc0[r] += float32(scale*float32(float32(low)*factor0)) + float32(shift*sum0)
		acc1[r] += float32(scale*float32(float32(high)*factor1)) + float32(shift*sum1)
	}
}

// planeSums writes start plus the sums of a plane for every row: both tokens'
// dot products with what lies in it.
//
//go:norace
//go:nocheckptr
func (g *group) planeSums(p plane, out []uint64, words []byte, start uint64) {
	at := unsafe.Pointer(unsafe.SliceData(words))
	switch p.bits {
	case 4:
		t := &g.nibbles
		for r := range out {
			w := (*[16]byte)(at)
			at = unsafe.Add(at, 16)
			out[r] = start + t[0][w[0]] + t[1][w[1]] + t[2][w[2]] + t[3][w[3]] +
				t[4][w[4]] + t[5][w[5]] + t[6][w[6]] + t[7][w[7]] +
				t[8][w[8]] + t[9][w[9]] + t[10][w[10]] + t[11][w[11]] +
				t[12][w[12]] + t[13][w[13]] + t[14][w[14]] + t[15][w[15]]
		}
	case 2:
		t := &g.pairs
		for r := range out {
			w := (*[8]byte)(at)
			at = unsafe.Add(at, 8)
			out[r] = start + t[0][w[0]] + t[1][w[1]] + t[2][w[2]] + t[3][w[3]] +
				t[4][w[4]] + t[5][w[5]] + t[6][w[6]] + t[7][w[7]]
		}
	case 1:
		t := &g.single
		for r := range out {
			w := (*[4]byte)(at)
			at = unsafe.Add(at, 4)
			out[r] = start + t[0][w[0]] + t[1][w[1]] + t[2][w[2]] + t[3][w[3]]
		}
	}
}

// addPlanes joins the sums of two planes, the second high bits above the first,
// and adds both tokens' contributions.
//
//go:norace
//go:nocheckptr
func (g *group) addPlanes(acc0, acc1 []float32, c *column, low, high []uint64, above int) {
	scales, bias, step := unsafe.Pointer(unsafe.SliceData(c.scales)), c.bias, c.step
	kind, factor0, factor1, sum0, sum1 := c.kind, g.first.scale, g.second.scale, g.first.sum, g.second.sum
	if bias == 0 {
		sum0, sum1 = 0, 0
	}
	acc1, low, high = acc1[:len(acc0)], low[:len(acc0)], high[:len(acc0)]
	for r := range acc0 {
		a, b := low[r], high[r]
		a0, b0 := int32(a), int32(b)
		a1, b1 := (int64(a)-int64(a0))>>32, (int64(b)-int64(b0))>>32
		dot0, dot1 := int64(a0)+int64(b0)<<above, a1+b1<<above
		var scale, shift float32
		switch kind {
		case quant.BFloat16:
			scale, shift = brain(*(*uint16)(scales)), brain(*(*uint16)(unsafe.Add(scales, bias)))
		case quant.Float16:
			scale, shift = halfFinite(*(*uint16)(scales)), halfFinite(*(*uint16)(unsafe.Add(scales, bias)))
		default:
			scale, shift = *(*float32)(scales), *(*float32)(unsafe.Add(scales, bias))
		}
		scales = unsafe.Add(scales, step)
		acc0[r] += float32(scale*float32(float32(dot0)*factor0)) + float32(shift*sum0)
		acc1[r] += float32(scale*float32(float32(dot1)*factor1)) + float32(shift*sum1)
	}
}

// brain widens a bfloat16 number.
func brain(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// halfFinite widens a half-precision number that is known to be finite: moving
// sign, exponent and fraction into place and one exact multiplication also
// serve subnormals.
func halfFinite(h uint16) float32 {
	return math.Float32frombits(uint32(int32(int16(h))<<13)&0x8fffe000) * 0x1p112
}
