//go:build !race

package quant_test

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
)

func TestEveryAffineFormatReadsWhatItWrote(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, bits := range quant.Bits() {
		for _, group := range quant.Groups() {
			for _, kind := range []quant.Type{quant.Float32, quant.Float16, quant.BFloat16} {
				f := quant.AffineOf(bits, group, kind)
				src, got := make([]float32, 2*group), make([]float32, 2*group)
				for i := range src {
					src[i] = float32(rng.NormFloat64())
				}
				src[group] = 0 // stays zero
				row, err := f.NewRow(len(src))
				if err != nil {
					t.Fatal(err)
				}
				if err := f.Quantize(src, row); err != nil {
					t.Fatal(err)
				}
				if err := f.Dequantize(row, got); err != nil {
					t.Fatal(err)
				}
				step := 8.0 / float64(int(1)<<bits-1)
				for i := range src {
					if d := math.Abs(float64(src[i] - got[i])); d > step+0.05 {
						t.Errorf("%v: element %d is %v, was %v", f, i, got[i], src[i])
					}
				}
			}
		}
	}
}

func TestPackedElementsLieInConsecutiveBits(t *testing.T) {
	for _, bits := range quant.Bits() {
		raw, want := make([]byte, 32*bits/8), make([]int, 32)
		var stream uint64
		for i := range want {
			want[i] = (i*37 + 11) % (1 << bits)
			quant.PutQ(raw, bits, i, want[i])
			if i*bits+bits <= 64 {
				stream |= uint64(want[i]) << (i * bits)
			}
		}
		for i := range want {
			if got := quant.Q(raw, bits, i); got != want[i] {
				t.Errorf("%d bits: element %d is %d, want %d", bits, i, got, want[i])
			}
		}
		for b := range min(8, len(raw)) {
			if bits*(64/bits) >= 8*(b+1) && raw[b] != byte(stream>>(8*b)) {
				t.Errorf("%d bits: byte %d is %#x, want %#x", bits, b, raw[b], byte(stream>>(8*b)))
			}
		}
	}
}

func TestWhatDoesNotFitIsRefused(t *testing.T) {
	for name, f := range map[string]quant.Format{
		"seven bits":            quant.AffineOf(7, 64, quant.Float16),
		"group of 16":           quant.AffineOf(4, 16, quant.Float16),
		"symmetric of 6 bits":   quant.SymmetricOf(6, 32, quant.Float16),
		"unknown mode":          {Mode: 9, Bits: 4, Group: 32},
		"unknown type":          quant.DenseOf(7),
		"dense with bits":       {Bits: 4},
		"symmetric group of 64": quant.SymmetricOf(4, 64, quant.Float16),
	} {
		if _, err := f.Sizes(128); !errors.Is(err, quant.ErrUnsupported) {
			t.Errorf("%s: error %v, want ErrUnsupported", name, err)
		}
	}
	f := quant.AffineOf(4, 64, quant.BFloat16)
	for _, n := range []int{0, -64, 65, 32} {
		if _, err := f.Sizes(n); !errors.Is(err, quant.ErrRow) {
			t.Errorf("row of %d: error %v, want ErrRow", n, err)
		}
	}
	row, err := f.NewRow(128)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.CheckRow(128, row); err != nil {
		t.Errorf("a row of zeros: %v", err)
	}
	for name, change := range map[string]func(*quant.Row){
		"short words":      func(r *quant.Row) { r.Raw = r.Raw[1:] },
		"short scales":     func(r *quant.Row) { r.Scales = r.Scales[2:] },
		"no biases":        func(r *quant.Row) { r.Biases = nil },
		"infinite scale":   func(r *quant.Row) { r.Scales = []byte{0, 0, 0x80, 0x7f} },
		"bias not finite":  func(r *quant.Row) { r.Biases = []byte{0xc0, 0xff, 0, 0} },
		"words of another": func(r *quant.Row) { r.Raw = append(r.Raw, 0) },
	} {
		bad := row
		change(&bad)
		if err := f.CheckRow(128, bad); !errors.Is(err, quant.ErrRow) {
			t.Errorf("%s: error %v, want ErrRow", name, err)
		}
	}
}

func TestFiniteLooksAtEveryNumber(t *testing.T) {
	for _, kind := range []quant.Type{quant.Float32, quant.Float16, quant.BFloat16} {
		for h := range 1 << 16 {
			raw := make([]byte, kind.Bytes()) // of a float32 the upper half
			raw[len(raw)-2], raw[len(raw)-1] = byte(h), byte(h>>8)
			v := float64(kind.At(raw, 0))
			if got, want := kind.Finite(raw), !math.IsInf(v, 0) && !math.IsNaN(v); got != want {
				t.Fatalf("%v: %v is finite: %v", kind, v, got)
			}
			if got := kind.Finite(bytes.Repeat(raw, 8)); got != kind.Finite(raw) {
				t.Fatalf("%v: eight times %v are finite: %v", kind, v, got)
			}
		}
		for n := range 20 {
			raw := make([]byte, n*kind.Bytes())
			for i := range n {
				kind.Put(raw, i, -65504)
			}
			if !kind.Finite(raw) {
				t.Errorf("%v: %d numbers are not finite", kind, n)
			}
			for i := range n {
				kind.Put(raw, i, float32(math.Inf(-1)))
				if kind.Finite(raw) {
					t.Errorf("%v: infinity at %d of %d is not seen", kind, i, n)
				}
				kind.Put(raw, i, 1)
			}
		}
	}
}

func TestWhatCannotBeQuantisedIsRefused(t *testing.T) {
	f := quant.AffineOf(4, 32, quant.Float16)
	row, err := f.NewRow(32)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]float64{"not a number": math.NaN(), "infinite": math.Inf(-1), "too large for the scale": 3e7} {
		src := make([]float32, 32)
		src[5] = float32(v)
		if err := f.Quantize(src, row); !errors.Is(err, quant.ErrRow) {
			t.Errorf("%s: error %v, want ErrRow", name, err)
		}
	}
	if err := f.Quantize(make([]float32, 31), row); !errors.Is(err, quant.ErrRow) {
		t.Errorf("part of a group: error %v, want ErrRow", err)
	}
	if err := quant.SymmetricOf(4, 32, quant.Float16).Quantize(make([]float32, 32), row); !errors.Is(err, quant.ErrUnsupported) {
		t.Errorf("symmetric: error %v, want ErrUnsupported", err)
	}
}
