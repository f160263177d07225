//go:build !race

package weights_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/float16"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// recordedBlocks is what the gguf package read (test/oracle/goldens/kquants).
type recordedBlocks struct {
	Type        string
	Raw, Values []byte
}

func blocks(t testing.TB) map[weights.Type]recordedBlocks {
	t.Helper()
	b, err := os.ReadFile("testdata/blocks.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []recordedBlocks
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	out := map[weights.Type]recordedBlocks{}
	for _, r := range list {
		for _, kind := range weights.Types() {
			if kind.String() == r.Type {
				out[kind] = r
			}
		}
	}
	return out
}

func (r recordedBlocks) values() []float32 {
	out := make([]float32, len(r.Values)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(r.Values[4*i:]))
	}
	return out
}

// step is how far two values of a group lie apart at least: what the larger of
// its two scales says.
func step(kind weights.Type, raw []byte, group int) float64 {
	size, _ := kind.RowBytes(256)
	b := raw[group/8*int(size):]
	half := func(at int) float64 {
		return math.Abs(float64(float16.Float32(binary.LittleEndian.Uint16(b[at:]))))
	}
	if kind == weights.Q2_K {
		return half(80) * float64(max(b[2*(group%8)]&15, b[2*(group%8)+1]&15))
	}
	of := func(i int) float64 { return math.Abs(float64(int8(b[192+2*(group%8)+i]))) }
	return half(208) * max(of(0), of(1))
}

// TestBlocksMeanWhatTheGGUFPackageReads: bit by bit, but for the two types that
// no layout holds. Of these Q6_K is off by an eighth of the file's own step at
// most, and Q2_K by half a 255th of its group's range.
func TestBlocksMeanWhatTheGGUFPackageReads(t *testing.T) {
	all := blocks(t)
	for _, kind := range []weights.Type{weights.Q5_0, weights.Q5_1, weights.Q2_K, weights.Q3_K, weights.Q4_K, weights.Q5_K, weights.Q6_K} {
		t.Run(kind.String(), func(t *testing.T) {
			r, ok := all[kind]
			if !ok {
				t.Fatal("not recorded")
			}
			want := r.values()
			got := make([]float32, len(want))
			if err := kind.Dequantize(r.Raw, got); err != nil {
				t.Fatal(err)
			}
			for i, v := range got {
				bound := 0.0
				if group := want[i/32*32:][:32]; kind == weights.Q6_K {
					bound = step(kind, r.Raw, i/32)/8*(64.0/63.75) + 1e-6*float64(slices.Max(group)-slices.Min(group))
				} else if kind == weights.Q2_K {
					bound = float64(slices.Max(group)-slices.Min(group)) / 509.9
				}
				if d := math.Abs(float64(v) - float64(want[i])); !(d <= bound) {
					t.Fatalf("element %d is %v, want %v (off by %v, at most %v)", i, v, want[i], d, bound)
				}
			}
			if err := kind.Dequantize(r.Raw[:len(r.Raw)-1], got); err == nil {
				t.Error("a short row was read")
			}
		})
	}
}

// blockFile is a tiny model in a type, whose embedding, values and ends of
// feed-forwards are finer.
func blockFile(t *testing.T, kind, finer weights.Type) string {
	t.Helper()
	c := tinymodel.Default()
	c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize, c.Type, c.Finer = 1, 256, 256, 8, 2, 32, kind, finer
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	return path
}

func openModel(t *testing.T, path string) *weights.File {
	t.Helper()
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestWhatIsConvertedIsMeasured on a mixed file: by the values of the gguf
// package's definition, which Exact types are proven against above.
func TestWhatIsConvertedIsMeasured(t *testing.T) {
	path := blockFile(t, weights.Q4_K, weights.Q6_K)
	f := openModel(t, path)
	before := f.Conversions()
	if len(before) != 1 || before[0].From != weights.Q6_K || before[0].Read || before[0].Tensors != 3 {
		t.Fatalf("before reading %+v, want three tensors of Q6_K", before)
	}
	if err := f.Measure(context.Background()); err != nil {
		t.Fatal(err)
	}
	c := f.Conversions()[0]
	var want, largest float32
	var held int64
	for _, e := range f.Entries() {
		if e.Stored() != "Q6_K" {
			continue
		}
		held += e.Held()
		w, l := worstOfQ6K(t, path, f, e)
		want, largest = max(want, w), max(largest, l)
	}
	if !c.Read || c.Worst != want || c.Largest != largest || want == 0 || c.Held != held || c.Held <= c.Bytes {
		t.Errorf("measured %+v, want off by %v of %v in %d bytes", c, want, largest, held)
	}
	if s := c.String(); !strings.Contains(s, "Q6_K is loaded as affine 8-bit group 32 float32 (3 tensors), error at most ") {
		t.Errorf("it says %q", s)
	}
	exact := openModel(t, blockFile(t, weights.Q5_K, 0))
	if err := exact.Measure(context.Background()); err != nil || len(exact.Conversions()) != 0 {
		t.Errorf("a file that is kept as it is says %+v, %v", exact.Conversions(), err)
	}
}

// worstOfQ6K compares rows with the definition, element by element.
func worstOfQ6K(t *testing.T, path string, f *weights.File, e weights.Entry) (worst, largest float32) {
	t.Helper()
	tensor, _ := f.Header().Tensor(e.Name)
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rowBytes, columns := int(tensor.Bytes)/e.Rows(), e.Columns()
	all := map[int][]float32{}
	if err := f.Rows(context.Background(), e, func(row int, r quant.Row) error {
		all[row] = make([]float32, columns)
		return e.Format.Dequantize(r, all[row])
	}); err != nil {
		t.Fatal(err)
	}
	for row := range e.Rows() {
		raw := file[int(tensor.Offset)+row*rowBytes:]
		for i, got := range all[row] {
			b, at := raw[i/256*210:], i%256
			low := b[at/128*64+at%64] >> (at / 64 % 2 * 4) & 15
			high := b[128+at/128*32+at%32] >> (at % 128 / 32 * 2) & 3
			want := float16.Float32(binary.LittleEndian.Uint16(b[208:])) * float32(int8(b[192+at/16])) * float32(int(low|high<<4)-32)
			worst, largest = max(worst, max(got-want, want-got)), max(largest, max(want, -want))
		}
	}
	return worst, largest
}

// TestFactsCountWhatIsHeld and not what lies in the file.
func TestFactsCountWhatIsHeld(t *testing.T) {
	for _, kind := range []weights.Type{weights.Q5_0, weights.Q5_1, weights.Q2_K, weights.Q3_K, weights.Q4_K, weights.Q5_K, weights.Q6_K} {
		f := openModel(t, blockFile(t, kind, 0))
		facts, err := f.Facts()
		if err != nil {
			t.Fatal(err)
		}
		var held int64
		for _, e := range f.Entries() {
			if err := f.Rows(context.Background(), e, func(_ int, r quant.Row) error {
				held += int64(len(r.Raw) + len(r.Scales) + len(r.Biases))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if facts.WeightBytes != held {
			t.Errorf("%v: the facts say %d bytes, rows have %d", kind, facts.WeightBytes, held)
		}
	}
}

// TestOtherTypesAreRefusedByName: the error lists the supported ones.
func TestOtherTypesAreRefusedByName(t *testing.T) {
	for number, name := range map[uint32]string{18: `"IQ3_XXS"`, 23: `"IQ4_XS"`, 34: `"TQ1_0"`, 9: `"Q8_1"`, 99: `"type 99"`} {
		_, err := read(header(1, 0).tensor("t", number, 0, 256).pad(400).Bytes())
		if !errors.Is(err, weights.ErrUnsupported) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0") {
			t.Errorf("type %d: %v", number, err)
		}
	}
}

// FuzzBlocks: any block is read as finite numbers, near those of the
// definition, or refused.
func FuzzBlocks(f *testing.F) {
	kinds := []weights.Type{weights.Q5_0, weights.Q5_1, weights.Q2_K, weights.Q3_K, weights.Q4_K, weights.Q5_K, weights.Q6_K}
	for kind, r := range blocks(f) {
		size, _ := kind.RowBytes(256)
		f.Add(uint8(slices.Index(kinds, kind)), r.Raw[:size])
	}
	f.Add(uint8(6), bytes.Repeat([]byte{0x7c}, 210)) // an infinite scale
	f.Fuzz(func(t *testing.T, which uint8, raw []byte) {
		kind := kinds[int(which)%len(kinds)]
		size, _ := kind.RowBytes(256)
		if int64(len(raw)) != size {
			raw = append(raw, make([]byte, size)...)[:size]
		}
		values := make([]float32, 256)
		if err := kind.Dequantize(raw, values); err != nil {
			if !errors.Is(err, weights.ErrInvalid) {
				t.Fatalf("refused by %v", err)
			}
			return
		}
		for i, v := range values {
			if v-v != 0 {
				t.Fatalf("%v: element %d is %v", kind, i, v)
			}
		}
	})
}
