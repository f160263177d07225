package family

import "fmt"

// gptoss is the GPT-OSS family: Llama's block with biases in every product of
// attention, an attention sink per query head, a sliding window in every second
// layer, and in every layer a mixture of experts with clamped gates.
func gptoss() Family {
	return Family{
		Name: "gpt_oss", Models: "GPT-OSS", Types: []string{"gpt_oss"}, Context: 1 << 17,
		Read: readGPTOSS,
		Block: func(d Dimensions, i int) Block {
			b, x := preNorm(d, i), d.Experts
			x.Clamped = true
			b.Experts = &x
			b.Attention.Bias, b.Attention.OutBias, b.Attention.Sinks = true, true, true
			return b
		},
		Layout: Layout{Blocks: true, Headed: true},
		GGUF:   &GGUF{Name: "gpt-oss", Read: (*keyReader).gptoss, Names: map[string]string{"post_attention_layernorm": "post_attention_norm"}},
	}
}

// GateLimit clamps the gates of GPT-OSS and GateAlpha is the factor inside
// their sigmoid. mlx-lm 0.32.2 has both as constants (swiglu_oai), so other
// values are refused.
const GateLimit, GateAlpha = 7, 1.702

// readGPTOSS reads the options of GPT-OSS as transformers (GptOssConfig, version 5)
// and mlx-lm 0.32.2 (models/gpt_oss.py) do.
func readGPTOSS(c *Config, d *Dimensions) {
	c.windows(d, 2)
	d.Experts = Experts{
		Count:       c.integer(1, 1<<12, "num_local_experts", "num_experts"),
		PerToken:    c.integer(1, 1<<12, "num_experts_per_tok", "experts_per_token"),
		FeedForward: d.FeedForward, Normalized: true, Step: 1,
	}
	if c.value("rope_scaling") == nil && c.value("rope_parameters") == nil { // the references' defaults differ
		c.fail(fmt.Errorf("%srope_scaling: %w", c.inside, ErrMissing))
	}
	if v := c.value("attention_bias"); v != nil && v != true {
		c.fail(fmt.Errorf("%sattention_bias: %w", c.inside, &UnsupportedError{"value", Shown(v), []string{"true"}}))
	}
	c.only("swiglu_limit", GateLimit)
	c.only("swiglu_alpha", GateAlpha)
}

// gptoss reads GPT-OSS in GGUF as llama.cpp does: every second layer, starting
// with the first, has a window, and expert weights are a softmax over the
// chosen experts. llama.cpp rounds the edges of yarn's band even for models
// trained without rounding.
func (r *keyReader) gptoss(d *Dimensions) {
	d.Window = r.integer("attention.sliding_window", 1, 1<<30)
	d.Everywhere = everyLayer(d.Layers, 2)
	if kind, _ := r.h.Text(r.prefix + "rope.scaling.type"); kind != "yarn" {
		r.fail(&UnsupportedError{"rope scaling", kind, []string{"yarn"}})
	}
	d.Experts = r.experts()
}
