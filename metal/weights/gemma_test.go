//go:build !race

package weights_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// gemma has two layers under a window and one that sees everything.
func gemma() tinymodel.Config {
	c := tinymodel.Default()
	c.Family, c.Type, c.Layers, c.Window, c.Pattern = tinymodel.Gemma3, weights.F32, 3, 48, 3
	return c
}

// TestGemmaSaysTheSameInAFileAndAFolder.
func TestGemmaSaysTheSameInAFileAndAFolder(t *testing.T) {
	c, dir := gemma(), t.TempDir()
	c.LocalTheta, c.Scaling = 2e4, tinymodel.Scaling{Kind: "linear", Factor: 8}
	for name, write := range map[string]func(path string) error{
		"gguf": func(path string) error { return tinymodel.Write(path, c) },
		"hf": func(path string) error {
			return tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)})
		},
		"modern": func(path string) error {
			return tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16), Modern: true})
		},
	} {
		path := filepath.Join(dir, name)
		if err := write(path); err != nil {
			t.Fatal(err)
		}
		f, err := weights.Open(path)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer f.Close()
		d := f.Dim
		if d.Window != 48 || d.WindowOf(0) != 48 || d.WindowOf(1) != 48 || d.WindowOf(2) != 0 || d.LocalRope == nil || d.LocalRope.Theta != 2e4 ||
			d.LocalRope.Linear != 1 || d.Rope.Linear != 8 || d.EmbedScale != 8 || d.ScoreScale() != 0.25 {
			t.Errorf("%s: dimensions %+v, local rope %+v", name, d, d.LocalRope)
		}
		for path, gguf := range map[string]string{
			"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
			"self_attn.q_norm": "attn_q_norm",
		} {
			e, ok := f.Entry("model.layers.1." + path + ".weight")
			if !ok || name == "gguf" && e.Name != "blk.1."+gguf+".weight" {
				t.Errorf("%s: %s is %+v", name, path, e)
			}
		}
		facts, err := f.Facts()
		if err != nil || facts.GrowingLayers != 1 || facts.WindowLayers != 2 || facts.WindowTokens != 48 {
			t.Errorf("%s: facts %+v (%v)", name, facts, err)
		}
	}
}

// TestGemmaInFloat16IsComputedInFloat32: what it adds up does not fit.
func TestGemmaInFloat16IsComputedInFloat32(t *testing.T) {
	for kind, want := range map[quant.Type]quant.Type{quant.Float16: quant.Float32, quant.BFloat16: quant.BFloat16, quant.Float32: quant.Float32} {
		for _, format := range []quant.Format{quant.DenseOf(kind), quant.AffineOf(4, 32, kind)} {
			path := filepath.Join(t.TempDir(), "model")
			if err := tinymodel.WriteFolder(path, gemma(), tinymodel.Layout{Matrices: format}); err != nil {
				t.Fatal(err)
			}
			f, err := weights.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			facts, err := f.Facts()
			if err != nil || f.Precision() != want || facts.KeyValueElementBytes != int64(want.Bytes()) {
				t.Errorf("%v: precision %v, elements of %d bytes (%v); want %v", format, f.Precision(), facts.KeyValueElementBytes, err, want)
			}
			if wide := facts.WideWeightBytes > facts.WeightBytes; wide != (kind == quant.Float16) {
				t.Errorf("%v: %d bytes of weights, %d as they are computed with", format, facts.WeightBytes, facts.WideWeightBytes)
			}
		}
	}
}

// TestGemmaInGGUFIsReadAsLlamaCppReadsIt, which has no window of its own to
// offer and knows the largest model by its layers.
func TestGemmaInGGUFIsReadAsLlamaCppReadsIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := tinymodel.Write(path, gemma()); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	float := func(key string, v float32) string {
		var r raw
		return r.str("gemma3." + key).u32(6).u32(math.Float32bits(v)).String()
	}
	dimensions := func(drop, add string) (family.Dimensions, error) {
		h, err := read(file)
		if err != nil {
			t.Fatal(err)
		}
		keys, count := file[24:h.DataOffset], binary.LittleEndian.Uint64(file[16:])
		if add != "" {
			keys, count = append([]byte(add), keys...), count+1
		}
		out := slices.Concat(file[:16], binary.LittleEndian.AppendUint64(nil, count), keys, make([]byte, 32), file[h.DataOffset:])
		if drop != "" { // by another name
			out = bytes.Replace(out, []byte(drop), []byte(strings.Repeat("x", len(drop)-1)+drop[len(drop)-1:]), 1)
		}
		if h, err = weights.ReadHeader(bytes.NewReader(out), int64(len(out))); err != nil {
			t.Fatal(err)
		}
		return h.Dimensions()
	}
	d, err := dimensions("gemma3.attention.sliding_window_pattern", "")
	if err != nil || slices.Contains(d.Everywhere, true) {
		t.Errorf("without a pattern: %v (%v), want that of six", d.Everywhere, err)
	}
	if d, err = dimensions("gemma3.rope.freq_base_swa", ""); err != nil || d.LocalRope.Theta != 1e4 {
		t.Errorf("without a base for windows: %+v (%v)", d.LocalRope, err)
	}
	for name, c := range map[string]struct {
		drop, add string
		want      error
	}{
		"attention.sliding_window": {drop: "gemma3.attention.sliding_window\x04", want: weights.ErrMissing},
		"attn_logit_softcapping":   {add: float("attn_logit_softcapping", 50), want: weights.ErrUnsupported},
		"final_logit_softcapping":  {add: float("final_logit_softcapping", 30), want: weights.ErrUnsupported},
	} {
		if _, err := dimensions(c.drop, c.add); !errors.Is(err, c.want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v, want %v that names it", name, err, c.want)
		}
	}
	largest := gemma()
	largest.Layers, largest.HeadSize, largest.QueryHeads, largest.KVHeads, largest.Hidden, largest.FeedForward = 62, 16, 2, 1, 64, 32
	if err := tinymodel.Write(path, largest); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Dim.QueryScalar != 32 {
		t.Errorf("62 layers: scores are divided by the root of %v, want that of width by heads, 32", f.Dim.QueryScalar)
	}
}
