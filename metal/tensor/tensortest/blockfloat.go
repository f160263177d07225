package tensortest

import (
	"errors"
	"math"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// randomBlocks fills a row of small floats with any elements, and scales that
// leave their groups of a size.
func (x *bench) randomBlocks(f quant.Format, row quant.Row) {
	for i := range row.Raw {
		if row.Raw[i] = byte(x.rng.Uint32()); f.Mode == quant.MXFP8 && row.Raw[i]&127 == 127 {
			row.Raw[i]-- // all ones are no number
		}
	}
	for g := range row.Scales {
		switch {
		case f.Mode == quant.NVFP4: // from below one to some, of either sign
			row.Scales[g] = byte(0x30 + x.rng.IntN(0x18) + x.rng.IntN(2)<<7)
		case f.Mode == quant.MXFP8:
			row.Scales[g] = byte(116 + x.rng.IntN(6))
		default:
			row.Scales[g] = byte(122 + x.rng.IntN(6))
		}
		if g%5 == 4 {
			row.Scales[g] = byte(g % 3) // next to nothing
		}
	}
}

// exactlyBlock is element i as the definitions of the formats have it (OCP
// Microscaling Formats 1.0; NVIDIA's nvfp4): a sign, bits of exponent around a
// bias, bits of mantissa.
func exactlyBlock(f quant.Format, r quant.Row, i int) float64 {
	q, scale := quant.Q(r.Raw, f.Bits, i), int(r.Scales[i/f.Group])
	element := small(q, 2, 1, 1)
	if f.Bits == 8 {
		element = small(q, 4, 3, 7)
	}
	if f.Mode == quant.NVFP4 {
		return element * small(scale, 4, 3, 7)
	}
	return math.Ldexp(element, scale-127)
}

func small(b, exponents, mantissas, bias int) float64 {
	mantissa, exponent := b&(1<<mantissas-1), b>>mantissas&(1<<exponents-1)
	v := math.Ldexp(float64(mantissa), 1-bias-mantissas)
	if exponent > 0 {
		v = math.Ldexp(float64(1<<mantissas+mantissa), exponent-bias-mantissas)
	}
	if b>>(mantissas+exponents)&1 == 1 {
		return -v
	}
	return v
}

// blockErrors loads rows of small floats that do not fit.
func (s matrixSuite) blockErrors(t *testing.T, f quant.Format) {
	x := s.open(t)
	const groups = 3
	good, _ := x.randomRow(f, groups*f.Group)
	faults := map[string]func(*quant.Row){
		"short row":                  func(r *quant.Row) { r.Raw = r.Raw[1:] },
		"long row":                   func(r *quant.Row) { r.Raw = append(r.Raw, 0) },
		"no scale":                   func(r *quant.Row) { r.Scales = r.Scales[:groups-1] },
		"a bias":                     func(r *quant.Row) { r.Biases = []byte{1} },
		"scale that is not a number": func(r *quant.Row) { r.Scales[groups-1] = 255 },
	}
	if f.Mode == quant.MXFP8 {
		faults["element that is not a number"] = func(r *quant.Row) { r.Raw[f.Group] = 127 }
	}
	for name, change := range faults {
		if err := s.loadRows(x, f, groups*f.Group, []quant.Row{good, changed(good, change)}, 0, 1); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: error %v, want ErrShape", name, err)
		}
	}
	if w := x.b.Memory().Weights; w != 0 {
		t.Errorf("failed loads left %d bytes of weights", w)
	}
}
