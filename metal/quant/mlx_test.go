//go:build !race

package quant_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
)

// recorded is what MLX made of one row (test/oracle/goldens/quant/make.sh).
type recorded struct {
	Type                          string
	Bits, Group                   int
	Source                        []byte // once for all formats of a type
	Words, Scales, Biases, Values []byte
}

func record(t *testing.T) []recorded {
	t.Helper()
	b, err := os.ReadFile("testdata/quant.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []recorded }
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	if want := 3 * len(quant.Bits()) * len(quant.Groups()); len(file.Cases) != want {
		t.Fatalf("%d formats are recorded, want %d", len(file.Cases), want)
	}
	return file.Cases
}

func (r recorded) format() quant.Format {
	return quant.AffineOf(r.Bits, r.Group, map[string]quant.Type{"float32": quant.Float32, "float16": quant.Float16, "bfloat16": quant.BFloat16}[r.Type])
}

func TestQuantizeGivesWhatMLXGives(t *testing.T) {
	var src []float32
	for _, r := range record(t) {
		f := r.format()
		if r.Source != nil {
			src = make([]float32, len(r.Source)/f.Type.Bytes())
			for i := range src {
				src[i] = f.Type.At(r.Source, i)
			}
		}
		row, err := f.NewRow(len(src))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Quantize(src, row); err != nil {
			t.Fatal(err)
		}
		for name, part := range map[string][2][]byte{"words": {row.Raw, r.Words}, "scales": {row.Scales, r.Scales}, "biases": {row.Biases, r.Biases}} {
			if !bytes.Equal(part[0], part[1]) {
				t.Errorf("%v: %s are\n%x, MLX's are\n%x", f, name, part[0], part[1])
			}
		}
	}
}

// TestDequantizeGivesWhatMLXGives: in float32 to the bit. With scales of 16
// bits MLX's processor code computes in their type and rounds the product and
// the sum, as DequantizeRounded does, while Dequantize only rounds to float32.
func TestDequantizeGivesWhatMLXGives(t *testing.T) {
	for _, r := range record(t) {
		f := r.format()
		row := quant.Row{Raw: r.Words, Scales: r.Scales, Biases: r.Biases}
		got := make([]float32, len(r.Values)/f.Type.Bytes())
		for name, dequantize := range map[string]func(quant.Row, []float32) error{"rounded": f.DequantizeRounded, "plain": f.Dequantize} {
			if err := dequantize(row, got); err != nil {
				t.Fatal(err)
			}
			for i, v := range got {
				if want := f.Type.At(r.Values, i); v != want && (name == "rounded" || f.Type == quant.Float32) {
					t.Errorf("%v, %s: element %d is %v, MLX's is %v", f, name, i, v, want)
					break
				}
			}
		}
	}
}
