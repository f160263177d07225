package weights

import (
	"fmt"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

// Format is the format of a type's rows after split.
func (t Type) Format() (quant.Format, error) {
	switch t {
	case F32:
		return quant.DenseOf(quant.Float32), nil
	case F16:
		return quant.DenseOf(quant.Float16), nil
	case BF16:
		return quant.DenseOf(quant.BFloat16), nil
	case Q4_0:
		return quant.SymmetricOf(4, GroupSize, quant.Float16), nil
	case Q4_1:
		return quant.AffineOf(4, GroupSize, quant.Float16), nil
	case Q8_0:
		return quant.SymmetricOf(8, GroupSize, quant.Float16), nil
	case Q5_0, Q5_1:
		return quant.AffineOf(5, GroupSize, quant.Float16), nil
	case Q3_K:
		return quant.AffineOf(8, 128, quant.Float32), nil
	case Q4_K:
		return quant.AffineOf(4, GroupSize, quant.Float32), nil
	case Q5_K:
		return quant.AffineOf(5, GroupSize, quant.Float32), nil
	case MXFP4:
		f, _ := quant.BlockFloatNamed("mxfp4")
		return f, nil
	case Q2_K, Q6_K:
		return quant.AffineOf(8, GroupSize, quant.Float32), nil
	}
	return quant.Format{}, family.Unsupported("tensor type", t.String(), supportedTypes())
}

// split rewrites raw rows of a block type into dst: without loss if the type is
// Exact, else it returns how far values moved.
func (t Type) split(raw []byte, dst quant.Row) moved {
	info, _ := t.info()
	switch {
	case info.blockElems == superSize:
		return t.splitSuper(raw, dst)
	case t == MXFP4:
		splitMXFP4(raw, dst)
	case t == Q5_0 || t == Q5_1:
		t.splitQ5(raw, dst)
	default:
		t.splitShort(raw, dst)
	}
	return moved{}
}

// splitShort serves Q4_0, Q4_1 and Q8_0.
func (t Type) splitShort(raw []byte, dst quant.Row) {
	info, _ := t.info()
	for g := range len(dst.Scales) / 2 {
		b := raw[g*int(info.blockBytes):][:info.blockBytes]
		copy(dst.Scales[2*g:2*g+2], b)
		switch t {
		case Q8_0:
			q := dst.Raw[g*32:][:32]
			for i, v := range b[2:] {
				q[i] = v ^ 0x80 // two's complement to offset 128
			}
		case Q4_1:
			copy(dst.Biases[2*g:2*g+2], b[2:4])
			splitNibbles(dst.Raw[g*16:][:16], b[4:])
		case Q4_0:
			splitNibbles(dst.Raw[g*16:][:16], b[2:])
		}
	}
}

// splitMXFP4 converts MXFP4: a power of two, then elements of 4 bits. GGUF
// stores doubled elements and half the power, which is equivalent.
func splitMXFP4(raw []byte, dst quant.Row) {
	for g := range dst.Scales {
		b := raw[g*17:][:17]
		dst.Scales[g] = b[0]
		splitNibbles(dst.Raw[g*16:][:16], b[1:])
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

// Dequantize converts a raw row of type t to float32: exactly if the type is
// Exact, else to the values that are used instead.
func (t Type) Dequantize(raw []byte, dst []float32) error {
	if n, ok := t.RowBytes(int64(len(dst))); !ok || n != int64(len(raw)) {
		return family.Invalidf("%d bytes of %v do not match a row of %d", len(raw), t, len(dst))
	}
	f, err := t.Format()
	if err != nil {
		return fmt.Errorf("dequantize: %w", err)
	}
	row := quant.Row{Raw: raw}
	if f.Quantized() {
		if row, err = f.NewRow(len(dst)); err != nil {
			return fmt.Errorf("dequantize: %w", err)
		}
		t.split(raw, row)
	}
	if err := f.Dequantize(row, dst); err != nil {
		return fmt.Errorf("dequantize: %w: %w", ErrInvalid, err)
	}
	return nil
}
