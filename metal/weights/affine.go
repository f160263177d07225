package weights

import (
	"encoding/binary"
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/float16"
)

// Affine says how a quantised row reads as w = scale*q + bias per group of
// GroupSize elements, q unsigned.
type Affine struct {
	// Bits of one q: 4 or 8.
	Bits int
	// Symmetric formats store no bias: it is -scale * 2^(Bits-1).
	Symmetric bool
}

// Affine returns the affine form of a quantised type.
func (t Type) Affine() (Affine, bool) {
	switch t {
	case Q4_0:
		return Affine{Bits: 4, Symmetric: true}, true
	case Q4_1:
		return Affine{Bits: 4}, true
	case Q8_0:
		return Affine{Bits: 8, Symmetric: true}, true
	}
	return Affine{}, false
}

// AffineRow is one row in planar form: the q of consecutive elements in
// consecutive bits (low first), then a scale and, unless symmetric, a bias per
// group, in the half precision of the file.
type AffineRow struct {
	Q              []byte
	Scales, Biases []uint16
}

// NewAffineRow makes room for a row of n elements.
func (a Affine) NewAffineRow(n int) AffineRow {
	r := AffineRow{Q: make([]byte, n*a.Bits/8), Scales: make([]uint16, n/GroupSize)}
	if !a.Symmetric {
		r.Biases = make([]uint16, n/GroupSize)
	}
	return r
}

// Split rewrites a raw row of type t into dst, without loss.
func (t Type) Split(raw []byte, dst AffineRow) {
	info, _ := t.info()
	le := binary.LittleEndian
	for g := range dst.Scales {
		b := raw[g*int(info.blockBytes):][:info.blockBytes]
		dst.Scales[g] = le.Uint16(b)
		switch t {
		case Q8_0:
			q := dst.Q[g*32:][:32]
			for i, v := range b[2:] {
				q[i] = v ^ 0x80 // two's complement to offset 128
			}
		case Q4_1:
			dst.Biases[g] = le.Uint16(b[2:])
			splitNibbles(dst.Q[g*16:][:16], b[4:])
		case Q4_0:
			splitNibbles(dst.Q[g*16:][:16], b[2:])
		}
	}
}

// splitNibbles turns GGUF's order (element j low, element j+16 high) into
// consecutive elements.
func splitNibbles(dst, src []byte) {
	for i := range 8 {
		dst[i] = src[2*i]&15 | src[2*i+1]<<4
		dst[8+i] = src[2*i]>>4 | src[2*i+1]&0xf0
	}
}

// Dequantize turns a raw row of type t into float32, the value the file means.
func (t Type) Dequantize(raw []byte, dst []float32) error {
	if n, ok := t.RowBytes(int64(len(dst))); !ok || n != int64(len(raw)) {
		return invalidf("%d bytes of %v are not a row of %d", len(raw), t, len(dst))
	}
	le := binary.LittleEndian
	switch t {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(le.Uint32(raw[4*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = float16.Float32(le.Uint16(raw[2*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = float16.FromBrain(le.Uint16(raw[2*i:]))
		}
	default:
		a, ok := t.Affine()
		if !ok {
			return fmt.Errorf("dequantize: %w", &UnsupportedError{"tensor type", t.String(), SupportedTypes()})
		}
		row := a.NewAffineRow(len(dst))
		t.Split(raw, row)
		a.expand(row, dst)
	}
	return nil
}

func (a Affine) expand(row AffineRow, dst []float32) {
	for i := range dst {
		g := i / GroupSize
		scale := float16.Float32(row.Scales[g])
		q := float32(row.Q[i*a.Bits/8])
		if a.Bits == 4 {
			q = float32(row.Q[i/2] >> (i % 2 * 4) & 15)
		}
		if a.Symmetric {
			dst[i] = scale * (q - float32(int(1)<<(a.Bits-1)))
		} else {
			dst[i] = float32(scale*q) + float16.Float32(row.Biases[g])
		}
	}
}
