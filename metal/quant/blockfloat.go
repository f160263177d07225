package quant

import (
	"encoding/binary"
	"fmt"
	"math"
)

// The modes whose elements are small floats, in groups that share a scale of
// eight bits and have no bias, as MLX writes them (mlx/ops.cpp, fp_quantize,
// 0.32). Every one has one number of bits and one size of group. Their values
// are whole in bfloat16, which is what their formats have as Type.
const (
	// MXFP4 elements are e2m1, 32 in a group with a power of two.
	MXFP4 Mode = 16 + iota
	// MXFP8 elements are e4m3, 32 in a group with a power of two.
	MXFP8
	// NVFP4 elements are e2m1, 16 in a group with an e4m3.
	NVFP4
)

// BlockFloats lists the formats of small floats.
func BlockFloats() []Format {
	return []Format{
		{Mode: MXFP4, Bits: 4, Group: 32, Type: BFloat16},
		{Mode: MXFP8, Bits: 8, Group: 32, Type: BFloat16},
		{Mode: NVFP4, Bits: 4, Group: 16, Type: BFloat16},
	}
}

// BlockFloat reports whether elements are small floats.
func (f Format) BlockFloat() bool { return f.Mode >= MXFP4 && f.Mode <= NVFP4 }

// BlockFloatNamed returns the format of small floats with MLX's name for its
// mode.
func BlockFloatNamed(mode string) (Format, bool) {
	for _, f := range BlockFloats() {
		if f.String() == mode {
			return f, true
		}
	}
	return Format{}, false
}

func (f Format) blockName() string { return [...]string{"mxfp4", "mxfp8", "nvfp4"}[f.Mode-MXFP4] }

// scaleBytes are those of one scale.
func (f Format) scaleBytes() int {
	if f.BlockFloat() {
		return 1
	}
	return f.Type.Bytes()
}

// FloatTable maps every byte that encodes a number of one kind to its value.
type FloatTable [256]float32

// e4m3 has 4 bits of exponent, 3 of mantissa and no infinity: all ones are no
// number.
func e4m3() *FloatTable {
	var t FloatTable
	for b := range 256 {
		exponent, mantissa := b>>3&15, b&7
		v := math.Ldexp(float64(mantissa), -9)
		if exponent > 0 {
			v = math.Ldexp(float64(8+mantissa), exponent-10)
		}
		if b&127 == 127 {
			v = math.NaN()
		}
		if b > 127 {
			v = math.Copysign(v, -1)
		}
		t[b] = float32(v)
	}
	return &t
}

// e2m1 is a number of four bits; of a byte the low ones count.
func e2m1() *FloatTable {
	sizes := [8]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	var t FloatTable
	for b := range 256 {
		t[b] = sizes[b&7]
		if b&8 != 0 {
			t[b] = float32(math.Copysign(float64(sizes[b&7]), -1))
		}
	}
	return &t
}

// e8m0 is a power of two; all ones are no number.
func e8m0() *FloatTable {
	var t FloatTable
	for b := range 256 {
		t[b] = float32(math.Ldexp(1, b-127))
	}
	t[255] = float32(math.NaN())
	return &t
}

// Tables map elements and scales of a format of small floats to their values.
// The product of an element and its scale is exact in float32, or infinite.
func (f Format) Tables() (elements, scales *FloatTable) {
	switch f.Mode {
	case MXFP4:
		return e2m1(), e8m0()
	case MXFP8:
		return e4m3(), e8m0()
	}
	return e2m1(), e4m3()
}

// checkBlocks wants scales, and elements of eight bits, that are numbers.
func (f Format) checkBlocks(r Row) error {
	scaleMask := byte(127)
	if f.Mode != NVFP4 {
		scaleMask = 255
	}
	if g := firstOnes(r.Scales, scaleMask); g >= 0 {
		return fmt.Errorf("scale of group %d is not a finite number: %w", g, ErrRow)
	}
	if f.Mode != MXFP8 {
		return nil // every four bits are a number
	}
	if i := firstOnes(r.Raw, 127); i >= 0 {
		return fmt.Errorf("element %d is not a number: %w", i, ErrRow)
	}
	return nil
}

// firstOnes is the index of the first byte whose bits are ones where the mask,
// 127 or 255, has some; -1 where there is none. It looks at eight at a time:
// one added to seven ones carries into the place of the eighth bit.
func firstOnes(raw []byte, mask byte) int {
	const low, one, high = 0x7f7f7f7f7f7f7f7f, 0x0101010101010101, 0x8080808080808080
	at := 0
	for ; at+8 <= len(raw); at += 8 {
		x := binary.LittleEndian.Uint64(raw[at:])
		found := (x&low + one) & high
		if mask == 255 {
			found &= x
		}
		if found != 0 {
			break
		}
	}
	for ; at < len(raw); at++ {
		if raw[at]&mask == mask {
			return at
		}
	}
	return -1
}

// dequantizeBlocks writes the values of a row of small floats.
func (f Format) dequantizeBlocks(r Row, dst []float32) {
	elements, scales := f.Tables()
	for i := range dst {
		dst[i] = elements[Q(r.Raw, f.Bits, i)] * scales[r.Scales[i/f.Group]]
	}
}
