package ref

import (
	"math"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/quant"
)

// Products with 4-bit weights are summed in integers. The activations of a
// group become fixed-point numbers of 23 bits with one scale (as fine, beside
// the largest of them, as float32 is), so that the sum of a group is exact: it
// cannot depend on an order, and two tokens share one 64-bit word.

// fixedOne is the largest fixed-point activation: 32 products with at most 15
// still fit 31 bits.
const fixedOne = 1 << 22

// fixedLeast is the smallest activation that counts: below it a group is zero.
const fixedLeast = 1e-30

// pairTable holds, for every packed byte, its contribution to the dot products
// of two tokens: the first token's in the low half of a word, the second's
// above it.
type pairTable [256]uint64

// pairTables serve one group of 32 elements for two tokens.
type pairTables [groupSize / 2]pairTable

// fixed is one token's group on its way into the tables.
type fixed struct {
	values [groupSize]int32
	// scale times a value is the activation, sum the sum of all of them.
	scale, sum float32
}

// read converts a group of activations; one that is not finite makes
// everything it touches not a number.
func (f *fixed) read(x []float32) {
	x = x[:groupSize]
	var top float32
	for _, v := range x {
		top = max(top, v, -v) // a NaN stays
	}
	if top < fixedLeast {
		*f = fixed{}
		return
	}
	if !(top <= math.MaxFloat32) {
		*f = fixed{scale: float32(math.NaN()), sum: float32(math.NaN())}
		return
	}
	inverse := fixedOne / top
	total := int32(0)
	for i, v := range x {
		// Adding 1.5*2^23 rounds to a whole number and leaves it in the low bits.
		n := int32(math.Float32bits(float32(v*inverse)+0x1.8p23)) - 0x4b400000
		f.values[i] = n
		total += n
	}
	f.scale = top / fixedOne
	f.sum = float32(total) * f.scale
}

// build fills the tables for one group of two tokens.
func (t *pairTables) build(format quant.Format, low, high *fixed) {
	zero := uint64(0)
	if format.Mode == quant.Symmetric {
		zero = 1 << (format.Bits - 1)
	}
	for i := range t {
		t[i].fill(word(low, high, 2*i), word(low, high, 2*i+1), zero)
	}
}

// word joins one activation of two tokens; sums of words are words of sums.
func word(low, high *fixed, i int) uint64 {
	return uint64(int64(high.values[i])<<32 + int64(low.values[i]))
}

// fill tables (low nibble - zero)*x0 + (high nibble - zero)*x1 for every byte.
func (t *pairTable) fill(x0, x1, zero uint64) {
	var low [16]uint64
	for j := range low {
		low[j] = (uint64(j) - zero) * x0
	}
	l0, l1, l2, l3, l4, l5, l6, l7 := low[0], low[1], low[2], low[3], low[4], low[5], low[6], low[7]
	y := -zero * x1
	for h := range 16 {
		o := (*[16]uint64)(t[h*16 : h*16+16])
		o[0] = l0 + y
		o[1] = l1 + y
		o[2] = l2 + y
		o[3] = l3 + y
		o[4] = l4 + y
		o[5] = l5 + y
		o[6] = l6 + y
		o[7] = l7 + y
		o[8] = low[8] + y
		o[9] = low[9] + y
		o[10] = low[10] + y
		o[11] = low[11] + y
		o[12] = low[12] + y
		o[13] = low[13] + y
		o[14] = low[14] + y
		o[15] = low[15] + y
		y += x1
	}
}

// one adds a group's contribution to every output of the first token:
// acc[r] += scale[r]*dot + bias[r]*sum. For words and scales see tables.column.
func (t *pairTables) one(per int, acc []float32, packed []byte, scales []uint16, x *fixed) {
	checkColumn(len(acc), per, len(packed), len(scales), 4)
	words, halves := unsafe.Pointer(unsafe.SliceData(packed)), unsafe.Pointer(unsafe.SliceData(scales))
	bias, factor, sum := (per-1)*2, x.scale, x.sum
	if per == 1 {
		sum = 0
	}
	for r := range acc {
		w := (*[16]byte)(words)
		words = unsafe.Add(words, 16)
		v := t[0][w[0]] + t[1][w[1]] + t[2][w[2]] + t[3][w[3]] +
			t[4][w[4]] + t[5][w[5]] + t[6][w[6]] + t[7][w[7]] +
			t[8][w[8]] + t[9][w[9]] + t[10][w[10]] + t[11][w[11]] +
			t[12][w[12]] + t[13][w[13]] + t[14][w[14]] + t[15][w[15]]
		scale, shift := halfFinite(*(*uint16)(halves)), halfFinite(*(*uint16)(unsafe.Add(halves, bias)))
		halves = unsafe.Add(halves, bias+2)
		acc[r] += float32(scale*float32(float32(int32(v))*factor)) + float32(shift*sum)
	}
}

// two does the same for both tokens.
func (t *pairTables) two(per int, acc0, acc1 []float32, packed []byte, scales []uint16, x0, x1 *fixed) {
	checkColumn(len(acc0), per, len(packed), len(scales), 4)
	words, halves := unsafe.Pointer(unsafe.SliceData(packed)), unsafe.Pointer(unsafe.SliceData(scales))
	bias, factor0, factor1, sum0, sum1 := (per-1)*2, x0.scale, x1.scale, x0.sum, x1.sum
	if per == 1 {
		sum0, sum1 = 0, 0
	}
	acc1 = acc1[:len(acc0)]
	for r := range acc0 {
		w := (*[16]byte)(words)
		words = unsafe.Add(words, 16)
		v := t[0][w[0]] + t[1][w[1]] + t[2][w[2]] + t[3][w[3]] +
			t[4][w[4]] + t[5][w[5]] + t[6][w[6]] + t[7][w[7]] +
			t[8][w[8]] + t[9][w[9]] + t[10][w[10]] + t[11][w[11]] +
			t[12][w[12]] + t[13][w[13]] + t[14][w[14]] + t[15][w[15]]
		low := int32(v)
		high := int32((int64(v) - int64(low)) >> 32)
		scale, shift := halfFinite(*(*uint16)(halves)), halfFinite(*(*uint16)(unsafe.Add(halves, bias)))
		halves = unsafe.Add(halves, bias+2)
		acc0[r] += float32(scale*float32(float32(low)*factor0)) + float32(shift*sum0)
		acc1[r] += float32(scale*float32(float32(high)*factor1)) + float32(shift*sum1)
	}
}

func checkColumn(rows, per, packed, scales, bits int) {
	if scales < per*rows || packed < rows*groupSize*bits/8 {
		panic("ref: a column is shorter than its outputs")
	}
}
