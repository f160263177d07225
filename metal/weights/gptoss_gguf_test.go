//go:build !race

package weights_test

import (
	"bytes"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// gptossFile is a GPT-OSS in GGUF.
func gptossFile() tinymodel.Config {
	c := tinymodel.Default()
	c.Family, c.Type, c.Layers, c.Window, c.Untied = tinymodel.GPTOSS, weights.F32, 4, 16, true
	c.Experts = tinymodel.Experts{Count: 4, PerToken: 2, FeedForward: c.FeedForward}
	c.Scaling = tinymodel.Scaling{Kind: "yarn", Factor: 32, Original: 64}
	return c
}

// TestGPTOSSInGGUF: llama.cpp's names, biases and sinks, a window in every
// second layer from the first on, and experts in the blocks they were
// published in.
func TestGPTOSSInGGUF(t *testing.T) {
	c := gptossFile()
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	facts, err := f.Facts()
	if err != nil || facts.Architecture != "gpt_oss" || facts.WindowLayers != 2 || facts.WindowTokens != 16 || facts.Experts != 4 || facts.ExpertsPerToken != 2 || facts.Quantization != "F32" {
		t.Errorf("facts %+v (%v)", facts, err)
	}
	if !slices.Equal(f.Dim.Everywhere, []bool{false, true, false, true}) || math.Abs(f.Dim.Rope.Magnitude-1.3465735902799727) > 1e-12 {
		t.Errorf("everywhere %v, rope %+v", f.Dim.Everywhere, f.Dim.Rope)
	}
	for path, want := range map[string]struct {
		name, stored string
		shape        []int64
	}{
		"post_attention_layernorm.weight": {name: "post_attention_norm.weight", stored: "F32", shape: []int64{64}},
		"self_attn.sinks":                 {name: "attn_sinks.weight", stored: "F32", shape: []int64{4}},
		"self_attn.o_proj.bias":           {name: "attn_output.bias", stored: "F32", shape: []int64{64}},
		"mlp.router.bias":                 {name: "ffn_gate_inp.bias", stored: "F32", shape: []int64{4}},
		"mlp.experts.gate_proj.weight":    {name: "ffn_gate_exps.weight", stored: "MXFP4", shape: []int64{4, 128, 64}},
		"mlp.experts.down_proj.weight":    {name: "ffn_down_exps.weight", stored: "MXFP4", shape: []int64{4, 64, 128}},
		"mlp.experts.up_proj.bias":        {name: "ffn_up_exps.bias", stored: "F32", shape: []int64{4, 128}},
	} {
		e, ok := f.Entry("model.layers.3." + path)
		if !ok || e.Name != "blk.3."+want.name || e.Stored() != want.stored || !slices.Equal(e.Shape, want.shape) {
			t.Errorf("%s is %s, %s of %v", path, e.Name, e.Stored(), e.Shape)
		}
	}
}

// TestGPTOSSFilesThatMeanSomethingElseAreRefused by what they say.
func TestGPTOSSFilesThatMeanSomethingElseAreRefused(t *testing.T) {
	whole := tiny(t, gptossFile())
	key := func(name string) []byte { return append([]byte("gpt-oss."), name...) }
	float := func(v float32) []byte {
		b := math.Float32bits(v)
		return []byte{byte(b), byte(b >> 8), byte(b >> 16), byte(b >> 24)}
	}
	// after changes the bytes that follow a key and its type.
	after := func(name string, to []byte) []byte {
		at := bytes.Index(whole, key(name))
		if at < 0 {
			t.Fatalf("no key %s", name)
		}
		out := slices.Clone(whole)
		copy(out[at+len(key(name))+4:], to)
		return out
	}
	for name, c := range map[string]struct {
		file []byte
		want error
		says string
	}{
		"as it is":                {file: whole},
		"a window of nothing":     {file: after("attention.sliding_window", make([]byte, 4)), want: weights.ErrInvalid, says: "sliding_window"},
		"no window":               {file: bytes.Replace(whole, key("attention.sliding_window"), key("attention.sliding_widows"), 1), want: weights.ErrMissing, says: "sliding_window"},
		"another end of the band": {file: after("rope.scaling.yarn_beta_fast", float(16)), want: weights.ErrUnsupported, says: "yarn_beta_fast"},
		"another kind of rope":    {file: bytes.Replace(whole, []byte("\x04\x00\x00\x00\x00\x00\x00\x00yarn"), []byte("\x04\x00\x00\x00\x00\x00\x00\x00none"), 1), want: weights.ErrUnsupported, says: "yarn"},
		"more experts than there": {file: after("expert_used_count", []byte{5, 0, 0, 0}), want: weights.ErrInvalid, says: "5 experts, but there are only 4"},
	} {
		h, err := read(c.file)
		if err == nil {
			_, err = h.Dimensions()
		}
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want %v saying %q", name, err, c.want, c.says)
		}
	}
}

// TestMXFP4MeansWhatGGMLMeans: doubled elements and half a power of two
// (ggml-common.h, kvalues_mxfp4; ggml_e8m0_to_fp32_half), the first half of a
// block in low bits.
func TestMXFP4MeansWhatGGMLMeans(t *testing.T) {
	doubled := []float64{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
	for _, power := range []byte{1, 2, 100, 126, 127, 128, 200, 252} {
		raw := []byte{power}
		for i := range 16 {
			raw = append(raw, byte(i|(15-i)<<4))
		}
		got := make([]float32, 32)
		if err := weights.MXFP4.Dequantize(raw, got); err != nil {
			t.Fatal(err)
		}
		for i := range 16 {
			half := math.Exp2(float64(power) - 128)
			if low, high := float32(doubled[i]*half), float32(doubled[15-i]*half); got[i] != low || got[i+16] != high {
				t.Errorf("power %d: elements %d are %v and %v, want %v and %v", power, i, got[i], got[i+16], low, high)
			}
		}
	}
	if n, ok := weights.MXFP4.RowBytes(64); !ok || n != 34 {
		t.Errorf("a row of 64 has %d bytes", n)
	}
	if _, ok := weights.MXFP4.RowBytes(40); ok {
		t.Error("a row of 40 is whole blocks")
	}
}
