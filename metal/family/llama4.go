package family

import "fmt"

// llama4 is the text part of Llama 4, and MobileLLM-R1. Three of four layers rotate heads,
// norm them after that, and attend within a chunk of the text; the fourth attends to
// everything without rotation, and its queries grow with their position. The sigmoid of the
// router multiplies the input of an expert; there is a shared expert too. Where the
// references differ we follow transformers, which computes what Meta published: mlx-lm's
// llama4 norms heads with an epsilon of 1e-6, and reads neither no_rope_layers nor
// moe_layers; its llama4_text has no chunks, no growth and no experts, and norms heads that
// are not rotated.
func llama4() Family {
	return Family{
		Name: "llama4_text", Models: "Llama 4, text only; MobileLLM-R1", Types: []string{"llama4_text"}, Context: 1 << 17, Theta: 5e5, Interleaved: true,
		Widths: []string{"intermediate_size_mlp"},
		Read:   readLlama4,
		Block: func(d Dimensions, i int) Block {
			b := preNorm(d, i)
			if b.Attention.Rope == nil {
				b.Attention.HeadNorm = NoHeadNorm
			} else {
				b.Attention.Temper = nil
			}
			b.Attention.NormLast = true
			return b
		},
		Layout: Layout{
			TurnedExperts: true,
			Rename: []string{
				".feed_forward.experts.gate_proj.", ".mlp.switch_mlp.gate_proj.", ".feed_forward.experts.up_proj.", ".mlp.switch_mlp.up_proj.",
				".feed_forward.experts.down_proj.", ".mlp.switch_mlp.down_proj.", ".feed_forward.router.", ".mlp.gate.",
				".feed_forward.shared_expert.", ".mlp.shared_experts.", ".feed_forward.", ".mlp.", "output.", "lm_head.",
			},
		},
	}
}

func readLlama4(c *Config, d *Dimensions) {
	wide := d.FeedForward
	d.FeedForward = c.integer(1, 1<<22, "intermediate_size_mlp")
	d.HeadSize = c.integer(2, 1<<12, "head_dim") // the references' defaults differ
	d.Bias = c.flag("attention_bias")
	d.OutBias = d.Bias
	if c.flagOr(true, "use_qk_norm") {
		d.HeadNorm = BareHead
	}
	d.Still = c.stillLayers(d.Layers)
	d.Chunked, d.Everywhere = true, d.Still
	for i, kind := range c.kinds(d.Layers, "chunked_attention", "full_attention") {
		if i == 0 {
			d.Everywhere = make([]bool, d.Layers)
		}
		d.Everywhere[i] = kind == "full_attention"
	}
	if chunk := c.integerOr(1<<13, 1, 1<<30, "attention_chunk_size"); chunk < d.Context {
		d.Window = chunk // one as long as the context hides nothing
	}
	if c.truth("attn_temperature_tuning") {
		d.Temper = &Temper{Beta: c.numberOr(0.1, 0, 1e3, "attn_scale"), Every: c.integerOr(1<<13, 1, 1<<30, "floor_scale"), Lead: 1}
	}
	dense, sparse := c.interleaved(d.Layers)
	c.value("num_local_experts") // is known, also if no layer has experts
	if !sparse {
		return
	}
	c.only("num_experts_per_tok", 1)
	d.Experts = Experts{
		Count: c.integerOr(16, 1, 1<<12, "num_local_experts"), PerToken: 1, FeedForward: wide, Step: 1, Dense: dense,
		Shared: wide, SharedWhole: true, Router: Router{Sigmoid: true, Input: true},
	}
}

// stillLayers reads which layers do not rotate heads: those that are 0 in no_rope_layers, or
// every no_rope_layer_interval-th.
func (c *Config) stillLayers(layers int) []bool {
	out := everyLayer(layers, c.integerOr(4, 1, 1<<12, "no_rope_layer_interval"))
	list := c.list("no_rope_layers")
	if len(list) == 0 {
		return out
	}
	if len(list) < layers {
		c.fail(Invalidf("%sno_rope_layers has %d values, want %d", c.inside, len(list), layers))
		return out
	}
	for i := range out {
		n, ok := WholeNumber(list[i])
		if !ok || n < 0 || n > 1 {
			c.fail(Invalidf("%sno_rope_layers contains %s, want 0 or 1", c.inside, Shown(list[i])))
		}
		out[i] = n == 0
	}
	return out
}

// truth reads a boolean that may be a number; absent means true.
func (c *Config) truth(name string) bool {
	if n, ok := floatNumber(c.value(name)); ok {
		return n != 0
	}
	return c.flagOr(true, name)
}

// interleaved reads which layers have a dense feed-forward: those that are not in moe_layers
// or, without the key, not every interleave_moe_layer_step-th. sparse is false if all are dense.
func (c *Config) interleaved(layers int) (dense []int, sparse bool) {
	mixture := make([]bool, layers)
	if _, listed := c.value("moe_layers").([]any); listed {
		for _, v := range c.list("moe_layers") {
			n, ok := WholeNumber(v)
			if !ok || n < 0 || n >= int64(layers) {
				c.fail(fmt.Errorf("%smoe_layers: %w", c.inside, Invalidf("contains %s, want layer numbers less than %d", Shown(v), layers)))
				break
			}
			mixture[n] = true
		}
		c.value("interleave_moe_layer_step")
	} else {
		c.list("moe_layers")
		mixture = everyLayer(layers, c.integerOr(1, 1, 1<<12, "interleave_moe_layer_step"))
	}
	for i, m := range mixture {
		if sparse = sparse || m; !m {
			dense = append(dense, i)
		}
	}
	return dense, sparse
}
