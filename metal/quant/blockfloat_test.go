//go:build !race

package quant_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
)

// blocks is what MLX made of one row in a format of small floats
// (test/oracle/goldens/quant/make.sh).
type blocks struct {
	Mode                  string
	Words, Scales, Values []byte
	// Elements and SHA256 describe rows with every combination of element and
	// scale.
	Elements int
	SHA256   string
}

func recordedBlocks(t *testing.T) []blocks {
	t.Helper()
	b, err := os.ReadFile("testdata/blockfloat.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []blocks }
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) != len(quant.BlockFloats()) {
		t.Fatalf("%d formats are recorded, want %d", len(file.Cases), len(quant.BlockFloats()))
	}
	return file.Cases
}

func blockFormat(t *testing.T, mode string) quant.Format {
	t.Helper()
	f, ok := quant.BlockFloatNamed(mode)
	if !ok || f.Check() != nil {
		t.Fatalf("there is no format of small floats %q", mode)
	}
	return f
}

func TestSmallFloatsReadAsMLXReadsThem(t *testing.T) {
	for _, r := range recordedBlocks(t) {
		f := blockFormat(t, r.Mode)
		got := make([]float32, len(r.Values)/4)
		if err := f.Dequantize(quant.Row{Raw: r.Words, Scales: r.Scales}, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(asBytes(got), r.Values) {
			t.Errorf("%v: values are not those of MLX", f)
		}
	}
}

// everyElement is a row of every combination of element and scale, without
// those that are not numbers.
func everyElement(f quant.Format) quant.Row {
	var row quant.Row
	for s := range 256 {
		if f.Mode != quant.NVFP4 && s == 255 || f.Mode == quant.NVFP4 && s%128 == 127 {
			continue
		}
		if f.Bits == 4 {
			for i := range f.Group / 2 {
				row.Raw = append(row.Raw, byte(i%8*2+(i%8*2+1)<<4))
			}
			row.Scales = append(row.Scales, byte(s))
			continue
		}
		for b := range 256 {
			if b%128 == 127 {
				b = 0
			}
			row.Raw = append(row.Raw, byte(b))
		}
		for range 256 / f.Group {
			row.Scales = append(row.Scales, byte(s))
		}
	}
	return row
}

func TestEveryElementBesideEveryScaleReadsAsMLXReadsIt(t *testing.T) {
	for _, r := range recordedBlocks(t) {
		f := blockFormat(t, r.Mode)
		row := everyElement(f)
		got := make([]float32, len(row.Raw)*8/f.Bits)
		if err := f.Dequantize(row, got); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(asBytes(got))
		if len(got) != r.Elements || hex.EncodeToString(sum[:]) != r.SHA256 {
			t.Errorf("%v: %d elements with the digest %x, MLX's are %d with %s", f, len(got), sum, r.Elements, r.SHA256)
		}
	}
}

func asBytes(v []float32) []byte {
	var out []byte
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
	}
	return out
}

func TestSmallFloatsThatAreNoNumbersAreRefused(t *testing.T) {
	for _, f := range quant.BlockFloats() {
		for _, n := range []int{f.Group, 5 * f.Group} { // within eight bytes and beyond
			for _, b := range []byte{127, 254, 255} {
				for at := range n / f.Group {
					row, err := f.NewRow(n)
					if err != nil {
						t.Fatal(err)
					}
					row.Scales[at] = b
					isNumber := f.Mode == quant.NVFP4 && b == 254 || f.Mode != quant.NVFP4 && b != 255
					wantRow(t, fmt.Sprintf("%v, scale %d of %d is %d", f, at, n/f.Group, b), f.CheckRow(n, row), isNumber)
				}
				row, err := f.NewRow(n)
				if err != nil {
					t.Fatal(err)
				}
				for _, at := range []int{0, len(row.Raw) - 1, len(row.Raw) / 2} {
					clear(row.Raw)
					row.Raw[at] = b
					wantRow(t, fmt.Sprintf("%v, byte %d is %d", f, at, b), f.CheckRow(n, row), f.Bits == 4 || b == 254)
				}
			}
		}
	}
}

func wantRow(t *testing.T, what string, err error, good bool) {
	t.Helper()
	if good && err != nil || !good && !errors.Is(err, quant.ErrRow) {
		t.Errorf("%s: error %v, good is %v", what, err, good)
	}
}

func TestSmallFloatsHaveOneShapeEach(t *testing.T) {
	for name, f := range map[string]quant.Format{
		"mxfp4 by 16":      {Mode: quant.MXFP4, Bits: 4, Group: 16, Type: quant.BFloat16},
		"mxfp4 of 8 bits":  {Mode: quant.MXFP4, Bits: 8, Group: 32, Type: quant.BFloat16},
		"nvfp4 by 32":      {Mode: quant.NVFP4, Bits: 4, Group: 32, Type: quant.BFloat16},
		"mxfp8 of float16": {Mode: quant.MXFP8, Bits: 8, Group: 32, Type: quant.Float16},
		"an unknown mode":  {Mode: quant.NVFP4 + 1, Bits: 4, Group: 32, Type: quant.BFloat16},
	} {
		if _, err := f.Sizes(128); !errors.Is(err, quant.ErrUnsupported) {
			t.Errorf("%s: error %v, want ErrUnsupported", name, err)
		}
	}
	for _, f := range quant.BlockFloats() {
		if err := f.Quantize(make([]float32, 64), quant.Row{}); !errors.Is(err, quant.ErrRow) {
			t.Errorf("quantise to %v: error %v, want ErrRow", f, err)
		}
		row, err := f.NewRow(64)
		if err != nil {
			t.Fatal(err)
		}
		row.Biases = []byte{0}
		wantRow(t, f.String()+" with a bias", f.CheckRow(64, row), false)
		if _, err := f.Sizes(f.Group + 8); !errors.Is(err, quant.ErrRow) {
			t.Errorf("%v: part of a group: error %v, want ErrRow", f, err)
		}
	}
}
