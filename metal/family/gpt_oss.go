package family

import "fmt"

// gptoss is the GPT-OSS family: Llama's block, in which every product of
// attention has a bias, every query head a sink, and the feed-forward of every
// layer is a mixture whose gate ends at a limit. Every second layer sees a
// window.
func gptoss() Family {
	return Family{
		Name: "gpt_oss", Models: "GPT-OSS", Types: []string{"gpt_oss"}, Context: 1 << 17,
		Read: (*Config).gptoss,
		Block: func(d Dimensions, i int) Block {
			b, x := preNorm(d, i), d.Experts
			x.Clamped = true
			b.Experts = &x
			b.Attention.Bias, b.Attention.OutBias, b.Attention.Sinks = true, true, true
			return b
		},
		Layout: Layout{Blocks: true},
		GGUF:   &GGUF{Name: "gpt-oss", Read: (*keyReader).gptoss, Names: map[string]string{"post_attention_layernorm": "post_attention_norm"}},
	}
}

// GateLimit is where the gates of a GPT-OSS end, and GateAlpha what sharpens
// them: mlx-lm 0.32.2 holds both as constants (swiglu_oai), so no other is computed.
const GateLimit, GateAlpha = 7, 1.702

// gptoss reads what a GPT-OSS has besides other decoders, as transformers
// (GptOssConfig, version 5) and mlx-lm 0.32.2 (models/gpt_oss.py) do.
func (c *Config) gptoss(d *Dimensions) {
	c.windows(d, 2)
	d.Experts = Experts{
		Count:       c.integer(1, 1<<12, "num_local_experts", "num_experts"),
		PerToken:    c.integer(1, 1<<12, "num_experts_per_tok", "experts_per_token"),
		FeedForward: d.FeedForward, Normalized: true, Step: 1,
	}
	if c.value("rope_scaling") == nil && c.value("rope_parameters") == nil { // the references take different ones then
		c.fail(fmt.Errorf("%srope_scaling: %w", c.inside, ErrMissing))
	}
	if v := c.value("attention_bias"); v != nil && v != true {
		c.fail(fmt.Errorf("%sattention_bias: %w", c.inside, &UnsupportedError{"value", Shown(v), []string{"true"}}))
	}
	c.only("swiglu_limit", GateLimit)
	c.only("swiglu_alpha", GateAlpha)
}

// gptoss reads a GPT-OSS in GGUF as llama.cpp does: every second layer, from the
// first on, sees a window, and shares are the softmax of those that were chosen.
// Edges of yarn's band are rounded there, however the model was trained.
func (r *keyReader) gptoss(d *Dimensions) {
	d.Window = r.integer("attention.sliding_window", 1, 1<<30)
	d.Everywhere = everyLayer(d.Layers, 2)
	if kind, _ := r.h.Text(r.prefix + "rope.scaling.type"); kind != "yarn" {
		r.fail(&UnsupportedError{"rope scaling", kind, []string{"yarn"}})
	}
	d.Experts = r.experts()
}
