package ref

import (
	"unsafe"

	"metalfleet.dev/metalfleet/metal/quant"
)

// A table holds, for every value of a packed byte, what that byte contributes
// to a dot product with the activations it stands against. One addition per
// byte then replaces unpacking, converting and multiplying; the price of the
// table is shared by all rows of the matrix. This file serves 8-bit weights in
// float32, one element a byte; fixed.go serves 4-bit ones, two elements a byte.
type table [256]float32

// tables serve one group of 32 elements.
type tables [groupSize]table

// build fills the tables for one group of activations and returns their sum,
// which the bias of a group multiplies.
func (t *tables) build(f quant.Format, x []float32) float32 {
	x = x[:groupSize]
	zero := float32(0)
	if f.Mode == quant.Symmetric {
		zero = float32(int(1) << (f.Bits - 1))
	}
	for i := range t {
		t[i].whole(x[i], zero)
	}
	if f.Mode == quant.Symmetric {
		return 0
	}
	var sum float32
	for _, v := range x {
		sum += v
	}
	return sum
}

// whole tables (byte-zero)*x for every byte.
func (t *table) whole(x, zero float32) {
	for j := range t {
		t[j] = (float32(j) - zero) * x
	}
}

// column adds one group's contribution to every output: acc[r] += scale[r]*dot
// + bias[r]*sum. packed holds the group's words row after row; scales holds
// per numbers a row, the scale first and the bias last. A symmetric format has
// one number a row and a sum of zero, so that what stands for its bias adds
// nothing.
//
// The order of additions is part of the back end's contract: the same for
// every row count. Conversions to float32 keep compilers from fusing. The
// pointers stay inside what checkColumn checked.
func (t *tables) column(per int, acc []float32, packed []byte, scales []uint16, sum float32) {
	checkColumn(len(acc), per, len(packed), len(scales), 8)
	words, halves := unsafe.Pointer(unsafe.SliceData(packed)), unsafe.Pointer(unsafe.SliceData(scales))
	bias := (per - 1) * 2
	for r := range acc {
		w := (*[32]byte)(words)
		words = unsafe.Add(words, 32)
		a := t[0][w[0]]
		b := t[1][w[1]]
		c := t[2][w[2]]
		d := t[3][w[3]]
		a += t[4][w[4]]
		b += t[5][w[5]]
		c += t[6][w[6]]
		d += t[7][w[7]]
		a += t[8][w[8]]
		b += t[9][w[9]]
		c += t[10][w[10]]
		d += t[11][w[11]]
		a += t[12][w[12]]
		b += t[13][w[13]]
		c += t[14][w[14]]
		d += t[15][w[15]]
		a += t[16][w[16]]
		b += t[17][w[17]]
		c += t[18][w[18]]
		d += t[19][w[19]]
		a += t[20][w[20]]
		b += t[21][w[21]]
		c += t[22][w[22]]
		d += t[23][w[23]]
		a += t[24][w[24]]
		b += t[25][w[25]]
		c += t[26][w[26]]
		d += t[27][w[27]]
		a += t[28][w[28]]
		b += t[29][w[29]]
		c += t[30][w[30]]
		d += t[31][w[31]]
		v := (a + b) + (c + d)
		scale, shift := halfFinite(*(*uint16)(halves)), halfFinite(*(*uint16)(unsafe.Add(halves, bias)))
		halves = unsafe.Add(halves, bias+2)
		acc[r] += float32(scale*v) + float32(shift*sum)
	}
}
