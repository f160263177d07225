//go:build !race

package weights_test

import (
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// TestTheFactsOfAHybrid: keys and values for attention layers, one float32
// state for each recurrent layer; other parts of the model do not count as
// weights.
func TestTheFactsOfAHybrid(t *testing.T) {
	c := tinymodel.Default()
	c.Family, c.Layers = tinymodel.Qwen35, 5
	c.Hybrid = tinymodel.Hybrid{Interval: 4, KeyHeads: 2, KeySize: 16, ValueHeads: 4, ValueSize: 8, Taps: 4, Rotary: 0.5}
	var bytes []int64
	for _, l := range []tinymodel.Layout{
		{Matrices: quant.DenseOf(quant.BFloat16)}, {Matrices: quant.DenseOf(quant.BFloat16), Extras: true}, {Matrices: quant.AffineOf(4, 32, quant.BFloat16), Extras: true},
	} {
		path := filepath.Join(t.TempDir(), "model")
		if err := tinymodel.WriteFolder(path, c, l); err != nil {
			t.Fatal(err)
		}
		f, err := weights.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		facts, err := f.Facts()
		if err != nil {
			t.Fatal(err)
		}
		// A convolution remembers 3 rows of 2 x 32 and 32; a state is 4 matrices of
		// 8 x 16; four layers of five recur.
		if facts.GrowingLayers != 1 || facts.RecurrentLayers != 4 || facts.RecurrentStateBytes != 4*4*(3*96+4*8*16) || facts.RecurrentSize != 128 || facts.KeyValueElementBytes != 2 {
			t.Errorf("facts %+v", facts)
		}
		if l.Matrices.Quantized() == f.NormsLessOne() {
			t.Errorf("norms of %v: less one is %v", l.Matrices, f.NormsLessOne())
		}
		bytes = append(bytes, facts.WeightBytes)
	}
	if bytes[0] != bytes[1] || bytes[2] >= bytes[0] {
		t.Errorf("weights have %d bytes, with other parts %d, packed %d", bytes[0], bytes[1], bytes[2])
	}
}
