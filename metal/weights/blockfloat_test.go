//go:build !race

package weights_test

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

// smallFloats replaces a matrix by words and scales of a byte.
func (m *modelFolder) smallFloats(path string, f quant.Format) {
	shape := m.files[oneFile][path+".weight"].shape
	rows, cols := shape[0], shape[1]
	var words, scales []byte
	for r := range rows {
		row := smallRow(f, r, cols)
		words, scales = append(words, row.Raw...), append(scales, row.Scales...)
	}
	m.set(path+".weight", stored{kind: "U32", shape: []int{rows, cols * f.Bits / 32}, data: words})
	m.set(path+".scales", stored{kind: "U8", shape: []int{rows, cols / f.Group}, data: scales})
	if m.config["quantization"] == nil {
		m.config["quantization"] = map[string]any{"bits": f.Bits, "group_size": f.Group, "mode": f.String()}
	}
}

// smallRow is row r of what smallFloats writes.
func smallRow(f quant.Format, r, cols int) quant.Row {
	row, err := f.NewRow(cols)
	if err != nil {
		panic(err)
	}
	for i := range row.Raw {
		row.Raw[i] = byte(r+5*i) & 0x7e
	}
	for g := range row.Scales {
		row.Scales[g] = byte(40 + (r+g)%20)
	}
	return row
}

func TestSmallFloatsAreReadHoweverTheyAreNamed(t *testing.T) {
	const up, down = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"
	for _, f := range quant.BlockFloats() {
		whole := map[string]any{"bits": f.Bits, "group_size": f.Group, "mode": f.String()}
		affine := map[string]any{"bits": 4, "group_size": 64}
		for name, quantization := range map[string]map[string]any{
			"as all":         whole,
			"by its shapes":  affine,
			"by path":        {"bits": 4, "group_size": 64, down: whole},
			"by a mode":      {"bits": 4, "group_size": 64, down: map[string]any{"mode": f.String()}},
			"by path, twice": {"bits": f.Bits, "group_size": f.Group, "mode": f.String(), down: true},
		} {
			m := newFolder("llama")
			m.smallFloats(down, f)
			m.quantized(up, 4, 64, quant.Float16) // a neighbor that is not named
			m.config["quantization"] = quantization
			file := openFolder(t, m)
			e, _ := file.Entry(down + ".weight")
			if e.Format != f || e.Stored() != f.String() {
				t.Errorf("%v %s: format %v, stored as %s", f, name, e.Format, e.Stored())
			}
			got := matrixOf(t, file, down+".weight")
			want := make([]float32, tinyInner)
			for r := range got {
				if err := f.Dequantize(smallRow(f, r, tinyInner), want); err != nil {
					t.Fatal(err)
				}
				for i := range want {
					if got[r][i] != want[i] {
						t.Fatalf("%v %s: element %d of row %d is %v, want %v", f, name, i, r, got[r][i], want[i])
					}
				}
			}
			if e, _ := file.Entry(up + ".weight"); e.Format != quant.AffineOf(4, 64, quant.Float16) {
				t.Errorf("%v %s: the neighbor is %v", f, name, e.Format)
			}
		}
	}
}

// A scale for all groups of a matrix, or a key that no layer has, would change its values.
func TestUnknownKeysOfQuantisedLayersAreRefused(t *testing.T) {
	const down = "model.layers.0.mlp.down_proj"
	f, _ := quant.BlockFloatNamed("nvfp4")
	for name, c := range map[string]struct {
		whole map[string]any
		layer map[string]any
		says  string
	}{
		"one scale for a layer": {layer: map[string]any{"mode": "nvfp4", "global_scale": true}, says: `key "global_scale" is not supported`},
		"one scale for all":     {whole: map[string]any{"global_scale": true}, says: `key "global_scale" is not supported`},
		"another key":           {layer: map[string]any{"mode": "nvfp4", "zero_point": 8}, says: `key "zero_point" is not supported`},
		"keys without effect":   {whole: map[string]any{"global_scale": false}, layer: map[string]any{"mode": "nvfp4", "global_scale": false}},
	} {
		m := newFolder("llama")
		m.smallFloats(down, f)
		all := map[string]any{"bits": f.Bits, "group_size": f.Group, "mode": f.String()}
		maps.Copy(all, c.whole)
		if c.layer != nil {
			all[down] = c.layer
		}
		m.config["quantization"] = all
		file, err := weights.Open(m.write(t))
		if err == nil {
			file.Close()
		}
		if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, weights.ErrUnsupported) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Words and scales take what they take on disk on every back end: nothing in
// them is ever widened.
func TestSmallFloatsTakeWhatTheyTakeOnDisk(t *testing.T) {
	for _, f := range quant.BlockFloats() {
		m := newFolder("llama")
		for _, path := range []string{"q_proj", "k_proj", "v_proj", "o_proj"} {
			m.smallFloats("model.layers.0.self_attn."+path, f)
		}
		for _, path := range []string{"gate_proj", "up_proj", "down_proj"} {
			m.smallFloats("model.layers.0.mlp."+path, f)
		}
		m.smallFloats("model.embed_tokens", f)
		file := openFolder(t, m)
		var bytes int64
		for _, e := range file.Entries() {
			bytes += e.Bytes
		}
		facts, err := file.Facts()
		if err != nil {
			t.Fatal(err)
		}
		if facts.WeightBytes != bytes || facts.WideWeightBytes != 0 || facts.Quantization != f.String() {
			t.Errorf("%v: %d bytes, %d where they are wide, quantisation %q; want %d, none, %v", f, facts.WeightBytes, facts.WideWeightBytes, facts.Quantization, bytes, f)
		}
		if facts.KeyValueElementBytes != 4 { // with norms of float32
			t.Errorf("%v: %d bytes an element, want 4", f, facts.KeyValueElementBytes)
		}
		if got := file.Precision(); got != quant.BFloat16 {
			t.Errorf("%v: precision %v, want bfloat16", f, got)
		}
	}
}
