package weights

import (
	"fmt"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/float16"
)

// gemmaPattern is that every so-manieth layer of a Gemma sees everything, where
// a file does not say.
const gemmaPattern = 6

// gemma reads what a Gemma 3 has beside other decoders, as mlx-lm 0.32.2
// (models/gemma3_text.py) and transformers (Gemma3TextConfig, version 5) do.
func (c *config) gemma(d *Dimensions) {
	d.EmbedScale = gemmaScale(d.Hidden)
	d.QueryScalar = 256
	if c.text["query_pre_attn_scalar"] != nil {
		d.QueryScalar = c.number(1, 1<<20, "query_pre_attn_scalar")
	}
	d.Window = c.integer(1, 1<<30, "sliding_window") // the references' defaults differ
	d.Everywhere = c.gemmaLayers(d.Layers)
	c.gemmaRope(d)
	for _, name := range []string{"attn_logit_softcapping", "final_logit_softcapping"} {
		if v := c.text[name]; v != nil {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, name, &UnsupportedError{"value", shown(v), []string{"null"}}))
		}
	}
	if c.flag("use_bidirectional_attention") {
		c.fail(fmt.Errorf("%suse_bidirectional_attention: %w", c.inside, &UnsupportedError{"value", "true", []string{"false"}}))
	}
}

// gemmaScale is the root of the width in bfloat16, in which Gemma was trained:
// mlx-lm rounds it so whatever the weights are, transformers to their type.
func gemmaScale(hidden int) float64 {
	return float64(float16.FromBrain(float16.ToBrain(float32(math.Sqrt(float64(hidden))))))
}

// gemmaLayers says which layers see everything: layer_types where there are
// any, else every sliding_window_pattern-th.
func (c *config) gemmaLayers(layers int) []bool {
	pattern := c.integerOr(gemmaPattern, 1, 1<<12, "sliding_window_pattern")
	out := everyLayer(layers, pattern)
	types := c.text["layer_types"]
	if types == nil {
		return out
	}
	list, ok := types.([]any)
	if !ok || len(list) != layers {
		c.fail(invalidf("%slayer_types is not a list of %d names", c.inside, layers))
		return out
	}
	for i, v := range list {
		if v != "full_attention" && v != "sliding_attention" {
			c.fail(fmt.Errorf("%slayer_types: %w", c.inside, &UnsupportedError{"attention", shown(v), []string{"full_attention", "sliding_attention"}}))
			break
		}
		full := v == "full_attention"
		if c.text["sliding_window_pattern"] != nil && out[i] != full {
			c.fail(invalidf("%slayer_types and sliding_window_pattern contradict each other for layer %d; remove one of them", c.inside, i))
			break
		}
		out[i] = full
	}
	return out
}

// everyLayer marks every n-th of so many layers.
func everyLayer(layers, n int) []bool {
	out := make([]bool, layers)
	for i := range out {
		out[i] = (i+1)%n == 0
	}
	return out
}

// gemmaRope reads two rotations: that of layers that see everything, which may
// be scaled, and that of layers under the window.
func (c *config) gemmaRope(d *Dimensions) {
	local := Rope{Theta: 1e4, Size: d.HeadSize, Linear: 1, Magnitude: 1}
	where, v := "rope_local_base_freq", c.text["rope_local_base_freq"]
	if params, ok := c.text["rope_parameters"].(map[string]any); ok && v == nil {
		if p, ok := params["sliding_attention"].(map[string]any); ok {
			where, v = "rope_parameters.sliding_attention.rope_theta", p["rope_theta"]
			if kind := p["rope_type"]; kind != nil && kind != "default" {
				c.fail(fmt.Errorf("%srope_parameters.sliding_attention: %w", c.inside, &UnsupportedError{"rope scaling", shown(kind), []string{"default"}}))
			}
		}
	}
	if v != nil {
		f, ok := floatNumber(v)
		if !ok || f <= 1 || f > 1e12 {
			c.fail(invalidf("%s%s is %s, want a number above 1 and up to 1e12", c.inside, where, shown(v)))
		}
		local.Theta = f
	}
	d.LocalRope = &local
}

// gemma reads what a Gemma 3 has in GGUF, as llama.cpp does (models/gemma3.cpp).
func (r *keyReader) gemma(d *Dimensions) {
	d.EmbedScale = gemmaScale(d.Hidden)
	d.Window = r.integer("attention.sliding_window", 1, 1<<30)
	d.Everywhere = everyLayer(d.Layers, r.integerOr("attention.sliding_window_pattern", gemmaPattern, 1, 1<<12))
	d.LocalRope = &Rope{Theta: r.floatOr("rope.freq_base_swa", 1e4, 1, 1e12), Size: d.HeadSize, Linear: 1, Magnitude: 1}
	d.QueryScalar = float64(d.HeadSize)
	if d.Layers == 62 && d.QueryHeads > 0 { // the model of 27B, whose files do not say it
		d.QueryScalar = float64(d.Hidden / d.QueryHeads)
	}
	for _, key := range []string{"attn_logit_softcapping", "final_logit_softcapping"} {
		if v := r.floatOr(key, 0, 0, 1e6); v != 0 {
			r.fail(&UnsupportedError{"value of " + r.prefix + key, fmt.Sprint(v), []string{"0"}})
		}
	}
}

// NormsLessOne says that folders of the family hold its norms less one. GGUF
// files hold them as they are meant (llama.cpp's convert_hf_to_gguf.py).
func (d Dimensions) NormsLessOne() bool { return d.Architecture == familyGemma3 }

// WindowOf is how many latest positions a layer sees; 0 means all.
func (d Dimensions) WindowOf(layer int) int {
	if layer < len(d.Everywhere) && d.Everywhere[layer] {
		return 0
	}
	return d.Window
}

// windowLayers counts those under the window.
func (d Dimensions) windowLayers() int {
	n := 0
	for i := range d.Layers {
		if d.WindowOf(i) > 0 {
			n++
		}
	}
	return n
}

// ScoreScale multiplies the scores of attention.
func (d Dimensions) ScoreScale() float64 {
	if d.QueryScalar > 0 {
		return 1 / math.Sqrt(d.QueryScalar)
	}
	return 1 / math.Sqrt(float64(d.HeadSize))
}

// gated refuses activations that a family does not have.
func (c *config) gated(family string) {
	names, want := []string{"hidden_act", "activation_function"}, []string{"silu", "swish"}
	if family == familyGemma3 {
		names, want = []string{"hidden_activation", "hidden_act"}, []string{"gelu_pytorch_tanh"}
	}
	for _, key := range names {
		v := c.text[key]
		if name, ok := v.(string); v != nil && (!ok || !slices.Contains(want, name)) {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, key, &UnsupportedError{"activation", shown(v), want[:1]}))
			return
		}
	}
}

// scalingOf is the object that scales layers that see everything, and its key:
// rope_parameters may have one for each kind of layer.
func (c *config) scalingOf(family string) (params any, key string) {
	key, params = "rope_parameters", c.text["rope_parameters"]
	if all, ok := params.(map[string]any); ok && family == familyGemma3 {
		return all["full_attention"], key + ".full_attention"
	}
	return params, key
}
