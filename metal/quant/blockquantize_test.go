//go:build !race

package quant_test

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
)

// TestSmallFloatsAreQuantizedAsMLXDoes: words and scales of the recorded row.
func TestSmallFloatsAreQuantizedAsMLXDoes(t *testing.T) {
	var src []float32
	for _, r := range record(t) {
		if r.Type == "float32" && r.Source != nil {
			src = make([]float32, len(r.Source)/4)
			for i := range src {
				src[i] = quant.Float32.At(r.Source, i)
			}
		}
	}
	for _, r := range recordedBlocks(t) {
		f := blockFormat(t, r.Mode)
		row, err := f.NewRow(len(src))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Quantize(src, row); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(row.Scales, r.Scales) || !bytes.Equal(row.Raw, r.Words) {
			t.Errorf("%v: scales\n%x, MLX's\n%x\nwords\n%x, MLX's\n%x", f, row.Scales, r.Scales, row.Raw, r.Words)
		}
	}
}

// TestSmallFloatsRoundToTheNearest number there is, ties to the even one, and
// refuse what has none.
func TestSmallFloatsRoundToTheNearest(t *testing.T) {
	for _, f := range quant.BlockFloats() {
		elements, _ := f.Tables()
		top := float32(6)
		if f.Mode == quant.MXFP8 {
			top = 448
		}
		src := make([]float32, f.Group)
		row, err := f.NewRow(f.Group)
		if err != nil {
			t.Fatal(err)
		}
		for step := range 4000 { // under a scale of 1
			v := top * float32(step) / 4000
			src[0], src[1], src[2] = top, v, -v
			if err := f.Quantize(src, row); err != nil {
				t.Fatal(err)
			}
			got, sign := elements[quant.Q(row.Raw, f.Bits, 1)], elements[quant.Q(row.Raw, f.Bits, 2)]
			for b := range 1 << (f.Bits - 1) {
				if e := elements[b]; math.Abs(float64(e-v)) < math.Abs(float64(got-v)) {
					t.Fatalf("%v: %v became %v, %v is nearer", f, v, got, e)
				}
			}
			if sign != -got {
				t.Fatalf("%v: %v became %v, its negative %v", f, v, got, sign)
			}
		}
		for _, v := range []float32{float32(math.NaN()), float32(math.Inf(1)), math.MaxFloat32} {
			src[0] = v
			if err := f.Quantize(src, row); (v == math.MaxFloat32 && f.Mode != quant.NVFP4) == (err != nil) || err != nil && !errors.Is(err, quant.ErrRow) {
				t.Errorf("%v: %v is answered by %v", f, v, err)
			}
		}
		clear(src)
		if err := f.Quantize(src, row); err != nil || f.Dequantize(row, src) != nil || src[0] != 0 {
			t.Errorf("%v: zeros became %v (%v)", f, src[:4], err)
		}
	}
}
