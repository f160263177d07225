//go:build !race

package float16

import (
	"math"
	"testing"
)

func TestEveryHalfSurvivesTheRoundTrip(t *testing.T) {
	for h := range 1 << 16 {
		f := Float32(uint16(h))
		if math.IsNaN(float64(f)) {
			if back := FromFloat32(f); back&0x7c00 != 0x7c00 || back&0x3ff == 0 {
				t.Fatalf("NaN %#04x came back as %#04x", h, back)
			}
			continue
		}
		if back := FromFloat32(f); back != uint16(h) {
			t.Fatalf("%#04x reads %v and comes back as %#04x", h, f, back)
		}
	}
}

func TestKnownValues(t *testing.T) {
	for h, want := range map[uint16]float32{
		0x3c00: 1, 0xc000: -2, 0x7bff: 65504, 0x0400: 0x1p-14, 0x0001: 0x1p-24, 0x3555: 0.333251953125,
	} {
		if got := Float32(h); got != want {
			t.Errorf("Float32(%#04x) = %v, want %v", h, got, want)
		}
	}
	for f, want := range map[float32]uint16{
		1 + 0x1p-11: 0x3c00, 1 + 3*0x1p-11: 0x3c02, 65519: 0x7bff, 65520: 0x7c00, 1e9: 0x7c00, 0x1p-25: 0, 0x1.8p-24: 2,
	} {
		if got := FromFloat32(f); got != want {
			t.Errorf("FromFloat32(%v) = %#04x, want %#04x", f, got, want)
		}
	}
	if got := ToBrain(FromBrain(0x4049)); got != 0x4049 {
		t.Errorf("bfloat16 round trip gave %#04x", got)
	}
	if got := ToBrain(1 + 0x1p-8); got != 0x3f80 {
		t.Errorf("ToBrain rounds a tie to %#04x, want even", got)
	}
}
