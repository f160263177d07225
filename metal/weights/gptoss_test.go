//go:build !race

package weights_test

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// published is a GPT-OSS as OpenAI published it, whose configuration a test
// changes.
func published(t *testing.T, l tinymodel.Layout, change func(cfg map[string]any)) (string, error) {
	t.Helper()
	c := tinymodel.Default()
	c.Family, c.Layers, c.Window, c.Untied, c.FeedForward, c.Theta, c.NormSpread = tinymodel.GPTOSS, 3, 21, true, 96, 150000, 0.5
	c.Experts = tinymodel.Experts{Count: 4, PerToken: 2, FeedForward: 96}
	c.Scaling = tinymodel.Scaling{Kind: "yarn", Factor: 32, Original: 4096, Fractional: true}
	path := filepath.Join(t.TempDir(), "model")
	if err := tinymodel.WriteFolder(path, c, l); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(path, "config.json")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	cfg := map[string]any{}
	if err := json.Unmarshal(text, &cfg); err != nil {
		t.Fatal(err)
	}
	change(cfg)
	if err := os.WriteFile(name, mustJSON(cfg), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err == nil {
		t.Cleanup(func() { f.Close() })
	}
	return path, err
}

func asPublished() tinymodel.Layout { return tinymodel.Layout{Matrices: quant.DenseOf(quant.BFloat16)} }

func TestGPTOSSIsReadAsItWasPublished(t *testing.T) {
	path, err := published(t, asPublished(), func(map[string]any) {})
	if err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := f.Dim
	if d.Architecture != "gpt_oss" || d.Window != 21 || !slices.Equal(d.Everywhere, []bool{false, true, false}) || d.Experts.Count != 4 || d.Experts.PerToken != 2 || d.Experts.FeedForward != 96 {
		t.Errorf("dimensions %+v", d)
	}
	if got, want := d.Rope.Magnitude, 0.1*math.Log(32)+1; math.Abs(got-want) > 1e-12 {
		t.Errorf("yarn multiplies by %v, want %v", got, want)
	}
	e, _ := f.Entry("model.layers.0.mlp.experts.gate_up_proj.weight")
	if e.Format != quant.BlockFloats()[0] || !slices.Equal(e.Shape, []int64{4, 192, 64}) || e.Name != e.Path || e.Part() != "feed-forward" {
		t.Errorf("gate and up are %+v", e)
	}
	if e, _ := f.Entry("model.layers.2.mlp.experts.gate_up_proj.bias"); !slices.Equal(e.Shape, []int64{4, 192}) || e.Format != quant.DenseOf(quant.BFloat16) {
		t.Errorf("their biases are %+v", e)
	}
	facts, err := f.Facts()
	if err != nil {
		t.Fatal(err)
	}
	if facts.GrowingLayers != 1 || facts.WindowLayers != 2 || facts.WindowTokens != 21 || facts.Experts != 4 || facts.ExpertFeedForwardSize != 96 || facts.FeedForwardSize != 96 || facts.KeyValueElementBytes != 2 || facts.WideWeightBytes != 0 {
		t.Errorf("facts %+v", facts)
	}
}

func TestYarnsEdgesLieBetweenPairsWhereTheConfigurationSaysSo(t *testing.T) {
	open := func(truncate any) []float32 {
		path, err := published(t, asPublished(), func(cfg map[string]any) {
			scaling := cfg["rope_scaling"].(map[string]any)
			if scaling["truncate"] = truncate; truncate == nil {
				delete(scaling, "truncate")
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		f, err := weights.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return f.Dim.Rope.Factors
	}
	whole, between := open(true), open(false)
	if slices.Equal(whole, between) || !slices.Equal(whole, open(nil)) {
		t.Errorf("factors of whole edges %v, of those between %v", whole, between)
	}
}

func TestGPTOSSThatComputesSomethingElseIsRefused(t *testing.T) {
	set := func(name string, v any) func(map[string]any) { return func(cfg map[string]any) { cfg[name] = v } }
	drop := func(names ...string) func(map[string]any) {
		return func(cfg map[string]any) {
			for _, n := range names {
				delete(cfg, n)
			}
		}
	}
	for name, c := range map[string]struct {
		change func(map[string]any)
		want   error
		says   string
	}{
		"another limit":             {change: set("swiglu_limit", 6.5), want: weights.ErrUnsupported, says: "swiglu_limit"},
		"a limit that is text":      {change: set("swiglu_limit", "7"), want: weights.ErrUnsupported, says: "swiglu_limit"},
		"another alpha":             {change: set("swiglu_alpha", 1.7), want: weights.ErrUnsupported, says: "swiglu_alpha"},
		"no biases":                 {change: set("attention_bias", false), want: weights.ErrUnsupported, says: "attention_bias"},
		"activations of fewer bits": {change: set("quantize_activations", true), want: weights.ErrUnsupported, says: "quantize_activations"},
		"another activation":        {change: set("hidden_act", "gelu"), want: weights.ErrUnsupported, says: "gelu"},
		"no window":                 {change: drop("sliding_window"), want: weights.ErrMissing, says: "sliding_window"},
		"no experts":                {change: drop("num_local_experts"), want: weights.ErrMissing, says: "num_local_experts"},
		"no count of chosen ones":   {change: drop("num_experts_per_tok"), want: weights.ErrMissing, says: "num_experts_per_tok"},
		"more chosen than there":    {change: set("num_experts_per_tok", 5), want: weights.ErrInvalid, says: "5 experts, but there are only 4"},
		"no stretching":             {change: drop("rope_scaling"), want: weights.ErrMissing, says: "rope_scaling"},
		"no theta":                  {change: drop("rope_theta"), want: weights.ErrMissing, says: "rope_theta"},
		"layers of another kind":    {change: set("layer_types", []string{"full_attention", "chunked_attention", "full_attention"}), want: weights.ErrUnsupported, says: "chunked_attention"},
		"layers without a kind":     {change: set("layer_types", []string{"full_attention"}), want: weights.ErrInvalid, says: "list of 3 names"},
		"layers that are a text":    {change: set("layer_types", "full_attention"), want: weights.ErrInvalid, says: "list of 3 names"},
		"another tool's words":      {change: set("quantization_config", map[string]any{"quant_method": "awq"}), want: weights.ErrUnsupported, says: "awq"},
		"no words for its blocks":   {change: drop("quantization_config"), want: weights.ErrInvalid, says: "no quantization"},
	} {
		if _, err := published(t, asPublished(), c.change); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want %v that says %q", name, err, c.want, c.says)
		}
	}
	for name, change := range map[string]func(map[string]any){
		"alternating layers":     drop("layer_types"),
		"the usual limit":        set("swiglu_limit", 7),
		"no limit":               drop("swiglu_limit", "swiglu_alpha"),
		"the usual alpha":        set("swiglu_alpha", 1.702),
		"experts by another key": func(cfg map[string]any) { cfg["experts_per_token"] = 2; delete(cfg, "num_experts_per_tok") },
		"nothing about biases":   drop("attention_bias"),
	} {
		if _, err := published(t, asPublished(), change); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// hostile changes the tensors of a published model.
func hostile(t *testing.T, change func(m map[string]stored)) error {
	t.Helper()
	const hidden, count, inner, heads = 64, 2, 32, 4
	m := newFolder("gpt_oss")
	for key, v := range map[string]any{
		"num_local_experts": count, "num_experts_per_tok": 1, "sliding_window": 8, "intermediate_size": inner, "layer_types": []string{"sliding_attention"},
		"rope_scaling": map[string]any{"rope_type": "default"}, "quantization_config": map[string]any{"quant_method": "mxfp4"},
	} {
		m.config[key] = v
	}
	files := m.files[oneFile]
	for _, name := range []string{"gate_proj", "up_proj", "down_proj"} {
		delete(files, "model.layers.0.mlp."+name+".weight")
	}
	put := func(name, kind string, shape ...int) {
		n := map[string]int{"U8": 1, "F32": 4, "U32": 4}[kind]
		for _, d := range shape {
			n *= d
		}
		files["model.layers.0."+name] = stored{kind: kind, shape: shape, data: make([]byte, n)}
	}
	put("self_attn.q_proj.bias", "F32", heads*tinyHead)
	put("self_attn.k_proj.bias", "F32", tinyKVHeads*tinyHead)
	put("self_attn.v_proj.bias", "F32", tinyKVHeads*tinyHead)
	put("self_attn.o_proj.bias", "F32", hidden)
	put("self_attn.sinks", "F32", heads)
	put("mlp.router.weight", "F32", count, hidden)
	put("mlp.router.bias", "F32", count)
	put("mlp.experts.gate_up_proj_blocks", "U8", count, 2*inner, hidden/32, 16)
	put("mlp.experts.gate_up_proj_scales", "U8", count, 2*inner, hidden/32)
	put("mlp.experts.gate_up_proj_bias", "F32", count, 2*inner)
	put("mlp.experts.down_proj_blocks", "U8", count, hidden, inner/32, 16)
	put("mlp.experts.down_proj_scales", "U8", count, hidden, inner/32)
	put("mlp.experts.down_proj_bias", "F32", count, hidden)
	change(files)
	f, err := weights.Open(m.write(t))
	if err == nil {
		f.Close()
	}
	return err
}

func TestHostilePublishedTensorsAreTypedErrors(t *testing.T) {
	if err := hostile(t, func(map[string]stored) {}); err != nil {
		t.Fatal(err)
	}
	const experts = "model.layers.0.mlp.experts."
	reshaped := func(name, kind string, shape ...int) func(map[string]stored) {
		return func(m map[string]stored) {
			n := map[string]int{"U8": 1, "F32": 4, "U32": 4, "BF16": 2}[kind]
			for _, d := range shape {
				n *= d
			}
			m[name] = stored{kind: kind, shape: shape, data: make([]byte, n)}
		}
	}
	gone := func(name string) func(map[string]stored) { return func(m map[string]stored) { delete(m, name) } }
	for name, c := range map[string]struct {
		change func(map[string]stored)
		want   error
		says   string
	}{
		"blocks of eight bytes":     {change: reshaped(experts+"gate_up_proj_blocks", "U8", 2, 64, 4, 8), want: weights.ErrInvalid, says: "blocks of 16"},
		"blocks without dimensions": {change: reshaped(experts+"gate_up_proj_blocks", "U8", 16), want: weights.ErrInvalid, says: "blocks of 16"},
		"blocks of words":           {change: reshaped(experts+"gate_up_proj_blocks", "U32", 2, 64, 2, 16), want: weights.ErrInvalid, says: "blocks of 16"},
		"blocks of a flat tensor":   {change: reshaped(experts+"gate_up_proj_blocks", "U8", 128, 2, 16), want: weights.ErrInvalid, says: "want words of shape"},
		"fewer blocks":              {change: reshaped(experts+"down_proj_blocks", "U8", 2, 63, 1, 16), want: weights.ErrInvalid, says: "want words of shape"},
		"more blocks":               {change: reshaped(experts+"down_proj_blocks", "U8", 2, 64, 2, 16), want: weights.ErrInvalid, says: "shapes of mxfp8"},
		"no scales":                 {change: gone(experts + "gate_up_proj_scales"), want: weights.ErrInvalid, says: "gate_up_proj"},
		"scales of fewer experts":   {change: reshaped(experts+"gate_up_proj_scales", "U8", 1, 64, 2), want: weights.ErrInvalid, says: "want words of shape"},
		"scales that are floats":    {change: reshaped(experts+"gate_up_proj_scales", "F32", 2, 64, 2), want: weights.ErrMissing, says: "biases"},
		"no blocks":                 {change: gone(experts + "down_proj_blocks"), want: weights.ErrMissing, says: "down_proj.weight"},
		"no gates":                  {change: gone(experts + "gate_up_proj_blocks"), want: weights.ErrMissing, says: "gate_up_proj.weight"},
		"no biases of experts":      {change: gone(experts + "gate_up_proj_bias"), want: weights.ErrMissing, says: "gate_up_proj.bias"},
		"biases of half the gates":  {change: reshaped(experts+"gate_up_proj_bias", "F32", 2, 32), want: weights.ErrInvalid, says: "gate_up_proj.bias"},
		"biases that are bytes":     {change: reshaped(experts+"gate_up_proj_bias", "U8", 2, 64), want: weights.ErrUnsupported, says: "U8"},
		"no sinks":                  {change: gone("model.layers.0.self_attn.sinks"), want: weights.ErrMissing, says: "sinks"},
		"sinks of other heads":      {change: reshaped("model.layers.0.self_attn.sinks", "F32", 3), want: weights.ErrInvalid, says: "sinks"},
		"no bias of the router":     {change: gone("model.layers.0.mlp.router.bias"), want: weights.ErrMissing, says: "router.bias"},
		"no bias after attention":   {change: gone("model.layers.0.self_attn.o_proj.bias"), want: weights.ErrMissing, says: "o_proj.bias"},
		"two layouts at once":       {change: reshaped(experts+"down_proj.weight", "F32", 2, 64, 32), want: weights.ErrInvalid, says: "two names"},
		"gates of both layouts":     {change: reshaped(experts+"up_proj.bias", "F32", 2, 32), want: weights.ErrInvalid, says: "up_proj.bias"},
		"experts in floats":         {change: reshaped(experts+"gate_up_proj", "BF16", 2, 64, 64), want: weights.ErrUnsupported, says: "floats in columns"},
		"experts in floats, down":   {change: reshaped(experts+"down_proj", "BF16", 2, 32, 64), want: weights.ErrInvalid, says: "down_proj"},
	} {
		if err := hostile(t, c.change); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want %v that says %q", name, err, c.want, c.says)
		}
	}
}
