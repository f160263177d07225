package vision

import "math"

// Filter is a resampling filter.
type Filter int

// The filters, numbered as Pillow numbers them in preprocessor_config.json.
const (
	Bilinear Filter = 2
	Bicubic  Filter = 3
)

// support is the radius of the filter, in pixels of the smaller image.
func (f Filter) support() float64 {
	if f == Bicubic {
		return 2
	}
	return 1
}

// weight is the filter at a distance.
func (f Filter) weight(x float64) float64 {
	x = math.Abs(x)
	if f == Bilinear {
		return max(0, 1-x)
	}
	const a = -0.5
	switch {
	case x < 1:
		return ((a+2)*x-(a+3))*x*x + 1
	case x < 2:
		return (((x-5)*x+8)*x - 4) * a
	}
	return 0
}

// weightBits is the precision of Pillow's integer weights: 32 bits less 8 of a
// pixel and 2 for sums that exceed its range.
const weightBits = 32 - 8 - 2

// taps are the source pixels of one target pixel, and their integer weights.
type taps struct {
	first   int
	weights []int32
}

// tapsOf returns the taps of every target pixel, as Pillow computes them
// (src/libImaging/Resample.c, precompute_coeffs and normalize_coeffs_8bpc).
func tapsOf(from, to int, f Filter) []taps {
	scale := float64(from) / float64(to)
	stretch := max(1, scale)
	support := f.support() * stretch
	out := make([]taps, to)
	for i := range out {
		center := (float64(i) + 0.5) * scale
		first := max(0, int(center-support+0.5))
		last := min(from, int(center+support+0.5))
		sum, weights := 0.0, make([]float64, last-first)
		for j := range weights {
			weights[j] = f.weight((float64(first+j) - center + 0.5) * (1 / stretch))
			sum += weights[j]
		}
		out[i] = taps{first, make([]int32, len(weights))}
		for j, w := range weights {
			if sum != 0 {
				w /= sum
			}
			out[i].weights[j] = int32(w*(1<<weightBits) + math.Copysign(0.5, w))
		}
	}
	return out
}

// Resize scales an image to another size: the rows first, rounded to bytes, then the
// columns, bit for bit as Pillow 12 does. Pillow 13 starts with the columns where that
// takes less time, which changes single values by 1.
func Resize(m *RGB, width, height int, f Filter) *RGB {
	if m.Width != width {
		m = resizeRows(m, width, f)
	}
	if m.Height != height {
		m = resizeColumns(m, height, f)
	}
	return m
}

func resizeRows(m *RGB, width int, f Filter) *RGB {
	out, all := newRGB(width, m.Height), tapsOf(m.Width, width, f)
	for y := range m.Height {
		from, to := m.row(y), out.row(y)
		for x, t := range all {
			var sum [3]int32
			sum[0], sum[1], sum[2] = 1<<(weightBits-1), 1<<(weightBits-1), 1<<(weightBits-1)
			for j, w := range t.weights {
				p := from[3*(t.first+j):][:3]
				sum[0] += int32(p[0]) * w
				sum[1] += int32(p[1]) * w
				sum[2] += int32(p[2]) * w
			}
			for c, v := range sum {
				to[3*x+c] = clampByte(v >> weightBits)
			}
		}
	}
	return out
}

func resizeColumns(m *RGB, height int, f Filter) *RGB {
	out, sums := newRGB(m.Width, height), make([]int32, 3*m.Width)
	for y, t := range tapsOf(m.Height, height, f) {
		for i := range sums {
			sums[i] = 1 << (weightBits - 1)
		}
		for j, w := range t.weights {
			for i, p := range m.row(t.first + j) {
				sums[i] += int32(p) * w
			}
		}
		to := out.row(y)
		for i, v := range sums {
			to[i] = clampByte(v >> weightBits)
		}
	}
	return out
}

func clampByte(v int32) byte { return byte(min(255, max(0, v))) }
