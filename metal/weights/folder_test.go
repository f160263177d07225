//go:build !race

package weights_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

func TestDenseFoldersAreReadAsTheyAreWritten(t *testing.T) {
	for _, kind := range []quant.Type{quant.Float32, quant.Float16, quant.BFloat16} {
		for _, shards := range []int{0, 3} {
			t.Run(fmt.Sprintf("%v in %d shards", kind, shards), func(t *testing.T) {
				m := newFolder("qwen3")
				for name, s := range m.files[oneFile] {
					m.dense(strings.TrimSuffix(name, ".weight"), kind, s.shape...)
				}
				if shards > 0 {
					m.shards(shards)
				}
				f := openFolder(t, m)
				if f.Precision() != kind || f.Header() != nil || f.Metadata != nil || f.Folder() == nil || f.Dim.Architecture != "qwen3" {
					t.Errorf("precision %v, header %v, architecture %s", f.Precision(), f.Header(), f.Dim.Architecture)
				}
				if len(f.Entries()) != 13 {
					t.Errorf("%d tensors, want 13", len(f.Entries()))
				}
				for _, e := range f.Entries() {
					for r, row := range matrixOf(t, f, e.Path) {
						for i, got := range row {
							if want := value(strings.TrimSuffix(e.Path, ".weight"), r*e.Columns()+i); got != want {
								t.Fatalf("%s[%d, %d] is %v, want %v", e.Path, r, i, got, want)
							}
						}
					}
				}
			})
		}
	}
}

func TestQuantisedLayersAreReadInEveryFormat(t *testing.T) {
	const path = "model.layers.0.mlp.down_proj"
	for _, bits := range quant.Bits() {
		for _, group := range quant.Groups() {
			for _, kind := range []quant.Type{quant.Float32, quant.Float16, quant.BFloat16} {
				m := newFolder("llama")
				m.quantized(path, bits, group, kind)
				f := openFolder(t, m)
				e, _ := f.Entry(path + ".weight")
				want := quant.AffineOf(bits, group, kind)
				if e.Format != want || !slices.Equal(e.Shape, []int64{tinyHidden, tinyInner}) || e.Stored() != want.String() {
					t.Fatalf("%v: entry %+v", want, e)
				}
				sizes, err := want.Sizes(tinyInner)
				if err != nil || e.Bytes != int64(sizes.Sum()*tinyHidden) {
					t.Errorf("%v: %d bytes, want %d rows of %d", want, e.Bytes, tinyHidden, sizes.Sum())
				}
				for r, row := range matrixOf(t, f, path+".weight") {
					for i, got := range row {
						if want := wantQuantized(bits, group, r, i); got != want {
							t.Fatalf("%d bits, group %d: [%d, %d] is %v, want %v", bits, group, r, i, got, want)
						}
					}
				}
			}
		}
	}
}

func TestLayersMayDifferInHowTheyAreQuantised(t *testing.T) {
	const down, gate, up, query = "model.layers.0.mlp.down_proj", "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_proj"
	m := newFolder("llama")
	m.quantized(down, 4, 64, quant.BFloat16)
	m.quantized(gate, 8, 32, quant.BFloat16)
	m.quantized(up, 3, 32, quant.BFloat16)
	m.quantized("model.embed_tokens", 4, 64, quant.BFloat16)
	m.config["quantization"] = map[string]any{"bits": 4, "group_size": 64, "mode": "affine",
		gate:                 map[string]any{"bits": 8, "group_size": 32}, // named
		down:                 true,                                        // named, as the whole
		query:                false,                                       // named, not quantised
		"model.embed_tokens": map[string]any{},                            // the defaults of MLX
		// up is not named: it is inferred from the shapes, as in mlx-lm
	}
	m.config["quantization_config"] = map[string]any{"quant_method": "ignored"}
	f := openFolder(t, m)
	for path, want := range map[string]quant.Format{
		down: quant.AffineOf(4, 64, quant.BFloat16), gate: quant.AffineOf(8, 32, quant.BFloat16), up: quant.AffineOf(3, 32, quant.BFloat16),
		query: quant.DenseOf(quant.Float32), "model.embed_tokens": quant.AffineOf(4, 64, quant.BFloat16),
	} {
		if e, _ := f.Entry(path + ".weight"); e.Format != want {
			t.Errorf("%s is %v, want %v", path, e.Format, want)
		}
	}
	if f.Precision() != quant.BFloat16 {
		t.Errorf("precision %v, want that of the scales", f.Precision())
	}
}

func TestFactsOfAFolder(t *testing.T) {
	m := newFolder("llama")
	for _, p := range []string{"gate_proj", "up_proj", "down_proj"} {
		m.quantized("model.layers.0.mlp."+p, 8, 64, quant.Float16)
	}
	m.quantized("model.embed_tokens", 4, 64, quant.Float16)
	for name, s := range m.files[oneFile] {
		if s.kind == "F32" {
			m.dense(strings.TrimSuffix(name, ".weight"), quant.BFloat16, s.shape...)
		}
	}
	m.set("model.layers.0.self_attn.rotary_emb.inv_freq", stored{kind: "F32", shape: []int{8}, data: make([]byte, 32)})
	f := openFolder(t, m)
	facts, err := f.Facts()
	if err != nil {
		t.Fatal(err)
	}
	var used int64
	for name, s := range m.files[oneFile] {
		if !strings.Contains(name, "inv_freq") {
			used += int64(len(s.data))
		}
	}
	if facts.Quantization != "affine 8-bit group 64" || facts.WeightBytes != used || facts.Layers != 1 || facts.KeyValueElementBytes != 4 ||
		facts.HeadSize != tinyHead || facts.ContextTokens != 256 || facts.Architecture != "llama" {
		t.Errorf("facts are %+v, want %d bytes of weights", facts, used)
	}
	st, err := os.Stat(filepath.Join(f.Folder().Path(), oneFile))
	if err != nil || f.Bytes() != st.Size() {
		t.Errorf("%d bytes on disk, want %d", f.Bytes(), st.Size())
	}
}

func TestTheHeadFollowsTheConfiguration(t *testing.T) {
	for name, c := range map[string]struct {
		tie     any
		head    bool
		want    error
		hasHead bool
	}{
		"tied, without a head":             {tie: true},
		"tied, with a copy, is still tied": {tie: true, head: true},
		"its own head":                     {tie: false, head: true, hasHead: true},
		"its own head, but none is there":  {tie: false, want: weights.ErrMissing},
		"not said, with a head":            {head: true, hasHead: true},
		"not said, without a head":         {},
		"said in text":                     {tie: "yes", want: weights.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFolder("llama")
			m.config["tie_word_embeddings"] = c.tie
			if c.head {
				m.dense("lm_head", quant.Float32, tinyVocabulary, tinyHidden)
			}
			f, err := weights.Open(m.write(t))
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if err == nil {
				if _, ok := f.Entry("lm_head.weight"); ok != c.hasHead {
					t.Errorf("a head: %v, want %v", ok, c.hasHead)
				}
				f.Close()
			}
		})
	}
}
