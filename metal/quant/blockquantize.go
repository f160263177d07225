package quant

import (
	"fmt"
	"math"
)

// quantizeBlocks writes src as a row of small floats, as MLX's quantize does
// (mlx/backend, fp_quantize, 0.32): a group's scale is its largest value over
// the largest element, for powers of two the next one that is no smaller; an
// element is rounded to the nearest, ties to even. ErrRow for values that are
// not finite, or beyond the largest scale.
func (f Format) quantizeBlocks(src []float32, dst Row) error {
	_, scales := f.Tables()
	largest := float32(6)
	if f.Mode == MXFP8 {
		largest = 448
	}
	clear(dst.Raw)
	for g := range dst.Scales {
		group := src[g*f.Group : (g+1)*f.Group]
		var top float32
		for _, v := range group {
			top = max(top, abs(v)) // which keeps what is not a number
		}
		wanted := top / largest
		scale := powerAbove(wanted)
		if f.Mode == NVFP4 {
			scale = toE4M3(wanted)
		}
		by := scales[scale]
		if top-top != 0 || f.Mode == NVFP4 && wanted > 448 {
			return fmt.Errorf("quantise to %v: group %d contains values that are not finite, or too large: %w", f, g, ErrRow)
		}
		dst.Scales[g] = scale
		factor := float32(0)
		if by > 0 {
			factor = 1 / by
		}
		for i, v := range group {
			q := toE2M1(v * factor)
			if f.Mode == MXFP8 {
				q = toE4M3(v * factor)
			}
			PutQ(dst.Raw, f.Bits, g*f.Group+i, int(q))
		}
	}
	return nil
}

// powerAbove is the least power of two that is not below v, as an e8m0.
func powerAbove(v float32) byte {
	if v == 0 {
		return 127 // as MLX has it: zeros under a scale of 1
	}
	fraction, exponent := math.Frexp(float64(v)) // in [0.5, 1)
	if fraction == 0.5 {
		exponent--
	}
	return byte(min(max(exponent+127, 0), 254))
}

// toE2M1 rounds to the nearest number of four bits.
func toE2M1(v float32) byte {
	var sign byte
	if math.Signbit(float64(v)) {
		sign, v = 8, -v
	}
	switch {
	case v > 5:
		return sign | 7
	case v >= 3.5:
		return sign | 6
	case v > 2.5:
		return sign | 5
	case v >= 1.75:
		return sign | 4
	case v > 1.25:
		return sign | 3
	case v >= 0.75:
		return sign | 2
	case v > 0.25:
		return sign | 1
	}
	return 0 // MLX on a processor knows no other zero
}

// toE4M3 rounds to the nearest number of eight bits, at most 448.
func toE4M3(v float32) byte {
	var sign byte
	if math.Signbit(float64(v)) {
		sign, v = 128, -v
	}
	switch {
	case v >= 448:
		return sign | 0x7e
	case v == 0:
		return 0
	}
	_, exponent := math.Frexp(float64(v))
	exponent = max(exponent-1, -6) // of the leading one; below, steps stay equal
	steps := int(math.RoundToEven(math.Ldexp(float64(v), 3-exponent)))
	return sign | byte((exponent+6)<<3+steps)
}
