// Package float16 converts the two 16-bit floating-point formats that weights
// come in. It owns the exactness of these conversions and nothing else.
//
// Start reading at Float32.
package float16

import "math"

// Float32 widens an IEEE half-precision number, exactly.
func Float32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&31), uint32(h&0x3ff)
	switch exp {
	case 0: // zero and subnormal: frac * 2^-24
		return math.Float32frombits(math.Float32bits(float32(frac)*0x1p-24) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// FromFloat32 narrows to half precision, to nearest, ties to even.
func FromFloat32(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits >> 16 & 0x8000)
	abs := bits & 0x7fffffff
	switch {
	case abs > 0x7f800000: // NaN stays a quiet NaN
		return sign | 0x7e00
	case abs >= 0x47800000: // 2^16 and above, infinity included
		return sign | 0x7c00
	case abs < 0x38800000: // below the smallest normal: count units of 2^-24
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(abs))*0x1p24))
	}
	abs += 0xfff + abs>>13&1 // a carry into the exponent is the right result
	return sign | uint16((abs-0x38000000)>>13)
}

// FromBrain widens a bfloat16 number, exactly.
func FromBrain(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// ToBrain narrows to bfloat16, to nearest, ties to even.
func ToBrain(f float32) uint16 {
	bits := math.Float32bits(f)
	if bits&0x7fffffff > 0x7f800000 {
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}
