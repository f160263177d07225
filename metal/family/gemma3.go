package family

import (
	"fmt"
	"math"

	"metalfleet.dev/metalfleet/metal/float16"
)

// gemma3 is the text part of the Gemma 3 family: both halves of a block are
// normed before and after, the activation is GELU, and embeddings are scaled.
// Most layers have a sliding window and their own rotary base. Residuals exceed
// the range of float16 (mlx-lm clips them, transformers refuses the type).
func gemma3() Family {
	return Family{
		Name: "gemma3_text", Models: "Gemma 3, text only", Types: []string{"gemma3_text"}, Context: 1 << 17, Theta: 1e6,
		Activations: []string{"gelu_pytorch_tanh"},
		Read:        readGemma,
		Block: func(d Dimensions, i int) Block {
			b := sandwich(d, i)
			b.Attention.HeadNorm, b.Feed.Activation = EachHead, GELUTanh
			return b
		},
		Layout: Layout{NormsLessOne: true, Wide: true, Headed: true},
		GGUF: &GGUF{Name: "gemma3", Read: (*keyReader).gemma, Names: map[string]string{
			"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
		}},
	}
}

// gemmaPattern is the default sliding_window_pattern: every n-th layer of a
// Gemma attends to all positions.
const gemmaPattern = 6

// readGemma reads the options of a Gemma 3 as mlx-lm 0.32.2 (models/gemma3_text.py)
// and transformers (Gemma3TextConfig, version 5) do.
func readGemma(c *Config, d *Dimensions) {
	d.EmbedScale = gemmaScale(d.Hidden)
	d.QueryScalar = 256
	if c.value("query_pre_attn_scalar") != nil {
		d.QueryScalar = c.number(1, 1<<20, "query_pre_attn_scalar")
	}
	d.Window = c.integer(1, 1<<30, "sliding_window") // the references' defaults differ
	d.Everywhere = readGemmaLayers(c, d.Layers)
	readGemmaRope(c, d)
	c.tower(d, siglipTower, nil)
}

// gemmaScale is the square root of the width in bfloat16, in which Gemma was
// trained: mlx-lm always rounds it to bfloat16, transformers to the model's
// type.
func gemmaScale(hidden int) float64 {
	return float64(float16.FromBrain(float16.ToBrain(float32(math.Sqrt(float64(hidden))))))
}

// readGemmaLayers marks the layers that attend to all positions: by layer_types if
// present, else every sliding_window_pattern-th.
func readGemmaLayers(c *Config, layers int) []bool {
	pattern := c.integerOr(gemmaPattern, 1, 1<<12, "sliding_window_pattern")
	out := everyLayer(layers, pattern)
	for i, kind := range c.kinds(layers, "full_attention", "sliding_attention") {
		full := kind == "full_attention"
		if c.value("sliding_window_pattern") != nil && out[i] != full {
			c.fail(Invalidf("%slayer_types and sliding_window_pattern contradict each other for layer %d; remove one of them", c.inside, i))
			break
		}
		out[i] = full
	}
	return out
}

// everyLayer marks every n-th layer.
func everyLayer(layers, n int) []bool {
	out := make([]bool, layers)
	for i := range out {
		out[i] = (i+1)%n == 0
	}
	return out
}

// readGemmaRope reads two rotary embeddings: that of layers with full attention,
// which may be scaled, and that of layers with a window.
func readGemmaRope(c *Config, d *Dimensions) {
	local := Rope{Theta: 1e4, Size: d.HeadSize, Linear: 1, Magnitude: 1}
	where, v := "rope_local_base_freq", c.value("rope_local_base_freq")
	if params, ok := c.value("rope_parameters").(map[string]any); ok && v == nil {
		if p, ok := params["sliding_attention"].(map[string]any); ok {
			where, v = "rope_parameters.sliding_attention.rope_theta", p["rope_theta"]
			if kind := p["rope_type"]; kind != nil && kind != "default" {
				c.fail(fmt.Errorf("%srope_parameters.sliding_attention: %w", c.inside, &UnsupportedError{"rope scaling", Shown(kind), []string{"default"}}))
			}
		}
	}
	if v != nil {
		f, ok := floatNumber(v)
		if !ok || f <= 1 || f > 1e12 {
			c.fail(Invalidf("%s%s is %s, want a number above 1 and up to 1e12", c.inside, where, Shown(v)))
		}
		local.Theta = f
	}
	d.LocalRope = &local
}

// gemma reads the options of a Gemma 3 in GGUF as llama.cpp does
// (models/gemma3.cpp).
func (r *keyReader) gemma(d *Dimensions) {
	d.EmbedScale = gemmaScale(d.Hidden)
	d.Window = r.integer("attention.sliding_window", 1, 1<<30)
	d.Everywhere = everyLayer(d.Layers, r.integerOr("attention.sliding_window_pattern", gemmaPattern, 1, 1<<12))
	// Files of Ollama have their own keys (convert/convert_gemma3.go), and no freq_base.
	if r.h.Value(r.prefix+"rope.freq_base") == nil {
		d.Rope.Theta = r.floatOr("rope.global.freq_base", d.Rope.Theta, 1, 1e12)
	}
	local := r.floatOr("rope.local.freq_base", 1e4, 1, 1e12)
	d.LocalRope = &Rope{Theta: r.floatOr("rope.freq_base_swa", local, 1, 1e12), Size: d.HeadSize, Linear: 1, Magnitude: 1}
	d.QueryScalar = float64(d.HeadSize)
	if d.Layers == 62 && d.QueryHeads > 0 { // the 27B model, whose files lack the key
		d.QueryScalar = float64(d.Hidden / d.QueryHeads)
	}
	for _, key := range []string{"attn_logit_softcapping", "final_logit_softcapping"} {
		if v := r.floatOr(key, 0, 0, 1e6); v != 0 {
			r.fail(&UnsupportedError{"value of " + r.prefix + key, fmt.Sprint(v), []string{"0"}})
		}
	}
}
