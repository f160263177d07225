package ref

import (
	"encoding/binary"

	"metalfleet.dev/metalfleet/metal/quant"
)

// groupSize is the number of elements that are tabled together. The groups of
// a format are one, two or four of these, which then share scale and bias.
const groupSize = 32

// A plane is a part of every element's bits: a byte of it holds one nibble of
// each of 2 elements, one pair of bits of each of 4, or one bit of each of 8,
// the lowest element in the lowest bits. Elements of 5 bits are a plane of
// their low 4 bits and a plane of the fifth, and so on; the bytes stay as many
// as the file's.
type plane struct {
	// bits of an element that lie in this plane, and below which bit of the
	// element they begin.
	bits, shift int
}

// bytes of one group of 32.
func (p plane) bytes() int { return groupSize * p.bits / 8 }

// layout is how the words of a format lie in memory: one plane, or two with
// the low bits first. A plane without bits is none.
type layout [2]plane

func layoutOf(f quant.Format) layout {
	switch f.Bits {
	case 3:
		return layout{{bits: 2}, {bits: 1, shift: 2}}
	case 5:
		return layout{{bits: 4}, {bits: 1, shift: 4}}
	case 6:
		return layout{{bits: 4}, {bits: 2, shift: 4}}
	case 8:
		return layout{{bits: 4}, {bits: 4, shift: 4}}
	}
	return layout{{bits: f.Bits}}
}

// bytes of one group of 32 in all planes.
func (l layout) bytes() int { return l[0].bytes() + l[1].bytes() }

// bits of one element.
func (l layout) bits() int { return l[0].bits + l[1].bits }

// split writes a group of consecutive elements (as quant.Row has them; packed
// may be longer) into two planes, eight elements at a time. Widths are spelled
// out so that compilers know the masks.
func (l layout) split(packed []byte, low, high []byte) {
	le := binary.LittleEndian
	for i := range groupSize / 8 {
		switch l.bits() {
		case 3:
			x := spread(load(packed[3*i:])&(1<<24-1), 3)
			le.PutUint16(low[2*i:], uint16(gather(x, 2)))
			high[i] = byte(gather(x>>2, 1))
		case 5:
			x := spread(load(packed[5*i:])&(1<<40-1), 5)
			le.PutUint32(low[4*i:], uint32(gather(x, 4)))
			high[i] = byte(gather(x>>4, 1))
		case 6:
			x := spread(load(packed[6*i:])&(1<<48-1), 6)
			le.PutUint32(low[4*i:], uint32(gather(x, 4)))
			le.PutUint16(high[2*i:], uint16(gather(x>>4, 2)))
		case 8:
			x := load(packed[8*i:])
			le.PutUint32(low[4*i:], uint32(gather(x, 4)))
			le.PutUint32(high[4*i:], uint32(gather(x>>4, 4)))
		}
	}
}

// spread gives each of eight consecutive elements a byte of its own. It moves
// the upper half away three times: 4, 2 and 1 elements a part.
func spread(x uint64, bits int) uint64 {
	m4 := uint64(1)<<(4*bits) - 1
	x = x&m4 | x>>(4*bits)<<32
	m2 := (uint64(1)<<(2*bits) - 1) * 0x0000000100000001
	x = x&m2 | (x>>(2*bits)&m2)<<16
	m1 := (uint64(1)<<bits - 1) * 0x0001000100010001
	return x&m1 | (x>>bits&m1)<<8
}

// gather joins the low bits of each byte.
func gather(x uint64, bits int) uint64 {
	x &= (1<<bits - 1) * 0x0101010101010101
	x = (x | x>>(8-bits)) & ((1<<(2*bits) - 1) * 0x0001000100010001)
	x = (x | x>>(16-2*bits)) & ((1<<(4*bits) - 1) * 0x0000000100000001)
	return x | x>>(32-4*bits)
}

// load reads eight little-endian bytes, or as many as there are.
func load(p []byte) uint64 {
	if len(p) >= 8 {
		return binary.LittleEndian.Uint64(p)
	}
	return loadShort(p)
}

func loadShort(p []byte) (x uint64) {
	for i, b := range p {
		x |= uint64(b) << (8 * i)
	}
	return x
}

// element reads number i of a plane.
func (p plane) element(raw []byte, i int) int {
	if p.bits == 0 {
		return 0
	}
	at := i * p.bits
	return int(raw[at/8]>>(at%8)) & (1<<p.bits - 1) << p.shift
}
