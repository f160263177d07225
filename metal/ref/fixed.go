package ref

import (
	"math"

	"metalfleet.dev/metalfleet/metal/quant"
)

// Products with quantised weights are summed in integers. The activations of a
// group of 32 become fixed-point numbers of 23 bits with one scale (as fine
// relative to the largest of them as float32), so that the sum of a group is
// exact: it cannot depend on an order, and two tokens share one 64-bit word.

// fixedOne is the largest fixed-point activation: 32 products with at most 15,
// the largest number of a plane, still fit 31 bits.
const fixedOne = 1 << 22

// eightBitOne is the largest activation of 8 bits.
const eightBitOne = 1<<7 - 1

// fixedLeast is the smallest activation that counts: below it a group is zero.
const fixedLeast = 1e-30

// fixed is one token's group on its way into the tables.
type fixed struct {
	values [groupSize]int32
	total  int32
	// scale times a value is the activation, sum the sum of all of them.
	scale, sum float32
}

// read converts a group of activations; one that is not finite makes
// everything it touches not a number. The largest becomes one.
//
//go:norace
//go:nocheckptr
func (f *fixed) read(x []float32, one float32) {
	x = x[:groupSize]
	var top float32
	for _, v := range x {
		top = max(top, v, -v) // a NaN stays
	}
	if !f.begin(top, one) {
		return
	}
	total, inverse := int32(0), one/top
	for i, v := range x {
		// Adding 1.5*2^23 rounds to a whole number and leaves it in the low bits.
		n := int32(math.Float32bits(float32(v*inverse)+0x1.8p23)) - 0x4b400000
		f.values[i] = n
		total += n
	}
	f.total, f.sum = total, float32(total)*f.scale
}

// begin takes the largest magnitude of a group, and reports whether there is
// more to read.
func (f *fixed) begin(top, one float32) bool {
	switch {
	case top < fixedLeast:
		*f = fixed{}
		return false
	case !(top <= math.MaxFloat32):
		*f = fixed{scale: float32(math.NaN()), sum: float32(math.NaN())}
		return false
	}
	f.scale = top / one
	return true
}

// group is one group of 32 activations of two tokens, the second of which may
// be absent, with its tables.
type group struct {
	first, second fixed
	// Of the tables only those are filled that the format's planes need.
	nibbles [groupSize / 2]table
	pairs   [groupSize / 4]table
	single  [groupSize / 8]table
}

// table holds, for every packed byte of a plane, its contribution to the dot
// products of two tokens: the first token's in the low half of a word, the
// second's above it. One addition per byte then replaces unpacking, converting
// and multiplying; the price of the table is shared by all rows of a matrix.
type table [256]uint64

// build fills the tables that a layout needs.
func (g *group) build(l layout) {
	for i, p := range l {
		if i > 0 && p.bits == l[0].bits {
			return // both planes read the same tables
		}
		switch p.bits {
		case 4:
			for i := range g.nibbles {
				g.nibbles[i].fill(multiples(g.word(2*i)), multiples(g.word(2*i+1)))
			}
		case 2:
			for i := range g.pairs {
				g.pairs[i].fill(g.twoPairs(4*i), g.twoPairs(4*i+2))
			}
		case 1:
			for i := range g.single {
				g.single[i].fill(g.fourSingle(8*i), g.fourSingle(8*i+4))
			}
		}
	}
}

// word joins one activation of two tokens; sums of words are words of sums.
func (g *group) word(i int) uint64 {
	return uint64(int64(g.second.values[i])<<32 + int64(g.first.values[i]))
}

// halfByte is what every value of half a byte contributes.
type halfByte [16]uint64

// multiples serves one element of 4 bits.
//
//go:norace
func multiples(x uint64) (h halfByte) {
	for q := range h {
		h[q] = uint64(q) * x
	}
	return h
}

// twoPairs serves two elements of 2 bits, from element i on.
//
//go:norace
func (g *group) twoPairs(i int) (h halfByte) {
	x, y := g.word(i), g.word(i+1)
	for q := range h {
		h[q] = uint64(q&3)*x + uint64(q>>2)*y
	}
	return h
}

// fourSingle serves four elements of one bit, from element i on.
//
//go:norace
func (g *group) fourSingle(i int) (h halfByte) {
	for k := range 4 {
		x := g.word(i + k)
		for q := range 1 << k {
			h[1<<k+q] = h[q] + x
		}
	}
	return h
}

// fill adds what the low and the high half of each byte contribute.
//
//go:norace
//go:nocheckptr
func (t *table) fill(low, high halfByte) {
	l0, l1, l2, l3, l4, l5, l6, l7 := low[0], low[1], low[2], low[3], low[4], low[5], low[6], low[7]
	for h, y := range high {
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
	}
}

// zero is what a symmetric format takes from its plane with the high bits, as
// often as that plane counts: half its range times the sum of all activations.
func (g *group) zero(l layout, mode quant.Mode) uint64 {
	if mode != quant.Symmetric {
		return 0
	}
	half := int64(1) << (max(l[0].bits, l[1].bits) - 1)
	return -uint64(int64(g.second.total)*half<<32 + int64(g.first.total)*half)
}
