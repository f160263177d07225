// Package quant defines number formats of weights: plain floats, and integers
// or small floats in groups that share a scale.
//
// It defines Type, Format and Row, the meaning of each in float32, and plain
// code that reads and writes them; readers of files and backends share it. It
// refuses unknown formats and rows that do not fit theirs. It is written for
// clarity, not for speed: backends have their own kernels and are tested
// against this package.
//
// Start reading at Format and Format.Dequantize.
package quant

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/float16"
)

// Sentinels that callers branch on.
var (
	// ErrUnsupported means that the number format is unknown.
	ErrUnsupported = errors.New("number format is not supported")
	// ErrRow means that a row does not fit its format.
	ErrRow = errors.New("row does not fit its format")
)

// Type is a floating-point type.
type Type int

// The floating-point types.
const (
	Float32 Type = iota
	Float16
	BFloat16
)

// Bytes of one number.
func (t Type) Bytes() int {
	if t == Float32 {
		return 4
	}
	return 2
}

func (t Type) String() string {
	switch t {
	case Float32:
		return "float32"
	case Float16:
		return "float16"
	case BFloat16:
		return "bfloat16"
	}
	return fmt.Sprintf("type %d", int(t))
}

// At reads number i of a little-endian row.
func (t Type) At(raw []byte, i int) float32 {
	le := binary.LittleEndian
	switch t {
	case Float16:
		return float16.Float32(le.Uint16(raw[2*i:]))
	case BFloat16:
		return float16.FromBrain(le.Uint16(raw[2*i:]))
	}
	return math.Float32frombits(le.Uint32(raw[4*i:]))
}

// Put writes number i of a little-endian row, rounded to nearest even.
func (t Type) Put(raw []byte, i int, v float32) {
	le := binary.LittleEndian
	switch t {
	case Float16:
		le.PutUint16(raw[2*i:], float16.FromFloat32(v))
	case BFloat16:
		le.PutUint16(raw[2*i:], float16.ToBrain(v))
	default:
		le.PutUint32(raw[4*i:], math.Float32bits(v))
	}
}

// Mode is the encoding of the elements of a row.
type Mode int

// The modes.
const (
	// Dense elements are floats.
	Dense Mode = iota
	// Affine elements are scale*q + bias, q unsigned; each group has both.
	Affine
	// Symmetric elements are scale * (q - 2^(bits-1)); each group has a scale.
	Symmetric
)

// Format is the storage format of a matrix or vector.
type Format struct {
	Mode Mode
	// Bits of one q and Group, the number of consecutive elements of a row
	// that share a scale; both 0 for dense formats.
	Bits, Group int
	// Type of dense elements, or of scales and biases; of small floats that
	// which holds all their values.
	Type Type
}

// DenseOf is the format of plain floats.
func DenseOf(t Type) Format { return Format{Type: t} }

// AffineOf is an affine format.
func AffineOf(bits, group int, t Type) Format {
	return Format{Mode: Affine, Bits: bits, Group: group, Type: t}
}

// SymmetricOf is a symmetric format.
func SymmetricOf(bits, group int, t Type) Format {
	return Format{Mode: Symmetric, Bits: bits, Group: group, Type: t}
}

// Bits and Groups list what affine formats may have; symmetric ones, which
// come from GGUF alone, have 4 or 8 bits and groups of 32.
func Bits() []int { return []int{2, 3, 4, 5, 6, 8} }

// Groups lists the sizes of groups.
func Groups() []int { return []int{32, 64, 128} }

// Quantized reports whether elements come in groups with scales.
func (f Format) Quantized() bool { return f.Mode != Dense }

// Check says whether the format is one of those that are known.
func (f Format) Check() error {
	known := f.Type >= Float32 && f.Type <= BFloat16
	switch f.Mode {
	case Dense:
		known = known && f.Bits == 0 && f.Group == 0
	case Affine:
		known = known && slices.Contains(Bits(), f.Bits) && slices.Contains(Groups(), f.Group)
	case Symmetric:
		known = known && (f.Bits == 4 || f.Bits == 8) && f.Group == 32
	default:
		known = slices.Contains(BlockFloats(), f)
	}
	if !known {
		return fmt.Errorf("%v (supported: float32, float16, bfloat16; affine of %v bits in groups of %v; symmetric of 4 or 8 bits in groups of 32; mxfp4, mxfp8, nvfp4): %w", f, Bits(), Groups(), ErrUnsupported)
	}
	return nil
}

func (f Format) String() string {
	switch f.Mode {
	case Dense:
		return f.Type.String()
	case Affine:
		return fmt.Sprintf("affine %d-bit group %d %v", f.Bits, f.Group, f.Type)
	case Symmetric:
		return fmt.Sprintf("symmetric %d-bit group %d %v", f.Bits, f.Group, f.Type)
	case MXFP4, MXFP8, NVFP4:
		return f.blockName()
	}
	return fmt.Sprintf("mode %d, %d-bit group %d %v", int(f.Mode), f.Bits, f.Group, f.Type)
}

// Sizes are the bytes of one row of n elements, part by part.
type Sizes struct{ Raw, Scales, Biases int }

// Sum of all parts.
func (s Sizes) Sum() int { return s.Raw + s.Scales + s.Biases }

// Sizes of a row of n elements; ErrRow unless they are whole groups.
func (f Format) Sizes(n int) (Sizes, error) {
	if err := f.Check(); err != nil {
		return Sizes{}, err
	}
	if n <= 0 || n > math.MaxInt32 {
		return Sizes{}, fmt.Errorf("row of %d elements: %w", n, ErrRow)
	}
	if f.Mode == Dense {
		return Sizes{Raw: n * f.Type.Bytes()}, nil
	}
	if n%f.Group != 0 {
		return Sizes{}, fmt.Errorf("%d elements are not a multiple of the group size %d: %w", n, f.Group, ErrRow)
	}
	s := Sizes{Raw: n / 8 * f.Bits, Scales: n / f.Group * f.scaleBytes()}
	if f.Mode == Affine {
		s.Biases = s.Scales
	}
	return s, nil
}

// Row is one row of a matrix. Raw holds little-endian floats, or the q of
// consecutive elements in consecutive bits, low bits first (the order of MLX's
// packed words); Scales and Biases hold one little-endian float of the format's
// type per group, or of small floats a byte. Functions that document it take
// several rows, concatenated in each part.
type Row struct{ Raw, Scales, Biases []byte }

// At is row i of several, each of sizes s.
func (r Row) At(i int, s Sizes) Row {
	return r.Slice(i, i+1, s)
}

// Slice is rows [lo, hi) of several, each of sizes s.
func (r Row) Slice(lo, hi int, s Sizes) Row {
	return Row{Raw: r.Raw[lo*s.Raw : hi*s.Raw], Scales: r.Scales[lo*s.Scales : hi*s.Scales], Biases: r.Biases[lo*s.Biases : hi*s.Biases]}
}

// NewRow allocates a row of n elements.
func (f Format) NewRow(n int) (Row, error) {
	s, err := f.Sizes(n)
	if err != nil {
		return Row{}, err
	}
	return Row{Raw: make([]byte, s.Raw), Scales: make([]byte, s.Scales), Biases: make([]byte, s.Biases)}, nil
}

// CheckRow returns an error unless r is a row of n elements with finite scales
// and biases.
func (f Format) CheckRow(n int, r Row) error {
	s, err := f.Sizes(n)
	if err != nil {
		return err
	}
	if len(r.Raw) != s.Raw || len(r.Scales) != s.Scales || len(r.Biases) != s.Biases {
		return f.misfit(n, r, s)
	}
	return f.checkFinite(r)
}

// CheckRows is CheckRow for one or more rows of n elements; it counts them.
// Groups are counted from the first row on.
func (f Format) CheckRows(n int, r Row) (rows int, err error) {
	s, err := f.Sizes(n)
	if err != nil {
		return 0, err
	}
	if rows = len(r.Raw) / max(s.Raw, 1); rows == 0 || len(r.Raw) != rows*s.Raw || len(r.Scales) != rows*s.Scales || len(r.Biases) != rows*s.Biases {
		return 0, f.misfit(n, r, s)
	}
	return rows, f.checkFinite(r)
}

func (f Format) checkFinite(r Row) error {
	if f.BlockFloat() {
		return f.checkBlocks(r)
	}
	if !f.Type.Finite(r.Scales) {
		return fmt.Errorf("scale of group %d is not a finite number: %w", f.Type.firstInfinite(r.Scales), ErrRow)
	}
	if !f.Type.Finite(r.Biases) {
		return fmt.Errorf("bias of group %d is not a finite number: %w", f.Type.firstInfinite(r.Biases), ErrRow)
	}
	return nil
}

func (f Format) misfit(n int, r Row, want Sizes) error {
	return fmt.Errorf("parts of %d, %d and %d bytes for %d elements of %v, want %d, %d and %d: %w",
		len(r.Raw), len(r.Scales), len(r.Biases), n, f, want.Raw, want.Scales, want.Biases, ErrRow)
}

// Finite reports whether all little-endian numbers in raw are finite: their
// exponents are not all ones. It looks at eight bytes at a time: one added to
// the lowest bit of an exponent of ones carries into the place of the sign.
func (t Type) Finite(raw []byte) bool {
	exponents, one, signs := uint64(0x7c00)*0x0001000100010001, uint64(0x0400)*0x0001000100010001, uint64(0x8000)*0x0001000100010001
	switch t {
	case BFloat16:
		exponents, one = uint64(0x7f80)*0x0001000100010001, uint64(0x0080)*0x0001000100010001
	case Float32:
		exponents, one, signs = uint64(0x7f800000)*0x100000001, uint64(0x00800000)*0x100000001, uint64(0x80000000)*0x100000001
	}
	var seen uint64
	for ; len(raw) >= 8; raw = raw[8:] {
		seen |= binary.LittleEndian.Uint64(raw)&exponents + one
	}
	return seen&signs == 0 && t.firstInfinite(raw) < 0
}

// firstInfinite is the index of the first number that is not finite, or -1.
func (t Type) firstInfinite(raw []byte) int {
	for i := range len(raw) / t.Bytes() {
		if v := t.At(raw, i); v-v != 0 {
			return i
		}
	}
	return -1
}

// Q reads element i of packed words; of small floats its bits.
func Q(raw []byte, bits, i int) int {
	at := i * bits
	word := uint(raw[at/8])
	if at/8+1 < len(raw) {
		word |= uint(raw[at/8+1]) << 8
	}
	return int(word >> (at % 8) & (1<<bits - 1))
}

// PutQ writes element i of packed words that were zero.
func PutQ(raw []byte, bits, i, q int) {
	at := i * bits
	word := uint(q) << (at % 8)
	raw[at/8] |= byte(word)
	if word > 0xff {
		raw[at/8+1] |= byte(word >> 8)
	}
}

// Dequantize writes the values that a row means, rounded to float32 after the
// product and after the sum.
func (f Format) Dequantize(r Row, dst []float32) error {
	if err := f.CheckRow(len(dst), r); err != nil {
		return err
	}
	if f.BlockFloat() {
		f.dequantizeBlocks(r, dst)
		return nil
	}
	for i := range dst {
		if f.Mode == Dense {
			dst[i] = f.Type.At(r.Raw, i)
			continue
		}
		g, q := i/f.Group, Q(r.Raw, f.Bits, i)
		scale := f.Type.At(r.Scales, g)
		if f.Mode == Symmetric {
			dst[i] = scale * float32(q-1<<(f.Bits-1))
			continue
		}
		dst[i] = float32(scale*float32(q)) + f.Type.At(r.Biases, g)
	}
	return nil
}

// DequantizeRounded is Dequantize as mlx.core.dequantize computes it on a processor: with
// scales of 16 bits the product and the sum are rounded to their type.
func (f Format) DequantizeRounded(r Row, dst []float32) error {
	if f.Mode != Affine || f.Type == Float32 {
		return f.Dequantize(r, dst)
	}
	if err := f.CheckRow(len(dst), r); err != nil {
		return err
	}
	for g := range len(dst) / f.Group {
		scale, bias := f.Type.At(r.Scales, g), f.Type.At(r.Biases, g)
		for i := g * f.Group; i < (g+1)*f.Group; i++ {
			dst[i] = f.Type.round(f.Type.round(scale*float32(Q(r.Raw, f.Bits, i))) + bias)
		}
	}
	return nil
}

// round is the number of the type nearest to v, to even of two.
func (t Type) round(v float32) float32 {
	switch t {
	case Float16:
		return float16.Float32(float16.FromFloat32(v))
	case BFloat16:
		return float16.FromBrain(float16.ToBrain(v))
	}
	return v
}

// Quantize writes src as an affine row, or one of small floats, as MLX's
// quantize does: in affine ones the edge of a group's range that is farther from
// zero is met exactly, and zero stays zero (mlx/backend/cpu/quantized.cpp, mlx
// 0.32). ErrUnsupported for other formats; ErrRow for values that are not finite, or too large for the
// type of the scales.
func (f Format) Quantize(src []float32, dst Row) error {
	if f.Mode != Affine && !f.BlockFloat() {
		return fmt.Errorf("quantise to %v: %w", f, ErrUnsupported)
	}
	sizes, err := f.Sizes(len(src))
	if err != nil {
		return err
	}
	if len(dst.Raw) != sizes.Raw || len(dst.Scales) != sizes.Scales || len(dst.Biases) != sizes.Biases {
		return f.misfit(len(src), dst, sizes)
	}
	if f.BlockFloat() {
		return f.quantizeBlocks(src, dst)
	}
	clear(dst.Raw)
	for g := range len(src) / f.Group {
		group := src[g*f.Group : (g+1)*f.Group]
		scale, bias := f.scaleOf(group)
		f.Type.Put(dst.Scales, g, scale)
		f.Type.Put(dst.Biases, g, bias)
		for i, v := range group {
			q := math.RoundToEven(float64((v - bias) / scale))
			if q != q {
				return fmt.Errorf("quantise to %v: group %d contains values that are not finite, or too large: %w", f, g, ErrRow)
			}
			PutQ(dst.Raw, f.Bits, g*f.Group+i, int(min(max(q, 0), float64(int(1)<<f.Bits-1))))
		}
	}
	return f.CheckRow(len(src), dst)
}

func (f Format) scaleOf(group []float32) (scale, bias float32) {
	const least = 1e-7
	low, high := slices.Min(group), slices.Max(group)
	scale = max((high-low)/float32(int(1)<<f.Bits-1), least)
	edge := high
	if abs(low) > abs(high) {
		edge = low
	} else {
		scale = -scale
	}
	q0 := float32(math.RoundToEven(float64(edge / scale)))
	if q0 == 0 {
		return scale, 0
	}
	return edge / q0, edge
}

func abs(v float32) float32 { return float32(math.Abs(float64(v))) }
